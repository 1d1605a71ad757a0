"""Offsets read from the disks of killed brokers, and of a cluster that is lost.

With OFFSETMGR_SOAK a test kills a broker of each version 20 times, otherwise a 3.9 broker twice. OFFSETMGR_SEED sets
the seed of the moments of the kills.
"""

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import confluent_kafka as ck
import lost_cluster_load
import pytest
from conftest import MakeTopic
from everyday import Cli
from lost_cluster_load import PARTITIONS, fetch, groups_of
from processes import wait_for

from offsetmgr import Committed, OffsetAndMetadata, OffsetManager, TopicPartition
from offsetmgr.sandbox import KafkaBroker, KraftBroker, ZooKeeperServer

pytestmark = [pytest.mark.servers, pytest.mark.timeout(3600 if os.environ.get("OFFSETMGR_SOAK") else 900)]

Broker: TypeAlias = KafkaBroker | KraftBroker
Offsets: TypeAlias = dict[tuple[str, str, int], tuple[int, str]]
"""By group, topic and partition: the offset and its metadata."""

SOAK = bool(os.environ.get("OFFSETMGR_SOAK"))
KILLS = 20 if SOAK else 2
VERSIONS = ["kafka-3.9", "kafka-4.4"] if SOAK else ["kafka-3.9"]
KINDS = {"stays", "expires", "deleted", "aborted", "committed", "member"}
BUSY = {
    "offsets.topic.num.partitions": 3,
    "offsets.retention.check.interval.ms": 1000,
    "transaction.state.log.num.partitions": 3,
    "log.cleaner.backoff.ms": 100,
    "log.cleaner.min.cleanable.ratio": 0.01,
    "log.cleaner.delete.retention.ms": 100,
}
"""The configuration of a broker that compacts and expires offsets continuously."""


def small(segment: int) -> dict[str, object]:
    """`BUSY` with a segment size in bytes."""
    return {**BUSY, "offsets.topic.segment.bytes": segment}


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


@pytest.fixture(params=VERSIONS)
def broker(request: pytest.FixtureRequest, tmp_path: Path, unique: str) -> Iterator[Broker]:
    """A separate broker, which the test kills."""
    found: Broker
    if request.param == "kafka-3.9":
        zookeeper: ZooKeeperServer = request.getfixturevalue("zookeeper")
        found = KafkaBroker(tmp_path / "broker", zookeeper=f"{zookeeper.connect}/{unique}", config=small(32 * 1024))
    else:
        found = KraftBroker(tmp_path / "broker", config=small(1024 * 1024))  # no smaller since 4.0
    with found:
        yield found


@contextmanager
def load(bootstrap: str, topic: str, seed: int, first: int, load_output: Path) -> Iterator[subprocess.Popen[bytes]]:
    script = lost_cluster_load.__file__
    with load_output.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, script, bootstrap, topic, str(seed), str(first)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.DEVNULL,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(90)


def acknowledged(load_output: Path) -> list[tuple[str, str, int]]:
    """The operations that the load has printed, without an incomplete last line."""
    lines = load_output.read_text().rpartition("\n")[0].splitlines()
    return [(kind, group, int(offset)) for kind, group, offset in (line.split() for line in lines)]


def cleaned(broker: Broker) -> bool:
    """Whether the log cleaner has compacted a partition of the offsets topic."""
    checkpoint = broker.directory / "data" / "cleaner-offset-checkpoint"
    lines = checkpoint.read_text().splitlines()[2:] if checkpoint.exists() else []
    return any(line.startswith("__consumer_offsets ") and not line.endswith(" 0") for line in lines)


def offsets_on_disk(cli: Cli, directory: Path, *more: str) -> Offsets:
    rows = cli.rows("log", "offsets", str(directory), *more)
    assert all(row["state"] == "committed" for row in rows)
    return {(r["group"], r["topic"], r["partition"]): (r["offset"], r["metadata"]) for r in rows}


def served_offsets(bootstrap: str, groups: list[str]) -> Offsets | None:
    """The offsets that the broker's coordinators serve, or None while one of them loads."""
    found: Offsets = {}
    for group in groups:
        answer = fetch(bootstrap, group)
        if answer is None:
            return None
        found |= {(group, *tp): one for tp, one in answer.items()}
    return found


