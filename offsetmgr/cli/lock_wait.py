"""Makes commands wait until the group locks of other runs of offsetmgr, including killed runs, have ended. Prints
messages during the wait."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from offsetmgr.cli.render import note
from offsetmgr.core.clock import SystemClock
from offsetmgr.groups.leftover_locks import wait_for_leftover_locks

if TYPE_CHECKING:
    from offsetmgr.core.errors import OffsetMgrError
    from offsetmgr.core.model import GroupDescription
    from offsetmgr.groups.describe import DescribeGroups
    from offsetmgr.kafka.cluster.base import Cluster

_LOG_INTERVAL_S: Final = 3.0


class LockWait:
    """Prints that the command waits for group locks, and the remaining time. The first call prints a line; later calls
    print at most one line every 3 s."""

    def __init__(self) -> None:
        self._next = 0.0

    def __call__(self, groups: list[str], seconds: float) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _LOG_INTERVAL_S
        named = f"group {groups[0]}" if len(groups) == 1 else f"{len(groups):,} groups ({groups[0]}, ...)"
        note(f"waiting up to {max(seconds, 1):.0f} s for the lock of another or a killed run of offsetmgr on {named}")


def lock_waiting_source(directory: DescribeGroups) -> DescribeGroups:
    """Wraps a function that describes groups, for commands that edit. The returned function waits until the group locks
    of other runs have ended."""
    return wait_for_leftover_locks(directory, SystemClock(), LockWait())


class _LockWaitingCluster:
    """A cluster whose ``describe_groups`` waits until the group locks of other runs have ended."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._directory = lock_waiting_source(cluster.describe_groups)

    def describe_groups(self, groups: Iterable[str]) -> Mapping[str, GroupDescription | OffsetMgrError]:
        return self._directory(groups)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)


def lock_waiting_cluster(cluster: Cluster) -> Cluster:
    return cast("Cluster", _LockWaitingCluster(cluster))
