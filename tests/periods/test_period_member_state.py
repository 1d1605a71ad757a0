"""The answers of a member to its own code, computed from its local state."""

import pytest

from offsetmgr.core.errors import OpenPeriodUnknown
from offsetmgr.core.model import TopicPartition
from offsetmgr.period.barrier import ReportStatus, TimePosition
from offsetmgr.period.member_state import MemberState
from offsetmgr.period.records import OffsetRange, OpenNode, PartitionsNode, ProgressNode
from offsetmgr.period.schedule import PeriodSchedule

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
BOTH = frozenset({A0, A1})
HOURLY = PeriodSchedule(1_000, 100)


def opened(state: MemberState, number: int, finished: dict[TopicPartition, int] | None = None) -> None:
    """The member reads that period ``number`` is open and that other members have finished ``finished``."""
    state.set_finished(finished or {}, state.owned)
    state.set_open(OpenNode(HOURLY, number, "m", 1, 0), PartitionsNode(number, BOTH))


@pytest.fixture
def state() -> MemberState:
    found = MemberState("m", "/root", BOTH)
    found.valid = lambda: True
    opened(found, 0)
    found.deliver(0)
    return found


def test_a_report_counts_for_the_period_that_its_caller_works_on_and_not_for_the_open_one(state: MemberState) -> None:
    # Given a consumer that works on period 0 and freezes; its successors have opened period 3 when it resumes
    assert state.time_position(1_050, A0) is TimePosition.OPEN
    opened(state, 3)
    # When it reports that it has finished, then the report counts for period 0
    assert state.report([A0], None, {}) == ({A0: ReportStatus.LATE}, {A0: 0})
    # The member can finish period 3 only after it has received period 3
    assert state.time_position(1_350, A0) is TimePosition.OPEN
    assert state.report([A0], None, {}) == ({A0: ReportStatus.ACCEPTED}, {A0: 3})


def test_a_client_that_learned_of_an_abandoned_period_continues_with_the_next_one(state: MemberState) -> None:
    state.deliver(0, BOTH)
    opened(state, 1)
    state.deliver(1)
    assert state.report(BOTH, None, {}) == (dict.fromkeys(BOTH, ReportStatus.LATE), {A0: 0, A1: 0})
    assert state.report(BOTH, None, {}) == (dict.fromkeys(BOTH, ReportStatus.ACCEPTED), {A0: 1, A1: 1})


def test_a_client_that_waited_for_the_next_period_reports_that_one(state: MemberState) -> None:
    assert state.report(BOTH, None, {})[1] == {A0: 0, A1: 0}
    opened(state, 1)
    assert state.report([A0], None, {})[0] == {A0: ReportStatus.DUPLICATE}, "the client has not received period 1 yet"
    assert state.next_after(0) == 1
    state.deliver(1)
    assert state.report(BOTH, None, {}) == (dict.fromkeys(BOTH, ReportStatus.ACCEPTED), {A0: 1, A1: 1})


def test_a_member_with_an_expired_lease_returns_no_time_position(state: MemberState) -> None:
    state.valid = lambda: False
    with pytest.raises(OpenPeriodUnknown):
        state.time_position(1_050, A0)
    state.invalidate_session()
    state.valid = lambda: True
    with pytest.raises(OpenPeriodUnknown):
        state.time_position(1_050, A0)
    opened(state, 0, {A0: 0})
    assert state.time_position(1_050, A0) is TimePosition.EARLIER, "another member has finished it meanwhile"
    assert state.time_position(1_050, A1) is TimePosition.OPEN


def test_new_partitions_have_no_time_position_until_their_progress_is_read(state: MemberState) -> None:
    state.own([A0])
    with pytest.raises(OpenPeriodUnknown):
        state.time_position(1_050, A0)
    state.set_finished({}, BOTH)  # read before the change
    with pytest.raises(OpenPeriodUnknown):
        state.time_position(1_050, A0)
    state.set_finished({}, frozenset({A0}))
    assert state.time_position(1_050, A0) is TimePosition.OPEN


def test_a_progress_node_merges_new_reports_into_the_stored_ones_and_claims_the_name(state: MemberState) -> None:
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
