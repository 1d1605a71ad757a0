"""Prints a message while a command waits for brokers."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, cast

from offsetmgr.cli.render import note

if TYPE_CHECKING:
    from offsetmgr.core.errors import OffsetMgrError
    from offsetmgr.core.model import LogRange, TopicPartition
    from offsetmgr.kafka.cluster.base import Cluster

_LOG_INTERVAL_S: Final = 3.0
_FILE_INTERVAL_S: Final = 30.0


class _NotedCluster:
    """A cluster whose requests about topics and logs print a note if they take longer than 3 s."""

    def __init__(self, cluster: Cluster, bootstrap: str, timeout_s: float) -> None:
        self._cluster = cluster
        self._bootstrap = bootstrap
        self._timeout_s = timeout_s

    def topics(self, names: Iterable[str] | None = None) -> Mapping[str, int]:
        with self._noted():
            return self._cluster.topics(names)

    def log_ranges(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, LogRange | OffsetMgrError]:
        with self._noted():
            return self._cluster.log_ranges(partitions)

    def offsets_for_time(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int
    ) -> Mapping[TopicPartition, int | OffsetMgrError | None]:
        with self._noted():
            return self._cluster.offsets_for_time(partitions, timestamp_ms)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    @contextmanager
    def _noted(self) -> Iterator[None]:
        left_s = self._timeout_s - _LOG_INTERVAL_S
        end = datetime.now(UTC) + timedelta(seconds=self._timeout_s)
        text = f"waiting up to {left_s:.0f} s, until {end:%H:%M:%S} UTC, for brokers {self._bootstrap} (--timeout)"
        timer = threading.Timer(_LOG_INTERVAL_S, note, (text,))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def noted_log_wait(cluster: Cluster, bootstrap: str, timeout_s: float) -> Cluster:
    """Wraps ``cluster``: prints a note if its brokers, which ``bootstrap`` names, need longer than 3 s for a request
    about topics or logs. ``timeout_s`` limits each request."""
    return cast("Cluster", _NotedCluster(cluster, bootstrap, timeout_s)) if timeout_s > _LOG_INTERVAL_S else cluster
