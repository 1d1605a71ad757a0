"""Offset ranges of periods: each record is accepted, late or set aside exactly once, in any order of the times.

Also the settings that period jobs reject, and the end of a job's work on a period."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.core.errors import Conflict, GroupActive, PartialFailure, UsageError
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.period.barrier import ReportStatus
from offsetmgr.period.job_records import PublishedOutput, RangeScan, Work
from offsetmgr.period.records import OffsetRange
from offsetmgr.period.schedule import PeriodSchedule
from offsetmgr.spark import Coordination, JobSettings, PeriodRules, run_periods
from offsetmgr.spark.period_ranges import Bounds, Scanner, ScanResult, ScanRule
from offsetmgr.spark.period_work import PeriodRunner
from offsetmgr.testing.memory import MemoryStore

TENS = PeriodSchedule(100, 10)
FAR = 10**9


def scanned(
    times: list[int], *, number: int = 0, bounds: Bounds | None = None, lateness: int = 5, min_later_records: int = 2
) -> ScanResult:
    """Scans a log whose offsets are the indexes of ``times``; records after time 10,000 are set aside."""
    bounds = bounds or Bounds(0, len(times), None)
    scanner = Scanner(bounds, ScanRule(TENS.period(number), lateness, 10_000, min_later_records))
    for offset in range(bounds.start, bounds.end):
        scanner.add(offset, times[offset])
    return scanner.result()


def test_a_range_ends_after_the_last_record_of_its_period_and_the_next_begins_at_the_first_later_one() -> None:
    found = scanned([100, 105, 112, 109, 113])
    assert found.range == OffsetRange(0, 4)
    assert found.scan == RangeScan(start=0, late_from=5, end=5, resume=2)
    assert (found.in_period, found.late, found.set_aside) == (3, 0, 0)


def test_one_record_that_is_dated_ahead_does_not_move_the_range() -> None:
    # Kafka's offset for time 110 would be 1, which would hide the four records after it.
    found = scanned([101, 170, 102, 103, 104, 105])
    assert (found.range, found.in_period, found.scan.resume) == (OffsetRange(0, 6), 5, 1)


def test_a_scan_ends_after_enough_later_records_in_a_row_and_older_records_after_it_are_late() -> None:
    times = [101, 115, 114, 116, 117, 105, 118]
    first = scanned(times)
    assert (first.scan.end, first.range, first.scan.resume) == (5, OffsetRange(0, 1), 1)
    second = scanned(times, number=1, bounds=Bounds(first.scan.resume, len(times), first.scan.end))
    assert (second.range, second.in_period, second.late) == (OffsetRange(1, 7), 5, 1)


def test_records_beyond_the_horizon_are_set_aside_when_the_scan_passes_them() -> None:
    found = scanned([FAR, 101, FAR, 112, FAR, 113])
    assert (found.in_period, found.set_aside, found.scan.resume, found.scan.end) == (1, 2, 3, 6)
    rest = scanned([FAR, 101, FAR, 112, FAR, 113], number=1, bounds=Bounds(3, 6, 6))
    assert (rest.in_period, rest.set_aside, rest.scan.resume) == (2, 1, 6)


def test_a_partition_without_records_has_an_empty_range() -> None:
    found = scanned([])
    assert (found.range, found.scan) == (OffsetRange(0, 0), RangeScan(0, 0, 0, 0))
    later = scanned([150, 151, 152], lateness=0)
    assert (later.range, later.scan.resume) == (OffsetRange(0, 0), 0)


def test_records_before_the_first_period_are_not_late() -> None:
    assert scanned([50, 60, 101]).late == 0
    assert scanned([50, 60, 101], bounds=Bounds(0, 3, 1)).late == 1


def test_a_record_that_was_scanned_before_does_not_count_as_new() -> None:
    # An earlier scan set the three records aside. They are within the horizon now, and would end the scan too early.
    found = scanned([125, 126, 127, 112], number=1, bounds=Bounds(0, 4, 4))
    assert (found.scan.end, found.in_period) == (4, 1)


TIMES = st.lists(st.one_of(st.integers(95, 155), st.just(FAR)), max_size=40)


@given(TIMES, st.lists(st.integers(0, 40), min_size=6, max_size=6), st.integers(0, 12), st.integers(1, 4))
def test_every_record_is_accounted_for_once(times, growth: list[int], lateness: int, min_later_records: int) -> None:
    """Six periods over a log that grows between the scans. An oracle that uses no offsets classifies each record."""
    ends = [min(sum(growth[: n + 1]), len(times)) for n in range(6)]
    ends[-1] = len(times)
    seen = Counter[int]()
    bounds = Bounds(0, ends[0], None)
    for number in range(6):
        period = TENS.period(number)
        found = scanned(times, number=number, bounds=bounds, lateness=lateness, min_later_records=min_later_records)
        scan = found.scan
        assert bounds.start <= scan.resume <= scan.end <= bounds.end
        rows = [o for o in range(found.range.first, found.range.end) if times[o] in period]
        late = [o for o in range(scan.late_from, scan.end) if times[o] < period.start_ms]
        aside = [o for o in range(scan.start, scan.resume) if times[o] >= period.end_ms]
        assert (len(rows), len(late), len(aside)) == (found.in_period, found.late, found.set_aside)
        assert all(times[o] == FAR for o in aside)
        seen.update(rows + late + aside)
        bounds = Bounds(scan.resume, ends[min(number + 1, 5)], scan.end)
    before_the_run = {o for o, time in enumerate(times) if time < 100} - seen.keys()
    left = set(range(bounds.start, len(times)))
    assert set(seen.values()) <= {1}
    assert set(range(len(times))) == seen.keys() | before_the_run | left


# --- settings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "least"),
    [
        ("grace_ms", -1, 0),
        ("lateness_ms", -1, 0),
        ("future_ms", -1, 0),
        ("wait_s", -0.5, 0),
        ("min_later_records", 0, 1),
        ("history_kept", 0, 1),
    ],
)
def test_an_invalid_rule_is_rejected_by_name(name: str, value: float, least: int) -> None:
    changed: dict[str, Any] = {name: value}
    with pytest.raises(UsageError, match=rf"PeriodRules\({name}={value}\): is below {least}"):
        PeriodRules(**changed)
    changed[name] = least
    assert getattr(PeriodRules(**changed), name) == least


def test_a_job_without_a_topic_is_rejected() -> None:
    nothing: Any = None
    with pytest.raises(UsageError, match="topics is empty"):
        settings = JobSettings(bootstrap="", output="")
        run_periods(nothing, [], PeriodSchedule(0, 1), nothing, nothing, None, Coordination("h:1", "/r", "m"), settings)


def test_the_end_of_a_periods_work_rewinds_no_group_and_names_what_the_barrier_answered(caplog) -> None:
    parts = [TopicPartition("t", 0), TopicPartition("t", 1)]
    period, ranges = TENS.period(0), dict.fromkeys(parts, OffsetRange(0, 5))
    scans = dict.fromkeys(parts, RangeScan(0, 5, 5, 5))
    work = Work("job", period, ranges, 0, published=PublishedOutput(0, "out", 0), scans=scans)
    store = MemoryStore()
    store.commit("g", {parts[0]: OffsetAndMetadata(9)})
    answers = dict.fromkeys(parts, ReportStatus.LATE)
    history: Any = SimpleNamespace(read=lambda *_: work)
    member: Any = SimpleNamespace(finished=lambda *_: answers)
    job = JobSettings(bootstrap="", output="", rules=PeriodRules(wait_s=0))
    any_: Any = None
    runner = PeriodRunner("job", print, store, "g", job, any_, any_, history, None, member)

    assert runner.run(period, parts) == work

    assert [found.offset for found in store.data["g"].values()] == [9, 5]
    assert "group g is ahead of this job in t-0" in caplog.text
    assert "already closed when this job reported 2 of its partitions" in caplog.text
    answers[parts[1]] = ReportStatus.TOO_EARLY
    with pytest.raises(Conflict, match="not open yet for t-1"):
        runner.run(period, parts)
    for other, why in ((TENS.period(1), "for the times 100 to 110"), (period, "do not include u-0")):
        with pytest.raises(Conflict, match=why):
            runner.run(other, [*parts, TopicPartition("u", 0)])
    store.broken["g", parts[1]] = GroupActive("group g", "has active members")
    with pytest.raises(PartialFailure, match="has active members"):
        runner.run(period, parts)
