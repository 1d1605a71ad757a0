"""Period jobs on real Spark, Kafka and ZooKeeper: interruptions at any step, lockstep with other jobs, and reruns.

All tests share one Spark session. Jobs are interrupted at three steps that the seed draws, and in `scripts/soak` at
every step. `tests/crash/test_period_jobs.py` kills and freezes real processes.
"""

import json
import logging
import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from committed_offsets import offsets
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions
from conftest import MakeTopic
from kazoo_client import connected
from period_job import Row, rows_in, write
from processes import set_topic

from offsetmgr.cli.app import run as offsetmgr
from offsetmgr.core.errors import Conflict, OffsetOutOfRange, UnsupportedOperation
from offsetmgr.period import Period, PeriodSchedule
from offsetmgr.sandbox import KraftBroker, ZooKeeperServer
from offsetmgr.spark import (
    Coordination,
    JobSettings,
    LateRecords,
    PeriodRules,
    PeriodStep,
    published_outputs,
    run_periods,
)
from offsetmgr.stores.kafka import KafkaStore

pytestmark = pytest.mark.servers

HOUR_MS = 3_600_000
FIRST = 1_700_006_400_000
HOURLY = PeriodSchedule(FIRST, HOUR_MS)
SOAK = bool(os.environ.get("OFFSETMGR_SOAK"))
SEED = int(os.environ.get("OFFSETMGR_SEED") or time.time_ns() % 1_000_000)
AHEAD = FIRST * 3
"""A timestamp far in the future."""

"""Topic, partition, offset, value."""


def produce(bootstrap: str, topic: str, records: list[tuple[int, int]]) -> None:
    """Produces records of (partition, time). The value is the time."""
    producer = Producer({"bootstrap.servers": bootstrap})
    errors: list[Any] = []
    for partition, at in records:
        producer.produce(
            topic,
            str(at).encode(),
            partition=partition,
            timestamp=at,
            on_delivery=lambda error, _: errors.append(error),
        )
    assert producer.flush(30) == 0
    assert errors == [None] * len(records)


class Job:
    """Runs of one job over some topics. Each run starts as a new process would."""

    def __init__(
        self, spark: Any, kraft: KraftBroker, zookeeper: ZooKeeperServer, name: str, topics: list[str], directory: Path
    ) -> None:
        self.spark, self.kraft, self.zookeeper = spark, kraft, zookeeper
        self.name, self.topics = name, topics
        self.root = f"/{name}"
        self.member = "job"
        self.group: str | None = name
        self.output = directory / name
        self.rules = PeriodRules(grace_ms=0, lateness_ms=HOUR_MS, min_later_records=5, wait_s=60)
        self.process: Callable[[Any, Any], Any] = write
        self.together: list[str] = []
        self.schedule = HOURLY

    def run(self, periods: int, **options: Any) -> int:
        with KafkaStore(self.kraft.bootstrap) as store:
            return run_periods(
                self.spark,
                self.topics if len(self.topics) > 1 else self.topics[0],  # a text is one topic
                self.schedule,
                self.process,
                store,
                self.group,
                Coordination(self.zookeeper.connect, self.root, self.member, self.together, session_timeout_ms=4_000),
                JobSettings(
                    bootstrap=self.kraft.bootstrap,
                    output=str(self.output),
                    rules=self.rules,
                    until_ms=FIRST + periods * HOUR_MS,
                    **options,
                ),
            )

    def outputs(self) -> dict[int, list[Row]]:
        """The sorted rows of the published output, by period."""
        found = published_outputs(self.zookeeper.connect, self.root, self.member)
        return {period.number: rows_in(Path(published.output)) for period, published in found.items()}

    def counts(self, kind: str) -> dict[int, int]:
        found = published_outputs(self.zookeeper.connect, self.root, self.member)
        return {period.number: published.counts[kind] for period, published in found.items()}

    def offsets(self) -> dict[str, int]:
        assert self.group is not None
        with KafkaStore(self.kraft.bootstrap) as store:
            return {str(tp): offset for tp, offset in offsets(store.fetch(self.group)).items()}


def expected(topic: str, records: list[tuple[int, int]], number: int) -> list[Row]:
    """The rows of a period, computed from the produced records alone."""
    at: dict[int, int] = {}
    found = []
    for partition, time_ms in records:
        offset = at.get(partition, 0)
        at[partition] = offset + 1
        if time_ms in HOURLY.period(number):
            found.append((topic, partition, offset, str(time_ms)))
    return sorted(found)


