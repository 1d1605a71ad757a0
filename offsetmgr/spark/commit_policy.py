"""`CommitPolicy`: how a committer of Spark offsets treats clusters, rewinds and failures."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from offsetmgr.spark.offset_merge import normalized


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitPolicy:
    """The optional settings of `OffsetCommitter` and `BatchCommitter`.

    ``cluster`` is the ``kafka.bootstrap.servers`` of the group's cluster (several spellings, if sources have several);
    without it, a topic that is read from two clusters is reported and not committed. ``allow_rewind`` allows the group
    to go back if a query begins behind it. ``retries`` is the number of consecutive failed attempts before a failure is
    reported, in the log, in the committer's `state` and in the metrics ``offsetmgr_spark_*``; ``pause_s`` is the pause
    after the first, doubled each time. A failed commit never stops a query unless ``stop_on_failure``. An
    `OffsetCommitter` compares all checkpoints with the group every ``reconcile_s`` seconds.
    """

    cluster: str | Collection[str] | None = None
    allow_rewind: bool = False
    stop_on_failure: bool = False
    retries: int = 5
    pause_s: float = 0.2
    reconcile_s: float = 30.0

    @property
    def clusters(self) -> frozenset[str] | None:
        """The spellings of the cluster's servers, `normalized`; None without ``cluster``."""
        if self.cluster is None:
            return None
        return frozenset(map(normalized, [self.cluster] if isinstance(self.cluster, str) else self.cluster))
