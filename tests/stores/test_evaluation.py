"""The evaluation of a change against the current value, which all stores share."""

import pytest

from offsetmgr.core.errors import Conflict, OffsetMgrError, RewindRefused
from offsetmgr.core.evaluation import evaluate, rejection, same_value
from offsetmgr.core.model import ABSENT, Absent, Committed, Offset, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Capabilities, Change, ChangeOutcome, EditStatus

TP = TopicPartition("t", 0)
ALL = Capabilities(metadata=True, leader_epoch=True, commit_timestamp=True, conditional="version")
OFFSET_ONLY = Capabilities(metadata=False, leader_epoch=False, commit_timestamp=False, conditional="version")


def to(offset: int, expected: Offset | None = None, *, allow_rewind: bool = False) -> Change:
    return Change(OffsetAndMetadata(offset), expected, allow_rewind)


def of(version: int) -> str:
    return f"offset 5 (version {version})"


@pytest.mark.parametrize(
    ("change", "current"),
    [
        (to(5), ABSENT),
        (to(5), Committed(4)),
        (to(5, ABSENT), ABSENT),
        (to(5, Absent()), Absent()),
        (to(5, Committed(4)), Committed(4)),
        (to(5, Committed(4, "m", 3, 99)), Committed(4, "n", 2, 98)),
        (to(5, Committed(4)), Committed(4, version=7)),
        (to(5, Committed(4, version=7)), Committed(4, version=7)),
        (to(5, Committed(4, version=7)), Committed(4)),
        (to(3, allow_rewind=True), Committed(4)),
        (to(3, Committed(4), allow_rewind=True), Committed(4)),
        (to(0), ABSENT),
        (Change(None), Committed(4)),
        (Change(None, Committed(4)), Committed(4)),
    ],
)
def test_a_permitted_change_must_be_written(change: Change, current: Offset) -> None:
    assert evaluate("g", TP, change, current, ALL) is None
    assert rejection("g", TP, change, current) is None


@pytest.mark.parametrize(
    ("change", "current", "why"),
    [
        (to(5, ABSENT), Committed(4), "expected no commit, found offset 4"),
        (to(5, ABSENT), Committed(0), "expected no commit, found offset 0"),
        (to(5, ABSENT), Committed(5), "expected no commit, found offset 5"),
        (to(5, Committed(0)), ABSENT, "expected offset 0, found no commit"),
        (to(9, Committed(5)), Committed(6), "expected offset 5, found offset 6"),
        (to(9, Committed(6)), Committed(5), "expected offset 6, found offset 5"),
        (to(9, Committed(5), allow_rewind=True), Committed(6), "expected offset 5, found offset 6"),
        *(
            (to(9, Committed(5, version=n)), Committed(5, version=2), f"expected {of(n)}, found {of(2)}")
            for n in (0, 1)
        ),
        (Change(None, ABSENT), Committed(6), "expected no commit, found offset 6"),
        (Change(None, Committed(6)), ABSENT, "expected offset 6, found no commit"),
    ],
)
def test_a_value_that_is_not_the_expected_one_is_a_conflict(change: Change, current: Offset, why: str) -> None:
    outcome = evaluate("g", TP, change, current, ALL)
    assert outcome is not None
    assert (outcome.status, outcome.before) == (EditStatus.FAILED, current)
    error = outcome.error
    assert isinstance(error, Conflict)
    assert (error.what, error.why, error.actual) == ("group g, t-0", why, current)
    assert "nothing was written" in error.hint


@pytest.mark.parametrize("expected", [None, Committed(5)])
def test_a_lower_offset_is_refused_unless_the_change_allows_it(expected: Offset | None) -> None:
    outcome = evaluate("g", TP, to(4, expected), Committed(5), ALL)
    assert outcome is not None
    assert (outcome.status, outcome.before, type(outcome.error)) == (EditStatus.FAILED, Committed(5), RewindRefused)
    assert isinstance(outcome.error, OffsetMgrError)
    assert (outcome.error.what, outcome.error.why) == ("group g, t-0", "would go back from 5 to 4")
    assert "allow_rewind=True" in outcome.error.hint


@pytest.mark.parametrize("change", [to(5), to(5, Committed(5)), to(5, allow_rewind=True), Change(None)])
def test_the_present_value_is_not_written_again(change: Change) -> None:
    current = Committed(5, "", 3) if change.after else ABSENT
    assert evaluate("g", TP, change, current, ALL) == ChangeOutcome(EditStatus.UNCHANGED, current)


@pytest.mark.parametrize(
    ("current", "new", "same", "same_offset"),
    [
        (Committed(5, "m", 3), OffsetAndMetadata(5, "m", 3), True, True),
        (Committed(5, "m", 3), OffsetAndMetadata(5, "m"), True, True),
        (Committed(5, "m", 3), OffsetAndMetadata(5, "m", 4), False, True),
        (Committed(5, "m"), OffsetAndMetadata(5, "m", 4), False, True),
        (Committed(5, "m"), OffsetAndMetadata(5), False, True),
        (Committed(5, "", None, 1), OffsetAndMetadata(5, "", None, 2), True, True),
        (Committed(5), OffsetAndMetadata(6), False, False),
        (Committed(0), None, False, False),
        (ABSENT, OffsetAndMetadata(0), False, False),
        (ABSENT, None, True, True),
        (None, None, False, False),
        (None, OffsetAndMetadata(0), False, False),
    ],
)
def test_only_the_fields_that_a_store_saves_are_compared(current, new, same, same_offset):
    assert same_value(current, new, ALL) is same
    assert same_value(current, new, OFFSET_ONLY) is same_offset
