"""`PeriodRunner`: the work of one job on one period, in steps. The process may die after any step.

============================  ============================================================================
step                          if the process dies after it
============================  ============================================================================
the period has closed         nothing is known yet: the next process determines the ranges itself
the ranges are fixed          the next process reads exactly these ranges
an attempt has begun          the next process begins a later attempt, in its own directory
the function has returned     the same: the output does not count, because it is not published
the output is published       the next process only commits
the group is committed        the next process commits the same offsets again, which changes nothing
old work is deleted           the same
the barrier has the progress  the job has finished the period; the next process waits for the others
============================  ============================================================================

A process that was frozen at any step and wakes after its successor has started changes nothing: ranges are created and
never replaced; an attempt carries the epoch of the member; an output is published only if no later attempt has begun;
the group is committed under its lock and only forward; and progress is written only with the current epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from offsetmgr.core.clock import Clock
from offsetmgr.core.errors import (
    Conflict,
    GroupActive,
    OffsetMgrError,
    PartialFailure,
    RewindRefused,
    TimedOut,
    UsageError,
)
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.period.barrier import ReportStatus
from offsetmgr.period.coordinator import PeriodCoordinator
from offsetmgr.period.history import History, WorkClaim
from offsetmgr.period.job_records import LATE, SET_ASIDE, TAKEN, Work
from offsetmgr.period.schedule import Period
from offsetmgr.spark import metrics
from offsetmgr.spark.period_dataframes import LateRecords, PeriodTask, RecordSource
from offsetmgr.spark.period_log import PeriodLog
from offsetmgr.spark.period_ranges import MIN_LATER_RECORDS, ScanRule
from offsetmgr.spark.range_scan import scan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    Process: TypeAlias = Callable[[DataFrame, PeriodTask], Any]

T = TypeVar("T")
LOG: Final = logging.getLogger("offsetmgr.spark")
_RETRY_PAUSES_S: Final = (0.2, 5.0)


class PeriodStep(Enum):
    """The step that has just been completed; see the module."""

    CLOSED = "the period has closed"
    RANGES_FOUND = "ranges were found"
    RANGES_STORED = "ranges are fixed"
    ATTEMPT_STARTED = "an attempt has begun"
    PROCESSED = "the function is done"
    PUBLISHED = "the output is published"
    COMMITTED = "the group is committed"
    HISTORY_TRIMMED = "old work is forgotten"
    REPORTED = "the barrier has the progress"


@dataclass(frozen=True, slots=True)
class PeriodRules:
    """How a job treats time. All in ms."""

    grace_ms: int = 60_000
    """A partition closes this long after the period's end, by the wall clock."""
    lateness_ms: int = 600_000
    """How far behind later records a record may be in the log; see `ScanRule`."""
    future_ms: int = 3_600_000
    """Records with times this far ahead of the wall clock are set aside, when the ranges are fixed."""
    min_later_records: int = MIN_LATER_RECORDS
    late: LateRecords = LateRecords.COUNT
    history_kept: int = 5_000
    """Number of periods in the history, which limits how far back reruns can go."""
    wait_s: float = 300.0
    """How long a server may be unavailable before the job gives up."""

    def __post_init__(self) -> None:
        """Raises `UsageError`."""
        for name in ("grace_ms", "lateness_ms", "future_ms", "wait_s"):
            if getattr(self, name) < 0:
                raise UsageError(f"PeriodRules({name}={getattr(self, name)})", "is below 0")
        for name in ("min_later_records", "history_kept"):
            if getattr(self, name) < 1:
                raise UsageError(f"PeriodRules({name}={getattr(self, name)})", "is below 1")


@dataclass(frozen=True)
class PeriodJob:
    """The configuration of one job."""

    name: str
    process: Process
    output: str
    store: OffsetStore
    group: str | None
    rules: PeriodRules
    on_step: Callable[[PeriodStep, Period], object]


