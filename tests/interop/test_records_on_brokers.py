"""Our reader decodes the records of Kafka's brokers, and Kafka's formatters and brokers read ours."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest
from conftest import MakeTopic
from processes import wait_for

from offsetmgr.core.model import Committed, GroupDescription, OffsetAndMetadata, TopicPartition
from offsetmgr.kafka.cluster.kafka_cluster import KafkaCluster
from offsetmgr.kafka.protocol.consumer_protocol import decode_assignment, decode_subscription
from offsetmgr.manager.partitioner import shard_for
from offsetmgr.records.base import EncodedRecord, GroupKey, GroupValue, OffsetKey, OffsetValue, UnknownKey
from offsetmgr.records.kafka import KEY_NAMES, KafkaRecordFormat
from offsetmgr.records.kafka_group import GroupMetadata, decode_group_metadata
from offsetmgr.sandbox import KafkaBroker, KraftBroker, OldConsumer, ZooKeeperServer, java_tool
from offsetmgr.sandbox.broker import DEFAULT_VERSION, KRAFT_JARS
from offsetmgr.stores.kafka import KafkaStore

pytestmark = [pytest.mark.servers, pytest.mark.matrix]

OFFSETS_TOPIC = "__consumer_offsets"
NOW = 1_700_000_000_000
record_format = KafkaRecordFormat()


def read_topic(bootstrap: str, topic: str) -> list[EncodedRecord]:
    """Every record that the topic holds now."""
    consumer = ck.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=60).topics[topic].partitions
        consumer.assign([ck.TopicPartition(topic, number, 0) for number in partitions])
        records: list[EncodedRecord] = []
        ended: set[int] = set()
        deadline = time.monotonic() + 120
        while len(ended) < len(partitions):
            assert time.monotonic() < deadline, f"{topic} was not read in 120 s"
            for message in consumer.consume(10_000, 0.2):
                error, partition, key = message.error(), message.partition(), message.key()
                assert partition is not None
                if error:
                    assert error.code() == ck.KafkaError._PARTITION_EOF, error
                    ended.add(partition)
                else:
                    assert key is not None
                    records.append((key, message.value()))
        return records
    finally:
        consumer.close()


class Decoded:
    """The decoded content of the offsets topic. Corrupt records and unknown versions raise an error."""

    def __init__(self, bootstrap: str) -> None:
        self.offsets: dict[tuple[str, str, int], OffsetValue | None] = {}
        self.groups: dict[str, GroupMetadata | None] = {}
        self.skipped: set[int] = set()
        for key, value in read_topic(bootstrap, OFFSETS_TOPIC):
            decoded, parts = record_format.decode_key(key), record_format.split(key)
            if isinstance(decoded, OffsetKey):
                assert parts == (record_format.offset_prefix(decoded.group, decoded.topic), decoded.partition)
                self.offsets[decoded] = None if value is None else record_format.decode_value(value)
                if value is not None:
                    assert record_format.read_offset(value)[0] == record_format.decode_value(value).offset
                continue
            assert parts is None
            if isinstance(decoded, GroupKey):
                self.groups[decoded.group] = None if value is None else decode_group_metadata(value)
            else:
                assert isinstance(decoded, UnknownKey)
                self.skipped.add(decoded.version)

    def of(self, group: str) -> dict[TopicPartition, Committed]:
        """A group's offsets in the form that a store returns."""
        return {
            TopicPartition(topic, partition): Committed(value.offset, value.metadata, value.leader_epoch)
            for (owner, topic, partition), value in self.offsets.items()
            if owner == group and value is not None
        }


@pytest.fixture
def bootstrap(current_broker: KafkaBroker | KraftBroker) -> str:
    return current_broker.bootstrap


@pytest.fixture
def topic(bootstrap: str, make_topic: MakeTopic, unique: str) -> str:
    """A topic of three partitions with five records in each."""
    name = make_topic(unique, 3, bootstrap=bootstrap)
    producer = ck.Producer({"bootstrap.servers": bootstrap})
    for n in range(15):
        producer.produce(name, b"x", partition=n % 3)
    assert producer.flush(60) == 0
    return name


