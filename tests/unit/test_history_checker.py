"""The checker of histories finds each kind of violation in a bad history, and none in a good one."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "chaos"))

from history import COMMIT, FETCH, Operation, read_history, violations


def commit(begin: int, end: int, value: int, *, done: bool = True, partition: int = 0) -> Operation:
    return Operation(COMMIT, "a", "g", partition, begin, end, done, value)


def fetch(begin: int, end: int, value: int | None, *, done: bool = True, partition: int = 0) -> Operation:
    return Operation(FETCH, "b", "g", partition, begin, end, done, value)


def test_a_good_history_has_no_violations() -> None:
    assert not violations(
        [
            fetch(0, 1, None),
            commit(2, 10, 1),
            fetch(3, 4, None),  # concurrent with the commit: both results are valid
            fetch(3, 9, 1),
            fetch(11, 12, 1),
            commit(13, 20, 2, done=False),  # its outcome is unknown
            fetch(21, 22, 1),
            fetch(23, 24, 2),
            commit(25, 26, 3),
            fetch(25, 27, 2),
            fetch(28, 29, 3),
            fetch(30, 31, None, done=False),
            fetch(0, 50, None, partition=1),
        ]
    )


def one(history: list[Operation]) -> str:
    (found,) = violations(history)
    return found


def test_a_fetch_below_an_acknowledged_commit_is_found() -> None:
    assert one([commit(0, 1, 1), commit(2, 3, 2), fetch(4, 5, 1)]).startswith("stale: 2 was known before")


def test_no_offset_for_a_group_that_has_one_is_found() -> None:
    assert one([commit(0, 1, 1), fetch(2, 3, None)]).startswith("no offset, though 1")


def test_a_fetched_value_that_disappears_is_found_even_if_it_was_never_acknowledged() -> None:
    assert one([commit(0, 9, 1), commit(10, 20, 2, done=False), fetch(11, 12, 2), fetch(13, 14, 1)]).startswith("stale")


def test_a_value_that_was_never_committed_is_found() -> None:
    assert one([commit(0, 1, 1), fetch(2, 3, 7)]).startswith("never committed")


def test_a_value_that_is_fetched_before_its_commit_is_found() -> None:
    assert one([fetch(0, 1, 1), commit(5, 6, 1)]).startswith("never committed")


def test_a_commit_of_another_partition_does_not_explain_a_fetch() -> None:
    assert one([commit(0, 1, 5, partition=0), commit(0, 1, 6, partition=1), fetch(2, 3, 5, partition=1)])


def test_a_history_is_read_up_to_a_torn_line(tmp_path: Path) -> None:
    operations = [commit(0, 1, 1), fetch(2, 3, None)]
    file = tmp_path / "history"
    file.write_text("".join(o.line() for o in operations) + operations[0].line()[:-5])
    assert list(read_history([file])) == operations