@pytest.mark.matrix
def test_offsets_on_a_killed_brokers_disk_are_those_that_it_serves_after_a_restart(
    broker: Broker, cli: Cli, make_topic: MakeTopic, tmp_path: Path, unique: str
) -> None:
    seed = int(os.environ.get("OFFSETMGR_SEED", random.randrange(1 << 30)))
    sys.stdout.write(f"seed: {seed}\n")
    dice = random.Random(seed)
    topic = make_topic(unique, PARTITIONS, bootstrap=broker.bootstrap)
    produce(broker.bootstrap, topic, 50)
    expired = left_out = 0
    for kill in range(KILLS):
        load_output, disk = tmp_path / f"load_output-{kill}", tmp_path / "disk"
        kill_under_load(broker, topic, seed, kill, load_output, dice)
        shutil.rmtree(disk, ignore_errors=True)
        shutil.copytree(broker.directory / "data", disk)

        whole = offsets_on_disk(cli, disk)
        now = datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds")
        unexpired = offsets_on_disk(cli, disk, "--expired-at", now)
        broker.start()

        assert unexpired.items() <= whole.items()
        wait_until_served(broker, groups_of(topic), whole, unexpired)
        for kind, group, offset in acknowledged(load_output):
            if kind == "stays":
                assert all(unexpired[group, topic, n][0] >= offset for n in range(PARTITIONS)), (group, offset)
        expired += len(whole) - len(unexpired)
        left_out += len(groups_of(topic)) * PARTITIONS - len(whole)
    sys.stdout.write(f"{KILLS} kills; {expired} offsets had expired, {left_out} were deleted or never committed\n")


def kill_under_load(broker: Broker, topic: str, seed: int, kill: int, load_output: Path, dice: random.Random) -> None:
    """Kills the broker after every kind of load and the log cleaner have done some work."""

    def kinds() -> set[str]:
        return {kind for kind, *_ in acknowledged(load_output)}

    # After a kill the former member stays in its group until its session ends, so the new one may own no partition.
    needed = KINDS if kill == 0 else KINDS - {"member"}
    with load(broker.bootstrap, topic, seed + kill, 1 + kill * 1_000_000, load_output):
        wait_for(lambda: kinds() >= needed, "every kind of load is at work")
        wait_for(lambda: cleaned(broker), "the cleaner has been at work")
        rounds = len(acknowledged(load_output)) + dice.randrange(400)
        wait_for(lambda: len(acknowledged(load_output)) > rounds, "the load continues")
        broker.kill()


def wait_until_served(broker: Broker, groups: list[str], whole: Offsets, unexpired: Offsets) -> None:
    """Waits until the broker serves exactly the offsets on disk that have not expired.

    Until its expiration check has run, it may also serve expired offsets. Until it has written the markers of decided
    transactions, it may serve the offsets before them. It must never serve any other offset."""

    def of_transactions(offsets: Offsets) -> Offsets:
        return {key: one for key, one in offsets.items() if "-txn-" in key[0]}

    different: list[object] = []

    def equal() -> bool:
        found = served_offsets(broker.bootstrap, groups)
        different[:] = ["a coordinator loads"] if found is None else sorted(found.items() ^ unexpired.items())
        if found is None:
            return False
        plain = found.items() - of_transactions(found).items()
        assert plain <= whole.items(), sorted(plain - whole.items())[:5]
        assert found.items() >= unexpired.items() - of_transactions(unexpired).items(), (
            "every offset that has not expired is served"
        )
        return found == unexpired

    try:
        wait_for(equal, "the broker serves the offsets on disk")
    except AssertionError as late:
        late.add_note(f"different: {different[:10]}")
        raise


def produce(bootstrap: str, topic: str, count: int) -> None:
    """Produces this many numbered records to each partition."""
    producer = ck.Producer({"bootstrap.servers": bootstrap})
    for n in range(count):
        for partition in range(PARTITIONS):
            producer.produce(topic, f"{partition}:{n}".encode(), partition=partition)
    assert producer.flush(60) == 0


