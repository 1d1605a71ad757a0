"""Examples from documents about Kafka's ZooKeeper directories: as printed, corrected, and decoded.

An example that is not a valid node is kept twice: ``printed`` must be rejected with its path, and ``corrected`` has the
intended content. Sources: Kafka's documentation of 0.7 and 0.10.1 ("ZooKeeper Directories"), and two articles on
0.8 ("a" and "b").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from offsetmgr.core.model import TopicPartition
from offsetmgr.zookeeper.nodes.admin import (
    PartitionList,
    Reassignments,
    TopicNames,
    parse_preferred_election,
    parse_reassignments,
    parse_topic_deletions,
)
from offsetmgr.zookeeper.nodes.brokers import BrokerEndpoint, RegisteredBroker, parse_broker
from offsetmgr.zookeeper.nodes.cluster import Controller, parse_cluster_id, parse_controller, parse_controller_epoch
from offsetmgr.zookeeper.nodes.configs import EntityConfig, parse_config
from offsetmgr.zookeeper.nodes.consumers import ConsumerRegistration, OwnerThread, parse_owner, parse_registration
from offsetmgr.zookeeper.nodes.offset_data import parse_decimal
from offsetmgr.zookeeper.nodes.topics import (
    PartitionState,
    TopicAssignment,
    parse_partition_count,
    parse_partition_state,
    parse_topic,
)


@dataclass(frozen=True)
class Example:
    """One example. ``printed`` is None if the document's text is valid as printed, or is only a schema."""

    name: str
    path: str
    parse: Callable[[str, bytes], Any]
    corrected: str
    value: Any
    printed: str | None = None


def broker(path: str, data: bytes) -> RegisteredBroker:
    return parse_broker(path, int(path.rpartition("/")[2]), data)


