"""Kafka's tools read our snapshot files, and we read theirs, on real servers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import MakeTopic
from kazoo_client import connected

from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer, java_tool
from offsetmgr.snapshots.base import GroupEntry, SnapshotHeader
from offsetmgr.stores.kafka import KafkaStore
from offsetmgr.stores.snapshot import SnapshotStore, write_snapshot
from offsetmgr.stores.zookeeper import ZookeeperStore

pytestmark = [pytest.mark.servers, pytest.mark.matrix]

GROUPS_TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
LONG_TIMEOUT = ("--timeout", "30000")
"""The tool's default of 5 s is too short for a JVM that has just started on a busy machine."""


def reset_from_file(kafka: KafkaBroker, path: Path, *groups: str) -> str:
    arguments = [
        "--bootstrap-server",
        kafka.bootstrap,
        *LONG_TIMEOUT,
        "--reset-offsets",
        "--from-file",
        str(path),
        "--execute",
    ]
    for group in groups:
        arguments += ["--group", group]
    done = java_tool("kafka-3.9", GROUPS_TOOL, arguments)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout + done.stderr


def export(kafka: KafkaBroker, topics: list[str], *groups: str) -> bytes:
    """The CSV that the tool prints for a reset of these groups to their current offsets."""
    arguments = [
        "--bootstrap-server",
        kafka.bootstrap,
        *LONG_TIMEOUT,
        "--reset-offsets",
        "--to-current",
        "--export",
        "--dry-run",
    ]
    for topic in topics:
        arguments += ["--topic", topic]
    for group in groups:
        arguments += ["--group", group]
    done = java_tool("kafka-3.9", GROUPS_TOOL, arguments)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout.encode()


def offsets(store: KafkaStore | ZookeeperStore | SnapshotStore, group: str) -> dict[TopicPartition, int]:
    return {tp: c.offset for tp, c in store.fetch(group).items() if isinstance(c, Committed)}


def filled(kafka: KafkaBroker, make_topic: MakeTopic, name: str, partitions: int, records: int) -> str:
    """A topic whose partitions hold this many records each, so that resets find their offsets inside the log."""
    from confluent_kafka import Producer

    topic = make_topic(name, partitions)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for partition in range(partitions):
        for _ in range(records):
            producer.produce(topic, b"x", partition=partition)
    assert producer.flush(60) == 0
    return topic


def test_our_csv_of_several_groups_is_accepted_by_kafka_consumer_groups(
    kafka: KafkaBroker, make_topic: MakeTopic, unique: str, tmp_path: Path
) -> None:
    dotted = filled(kafka, make_topic, f"{unique}.with.dots-and-dashes", 2, 10)
    longest = filled(kafka, make_topic, f"{unique}-".ljust(249, "x"), 1, 10)
    plain, odd = f"{unique}-plain", f'{unique}, "quoted" ü'
    expected = {
        plain: {TopicPartition(dotted, 0): 3, TopicPartition(dotted, 1): 4},
        odd: {TopicPartition(dotted, 1): 5, TopicPartition(longest, 0): 6},
    }
    entries = [GroupEntry(g, {tp: Committed(o) for tp, o in committed.items()}) for g, committed in expected.items()]
    with KafkaStore(kafka.bootstrap) as store:
        for group in expected:  # the tool accepts only groups that exist
            store.commit(group, {TopicPartition(dotted, 0): OffsetAndMetadata(1)})

        write_snapshot(tmp_path / "s.csv", SnapshotHeader.new(), entries)
        reset_from_file(kafka, tmp_path / "s.csv", plain, odd)

        assert offsets(store, plain) == expected[plain]
        assert offsets(store, odd) == {TopicPartition(dotted, 0): 1, **expected[odd]}


def test_our_csv_of_one_group_is_accepted_by_kafka_consumer_groups(
    kafka: KafkaBroker, make_topic: MakeTopic, unique: str, tmp_path: Path
) -> None:
    topic = filled(kafka, make_topic, unique, 2, 10)
    expected = {TopicPartition(topic, 0): 7, TopicPartition(topic, 1): 8}
    with KafkaStore(kafka.bootstrap) as store:
        store.commit(unique, {TopicPartition(topic, 0): OffsetAndMetadata(1)})

        entry = GroupEntry(unique, {tp: Committed(o) for tp, o in expected.items()})
        write_snapshot(tmp_path / "s.csv", SnapshotHeader.new(), [entry], group=unique)
        reset_from_file(kafka, tmp_path / "s.csv", unique)

        assert offsets(store, unique) == expected


