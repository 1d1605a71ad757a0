"""Waits for group locks that a killed run of offsetmgr left behind.

The coordinator removes the lock of a killed run after the session timeout of the lock. If a lock still exists after
that time, it belongs to a run that has not ended, and the locked group counts as active.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from offsetmgr.core.model import GroupDescription

if TYPE_CHECKING:
    from offsetmgr.core.clock import Clock
    from offsetmgr.core.errors import OffsetMgrError
    from offsetmgr.groups.describe import DescribeGroups

POLL_S: Final = 0.5
"""Seconds between two requests for the state of the groups."""

OnWait: TypeAlias = Callable[[list[str], float], None]
"""Called before each request with the locked groups and the maximum number of seconds that remain to wait."""


def wait_for_leftover_locks(describe_groups: DescribeGroups, clock: Clock, waiting: OnWait) -> DescribeGroups:
    """Returns a `DescribeGroups` that waits while groups are locked by other runs of offsetmgr. For each group, it
    waits at most for the session timeout of the lock."""

    def describe(groups: Iterable[str]) -> Mapping[str, GroupDescription | OffsetMgrError]:
        found = dict(describe_groups(list(groups)))
        began = clock.monotonic()
        wait_s = {group: seconds for group, one in found.items() if (seconds := _lock_ends_s(one))}
        while wait_s:
            waited = clock.monotonic() - began
            waiting(sorted(wait_s), max(wait_s.values()) - waited)
            clock.sleep(POLL_S)
            found.update(describe_groups(list(wait_s)))
            waited = clock.monotonic() - began
            wait_s = {g: s for g, s in wait_s.items() if _lock_ends_s(found[g]) and waited < s}
        return found

    return describe


def _lock_ends_s(found: GroupDescription | OffsetMgrError) -> float:
    return found.lock_ends_s if isinstance(found, GroupDescription) else 0.0