@pytest.fixture
def store(bootstrap: str) -> Iterator[KafkaStore]:
    with KafkaStore(bootstrap) as store:
        yield store


def joined(bootstrap: str, topic: str, group: str, config: Mapping[str, object]) -> ck.Consumer:
    """A consumer that is a member of the group and has read all 15 records."""
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    consumer = ck.Consumer({**settings, "enable.auto.commit": False, **config})
    consumer.subscribe([topic])
    read = 0
    deadline = time.monotonic() + 120
    while read < 15:
        assert time.monotonic() < deadline, f"{read} of 15 records after 120 s"
        read += sum(message.error() is None for message in consumer.consume(15, 0.2))
    return consumer


def described(bootstrap: str, group: str) -> GroupDescription:
    """The Admin API's description of a group."""
    with KafkaCluster(bootstrap) as cluster:
        found = cluster.describe_groups([group])[group]
    assert isinstance(found, GroupDescription), found
    return found


# --- records of brokers ------------------------------------------------------------------------------


def test_decoded_offsets_and_tombstones_equal_the_brokers_fetch_response(
    bootstrap: str, store: KafkaStore, topic: str, unique: str
) -> None:
    remaining, deleted = f"{unique} ü", f"{unique}-deleted"
    offsets = {TopicPartition(topic, n): OffsetAndMetadata(n + 1, "by hand, ü" * n, (None, 0, 7)[n]) for n in range(3)}
    before = int(time.time() * 1000)
    store.commit(remaining, offsets)
    store.commit(deleted, offsets)
    store.delete(remaining, [TopicPartition(topic, 1)])
    store.delete(deleted)

    found = Decoded(bootstrap)

    assert found.of(remaining) == store.fetch(remaining)
    assert {tp.partition: c.offset for tp, c in found.of(remaining).items()} == {0: 1, 2: 3}
    assert found.of(remaining)[TopicPartition(topic, 2)] == Committed(3, "by hand, ü" * 2, 7)
    assert found.offsets[remaining, topic, 1] is None
    assert found.of(deleted) == {}
    assert {found.offsets[deleted, topic, n] for n in range(3)} == {None}
    stamped = found.offsets[remaining, topic, 0]
    assert stamped is not None
    assert before <= stamped.commit_timestamp <= time.time() * 1000
    assert stamped.expire_timestamp is None


def test_decoded_groups_equal_the_admin_clients_description(
    bootstrap: str, store: KafkaStore, topic: str, unique: str
) -> None:
    left, here = f"{unique}-left", f"{unique}-here"
    before = int(time.time() * 1000)
    gone = joined(bootstrap, topic, left, {})
    gone.commit(asynchronous=False)
    gone.close()
    member = joined(bootstrap, topic, here, {"client.id": "client ü", "group.instance.id": "static-1"})
    try:
        member.commit(asynchronous=False)

        found = Decoded(bootstrap)

        for group in (left, here):
            assert found.of(group) == store.fetch(group)
            assert {tp.partition: c.offset for tp, c in found.of(group).items()} == {0: 5, 1: 5, 2: 5}
        description = described(bootstrap, here)
        (theirs,) = description.members
        stored = found.groups[here]
        assert stored is not None
        assert (stored.protocol_type, stored.protocol) == ("consumer", description.partition_assignor)
        assert stored.leader == theirs.member_id
        assert stored.generation >= 1
        (ours,) = stored.members
        assert (ours.member_id, ours.client_host) == (theirs.member_id, f"/{theirs.host}")
        assert (ours.client_id, ours.group_instance_id) == (theirs.client_id, theirs.instance_id)
        assert ours.group_instance_id == "static-1"
        assert (ours.session_timeout_ms, ours.rebalance_timeout_ms) == (45_000, 300_000)
        assert decode_subscription(ours.subscription) == (topic,)
        assert decode_assignment(ours.assignment) == theirs.partitions
        assert theirs.partitions == tuple(TopicPartition(topic, n) for n in range(3))
    finally:
        member.close()
    empty = found.groups[left]
    assert empty is not None
    assert (empty.members, empty.protocol, empty.leader) == ((), None, None)
    assert empty.current_state_timestamp is not None
    assert before <= empty.current_state_timestamp <= time.time() * 1000


