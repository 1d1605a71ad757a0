"""Prints messages while a command waits for the group locks of other runs of offsetmgr, including killed runs, for the
members of groups, for commits, or for brokers."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, cast

from offsetmgr.cli.output_collector import COLLECTOR
from offsetmgr.cli.render import note
from offsetmgr.core.plurals import count_of

if TYPE_CHECKING:
    from offsetmgr.core.errors import OffsetMgrError
    from offsetmgr.core.model import LogRange, TopicPartition
    from offsetmgr.kafka.cluster.base import Cluster

_LOG_INTERVAL_S: Final = 3.0
_FILE_INTERVAL_S: Final = 30.0


class LockWait:
    """Prints that the command waits for group locks, and the remaining time. The first call prints a line; later calls
    print at most one line every 3 s, or every 30 s if stderr is not a terminal."""

    def __init__(self) -> None:
        self._next = 0.0
        self._watch_left_s = 0.0

    def for_members(self, members: dict[str, int], seconds: float) -> None:
        """Works like a call, while the command waits until groups have no members."""
        if self._due():
            group, number = next(iter(members.items()))
            others = f" and {count_of(len(members) - 1, 'other group')}" if len(members) > 1 else ""
            waits = f"waiting up to {max(seconds, 1):.0f} s until group {group} ({count_of(number, 'member')})"
            note(f"{waits}{others} has no members")

    def for_commits(self, seconds: float) -> None:
        """Works like a call, while the command watches commits, but prints the first line of each watch after 3 s,
        because most watches end earlier. Prints nothing if the command reads several clusters."""
        if seconds > self._watch_left_s:  # a new watch
            self._next = time.monotonic() + _LOG_INTERVAL_S
        self._watch_left_s = seconds
        if COLLECTOR.get() is None and self._due():
            note(f"watching commits for up to {max(seconds, 1):.0f} s")

    def _due(self) -> bool:
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + (_LOG_INTERVAL_S if sys.stderr.isatty() else _FILE_INTERVAL_S)
        return True

    def __call__(self, groups: list[str], seconds: float) -> None:
        if not self._due():
            return
        named = f"group {groups[0]}" if len(groups) == 1 else f"{len(groups):,} groups ({groups[0]}, ...)"
        note(f"waiting up to {max(seconds, 1):.0f} s for the lock of another or a killed run of offsetmgr on {named}")


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
