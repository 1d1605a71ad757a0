"""Reads the sources of a running query, with their clusters, from Spark's query plan.

A checkpoint has one line for each source, and each line contains topics but no cluster. Only the plan maps lines to
sources, so this module reads the plan of the run that writes the checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from offsetmgr.core.errors import SparkError
from offsetmgr.core.model import TopicPartition
from offsetmgr.spark.checkpoint import (
    NO_OFFSET,
    CheckpointBatch,
    CheckpointFiles,
    HadoopFiles,
    LocalFiles,
    kafka_offsets,
)
from offsetmgr.spark.offset_merge import CommitBlock, SourceProgress, normalized
from offsetmgr.spark.source_options import BOOTSTRAP

_KAFKA: Final = ("KafkaV2[", "KafkaV1[")
_READ: Final = re.compile(r"KafkaV[12]\[(Subscribe|Assign)\[(.+)\]\]")
"""Spark's description of a Kafka source. The description of a source that subscribes to a pattern does not match,
because it contains no names of topics."""


@dataclass(frozen=True, slots=True)
class Source:
    """One source of a query: Spark's description of the source, its ``kafka.bootstrap.servers``, and the name of its
    directory in the checkpoint, which is its name or its number. The last two are "" if unknown."""

    description: str
    cluster: str = ""
    name: str = ""

    @property
    def kafka(self) -> bool:
        return self.description.startswith(_KAFKA)

    @property
    def topics(self) -> frozenset[str] | None:
        """The topics that a Kafka source reads; None if their names are unknown."""
        found = _READ.fullmatch(self.description)
        if found is None:
            return None
        names = found[2].split(", ")
        return frozenset(name.rpartition("-")[0] for name in names) if found[1] == "Assign" else frozenset(names)


class QueryExecution:
    """A query of this driver. This class keeps Spark's query object, so its methods still work after the query has
    ended. ``id`` stays the same after a restart from the checkpoint, but ``run`` changes."""

    def __init__(self, query: Any) -> None:
        """Wraps a ``pyspark.sql.streaming.StreamingQuery``. Raises `SparkError` for a query of Spark Connect."""
        if not hasattr(query, "_jsq"):
            raise SparkError(f"query {query.id} is not tracked", "Spark Connect does not give access to its plan")
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
            from pyspark import SparkContext

            conf = self._execution.sparkSession().sessionState().newHadoopConf()
            self.files = HadoopFiles(root, SparkContext._jvm, conf)
        self._sources: tuple[Source, ...] | None = None

    def sources(self) -> tuple[Source, ...] | None:
        """Returns the sources in the order of the plan; None before Spark has planned the query."""
        # Spark sets the sources when it plans the query. The plan must not be read before Spark has set them.
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


def progress_of(
    batch: CheckpointBatch | None, sources: tuple[Source, ...] | None, what: str
) -> tuple[list[SourceProgress], list[CommitBlock]]:
    """Returns the progress of each Kafka source after ``batch``, and a block for each Kafka source for which ``batch``
    contains no offset. ``batch`` is the newest finished batch; None if no batch has finished.

    If ``sources`` is None because the query is unknown, the result contains the offsets of every line that is in
    Kafka's format. Raises `CorruptData` for an invalid line, and `SparkError` if the plan and a checkpoint without
    names have different numbers of sources.
    """
    if sources is None:
        return [SourceProgress("", end) for end in (batch.ends if batch else ()) if end is not None], []
    if batch is not None and batch.ordered and len(sources) != len(batch.lines):
        why = f"its plan has {len(sources)} sources, but batch {batch.number} of its checkpoint has {len(batch.lines)}"
        raise SparkError(f"{what} is not tracked", why)
    ends = [None] * len(sources) if batch is None else _ends(batch, sources)
    pairs = [(source, end) for source, end in zip(sources, ends, strict=True) if source.kafka]
    progress = [SourceProgress(source.cluster, end) for source, end in pairs if end is not None]
    return progress, [CommitBlock(source.cluster, source.topics) for source, end in pairs if end is None]


def _ends(batch: CheckpointBatch, sources: tuple[Source, ...]) -> list[Mapping[TopicPartition, int] | None]:
    """Returns the end offsets of each Kafka source; None for other sources and for sources without an offset."""
    found: list[Mapping[TopicPartition, int] | None] = []
    for position, source in enumerate(sources):
        # In version 2, a source that the plan contains several times has one line, under one of its positions.
        twins = [str(n) for n, other in enumerate(sources) if other == source]
        by_id = [source.name or str(position), *(twins if len(twins) > 1 else ())]
        ids = [str(position)] if batch.ordered else by_id
        line = next((batch.lines[name] for name in ids if name in batch.lines), NO_OFFSET)
        found.append(kafka_offsets(line, batch.what) if source.kafka and line != NO_OFFSET else None)
    return found


def _source(leaf: Any) -> Source | None:
    kind = leaf.getClass().getSimpleName()
    if kind == "StreamingDataSourceV2ScanRelation":
        servers = leaf.relation().options().get(BOOTSTRAP)
        directory = str(leaf.relation().metadataPath())  # for example CHECKPOINT/sources/0
        return Source(str(leaf.stream()), normalized(servers or ""), directory.rpartition("/")[2])
    # Spark's older Kafka source (spark.sql.streaming.disabledV2MicroBatchReaders) does not expose its cluster.
    return Source(str(leaf.source())) if kind == "StreamingExecutionRelation" else None
