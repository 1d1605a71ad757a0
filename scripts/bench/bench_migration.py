#!/usr/bin/env python
"""Moves, exports, imports and lag of many groups, each as a ratio to Kafka's own tool in the same run.

Whole processes from start to exit are measured, on one real ZooKeeper and one real broker.  Every round runs each side
once, in turns; the first round warms both up and is thrown away; the median of the others is compared.

    scripts/bench/bench_migration.py [--groups 1000] [--partitions 50] [--rounds 3] [--only NAME ...]

Exits 1 where a ratio is below its bound.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import offsetmgr
from offsetmgr import OffsetAndMetadata, TopicPartition, open_store
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer, jars
from offsetmgr.sandbox.java import java_command
from offsetmgr.stores.base import Change, GroupEdit

TOPIC = "bench"
SERVER_JVM = ("-Xmx1g", "-XX:+UseG1GC")
TOOL_JVM = ("-Xmx512m", "-XX:+UseG1GC")  # what Kafka's own scripts give their tools, with room for the answers
OFFSETMGR = str(Path(sys.executable).with_name("offsetmgr"))


@dataclass
class Side:
    """One side of a comparison: a name, what is to be run, and its times in seconds."""

    name: str
    run: Callable[[], None]
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


@dataclass
class Comparison:
    """Peer against ours. ``bound`` is the least allowed ratio of the peer's median time to ours."""

    name: str
    bound: float
    peer: Side
    ours: Side
    before: Callable[[], None] = lambda: None

    def measure(self, rounds: int) -> bool:
        for number in range(rounds + 1):
            for side in (self.peer, self.ours):
                self.before()
                started = time.perf_counter()
                side.run()
                if number:
                    side.seconds.append(time.perf_counter() - started)
        ratio = self.peer.median / self.ours.median
        pairs = sorted(p / o for p, o in zip(self.peer.seconds, self.ours.seconds, strict=True))
        print(
            f"{self.name:<28} {self.peer.median:8.2f} s  {self.ours.median:7.3f} s  {ratio:6.1f}x"
            f"  (bound {self.bound:.3g}x; pairs {pairs[0]:.1f}..{pairs[-1]:.1f})"
            f"  {'ok' if ratio >= self.bound else 'TOO SLOW'}",
            flush=True,
        )
        return ratio >= self.bound


def ours(*arguments: str, stdout: Path | None = None, codes: tuple[int, ...] = (0,)) -> None:
    with (stdout or Path(os.devnull)).open("wb") as out:
        done = subprocess.run(
            [OFFSETMGR, *arguments], stdout=out, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, check=False
        )
    if done.returncode not in codes:
        sys.exit(f"offsetmgr {' '.join(arguments)} exited {done.returncode}:\n{done.stderr.decode()[-2000:]}")


def tool(jar_set: str, main_class: str, *arguments: str, stdout: Path | None = None) -> None:
    command = java_command([jars.resolve(jar_set)], main_class, arguments, jvm=TOOL_JVM)
    with (stdout or Path(os.devnull)).open("wb") as out:
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, check=False)
    if done.returncode != 0:
        sys.exit(f"{main_class} exited {done.returncode}:\n{done.stderr.decode()[-2000:]}")


