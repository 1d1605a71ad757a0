"""The checker of histories finds each kind of violation in a bad history, and none in a good one."""

from pathlib import Path

import pytest
from history import COMMIT, FETCH, Operation, read_history, violations


def commit(begin: int, end: int, value: int, *, done: bool = True, partition: int = 0) -> Operation:
    return Operation(COMMIT, "a", "g", partition, begin, end, done, value)


def fetch(begin: int, end: int, value: int | None, *, done: bool = True, partition: int = 0) -> Operation:
    return Operation(FETCH, "b", "g", partition, begin, end, done, value)


# fmt: off
GOOD = [
    fetch(0, 1, None), commit(2, 10, 1),
    fetch(3, 4, None), fetch(3, 9, 1),  # concurrent with the commit: both results are valid
    fetch(11, 12, 1), commit(13, 20, 2, done=False),  # its outcome is unknown
    fetch(21, 22, 1), fetch(23, 24, 2), commit(25, 26, 3), fetch(25, 27, 2), fetch(28, 29, 3),
    fetch(30, 31, None, done=False), fetch(0, 50, None, partition=1),
]
# fmt: on


@pytest.mark.parametrize(
    ("history", "found"),
    [
        (GOOD, []),
        ([commit(0, 1, 1), commit(2, 3, 2), fetch(4, 5, 1)], ["stale"]),
        ([commit(0, 1, 1), fetch(2, 3, None)], ["no offset, though 1 was known before"]),
        # A fetched value disappears, even if it was never acknowledged.
        ([commit(0, 9, 1), commit(10, 20, 2, done=False), fetch(11, 12, 2), fetch(13, 14, 1)], ["stale"]),
        ([commit(0, 1, 1), fetch(2, 3, 7)], ["never committed"]),
        ([fetch(0, 1, 1), commit(5, 6, 1)], ["never committed"]),  # before its commit
        ([commit(0, 1, 5), commit(0, 1, 6, partition=1), fetch(2, 3, 5, partition=1)], ["stale"]),
    ],
)
def test_violations_are_found(history: list[Operation], found: list[str]) -> None:
    assert [one.partition(":")[0] for one in violations(history)] == found


def test_a_history_is_read_up_to_a_torn_line(tmp_path: Path) -> None:
    file = tmp_path / "history"
    file.write_text("".join(o.line() for o in GOOD) + GOOD[0].line()[:-5])
    assert list(read_history([file])) == GOOD
