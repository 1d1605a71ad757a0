"""Attacks through a real relay on the offsets topic, the shards' transactional ids and the managers' group.

The relay rejects each attack without a change, and serves other topics.
"""

import asyncio
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from backend_listeners import ManagerListener
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType
from relay_clients import NO_EXTRAS
from running_relay import RunningRelay

from offsetmgr.kafka.client.connection import BrokerConnection, Security
from offsetmgr.kafka.protocol.frames import Address, Request
from offsetmgr.kafka.protocol.schema_codec import Message
from offsetmgr.sandbox import KafkaBroker, KraftBroker
from offsetmgr.server.security.authorization import ADMIN_APIS, AuthorizationRules, Rule

pytestmark = pytest.mark.servers

PRODUCE, FETCH, LIST_OFFSETS, METADATA, INIT_PRODUCER, ADD_PARTITIONS, END_TXN = 0, 1, 2, 3, 22, 24, 26
CREATE, DELETE, DELETE_RECORDS, EPOCHS, CONFIGS, ALTER, LOG_DIRS, PARTITIONS = 19, 20, 21, 23, 32, 33, 35, 37
ELECT, INCREMENTAL, REASSIGN, REASSIGNMENTS, PRODUCERS, TRANSACTIONS, LIST_TRANSACTIONS = 43, 44, 45, 46, 61, 65, 66
JOIN, HEARTBEAT, LEAVE, SYNC, DESCRIBE_GROUPS, LIST_GROUPS = 11, 12, 13, 14, 15, 16
DELETE_GROUPS, OFFSET_DELETE = 42, 47
CONFIG_RESOURCES, TOPIC_PARTITIONS = 74, 75
TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = 29, 30, 31, 53


class Deployment(NamedTuple):
    """A manager with a relay, its offsets topic, and a topic of clients."""

    listener: ManagerListener
    broker: KafkaBroker | KraftBroker
    topic: str
    orders: str

    def send(self, api_key: int, version: int, message: Message) -> Message:
        """Sends the request to the relay port that represents the broker."""

        assert self.listener.process._relay is not None
        port = next(iter(self.listener.process._relay.brokers.ports().values()))
        return self.send_to(Address("127.0.0.1", port), api_key, version, message)

    def send_to_manager(self, api_key: int, version: int, message: Message) -> Message:
        return self.send_to(Address("127.0.0.1", self.listener.port), api_key, version, message)

    def send_to_broker(self, api_key: int, version: int, message: Message) -> Message:
        """Sends the request directly to the broker, around the relay."""
        return self.send_to(Address.parse(self.broker.bootstrap), api_key, version, message)

    def send_to(self, where: Address, api_key: int, version: int, message: Message) -> Message:
        async def exchange() -> Message:
            connection = await BrokerConnection.open(where, Security(), 60)
            try:
                return await connection.call(Request(api_key, version, message), 60)
            finally:
                await connection.close()

        return self.listener.run(exchange())

    def ids(self) -> dict[str, uuid.UUID]:
        """The ids of both topics, from the broker itself."""
        names = [{"name": name, "topic_id": None} for name in (self.topic, self.orders)]
        answer = self.send_to_broker(METADATA, 12, {"topics": names, **NO_EXTRAS})
        return {topic["name"]: topic["topic_id"] for topic in answer["topics"]}

    def state(self) -> Any:
        """The state that no attack may change: the topic's log ends and settings, and the shards' states."""
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        (config,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, self.topic)]).values()
        policy = config.result(90)["cleanup.policy"].value
        reader = Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": "unused"})
        count = len(admin.list_topics(self.topic, timeout=60).topics[self.topic].partitions)
        ends = [reader.get_watermark_offsets(TopicPartition(self.topic, p), 20) for p in range(count)]
        reader.close()
        states = {shard["state"] for shard in self.listener.process.status()["shards"]}
        return policy, ends, self.ids()[self.topic], states


