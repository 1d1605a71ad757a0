"""Kafka's nodes in ZooKeeper, version by version: strict without notes, tolerant with them, errors with the path."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from offsetmgr.core.errors import CorruptData, OffsetMgrError, UnknownVersion
from offsetmgr.core.model import TopicPartition
from offsetmgr.zookeeper.nodes.admin import (
    PartitionList,
    Reassignments,
    parse_preferred_election,
    parse_reassignments,
    parse_topic_deletions,
)
from offsetmgr.zookeeper.nodes.brokers import BrokerEndpoint, RegisteredBroker, parse_broker
from offsetmgr.zookeeper.nodes.cluster import (
    Controller,
    Features,
    ProducerIds,
    parse_cluster_id,
    parse_controller,
    parse_controller_epoch,
    parse_features,
    parse_producer_ids,
)
from offsetmgr.zookeeper.nodes.configs import ConfigChange, parse_config, parse_config_change
from offsetmgr.zookeeper.nodes.consumers import ConsumerRegistration, OwnerThread, parse_owner, parse_registration
from offsetmgr.zookeeper.nodes.fields import Notes
from offsetmgr.zookeeper.nodes.topics import (
    PartitionState,
    TopicAssignment,
    parse_isr_change,
    parse_partition_count,
    parse_partition_state,
    parse_topic,
)


def node(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


class TestBrokers:
    @pytest.mark.parametrize(
        ("data", "broker"),
        [
            (b"h1:9092", RegisteredBroker(7, (BrokerEndpoint("PLAINTEXT", "h1", 9092),))),
            (b"h1-1330000000000:h1:9092", RegisteredBroker(7, (BrokerEndpoint("PLAINTEXT", "h1", 9092),))),
            (
                node(version=1, host="h1", port=9092, jmx_port=9999, timestamp="12"),
                RegisteredBroker(
                    7, (BrokerEndpoint("PLAINTEXT", "h1", 9092),), version=1, timestamp_ms=12, jmx_port=9999
                ),
            ),
            (
                node(version=2, host="h1", port=9092, jmx_port=-1, endpoints=["PLAINTEXT://h1:9092", "SSL://h1:9093"]),
                RegisteredBroker(
                    7, (BrokerEndpoint("PLAINTEXT", "h1", 9092), BrokerEndpoint("SSL", "h1", 9093)), version=2
                ),
            ),
            (
                node(version=3, host="h1", port=9092, endpoints=["PLAINTEXT://h1:9092"], rack="dc1"),
                RegisteredBroker(7, (BrokerEndpoint("PLAINTEXT", "h1", 9092),), "dc1", version=3),
            ),
            (
                node(
                    version=4,
                    host=None,
                    port=-1,
                    endpoints=["FOR-CLIENTS.1://[::1]:9092"],
                    listener_security_protocol_map={"FOR-CLIENTS.1": "SSL"},
                ),
                RegisteredBroker(
                    7, (BrokerEndpoint("FOR-CLIENTS.1", "::1", 9092),), None, {"FOR-CLIENTS.1": "SSL"}, version=4
                ),
            ),
            (
                node(
                    version=5,
                    host="h1",
                    port=9092,
                    endpoints=["PLAINTEXT://h1:9092"],
                    features={"f": {"min_version": 1, "first_active_version": 2, "max_version": 3}},
                ),
                RegisteredBroker(
                    7,
                    (BrokerEndpoint("PLAINTEXT", "h1", 9092),),
                    version=5,
                    features={"f": {"min_version": 1, "first_active_version": 2, "max_version": 3}},
                ),
            ),
        ],
        ids=["0.7", "0.7-creator", "1", "2", "3", "4", "5"],
    )
    def test_every_version(self, data: bytes, broker: RegisteredBroker) -> None:
        notes: Notes = []

        assert parse_broker("/brokers/ids/7", 7, data) == broker
        assert parse_broker("/brokers/ids/7", 7, data, notes) == broker
        assert notes == []

    def test_the_text_of_a_broker(self) -> None:
        assert (
            str(RegisteredBroker(1, (BrokerEndpoint("A", "::1", 1), BrokerEndpoint("B", "h", 2)), "r1"))
            == "A://[::1]:1 B://h:2 rack=r1"
        )

    @pytest.mark.parametrize(
        ("data", "why"),
        [
            (b"h1:99999", "is not LISTENER://HOST:PORT"),
            (b"h1", "is not JSON"),
            (node(version=1, host="h1", port=70_000), "its 'port' is not a number between -1 and 65535"),
            (node(version=5, endpoints="PLAINTEXT://h1:1"), "has no 'endpoints'"),
            (node(version=5, endpoints=["A://h:1"], features={"f": 3}), "its 'features.f' is not an object"),
        ],
    )
    def test_an_invalid_broker_is_rejected(self, data: bytes, why: str) -> None:
        with pytest.raises(CorruptData) as caught:
            parse_broker("/brokers/ids/7", 7, data)
        assert caught.value.what == "ZooKeeper node /brokers/ids/7"
        assert why in caught.value.why


class TestTopics:
    def test_versions_1_to_3(self) -> None:
        plain = TopicAssignment({0: (1, 2), 10: (2, 1)})
        moving = TopicAssignment({0: (1, 2, 3)}, {0: (3,)}, {0: (1,)}, "Rk1fOTTzQdmDyhIlKQcoow")

        assert parse_topic("/t", node(version=1, partitions={"10": [2, 1], "0": [1, 2]})) == plain
        assert list(parse_topic("/t", node(version=1, partitions={"10": [2, 1], "0": [1, 2]})).replicas) == [0, 10]
        v2 = node(version=2, partitions={"0": [1]}, adding_replicas={"0": []}, removing_replicas={})
        assert parse_topic("/t", v2) == TopicAssignment({0: (1,)})
        v3 = node(
            version=3,
            partitions={"0": [1, 2, 3]},
            adding_replicas={"0": [3]},
            removing_replicas={"0": [1]},
            topic_id="Rk1fOTTzQdmDyhIlKQcoow",
        )
        assert parse_topic("/t", v3) == moving
        assert str(moving) == "1 partition: 0=1,2,3 adding: 0=3 removing: 0=1"

    @pytest.mark.parametrize("partitions", [None, [], {"0": 1}, {"0": ["1"]}, {"0": [-1]}, {"x": [1]}, {"01": [1]}])
    def test_an_invalid_assignment_is_rejected(self, partitions: Any) -> None:
        with pytest.raises(CorruptData, match=r"/brokers/topics/t: .*partitions"):
            parse_topic(
                "/brokers/topics/t", node(version=1) if partitions is None else node(version=1, partitions=partitions)
            )

    @pytest.mark.parametrize(
        ("leader", "state"),
        [
            (3, PartitionState(3, 5, (3, 1), 9)),
            (-1, PartitionState(None, 5, (3, 1), 9)),
            (-2, PartitionState(None, 5, (3, 1), 9, being_deleted=True)),
        ],
    )
    def test_a_partition_with_and_without_a_leader(self, leader: int, state: PartitionState) -> None:
        data = node(version=1, leader=leader, leader_epoch=5, isr=[3, 1], controller_epoch=9)
        assert parse_partition_state("/s", data) == state

    def test_an_unclean_leader_that_recovers(self) -> None:
        data = node(version=1, leader=1, leader_epoch=0, isr=[1], controller_epoch=1, leader_recovery_state=1)
        assert parse_partition_state("/s", data).recovering

    @pytest.mark.parametrize("missing", ["leader", "leader_epoch", "isr", "controller_epoch"])
    def test_a_state_without_one_of_its_fields(self, missing: str) -> None:
        fields = {"version": 1, "leader": 1, "leader_epoch": 0, "isr": [1], "controller_epoch": 1}
        del fields[missing]
        with pytest.raises(CorruptData, match=missing):
            parse_partition_state("/s", node(**fields))

    def test_the_partition_count_of_0_7(self) -> None:
        assert parse_partition_count("/brokers/topics/t/0", b"4") == 4
        for data in (b"", b"-1", b"4 ", b"four", b"9" * 20, b"9" * 5000):
            with pytest.raises(CorruptData, match="/brokers/topics/t/0"):
                parse_partition_count("/brokers/topics/t/0", data)


class TestTheCluster:
    @pytest.mark.parametrize(
        ("data", "controller"),
        [
            (b"3", Controller(3)),
            (node(version=1, brokerid=3, timestamp="17"), Controller(3, 17)),
            (node(version=2, brokerid=3, timestamp="17", kraftControllerEpoch=-1), Controller(3, 17)),
            (node(version=2, brokerid=3000, timestamp="17", kraftControllerEpoch=5), Controller(3000, 17, 5)),
        ],
    )
    def test_controllers(self, data: bytes, controller: Controller) -> None:
        assert parse_controller("/controller", data) == controller

    @pytest.mark.parametrize(
        "data", [b"-1", b"03", b"x", b"", b"9" * 5000, node(version=1), node(version=1, brokerid=-1)]
    )
    def test_an_invalid_controller_is_rejected(self, data: bytes) -> None:
        with pytest.raises(CorruptData, match="/controller"):
            parse_controller("/controller", data)

    def test_the_controller_epoch(self) -> None:
        assert parse_controller_epoch("/controller_epoch", b"12") == 12
        with pytest.raises(CorruptData, match="/controller_epoch"):
            parse_controller_epoch("/controller_epoch", b"twelve")

    @pytest.mark.parametrize("cluster_id", ["a", "E3jMSf12QESTxJKiMoDyfg", "_-" * 11])
    def test_cluster_ids(self, cluster_id: str) -> None:
        assert parse_cluster_id("/cluster/id", node(version="1", id=cluster_id)) == cluster_id

    @pytest.mark.parametrize("cluster_id", ["", "a" * 23, "a b", "ä", "a+b", "a=", "a\n", 7, None])
    def test_an_invalid_cluster_id_is_rejected(self, cluster_id: Any) -> None:
        with pytest.raises(CorruptData, match="/cluster/id"):
            parse_cluster_id("/cluster/id", node(version="1", id=cluster_id))

    def test_features_and_producer_ids(self) -> None:
        features = node(version=2, status=1, features={"metadata.version": {"max_version_level": 19}})
        assert parse_features("/feature", features) == Features(True, {"metadata.version": {"max_version_level": 19}})
        block = node(version=1, broker=2, block_start="1000", block_end="1999")
        assert parse_producer_ids("/latest_producer_id_block", block) == ProducerIds(2, 1000, 1999)


class TestConsumers:
    @pytest.mark.parametrize(
        ("data", "registration"),
        [
            (b'{ "orders": 2,"audit": 1 }', ConsumerRegistration({"orders": 2, "audit": 1}, "static", None, None)),
            (b"*4*white.*", ConsumerRegistration({"white.*": 4}, "white_list", None, None)),
            (b"!1!a|b!c", ConsumerRegistration({"a|b!c": 1}, "black_list", None, None)),
        ],
    )
    def test_registrations_of_0_7(self, data: bytes, registration: ConsumerRegistration) -> None:
        assert parse_registration("/c", data) == registration

    def test_unescaped_backslashes_of_0_8_0(self) -> None:
        notes: Notes = []
        data = rb'{"version":1,"subscription":{"audit\.d+":1},"pattern":"white_list","timestamp":"5"}'

        found = parse_registration("/c", data, notes)

        assert found == ConsumerRegistration({r"audit\.d+": 1}, "white_list", 5)
        assert notes == ["its backslashes are not escaped"]

    def test_escaped_backslashes_stay_as_they_are(self) -> None:
        data = rb'{"version":1,"subscription":{"audit\\.d+":1},"pattern":"white_list","timestamp":"5"}'
        assert parse_registration("/c", data).subscription == {r"audit\.d+": 1}

    @pytest.mark.parametrize(
        "data", [b"{}", b"*x*a", b"*4!a", b'{"orders": -1}', b'{"orders": 1.5}', b"*99999999999*a"]
    )
    def test_an_invalid_registration_is_rejected(self, data: bytes) -> None:
        with pytest.raises(CorruptData, match="/consumers/g/ids/c"):
            parse_registration("/consumers/g/ids/c", data)

    def test_an_unknown_pattern_is_noted(self) -> None:
        notes: Notes = []
        parse_registration("/c", node(version=1, subscription={"t": 1}, pattern="fuzzy"), notes)
        assert notes == ["unknown pattern 'fuzzy', which consumers treat as static"]

    def test_owners(self) -> None:
        assert parse_owner("/o", b"g_db-1-1700000000123-1a2b3c4d-12") == OwnerThread(
            "g_db-1-1700000000123-1a2b3c4d", 12
        )
        assert str(OwnerThread("g_worker", 3)) == "g_worker-3"
        nested = {"orders/Receiver-0": 0, "invoices/Receiver-0": 0}
        assert parse_owner("/consumers/g/owners/invoices/0", b"Receiver-0-0", nested).member_id == "invoices/Receiver-0"
        for data in (b"", b"worker", b"worker-", b"-3", b"worker-x"):
            with pytest.raises(CorruptData, match="/consumers/g/owners/t/0"):
                parse_owner("/consumers/g/owners/t/0", data)


class TestConfigs:
    def test_secrets_are_not_shown(self) -> None:
        user = parse_config("/c", node(version=1, config={"SCRAM-SHA-256": "salt=x", "producer_byte_rate": "10"}))
        broker = parse_config(
            "/c", node(version=1, config={"listener.name.a.ssl.key.password": "sesame", "log.cleaner.threads": "2"})
        )

        assert user.redacted("users") == "SCRAM-SHA-256=(hidden) producer_byte_rate=10"
        assert broker.redacted("brokers") == "listener.name.a.ssl.key.password=(hidden) log.cleaner.threads=2"
        assert "sesame" not in repr(broker) + str(broker)

    def test_the_error_of_a_broken_config_quotes_none_of_its_content(self) -> None:
        for data in (b'{"version":1,"config":{"ssl.key.password":"sesame"', b'{"version":1,"config":["sesame"]}'):
            with pytest.raises(CorruptData) as caught:
                parse_config("/config/brokers/1", data)
            assert "/config/brokers/1" in str(caught.value)
            assert "sesame" not in str(caught.value)

    @pytest.mark.parametrize(
        ("data", "entity"),
        [
            (b'"orders"', "topics/orders"),
            (node(version=1, entity_type="clients", entity_name="c1"), "clients/c1"),
            (node(version=2, entity_path="users/alice/clients/c1"), "users/alice/clients/c1"),
        ],
    )
    def test_notices_of_changes_from_0_8_to_3_9(self, data: bytes, entity: str) -> None:
        assert parse_config_change("/config/changes/config_change_1", data) == ConfigChange(entity)


class TestRequests:
    def test_requests_to_the_controller(self) -> None:
        partitions = [{"topic": "t", "partition": 1, "replicas": [2, 3], "log_dirs": ["any", "any"]}]
        assert parse_reassignments("/r", node(version=1, partitions=partitions)) == Reassignments(
            {TopicPartition("t", 1): (2, 3)}
        )
        pair = [{"topic": "t", "partition": 1}]
        assert parse_preferred_election("/p", node(version=1, partitions=pair)) == PartitionList(
            (TopicPartition("t", 1),)
        )
        assert parse_isr_change("/i", node(version=1, partitions=pair)) == PartitionList((TopicPartition("t", 1),))

    def test_a_duplicate_partition_is_rejected(self) -> None:
        one = {"topic": "t", "partition": 1, "replicas": [2]}
        with pytest.raises(CorruptData, match="names 't-1' twice"):
            parse_reassignments("/r", node(version=1, partitions=[one, one]))

    @pytest.mark.parametrize(
        ("partitions", "why"),
        [
            (None, "'partitions' is not a list of objects"),
            (["t-1"], "'partitions' is not a list of objects"),
            ([{"partition": 1, "replicas": [1]}], r"has no 'partitions\[0\]\.topic'"),
            ([{"topic": "t", "partition": 1}], r"'partitions\[0\]\.replicas' is not a list of brokers' ids"),
        ],
    )
    def test_an_invalid_reassignment_is_rejected(self, partitions: Any, why: str) -> None:
        with pytest.raises(CorruptData, match=f"/admin/reassign_partitions: .*{why}"):
            parse_reassignments("/admin/reassign_partitions", node(version=1, partitions=partitions))


VERSIONED: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (lambda path, data, notes=None: parse_broker(path, 1, data, notes), {"endpoints": ["A://h:1"]}),
    (parse_topic, {"partitions": {"0": [1]}}),
    (parse_partition_state, {"leader": 1, "leader_epoch": 0, "isr": [1], "controller_epoch": 1}),
    (parse_controller, {"brokerid": 1}),
    (parse_cluster_id, {"id": "abc"}),
    (parse_registration, {"subscription": {"t": 1}}),
    (parse_config, {"config": {}}),
    (parse_config_change, {"entity_path": "topics/t"}),
    (parse_reassignments, {"partitions": []}),
    (parse_preferred_election, {"partitions": []}),
    (parse_topic_deletions, {"topics": ["t"]}),
    (parse_isr_change, {"partitions": []}),
    (parse_features, {"status": 0, "features": {}}),
    (parse_producer_ids, {"broker": 1, "block_start": "0", "block_end": "999"}),
]


@pytest.mark.parametrize(("parse", "fields"), VERSIONED)
class TestUnknownVersionsAndFields:
    def test_without_notes_an_unknown_version_is_an_error_that_names_it(
        self, parse: Callable[..., Any], fields: dict[str, Any]
    ) -> None:
        with pytest.raises(UnknownVersion, match="/node: is of version 77; known: "):
            parse("/node", node(version=77, **fields))

    def test_with_notes_an_unknown_version_and_an_unknown_field_are_noted_with_the_value(
        self, parse: Callable[..., Any], fields: dict[str, Any]
    ) -> None:
        notes: Notes = []

        value = parse("/node", node(version=77, invented=True, **fields), notes)

        assert value is not None
        assert [note.partition(" (known")[0] for note in notes] == ["unknown version 77", "unknown field 'invented'"]

    def test_a_missing_version_is_noted_or_rejected(self, parse: Callable[..., Any], fields: dict[str, Any]) -> None:
        notes: Notes = []
        parse("/node", node(version=None, **fields), notes)
        assert notes == ["no version"]
        with pytest.raises(CorruptData, match="/node: has no 'version'"):
            parse("/node", node(version=None, **fields))

    @pytest.mark.parametrize(
        "data",
        [b"", b"\xff", b"{", b"[]", b"null", b"[" * 100_000, b'{"version":' + b"9" * 5000 + b"}", b'{"x":"\\ud800"}'],
    )
    def test_broken_bytes_are_a_typed_error_with_the_path(
        self, parse: Callable[..., Any], fields: dict[str, Any], data: bytes
    ) -> None:
        for notes in (None, []):
            with pytest.raises(OffsetMgrError, match=r"^ZooKeeper node /node: "):
                parse("/node", data, notes)