class PeriodRunner:
    """For one thread."""

    def __init__(
        self,
        job: PeriodJob,
        source: RecordSource,
        log: PeriodLog,
        history: History,
        rerun_of: History | None,
        coordinator: PeriodCoordinator,
        clock: Clock,
    ) -> None:
        self._job = job
        self._source = source
        self._log = log
        self._history = history
        self._rerun_of = rerun_of
        self._coordinator = coordinator
        self._clock = clock

    def run(self, period: Period, partitions: Sequence[TopicPartition]) -> Work:
        """Completes a closed period, from the point that an earlier process has reached.

        Raises `Superseded` if another process is working on it, `OffsetOutOfRange` and `UnsupportedOperation` if its
        records cannot be read (any more), and what the job's function raises.
        """
        work = self._store_ranges(period, partitions)
        if work.published is None:
            work = self._process(work)
        self._commit(work)
        self._job.on_step(PeriodStep.COMMITTED, period)
        if (old := period.number - self._job.rules.history_kept) >= 0:
            self._retry(lambda: self._history.forget(self._job.name, old))
        self._job.on_step(PeriodStep.HISTORY_TRIMMED, period)
        self._report(work)
        self._job.on_step(PeriodStep.REPORTED, period)
        return work

    # --- ranges ---------------------------------------------------------------------------------------

    def _store_ranges(self, period: Period, partitions: Sequence[TopicPartition]) -> Work:
        name = self._job.name
        work = self._retry(lambda: self._history.read(name, period.number))
        if work is None:
            found = self._retry(lambda: self._find_ranges(period, partitions))
            self._job.on_step(PeriodStep.RANGES_FOUND, period)
            work, _ = self._retry(lambda: self._history.fix_work(found))
            self._job.on_step(PeriodStep.RANGES_STORED, period)
        if work.period != period:
            why = f"has its ranges fixed for {work.period.start_ms} to {work.period.end_ms}"
            raise Conflict(f"period {period.number} of job {name}", why, "use another root for another schedule")
        if added := [tp for tp in partitions if tp not in work.ranges]:
            why = f"has its ranges fixed without {added[0]}"
            raise Conflict(f"period {period.number} of job {name}", why, "give a job with other topics another name")
        return work

    def _find_ranges(self, period: Period, partitions: Sequence[TopicPartition]) -> Work:
        """The ranges of earlier work on the same times, for a rerun; otherwise those of a scan."""
        name = self._job.name
        if self._rerun_of is not None:
            earlier = self._rerun_of.covering(name, period)
            if earlier is None:
                raise Conflict(
                    f"rerun of {period.start_ms} to {period.end_ms} by job {name}",
                    "the run that it repeats has no ranges for these times: never had, or has forgotten them",
                    "without rerun_of, ranges are searched again",
                )
            return earlier.part(period, f"period {earlier.period.number}")
        before = self._history.latest(name, period.number)
        if before is not None and (before.same_as or before.period.end_ms > period.start_ms):
            # The run itself was rewound: until it has caught up, these times have already been processed.
            earlier = self._history.covering(name, period, period.number)
            if earlier is not None:
                return earlier.part(period, f"period {earlier.period.number}")
            before = before if before.period.end_ms <= period.start_ms else None
        return self._scan(period, partitions, before)

    def _scan(self, period: Period, partitions: Sequence[TopicPartition], before: Work | None) -> Work:
        rules, log = self._job.rules, self._log
        ids = log.topic_ids(partitions)
        if before is None:
            group = self._job.group
            committed = self._job.store.fetch(group, partitions) if group is not None else {}
            bounds = log.first_bounds(period, partitions, committed)
        else:
            bounds = log.next_bounds(period, partitions, before)
        now = self._clock.now_ms()
        rule = ScanRule(period, rules.lateness_ms, now + rules.future_ms, rules.min_later_records)
        found = scan(self._source.spark, log.bootstrap, log.config, bounds, rule)
        counts = {
            TAKEN: sum(f.taken for f in found.values()),
            LATE: sum(f.late for f in found.values()),
            SET_ASIDE: sum(f.set_aside for f in found.values()),
        }
        LOG.info("period %d of job %s: %s", period.number, self._job.name, counts)
        return Work(
            self._job.name,
            period,
            {tp: f.range for tp, f in found.items()},
            now,
            scans={tp: f.scan for tp, f in found.items()},
            counts=counts,
            topic_ids=ids,
        )

    # --- the job's function ---------------------------------------------------------------------------

    def _process(self, work: Work) -> Work:
        job, period = self._job, work.period
        self._retry(lambda: self._log.check(work, late=job.rules.late is not LateRecords.COUNT))
        claim = self._retry(lambda: self._start_attempt(work))
        if claim is None:
            return self._retry(lambda: self._history.read(job.name, period.number)) or work
        job.on_step(PeriodStep.ATTEMPT_STARTED, period)
        output = f"{job.output.rstrip('/')}/period-{period.number:06d}/attempt-{claim.attempt}"
        task = PeriodTask(period, claim.attempt, output, job.rules.late, work, self._source)
        job.process(task.rows, task)
        job.on_step(PeriodStep.PROCESSED, period)
        done = self._retry(lambda: self._history.publish(claim, output, work.counts, self._clock.now_ms()))
        for kind, count in work.counts.items():
            metrics.PERIOD_RECORDS.labels(job.name, kind).inc(count)
        job.on_step(PeriodStep.PUBLISHED, period)
        return done

    def _start_attempt(self, work: Work) -> WorkClaim | None:
        """An attempt of this process; None if another process has published meanwhile."""
        name, number = self._job.name, work.period.number
        member = self._coordinator.member
        epoch = self._coordinator.registered()
        try:
            return self._history.attempt(name, number, member, epoch, self._clock.now_ms())
        except Conflict:
            found = self._history.read(name, number)
            if found is not None and found.published is not None:
                return None
            raise TimedOut(f"attempt at period {number} of job {name}", "another process wrote") from None

    # --- the group and the barrier --------------------------------------------------------------------

    def _commit(self, work: Work) -> None:
        """Commits the group at the start of the next period's scan; a rerun of ranges commits nothing."""
        group = self._job.group
        if group is None or work.same_as or not work.scans:
            return
        offsets = {tp: OffsetAndMetadata(scan.resume) for tp, scan in work.scans.items()}
        self._retry(lambda: self._commit_to(group, offsets))

    def _commit_to(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        try:
            self._job.store.commit(group, offsets)
        except PartialFailure as partial:
            left = {tp: why for tp, why in partial.failures.items() if not isinstance(why, RewindRefused)}
            for tp in partial.failures.keys() - left.keys():
                LOG.warning("group %s is ahead of its job in %s: %s", group, tp, partial.failures[tp])
            if left:
                raise PartialFailure(partial.what, successes=partial.successes, failures=left) from None

    def _report(self, work: Work) -> None:
        number = work.period.number
        statuses = self._retry(lambda: self._coordinator.finished(work.ranges, number))
        if too_early := [tp for tp, status in statuses.items() if status is ReportStatus.TOO_EARLY]:
            raise Conflict(f"period {number}", f"is not open yet for {too_early[0]}", "was its root deleted?")
        if late := sum(status is ReportStatus.LATE for status in statuses.values()):
            LOG.warning("period %d was closed without this job's report on %d partitions", number, late)

    def _retry(self, call: Callable[[], T]) -> T:
        """Retries temporary failures. All of its uses are safe to repeat."""
        deadline = self._clock.monotonic() + self._job.rules.wait_s
        pause, longest = _RETRY_PAUSES_S
        while True:
            try:
                return call()
            except OffsetMgrError as error:
                if not _is_temporary(error) or self._clock.monotonic() + pause >= deadline:
                    raise
                LOG.warning("job %s: %s; trying again", self._job.name, error)
            self._clock.sleep(pause)
            pause = min(2 * pause, longest)


def _is_temporary(error: OffsetMgrError) -> bool:
    if isinstance(error, PartialFailure):
        return all(map(_is_temporary, error.failures.values()))
    # Another application with the same group holds its lock for the duration of a commit.
    return error.retriable or isinstance(error, GroupActive)