@pytest.fixture(scope="module")
def deployment(kafka: KafkaBroker) -> Iterator[Deployment]:
    with serving(kafka) as found:
        yield found


@contextmanager
def serving(broker: KafkaBroker | KraftBroker) -> Iterator[Deployment]:
    mark = uuid.uuid4().hex[:8]
    topic, orders = f"offsets-{mark}", f"orders-{mark}"
    with ManagerListener(broker.bootstrap, topic, relay=True, partitions=2, replication_factor=1) as listener:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic(orders, 1)])[orders].result(90)
        found = Deployment(listener, broker, topic, orders)

        async def served() -> None:
            async with asyncio.timeout(90):
                while any(shard["state"] != "ACTIVE" for shard in listener.process.status()["shards"]):
                    await asyncio.sleep(0.05)

        listener.run(served())
        yield found


def parts(answer: Message, field: str = "topics", inner: str = "partitions") -> dict[Any, list[int]]:
    return {
        topic.get("name") or topic.get("topic") or topic.get("topic_id"): [
            part.get("error_code", part.get("partition_error_code")) for part in topic[inner]
        ]
        for topic in answer[field]
    }


def codes(answer: Message, field: str = "topics") -> dict[str, int]:
    return {item.get("name") or item.get("resource_name"): item["error_code"] for item in answer[field]}


def one(name: str, **fields: Any) -> Message:
    """A request's topic with partition 0, under the field names of most APIs."""
    part = {"partition_index": 0, "index": 0, "partition": 0, "current_leader_epoch": -1, **fields}
    return {"name": name, "topic": name, "topic_id": None, "partitions": [part], "partition_data": [part]}


def numbers(name: str) -> Message:
    return {"name": name, "topic": name, "partitions": [0], "partition_indexes": [0]}


def fetch(topics: list[Message]) -> Message:
    return {
        "replica_id": -1, "max_wait": 100, "min_bytes": 1, "max_bytes": 1 << 20, "topics": topics,
        "forgotten_topics_data": [], "rack_id": "",
    }  # fmt: skip


AT = {"fetch_offset": 0, "partition_max_bytes": 1 << 20}


def stored(deployment: Deployment) -> bytes:
    """A batch in the format of a producer, which was produced to the clients' topic and fetched from the broker."""
    producer = Producer({"bootstrap.servers": deployment.listener.bootstrap})
    at: list[int] = []
    producer.produce(deployment.orders, b"value", b"key", 0, lambda _, message: at.append(message.offset() or 0))
    assert producer.flush(20) == 0
    answer = deployment.send_to_broker(FETCH, 12, fetch([one(deployment.orders, **{**AT, "fetch_offset": at[0]})]))
    records: bytes = answer["responses"][0]["partitions"][0]["records"]
    return bytes(8) + records[8:]  # producers number their records from 0


@pytest.mark.parametrize("version", [3, 8, 9])
def test_no_client_produces_into_the_offsets_topic(deployment: Deployment, version: int) -> None:
    records = stored(deployment)
    before = deployment.state()
    topics = [one(name, records=records) for name in (deployment.topic, deployment.orders)]
    message = {"transactional_id": None, "acks": -1, "timeout": 10_000, "topic_data": topics}
    answer = deployment.send(PRODUCE, version, message)
    assert parts(answer, "responses", "partition_responses") == {deployment.topic: [TOPIC], deployment.orders: [0]}
    only = deployment.send(PRODUCE, version, {**message, "topic_data": topics[:1]})
    assert parts(only, "responses", "partition_responses") == {deployment.topic: [TOPIC]}
    assert deployment.state() == before


