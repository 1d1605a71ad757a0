"""A recorded history of commits and fetches, and the check that every fetch returned a current offset.

Each client process appends one line per operation to its own file. Times are CLOCK_MONOTONIC in nanoseconds; all
processes run on one machine, so their times can be compared. An operation *precedes* another if it ended before the
other began. Every (group, partition) has one client that commits to it, and each commit has a larger value, so a value
identifies its commit, and "older" means "smaller".
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
    """One commit or fetch.

    ``value`` is None if a successful fetch returned no offset. ``done`` is False if the operation failed or its outcome
    is unknown.
    """

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
    """All operations of all files. An incomplete last line, which a kill can leave, is skipped."""
    for file in files:
        for line in file.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                yield Operation(*json.loads(line))


def violations(history: Iterable[Operation]) -> list[str]:
    """Every fetch that returned less than a value acknowledged or fetched before it began, no offset after one was
    acknowledged or fetched, or a value whose commit had not begun.

    Without violations the history is linearizable, as far as one increasing writer per key can show.
    """
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
    # From its end time on, an acknowledged or already fetched value is visible to every reader.
    visible = sorted((o.end, o.value) for o in [*commits, *fetches] if o.done and o.value is not None)
    ends = [end for end, _ in visible]
    floor: list[int] = []
    for _, value in visible:
        floor.append(max(value, floor[-1]) if floor else value)
    begun = {o.value: o.begin for o in commits}
    found = []
    for fetch in fetches:
        at = bisect_left(ends, fetch.begin)
        minimum = floor[at - 1] if at else None
        if fetch.value is None:
            if minimum is not None:
                found.append(f"no offset, though {minimum} was known before: {fetch}")
        elif minimum is not None and fetch.value < minimum:
            found.append(f"stale: {minimum} was known before: {fetch}")
        elif begun.get(fetch.value, fetch.end) >= fetch.end:
            found.append(f"never committed: {fetch}")
    return found
