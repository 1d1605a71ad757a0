"""Prints messages while a command waits for the group locks of other runs of offsetmgr, including killed runs."""

from __future__ import annotations

import time
from typing import Final

from offsetmgr.cli.render import note

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