@pytest.mark.parametrize("version", [4, 11, 12, 13, 15])
def test_no_client_fetches_the_offsets_topic(deployment: Deployment, version: int) -> None:
    """Requests name the topic, and from version 13 on the topic id."""
    stored(deployment)
    ids = deployment.ids()
    topics = [{**one(name, **AT), "topic_id": ids[name]} for name in (deployment.topic, deployment.orders)]
    answer = deployment.send(FETCH, version, fetch(topics))
    key = ids if version >= 13 else {name: name for name in ids}
    assert parts(answer, "responses") == {key[deployment.topic]: [TOPIC], key[deployment.orders]: [0]}
    (read,) = [t for t in answer["responses"] if key[deployment.orders] in (t.get("topic"), t.get("topic_id"))]
    assert read["partitions"][0]["records"]
    assert parts(deployment.send(FETCH, version, fetch(topics[:1])), "responses") == {key[deployment.topic]: [TOPIC]}
    again = deployment.send(FETCH, version, fetch(topics[1:]))
    assert parts(again, "responses") == {key[deployment.orders]: [0]}
    if version >= 13:
        unknown = {**topics[0], "topic_id": uuid.uuid4()}
        assert parts(deployment.send(FETCH, version, fetch([unknown])), "responses") == {unknown["topic_id"]: [100]}


@pytest.mark.parametrize("version", [7, 12, 13, 15])
def test_no_client_fetches_through_the_fetch_session_of_another_client(deployment: Deployment, version: int) -> None:
    """A broker serves a fetch session to any client that sends its id."""
    stored(deployment)
    ids = deployment.ids()

    def open_session(send: Callable[[int, int, Message], Message], name: str) -> int:
        topics = [{**one(name, **AT), "topic_id": ids[name]}]
        answer = send(FETCH, version, {**fetch(topics), "session_id": 0, "session_epoch": 0})
        assert answer["session_id"] != 0
        return int(answer["session_id"])

    def continue_session(session_id: int) -> Message:
        return deployment.send(FETCH, version, {**fetch([]), "session_id": session_id, "session_epoch": 1})

    answer = continue_session(open_session(deployment.send_to_broker, deployment.topic))
    assert (answer["error_code"], answer["responses"]) == (70, [])
    assert continue_session(open_session(deployment.send, deployment.orders))["error_code"] == 0


def test_other_apis_that_read_topics_reject_only_the_offsets_topic(deployment: Deployment) -> None:
    both = deployment.topic, deployment.orders
    expected = {deployment.topic: [TOPIC], deployment.orders: [0]}
    plain = [one(name, timestamp=-1, leader_epoch=0, offset=0) for name in both]
    message = {"replica_id": -1, "isolation_level": 0, "topics": plain}
    assert parts(deployment.send(LIST_OFFSETS, 7, message)) == expected
    assert parts(deployment.send(EPOCHS, 4, {"replica_id": -1, "topics": plain})) == expected
    assert parts(deployment.send(PRODUCERS, 0, {"topics": [numbers(name) for name in both]})) == expected


def test_the_offsets_topic_is_not_in_metadata(deployment: Deployment) -> None:
    ids = deployment.ids()

    def seen(version: int, topics: list[Message] | None) -> list[tuple[str | None, int]]:
        answer = deployment.send(METADATA, version, {"topics": topics, **NO_EXTRAS})
        return [(topic["name"], topic["error_code"]) for topic in answer["topics"]]

    named = [{"name": name, "topic_id": None} for name in (deployment.orders, deployment.topic)]
    for version in (1, 8, 12):
        assert seen(version, named) == [(deployment.orders, 0), (deployment.topic, TOPIC)]
        assert seen(version, named[1:]) == [(deployment.topic, TOPIC)]
        every = seen(version, None)
        assert (deployment.orders, 0) in every
        assert deployment.topic not in [name for name, _ in every]
    by_id = [{"name": None, "topic_id": ids[name]} for name in (deployment.orders, deployment.topic)]
    assert sorted(seen(12, by_id), key=str) == sorted([(deployment.orders, 0), (None, TOPIC)], key=str)


