"""Jobs on periods whose driver is killed after a step, or frozen there past its session timeout and replaced.

The signal (SIGKILL, SIGSTOP) also goes to the JVM. Frozen processes are resumed. The published rows and the offsets
must equal those of an undisturbed job. CI disturbs two random steps; `scripts/soak` disturbs every step and also runs
the undisturbed job.
"""

import json
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from committed_offsets import offsets
from confluent_kafka import Producer
from conftest import MakeTopic
from period_job import Row, rows_in

from offsetmgr.period import PeriodSchedule
from offsetmgr.sandbox import KraftBroker, ZooKeeperServer
from offsetmgr.spark import PeriodStep, published_outputs
from offsetmgr.stores.kafka import KafkaStore

SOAK = bool(os.environ.get("OFFSETMGR_SOAK"))
SEED = int(os.environ.get("OFFSETMGR_SEED") or time.time_ns() % 1_000_000)
PROGRAM = Path(__file__).with_name("period_job.py")
HOUR_MS = 3_600_000
HOURLY = PeriodSchedule(1_700_006_400_000, HOUR_MS)
AHEAD = 3 * HOURLY.first_ms
PARTITIONS = 2
EACH = 60
"""Records per period."""
KEPT = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1)}

pytestmark = [pytest.mark.servers, pytest.mark.matrix, pytest.mark.timeout(1800 if SOAK else 900)]