EXAMPLES: Final = [
    # 0.7
    Example(
        "0.7 broker",
        "/brokers/ids/0",
        broker,
        "host:9092",
        RegisteredBroker(0, (BrokerEndpoint("PLAINTEXT", "host", 9092),)),
        "host:port",
    ),
    Example("0.7 topic", "/brokers/topics/orders/0", parse_partition_count, "4", 4, "nPartions"),
    Example(
        "0.7 consumer",
        "/consumers/foobar/ids/foobar_host:2ad5e6a8-9a0f-4fd1-8c9d-2f1f9c1b7a11",
        parse_registration,
        '{"topic1": 1, "topicN": 2}',
        ConsumerRegistration({"topic1": 1, "topicN": 2}, "static", None, None),
        '{"topic1": #streams, ..., "topicN": #streams}',
    ),
    Example("0.7 offset", "/consumers/foobar/offsets/topic1/0-1", parse_decimal, "1024", 1024, "offset_counter_value"),
    Example(
        "0.7 owner",
        "/consumers/foobar/owners/topic1/0-1",
        parse_owner,
        "foobar_host-1403061899859-1a2b3c4d-0",
        OwnerThread("foobar_host-1403061899859-1a2b3c4d", 0),
        "consumer_node_id",
    ),
    # 0.8, first article
    Example(
        "0.8-a topic",
        "/brokers/topics/orders",
        parse_topic,
        '{ "version": 1, "partitions": {"0": [1, 2],"1": [2, 1],"2": [1, 2]}}',
        TopicAssignment({0: (1, 2), 1: (2, 1), 2: (1, 2)}),
        '{ "version": 1, "partitions": {"0": [1, 2],"1": [2, 1],"2": [1, 2],}}',
    ),
    Example(
        "0.8-a partition state",
        "/brokers/topics/orders/partitions/0/state",
        parse_partition_state,
        '{ "controller_epoch": 1, "leader": 2, "version": 1, "leader_epoch": 0, "isr": [2, 1]}',
        PartitionState(leader=2, leader_epoch=0, isr=(2, 1), controller_epoch=1),
    ),
    Example(
        "0.8-a broker",
        "/brokers/ids/1",
        broker,
        '{ "jmx_port": 6061, "timestamp":"1403061899859", "version": 1, "host": "192.168.1.148", "port": 9092}',
        RegisteredBroker(
            1,
            (BrokerEndpoint("PLAINTEXT", "192.168.1.148", 9092),),
            version=1,
            timestamp_ms=1403061899859,
            jmx_port=6061,
        ),
        '{ "jmx_port": 6061, "timestamp":"1403061899859" "version": 1, "host": "192.168.1.148", "port": 9092}',
    ),
    Example("0.8-a controller epoch", "/controller_epoch", parse_controller_epoch, "1", 1, "int (epoch)"),
    Example(
        "0.8-a controller",
        "/controller",
        parse_controller,
        '{ "version": 1, "brokerid": 3, "timestamp": "1403061802981"}',
        Controller(3, 1403061802981),
    ),
    Example(
        "0.8 controller, bare", "/controller", parse_controller, "3", Controller(3), "int (broker id of the controller)"
    ),
    Example(
        "0.8-a consumer",
        "/consumers/push/ids/push_host-1411294187000-1a2b3c4d",
        parse_registration,
        '{"version": 1,"subscription": {"open_platform_opt_push_plus1": 5},"pattern": "static",'
        '"timestamp": "1411294187842"}',
        ConsumerRegistration({"open_platform_opt_push_plus1": 5}, "static", 1411294187842),
    ),
    Example(
        "0.8-a owner",
        "/consumers/push/owners/orders/0",
        parse_owner,
        "push_host-1411294187000-1a2b3c4d-4",
        OwnerThread("push_host-1411294187000-1a2b3c4d", 4),
        "consumerIdString + threadId索引编号",
    ),
    Example("0.8-a offset", "/consumers/push/offsets/orders/0", parse_decimal, "42", 42, "long (offset)"),
    Example(
        "0.8 reassignment",
        "/admin/reassign_partitions",
        parse_reassignments,
        '{ "version": 1, "partitions": [ { "topic": "Foo", "partition": 1, "replicas": [0, 1, 3] } ] }',
        Reassignments({TopicPartition("Foo", 1): (0, 1, 3)}),
    ),
    Example(
        "0.8 preferred election",
        "/admin/preferred_replica_election",
        parse_preferred_election,
        '{ "version": 1, "partitions": [ { "topic": "Foo", "partition": 1 }, { "topic": "Bar", "partition": 0 } ] }',
        PartitionList((TopicPartition("Foo", 1), TopicPartition("Bar", 0))),
    ),
    Example(
        "0.8 deletion",
        "/admin/delete_topics",
        parse_topic_deletions,
        '{ "version": 1, "topics": ["foo", "bar"]}',
        TopicNames(("foo", "bar")),
    ),
    Example(
        "0.8 topic config",
        "/config/topics/orders",
        parse_config,
        '{ "version": 1, "config": { "config.a": "x", "config.b": "y" }}',
        EntityConfig({"config.a": "x", "config.b": "y"}),
        '{ "version": 1, "config": { "config.a": "x", "config.b": "y", ... }}',
    ),
    # 0.8, second article
    Example(
        "0.8-b topic",
        "/brokers/topics/topic2",
        parse_topic,
        '{\n"version": 1,\n"partitions": {\n"2": [1, 2, 3],\n"1": [0, 1, 2],\n"0": [3, 0, 1]\n}\n}',
        TopicAssignment({0: (3, 0, 1), 1: (0, 1, 2), 2: (1, 2, 3)}),
        '{\n"version": 1,\n"partitions": {\n"2": [1, 2, 3],\n"1": [0, 1, 2],\n"0": [3, 0, 1],\n}\n}',
    ),
    Example(
        "0.8-b partition state",
        "/brokers/topics/topic2/partitions/0/state",
        parse_partition_state,
        '{\n"controller_epoch": 1,\n"leader": 3,\n"version": 1,\n"leader_epoch": 0,\n"isr": [3, 0, 1]\n}',
        PartitionState(leader=3, leader_epoch=0, isr=(3, 0, 1), controller_epoch=1),
    ),
    Example(
        "0.8-b broker",
        "/brokers/ids/0",
        broker,
        '{\n"jmx_port": -1,\n"timestamp":"1525741823119",\n"version": 1,\n"host": "hadoop1",\n"port": 9092\n}',
        RegisteredBroker(0, (BrokerEndpoint("PLAINTEXT", "hadoop1", 9092),), version=1, timestamp_ms=1525741823119),
        '{\n"jmx_port": -1,\n"timestamp":"1525741823119"\n"version": 1,\n"host": "hadoop1",\n"port": 9092\n}',
    ),
    Example(
        "0.8-b controller",
        "/controller",
        parse_controller,
        '{\n"version": 1,\n"brokerid": 0,\n"timestamp": "1525741822769"\n}',
        Controller(0, 1525741822769),
    ),
    Example(
        "0.8-b consumer",
        "/consumers/console-consumer-2304/ids/console-consumer-2304_hadoop2-1525747915241-6b48ff32",
        parse_registration,
        '{\n"version": 1,\n"subscription": {\n"topic2": 1\n},\n"pattern": "white_list",\n'
        '"timestamp": "1525747915336"\n}',
        ConsumerRegistration({"topic2": 1}, "white_list", 1525747915336),
    ),
    # 0.10.1: the document prints the fields only
    Example(
        "0.10.1 broker",
        "/brokers/ids/1",
        broker,
        '{"jmx_port":9999,"timestamp":"1478000000000","endpoints":["PLAINTEXT://h1:9092","SSL://h1:9093"],'
        '"host":"h1","version":4,"port":9092}',
        RegisteredBroker(
            1,
            (BrokerEndpoint("PLAINTEXT", "h1", 9092), BrokerEndpoint("SSL", "h1", 9093)),
            version=4,
            timestamp_ms=1478000000000,
            jmx_port=9999,
        ),
        '{"jmx_port":...,"timestamp":...,"endpoints":[...],"host":...,"version":...,"port":...}',
    ),
    Example(
        "0.10.1 partition state",
        "/brokers/topics/orders/partitions/0/state",
        parse_partition_state,
        '{"controller_epoch":7,"leader":1,"version":1,"leader_epoch":3,"isr":[1]}',
        PartitionState(leader=1, leader_epoch=3, isr=(1,), controller_epoch=7),
        '{"controller_epoch":...,"leader":...,"version":...,"leader_epoch":...,"isr":[...]}',
    ),
    Example(
        "0.10.1 consumer",
        "/consumers/g/ids/g_host-1478000000000-1a2b3c4d",
        parse_registration,
        '{"version":1,"subscription":{"orders":1},"pattern":"black_list","timestamp":"1478000000000"}',
        ConsumerRegistration({"orders": 1}, "black_list", 1478000000000),
        '{"version":...,"subscription":{...:...},"pattern":...,"timestamp":...}',
    ),
    Example(
        "0.10.1 cluster id",
        "/cluster/id",
        parse_cluster_id,
        '{"version":"1","id":"Aa0_-bcdefghijklmnopqr"}',
        "Aa0_-bcdefghijklmnopqr",
        r"[a-zA-Z0-9_\-]+",
    ),
]