def test_no_client_administers_the_offsets_topic(deployment: Deployment) -> None:
    before = deployment.state()
    mine, orders = deployment.topic, deployment.orders
    expected = {mine: TOPIC, orders: 0}

    def resources(**fields: Any) -> list[Message]:
        return [{"resource_type": 2, "resource_name": name, **fields} for name in (mine, orders)]

    change = [{"name": "cleanup.policy", "value": "delete", "config_operation": 0}]
    for key in (ALTER, INCREMENTAL):
        message = {"resources": resources(configs=change), "validate_only": False}
        assert codes(deployment.send(key, 1, message), "responses") == expected
    described = deployment.send(CONFIGS, 4, {"resources": resources(configuration_keys=None)})
    assert codes(described, "results") == expected
    assert {r["resource_name"]: bool(r["configs"]) for r in described["results"]} == {mine: False, orders: True}
    grown = [{"name": name, "count": 4, "assignments": None} for name in (mine, orders)]
    message = {"topics": grown, "timeout": 10_000, "validate_only": True}
    assert codes(deployment.send(PARTITIONS, 3, message), "results") == expected
    removed = [one(name, offset=0) for name in (mine, orders)]
    answer = deployment.send(DELETE_RECORDS, 2, {"topics": removed, "timeout": 10_000})
    assert parts(answer) == {mine: [TOPIC], orders: [0]}
    moved = [one(name, replicas=None) for name in (mine, orders)]
    answer = deployment.send(REASSIGN, 0, {"topics": moved, "timeout": 10_000})
    assert parts(answer, "responses") == {mine: [TOPIC], orders: [85]}, "no reassignment is in progress"
    answer = deployment.send(REASSIGNMENTS, 0, {"topics": [numbers(mine)], "timeout": 10_000})
    assert answer["error_code"] == CLUSTER
    elected = {"election_type": 0, "topic_partitions": [numbers(mine)], "timeout": 10_000}
    answer = deployment.send(ELECT, 2, elected)
    assert parts(answer, "replica_election_results", "partition_result") == {mine: [TOPIC]}
    assert deployment.send(ELECT, 2, {**elected, "topic_partitions": None})["error_code"] == CLUSTER
    logs = deployment.send(LOG_DIRS, 4, {"topics": None})
    names = [topic["name"] for found in logs["results"] for topic in found["topics"]]
    assert orders in names
    assert mine not in names
    assert deployment.state() == before


