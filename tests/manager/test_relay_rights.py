"""Rights through the relay, compared with the rights that the broker's own authorizer gives.

Alice has rules at the manager and equal ACLs at the broker; mallory has a login and nothing else. The manager's own
login has only the ACLs of the guides.
"""

import asyncio
import re
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from backend_listeners import ManagerListener
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AclOperation, AdminClient, NewTopic, ResourceType
from relay_clients import NO_EXTRAS, NO_TOPICS
from running_relay import FORWARDED
from secured_broker import Secured, allowed, documented_acls

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.kafka.client.connection import BrokerConnection, Security
from offsetmgr.kafka.protocol.frames import Address, Request
from offsetmgr.kafka.protocol.schema_codec import Message
from offsetmgr.server.security.authorization import ADMIN_APIS

pytestmark = pytest.mark.servers

TELEMETRY: Final = {71, 72}
"""APIs that name no resource, and that every client of a broker may use."""
TOPIC, SESSION_UNKNOWN, LIST_GROUPS = 29, 70, 16
REFUSALS: Final = {TOPIC, 30, 31, 53}


def login(user: str) -> dict[str, str]:
    properties = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN"}
    return {**properties, "sasl.username": user, "sasl.password": "secret"}


class Cluster(NamedTuple):
    """A broker with an authorizer, and a manager with a relay in front of it."""

    broker: Secured
    listener: ManagerListener
    ids: Mapping[str, uuid.UUID]
    """The topics ``orders``, for which Alice has rights, and ``secret``."""
    batch: bytes
    """A record batch of a producer."""

    def send(self, user: str, direct: bool, key: int, version: int, message: Message) -> Message | None:
        """Sends the request to the broker, or to the relay: requests for groups go to the manager's own port. Returns
        None if the broker does not support the API."""
        relay = self.listener.process._relay
        assert relay is not None
        port = self.listener.port if key in GROUP_APIS else next(iter(relay.brokers.ports().values()))
        where = Address.parse(self.broker.bootstrap) if direct else Address("127.0.0.1", port)

        async def exchange() -> Message | None:
            connection = await BrokerConnection.open(where, Security.of(login(user)), 60)
            try:
                if connection.versions.get(key, (0, -1))[1] < version:
                    return None
                return await connection.call(Request(key, version, message), 60)
            finally:
                await connection.close()

        return self.listener.run(exchange())

    def errors(self, user: str, direct: bool, key: int, version: int, message: Message) -> dict[str, set[int]] | None:
        answer = self.send(user, direct, key, version, message)
        return None if answer is None else codes(answer)


def codes(value: Any, name: str = "") -> dict[str, set[int]]:
    """All error codes of a response, by the name of the resource."""
    found: dict[str, set[int]] = {}
    if isinstance(value, dict):
        name = next((str(value[field]) for field in NAMES if value.get(field)), name)
        for field in [field for field in value if field.endswith("error_code")]:
            found.setdefault(name, set()).add(value[field])
        value = list(value.values())
    for item in value if isinstance(value, list) else ():
        for inner, errors in codes(item, name).items():
            found.setdefault(inner, set()).update(errors)
    return found


NAMES: Final = (
    "name", "topic", "topic_name", "topic_id", "resource_name", "transactional_id", "key", "group_id",
)  # fmt: skip
GROUP_APIS: Final = {8, 9, 11, 12, 13, 14, 15, 16, 42, 47}


