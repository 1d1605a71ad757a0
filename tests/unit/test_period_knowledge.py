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


def opened(knowledge: MemberState, number: int, finished: dict[TopicPartition, int] | None = None) -> None:
    """It reads that this period is open, and what others have finished."""
    knowledge.take_finished(finished or {}, knowledge.owned)
    knowledge.take_open(OpenNode(HOURLY, number, "m", 1, 0), PartitionsNode(number, BOTH))


@pytest.fixture
def knowledge() -> MemberState:
    found = MemberState("m", "/root", BOTH)
    found.valid = lambda: True
    opened(found, 0)
    found.give(0)
    return found


def test_a_report_is_about_the_period_that_its_caller_was_reported_of_and_not_about_the_one_that_is_open_now(
    knowledge: MemberState,
) -> None:
    # Given a consumer at work in period 0, which was frozen, and successors who are at period 3 when it wakes
    assert knowledge.place(1_050, A0) is TimePosition.OPEN
    opened(knowledge, 3)
    # When it reports that it has finished, then that is about period 0
    assert knowledge.report([A0], None, {}) == ({A0: ReportStatus.LATE}, {A0: 0})
    # And only once it has been told of period 3, it can finish that
    assert knowledge.place(1_350, A0) is TimePosition.OPEN
    assert knowledge.report([A0], None, {}) == ({A0: ReportStatus.ACCEPTED}, {A0: 3})


def test_a_client_that_has_heard_that_its_period_was_given_up_goes_on_with_the_one_it_waited_for(
    knowledge: MemberState,
) -> None:
    knowledge.give(0, BOTH)
    opened(knowledge, 1)
    knowledge.give(1)
    assert knowledge.report(BOTH, None, {}) == (dict.fromkeys(BOTH, ReportStatus.LATE), {A0: 0, A1: 0})
    assert knowledge.report(BOTH, None, {}) == (dict.fromkeys(BOTH, ReportStatus.ACCEPTED), {A0: 1, A1: 1})


def test_a_client_that_waited_for_the_next_period_reports_that_one(knowledge: MemberState) -> None:
    assert knowledge.report(BOTH, None, {})[1] == {A0: 0, A1: 0}
    opened(knowledge, 1)
    assert knowledge.report([A0], None, {})[0] == {A0: ReportStatus.DUPLICATE}, "nobody has told it of period 1 yet"
    assert knowledge.next_after(0) == 1
    knowledge.give(1)
    assert knowledge.report(BOTH, None, {}) == (dict.fromkeys(BOTH, ReportStatus.ACCEPTED), {A0: 1, A1: 1})


def test_a_member_whose_lease_is_over_hands_out_no_limit(knowledge: MemberState) -> None:
    knowledge.valid = lambda: False
    with pytest.raises(OpenPeriodUnknown):
        knowledge.place(1_050, A0)
    knowledge.forget_session()
    knowledge.valid = lambda: True
    with pytest.raises(OpenPeriodUnknown):
        knowledge.place(1_050, A0)
    opened(knowledge, 0, {A0: 0})
    assert knowledge.place(1_050, A0) is TimePosition.EARLIER, "somebody has finished it meanwhile"
    assert knowledge.place(1_050, A1) is TimePosition.OPEN


def test_new_partitions_are_not_judged_before_it_is_known_what_their_earlier_owners_finished(
    knowledge: MemberState,
) -> None:
    knowledge.own([A0])
    with pytest.raises(OpenPeriodUnknown):
        knowledge.place(1_050, A0)
    knowledge.take_finished({}, BOTH)  # read before the change
    with pytest.raises(OpenPeriodUnknown):
        knowledge.place(1_050, A0)
    knowledge.take_finished({}, frozenset({A0}))
    assert knowledge.place(1_050, A0) is TimePosition.OPEN


def test_what_is_written_joins_news_to_what_stood_there_and_claims_the_name(knowledge: MemberState) -> None:
    before = ProgressNode("m", 4, {A0: 0, A1: 0}, frozenset({A1}), {A0: OffsetRange(0, 5), A1: OffsetRange(1, 1)})
    assert knowledge.unwritten(before, 4) is None
    assert knowledge.unwritten(before, 9) == ProgressNode("m", 9, before.finished, before.idle, before.ranges)
    opened(knowledge, 1)
    knowledge.report({A1}, 1, {A1: OffsetRange(1, 7)})
    node = knowledge.unwritten(before, 4)
    assert node == ProgressNode("m", 4, {A0: 0, A1: 1}, frozenset(), {A0: OffsetRange(0, 5), A1: OffsetRange(1, 7)})
    assert not knowledge.written({A1: 1})
    assert node is not None
    knowledge.take_written(node)
    assert knowledge.written({A1: 1}) and not knowledge.must_read_all()


def test_a_members_memory_does_not_grow_with_the_periods(knowledge: MemberState) -> None:
    for number in range(2_000):
        opened(knowledge, number)
        knowledge.give(number)
        knowledge.place(1_000 + number * 100, A0)
        knowledge.report({A0: OffsetRange(0, 1)}, None, {A0: OffsetRange(0, 1)})
        node = knowledge.unwritten(None, 1)
        assert node is not None
        knowledge.take_written(node)
    sizes = [len(v) for v in vars(knowledge).values() if isinstance(v, dict | frozenset)]
    assert max(sizes) == 2
