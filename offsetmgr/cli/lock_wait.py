"""Prints messages while a command waits for the group locks of other runs of offsetmgr, including killed runs, for the
members of groups, or for commits."""

from __future__ import annotations

import time
from typing import Final

from offsetmgr.cli.output_collector import COLLECTOR
from offsetmgr.cli.render import note
from offsetmgr.core.plurals import count_of

_LOG_INTERVAL_S: Final = 3.0


class LockWait:
    """Prints that the command waits for group locks, and the remaining time. The first call prints a line; later calls
    print at most one line every 3 s."""

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
        self._next = now + _LOG_INTERVAL_S
        return True

    def __call__(self, groups: list[str], seconds: float) -> None:
        if not self._due():
            return
        named = f"group {groups[0]}" if len(groups) == 1 else f"{len(groups):,} groups ({groups[0]}, ...)"
        note(f"waiting up to {max(seconds, 1):.0f} s for the lock of another or a killed run of offsetmgr on {named}")
