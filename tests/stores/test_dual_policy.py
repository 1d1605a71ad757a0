"""The rules of dual commit as functions of the values in both stores."""

from __future__ import annotations

import pytest

from offsetmgr.core.errors import Conflict, GroupNotFound, NotAuthorized, Unreachable
from offsetmgr.core.model import ABSENT, Absent, Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, ChangeOutcome, EditStatus, GroupOffsets
from offsetmgr.stores import dual_policy

A = TopicPartition("t", 0)
FIVE = OffsetAndMetadata(5)


@pytest.mark.parametrize(
    ("after", "known", "may_lower", "change"),
    [
        (FIVE, Committed(9), False, Change(FIVE)),
        (FIVE, None, False, Change(FIVE)),
        (FIVE, Committed(9), True, Change(FIVE, Committed(9), allow_rewind=True)),
        (FIVE, ABSENT, True, Change(FIVE, ABSENT, allow_rewind=True)),
        (FIVE, None, True, Change(FIVE, None, allow_rewind=True)),
        (None, Committed(9), True, Change(None, Committed(9), allow_rewind=True)),
    ],
)
def test_only_a_write_that_may_lower_the_secondary_is_conditional(after, known, may_lower, change):
    assert dual_policy.secondary_change(after, known, may_lower=may_lower) == change


@pytest.mark.parametrize(
    ("after", "error", "accepted"),
    [
        (FIVE, None, True),
        (None, None, True),
        (None, GroupNotFound("group g", "it has no offsets"), True),
        (FIVE, GroupNotFound("group g", "it has no offsets"), False),
        (FIVE, NotAuthorized("t-0", "no"), False),
        (FIVE, Unreachable("broker", "no answer"), False),
        (None, Conflict("t-0", "changed"), False),
    ],
)
def test_the_secondary_receives_what_the_primary_accepted(after, error, accepted):
    outcome = ChangeOutcome(EditStatus.WRITTEN if error is None else EditStatus.FAILED, ABSENT, error)
    assert dual_policy.accepted_by_primary(Change(after), outcome) is accepted


def test_offsets_of_other_logs_lose_their_epochs_and_nothing_else() -> None:
    error = Unreachable("t-1", "no answer")
    found = GroupOffsets("g", {A: Committed(5, "m", 3, 7, 2)}, {TopicPartition("t", 1): error})
    assert dual_policy.without_epochs(found) == GroupOffsets(
        "g", {A: Committed(5, "m", None, 7, 2)}, {TopicPartition("t", 1): error}
    )


def test_missing_and_lower_offsets_of_the_kept_store_are_copied_conditionally() -> None:
    equal, lower, missing, higher, alone = (TopicPartition("t", n) for n in range(5))
    kept: dict[TopicPartition, Committed | Absent] = {equal: Committed(5), lower: Committed(3, version=2)}
    kept |= {missing: ABSENT, higher: Committed(9), alone: Committed(1)}
    other = {equal: Committed(5), lower: Committed(5, "m", 4), missing: Committed(0), higher: Committed(8)}
    assert dual_policy.catch_up_changes(kept, other) == {
        lower: Change(OffsetAndMetadata(5, "m", 4), Committed(3, version=2)),
        missing: Change(OffsetAndMetadata(0), ABSENT),
    }
    assert dual_policy.partitions_ahead(kept, other) == {lower: (3, 5), missing: (None, 0)}


def test_an_unreadable_value_is_ahead_of_nothing_and_hides_no_other() -> None:
    broken = Unreachable("t-0", "no answer")
    assert dual_policy.partitions_ahead({A: Committed(3)}, {A: broken}) == {}
    assert dual_policy.partitions_ahead({A: broken}, {A: Committed(3)}) == {A: (None, 3)}