def mixed(dice: random.Random, periods: int, partitions: int, each: int) -> list[tuple[int, int]]:
    """Records out of order by up to half an hour, and some dated far ahead."""
    times = sorted(dice.randrange(FIRST, FIRST + periods * HOUR_MS) for _ in range(each))
    times.sort(key=lambda at: at + dice.randrange(HOUR_MS // 2))
    records = [(dice.randrange(partitions), at) for at in times]
    for _ in range(3):
        records.insert(dice.randrange(len(records)), (dice.randrange(partitions), AHEAD))
    return records


KEPT = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1)}
"""Brokers delete records with old timestamps, and since Kafka 4.0 reject timestamps more than an hour ahead."""


class Interrupted(Exception):
    """Simulates the end of a process."""


@pytest.mark.matrix
def test_a_job_interrupted_at_any_step_has_the_output_of_an_undisturbed_one(
    spark: Any, kraft: KraftBroker, zookeeper: ZooKeeperServer, make_topic: MakeTopic, unique: str, tmp_path: Path
) -> None:
    logging.getLogger("offsetmgr.tests").warning("seed: %d", SEED)
    dice = random.Random(SEED)
    topic = make_topic(unique, 3, bootstrap=kraft.bootstrap, config=KEPT)
    records = mixed(dice, 3, 2, 120)  # one of the three partitions has no record
    produce(kraft.bootstrap, topic, records)
    undisturbed = Job(spark, kraft, zookeeper, f"{unique}-undisturbed", [topic], tmp_path)
    disturbed = Job(spark, kraft, zookeeper, f"{unique}-disturbed", [topic], tmp_path)

    assert undisturbed.run(3) == 3
    drawn = dice.sample(list(PeriodStep), 3)
    steps = [step for step in PeriodStep if SOAK or step in drawn]
    for at, step in enumerate(steps):  # each process ends after another step; the periods have equally many

        def end(now: PeriodStep, period: Period, number: int = at * 3 // len(steps), last: PeriodStep = step) -> None:
            if (now, period.number) == (last, number):
                raise Interrupted

        with pytest.raises(Interrupted):
            disturbed.run(3, on_step=end)
    disturbed.run(3)

    assert undisturbed.outputs() == {n: expected(topic, records, n) for n in range(3)}
    assert disturbed.outputs() == undisturbed.outputs()
    assert sum(undisturbed.counts("set_aside").values()) == 3
    assert set(undisturbed.counts("late").values()) == {0}
    # The group's offsets are after all records, even those dated far ahead: no record of a later period exists.
    assert undisturbed.offsets() == {f"{topic}-{n}": sum(at == n for at, _ in records) for n in range(3)}
    assert disturbed.offsets() == undisturbed.offsets()


def test_late_records_follow_the_jobs_rule_and_a_new_partition_joins_at_the_next_period(
    spark: Any, kraft: KraftBroker, zookeeper: ZooKeeperServer, make_topic: MakeTopic, unique: str, tmp_path: Path
) -> None:
    topic = make_topic(unique, 1, bootstrap=kraft.bootstrap, config=KEPT)
    side = Job(spark, kraft, zookeeper, f"{unique}-side", [topic], tmp_path)
    following = Job(spark, kraft, zookeeper, f"{unique}-next", [topic], tmp_path)
    late: dict[int, list[int]] = {}
    set_aside: dict[int, list[int]] = {}

    def with_side_output(rows: Any, task: Any) -> None:
        late[task.period.number] = sorted(int(row.value) - FIRST for row in task.late.select("value").collect())
        set_aside[task.period.number] = [row.offset for row in task.set_aside.collect()]
        write(rows, task)

    side.process, side.rules = with_side_output, replace(side.rules, late=LateRecords.SIDE)
    following.rules = replace(following.rules, late=LateRecords.NEXT)
    # Given a first period that both have finished, and late records of it
    produce(kraft.bootstrap, topic, [(0, FIRST + 1), (0, AHEAD), (0, FIRST + HOUR_MS + 1)])
    assert (side.run(1), following.run(1, options={"includeHeaders": "true"})) == (1, 1)
    produce(kraft.bootstrap, topic, [(0, FIRST + 2), (0, FIRST + HOUR_MS + 2), (0, FIRST + 3)])
    # And a partition that is added while the second one is open, with records of all three
    grow(kraft.bootstrap, topic, 2)
    produce(kraft.bootstrap, topic, [(1, FIRST + n * HOUR_MS + 9) for n in range(3)])

    assert (side.run(3), following.run(3)) == (2, 2)

    def times(job: Job) -> dict[int, list[int]]:
        return {n: sorted(int(value) - FIRST for _, _, _, value in rows) for n, rows in job.outputs().items()}

    assert times(side) == {0: [1], 1: [HOUR_MS + 1, HOUR_MS + 2], 2: [2 * HOUR_MS + 9]}
    assert late == {0: [], 1: [2, 3], 2: [9, HOUR_MS + 9]}
    assert set_aside == {0: [1], 1: [], 2: []}
    assert times(following) == {0: [1], 1: [2, 3, HOUR_MS + 1, HOUR_MS + 2], 2: [9, HOUR_MS + 9, 2 * HOUR_MS + 9]}
    assert side.counts("late") == following.counts("late") == {0: 0, 1: 2, 2: 2}
    assert side.offsets() == {f"{topic}-0": 6, f"{topic}-1": 3}


def grow(bootstrap: str, topic: str, partitions: int) -> None:
    """Adds partitions, and waits until the metadata shows a leader for each."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(90)
    deadline = time.monotonic() + 120
    while len(found := admin.list_topics(topic, timeout=60).topics[topic].partitions) < partitions or any(
        known.leader < 0 for known in found.values()
    ):
        assert time.monotonic() < deadline, f"{topic} does not grow"


def test_applications_with_their_own_topics_advance_in_lockstep(spark, kraft, zookeeper, make_topic, unique, tmp_path):
    # Given two applications of one run, one with many records and one whose topic has none in the second period
    topics = [make_topic(f"{unique}-{name}", 2, bootstrap=kraft.bootstrap, config=KEPT) for name in "ab"]
    records = [[(n % 2, FIRST + n * HOUR_MS // 10) for n in range(20)], [(0, FIRST + 7)]]
    jobs = []
    for topic, name, some in zip(topics, "ab", records, strict=True):
        produce(kraft.bootstrap, topic, some)
        job = Job(spark, kraft, zookeeper, unique, [topic], tmp_path / name)
        job.member, job.group, job.together = name, f"{unique}-{name}", topics
        jobs.append(job)
    lines: list[tuple[PeriodStep, int]] = []
    # When they run concurrently
    with ThreadPoolExecutor(2) as pool:
        runs = [
            pool.submit(job.run, 2, on_step=lambda step, period: lines.append((step, period.number))) for job in jobs
        ]
        assert [run.result(300) for run in runs] == [2, 2]
    # Then neither begins the second period before both have finished the first
    assert [
        lines.count((step, number)) for step in (PeriodStep.CLOSED, PeriodStep.REPORTED) for number in range(2)
    ] == [2, 2, 2, 2]
    first_end = max(at for at, line in enumerate(lines) if line == (PeriodStep.PROCESSED, 0))
    assert lines.index((PeriodStep.CLOSED, 1)) > first_end
    assert [job.outputs() for job in jobs] == [
        {n: expected(topic, some, n) for n in range(2)} for topic, some in zip(topics, records, strict=True)
    ]
    with connected(zookeeper.connect) as nodes:
        closed = [json.loads(nodes.get(f"/{unique}/history/{number}")[0]) for number in range(2)]
    assert [sorted(period["by"]) for period in closed] == [["a", "b"], ["a", "b"]]


def test_a_rerun_alongside_the_live_run_reads_the_same_rows_after_new_data_has_arrived(
    spark: Any, kraft: KraftBroker, zookeeper: ZooKeeperServer, make_topic: MakeTopic, unique: str, tmp_path: Path
) -> None:
    # Given a live run that is in its third period
    topic = make_topic(unique, 2, bootstrap=kraft.bootstrap, config=KEPT)
    dice = random.Random(SEED)
    records = mixed(dice, 3, 2, 60)
    produce(kraft.bootstrap, topic, records)
    live = Job(spark, kraft, zookeeper, unique, [topic], tmp_path)
    assert live.run(2) == 2
    before, committed = live.outputs(), live.offsets()
    # When new records of its first periods arrive, and a rerun processes the past in periods of the same length
    produce(kraft.bootstrap, topic, [(n % 2, FIRST + n * HOUR_MS // 5) for n in range(10)])
    same = rerun(live, "same", HOUR_MS)
    assert same.run(2, rerun_of=live.root) == 2
    # Then the rows are the same, the group's offsets are unchanged, and the rerun has ended
    assert same.outputs() == before == {n: expected(topic, records, n) for n in range(2)}
    assert live.offsets() == committed
    if SOAK:
        # And shorter periods divide the same rows
        halves = rerun(live, "halves", HOUR_MS // 2)
        assert halves.run(2, rerun_of=live.root) == 4
        assert {n: sorted(halves.outputs()[2 * n] + halves.outputs()[2 * n + 1]) for n in range(2)} == before
        # But a rerun that determines the ranges again finds the new records
        rescan = rerun(live, "rescan", HOUR_MS)
        rescan.group, rescan.rules = None, replace(rescan.rules, min_later_records=1_000)
        assert rescan.run(2) == 2
        assert sum(map(len, rescan.outputs().values())) == sum(map(len, before.values())) + 10
    # And the live run continues and treats the new records as late
    assert live.run(3) == 1
    assert live.counts("late") == {0: 0, 1: 0, 2: 10}


def rerun(live: Job, name: str, length_ms: int) -> Job:
    """A rerun separate from the live run, of its first two periods, and a job for it."""
    command = ["period", "rerun", "--zookeeper", live.zookeeper.connect, "--root", live.root, "--execute", "--yes"]
    command += ["--from", "2023-11-15T00:00:00", "--until", "2023-11-15T02:00:00", "--name", name]
    assert offsetmgr([*command, "--length", f"PT{length_ms // 60_000}M"]) == 0
    again = Job(live.spark, live.kraft, live.zookeeper, live.name, live.topics, live.output / name)
    again.root = f"{live.root}/reruns/{name}"
    return again


def test_a_rerun_of_data_that_no_longer_exists_is_rejected(spark, kraft, zookeeper, make_topic, unique, tmp_path):
    topic = make_topic(unique, 1, bootstrap=kraft.bootstrap, config=KEPT)
    produce(kraft.bootstrap, topic, [(0, FIRST + n * HOUR_MS // 4) for n in range(12)])
    live = Job(spark, kraft, zookeeper, unique, [topic], tmp_path)
    assert live.run(2) == 2
    admin = AdminClient({"bootstrap.servers": kraft.bootstrap})
    # A topic that was compacted meanwhile
    for policy in ("compact", "delete"):
        set_policy(admin, topic, policy)
        if policy == "compact":
            with pytest.raises(UnsupportedOperation, match=f"topic {topic} is compacted"):
                rerun(live, "compacted", HOUR_MS).run(2, rerun_of=live.root)
    # The ranges of the first period are below the log's start, those of the second are not
    admin.delete_records([KafkaPartition(topic, 0, 2)])[KafkaPartition(topic, 0, 2)].result(90)
    with pytest.raises(OffsetOutOfRange, match=r"needs the offsets 0 to 2, but the log begins at 2"):
        rerun(live, "gone", HOUR_MS).run(2, rerun_of=live.root)
    # Periods that the live run has never processed
    other = rerun(live, "never", HOUR_MS)
    other.member = "other"
    with pytest.raises(Conflict, match="has no ranges for these times"):
        other.run(2, rerun_of=live.root)
    # And a live run whose topic was recreated
    admin.delete_topics([topic], operation_timeout=30)[topic].result(60)
    recreated = make_topic(topic, 1, bootstrap=kraft.bootstrap, config=KEPT)
    produce(kraft.bootstrap, recreated, [(0, FIRST + n) for n in range(20)])
    with pytest.raises(OffsetOutOfRange, match="has another id than when period 1 was read"):
        live.run(3)


def set_policy(admin: AdminClient, topic: str, policy: str) -> None:
    """Sets the cleanup policy, and returns when the broker has applied it."""
    set_topic(admin, topic, {"cleanup.policy": policy})
    deadline = time.monotonic() + 120
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    while admin.describe_configs([resource])[resource].result(90)["cleanup.policy"].value != policy:
        assert time.monotonic() < deadline, f"{topic} keeps its policy"
        time.sleep(0.02)


def test_a_period_closes_by_the_wall_clock_and_a_waiting_job_can_be_stopped(
    spark: Any, kraft: KraftBroker, zookeeper: ZooKeeperServer, make_topic: MakeTopic, unique: str, tmp_path: Path
) -> None:
    topic = make_topic(unique, 1, bootstrap=kraft.bootstrap, config=KEPT)
    job = Job(spark, kraft, zookeeper, unique, [topic], tmp_path)
    job.rules = replace(job.rules, grace_ms=500)
    # Given a period that ends in a second, and one that ends in an hour
    end = time.time_ns() // 1_000_000 + 1_000
    job.schedule = PeriodSchedule(end - HOUR_MS, HOUR_MS)
    stop, closed = threading.Event(), list[int]()

    def observe(step: PeriodStep, period: Period) -> None:
        if step is PeriodStep.CLOSED:
            closed.append(time.time_ns() // 1_000_000)
        if step is PeriodStep.REPORTED:
            stop.set()

    assert job.run(10**6, on_step=observe, stop=stop) == 1
    assert len(closed) == 1 and closed[0] >= end + 500
    assert job.outputs() == {0: []}