def requests(cluster: Cluster, tid: str, group: str) -> list[tuple[int, int, Message]]:
    """A request of each API in one or more versions, for both topics, a transactional id and a group."""
    topics, ids = list(cluster.ids), list(cluster.ids.values())

    def each(**fields: Any) -> list[Message]:
        part = {"partition_index": 0, "index": 0, "partition": 0, "current_leader_epoch": -1, **fields}
        return [
            {"name": t, "topic": t, "topic_id": i, "partitions": [part], "partition_data": [part]}
            for t, i in zip(topics, ids, strict=True)
        ]

    numbers = [{"name": t, "topic": t, "partitions": [0], "partition_indexes": [0]} for t in topics]
    fetch = {
        "replica_id": -1, "max_wait": 10, "min_bytes": 0, "max_bytes": 1 << 20, "forgotten_topics_data": [],
        "rack_id": "", "topics": each(fetch_offset=0, partition_max_bytes=1 << 20),
    }  # fmt: skip
    produced = {"acks": -1, "timeout": 10_000, "topic_data": each(records=cluster.batch)}
    transactional = cluster.batch[:22] + b"\x10" + cluster.batch[23:]
    txn = {
        "v3_and_below_transactional_id": tid or "", "v3_and_below_producer_id": 1, "v3_and_below_producer_epoch": 0,
        "v3_and_below_topics": numbers,
    }  # fmt: skip
    resources = [{"resource_type": 2, "resource_name": t, "configuration_keys": None, "configs": []} for t in topics]
    wait = {"timeout": 10_000}
    named = [{"name": t, "topic_id": None} for t in topics]
    by_id = [{"name": None, "topic_id": i} for i in ids]
    member = {"group_id": group, "member_id": "", "generation_id": -1, "group_instance_id": None}
    join = {"session_timeout": 10_000, "rebalance_timeout": 10_000, "protocol_type": "consumer", "protocols": [
        {"name": "range", "metadata": NO_TOPICS}
    ]}  # fmt: skip
    return [
        (0, 9, {**produced, "transactional_id": None}), (0, 3, {**produced, "transactional_id": None}),
        (0, 9, {**produced, "transactional_id": tid, "topic_data": each(records=transactional)}),
        *((1, version, fetch) for version in (4, 11, 12, 13, 15)),
        (1, 11, {**fetch, "replica_id": 1}), (1, 15, {**fetch, "replica_state": {"replica_id": 1, "replica_epoch": 1}}),
        (2, 7, {"replica_id": -1, "isolation_level": 0, "topics": each(timestamp=-1)}),
        *((3, version, {"topics": named, **NO_EXTRAS}) for version in (1, 8, 12)),
        (3, 12, {"topics": by_id, **NO_EXTRAS}), (3, 1, {"topics": None, **NO_EXTRAS}),
        (10, 3, {"key_type": 1, "key": tid}), (10, 4, {"key_type": 1, "coordinator_keys": [tid]}),
        (22, 4, {"transactional_id": tid, "transaction_timeout": 10_000}),
        (22, 4, {"transactional_id": None, "transaction_timeout": 10_000}),
        (23, 4, {"replica_id": -1, "topics": each(leader_epoch=0)}),
        (24, 3, txn),
        (26, 3, {"transactional_id": tid, "producer_id": 1, "producer_epoch": 0, "committed": False}),
        (19, 4, {**wait, "validate_only": True, "topics": [
            {"name": t, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []} for t in topics
        ]}),
        (20, 5, {**wait, "topic_names": list(topics)}), (20, 6, {**wait, "topics": by_id}),
        (21, 2, {**wait, "topics": each(offset=0)}),
        (32, 4, {"resources": resources}), (33, 1, {"resources": resources, "validate_only": True}),
        (34, 1, {"dirs": [{"path": "/nowhere", "topics": numbers}]}),
        (44, 1, {"resources": resources, "validate_only": True}),
        (35, 3, {"topics": None}),
        (37, 2, {**wait, "validate_only": True, "topics": [
            {"name": t, "count": 9, "assignments": None} for t in topics
        ]}),
        (43, 1, {**wait, "election_type": 0, "topic_partitions": numbers}),
        (45, 0, {**wait, "topics": each(replicas=None)}), (46, 0, {**wait, "topics": None}),
        (48, 0, {"components": [], "strict": False}), (49, 0, {"entries": [
            {"entity": [{"entity_type": "user", "entity_name": "bob"}], "ops": []}], "validate_only": True}),
        (55, 0, {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]}),
        (61, 0, {"topics": numbers}), (65, 0, {"transactional_ids": [tid]}),
        (66, 0, {"state_filters": [], "producer_id_filters": []}), (74, 1, {"resource_types": [2]}),
        (75, 0, {"topics": [{"name": t} for t in topics], "response_partition_limit": 99, "cursor": None}),
        (75, 0, {"topics": [], "response_partition_limit": 99, "cursor": None}),
        (8, 7, {**member, "retention_time": -1, "topics": each(committed_offset=1, committed_leader_epoch=-1,
            committed_metadata="")}),
        (9, 7, {"group_id": group, "require_stable": False, "topics": numbers}),
        (11, 5, {**member, **join}), (12, 3, member), (13, 2, member), (14, 3, {**member, "assignments": []}),
        (15, 4, {"groups": [group], "include_authorized_operations": False}), (16, 2, {}),
        (42, 1, {"groups_names": [group]}), (47, 0, {"group_id": group, "topics": each()}),
    ]  # fmt: skip