def test_records_of_the_new_consumer_protocol_are_skipped_by_name_and_its_offsets_are_read(
    kraft: KraftBroker, make_topic: MakeTopic, unique: str
) -> None:
    """The consumer protocol of KIP-848 has its own record types for groups."""
    topic = make_topic(unique, 3, bootstrap=kraft.bootstrap)
    producer = ck.Producer({"bootstrap.servers": kraft.bootstrap})
    for n in range(15):
        producer.produce(topic, b"x", partition=n % 3)
    assert producer.flush(60) == 0
    consumer = joined(kraft.bootstrap, topic, unique, {"group.protocol": "consumer"})
    consumer.commit(asynchronous=False)
    consumer.close()

    found = Decoded(kraft.bootstrap)

    assert {tp: c.offset for tp, c in found.of(unique).items()} == {TopicPartition(topic, n): 5 for n in range(3)}
    assert found.skipped >= {3, 5, 6, 7, 8}
    assert {KEY_NAMES[version] for version in found.skipped} >= {"ConsumerGroupMetadata", "ConsumerGroupMemberMetadata"}
    assert unique not in found.groups


def test_commits_of_an_old_consumer_to_both_stores_are_decoded(
    kafka: KafkaBroker, zookeeper: ZooKeeperServer, make_topic: MakeTopic, unique: str, tmp_path: Path
) -> None:
    topic = make_topic(unique, 1)
    producer = ck.Producer({"bootstrap.servers": kafka.bootstrap})
    for _ in range(5):
        producer.produce(topic, b"x")
    assert producer.flush(60) == 0
    with (
        KafkaStore(kafka.bootstrap) as store,
        OldConsumer(
            tmp_path / "old", zookeeper=kafka.zookeeper, group=unique, topic=topic, offsets_storage="kafka",
            dual_commit=True, auto_commit_interval_ms=200,
        ),
    ):  # fmt: skip
        read = {TopicPartition(topic, 0): Committed(5)}
        wait_for(lambda: store.fetch(unique) == read, "commit of the old consumer")

    assert Decoded(kafka.bootstrap).of(unique) == read


# --- records of offsetmgr -----------------------------------------------------------------------------------


def written(group: str, topic: str) -> list[EncodedRecord]:
    """Every kind of record that `KafkaRecordFormat` writes."""
    return [
        *record_format.encode_commit(group, topic, [(0, 5, 3, "by hand, ü"), (1, 6, -1, "")], NOW, None),
        *record_format.encode_commit(group, topic, [(2, 7, 4, "m")], NOW, NOW + (1 << 40)),
        (record_format.offset_prefix(group, topic) + record_format.partition_suffix(9), None),
        record_format.encode_group(group, GroupValue(NOW)),
        (record_format.encode_group_key("gone"), None),
    ]


def produce(bootstrap: str, topic: str, partition: int, records: list[EncodedRecord]) -> None:
    # Only a client of this name may write into the brokers' own topics.
    producer = ck.Producer({"bootstrap.servers": bootstrap, "client.id": "__admin_client", "log_level": 0})
    failed: list[Any] = []
    for key, value in records:
        producer.produce(
            topic, key=key, value=value, partition=partition, on_delivery=lambda e, _: failed.append(e) if e else None
        )
    assert producer.flush(60) == 0
    assert failed == []


