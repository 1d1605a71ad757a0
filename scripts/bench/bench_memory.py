#!/usr/bin/env python
"""Peak memory of every bulk command over a million offsets, and how it grows with the number of groups.

Each command is a process of its own on one real ZooKeeper and one real broker; its peak resident memory and CPU time
are what the kernel reports when it ends.  The same commands run with a tenth of the groups first: the report adds the
growth for each 1,000 groups to the peak.

    scripts/bench/bench_memory.py [--groups 20000] [--partitions 50]

Exits with 1 if a command fails, needs more than 300 MB, or grows as if it held all offsets.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer

TOPIC = "bench"
RECORDS = 100
"""Number of records in each partition's log, so that all offsets below are in the log."""
MAX_MB = 300.0
MAX_GROWTH_MB = 2.0
"""Maximum growth for each 1,000 additional groups. Commands may hold names, positions and hashes of groups, but not
their offsets: those of 50 partitions at about 200 bytes each would take 10 MB."""
TIMEOUT_S = 900
OFFSETMGR = str(Path(sys.executable).with_name("offsetmgr"))


@dataclass(frozen=True, slots=True)
class Measured:
    """The kernel's resource usage of an ended process."""

    seconds: float
    cpu_seconds: float
    peak_mb: float
    code: int
    errors: str


def measured(command: Sequence[str], directory: Path, stdout: Path = Path(os.devnull)) -> Measured:
    """Runs a command, and returns its resource usage."""
    log = directory / "stderr"
    started = time.perf_counter()
    with log.open("wb") as errors, stdout.open("wb") as out:
        child = subprocess.Popen(
            command, stdout=out, stderr=errors, stdin=subprocess.DEVNULL,
            env={**os.environ, "XDG_STATE_HOME": str(directory)},
        )  # fmt: skip
        deadline = started + TIMEOUT_S
        while True:
            # wait() would not return the resources that the process used.
            pid, status, used = os.wait4(child.pid, os.WNOHANG)
            if pid:
                break
            if time.perf_counter() > deadline:
                child.kill()
                deadline = float("inf")
            time.sleep(0.005)
    child.returncode = os.waitstatus_to_exitcode(status)
    seconds, cpu_seconds = time.perf_counter() - started, used.ru_utime + used.ru_stime
    return Measured(seconds, cpu_seconds, used.ru_maxrss / 1024, child.returncode, log.read_text()[-1500:])