def consume(bootstrap: str, group: str, topic: str, count: int) -> list[str]:
    """Consumes this many records from the group's offsets (or the beginning), and commits."""
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    consumer = ck.Consumer({**settings, "enable.auto.commit": False, "enable.auto.offset.store": False})
    try:
        consumer.subscribe([topic])
        found: list[str] = []
        deadline = time.monotonic() + 120
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} records"
            message: Any = consumer.poll(0.5)
            if message is not None and message.error() is None:
                found.append(message.value().decode())
                consumer.store_offsets(message)
        consumer.commit(asynchronous=False)
        return found
    finally:
        consumer.close()


def test_consumers_of_a_lost_cluster_resume_on_another_at_their_offsets(kafka, cli, make_topic, tmp_path, unique):
    groups = {f"{unique}-{n}": 30 + 40 * n for n in range(2)}
    with KraftBroker(tmp_path / "lost", config={"offsets.topic.num.partitions": 5}) as lost:
        make_topic(unique, PARTITIONS, bootstrap=lost.bootstrap)
        produce(lost.bootstrap, unique, 40)
        before = {group: consume(lost.bootstrap, group, unique, count) for group, count in groups.items()}
        lost.kill()
    disk = tmp_path / "disk"
    shutil.move(tmp_path / "lost" / "data", disk)
    shutil.rmtree(tmp_path / "lost")
    make_topic(unique, PARTITIONS)
    produce(kafka.bootstrap, unique, 40)

    snapshot, plan = f"file:{tmp_path / 'saved.avro'}", str(tmp_path / "plan.json")
    new = f"kafka://{kafka.bootstrap}"
    cli("log", "offsets", str(disk), "--to", snapshot)
    copied = ("--translate", "none")  # the test produced the same records to the new cluster
    would = cli("log", "offsets", str(disk), "--to", new, *copied).stderr
    assert f"dry run: would change {len(offsets_on_disk(cli, disk))} offsets in 2 groups in {new}" in would
    cli("migrate", "plan", "--from", snapshot, "--to", new, "--all-groups", "-o", plan, *copied)
    cli("migrate", "apply", plan, "--yes")

    for group, count in groups.items():
        after = consume(kafka.bootstrap, group, unique, 40 * PARTITIONS - count)
        whole = sorted(f"{partition}:{n}" for partition in range(PARTITIONS) for n in range(40))
        assert sorted([*before[group], *after]) == whole, "every record is consumed exactly once"


def test_an_offset_managers_topic_on_disk_has_the_offsets_that_the_manager_serves(
    kafka: KafkaBroker, cli: Cli, make_topic: MakeTopic, tmp_path: Path, unique: str
) -> None:
    groups = [f"{unique}-{n}" for n in range(6)]
    topic = make_topic(f"{unique}.orders", PARTITIONS)
    partitions = [TopicPartition(topic, n) for n in range(PARTITIONS)]
    with OffsetManager(kafka.bootstrap, topic=unique, partitions=3, timeout_s=90) as manager:
        for offset in (1, 2):
            for group in groups:
                manager.commit(group, {tp: OffsetAndMetadata(offset, f"at {offset}") for tp in partitions})
        manager.delete(groups[1], partitions[:3])
        manager.delete(groups[2])
        expected = {(group, *tp): one for group in groups for tp, one in manager.fetch(group).items()}
    disk = tmp_path / "disk"
    disk.mkdir()
    for directory in (kafka.directory / "data").glob(f"{unique}-*"):
        shutil.copytree(directory, disk / directory.name)

    found = offsets_on_disk(cli, disk, "--offsets-topic", unique)

    assert found == {at: (one.offset, one.metadata) for at, one in expected.items() if isinstance(one, Committed)}
    assert len(found) == 4 * PARTITIONS + 1

    # The command can also write the offsets to another store, as offsets import does.
    into = ["--to", f"kafka://{kafka.bootstrap}", "--execute", "--yes"]
    imported = cli("log", "offsets", str(disk), "--offsets-topic", unique, *into)
    assert f"done: {len(found)} changed" in imported.stderr
    rows = cli.rows("offsets", "get", "--bootstrap-server", kafka.bootstrap, "--group", f"{unique}-*")
    assert {(r["group"], r["topic"], r["partition"]): (r["offset"], r["metadata"]) for r in rows} == found