class Job:
    def __init__(self, kraft: KraftBroker, zookeeper: ZooKeeperServer, name: str, topic: str, directory: Path) -> None:
        self.kraft, self.zookeeper, self.name, self.topic = kraft, zookeeper, name, topic
        self.directory = directory / name
        self.directory.mkdir()
        self.log = self.directory / "steps"
        self.log.touch()
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(
        self, periods: int, fault: tuple[PeriodStep, int, signal.Signals] | None = None
    ) -> subprocess.Popen[bytes]:
        """Starts a process that works up to this number of periods. ``fault``: a step, its period's number, a
        signal."""
        arguments = {
            "bootstrap": self.kraft.bootstrap, "zookeeper": self.zookeeper.connect, "name": self.name,
            "topic": self.topic, "output": str(self.directory / "output"), "log": str(self.log),
            "first_ms": HOURLY.first_ms, "length_ms": HOUR_MS, "until_ms": HOURLY.period(periods).start_ms,
            "fault": None if fault is None else [fault[0].name, fault[1], int(fault[2])],
        }  # fmt: skip
        with (self.directory / "stderr").open("ab") as errors:
            # Its own process group, so that a signal reaches the JVM and the driver.
            process = subprocess.Popen(
                [sys.executable, str(PROGRAM), json.dumps(arguments)],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def wait_for_step(
        self, process: subprocess.Popen[bytes], step: PeriodStep | None = None, number: int | None = None
    ) -> None:
        deadline = time.monotonic() + 300
        while True:
            for line in self.log.read_text().splitlines():
                pid, period, name = line.split()
                if int(pid) == process.pid and step in (None, PeriodStep[name]) and number in (None, int(period)):
                    return
            assert process.poll() is None, self.stderr_tail()
            assert time.monotonic() < deadline, "the process does not reach the step"
            time.sleep(0.02)

    def stderr_tail(self) -> str:
        return (self.directory / "stderr").read_text()[-3000:]

    def stop_all(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(60)

    def outputs(self) -> dict[int, tuple[int, list[Row]]]:
        """By period: the published attempt and its sorted rows."""
        found = published_outputs(self.zookeeper.connect, f"/{self.name}", "job")
        return {period.number: (one.attempt, rows_in(Path(one.output))) for period, one in found.items()}

    def rows(self) -> dict[int, list[Row]]:
        return {number: rows for number, (_, rows) in self.outputs().items()}

    def offsets(self) -> dict[str, int]:
        with KafkaStore(self.kraft.bootstrap) as store:
            return {str(tp): offset for tp, offset in offsets(store.fetch(self.name)).items()}


class Topic:
    """A topic with records of several periods in random order, and the expected rows of each period."""

    def __init__(self, bootstrap: str, name: str, periods: int, dice: random.Random) -> None:
        self.name = name
        times = [HOURLY.first_ms + dice.randrange(periods * HOUR_MS) for _ in range(periods * EACH)]
        times.sort(key=lambda at: at + dice.randrange(HOUR_MS // 2))
        for _ in range(3):
            times.insert(dice.randrange(len(times)), AHEAD)
        self.ends = [0] * PARTITIONS
        self.rows: dict[int, list[Row]] = {number: [] for number in range(periods)}
        producer = Producer({"bootstrap.servers": bootstrap})
        errors: list[object] = []
        for at in times:
            partition = dice.randrange(PARTITIONS)
            if at != AHEAD:
                self.rows[HOURLY.number_of(at)].append((name, partition, self.ends[partition], str(at)))
            self.ends[partition] += 1
            producer.produce(
                name, str(at), partition=partition, timestamp=at, on_delivery=lambda error, _: errors.append(error)
            )
        assert producer.flush(60) == 0
        assert errors == [None] * len(times)
        for rows in self.rows.values():
            rows.sort()


@pytest.fixture
def dice() -> random.Random:
    logging.getLogger("offsetmgr.tests").warning("seed: %d", SEED)
    return random.Random(SEED)


@pytest.fixture
def jobs() -> Iterator[list[Job]]:
    started: list[Job] = []
    yield started
    for job in started:
        job.stop_all()


def test_a_job_killed_or_frozen_at_any_step_produces_the_rows_of_an_undisturbed_job(
    kraft: KraftBroker,
    zookeeper: ZooKeeperServer,
    make_topic: MakeTopic,
    unique: str,
    tmp_path: Path,
    dice: random.Random,
    jobs: list[Job],
) -> None:
    steps = list(PeriodStep)
    kills = steps if SOAK else dice.sample(steps, 1)
    # After the last three steps a resumed process has nothing left to do that could cause harm.
    freezes = steps if SOAK else dice.sample(steps[:-3], 1)
    periods = len(kills) + len(freezes)
    topic = Topic(
        kraft.bootstrap, make_topic(unique, PARTITIONS, bootstrap=kraft.bootstrap, config=KEPT), periods, dice
    )
    job = Job(kraft, zookeeper, f"{unique}-disturbed", topic.name, tmp_path)
    jobs.append(job)
    undisturbed = Job(kraft, zookeeper, f"{unique}-undisturbed", topic.name, tmp_path)
    jobs.append(undisturbed)
    if SOAK:
        undisturbed.start(periods)

    for number, step in enumerate(kills):
        killed = job.start(number + 1, (step, number, signal.SIGKILL))
        assert killed.wait(300) == -signal.SIGKILL, job.stderr_tail()
    for number, step in enumerate(freezes, start=len(kills)):
        frozen = job.start(number + 1, (step, number, signal.SIGSTOP))
        job.wait_for_step(frozen, step, number)
        successor = job.start(number + 1)
        if dice.random() < 0.5:  # resumed while its successor runs
            job.wait_for_step(successor)
            os.killpg(frozen.pid, signal.SIGCONT)
            assert successor.wait(300) == 0, job.stderr_tail()
            frozen.wait(300)
        else:  # resumed after its successor is done
            assert successor.wait(300) == 0, job.stderr_tail()
            before = job.outputs()[number], job.offsets()
            os.killpg(frozen.pid, signal.SIGCONT)
            frozen.wait(300)
            assert job.outputs()[number] == before[0]
            assert all(offset >= before[1][partition] for partition, offset in job.offsets().items())

    assert job.rows() == topic.rows
    assert job.offsets() == {f"{topic.name}-{n}": fault for n, fault in enumerate(topic.ends)}
    if SOAK:
        assert undisturbed.processes[0].wait(300) == 0
        assert job.rows() == undisturbed.rows()
        assert job.offsets() == undisturbed.offsets()
