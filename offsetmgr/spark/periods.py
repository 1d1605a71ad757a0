"""`run_periods`: runs a batch job on the records of each closed period, in step with other applications.

The steps for each period are:

1. Wait until the period closes, by the wall clock.
2. Find the ranges of offsets, and store them in the history.
3. Start an attempt. The job's function writes into the attempt's own directory.
4. Publish the output, commit the group, and report the progress to the barrier.
5. Wait until every partition of every application has finished the period.

`period_work` describes what happens if a process dies or freezes between two steps, and why the result is the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.clock import Clock
from offsetmgr.core.errors import OpenPeriodUnknown, RunEnded, TimedOut, UsageError
from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.kafka.cluster import KafkaCluster, all_partitions
from offsetmgr.period.coordinator import PeriodCoordinator
from offsetmgr.period.history import History
from offsetmgr.period.job_records import PublishedOutput
from offsetmgr.period.leader import CoordinatorOptions
from offsetmgr.period.schedule import Period, PeriodSchedule
from offsetmgr.spark.period_dataframes import RecordSource
from offsetmgr.spark.period_log import PeriodLog
from offsetmgr.spark.period_work import LOG, JobSettings, PeriodRunner, PeriodStep
from offsetmgr.spark.start_offsets import topic_names
from offsetmgr.spark.versions import require_supported
from offsetmgr.zookeeper.client.session import ZookeeperSession

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from offsetmgr.spark.period_dataframes import PeriodTask

_LONGEST_SLEEP_S: Final = 30.0
"""The longest sleep. After each sleep the job reads the wall clock again, in case the clock was changed."""


@dataclass(frozen=True, slots=True)
class Coordination:
    """The run in which an application takes part, and the application's member name.

    ``root`` is the run's znode. ``member`` is this application's name in the run; if two processes have the same name,
    the process that started later is the member. ``topics`` are the topics of *all* applications of the run, by default
    the topics of this application. Every application must give the same ``topics``.

    >>> Coordination("h1:2181", "/shop/periods", "orders", topics=["orders", "payments"]).session_timeout_ms
    6000
    """

    zookeeper: str
    root: str
    member: str
    topics: Sequence[str] | str = ()
    config: ConnectionConfig | None = field(default=None, repr=False)
    session_timeout_ms: int = 6_000


def run_periods(
    spark: SparkSession,
    topics: Sequence[str] | str,
    period: PeriodSchedule,
    process: Callable[[DataFrame, PeriodTask], Any],
    store: OffsetStore,
    group: str | None,
    coordinator: Coordination,
    job: JobSettings,
) -> int:
    """Processes the periods of a run until the run ends, ``until_ms`` is reached or ``stop`` is set. Returns the number
    of periods that the call has processed. A text as ``topics`` is one topic.

    ``process(rows, task)`` gets the period's records with the columns of Spark's Kafka source. The function must write
    its output only under ``task.output``, because only the published attempt counts (`published_outputs`). If
    ``process`` is called again for a period, it gets the same rows and another directory.

    ``period`` is the schedule of the periods. It applies only to a new run: a run that has already opened a period
    keeps its previous schedule. After each period the job commits to ``group`` the offsets at which the next period's
    scan begins. If ``group`` is None, the job commits nothing. A job without a history begins at the group's offsets.

    Raises `Superseded` if a later process has replaced this one, `RunEnded` if the run was ended, `OffsetOutOfRange` if
    records that must be read are gone, `UnsupportedOperation` for a rerun over a compacted topic, and every error that
    ``process`` raises. After an error, the next call continues where the failed call stopped.

    Example::

        from pyspark.sql import DataFrame
        from offsetmgr.period import PeriodSchedule
        from offsetmgr.spark import Coordination, JobSettings, PeriodTask, open_store, run_periods, session

        def process(rows: DataFrame, task: PeriodTask) -> None:
            rows.selectExpr("cast(value as string)").write.text(task.output)
        spark, store = session("shop-job", master="local[1]"), open_store("kafka://h1:9092")
        hourly = PeriodSchedule(1_700_006_400_000, 3_600_000)
        job = JobSettings(bootstrap="h1:9092", output="results", until_ms=1_700_010_000_000)
        run = Coordination("h1:2181", "/shop/hourly", "orders")
        run_periods(spark, ["orders"], hourly, process, store, "shop-hourly", run, job)
    """
    require_supported("run_periods")
    if not topics:
        raise UsageError("run_periods", "topics is empty")
    own_topics = topic_names(topics)
    with ExitStack() as stack:
        cluster = stack.enter_context(KafkaCluster(job.bootstrap, job.config))  # used by the leader's thread
        log = PeriodLog(job.bootstrap, job.config)
        stack.callback(log.close)
        if compacted := log.compacted(own_topics):
            LOG.warning("topic %s is compacted: a second attempt at a period may find fewer records", compacted[0])
        member = _member(coordinator, period, cluster, topic_names([*topic_names(coordinator.topics), *own_topics]))
        session = stack.enter_context(ZookeeperSession(coordinator.zookeeper, coordinator.config))
        stack.enter_context(member)
        name, source = job.name or coordinator.member, RecordSource(spark, job.bootstrap, dict(job.options))
        history = History(session, coordinator.root)
        rerun_of = None if job.rerun_of is None else History(session, job.rerun_of)
        work = PeriodRunner(name, process, store, group, job, source, log, history, rerun_of, member)
        return _run(work, member, frozenset(own_topics), job)


def _member(
    coordinator: Coordination, period: PeriodSchedule, cluster: KafkaCluster, topics: Sequence[str]
) -> PeriodCoordinator:
    """Returns the member of the run, which waits for the partitions of all ``topics``."""
    return PeriodCoordinator(
        coordinator.zookeeper,
        coordinator.root,
        coordinator.member,
        period,
        lambda: all_partitions(cluster, topics),
        config=coordinator.config,
        options=CoordinatorOptions(session_timeout_ms=coordinator.session_timeout_ms),
    )


def _run(work: PeriodRunner, member: PeriodCoordinator, topics: frozenset[str], job: JobSettings) -> int:
    done = 0
    while True:
        open_ = member.open_period()
        if open_ is None:
            raise OpenPeriodUnknown(f"member {member.member}", "the open period is unknown")
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
            LOG.warning(
                "period %d has no partitions of the topics %s, so this job skips it",
                period.number,
                ", ".join(sorted(topics)),
            )
        try:
            member.wait(period.number, cancel=job.stop)
        except RunEnded as ended:
            if ended.done:
                return done
            raise
        except TimedOut:  # only ``stop`` ends this wait
            return done


def _wait_until_closed(at_ms: int, stop: threading.Event | None, clock: Clock) -> bool:
    """Waits until the wall clock reaches ``at_ms``. Returns False if ``stop`` was set first."""
    stop = stop or threading.Event()
    while (left := at_ms - clock.now_ms()) > 0:
        if stop.wait(min(left / 1000, _LONGEST_SLEEP_S)):
            return False
    return not stop.is_set()


def published_outputs(
    zookeeper: str, root: str, job: str, *, config: ConnectionConfig | None = None
) -> dict[Period, PublishedOutput]:
    """Returns a job's published outputs, by period, as far back as the history goes. Directories that are not in the
    result belong to unpublished attempts. Raises the errors of `ZookeeperSession`.

    Example::

        from offsetmgr.spark import published_outputs

        for period, published in published_outputs("h1:2181", "/shop/hourly", "orders").items():
            print(period.start_ms, published.output, published.counts)
    """
    with ZookeeperSession(zookeeper, config) as session:
        works = History(session, root).all_work().values()
    found = [(work.period, work.published) for work in works if work.job == job and work.published is not None]
    return dict(sorted(found, key=lambda entry: entry[0]))
