"""A recorded history of commits and fetches, and the check that no manager ever lied.

Each client process appends one line an operation to a file of its own.  Times are CLOCK_MONOTONIC of the one machine
that all processes share, in nanoseconds, so they can be compared between processes: an operation *precedes* another
if it ended before the other began.  Every (group, partition) has one client that commits to it, and commits a larger
value each time, so a value tells which commit it is, and "older" means "smaller".
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

COMMIT: Final = "commit"
FETCH: Final = "fetch"


class Operation(NamedTuple):
    """``value`` None of a fetch that succeeded: "no offset". ``done`` False: it failed, or nobody knows."""

    kind: str
    client: str
    group: str
    partition: int
    begin: int
    end: int
    done: bool
    value: int | None

    @property
    def key(self) -> tuple[str, int]:
        return self.group, self.partition

    def line(self) -> str:
        return json.dumps(self) + "\n"


def read_history(files: Iterable[Path]) -> Iterator[Operation]:
    """All operations of all files; a last line that a kill cut off is left out."""
    for file in files:
        for line in file.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                yield Operation(*json.loads(line))


def violations(history: Iterable[Operation]) -> list[str]:
    """Every fetch that returned less than was acknowledged (or seen) before it began, "no offset" where one was
    acknowledged or seen, or a value that nobody had begun to commit. Empty: the history is linearizable as far as one
    increasing writer a key can tell."""
    by_key: dict[tuple[str, int], list[Operation]] = {}
    for operation in history:
        by_key.setdefault(operation.key, []).append(operation)
    found: list[str] = []
    for operations in by_key.values():
        found += _violations_of_key(operations)
    return found


def _violations_of_key(operations: list[Operation]) -> list[str]:
    commits = [o for o in operations if o.kind == COMMIT]
    fetches = [o for o in operations if o.kind == FETCH and o.done]
    # What a reader must see from a moment on: what was acknowledged, and what another fetch has already returned.
    known = sorted((o.end, o.value) for o in [*commits, *fetches] if o.done and o.value is not None)
    ends = [end for end, _ in known]
    floor: list[int] = []
    for _, value in known:
        floor.append(max(value, floor[-1]) if floor else value)
    begun = {o.value: o.begin for o in commits}
    found = []
    for fetch in fetches:
        at = bisect_left(ends, fetch.begin)
        least = floor[at - 1] if at else None
        if fetch.value is None:
            if least is not None:
                found.append(f"no offset, though {least} was known before: {fetch}")
        elif least is not None and fetch.value < least:
            found.append(f"stale: {least} was known before: {fetch}")
        elif begun.get(fetch.value, fetch.end) >= fetch.end:
            found.append(f"never committed: {fetch}")
    return found
