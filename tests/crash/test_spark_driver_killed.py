"""A streaming job whose driver and JVM are killed (SIGKILL) and restarted repeatedly.

Half of the kills come from a fault point between a batch's output and its commit, half from outside at a random moment.
After every second kill the checkpoint is deleted, and then the job starts from the group's committed offsets.
"""

import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from committed_offsets import offsets
from processes import fill
from streaming_queries import finished

from offsetmgr.stores.uri import open_store

pytestmark = [pytest.mark.servers, pytest.mark.matrix]

KILLS = 10 if os.environ.get("OFFSETMGR_SOAK") else 2
SEED = int(os.environ.get("OFFSETMGR_SEED") or time.time_ns() % 1_000_000)
JOB = Path(__file__).parents[2] / "scripts" / "demo_spark_job.py"
PARTITIONS = 3
BATCH = 60
RECORDS = BATCH * 4 * (KILLS + 1)

Record = tuple[str, int, int]


class Job:
    def __init__(self, bootstrap: str, name: str, directory: Path) -> None:
        self.name = name
        self.bootstrap = bootstrap
        self.checkpoint = directory / "checkpoint"
        self.output = directory / "output.jsonl"
        self.output.touch()
        self.runs: list[subprocess.Popen[bytes]] = []

    def start(self, *, die_in: int | None = None) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(JOB), "--bootstrap-server", self.bootstrap, "--group", self.name]
        command += ["--topic", self.name, "--checkpoint", str(self.checkpoint), "--output", str(self.output)]
        command += ["--batch-size", str(BATCH), "--until", str(RECORDS)]
        command += [] if die_in is None else ["--die-in", str(die_in)]
        with (self.output.parent / "log").open("ab") as log:
            # Its own process group, so that the kill reaches the JVM and the driver.
            run = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        self.runs.append(run)
        return run

    def stop_all(self) -> None:
        for run in self.runs:
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)
                run.wait(60)

    def batches(self) -> list[list[Record]]:
        lines = self.output.read_text().splitlines()
        return [[(r[0], r[1], r[2]) for r in json.loads(line)["records"]] for line in lines]

    def planned(self) -> int:
        """The number of the next batch that is not in the checkpoint."""
        found = [int(path.name) for path in (self.checkpoint / "offsets").glob("*") if path.name.isdigit()]
        return max(found, default=-1) + 1

    def committed(self) -> dict[str, int]:
        with open_store(f"kafka://{self.bootstrap}") as store:
            return {str(tp): offset for tp, offset in offsets(store.fetch(self.name)).items()}


def run_and_kill(job: Job, draw: random.Random, at_fault_point: bool) -> None:
    """Runs the job until SIGKILL ends it, after it has written at least one batch."""
    before = len(job.batches())
    if at_fault_point:
        run = job.start(die_in=job.planned() + draw.randrange(3))
        assert run.wait(240) == -signal.SIGKILL, (job.output.parent / "log").read_text()[-2000:]
    else:
        run = job.start()
        while len(job.batches()) == before:
            assert run.poll() is None, (job.output.parent / "log").read_text()[-2000:]
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 0.5))  # a random moment of the kill
        os.killpg(run.pid, signal.SIGKILL)
        run.wait(60)
    assert len(job.batches()) > before


def test_no_record_is_lost_and_at_most_the_running_batch_is_repeated(kraft, make_topic, unique, tmp_path, request):
    logging.getLogger("offsetmgr.tests").warning("seed: %d", SEED)
    draw = random.Random(SEED)
    topic = make_topic(unique, PARTITIONS, bootstrap=kraft.bootstrap)
    fill(kraft.bootstrap, topic, *[RECORDS // PARTITIONS] * PARTITIONS)
    job = Job(kraft.bootstrap, topic, tmp_path)
    request.addfinalizer(job.stop_all)

    ends: list[int] = []
    for kill in range(KILLS):
        before = job.committed()
        run_and_kill(job, draw, at_fault_point=kill % 2 == 0)
        ends.append(len(job.batches()))
        # A checkpoint without a finished batch started from the group's offsets before this run.
        done = finished(job.checkpoint) or before
        ahead = {tp: offset for tp, offset in job.committed().items() if offset > done.get(tp, 0)}
        assert ahead == {}, "the group is ahead of its checkpoint"
        if kill % 2 == 0:
            shutil.rmtree(job.checkpoint)
    last = job.start()
    assert last.wait(300) == 0, (tmp_path / "log").read_text()[-2000:]

    # Every record was written, and only records of the last batch before a kill were written twice.
    batches = job.batches()
    expected = {(topic, n % PARTITIONS, n // PARTITIONS) for n in range(RECORDS)}
    times = Counter(record for batch in batches for record in batch)
    assert set(times) == expected, "a sink keyed by topic, partition and offset has each record once"
    begin = 0
    for end in [*ends, len(batches)]:
        written = {record for batch in batches[:begin] for record in batch}
        in_hand = set(batches[begin - 1]) if begin else set()
        repeated = written & {record for batch in batches[begin:end] for record in batch}
        assert repeated <= in_hand
        begin = end
    assert sum(times.values()) - len(times) <= KILLS * BATCH
    log_ends = {f"{topic}-{p}": RECORDS // PARTITIONS for p in range(PARTITIONS)}
    assert job.committed() == log_ends == finished(job.checkpoint)
