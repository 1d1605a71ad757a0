"""`TrackedQuery`: the state of one query, which the committer reads from the query's plan and checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field

from offsetmgr.core.errors import OffsetMgrError, SparkError
from offsetmgr.spark.checkpoint import CheckpointBatch, newest_finished
from offsetmgr.spark.offset_merge import CommitBlock, SourceProgress
from offsetmgr.spark.query_plan import QueryExecution, progress_of


@dataclass
class TrackedQuery:
    """The state of one query.

    ``progress`` are the offsets of its sources, and ``blocks`` stand for its sources with unknown progress. ``error``
    is the error of the last read; None if the last read succeeded. After an error the earlier progress stays valid,
    because a checkpoint only moves forward.
    """

    query: QueryExecution
    ended: bool = False
    progress: list[SourceProgress] = field(default_factory=list)
    blocks: list[CommitBlock] = field(default_factory=lambda: [CommitBlock()])
    error: OffsetMgrError | None = None
    planned: bool = False
    """True if the sources are known. Also True if the sources will never be known, because the query ended before Spark
    planned it."""

    @property
    def what(self) -> str:
        return f"query {self.query.name or self.query.id}"

    def read(self) -> CheckpointBatch | None:
        """Reads the plan and the checkpoint; returns the newest finished batch. Stores a failure in ``error``."""
        try:
            found = self._read()
            self.error = None
            return found
        except OffsetMgrError as failed:
            self.error = failed
        except Exception as failed:  # for example py4j's when the driver's JVM ends
            self.error = SparkError(f"query {self.query.id} cannot be read", str(failed).split("\n", 1)[0])
        return None

    def _read(self) -> CheckpointBatch | None:
        sources = self.query.sources()
        self.planned = sources is not None or self.ended
        if sources is not None and not self.progress:
            self.blocks = progress_of(None, sources, self.what)[1]
        found = newest_finished(self.query.files, may_be_gone=self.ended) if self.planned else None
        if sources is None:
            if self.ended and not self.progress:
                # The query ended before it was planned, and may restart, so it blocks the topics in its checkpoint.
                ends = () if found is None else found.ends
                self.blocks = [CommitBlock(topics=frozenset(tp.topic for end in ends if end for tp in end))]
            return None
        if found is not None:
            self.progress, self.blocks = progress_of(found, sources, self.what)
        elif self.ended and not self.query.files.names("offsets"):
            self.progress, self.blocks = [], []  # the checkpoint is empty, so no query will continue from it
        return found
