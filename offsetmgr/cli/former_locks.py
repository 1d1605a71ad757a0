"""Messages while a command waits for the group locks of an earlier run."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from offsetmgr.cli.render import note
from offsetmgr.core.clock import SystemClock
from offsetmgr.groups.former_locks import wait_for_former_locks

if TYPE_CHECKING:
    from offsetmgr.core.errors import OffsetMgrError
    from offsetmgr.core.model import GroupDescription
    from offsetmgr.groups.describe import DescribeGroups
    from offsetmgr.kafka.cluster.base import Cluster

_EVERY_S: Final = 3.0


class LockWait:
    """Reports at once that it waits, and the remaining time periodically."""

    def __init__(self) -> None:
        self._next = 0.0

    def __call__(self, groups: list[str], seconds: float) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _EVERY_S
        named = f"group {groups[0]}" if len(groups) == 1 else f"{len(groups):,} groups ({groups[0]}, ...)"
        note(f"waiting up to {max(seconds, 1):.0f} s for the lock of another or a killed run of offsetmgr on {named}")


def patient(directory: DescribeGroups) -> DescribeGroups:
    """The directory for a command that edits: it waits for such locks."""
    return wait_for_former_locks(directory, SystemClock(), LockWait())


class _PatientCluster:
    """A cluster that describes groups only after such locks have ended."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._directory = patient(cluster.describe_groups)

    def describe_groups(self, groups: Iterable[str]) -> Mapping[str, GroupDescription | OffsetMgrError]:
        return self._directory(groups)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)


def patient_cluster(cluster: Cluster) -> Cluster:
    return cast("Cluster", _PatientCluster(cluster))
