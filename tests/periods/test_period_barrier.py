"""Periods, and the rule that closes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.core.errors import UsageError
from offsetmgr.core.model import TopicPartition
from offsetmgr.period.barrier import (
    OpenPeriod,
    ReportStatus,
    TimePosition,
    check_report,
    lagging_partitions,
    merged,
    opening,
)
from offsetmgr.period.leader_decision import Advance, Leader, LeaderView, next_step
from offsetmgr.period.records import OffsetRange, OpenNode, PartitionsNode, ProgressNode, Rerun
from offsetmgr.period.schedule import MAX_TIME_MS, Period, PeriodSchedule

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
HOURLY = PeriodSchedule(first_ms=1_000, length_ms=100)
LEADER = Leader("m", 7)


def test_a_period_has_its_start_and_not_its_end() -> None:
    period = HOURLY.period(3)
    assert period == Period(3, 1_300, 1_400)
    assert (1_299 in period, 1_300 in period, 1_399 in period, 1_400 in period) == (False, True, True, False)
    assert [HOURLY.number_of(t) for t in (999, 1_000, 1_099, 1_100)] == [-1, 0, 0, 1]


@pytest.mark.parametrize(("first", "length"), [(0, 0), (0, -1), (-1, 10), (MAX_TIME_MS, 1)])
def test_an_invalid_schedule_is_rejected(first: int, length: int) -> None:
    with pytest.raises(UsageError):
        PeriodSchedule(first, length)


@pytest.mark.parametrize(
    ("time_ms", "begins"),
    [(950, False), (1_030, True), (1_031, False), (1_129, False), (1_130, True), (2_030, True), (930, False)],
)
def test_a_period_begins_at_the_first_time_and_after_each_length(time_ms: int, begins: bool) -> None:
    assert PeriodSchedule(first_ms=1_030, length_ms=100).begins_at(time_ms) is begins


def test_a_period_beyond_64_bit_times_is_rejected() -> None:
    assert PeriodSchedule(MAX_TIME_MS - 5, 5).period(0).end_ms == MAX_TIME_MS
    late = PeriodSchedule(MAX_TIME_MS - 10, 5)
    assert late.period(1).end_ms == MAX_TIME_MS
    with pytest.raises(UsageError):
        late.period(2)
    with pytest.raises(UsageError):
        late.period(-1)


@given(st.integers(0, 2**40), st.integers(1, 2**30), st.integers(0, 2**45))
def test_every_time_is_in_the_period_of_its_number_and_in_no_other(first: int, length: int, time: int) -> None:
    schedule = PeriodSchedule(first, length)
    number = schedule.number_of(first + time)
    assert first + time in schedule.period(number)
    assert first + time not in schedule.period(number + 1)


def test_a_record_is_earlier_than_the_open_period_or_in_it_or_later() -> None:
    open_ = OpenPeriod(HOURLY.period(1), frozenset({A0}))
    found = [open_.time_position(t) for t in (1_099, 1_100, 1_199, 1_200)]
    assert found == [TimePosition.EARLIER, TimePosition.OPEN, TimePosition.OPEN, TimePosition.LATER]


def test_a_report_is_checked_against_the_open_period_and_earlier_reports() -> None:
    open_ = OpenPeriod(HOURLY.period(5), frozenset({A0, A1}))
    finished = {A0: 5, A1: 4}
    assert check_report(open_, finished, A1, 5) is ReportStatus.ACCEPTED
    assert check_report(open_, finished, A0, 5) is ReportStatus.DUPLICATE
    assert check_report(open_, finished, A1, 3) is ReportStatus.DUPLICATE
    assert check_report(open_, finished, A1, 6) is ReportStatus.TOO_EARLY
    assert check_report(open_, finished, B0, 5) is ReportStatus.NOT_PARTICIPATING
    assert check_report(open_, finished, B0, 4) is ReportStatus.LATE
    for number in (0, 1):  # the first periods of a partition that has not finished any
        first = OpenPeriod(HOURLY.period(number), frozenset({A0}))
        assert check_report(first, {}, A0, number) is ReportStatus.ACCEPTED
        assert lagging_partitions(first, {}) == [A0]


def test_a_period_stays_open_until_each_partition_has_finished_it() -> None:
    open_ = OpenPeriod(HOURLY.period(5), frozenset({A1, A0, B0}))
    assert lagging_partitions(open_, {A0: 5, A1: 4}) == [A1, B0]
    assert lagging_partitions(open_, {A0: 5, A1: 5, B0: 5}) == []
    assert opening(HOURLY, 6, [A0, A1]) == OpenPeriod(HOURLY.period(6), frozenset({A0, A1}))


def test_a_barrier_without_partitions_is_rejected() -> None:
    with pytest.raises(UsageError):
        opening(HOURLY, 0, [])


def test_merged_reports_keep_the_latest_finished_period_of_each_partition() -> None:
    assert merged([{A0: 5, A1: 2}, {A0: 3, B0: 0}]) == {A0: 5, A1: 2, B0: 0}


# --- the leader's next step ---------------------------------------------------------------------------


def leader_view(
    number: int, *finished: dict[TopicPartition, int], of: int | None = None, stopped: str = ""
) -> LeaderView:
    return LeaderView(
        OpenNode(HOURLY, number, "before", 6, 50, stopped),
        PartitionsNode(number if of is None else of, frozenset({A0, A1})),
        {f"m{at}": ProgressNode(f"m{at}", at, each) for at, each in enumerate(finished)},
    )


def test_the_first_leader_opens_the_first_period_and_a_later_one_keeps_the_schedule() -> None:
    first = next_step(LeaderView(None, None, {}), HOURLY, [A0, A1], LEADER, 60)
    assert first == Advance(OpenNode(HOURLY, 0, "m", 7, 60), PartitionsNode(0, frozenset({A0, A1})), None)
    later = next_step(leader_view(4, {A0: 4, A1: 4}), PeriodSchedule(0, 5), [A0, A1], LEADER, 60)
    assert isinstance(later, Advance) and (later.open_.schedule, later.open_.number) == (HOURLY, 5)


def test_an_advance_records_the_partitions_that_each_member_finished() -> None:
    step = next_step(leader_view(4, {A0: 4}, {A1: 4}, {B0: 4}), HOURLY, [A0, A1, B0], LEADER, 60)
    assert isinstance(step, Advance) and step.closed is not None
    assert step.closed.period == HOURLY.period(4)
    assert step.closed.by == {"m0": {A0}, "m1": {A1}}
    assert (step.closed.opened_ms, step.closed.closed_ms, step.closed.leader) == (50, 60, "m")
    assert step.partitions.partitions == {A0, A1, B0}, "a new partition joins the next period"


def test_a_leader_names_lagging_partitions_and_does_nothing_with_inconsistent_nodes_or_a_stopped_run() -> None:
    assert next_step(leader_view(4, {A0: 4}, {A1: 3}), HOURLY, [A0, A1], LEADER, 60) == [A1]
    done = {A0: 9, A1: 9}
    assert next_step(leader_view(4, done, of=3), HOURLY, [A0, A1], LEADER, 60) == []
    assert next_step(leader_view(4, done, stopped="aborted"), HOURLY, [A0, A1], LEADER, 60) == []


def test_an_advance_records_the_offset_ranges_and_the_idle_partitions() -> None:
    progress = {
        "m0": ProgressNode("m0", 1, {A0: 4}, ranges={A0: OffsetRange(10, 25)}),
        "m1": ProgressNode("m1", 2, {A1: 4, A0: 3}, frozenset({A1}), {A0: OffsetRange(5, 10)}),
    }
    nodes = LeaderView(OpenNode(HOURLY, 4, "m", 6, 50), PartitionsNode(4, frozenset({A0, A1})), progress)
    step = next_step(nodes, HOURLY, [A0, A1], LEADER, 60)
    assert isinstance(step, Advance) and step.closed is not None
    assert step.closed.ranges == {A0: OffsetRange(10, 25)}, "m1's range is of an earlier period"
    assert step.closed.idle == {A1}


def rerun_advance(rerun: Rerun, now_ms: int, number: int = 4) -> Advance:
    """Returns the advance after a period; period 4 is from 1,400 to 1,500."""
    nodes = LeaderView(
        OpenNode(HOURLY, number, "m", 6, 50, rerun=rerun),
        PartitionsNode(number, frozenset({A0})),
        {"m": ProgressNode("m", 6, {A0: number})},
    )
    step = next_step(nodes, HOURLY, [A0], LEADER, now_ms)
    assert isinstance(step, Advance) and step.closed is not None and step.closed.period == HOURLY.period(number)
    return step


def test_a_rerun_ends_at_its_end_time_with_its_last_period_closed() -> None:
    assert rerun_advance(Rerun(1_600, None), 10**6).open_.number == 5
    last = rerun_advance(Rerun(1_500, None), 10**6)
    assert (last.open_.number, last.open_.done, last.partitions.number) == (4, True, 4)
    assert "rerun is done" in last.open_.stopped


def test_a_rerun_to_the_present_ends_before_a_period_that_has_not_passed_yet() -> None:
    assert rerun_advance(Rerun(None, None), now_ms=1_600).open_.number == 5
    assert rerun_advance(Rerun(None, None), now_ms=1_599).open_.done


def test_a_rerun_switches_to_the_other_schedule_at_the_start_of_one_of_its_periods() -> None:
    at_once = rerun_advance(Rerun(1_500, PeriodSchedule(0, 500)), 10**6).open_
    assert (at_once.number, at_once.rerun, at_once.schedule.period(5)) == (5, None, Period(5, 1_500, 2_000))
    not_yet = rerun_advance(Rerun(1_500, PeriodSchedule(0, 400)), 10**6).open_
    assert (not_yet.schedule, not_yet.schedule.period(5)) == (HOURLY, Period(5, 1_500, 1_600))
    then = rerun_advance(Rerun(1_500, PeriodSchedule(0, 400)), 10**6, number=5).open_
    assert (then.rerun, then.schedule.period(6)) == (None, Period(6, 1_600, 2_000))
    assert then.schedule.number_of(2_000) == 7
