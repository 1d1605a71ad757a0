"""Streaming queries without Spark: the tests write their checkpoints and define their plans. The objects have the part
of Spark's Python and Java interfaces that the committers use."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.spark import CommitPolicy, OffsetCommitter


def java(kind: str, **values: Any) -> Any:
    """A Java object of the class ``kind``, whose methods return the values of their names."""
    methods = {name: lambda *_, value=value: value for name, value in values.items()}
    return SimpleNamespace(getClass=lambda: SimpleNamespace(getSimpleName=lambda: kind), **methods)


def source(description: str = "KafkaV2[Subscribe[t]]", cluster: str | None = "k", name: str = "0") -> Any:
    """A source in the plan of a query. ``name`` is that of its directory in the checkpoint."""
    options = {} if cluster is None else {"kafka.bootstrap.servers": cluster}
    relation = java("Relation", options=options, metadataPath=f"/checkpoint/sources/{name}")
    return java("StreamingDataSourceV2ScanRelation", relation=relation, stream=description)


def old_source(description: str) -> Any:
    """A source of Spark's older interface, which does not expose its cluster."""
    return java("StreamingExecutionRelation", source=description)


class Query:
    """A query that reads topic t of cluster k, without other ``sources``. `plan` and `finish` write a batch to its
    checkpoint."""

    def __init__(
        self, directory: Path, id: str = "q", *sources: Any, name: str | None = None, run: str = "1", root: str = ""
    ) -> None:
        self.id = id
        self.runId = run
        self.name = name
        self.isActive = True
        self.directory = directory
        self.planned = True
        self.stopped = threading.Event()
        self.stop = self.stopped.set
        self._leaves = sources or (source(),)
        self._jsq = java("MicroBatchExecution", resolvedCheckpointRoot=root or str(directory))
        self._jsq.sources = lambda: SimpleNamespace(isEmpty=lambda: not self.planned)
        self._jsq.logicalPlan = lambda: SimpleNamespace(collectLeaves=lambda: self)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "metadata").write_text('{"id":"q"}')

    def size(self) -> int:
        return len(self._leaves)

    def apply(self, position: int) -> Any:
        return self._leaves[position]

    def plan(self, batch: int, offset: int, topic: str = "t") -> None:
        self.write(batch, f"v1\n{{}}\n{json.dumps({topic: {'0': offset}})}", finished=False)

    def finish(self, batch: int, offset: int, topic: str = "t") -> None:
        self.write(batch, f"v1\n{{}}\n{json.dumps({topic: {'0': offset}})}")

    def write(self, batch: int, offsets: str, *, finished: bool = True) -> None:
        for directory, text in (("offsets", offsets), ("commits", "v1\n{}"))[: 1 + finished]:
            (self.directory / directory).mkdir(exist_ok=True)
            (self.directory / directory / str(batch)).write_text(text)


class Driver:
    """A program with a session and a committer. It reports the events of queries as Spark does."""

    def __init__(self, store: OffsetStore, group: str = "g", *, queries: Any = None, **policy: Any) -> None:
        self.running: dict[str, Any] = {}
        self.listeners: list[OffsetCommitter] = []
        streams = SimpleNamespace(
            get=self.running.get, addListener=self.listeners.append, removeListener=self.listeners.remove
        )
        session: Any = SimpleNamespace(streams=streams)
        settings = CommitPolicy(**{"reconcile_s": 60.0, "retries": 2, "pause_s": 0.001, **policy})
        self.committer = OffsetCommitter(store, group, spark=session, queries=queries, policy=settings)

    def start(self, *queries: Any) -> None:
        for query in queries:
            self.running[query.id] = query
            self.committer.onQueryStarted(query)

    def finish(self, query: Query, batch: int, offset: int, topic: str = "t") -> None:
        """Finishes a batch and reports it."""
        query.finish(batch, offset, topic)
        self.committer.onQueryProgress(SimpleNamespace(progress=query))

    def end(self, query: Query) -> None:
        self.committer.onQueryTerminated(query)

    def reconcile(self, timeout_s: float = 60) -> bool:
        return self.committer.reconcile(timeout_s)

    @property
    def failing(self) -> str:
        return str(self.committer.state.failing)


def finished(checkpoint: Path) -> dict[str, int]:
    """The offsets after the newest finished batch of a checkpoint, parsed independently of the code under test."""
    done = [int(path.name) for path in (checkpoint / "commits").glob("*") if path.name.isdigit()]
    if not done:
        return {}
    sources = (checkpoint / "offsets" / str(max(done))).read_text().splitlines()[2:]
    found = [json.loads(line) for line in sources if line.startswith("{")]
    return {f"{t}-{p}": o for source in found for t, partitions in source.items() for p, o in partitions.items()}
