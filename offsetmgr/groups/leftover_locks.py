"""Waits for group locks that a killed run of offsetmgr left behind.

The coordinator removes the lock of a killed run after the session timeout of the lock. If a lock still exists after
that time, a running offsetmgr process holds the lock, and the group counts as active.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from offsetmgr.core.model import GroupDescription

if TYPE_CHECKING:
    from offsetmgr.core.clock import Clock
    from offsetmgr.core.errors import OffsetMgrError
    from offsetmgr.groups.describe import DescribeGroups
    from offsetmgr.kafka.cluster.base import Cluster

POLL_S: Final = 0.5
"""Seconds between two requests for the state of the groups."""

OnWait: TypeAlias = Callable[[list[str], float], None]
"""The function is called before each pause. Its arguments are the locked groups and the maximum remaining wait in
seconds."""


def wait_for_leftover_locks(describe_groups: DescribeGroups, clock: Clock, on_wait: OnWait) -> DescribeGroups:
    """Returns a `DescribeGroups` that waits while groups are locked by other runs of offsetmgr. For each group, the
    wait ends at the latest when the lock of a killed process would have expired (`GroupDescription.lock_ends_s`)."""

    def describe(groups: Iterable[str]) -> Mapping[str, GroupDescription | OffsetMgrError]:
        found = dict(describe_groups(list(groups)))
        began = clock.monotonic()
        wait_s = {group: seconds for group, one in found.items() if (seconds := _lock_ends_s(one))}
        while wait_s:
            waited = clock.monotonic() - began
            on_wait(sorted(wait_s), max(wait_s.values()) - waited)
            clock.sleep(POLL_S)
            found.update(describe_groups(list(wait_s)))
            waited = clock.monotonic() - began
            wait_s = {g: s for g, s in wait_s.items() if _lock_ends_s(found[g]) and waited < s}
        return found

    return describe


def _lock_ends_s(found: GroupDescription | OffsetMgrError) -> float:
    return found.lock_ends_s if isinstance(found, GroupDescription) else 0.0


class _LockWaitingCluster:
    """A cluster whose ``describe_groups`` waits until the group locks of other runs have ended."""

    def __init__(self, cluster: Cluster, clock: Clock, on_wait: OnWait) -> None:
        self._cluster = cluster
        self._describer = wait_for_leftover_locks(cluster.describe_groups, clock, on_wait)

    def describe_groups(self, groups: Iterable[str]) -> Mapping[str, GroupDescription | OffsetMgrError]:
        return self._describer(groups)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)


def lock_waiting_cluster(cluster: Cluster, clock: Clock, on_wait: OnWait) -> Cluster:
    """Wraps ``cluster``: its ``describe_groups`` waits like the function of `wait_for_leftover_locks`."""
    return cast("Cluster", _LockWaitingCluster(cluster, clock, on_wait))
