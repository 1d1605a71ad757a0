"""Jobs on periods of real Spark, Kafka and ZooKeeper: interrupted at each step, in step with others, and once more.

One Spark session for the file. Processes that are really killed and frozen: `tests/chaos/test_period_jobs.py`.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer


from conftest import MakeTopic

from offsetmgr.errors import Conflict, OffsetOutOfRange, TakenOver, UnsupportedOperation
from offsetmgr.model import Committed, TopicPartition
from offsetmgr.period.history import History
from offsetmgr.period.room import Room
from offsetmgr.period.schedule import Period, Schedule
from offsetmgr.sandbox import KraftBroker, ZooKeeperServer
from offsetmgr.spark import Coordination, Late, PeriodRules, Step, published_outputs, run_periods, session
from offsetmgr.stores.uri import open_store
from offsetmgr.zookeeper.session import ZookeeperSession

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]

HOUR = 3_600_000
FIRST = 1_700_006_400_000
HOURLY = Schedule(FIRST, HOUR)
SEED = int(os.environ.get("OFFSETMGR_SEED") or time.time_ns() % 1_000_000)
SOAK = bool(os.environ.get("OFFSETMGR_SOAK"))
AHEAD = FIRST * 3
"""A time that no clock shows."""

Row = tuple[str, int, int, str]
"""Topic, partition, offset, value."""


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": 2, "spark.log.level": "ERROR"}
    found = session("offsetmgr-periods", master="local[2]", **settings)
    yield found
    found.stop()


def produce(bootstrap: str, topic: str, records: list[tuple[int, int]]) -> None:
    """Records of (partition, time); the value says the time."""
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


def write(rows: Any, task: Any) -> None:
    chosen = rows.selectExpr("topic", "partition", "offset", "cast(value as string) as value")
    chosen.coalesce(1).write.json(task.output)


class Job:
    """Runs of one job over some topics, each run as a new process would begin it."""

    def __init__(
        self, spark: Any, kraft: KraftBroker, zookeeper: ZooKeeperServer, name: str, topics: list[str], folder: Path
    ) -> None:
        self.spark, self.kraft, self.zookeeper = spark, kraft, zookeeper
        self.name, self.topics = name, topics
        self.root = f"/{name}"
        self.member = "job"
        self.group: str | None = name
        self.output = folder / name
        self.rules = PeriodRules(grace_ms=0, lateness_ms=HOUR, sure_after=5, patience_s=60)
        self.process: Callable[[Any, Any], Any] = write
        self.together: list[str] = []

    def run(self, periods: int, **options: Any) -> int:
        with open_store(f"kafka://{self.kraft.bootstrap}") as store:
            return run_periods(
                self.spark,
                self.topics,
                HOURLY,
                self.process,
                store,
                self.group,
                Coordination(self.zookeeper.connect, self.root, self.member, self.together, session_timeout_ms=4_000),
                bootstrap=self.kraft.bootstrap,
                output=str(self.output),
                rules=self.rules,
                until_ms=FIRST + periods * HOUR,
                **options,
            )

    def outputs(self) -> dict[int, list[Row]]:
        """By period: the rows of the output that counts, sorted."""
        found = published_outputs(self.zookeeper.connect, self.root, self.member)
        return {period.number: rows_in(Path(published.output)) for period, published in found.items()}

    def counts(self, kind: str) -> dict[int, int]:
        found = published_outputs(self.zookeeper.connect, self.root, self.member)
        return {period.number: published.counts[kind] for period, published in found.items()}

    def offsets(self) -> dict[str, int]:
        assert self.group is not None
        with open_store(f"kafka://{self.kraft.bootstrap}") as store:
            return {
                str(tp): found.offset for tp, found in store.fetch(self.group).items() if isinstance(found, Committed)
            }


def rows_in(folder: Path) -> list[Row]:
    import json

    assert (folder / "_SUCCESS").exists()
    lines = [json.loads(line) for part in folder.glob("part-*.json") for line in part.read_text().splitlines()]
    return sorted((row["topic"], row["partition"], row["offset"], row["value"]) for row in lines)


def expected(topic: str, records: list[tuple[int, int]], number: int) -> list[Row]:
    """The rows of a period, from what was produced and nothing else."""
    at: dict[int, int] = {}
    found = []
    for partition, time_ms in records:
        offset = at.get(partition, 0)
        at[partition] = offset + 1
        if time_ms in HOURLY.period(number):
            found.append((topic, partition, offset, str(time_ms)))
    return sorted(found)


def mixed(dice: random.Random, periods: int, partitions: int, each: int) -> list[tuple[int, int]]:
    """Records in an order of their own: up to half an hour behind others, and some dated far ahead."""
    times = sorted(dice.randrange(FIRST, FIRST + periods * HOUR) for _ in range(each))
    times.sort(key=lambda at: at + dice.randrange(HOUR // 2))
    records = [(dice.randrange(partitions), at) for at in times]
    for _ in range(3):
        records.insert(dice.randrange(len(records)), (dice.randrange(partitions), AHEAD))
    return records


KEPT = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1)}
"""Brokers delete what is dated long ago, and since Kafka 4.0 refuse what is dated more than an hour ahead."""


class Interrupted(Exception):
    """Stands for the end of a process."""


def test_a_job_that_ends_at_any_step_gives_what_an_undisturbed_one_gives(
    spark: Any, kraft: KraftBroker, zookeeper: ZooKeeperServer, make_topic: MakeTopic, unique: str, tmp_path: Path
) -> None:
    print(f"seed: {SEED}")
    dice = random.Random(SEED)
    topic = make_topic(unique, 3, bootstrap=kraft.bootstrap, config=KEPT)
    steps = list(Step)
    periods = len(steps)
    records = mixed(dice, periods, 2, 40 * periods)  # of three partitions, one has no record at all
    produce(kraft.bootstrap, topic, records)
    undisturbed = Job(spark, kraft, zookeeper, f"{unique}-undisturbed", [topic], tmp_path)
    disturbed = Job(spark, kraft, zookeeper, f"{unique}-disturbed", [topic], tmp_path)

    assert undisturbed.run(periods) == periods
    for number, step in enumerate(steps):  # each process ends at another step, in another period

        def end(now: Step, period: Period, number: int = number, step: Step = step) -> None:
            if (now, period.number) == (step, number):
                raise Interrupted

        with pytest.raises(Interrupted):
            disturbed.run(periods, on_step=end)
    disturbed.run(periods)

    assert undisturbed.outputs() == {n: expected(topic, records, n) for n in range(periods)}
    assert disturbed.outputs() == undisturbed.outputs()
    assert sum(undisturbed.counts("set_aside").values()) == 3
    assert set(undisturbed.counts("late").values()) == {0}
    assert disturbed.offsets() == undisturbed.offsets()
    # The group is behind all records, those of far ahead included: none of a later period is there.
    assert undisturbed.offsets() == {f"{topic}-{n}": sum(partition == n for partition, _ in records) for n in range(3)}
