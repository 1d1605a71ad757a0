"""What a query of this driver reads, asked of Spark's own plan: its sources with their clusters, and its checkpoint.

Checkpoints and progress events name topics but no cluster, and their lines are sources in the order of the plan. The
plan itself is the only place that says which line is which; it is read here, of the very run that writes those lines.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, Protocol

from offsetmgr.core.errors import SparkError
from offsetmgr.spark.checkpoint import CheckpointBatch
from offsetmgr.spark.checkpoint_files import CheckpointFiles, HadoopFiles, LocalFiles
from offsetmgr.spark.offset_merge import CommitBlock, SourceProgress, normalised

_KAFKA: Final = ("KafkaV2[", "KafkaV1[")
_BOOTSTRAP: Final = "kafka.bootstrap.servers"
_READ: Final = re.compile(r"KafkaV[12]\[(Subscribe|Assign)\[(.+)\]\]")
"""How Spark's Kafka sources describe what they read; a pattern of topics says nothing of their names."""


@dataclass(frozen=True, slots=True)
class Source:
    """One source of a query: how Spark describes it, and its ``kafka.bootstrap.servers`` ("" where it has none)."""

    description: str
    cluster: str = ""

    @property
    def kafka(self) -> bool:
        return self.description.startswith(_KAFKA)

    @property
    def topics(self) -> frozenset[str] | None:
        """The topics that a source of Kafka reads; None where they are not known by name."""
        found = _READ.fullmatch(self.description)
        if found is None:
            return None
        names = found[2].split(", ")
        return frozenset(name.rpartition("-")[0] for name in names) if found[1] == "Assign" else frozenset(names)


class StreamingQueryProtocol(Protocol):
    """A query as the committer sees it. ``id`` stays when it starts again from its checkpoint, ``run`` does not."""

    id: str
    run: str
    name: str | None
    files: CheckpointFiles

    def sources(self) -> tuple[Source, ...] | None:
        """In the order of the checkpoint's lines; None while the query is still being planned."""
        ...

    def stop(self) -> None: ...


class QueryExecution:
    """A query of this driver. Keeps Spark's own object, so that it can be asked after the query has ended as well."""

    def __init__(self, query: Any) -> None:
        """``query`` is a ``pyspark.sql.streaming.StreamingQuery``. Raises `SparkError` for one of Spark Connect."""
        if not hasattr(query, "_jsq"):
            raise SparkError(f"query {query.id} is not followed", "it runs behind Spark Connect, its plan is not here")
        self.id = str(query.id)
        self.run = str(query.runId)
        self.name: str | None = query.name
        self._query = query
        wrapper = query._jsq
        self._execution = wrapper.streamingQuery() if "Wrapper" in wrapper.getClass().getSimpleName() else wrapper
        root = str(self._execution.resolvedCheckpointRoot())
        if root.startswith(("file:", "/")):
            self.files: CheckpointFiles = LocalFiles(root)
        else:
            conf = self._execution.sparkSession().sessionState().newHadoopConf()
            self.files = HadoopFiles(root, _jvm(), conf)
        self._sources: tuple[Source, ...] | None = None

    def sources(self) -> tuple[Source, ...] | None:
        # Set in the middle of planning; the plan itself may only be asked for after that.
        if self._sources is None and not self._execution.sources().isEmpty():
            leaves = self._execution.logicalPlan().collectLeaves()
            found = (_source(leaves.apply(n)) for n in range(leaves.size()))
            self._sources = tuple(source for source in found if source is not None)
        return self._sources

    @property
    def active(self) -> bool:
        return bool(self._query.isActive)

    def stop(self) -> None:
        self._query.stop()


def readings(batch: CheckpointBatch, sources: tuple[Source, ...] | None, what: str) -> list[SourceProgress]:
    """How far each Kafka source has come with ``batch``. Without ``sources`` (the query is not at hand) every line of
    Kafka's form counts. Raises `SparkError` where the plan and the checkpoint have not the same number of sources."""
    if sources is None:
        return [SourceProgress("", end) for end in batch.ends if end is not None]
    if len(sources) != len(batch.ends):
        why = f"its plan has {len(sources)} sources and batch {batch.number} of its checkpoint {len(batch.ends)}"
        raise SparkError(f"{what} is not followed", why)
    pairs = zip(sources, batch.ends, strict=True)
    return [SourceProgress(source.cluster, end) for source, end in pairs if source.kafka and end is not None]


def holds(batch: CheckpointBatch | None, sources: tuple[Source, ...]) -> list[CommitBlock]:
    """The Kafka sources that have finished nothing up to ``batch`` (None: no batch has finished)."""
    ends = [None] * len(sources) if batch is None else batch.ends
    pairs = zip(sources, ends, strict=False)  # of other lengths they are refused by `readings`
    return [CommitBlock(source.cluster, source.topics) for source, end in pairs if source.kafka and end is None]


def _source(leaf: Any) -> Source | None:
    kind = leaf.getClass().getSimpleName()
    if kind == "StreamingDataSourceV2ScanRelation":
        servers = leaf.relation().options().get(_BOOTSTRAP)
        return Source(str(leaf.stream()), normalised(servers or ""))
    # Kafka's older source (spark.sql.streaming.disabledV2MicroBatchReaders) does not tell its cluster.
    return Source(str(leaf.source())) if kind == "StreamingExecutionRelation" else None


def _jvm() -> Any:
    from pyspark import SparkContext

    return SparkContext._jvm