@dataclass
class Bench:
    """The servers, the groups in them, and one method a comparison."""

    folder: Path
    zookeeper: ZooKeeperServer
    kafka: KafkaBroker
    groups: list[str]
    partitions: int

    def __post_init__(self) -> None:
        self.zk = f"zookeeper://{self.zookeeper.connect}/kafka"
        self.kafka_uri = f"kafka://{self.kafka.bootstrap}"
        self.count = 0

    def fresh(self, suffix: str) -> Path:
        self.count += 1
        return self.folder / f"{self.count}{suffix}"

    def offset(self, group: int, partition: int) -> int:
        return 1 + (group * 31 + partition * 7) % 90

    def make_topic(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap})
        admin.create_topics([NewTopic(TOPIC, self.partitions, 1)])[TOPIC].result(60)
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap})
        for partition in range(self.partitions):
            for _ in range(100):
                producer.produce(TOPIC, b"x", partition=partition)
            producer.poll(0)
        if producer.flush(60):
            sys.exit("the topic could not be filled")

    def edits(self) -> Iterator[GroupEdit]:
        for number, group in enumerate(self.groups):
            yield GroupEdit(
                group,
                {
                    TopicPartition(TOPIC, p): Change(OffsetAndMetadata(self.offset(number, p)), allow_rewind=True)
                    for p in range(self.partitions)
                },
            )

    def fill(self, uri: str) -> None:
        with open_store(uri) as store:
            for result in store.edit(self.edits()):
                if result.failures:
                    sys.exit(f"cannot fill {uri}: {result.failures}")

    def empty_kafka(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap})
        known = {g.group_id for g in admin.list_consumer_groups().result().valid} & set(self.groups)
        for group, future in admin.delete_consumer_groups(sorted(known)).items() if known else ():
            if future.exception():
                sys.exit(f"cannot delete group {group}: {future.exception()}")

    # --- the comparisons --------------------------------------------------------------------------

    def migrate(self) -> Comparison:
        def theirs() -> None:
            exported, csv = self.fresh(".zk"), self.fresh(".csv")
            self.export_zk(exported)
            self.as_csv(exported, csv)
            tool(
                "kafka-3.9", "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
                "--bootstrap-server", self.kafka.bootstrap, "--reset-offsets", "--from-file", str(csv), "--execute",
                *[a for g in self.groups for a in ("--group", g)],
            )  # fmt: skip

        def mine() -> None:
            plan = str(self.fresh(".json"))
            ours("migrate", "plan", "--from", self.zk, "--to", self.kafka_uri, "--all-groups", "-o", plan)
            ours("migrate", "apply", plan, "--yes")
            ours("migrate", "verify", plan)

        return Comparison("ZooKeeper to Kafka", 15, Side("tools", theirs), Side("migrate", mine), self.empty_kafka)

    def export_zk(self, output: Path) -> None:
        tool(
            "kafka-0.10.2", "kafka.tools.ExportZkOffsets",
            "--zkconnect", f"{self.zookeeper.connect}/kafka", "--output-file", str(output),
        )  # fmt: skip

    def as_csv(self, exported: Path, csv: Path) -> None:
        """ExportZkOffsets' lines in the form that kafka-consumer-groups reads (a shell's ``sed`` would do it)."""
        with csv.open("w") as out:
            for line in exported.read_text().splitlines():
                if line.strip():
                    path, _, offset = line.rpartition(":")
                    _, _, group, _, topic, partition = path.split("/")
                    out.write(f"{group},{topic},{partition},{offset}\n")

    def export(self) -> Comparison:
        return Comparison(
            "export from ZooKeeper", 12,
            Side("ExportZkOffsets", lambda: self.export_zk(self.fresh(".zk"))),
            Side("offsets export", lambda: ours(
                "offsets", "export", "--store", self.zk, "--all-groups", str(self.fresh(".zk"))
            )),
        )  # fmt: skip

    def import_(self) -> Comparison:
        exported = self.fresh(".zk")
        self.export_zk(exported)
        # Both write every node anew: before each run all offsets are moved back by one.
        lines = exported.read_text().splitlines()
        moved = self.fresh(".zk")
        moved.write_text("".join(f"{p}:{int(o) + 1000}\n" for p, _, o in (x.rpartition(":") for x in lines if x)))

        def theirs() -> None:
            tool(
                "kafka-0.10.2", "kafka.tools.ImportZkOffsets",
                "--zkconnect", f"{self.zookeeper.connect}/kafka", "--input-file", str(moved),
            )  # fmt: skip

        def mine() -> None:
            ours(
                "offsets", "import", str(moved), "--store", self.zk, "--execute", "--yes",
                "--before-image", str(self.fresh(".avro")),
            )  # fmt: skip

        return Comparison(
            "import to ZooKeeper", 12, Side("ImportZkOffsets", theirs), Side("offsets import", mine),
            lambda: self.fill(self.zk),
        )  # fmt: skip

    def lag(self) -> Comparison:
        self.empty_kafka()
        self.fill(self.kafka_uri)
        return Comparison(
            "lag of all groups", 6,
            Side("--describe --all-groups", lambda: self.describe("--all-groups")),
            Side("offsets lag", lambda: ours(
                "offsets", "lag", "--bootstrap-server", self.kafka.bootstrap, "--all-groups"
            )),
        )  # fmt: skip

    def describe_one(self) -> Comparison:
        self.empty_kafka()
        self.fill(self.kafka_uri)
        group = self.groups[len(self.groups) // 2]
        return Comparison(
            "describe one group", 1 / 0.7,
            Side("--describe --group", lambda: self.describe("--group", group)),
            Side("groups describe", lambda: ours(
                "groups", "describe", "--bootstrap-server", self.kafka.bootstrap, "--group", group
            )),
        )  # fmt: skip

    def describe(self, *which: str) -> None:
        tool(
            "kafka-3.9", "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
            "--bootstrap-server", self.kafka.bootstrap, "--describe", *which,
        )  # fmt: skip


@contextmanager
def servers(groups: int, partitions: int) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="offsetmgr-bench-") as name:
        folder = Path(name)
        with (
            ZooKeeperServer(folder / "zookeeper", jvm=SERVER_JVM) as zookeeper,
            KafkaBroker(folder / "kafka", zookeeper=f"{zookeeper.connect}/kafka", jvm=SERVER_JVM) as kafka,
        ):
            bench = Bench(folder, zookeeper, kafka, [f"bench-{n:05}" for n in range(groups)], partitions)
            bench.make_topic()
            bench.fill(bench.zk)
            yield bench


def fsync_ms(folder: Path) -> float:
    """What the disk takes to keep a record: the tool that writes node by node waits for it each time."""
    taken = []
    with (folder / "fsync").open("wb", buffering=0) as file:
        for _ in range(200):
            file.write(b"x" * 100)
            started = time.perf_counter()
            os.fsync(file.fileno())
            taken.append(time.perf_counter() - started)
    return statistics.median(taken) * 1000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--partitions", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    names = {"migrate": Bench.migrate, "export": Bench.export, "import": Bench.import_, "lag": Bench.lag,
             "describe": Bench.describe_one}  # fmt: skip
    parser.add_argument("--only", nargs="+", choices=list(names), default=list(names))
    args = parser.parse_args()
    # As pip leaves an installed package: the peer's jars are not compiled at each start either.
    compileall.compile_dir(Path(offsetmgr.__file__).parent, quiet=2)
    print(f"{args.groups} groups of {args.partitions} partitions; medians of {args.rounds} rounds after one discarded")
    with tempfile.TemporaryDirectory(prefix="offsetmgr-bench-") as name:
        print(f"this disk keeps a record in {fsync_ms(Path(name)):.2f} ms; the slower, the larger the ratio of imports")
    print(f"{'':<28} {'peer':>10}  {'ours':>9}  {'ratio':>7}")
    with servers(args.groups, args.partitions) as bench:
        good = [names[name](bench).measure(args.rounds) for name in args.only]
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(json.dumps({"largest_child_process_mb": round(peak / 1024)}))
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
