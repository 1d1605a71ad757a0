"""`CommitPolicy`: the settings of the committers for clusters, rewinds and failures."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from offsetmgr.spark.offset_merge import normalized


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitPolicy:
    """The optional settings of `OffsetCommitter` and `BatchCommitter`.

    ``cluster`` is the ``kafka.bootstrap.servers`` of the group's cluster. Give several values if the sources of the
    queries spell these servers in several ways. Without ``cluster``, a topic that the queries read from two clusters is
    reported and not committed. ``allow_rewind`` allows commits that lower the group's offset. Set ``allow_rewind`` if a
    query begins below the group's offset.

    ``retries`` is the number of consecutive failed attempts before the committer reports a failure. It reports a
    failure in the log, in its `state` and in the metrics ``offsetmgr_spark_*``. ``pause_s`` is the pause after the
    first failure in seconds; it doubles with each further failure. A failed commit stops a query only if
    ``stop_on_failure`` is set. An `OffsetCommitter` compares all checkpoints with the group every ``reconcile_s``
    seconds.

    >>> CommitPolicy(cluster="h1:9092", retries=3).stop_on_failure
    False
    """

    cluster: str | Collection[str] | None = None
    allow_rewind: bool = False
    stop_on_failure: bool = False
    retries: int = 5
    pause_s: float = 0.2
    reconcile_s: float = 30.0

    @property
    def clusters(self) -> frozenset[str] | None:
        """The values of ``cluster``, each `normalized`; None without ``cluster``."""
        if self.cluster is None:
            return None
        return frozenset(map(normalized, [self.cluster] if isinstance(self.cluster, str) else self.cluster))
