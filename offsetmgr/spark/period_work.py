"""`PeriodRunner`: one job's work on one period, in steps. The process may die after any step.

============================  ============================================================================
step                          if the process dies after it
============================  ============================================================================
the period has closed         nothing is stored yet; the next process finds the ranges itself
the ranges are stored         the next process reads exactly these ranges
an attempt has started        the next process starts a later attempt with its own directory
the function has returned     the next process starts a later attempt; unpublished output does not count
the output is published       the next process only commits
the group is committed        the next process commits the same offsets again, which changes nothing
the history is trimmed        the next process commits the same offsets again, which changes nothing
the progress is reported      the job has finished the period; the next process waits for the other members
============================  ============================================================================

A process may also freeze at any step and wake after its successor has started. In this case the frozen process changes
nothing:

* Stored ranges are never replaced.
* An attempt carries the epoch of the member.
* An output is published only if no later attempt has started.
* The group's offsets are committed under the group lock and never rewound.
* The progress is written only with the current epoch.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.clock import Clock, SystemClock
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
from offsetmgr.core.retry import Backoff, BlockingRetries
from offsetmgr.period.barrier import ReportStatus
from offsetmgr.period.coordinator import PeriodCoordinator
from offsetmgr.period.history import History, WorkClaim
from offsetmgr.period.job_records import IN_PERIOD, LATE, SET_ASIDE, Work
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
_BACKOFF: Final = Backoff(0.2, 5.0)


class PeriodStep(Enum):
    """A step of a period's work that has just been completed: the argument of ``JobSettings.on_step``.

    >>> PeriodStep.PUBLISHED.value
    'the output is published'
    """

    CLOSED = "the period has closed"
    RANGES_FOUND = "the ranges were found"
    RANGES_STORED = "the ranges are stored"
    ATTEMPT_STARTED = "an attempt has started"
    PROCESSED = "the function has returned"
    PUBLISHED = "the output is published"
    COMMITTED = "the group is committed"
    HISTORY_TRIMMED = "the history is trimmed"
    REPORTED = "the progress is reported to the barrier"


@dataclass(frozen=True, slots=True)
class PeriodRules:
    """How a job treats late and early records, and how long it waits. Fields in ``_ms`` are milliseconds, fields in
    ``_s`` seconds.

    >>> PeriodRules(grace_ms=120_000).wait_s
    300.0
    """

    grace_ms: int = 60_000
    """The time between the end of a period and the moment at which the job closes the period, by the wall clock."""
    lateness_ms: int = 600_000
    """The maximum time by which a record may be older than a record with a lower offset; see `ScanRule`."""
    future_ms: int = 3_600_000
    """A scan sets aside a record if the time of the record is more than this interval after the wall clock."""
    min_later_records: int = MIN_LATER_RECORDS
    late: LateRecords = LateRecords.COUNT
    history_kept: int = 5_000
    """Number of periods that the history keeps, which limits how far back a rerun can begin."""
    wait_s: float = 300.0
    """How long, in seconds, the job retries while a server is unavailable."""

    def __post_init__(self) -> None:
        """Raises `UsageError`."""
        for name in ("grace_ms", "lateness_ms", "future_ms", "wait_s", "min_later_records", "history_kept"):
            least = int(name in ("min_later_records", "history_kept"))
            if getattr(self, name) < least:
                raise UsageError(f"PeriodRules({name}={getattr(self, name)})", f"is below {least}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """Where and how an application processes the periods of a run.

    ``bootstrap`` are the Kafka servers of the topics, and ``output`` is the directory for the outputs of all attempts.
    The history stores ranges, attempts and outputs under ``name``, by default the member's name; applications with
    different topics need different names. ``rules`` are the tolerated delays. The job ends before the first period that
    begins at or after ``until_ms`` (milliseconds since 1970).

    ``rerun_of`` is the root of an earlier run whose ranges this run reads again. Such a rerun needs a separate
    ``output`` directory, and does not change the group. ``options`` are the options of Spark's Kafka source, ``config``
    the connection settings of the scans. ``on_step`` is called after each step. If ``stop`` is set, the job ends before
    the next period.

    >>> JobSettings(bootstrap="h1:9092", output="s3a://results/orders").rules.grace_ms
    60000
    """

    bootstrap: str
    output: str
    name: str | None = None
    rules: PeriodRules = field(default_factory=PeriodRules)
    until_ms: int | None = None
    rerun_of: str | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    config: ConnectionConfig = field(default_factory=ConnectionConfig, repr=False)
    on_step: Callable[[PeriodStep, Period], object] = lambda _step, _period: None
    stop: threading.Event | None = None
    clock: Clock = field(default_factory=SystemClock)


@dataclass(frozen=True)
class PeriodRunner:
    """Runs one job on one period after the other. Only one thread at a time may use it."""

    name: str
    process: Process
    store: OffsetStore
    group: str | None
    settings: JobSettings
    source: RecordSource
    log: PeriodLog
    history: History
    rerun_of: History | None
    coordinator: PeriodCoordinator

    def run(self, period: Period, partitions: Sequence[TopicPartition]) -> Work:
        """Does the remaining work on a closed period. If an earlier process has begun this work, the runner continues
        it as the table in the module's docstring describes.

        Raises `Superseded` if a later process of this job has taken over the period, `OffsetOutOfRange` or
        `UnsupportedOperation` if the records of the period cannot be read any more, and every error that the job's
        function raises.
        """
        work = self._store_ranges(period, partitions)
        if work.published is None:
            work = self._process(work)
        self._commit(work)
        self.settings.on_step(PeriodStep.COMMITTED, period)
        if (old := period.number - self.settings.rules.history_kept) >= 0:
            self._retry(lambda: self.history.delete(self.name, old))
        self.settings.on_step(PeriodStep.HISTORY_TRIMMED, period)
        self._report(work)
        self.settings.on_step(PeriodStep.REPORTED, period)
        return work

    # --- ranges ---------------------------------------------------------------------------------------

    def _store_ranges(self, period: Period, partitions: Sequence[TopicPartition]) -> Work:
        name = self.name
        work = self._retry(lambda: self.history.read(name, period.number))
        if work is None:
            found = self._retry(lambda: self._find_ranges(period, partitions))
            self.settings.on_step(PeriodStep.RANGES_FOUND, period)
            work, _ = self._retry(lambda: self.history.fix(found))
            self.settings.on_step(PeriodStep.RANGES_STORED, period)
        if work.period != period:
            why = f"already has ranges for the times {work.period.start_ms} to {work.period.end_ms}"
            raise Conflict(
                f"period {period.number} of job {name}", why, "use another root for a run with another schedule"
            )
        if added := [tp for tp in partitions if tp not in work.ranges]:
            why = f"already has ranges, and they do not include {added[0]}"
            raise Conflict(f"period {period.number} of job {name}", why, "use another name for a job with other topics")
        return work

    def _find_ranges(self, period: Period, partitions: Sequence[TopicPartition]) -> Work:
        """Returns the ranges of earlier work on the same times if this is a rerun; otherwise scans the topics for the
        ranges."""
        name = self.name
        if self.rerun_of is not None:
            earlier = self.rerun_of.covering(name, period)
            if earlier is None:
                raise Conflict(
                    f"rerun of {period.start_ms} to {period.end_ms} by job {name}",
                    "the history of the repeated run has no ranges for these times, or no longer has them",
                    "without rerun_of, the job scans the topics for the ranges",
                )
            return earlier.restricted_to(period, f"period {earlier.period.number}")
        before = self.history.latest(name, period.number)
        if before is not None and (before.same_as or before.period.end_ms > period.start_ms):
            # This run was rewound. Until the run reaches its previous progress, it processes the same times again.
            earlier = self.history.covering(name, period, period.number)
            if earlier is not None:
                return earlier.restricted_to(period, f"period {earlier.period.number}")
            before = before if before.period.end_ms <= period.start_ms else None
        return self._scan(period, partitions, before)

    def _scan(self, period: Period, partitions: Sequence[TopicPartition], before: Work | None) -> Work:
        rules, log = self.settings.rules, self.log
        ids = log.topic_ids(partitions)
        if before is None:
            group = self.group
            committed = self.store.fetch(group, partitions) if group is not None else {}
            bounds = log.first_bounds(period, partitions, committed)
        else:
            bounds = log.next_bounds(period, partitions, before)
        now = self.settings.clock.now_ms()
        rule = ScanRule(period, rules.lateness_ms, now + rules.future_ms, rules.min_later_records)
        found = scan(self.source.spark, log.bootstrap, log.config, bounds, rule)
        counts = {
            IN_PERIOD: sum(f.in_period for f in found.values()),
            LATE: sum(f.late for f in found.values()),
            SET_ASIDE: sum(f.set_aside for f in found.values()),
        }
        LOG.info("period %d of job %s: %s", period.number, self.name, counts)
        return Work(
            self.name,
            period,
            {tp: f.range for tp, f in found.items()},
            now,
            scans={tp: f.scan for tp, f in found.items()},
            counts=counts,
            topic_ids=ids,
        )

    # --- the job's function ---------------------------------------------------------------------------

    def _process(self, work: Work) -> Work:
        job, period = self.settings, work.period
        self._retry(lambda: self.log.check(work, late=job.rules.late is not LateRecords.COUNT))
        claim = self._retry(lambda: self._start_attempt(work))
        if claim is None:
            return self._retry(lambda: self.history.read(self.name, period.number)) or work
        job.on_step(PeriodStep.ATTEMPT_STARTED, period)
        output = f"{job.output.rstrip('/')}/period-{period.number:06d}/attempt-{claim.attempt}"
        task = PeriodTask(period, claim.attempt, output, job.rules.late, work, self.source)
        self.process(task.rows, task)
        job.on_step(PeriodStep.PROCESSED, period)
        done = self._retry(lambda: self.history.publish(claim, output, work.counts, self.settings.clock.now_ms()))
        for kind, count in work.counts.items():
            metrics.PERIOD_RECORDS.labels(self.name, kind).inc(count)
        job.on_step(PeriodStep.PUBLISHED, period)
        return done

    def _start_attempt(self, work: Work) -> WorkClaim | None:
        """Starts an attempt of this process. Returns None if another process has published an output for the period in
        the meantime."""
        name, number = self.name, work.period.number
        member = self.coordinator.member
        epoch = self.coordinator.wait_registered()
        try:
            return self.history.attempt(name, number, member, epoch, self.settings.clock.now_ms())
        except Conflict:
            found = self.history.read(name, number)
            if found is not None and found.published is not None:
                return None
            raise TimedOut(
                f"attempt at period {number} of job {name}", "another process has changed the history at the same time"
            ) from None

    # --- the group and the barrier --------------------------------------------------------------------

    def _commit(self, work: Work) -> None:
        """Commits the offsets at which the next period's scan begins. A rerun of earlier ranges commits nothing."""
        group = self.group
        if group is None or work.same_as or not work.scans:
            return
        offsets = {tp: OffsetAndMetadata(scan.resume) for tp, scan in work.scans.items()}
        self._retry(lambda: self._commit_to(group, offsets))

    def _commit_to(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        try:
            self.store.commit(group, offsets)
        except PartialFailure as partial:
            left = {tp: why for tp, why in partial.failures.items() if not isinstance(why, RewindRefused)}
            for tp in partial.failures.keys() - left.keys():
                LOG.warning("group %s is ahead of this job in %s: %s", group, tp, partial.failures[tp])
            if left:
                raise PartialFailure(partial.what, successes=partial.successes, failures=left) from None

    def _report(self, work: Work) -> None:
        number = work.period.number
        statuses = self._retry(lambda: self.coordinator.finished(work.ranges, number))
        if too_early := [tp for tp, status in statuses.items() if status is ReportStatus.TOO_EARLY]:
            raise Conflict(
                f"period {number}",
                f"is not open yet for {too_early[0]}",
                "check whether the root node of the run was deleted",
            )
        if late := sum(status is ReportStatus.LATE for status in statuses.values()):
            LOG.warning("period %d was already closed when this job reported %d of its partitions", number, late)

    def _retry(self, call: Callable[[], T]) -> T:
        """Calls a function and retries temporary failures for up to ``wait_s``. Every function that is passed to this
        method is idempotent."""
        deadline = self.settings.clock.monotonic() + self.settings.rules.wait_s
        retries = BlockingRetries(deadline, _BACKOFF, self.settings.clock)
        while True:
            try:
                return call()
            except OffsetMgrError as error:
                if not _is_temporary(error) or retries.exhausted:
                    raise
                LOG.warning("job %s: %s; retrying", self.name, error)
                retries.pause()


def _is_temporary(error: OffsetMgrError) -> bool:
    if isinstance(error, PartialFailure):
        return all(map(_is_temporary, error.failures.values()))
    # Another application with the same group holds the group lock while it commits.
    return error.retriable or isinstance(error, GroupActive)