def test_no_client_deletes_or_creates_the_offsets_topic(deployment: Deployment) -> None:
    before = deployment.state()
    ids = deployment.ids()
    throwaway = f"{deployment.orders}-gone"
    topics = [
        {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        for name in (deployment.topic, throwaway)
    ]
    answer = deployment.send(CREATE, 7, {"topics": topics, "timeout": 10_000, "validate_only": False})
    assert codes(answer) == {deployment.topic: TOPIC, throwaway: 0}
    for version in (1, 5):
        answer = deployment.send(DELETE, version, {"topic_names": [deployment.topic], "timeout": 10_000})
        assert codes(answer, "responses") == {deployment.topic: TOPIC}
    by_name = {"topics": [{"name": deployment.topic, "topic_id": None}], "timeout": 10_000}
    assert codes(deployment.send(DELETE, 6, by_name), "responses") == {deployment.topic: TOPIC}
    by_id = [{"name": None, "topic_id": ids[deployment.topic]}, {"name": throwaway, "topic_id": None}]
    answer = deployment.send(DELETE, 6, {"topics": by_id, "timeout": 10_000})
    assert sorted((t["name"] or "", t["error_code"]) for t in answer["responses"]) == [("", TOPIC), (throwaway, 0)]
    assert deployment.state() == before


def test_no_client_uses_the_partitions_transactional_ids(deployment: Deployment) -> None:
    before = deployment.state()
    partitions = [f"{deployment.topic}-partition-{number}" for number in range(2)]
    for partition in partitions:
        message = {"transactional_id": partition, "transaction_timeout": 10_000}
        assert deployment.send(INIT_PRODUCER, 4, message)["error_code"] == TRANSACTIONAL_ID
        end = {"transactional_id": partition, "producer_id": 1, "producer_epoch": 0, "committed": True}
        assert deployment.send(END_TXN, 3, end)["error_code"] == TRANSACTIONAL_ID
        added: dict[str, Any] = {
            "v3_and_below_transactional_id": partition,
            "v3_and_below_producer_id": 1, "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": [numbers(deployment.orders)],
        }  # fmt: skip
        answer = deployment.send(ADD_PARTITIONS, 3, added)
        result = parts(answer, "results_by_topic_v3_and_below", "results_by_partition")
        assert result == {deployment.orders: [TRANSACTIONAL_ID]}
    added["v3_and_below_transactional_id"] = "a-client"
    added["v3_and_below_topics"].append(numbers(deployment.topic))
    answer = deployment.send(ADD_PARTITIONS, 3, added)
    result = parts(answer, "results_by_topic_v3_and_below", "results_by_partition")
    assert result == {deployment.orders: [55], deployment.topic: [TOPIC]}
    answer = deployment.send(TRANSACTIONS, 0, {"transactional_ids": partitions})
    assert [state["error_code"] for state in answer["transaction_states"]] == [TRANSACTIONAL_ID] * 2
    listed = deployment.send(LIST_TRANSACTIONS, 0, {"state_filters": [], "producer_id_filters": []})
    assert not [s for s in listed["transaction_states"] if s["transactional_id"].startswith(deployment.topic)]
    topic = one(deployment.orders, records=stored(deployment))
    message = {"transactional_id": partitions[0], "acks": -1, "timeout": 10_000, "topic_data": [topic]}
    answer = deployment.send(PRODUCE, 9, message)
    assert parts(answer, "responses", "partition_responses") == {deployment.orders: [TRANSACTIONAL_ID]}
    assert deployment.state() == before


def test_no_client_accesses_the_managers_group(deployment: Deployment) -> None:
    group = f"{deployment.topic}.managers"
    describe = {"groups": [group], "include_authorized_operations": False}
    described = deployment.send_to_broker(DESCRIBE_GROUPS, 4, describe)
    (member,) = described["groups"][0]["members"]
    identity = {"group_id": group, "member_id": member["member_id"], "generation_id": 1, "group_instance_id": None}
    timeouts = {"session_timeout": 10_000, "rebalance_timeout": 10_000}
    for key, version, message in (
        (LEAVE, 4, {"group_id": group, "members": [identity]}),
        (JOIN, 5, {**identity, **timeouts, "protocol_type": "consumer", "protocols": []}),
        (SYNC, 3, {**identity, "assignments": []}),
        (HEARTBEAT, 3, identity),
        (OFFSET_DELETE, 0, {"group_id": group, "topics": []}),
    ):
        assert deployment.send_to_manager(key, version, message)["error_code"] == GROUP
    for key, version, message, field in (
        (DELETE_GROUPS, 1, {"groups_names": [group]}, "results"),
        (DESCRIBE_GROUPS, 4, describe, "groups"),
    ):
        assert deployment.send_to_manager(key, version, message)[field][0]["error_code"] == GROUP
    names = [g["group_id"] for g in deployment.send_to_manager(LIST_GROUPS, 3, {})["groups"]]
    assert group not in names
    again = deployment.send_to_broker(DESCRIBE_GROUPS, 4, describe)
    assert [m["member_id"] for m in again["groups"][0]["members"]] == [member["member_id"]]


def test_admin_apis_need_a_rule_that_names_them(deployment: Deployment) -> None:
    """A rule with topics applies to these topics only. A request without a topic needs a rule without topics."""
    mine, others = deployment.orders, deployment.topic
    allowed = AuthorizationRules(
        [
            Rule(frozenset({"*"}), (), ("orders-*",), frozenset(), frozenset({CONFIGS, DELETE_RECORDS})),
            Rule(frozenset({"ANONYMOUS"}), (), (), frozenset(), frozenset({LIST_TRANSACTIONS})),
            Rule(frozenset({"another user"}), (), (), frozenset(), frozenset(ADMIN_APIS)),
        ]
    )
    with RunningRelay(deployment.broker.bootstrap, authorizer=allowed) as relay:

        def send(api_key: int, version: int, message: Message) -> Message:
            return deployment.send_to(Address("127.0.0.1", relay.port), api_key, version, message)

        resources = [{"resource_type": 2, "resource_name": name, "configuration_keys": None} for name in (mine, others)]
        assert codes(send(CONFIGS, 4, {"resources": resources}), "results") == {mine: 0, others: TOPIC}
        broker = {"resource_type": 4, "resource_name": "1", "configuration_keys": None}
        assert codes(send(CONFIGS, 4, {"resources": [broker]}), "results") == {"1": CLUSTER}
        removed = {"topics": [one(name, offset=0) for name in (mine, others)], "timeout": 10_000}
        assert parts(send(DELETE_RECORDS, 2, removed)) == {mine: [0], others: [TOPIC]}
        gone = {"topics": [{"name": mine, "topic_id": None}], "timeout": 10_000}
        assert codes(send(DELETE, 6, gone), "responses") == {mine: TOPIC}
        by_id = {"topics": [{"name": None, "topic_id": deployment.ids()[mine]}], "timeout": 10_000}
        assert [r["error_code"] for r in send(DELETE, 6, by_id)["responses"]] == [TOPIC]
        assert send(LIST_TRANSACTIONS, 0, {"state_filters": [], "producer_id_filters": []})["error_code"] == 0
        assert send(LOG_DIRS, 4, {"topics": None})["error_code"] == CLUSTER
        assert send(ELECT, 2, {"election_type": 0, "topic_partitions": None, "timeout": 1})["error_code"] == CLUSTER
        plain = {"replica_id": -1, "isolation_level": 0, "topics": [one(mine, timestamp=-1)]}
        assert parts(send(LIST_OFFSETS, 7, plain)) == {mine: [TOPIC]}, "a rule for admin APIs allows nothing else"
    assert deployment.ids()[mine]


def test_list_apis_of_newer_brokers_omit_reserved_names(kraft: KraftBroker) -> None:
    with serving(kraft) as deployment:
        mine, orders = deployment.topic, deployment.orders
        request = {"topics": [], "response_partition_limit": 2000, "cursor": None}
        every = codes(deployment.send(TOPIC_PARTITIONS, 0, request))
        assert every[orders] == 0
        assert mine not in every
        named = {**request, "topics": [{"name": name} for name in (mine, orders)]}
        assert codes(deployment.send(TOPIC_PARTITIONS, 0, named)) == {mine: TOPIC, orders: 0}
        only = {**request, "topics": [{"name": mine}]}
        assert codes(deployment.send(TOPIC_PARTITIONS, 0, only)) == {mine: TOPIC}
        start = {**request, "cursor": {"topic_name": mine, "partition_index": 0}}
        assert mine not in codes(deployment.send(TOPIC_PARTITIONS, 0, start))
        found = deployment.send(CONFIG_RESOURCES, 1, {"resource_types": [2, 32]})["config_resources"]
        assert orders in [item["resource_name"] for item in found]
        assert not [item for item in found if item["resource_name"].startswith(mine)]
        resource = {"resource_type": 32, "resource_name": f"{mine}.managers"}
        change = {"name": "consumer.session.timeout.ms", "value": "50000", "config_operation": 0}
        message = {"resources": [{**resource, "configs": [change]}], "validate_only": False}
        assert codes(deployment.send(INCREMENTAL, 1, message), "responses") == {f"{mine}.managers": GROUP}
