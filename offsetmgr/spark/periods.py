"""`run_periods`: a batch job over the records of each closed period, in step with other applications.

For each period: it closes by the wall clock -> its ranges are found and fixed in the history -> an attempt begins ->
the job's function writes into the attempt's own directory -> the output is published -> the group is committed -> the
barrier records the progress -> the next period, once every partition of every application has finished this one.
`period_work` describes what remains if a process dies or freezes between two of these, and why the result is the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.clock import Clock, SystemClock
from offsetmgr.core.errors import OpenPeriodUnknown, RunEnded, TimedOut, UsageError
from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.kafka.cluster.confluent import open_cluster
from offsetmgr.period.coordinator import CoordinatorOptions, PeriodCoordinator
from offsetmgr.period.history import History
from offsetmgr.period.job_records import PublishedOutput
from offsetmgr.period.schedule import Period, PeriodSchedule
from offsetmgr.spark.period_dataframes import RecordSource
from offsetmgr.spark.period_log import PeriodLog, partitions_of
from offsetmgr.spark.period_work import LOG, PeriodJob, PeriodRules, PeriodRunner, PeriodStep
from offsetmgr.spark.versions import require_supported
from offsetmgr.zookeeper.client.session import ZookeeperSession

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from offsetmgr.spark.period_dataframes import PeriodTask

_LONGEST_SLEEP_S: Final = 30.0
"""Maximum sleep, after which the wall clock is read again in case it was set."""


@dataclass(frozen=True, slots=True)
class Coordination:
    """The run that an application takes part in, and its member name.

    ``root`` is the run's node in ZooKeeper, ``member`` this application's name in it: of two processes of one name the
    later counts. ``topics`` are those of *all* applications of the run (empty: this one's own); every application must
    have the same value.
    """

    zookeeper: str
    root: str
    member: str
    topics: Sequence[str] = ()
    config: ConnectionConfig | None = field(default=None, repr=False)
    session_timeout_ms: int = 6_000


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """Where and how an application works through the periods of a run.

    ``bootstrap`` are the Kafka servers of the topics, ``output`` is the directory of the attempts' outputs. Ranges,
    attempts and outputs are stored under ``name`` (None: the member's name): an application with other topics needs
    another one. ``rules`` has the tolerated delays. Periods that begin at or after ``until_ms`` are not processed.
    ``rerun_of`` is the root of the run whose ranges are read again, for a separate rerun: its outputs need their own
    directory, and the group is not changed. ``options`` are Spark's for its Kafka source, ``config`` the same for the
    scans. ``on_step`` is called after each step. ``stop`` ends the job before the next period.
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


def run_periods(
    spark: SparkSession,
    topics: Sequence[str],
    period: PeriodSchedule,
    process: Callable[[DataFrame, PeriodTask], Any],
    store: OffsetStore,
    group: str | None,
    coordinator: Coordination,
    job: JobSettings,
) -> int:
    """Processes the run's periods until it ends, ``until_ms`` is reached or ``stop`` is set; returns their number.

    ``process(rows, task)`` gets the period's records with the columns of Spark's Kafka source. It must write its output
    only under ``task.output``: only the published attempt counts (`published_outputs`). If it is called twice for one
    period, it gets the same rows and another directory.

    ``period`` applies if no period has been opened under the root; afterwards the first one's is kept. ``group`` (None:
    none) is committed at the start of the next period's scan; if the job has no history yet, it begins there.

    Raises `Superseded` if a later process has replaced this one, `RunEnded` if the run was ended, `OffsetOutOfRange` if
    records that must be read are gone, `UnsupportedOperation` for a rerun over a compacted topic, and what ``process``
    raises; the next start continues.
    """
    require_supported("run_periods")
    if not topics:
        raise UsageError("run_periods", "no topic is named")
    own_topics, all_topics = list(dict.fromkeys(topics)), list(dict.fromkeys([*coordinator.topics, *topics]))
    with ExitStack() as stack:
        cluster = stack.enter_context(open_cluster(job.bootstrap, job.config))  # used by the leader's thread
        log = PeriodLog(job.bootstrap, job.config)
        stack.callback(log.close)
        if compacted := log.compacted(own_topics):
            LOG.warning("topic %s is compacted: a second attempt at a period may find fewer records", compacted[0])
        member = PeriodCoordinator(
            coordinator.zookeeper,
            coordinator.root,
            coordinator.member,
            period,
            lambda: partitions_of(cluster, all_topics),
            config=coordinator.config,
            options=CoordinatorOptions(session_timeout_ms=coordinator.session_timeout_ms),
        )
        session = stack.enter_context(ZookeeperSession(coordinator.zookeeper, coordinator.config))
        stack.enter_context(member)
        work = PeriodRunner(
            PeriodJob(job.name or coordinator.member, process, job.output, store, group, job.rules, job.on_step),
            RecordSource(spark, job.bootstrap, dict(job.options)),
            log,
            History(session, coordinator.root),
            None if job.rerun_of is None else History(session, job.rerun_of),
            member,
            job.clock,
        )
        return _run(work, member, frozenset(own_topics), job)


def _run(work: PeriodRunner, member: PeriodCoordinator, topics: frozenset[str], job: JobSettings) -> int:
    done = 0
    while True:
        open_ = member.open_period()
        if open_ is None:
            raise OpenPeriodUnknown(f"member {member.member}", "which period is open is not known")
        period = open_.period
        if job.until_ms is not None and period.start_ms >= job.until_ms:
            return done
        partitions = sorted(tp for tp in open_.partitions if tp.topic in topics)
        if member.owned != frozenset(partitions):
            member.own(partitions)
        if partitions:
            if not _wait_until_closed(period.end_ms + job.rules.grace_ms, job.stop, job.clock):
                return done
            job.on_step(PeriodStep.CLOSED, period)
            work.run(period, partitions)
            done += 1
        else:
            LOG.warning("period %d goes on without topics %s", period.number, ", ".join(sorted(topics)))
        try:
            member.wait(period.number, cancel=job.stop)
        except RunEnded as ended:
            if ended.done:
                return done
            raise
        except TimedOut:  # only ``stop`` ends this wait
            return done


def _wait_until_closed(at_ms: int, stop: threading.Event | None, clock: Clock) -> bool:
    """Waits for a time of the wall clock; False if ``stop`` was set before."""
    stop = stop or threading.Event()
    while (left := at_ms - clock.now_ms()) > 0:
        if stop.wait(min(left / 1000, _LONGEST_SLEEP_S)):
            return False
    return not stop.is_set()


def published_outputs(
    zookeeper: str, root: str, job: str, *, config: ConnectionConfig | None = None
) -> dict[Period, PublishedOutput]:
    """The published outputs of a job, by period, as far as the history goes back. Other directories belong to
    superseded attempts. Raises what `ZookeeperSession` raises."""
    with ZookeeperSession(zookeeper, config) as session:
        works = History(session, root).works().values()
    found = [(work.period, work.published) for work in works if work.job == job and work.published is not None]
    return dict(sorted(found, key=lambda entry: entry[0]))
