"""Kafka's tools read our snapshot files, and we read theirs, on real servers."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import pytest
from committed_offsets import offsets
from conftest import MakeTopic
from kazoo_client import connected
from processes import fill

from offsetmgr import OffsetAndMetadata, TopicPartition, open_store
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer, java_tool
from offsetmgr.stores.kafka import KafkaStore
from offsetmgr.stores.zookeeper import ZookeeperStore

pytestmark = [pytest.mark.servers, pytest.mark.matrix]

GROUPS_TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
LONG_TIMEOUT = ("--timeout", "30000")
"""The tool's default of 5 s is too short for a JVM that has just started on a busy machine."""
LONG = "a.b-c".ljust(249, "x")
IN_ZOOKEEPER = {TopicPartition(LONG, 0): 5, TopicPartition(LONG, 11): 2**63 - 1, TopicPartition("t", 0): 0}


def run_groups_tool(kafka: KafkaBroker, groups: Sequence[str], *arguments: str) -> str:
    named = [word for group in groups for word in ("--group", group)]
    reset = ["--bootstrap-server", kafka.bootstrap, *LONG_TIMEOUT, "--reset-offsets", *arguments, *named]
    done = java_tool("kafka-3.9", GROUPS_TOOL, reset)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def reset_from_file(kafka: KafkaBroker, path: Path, *groups: str) -> None:
    run_groups_tool(kafka, groups, "--from-file", str(path), "--execute")


def export(kafka: KafkaBroker, topics: list[str], *groups: str) -> bytes:
    """The CSV that the tool prints for a reset of these groups to their current offsets."""
    named = [word for topic in topics for word in ("--topic", topic)]
    return run_groups_tool(kafka, groups, "--to-current", "--export", "--dry-run", *named).encode()


def write(uri: str, committed: Mapping[str, Mapping[TopicPartition, int]]) -> None:
    with open_store(uri) as store:
        for group, found in committed.items():
            store.commit(group, {tp: OffsetAndMetadata(offset) for tp, offset in found.items()})


def read(uri: str) -> dict[str, dict[TopicPartition, int]]:
    with open_store(uri) as store:
        return {group: offsets(store.fetch(group)) for group in store.groups()}


def filled(kafka: KafkaBroker, make_topic: MakeTopic, name: str, partitions: int, records: int) -> str:
    """A topic whose partitions hold this many records each, so that resets find their offsets inside the log."""
    topic = make_topic(name, partitions)
    fill(kafka.bootstrap, topic, *[records] * partitions)
    return topic


def test_our_csv_of_several_groups_and_of_one_is_accepted_by_kafka_consumer_groups(kafka, make_topic, unique, tmp_path):
    dotted = filled(kafka, make_topic, f"{unique}.with.dots-and-dashes", 2, 10)
    longest = filled(kafka, make_topic, f"{unique}-".ljust(249, "x"), 1, 10)
    plain, odd = f"{unique}-plain", f'{unique}, "quoted" ü'
    expected = {
        plain: {TopicPartition(dotted, 0): 3, TopicPartition(dotted, 1): 4},
        odd: {TopicPartition(dotted, 1): 5, TopicPartition(longest, 0): 6},
    }
    with KafkaStore(kafka.bootstrap) as store:
        for group in expected:  # the tool accepts only groups that exist
            store.commit(group, {TopicPartition(dotted, 0): OffsetAndMetadata(1)})
        write(f"file:{tmp_path}/s.csv", expected)
        reset_from_file(kafka, tmp_path / "s.csv", plain, odd)
        assert offsets(store.fetch(plain)) == expected[plain]
        assert offsets(store.fetch(odd)) == {TopicPartition(dotted, 0): 1, **expected[odd]}

        one = {TopicPartition(dotted, 0): 7, TopicPartition(dotted, 1): 8}
        write(f"file:{tmp_path}/one.csv?group={plain}", {plain: one})
        reset_from_file(kafka, tmp_path / "one.csv", plain)
        assert offsets(store.fetch(plain)) == one


def test_an_export_of_kafka_consumer_groups_is_read(kafka, make_topic, unique, tmp_path):
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
    assert read(f"file:{several}") == {plain: committed, odd: committed}
    assert read(f"file:{one}?group={quote(odd, safe='')}") == {odd: committed}


def test_an_export_of_export_zk_offsets_is_read(zookeeper: ZooKeeperServer, unique: str, tmp_path: Path) -> None:
    chroot = f"{zookeeper.connect}/{unique}"
    groups = ["my.group-1", "other"]
    _with_topics(chroot)
    with ZookeeperStore(chroot) as store:
        for group in groups:
            store.commit(group, {tp: OffsetAndMetadata(o) for tp, o in IN_ZOOKEEPER.items()})
    exported = tmp_path / "theirs.zk"
    arguments = ["--zkconnect", chroot, "--output-file", str(exported)]
    for group in groups:
        arguments += ["--group", group]
    done = java_tool("kafka-0.10.2", "kafka.tools.ExportZkOffsets", arguments)
    assert done.returncode == 0, done.stderr
    assert read(f"file:{exported}") == dict.fromkeys(groups, IN_ZOOKEEPER)


def test_our_zk_snapshot_is_accepted_by_import_zk_offsets(zookeeper, unique, tmp_path):
    chroot = f"{zookeeper.connect}/{unique}"
    _with_topics(chroot)
    with ZookeeperStore(chroot) as store:
        write(f"file:{tmp_path}/ours.zk", dict.fromkeys(("my.group-1", "other"), IN_ZOOKEEPER))
        arguments = ["--zkconnect", chroot, "--input-file", str(tmp_path / "ours.zk")]
        done = java_tool("kafka-0.10.2", "kafka.tools.ImportZkOffsets", arguments)
        assert done.returncode == 0, done.stderr
        assert offsets(store.fetch("my.group-1")) == offsets(store.fetch("other")) == IN_ZOOKEEPER


def _with_topics(chroot: str) -> None:
    """Creates the chroot and ``/brokers/topics``, from which ExportZkOffsets reads the partitions."""
    with connected(chroot) as client:
        client.ensure_path("/")
        for topic in {tp.topic for tp in IN_ZOOKEEPER}:
            partitions = {str(tp.partition): [0] for tp in IN_ZOOKEEPER if tp.topic == topic}
            data = json.dumps({"version": 1, "partitions": partitions}).encode()
            client.create(f"/brokers/topics/{topic}", data, makepath=True)