def test_an_export_of_kafka_consumer_groups_is_read(
    kafka: KafkaBroker, make_topic: MakeTopic, unique: str, tmp_path: Path
) -> None:
    dotted = filled(kafka, make_topic, f"{unique}.with.dots-and-dashes", 2, 10)
    longest = filled(kafka, make_topic, f"{unique}-".ljust(249, "x"), 1, 10)
    plain, odd = "g", f'{unique}, "quoted" ü'
    committed = {TopicPartition(dotted, 0): 3, TopicPartition(dotted, 1): 4, TopicPartition(longest, 0): 5}
    with KafkaStore(kafka.bootstrap) as store:
        for group in (plain, odd):
            store.commit(group, {tp: OffsetAndMetadata(o) for tp, o in committed.items()})
    several, one = tmp_path / "several.csv", tmp_path / "one.csv"

    several.write_bytes(export(kafka, [dotted, longest], plain, odd))
    one.write_bytes(export(kafka, [dotted, longest], odd))

    assert several.read_bytes().endswith(b"\n\n")
    assert {g: offsets(SnapshotStore(several), g) for g in SnapshotStore(several).groups()} == {
        plain: committed,
        odd: committed,
    }
    assert offsets(SnapshotStore(one, group=odd), odd) == committed


def test_an_export_of_export_zk_offsets_is_read(zookeeper: ZooKeeperServer, unique: str, tmp_path: Path) -> None:
    chroot = f"{zookeeper.connect}/{unique}"
    topic = "a.b-c".ljust(249, "x")
    committed = {TopicPartition(topic, 0): 5, TopicPartition(topic, 11): 2**63 - 1, TopicPartition("t", 0): 0}
    groups = ["my.group-1", "other"]
    _with_topics(chroot, committed)
    with ZookeeperStore(chroot) as store:
        for group in groups:
            store.commit(group, {tp: OffsetAndMetadata(o) for tp, o in committed.items()})
    exported = tmp_path / "theirs.zk"

    arguments = ["--zkconnect", chroot, "--output-file", str(exported)]
    for group in groups:
        arguments += ["--group", group]
    done = java_tool("kafka-0.10.2", "kafka.tools.ExportZkOffsets", arguments)

    assert done.returncode == 0, done.stderr
    assert {g: offsets(SnapshotStore(exported), g) for g in SnapshotStore(exported).groups()} == dict.fromkeys(
        groups, committed
    )


def test_our_zk_snapshot_is_accepted_by_import_zk_offsets(
    zookeeper: ZooKeeperServer, unique: str, tmp_path: Path
) -> None:
    chroot = f"{zookeeper.connect}/{unique}"
    topic = "a.b-c".ljust(249, "x")
    committed = {TopicPartition(topic, 0): 5, TopicPartition(topic, 11): 2**63 - 1, TopicPartition("t", 0): 0}
    _with_topics(chroot, committed)
    with ZookeeperStore(chroot) as store:
        entries = [GroupEntry(g, {tp: Committed(o) for tp, o in committed.items()}) for g in ("my.group-1", "other")]
        write_snapshot(tmp_path / "ours.zk", SnapshotHeader.new(), entries)

        arguments = ["--zkconnect", chroot, "--input-file", str(tmp_path / "ours.zk")]
        done = java_tool("kafka-0.10.2", "kafka.tools.ImportZkOffsets", arguments)

        assert done.returncode == 0, done.stderr
        assert offsets(store, "my.group-1") == committed
        assert offsets(store, "other") == committed


def _with_topics(chroot: str, committed: dict[TopicPartition, int]) -> None:
    """Creates the chroot and ``/brokers/topics``, from which ExportZkOffsets reads the partitions."""
    with connected(chroot) as client:
        client.ensure_path("/")
        for topic in {tp.topic for tp in committed}:
            partitions = {str(tp.partition): [0] for tp in committed if tp.topic == topic}
            data = json.dumps({"version": 1, "partitions": partitions}).encode()
            client.create(f"/brokers/topics/{topic}", data, makepath=True)