@dataclass
class Session:
    """The servers of one run, and the resource usage of each command, in order."""

    directory: Path
    zk: str
    kafka: str
    groups: int
    partitions: int
    few: Mapping[str, Measured] | None = None
    """The resource usage of the same commands with a tenth of the groups."""
    failed: bool = False
    measured: dict[str, Measured] = field(default_factory=dict)

    def run(self, name: str, *arguments: str) -> None:
        """Runs one offsetmgr command, and records its resource usage."""
        self.measured[name] = measured([OFFSETMGR, *arguments], self.directory)
        if self.few is not None:
            self.check_growth(name, self.measured[name], self.few[name])
        if self.measured[name].code != 0:
            self.failed = True
            print(f"{name} exited {self.measured[name].code}:\n{self.measured[name].errors}", flush=True)

    def check_growth(self, name: str, took: Measured, before: Measured) -> None:
        """Prints a command's row, with the growth since the run with a tenth of the groups."""
        growth = (took.peak_mb - before.peak_mb) / (self.groups - self.groups // 10) * 1000
        fits = took.peak_mb <= MAX_MB and growth <= MAX_GROWTH_MB
        self.failed |= not fits
        rate = self.groups * self.partitions / took.seconds
        print(
            f"{name:<26} {took.seconds:8.1f} {took.cpu_seconds:7.1f} {rate:10,.0f} {took.peak_mb:8.0f} {growth:16.2f}"
            f"  {'ok' if fits else 'TOO MUCH'}",
            flush=True,
        )

    def commands(self) -> None:
        zk, kafka = self.zk, self.kafka
        offsets, avro, lines, plan = (
            str(self.directory / name) for name in ("in.zk", "out.avro", "out.zk", "plan.json")
        )
        self.write_offsets(Path(offsets))
        self.run("offsets import, ZooKeeper", "offsets", "import", offsets, "--store", zk, "--execute", "--yes")
        self.run("offsets export .avro", "offsets", "export", avro, "--store", zk, "--all-groups")
        self.run("offsets export .zk", "offsets", "export", lines, "--store", zk, "--all-groups")
        if Path(lines).stat().st_size != Path(offsets).stat().st_size:
            sys.exit("the export differs from the import")
        self.run("groups list", "groups", "list", "--store", zk)
        self.run("offsets get", "offsets", "get", "--store", zk, "--all-groups")
        self.run("migrate plan", "migrate", "plan", "--from", zk, "--to", kafka, "--all-groups", "-o", plan)
        self.run("migrate apply", "migrate", "apply", plan, "--yes")
        self.run("migrate verify", "migrate", "verify", plan)
        self.run("offsets lag", "offsets", "lag", "--store", kafka, "--all-groups", "--format", "csv")
        self.run("offsets diff", "offsets", "diff", "--from", zk, "--to", kafka, "--all-groups")
        self.run("groups describe", "groups", "describe", "--store", kafka, "--all-groups", "--format", "csv")
        self.run("groups list, Kafka", "groups", "list", "--store", kafka)
        back = str(self.directory / "back.json")
        self.run("migrate plan, back", "migrate", "rollback", plan, "--reverse-plan", back)
        self.run("migrate rollback", "migrate", "rollback", plan, "--yes")
        self.run("offsets import, Kafka", "offsets", "import", avro, "--store", kafka, "--execute", "--yes")

    def write_offsets(self, path: Path) -> None:
        """Writes a snapshot in ExportZkOffsets' format, which is then imported into the empty ZooKeeper."""
        with path.open("w") as out:
            for group in range(self.groups):
                for partition in range(self.partitions):
                    offset = 1 + (group * 31 + partition * 7) % (RECORDS - 10)
                    out.write(f"/consumers/bench-{group:06}/offsets/{TOPIC}/{partition}:{offset}\n")


def fill_topic(bootstrap: str, partitions: int, topic: str = TOPIC) -> None:
    """Runs in a process of its own: its memory must not count as its parent's, or as that of the parent's children,
    since a child begins with its parent's pages."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(60)
    producer = Producer({"bootstrap.servers": bootstrap})
    for partition in range(partitions):
        for _ in range(RECORDS):
            producer.produce(topic, b"x", partition=partition)
        producer.poll(0)
    if producer.flush(60):
        sys.exit("the topic could not be filled")


@contextmanager
def session(groups: int, partitions: int) -> Iterator[Session]:
    with tempfile.TemporaryDirectory(prefix="offsetmgr-bench-") as name:
        directory = Path(name)
        with (
            ZooKeeperServer(directory / "zookeeper", jvm=("-Xmx3g",)) as zookeeper,
            KafkaBroker(directory / "kafka", zookeeper=f"{zookeeper.connect}/kafka", jvm=("-Xmx2g",)) as kafka,
        ):
            filling = multiprocessing.get_context("spawn").Process(
                target=fill_topic, args=(kafka.bootstrap, partitions)
            )
            filling.start()
            filling.join()
            if filling.exitcode:
                sys.exit("the topic could not be made")
            yield Session(
                directory, f"zookeeper://{zookeeper.connect}/kafka", f"kafka://{kafka.bootstrap}", groups, partitions
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=20_000)
    parser.add_argument("--partitions", type=int, default=50)
    args = parser.parse_args()
    few_groups = args.groups // 10
    with session(few_groups, args.partitions) as few:
        few.commands()
    print(f"{args.groups} groups of {args.partitions} partitions; growth from {few_groups} groups")
    print(f"{'':<26} {'seconds':>8} {'CPU s':>7} {'offsets/s':>10} {'peak MB':>8} {'MB/1,000 groups':>16}", flush=True)
    with session(args.groups, args.partitions) as many:
        many.few = few.measured
        many.commands()
    good = not (few.failed or many.failed)
    print(f"bounds: {MAX_MB:.0f} MB, and {MAX_GROWTH_MB:g} MB for each 1,000 groups more")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
