"""Helpers of the migration benchmarks: real servers full of groups, and pairs of commands timed in alternation."""

from __future__ import annotations

import compileall
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import offsetmgr
from offsetmgr import OffsetAndMetadata, TopicPartition, open_store
from offsetmgr.core.offset_store import Change, GroupEdit
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer, jars
from offsetmgr.sandbox.broker import DEFAULT_VERSION
from offsetmgr.sandbox.java import java_command

TOPIC = "bench"
SERVER_JVM = ("-Xmx1g", "-XX:+UseG1GC")
TOOL_JVM = ("-Xmx512m", "-XX:+UseG1GC")  # the settings of Kafka's own scripts, with a larger heap for the responses
CONSUMER_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
OFFSETMGR = str(Path(sys.executable).with_name("offsetmgr"))


@dataclass
class Side:
    """One side of a comparison: its name, its commands, and the times of its runs in seconds. ``check`` is called after
    each run and is not measured."""

    name: str
    run: Callable[[], None]
    check: Callable[[], None] = lambda: None
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


@dataclass
class Comparison:
    """A comparison of the peer with offsetmgr. ``bound`` is the minimum ratio of the peer's median time to ours."""

    name: str
    bound: float
    peer: Side
    own: Side
    before: Callable[[], None] = lambda: None

    def measure(self, rounds: int) -> bool:
        for number in range(rounds + 1):
            for side in (self.peer, self.own):
                self.before()
                started = time.perf_counter()
                side.run()
                duration_s = time.perf_counter() - started
                side.check()
                if number:
                    side.seconds.append(duration_s)
        ratio = self.peer.median / self.own.median
        pairs = sorted(p / o for p, o in zip(self.peer.seconds, self.own.seconds, strict=True))
        print(
            f"{self.name:<28} {self.peer.median:8.2f} s  {self.own.median:7.3f} s  {ratio:6.1f}x"
            f"  (bound {self.bound:.3g}x; pairs {pairs[0]:.1f}..{pairs[-1]:.1f})"
            f"  {'ok' if ratio >= self.bound else 'TOO SLOW'}",
            flush=True,
        )
        return ratio >= self.bound


def run_offsetmgr(*arguments: str, stdout: Path | None = None, codes: tuple[int, ...] = (0,)) -> None:
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
    """The servers, and the groups in them."""

    directory: Path
    kafka: KafkaBroker
    groups: list[str]
    partitions: int

    def __post_init__(self) -> None:
        self.zk = f"zookeeper://{self.kafka.zookeeper}"
        self.kafka_uri = f"kafka://{self.kafka.bootstrap}"
        self.count = 0

    @property
    def chroot(self) -> str:
        """ZooKeeper's address in the format of Kafka's own tools."""
        return self.kafka.zookeeper

    def fresh(self, suffix: str) -> Path:
        self.count += 1
        return self.directory / f"{self.count}{suffix}"

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

    def reset_from_file(self, csv: Path) -> None:
        """Writes the offsets of a file to Kafka with the tool of 3.9.1."""
        tool(
            "kafka-3.9", CONSUMER_GROUPS,
            "--bootstrap-server", self.kafka.bootstrap, "--reset-offsets", "--from-file", str(csv), "--execute",
            *[a for g in self.groups for a in ("--group", g)],
        )  # fmt: skip

    def migrate_with_tools(self) -> None:
        """Copies the offsets from ZooKeeper to Kafka with Kafka's own tools."""
        exported, csv = self.fresh(".zk"), self.fresh(".csv")
        self.export_zk(exported)
        self.as_csv(exported, csv)
        self.reset_from_file(csv)

    def migrate(self) -> None:
        """Copies the offsets from ZooKeeper to Kafka with offsetmgr: plan, apply and verify."""
        plan = str(self.fresh(".json"))
        run_offsetmgr("migrate", "plan", "--from", self.zk, "--to", self.kafka_uri, "--all-groups", "-o", plan)
        run_offsetmgr("migrate", "apply", plan, "--yes")
        run_offsetmgr("migrate", "verify", plan)

    def export_zk(self, output: Path) -> None:
        tool(
            "kafka-0.10.2", "kafka.tools.ExportZkOffsets",
            "--zkconnect", self.chroot, "--output-file", str(output),
        )  # fmt: skip

    def as_csv(self, exported: Path, csv: Path) -> None:
        """Converts ExportZkOffsets' lines to the format that kafka-consumer-groups reads, as ``sed`` would."""
        with csv.open("w") as out:
            for line in exported.read_text().splitlines():
                if line.strip():
                    path, _, offset = line.rpartition(":")
                    _, _, group, _, topic, partition = path.split("/")
                    out.write(f"{group},{topic},{partition},{offset}\n")

    def import_zk(self, file: Path) -> None:
        tool(
            "kafka-0.10.2", "kafka.tools.ImportZkOffsets",
            "--zkconnect", self.chroot, "--input-file", str(file),
        )  # fmt: skip


@contextmanager
def servers(
    groups: int, partitions: int, version: str = DEFAULT_VERSION, config: Mapping[str, object] | None = None
) -> Iterator[Bench]:
    """Runs a ZooKeeper with the groups, and a broker of this release with only their topic."""
    with tempfile.TemporaryDirectory(prefix="offsetmgr-bench-") as name:
        directory = Path(name)
        with (
            ZooKeeperServer(directory / "zookeeper", jvm=SERVER_JVM) as zookeeper,
            KafkaBroker(
                directory / "kafka",
                zookeeper=f"{zookeeper.connect}/kafka",
                config=config,
                jvm=SERVER_JVM,
                version=version,
            ) as kafka,
        ):
            bench = Bench(directory, kafka, [f"bench-{n:05}" for n in range(groups)], partitions)
            bench.make_topic()
            bench.fill(bench.zk)
            yield bench


def compiled() -> None:
    """Compiles offsetmgr, as pip does when it installs a package: the peer's jars are not compiled at each start."""
    compileall.compile_dir(Path(offsetmgr.__file__).parent, quiet=2)