def printed(
    bootstrap: str, topic: str, formatter: str, count: int
) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Keys and values as Kafka's console consumer prints them."""
    arguments = ["--bootstrap-server", bootstrap, "--topic", topic, "--partition", "0", "--offset", "earliest"]
    arguments += ["--formatter", f"org.apache.kafka.tools.consumer.{formatter}", "--max-messages", str(count)]
    done = java_tool("kafka-3.9", "org.apache.kafka.tools.consumer.ConsoleConsumer", arguments)
    assert done.returncode == 0, done.stderr
    found, rest = [], done.stdout.strip()
    while rest:
        record, end = json.JSONDecoder().raw_decode(rest)
        assert record["key"].pop("version") in (1, 2)
        found.append((record["key"]["data"], record["value"] and record["value"]["data"]))
        rest = rest[end:].lstrip()
    return found


def test_kafkas_formatters_print_the_records_that_we_wrote(
    kafka: KafkaBroker, make_topic: MakeTopic, unique: str
) -> None:
    topic = make_topic(unique, config={"cleanup.policy": "compact"})
    records = written("group ü", "orders")
    produce(kafka.bootstrap, topic, 0, records)

    offsets = printed(kafka.bootstrap, topic, "OffsetsMessageFormatter", len(records))
    groups = printed(kafka.bootstrap, topic, "GroupMetadataMessageFormatter", len(records))

    key = {"group": "group ü", "topic": "orders"}
    plain = {"commitTimestamp": NOW}
    assert offsets == [
        (key | {"partition": 0}, plain | {"offset": 5, "leaderEpoch": 3, "metadata": "by hand, ü"}),
        (key | {"partition": 1}, plain | {"offset": 6, "leaderEpoch": -1, "metadata": ""}),
        (key | {"partition": 2}, plain | {"offset": 7, "metadata": "m", "expireTimestamp": NOW + (1 << 40)}),
        (key | {"partition": 9}, None),
    ]
    empty = {"protocolType": "consumer", "generation": 0, "protocol": None, "leader": None, "members": []}
    assert groups == [({"group": "group ü"}, empty | {"currentStateTimestamp": NOW}), ({"group": "gone"}, None)]


@pytest.mark.parametrize(
    "version", [DEFAULT_VERSION, *(pytest.param(one, marks=pytest.mark.soak) for one in KRAFT_JARS)]
)
def test_a_broker_loads_and_serves_the_records_that_we_wrote(version: str, tmp_path: Path, request: Any) -> None:
    """The broker's own offsets topic contains our records and a key of an unknown version."""
    group = "group ü"
    with ExitStack() as stack:
        broker: KafkaBroker | KraftBroker
        config = {"offsets.topic.num.partitions": 3}
        if version == DEFAULT_VERSION:
            zookeeper: ZooKeeperServer = request.getfixturevalue("zookeeper")
            connect = f"{zookeeper.connect}/{tmp_path.name}"
            broker = stack.enter_context(KafkaBroker(tmp_path / "kafka", zookeeper=connect, config=config))
        else:
            broker = stack.enter_context(KraftBroker(tmp_path / "kafka", config=config, version=version))
        make_topic: MakeTopic = request.getfixturevalue("make_topic")
        topic = make_topic("orders", 3, bootstrap=broker.bootstrap)
        with KafkaStore(broker.bootstrap) as store:
            store.commit("first", {TopicPartition(topic, 0): OffsetAndMetadata(1)})  # makes the broker create its topic
        produce(broker.bootstrap, OFFSETS_TOPIC, shard_for(group, 3), [(b"\x4f\x00?", b"?"), *written(group, topic)])

        broker.stop()
        broker.start()

        with KafkaStore(broker.bootstrap) as store:
            assert store.fetch(group) == {
                TopicPartition(topic, 0): Committed(5, "by hand, ü", 3),
                TopicPartition(topic, 1): Committed(6),
                TopicPartition(topic, 2): Committed(7, "m"),
            }
        assert described(broker.bootstrap, group).state == "EMPTY"
