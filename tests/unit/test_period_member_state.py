"""What a member answers its own code from what it knows."""

from __future__ import annotations

import pytest

from offsetmgr.core.errors import OpenPeriodUnknown
from offsetmgr.core.model import TopicPartition
from offsetmgr.period.barrier import ReportStatus, TimePosition
from offsetmgr.period.member_state import MemberState
from offsetmgr.period.node_codec import OffsetRange
from offsetmgr.period.records import OpenNode, PartitionsNode, ProgressNode
from offsetmgr.period.schedule import PeriodSchedule

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
BOTH = frozenset({A0, A1})
HOURLY = PeriodSchedule(1_000, 100)


def opened(state: MemberState, number: int, finished: dict[TopicPartition, int] | None = None) -> None:
    """It reads that this period is open, and what others have finished."""
    state.set_finished(finished or {}, state.owned)
    state.set_open(OpenNode(HOURLY, number, "m", 1, 0), PartitionsNode(number, BOTH))


@pytest.fixture
def state() -> MemberState:
    found = MemberState("m", "/root", BOTH)
    found.valid = lambda: True
    opened(found, 0)
    found.deliver(0)
    return found


def test_a_report_is_about_the_period_that_its_caller_was_reported_of_and_not_about_the_one_that_is_open_now(
    state: MemberState,
) -> None:
    # Given a consumer at work in period 0, which was frozen, and successors who are at period 3 when it wakes
    assert state.time_position(1_050, A0) is TimePosition.OPEN
    opened(state, 3)
    # When it reports that it has finished, then that is about period 0
    assert state.report([A0], None, {}) == ({A0: ReportStatus.LATE}, {A0: 0})
    # And only once it has been told of period 3, it can finish that
    assert state.time_position(1_350, A0) is TimePosition.OPEN
    assert state.report([A0], None, {}) == ({A0: ReportStatus.ACCEPTED}, {A0: 3})


def test_a_client_that_has_heard_that_its_period_was_given_up_goes_on_with_the_one_it_waited_for(
    state: MemberState,
) -> None:
    state.deliver(0, BOTH)
    opened(state, 1)
    state.deliver(1)
    assert state.report(BOTH, None, {}) == (dict.fromkeys(BOTH, ReportStatus.LATE), {A0: 0, A1: 0})
    assert state.report(BOTH, None, {}) == (dict.fromkeys(BOTH, ReportStatus.ACCEPTED), {A0: 1, A1: 1})


def test_a_client_that_waited_for_the_next_period_reports_that_one(state: MemberState) -> None:
    assert state.report(BOTH, None, {})[1] == {A0: 0, A1: 0}
    opened(state, 1)
    assert state.report([A0], None, {})[0] == {A0: ReportStatus.DUPLICATE}, "nobody has told it of period 1 yet"
    assert state.next_after(0) == 1
    state.deliver(1)
    assert state.report(BOTH, None, {}) == (dict.fromkeys(BOTH, ReportStatus.ACCEPTED), {A0: 1, A1: 1})


def test_a_member_whose_lease_is_over_hands_out_no_limit(state: MemberState) -> None:
    state.valid = lambda: False
    with pytest.raises(OpenPeriodUnknown):
        state.time_position(1_050, A0)
    state.invalidate_session()
    state.valid = lambda: True
    with pytest.raises(OpenPeriodUnknown):
        state.time_position(1_050, A0)
    opened(state, 0, {A0: 0})
    assert state.time_position(1_050, A0) is TimePosition.EARLIER, "somebody has finished it meanwhile"
    assert state.time_position(1_050, A1) is TimePosition.OPEN


def test_new_partitions_are_not_judged_before_it_is_known_what_their_earlier_owners_finished(
    state: MemberState,
) -> None:
    state.own([A0])
    with pytest.raises(OpenPeriodUnknown):
        state.time_position(1_050, A0)
    state.set_finished({}, BOTH)  # read before the change
    with pytest.raises(OpenPeriodUnknown):
        state.time_position(1_050, A0)
    state.set_finished({}, frozenset({A0}))
    assert state.time_position(1_050, A0) is TimePosition.OPEN


def test_what_is_written_joins_news_to_what_stood_there_and_claims_the_name(state: MemberState) -> None:
    before = ProgressNode("m", 4, {A0: 0, A1: 0}, frozenset({A1}), {A0: OffsetRange(0, 5), A1: OffsetRange(1, 1)})
    assert state.unwritten(before, 4) is None
    assert state.unwritten(before, 9) == ProgressNode("m", 9, before.finished, before.idle, before.ranges)
    opened(state, 1)
    state.report({A1}, 1, {A1: OffsetRange(1, 7)})
    node = state.unwritten(before, 4)
    assert node == ProgressNode("m", 4, {A0: 0, A1: 1}, frozenset(), {A0: OffsetRange(0, 5), A1: OffsetRange(1, 7)})
    assert not state.written({A1: 1})
    assert node is not None
    state.set_written(node)
    assert state.written({A1: 1}) and not state.needs_full_read()


def test_a_members_memory_does_not_grow_with_the_periods(state: MemberState) -> None:
    for number in range(2_000):
        opened(state, number)
        state.deliver(number)
        state.time_position(1_000 + number * 100, A0)
        state.report({A0: OffsetRange(0, 1)}, None, {A0: OffsetRange(0, 1)})
        node = state.unwritten(None, 1)
        assert node is not None
        state.set_written(node)
    sizes = [len(v) for v in vars(state).values() if isinstance(v, dict | frozenset)]
    assert max(sizes) == 2