@pytest.fixture(scope="module", params=["secured", "secured_kraft"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    broker: Secured = request.getfixturevalue(request.param)
    directory = tmp_path_factory.mktemp("rights")
    names = ["orders", "secret"]
    for created in broker.admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
        created.result(90)
    write, read = AclOperation.WRITE, AclOperation.READ
    broker.grant(documented_acls("secure-an-offset-manager", "manager-relay"))
    broker.grant(
        [
            *(allowed(ResourceType.TOPIC, "orders", one, user="alice") for one in (read, write)),
            *(
                allowed(ResourceType.GROUP, "billing", one, user="alice", prefixed=True)
                for one in (read, AclOperation.DELETE)
            ),
            allowed(ResourceType.TRANSACTIONAL_ID, "billing", write, user="alice", prefixed=True),
        ]
    )
    (directory / "credentials.toml").write_text(
        "".join(f'[users.{u}]\npassword = "secret"\n' for u in ("alice", "mallory"))
    )
    (directory / "rules.toml").write_text(RULES)
    yield from served(broker, directory)


RULES: Final = """
[[rule]]
principals = ["alice"]
groups = ["billing*"]
topics = ["orders*"]
transactional_ids = ["billing*"]
operations = ["read", "write", "delete", "produce", "consume"]
"""


def served(broker: Secured, directory: Path) -> Iterator[Cluster]:
    settings: dict[str, Any] = {name: str(directory / f"{name}.toml") for name in ("credentials", "rules")}
    settings["connection"] = ConnectionConfig(kafka=login("offsetmgr"), timeout_ms=60_000)
    settings |= {"relay": True, "partitions": 2, "replication_factor": 1}
    with ManagerListener(broker.bootstrap, "__offsetmgr_offsets", **settings) as listener:

        async def active() -> None:
            async with asyncio.timeout(90):
                while any(shard["state"] != "ACTIVE" for shard in listener.process.status()["shards"]):
                    await asyncio.sleep(0.05)

        listener.run(active())
        found = Cluster(broker, listener, {"orders": uuid.uuid4()}, b"")
        message = {"topics": [{"name": n, "topic_id": None} for n in ("orders", "secret")], **NO_EXTRAS}
        answer = found.send("offsetmgr", True, 3, 12, message)
        assert answer is not None
        producer = Producer({"bootstrap.servers": broker.open})
        producer.produce("orders", b"value", b"key", 0)
        assert producer.flush(60) == 0
        fetch = next(message for key, _, message in requests(found, "", "") if key == 1)
        stored = found.send("alice", True, 1, 12, fetch)
        assert stored is not None
        batch = bytes(8) + stored["responses"][0]["partitions"][0]["records"][8:]  # producers number records from 0
        yield found._replace(ids={topic["name"]: topic["topic_id"] for topic in answer["topics"]}, batch=batch)


def test_every_request_gets_the_errors_of_the_brokers_authorizer(cluster: Cluster) -> None:
    """The relay has rules of its own for admin APIs. It refuses every resource of such a request."""
    differing = {}
    for user, tid, group in (
        ("mallory", "billing-1", "billing-1"), ("alice", "billing-1", "billing-1"), ("alice", "mine", "mine"),
    ):  # fmt: skip
        asked = requests(cluster, tid, group)
        assert {key for key, _, _ in asked} >= FORWARDED.keys() - TELEMETRY
        for number, (key, version, message) in enumerate(asked):
            direct = cluster.errors(user, True, key, version, message)
            relayed = cluster.errors(user, False, key, version, message)
            is_right = refuses(relayed) if key in ADMIN_APIS else direct == relayed
            if user == "mallory" and key != LIST_GROUPS:
                is_right = is_right and refuses(relayed)
            if not is_right:
                differing[user, tid, number, key, version] = (direct, relayed)
    assert not differing, "\n".join(map(str, differing.items()))
    reader = Consumer({"bootstrap.servers": cluster.broker.open, "group.id": "unused"})
    assert reader.get_watermark_offsets(TopicPartition("secret", 0), 60) == (0, 0)
    reader.close()


def refuses(answered: dict[str, set[int]] | None) -> bool:
    """Whether a response has an authorization error for everything that it names."""
    found = answered or {}
    return set().union(*[errors for name, errors in found.items() if name] or found.values()) <= REFUSALS


def test_a_fetch_session_holds_only_what_its_user_may_consume(cluster: Cluster) -> None:
    key, version, whole = next(one for one in requests(cluster, "", "") if one[:2] == (1, 12))
    orders, secret = ([topic] for topic in whole["topics"])

    def fetch(user: str, topics: list[Message], session_id: int, epoch: int) -> Message:
        message = {**whole, "topics": topics, "session_id": session_id, "session_epoch": epoch}
        answer = cluster.send(user, False, key, version, message)
        assert answer is not None
        return answer

    both = fetch("alice", whole["topics"], 0, 0)
    assert (both["session_id"], codes(both)) == (0, {"": {0}, "orders": {0}, "secret": {TOPIC}})
    session = fetch("alice", orders, 0, 0)["session_id"]
    assert session
    for user, topics in (("mallory", []), ("mallory", orders), ("alice", secret)):
        refused = fetch(user, topics, session, 1)
        assert (refused["error_code"], refused["responses"]) == (SESSION_UNKNOWN, [])
    assert fetch("alice", [], session, 1)["error_code"] == 0


def test_responses_name_no_rights_of_the_manager(cluster: Cluster) -> None:
    topics = [{"name": "orders", "topic_id": None}]
    asked = {f"include_{kind}_authorized_operations": True for kind in ("cluster", "topic")}
    paged = {"topics": topics, "response_partition_limit": 99, "cursor": None}
    for key, version, message in (
        (3, 8, {"topics": topics, "allow_auto_topic_creation": False}), (3, 9, {"topics": None}), (60, 0, {}),
        (75, 0, paged), (75, 0, {**paged, "topics": []}),
    ):  # fmt: skip
        answer = cluster.send("alice", False, key, version, {**NO_EXTRAS, **message, **asked})
        found = re.findall(r"_authorized_operations': (-?\d+)", str(answer))
        assert answer is None or set(found) == {str(-(2**31))}, (key, version)


def test_the_recommended_rights_of_the_manager_suffice_for_its_clients(cluster: Cluster) -> None:
    config: dict[str, Any] = {"bootstrap.servers": cluster.listener.bootstrap, **login("alice")}
    producer = Producer({**config, "enable.idempotence": True})
    producer.produce("orders", b"idempotent", b"key", 0)
    assert producer.flush(60) == 0
    producer = Producer({**config, "transactional.id": "billing-tx"})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("orders", b"in a transaction", b"key", 0)
    producer.commit_transaction(60)
    consumer = Consumer({**config, "group.id": "billing-g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    values: list[bytes | None] = []
    while b"in a transaction" not in values:
        message = consumer.poll(60)
        assert message is not None
        assert message.error() is None, message.error()
        values.append(message.value())
    assert b"idempotent" in values
    consumer.commit(asynchronous=False)
    assert consumer.committed([TopicPartition("orders", 0)], 60)[0].offset > 0
    consumer.close()
    admin = AdminClient(config)
    assert set(admin.list_topics(timeout=60).topics) == {"orders"}
    groups = admin.list_consumer_groups(request_timeout=60).result().valid
    assert "billing-g" in [group.group_id for group in groups]
    admin.delete_consumer_groups(["billing-g"], request_timeout=60)["billing-g"].result(60)
    assert cluster.listener.process.status()["alarms"] == []
