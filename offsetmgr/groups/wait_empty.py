"""Waits until groups have no members."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from offsetmgr.core.advice import Advice
from offsetmgr.core.clock import Clock
from offsetmgr.core.errors import GroupActive, OffsetMgrError
from offsetmgr.core.plurals import count_of
from offsetmgr.core.retry import Backoff, BlockingRetries
from offsetmgr.groups.describe import DescribeGroups

POLL_S: Final = 1.0
"""Seconds between two requests for the members of the groups."""


def wait_until_empty(
    describe_groups: DescribeGroups,
    groups: Iterable[str],
    limit_s: float,
    clock: Clock,
    on_wait: Callable[[dict[str, int], float], None],
) -> None:
    """Returns once no group has members. ``on_wait`` receives the number of members of each group that has members,
    and the remaining seconds, before each pause.

    Does not wait for a group that cannot be described: the edit refuses it. Raises `GroupActive` after ``limit_s``
    seconds.
    """
    ends = clock.monotonic() + limit_s
    retries = BlockingRetries(ends, Backoff.fixed(POLL_S), clock)
    waiting = list(groups)
    while waiting:
        found = describe_groups(waiting)
        members: dict[str, int] = {}
        for group in waiting:
            described = found[group]
            if not isinstance(described, OffsetMgrError) and described.members:
                members[group] = len(described.members)
        waiting = list(members)
        if not waiting:
            return
        on_wait(members, ends - clock.monotonic())
        if not retries.pause():
            first, number = next(iter(members.items()))
            why = f"still has {count_of(number, 'member')} after {limit_s:g} s"
            raise GroupActive(
                f"group {first}",
                why,
                Advice("stop its consumers, or wait longer with {wait_empty_s:wait_empty} SECONDS"),
            )
