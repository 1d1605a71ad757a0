"""Waits for group locks that a killed run of offsetmgr left behind.

The coordinator ends such a lock after its session timeout. A lock that exists after that belongs to a live run: its
group counts as active.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from offsetmgr.core.model import GroupDescription

if TYPE_CHECKING:
    from offsetmgr.core.clock import Clock
    from offsetmgr.core.errors import OffsetMgrError
    from offsetmgr.groups.describe import Directory

POLL_S: Final = 0.5
"""Seconds between two requests for the groups."""

Waiting: TypeAlias = Callable[[list[str], float], None]
"""Called at each request with the groups, and the maximum number of seconds to wait."""


def outwaited(directory: Directory, clock: Clock, waiting: Waiting) -> Directory:
    """Returns a directory that answers for a group with such a lock once the lock has ended, or has not ended in
    time."""

    def describe(groups: Iterable[str]) -> Mapping[str, GroupDescription | OffsetMgrError]:
        found = dict(directory(list(groups)))
        began = clock.monotonic()
        wait_s = {group: seconds for group, one in found.items() if (seconds := _lock_ends_s(one))}
        while wait_s:
            waited = clock.monotonic() - began
            waiting(sorted(wait_s), max(wait_s.values()) - waited)
            clock.sleep(POLL_S)
            found.update(directory(list(wait_s)))
            waited = clock.monotonic() - began
            wait_s = {g: s for g, s in wait_s.items() if _lock_ends_s(found[g]) and waited < s}
        return found

    return describe


def _lock_ends_s(found: GroupDescription | OffsetMgrError) -> float:
    return found.lock_ends_s if isinstance(found, GroupDescription) else 0.0
