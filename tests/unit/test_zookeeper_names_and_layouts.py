"""Paths, layouts of offsets and JSON nodes of Kafka in ZooKeeper: pure functions that return values or clear errors."""

from __future__ import annotations

import contextlib
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.cli.app import run
from offsetmgr.core.errors import CorruptData, InvalidUri, OffsetMgrError, UnknownVersion, UsageError
from offsetmgr.core.model import BrokerPartition, TopicPartition
from offsetmgr.stores.uri import open_store
from offsetmgr.stores.zookeeper import ZookeeperStore
from offsetmgr.zookeeper.client.connection import parse_connect
from offsetmgr.zookeeper.nodes import paths
from offsetmgr.zookeeper.nodes.brokers import BrokerEndpoint, RegisteredBroker, parse_broker
from offsetmgr.zookeeper.nodes.cluster import parse_cluster_id
from offsetmgr.zookeeper.nodes.consumers import ConsumerRegistration, parse_registration
from offsetmgr.zookeeper.nodes.member_id import parse_member_id
from offsetmgr.zookeeper.offsets.layouts import ConsumersLayout, layout_named
from offsetmgr.zookeeper.offsets.storm_layout import StormLayout

LAYOUT = ConsumersLayout()
T0 = TopicPartition("t", 0)


class TestPaths:
    def test_the_nodes_of_a_group(self) -> None:
        assert paths.ids("g") == "/consumers/g/ids"
        assert paths.member("g", "g_host-1-ab") == "/consumers/g/ids/g_host-1-ab"
        assert paths.owner("g", "t", 3) == "/consumers/g/owners/t/3"
        assert paths.offset("g", "t", 3) == "/consumers/g/offsets/t/3"

    def test_the_nodes_of_a_cluster(self) -> None:
        assert paths.broker(7) == "/brokers/ids/7"
        assert paths.topic("t") == "/brokers/topics/t"
        assert paths.partition_state("t", 0) == "/brokers/topics/t/partitions/0/state"

    @pytest.mark.parametrize("group", ["a/b", "", ".", "..", "a\x00b", "a\x1fb", "\ud800", "😀"])
    def test_a_group_name_that_no_node_can_have_is_rejected(self, group: str) -> None:
        with pytest.raises(UsageError) as caught:
            paths.offsets(group)
        assert "cannot exist in ZooKeeper" in str(caught.value)
        assert repr(group) in str(caught.value) or group == ""

    @pytest.mark.parametrize("group", ["a.b", "-", "ü", "with space", "...", "a:b"])
    def test_unusual_group_names_that_a_node_can_have_are_accepted(self, group: str) -> None:
        assert paths.group(group) == f"/consumers/{group}"

    def test_a_negative_partition_is_rejected(self) -> None:
        with pytest.raises(UsageError, match="negative"):
            paths.offset("g", "t", -1)


class TestConnectString:
    @pytest.mark.parametrize(
        ("text", "hosts", "chroot"),
        [
            ("h1:2181,h2:2181/kafka/one", "h1:2181,h2:2181", "/kafka/one"),
            ("h1", "h1", ""),
            ("h1:2181/", "h1:2181", ""),
            ("[::1]:2181/k", "[::1]:2181", "/k"),
            (" h1:2181, h2:2181 ,h3/k ", "h1:2181,h2:2181,h3", "/k"),
        ],
    )
    def test_hosts_and_chroot(self, text: str, hosts: str, chroot: str) -> None:
        assert parse_connect(text) == (hosts, chroot)

    @pytest.mark.parametrize("text", ["", "h1,,h2", "h:99999", "h:x", "h:1//a", "h:1/../a", "h 1:2"])
    def test_an_invalid_connect_string_is_rejected(self, text: str) -> None:
        with pytest.raises(InvalidUri):
            parse_connect(text)

    @pytest.mark.parametrize("text", ["h1:2181/kafka,h2:2181/kafka", "h1/kafka,h2", "h1:2181/kafka, h2:2181"])
    def test_a_chroot_before_the_last_host_is_rejected_in_every_form(
        self, text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(InvalidUri, match="the chroot follows the last host only"):
            parse_connect(text)
        with pytest.raises(InvalidUri, match="the chroot follows the last host only"):
            open_store(f"zookeeper://{text}")
        assert run(["groups", "list", "--zookeeper", text]) == 2
        monkeypatch.setenv("OFFSETMGR_ZOOKEEPER", text)
        assert run(["zk", "topics"]) == 2
        errors = capsys.readouterr().err.splitlines()
        assert len(errors) == 4
        assert all("the chroot follows the last host only" in line for line in errors[::2])
        assert set(errors[1::2]) == {"hint: write the chroot once, at the end: h1:2181,h2:2181/chroot"}

    def test_credentials_in_a_connect_string_are_rejected_and_not_shown(self) -> None:
        with pytest.raises(InvalidUri) as caught:
            parse_connect("user:sesame@h1:2181")
        assert "sesame" not in str(caught.value)


class TestStoreBeforeConnecting:
    def test_the_uri_names_chroot_and_layout(self) -> None:
        with ZookeeperStore("h1:2181,h2:2181/kafka") as store:
            assert store.uri == "zookeeper://h1:2181,h2:2181/kafka?layout=0.8"

    def test_the_uri_names_the_spouts_root(self) -> None:
        with ZookeeperStore("h:2181", layout="storm", root="/kafka/storm") as store:
            assert store.uri == "zookeeper://h:2181?layout=storm&root=/kafka/storm"

    def test_an_unknown_layout_and_an_invalid_root_are_rejected(self) -> None:
        with pytest.raises(UsageError, match=r"0\.9"):
            layout_named("0.9")
        with pytest.raises(UsageError, match="takes no root"):
            layout_named("0.7", "/storm")
        for root in ("", "storm", "/", "/a//b", "/a/../b", "/a/"):
            with pytest.raises(UsageError, match="absolute path"):
                layout_named("storm", root)


class TestConsumersLayout:
    def test_the_path_of_an_offset(self) -> None:
        assert LAYOUT.path("g", TopicPartition("t", 12)) == "/consumers/g/offsets/t/12"
        assert paths.with_ancestors("/consumers/g/offsets/t") == (
            "/consumers",
            "/consumers/g",
            "/consumers/g/offsets",
            "/consumers/g/offsets/t",
        )

    def test_a_partition_of_kafka_0_7_has_no_path(self) -> None:
        with pytest.raises(UsageError, match=r"partition 1-0: is a partition of Kafka 0\.7"):
            LAYOUT.path("g", TopicPartition("t", BrokerPartition(1, 0)))

    @given(st.integers(0, 2**63 - 1))
    def test_every_offset_is_read_back(self, offset: int) -> None:
        assert LAYOUT.decode("/x", LAYOUT.encode(T0, offset, None), T0) == (T0, offset)
        assert LAYOUT.encode(T0, offset, None) == str(offset).encode()

    @pytest.mark.parametrize("offset", [-1, 2**63])
    def test_an_invalid_offset_is_not_written(self, offset: int) -> None:
        with pytest.raises(UsageError, match="is not a valid offset"):
            LAYOUT.encode(T0, offset, None)

    @pytest.mark.parametrize(
        ("data", "why"),
        [
            (b"", "is empty"),
            (b"-1", "negative"),
            (b"abc", "not a decimal number"),
            (b"1_0", "not a decimal number"),
            (b" 7", "not a decimal number"),
            (b"7\n", "not a decimal number"),
            (b"\xff\x00", "not a decimal number"),
            ("٣".encode(), "not a decimal number"),
            (b"9223372036854775808", "beyond the largest"),
        ],
    )
    def test_invalid_data_is_unreadable_and_the_node_is_named(self, data: bytes, why: str) -> None:
        with pytest.raises(CorruptData) as caught:
            LAYOUT.decode("/consumers/g/offsets/t/0", data, T0)
        assert "/consumers/g/offsets/t/0" in str(caught.value)
        assert why in str(caught.value)

    @pytest.mark.parametrize(
        ("name", "partition"),
        [("0", 0), ("17", 17), ("0-0", None), ("01", None), ("", None), ("-1", None), ("x", None)],
    )
    def test_names_of_partitions(self, name: str, partition: int | None) -> None:
        expected = None if partition is None else TopicPartition("t", partition)
        assert LAYOUT.partition("t", name) == expected


class TestNodes:
    def test_a_registration_of_an_old_consumer(self) -> None:
        data = b'{"version":1,"subscription":{"orders":2},"pattern":"static","timestamp":"1700000000123"}'
        assert parse_registration("/x", data) == ConsumerRegistration({"orders": 2}, "static", 1700000000123)

    def test_a_registration_with_a_pattern(self) -> None:
        data = b'{"version":1,"subscription":{"a|b":1},"pattern":"white_list","timestamp":1}'
        assert parse_registration("/x", data) == ConsumerRegistration({"a|b": 1}, "white_list", 1)

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"{",
            b"[]",
            b"\xff",
            b"{}",
            b'{"version":1}',
            b'{"version":1,"subscription":{"t":"many"}}',
            b'{"version":1,"subscription":{"t":1},"timestamp":"yesterday"}',
            b'{"version":1,"subscription":{"t":1},"pattern":7}',
            b"[" * 100_000,
        ],
    )
    def test_a_broken_registration_is_unreadable_and_named(self, data: bytes) -> None:
        with pytest.raises(CorruptData, match="/consumers/g/ids/c"):
            parse_registration("/consumers/g/ids/c", data)

    def test_an_unknown_version_is_named(self) -> None:
        with pytest.raises(UnknownVersion, match=r"/x.*version 9"):
            parse_registration("/x", b'{"version":9}')

    def test_a_broker_of_kafka_3(self) -> None:
        data = json.dumps(
            {
                "features": {},
                "listener_security_protocol_map": {"INTERNAL": "PLAINTEXT", "OUT": "SASL_SSL"},
                "endpoints": ["INTERNAL://h1:9092", "OUT://[::1]:9093"],
                "rack": "r1",
                "jmx_port": -1,
                "port": -1,
                "host": None,
                "version": 5,
                "timestamp": "1700000000123",
            }
        ).encode()
        assert parse_broker("/brokers/ids/3", 3, data) == RegisteredBroker(
            3,
            (BrokerEndpoint("INTERNAL", "h1", 9092), BrokerEndpoint("OUT", "::1", 9093)),
            "r1",
            {"INTERNAL": "PLAINTEXT", "OUT": "SASL_SSL"},
            version=5,
            timestamp_ms=1700000000123,
        )

    def test_a_broker_of_kafka_0_8(self) -> None:
        data = b'{"version":1,"host":"h1","port":9092,"jmx_port":-1,"timestamp":"1"}'
        address = BrokerEndpoint("PLAINTEXT", "h1", 9092)
        assert parse_broker("/brokers/ids/0", 0, data) == RegisteredBroker(0, (address,), version=1, timestamp_ms=1)

    @pytest.mark.parametrize(
        "data",
        [
            b"null",
            b'{"version":1,"host":"h"}',
            b'{"version":4,"endpoints":[]}',
            b'{"version":4,"endpoints":["h:9092"]}',
            b'{"version":4,"endpoints":["A://h:1"],"rack":3}',
        ],
    )
    def test_a_broken_broker_is_unreadable_and_named(self, data: bytes) -> None:
        with pytest.raises(CorruptData, match="/brokers/ids/0"):
            parse_broker("/brokers/ids/0", 0, data)

    def test_a_cluster_id(self) -> None:
        assert parse_cluster_id("/cluster/id", b'{"version":"1","id":"abcDEF"}') == "abcDEF"
        with pytest.raises(CorruptData, match="/cluster/id"):
            parse_cluster_id("/cluster/id", b'{"version":"1"}')

    @given(st.binary(max_size=60))
    def test_any_bytes_give_a_value_or_a_typed_error(self, data: bytes) -> None:
        for parse in (parse_registration, parse_cluster_id):
            try:
                parse("/node", data)
            except OffsetMgrError as error:
                assert "/node" in error.what


class TestMemberIds:
    def test_host_and_start_of_a_generated_id(self) -> None:
        assert parse_member_id("g", "g_db-7.example.org-1700000000123-1a2b3c4d") == ("db-7.example.org", 1700000000123)

    def test_a_group_with_underscores_and_dashes(self) -> None:
        assert parse_member_id("my_g-1", "my_g-1_host-1700000000123-1a2b3c4d") == ("host", 1700000000123)

    @pytest.mark.parametrize("member", ["g_worker-1", "worker", "other_host-1700000000123-1a2b3c4d", "g_"])
    def test_a_configured_id_gives_no_host_and_no_time(self, member: str) -> None:
        assert parse_member_id("g", member) is None


class TestPartitionsOfKafka07:
    @given(st.integers(0, 65_534), st.integers(0, 32_767))
    def test_both_numbers_survive_every_conversion(self, broker: int, partition: int) -> None:
        tp = BrokerPartition(broker, partition)

        assert (tp.broker, tp.partition) == (broker, partition)
        assert str(tp) == f"{tp}" == f"{broker}-{partition}"
        for copied in (BrokerPartition.parse(str(tp)), BrokerPartition.of(int(tp)), pickle.loads(pickle.dumps(tp))):
            assert isinstance(copied, BrokerPartition)
            assert copied == tp

    @given(st.integers(0, 65_534), st.integers(0, 32_767))
    def test_no_partition_of_0_7_equals_a_later_one_and_all_fit_32_bits(self, broker: int, partition: int) -> None:
        assert -(2**31) <= BrokerPartition(broker, partition) < 0

    def test_they_sort_by_broker_then_partition(self) -> None:
        assert [str(tp) for tp in sorted(BrokerPartition(b, p) for b in (10, 2) for p in (3, 0))] == [
            "2-0",
            "2-3",
            "10-0",
            "10-3",
        ]

    @pytest.mark.parametrize("text", ["1", "1-", "-1", "01-0", "1-0-0", "65535-0", "0-32768", "a-b", "1-0\n", ""])
    def test_invalid_text_is_not_a_partition(self, text: str) -> None:
        assert BrokerPartition.parse(text) is None

    @pytest.mark.parametrize(("broker", "partition"), [(-1, 0), (65_535, 0), (0, -1), (0, 32_768)])
    def test_numbers_out_of_range_are_rejected(self, broker: int, partition: int) -> None:
        with pytest.raises(ValueError, match="65534"):
            BrokerPartition(broker, partition)

    @pytest.mark.parametrize("number", [0, 7, 2**31 - 1, -1, -(2**31) - 1])
    def test_other_numbers_are_unchanged(self, number: int) -> None:
        assert type(BrokerPartition.of(number)) is int

    def test_the_layout_of_kafka_0_7(self) -> None:
        layout = layout_named("0.7")

        assert layout.path("g", TopicPartition("t", BrokerPartition(1, 0))) == "/consumers/g/offsets/t/1-0"
        assert layout.partition("t", "1-0") == TopicPartition("t", BrokerPartition(1, 0))
        assert layout.partition("t", "1") is None
        with pytest.raises(UsageError, match=r"partition 3: is not a partition of Kafka 0\.7"):
            layout.path("g", TopicPartition("t", 3))


class TestStormLayout:
    """The nodes that storm-kafka's PartitionManager writes and reads."""

    LAYOUT = StormLayout("/kafkastorm")
    WRITTEN = (
        b'{"topology":{"id":"3c1f","name":"clicks"},"offset":4711,"partition":3,'
        b'"broker":{"host":"kafka7","port":9092},"topic":"clicks"}'
    )

    def test_the_path_of_an_offset(self) -> None:
        assert self.LAYOUT.path("discovery", TopicPartition("clicks", 3)) == "/kafkastorm/discovery/partition_3"
        assert self.LAYOUT.topic_directory("discovery", "clicks") == "/kafkastorm/discovery/clicks"

    def test_the_topic_is_read_from_the_node(self) -> None:
        found = self.LAYOUT.decode("/x", self.WRITTEN, TopicPartition("", 3))

        assert found == (TopicPartition("clicks", 3), 4711)

    def test_other_fields_of_the_topology_are_kept(self) -> None:
        after = self.LAYOUT.encode(TopicPartition("clicks", 3), 5000, self.WRITTEN[:-1] + b',"mine":[1,2]}')

        assert after == self.WRITTEN.replace(b"4711", b"5000")[:-1] + b',"mine":[1,2]}'

    def test_a_new_node_has_the_fields_that_a_spout_reads(self) -> None:
        node = json.loads(self.LAYOUT.encode(TopicPartition("clicks", 3), 5000, None))

        assert node == {
            "topology": {"id": "offsetmgr", "name": "offsetmgr"},
            "offset": 5000,
            "partition": 3,
            "broker": {"host": "", "port": 0},
            "topic": "clicks",
        }

    @pytest.mark.parametrize(
        ("data", "why"),
        [
            (b"", "is empty"),
            (b"4711", "not an object"),
            (b"{", "not JSON"),
            (b"\xff", "not UTF-8"),
            (b"[" * 100_000, "nested too deeply"),
            (b'{"topic":"t","partition":3}', "'offset' is missing"),
            (b'{"topic":"t","partition":3,"offset":-1}', "'offset' is -1"),
            (b'{"topic":"t","partition":3,"offset":"7"}', "'offset' is \"7\""),
            (b'{"topic":"t","partition":3,"offset":true}', "'offset' is true"),
            (b'{"topic":"t","partition":3,"offset":1e3}', "'offset' is 1000.0"),
            (b'{"topic":"t","partition":3,"offset":9223372036854775808}', "'offset' is 9223372036854775808"),
            (b'{"partition":3,"offset":7}', "'topic' is missing"),
            (b'{"topic":"t","partition":4,"offset":7}', "'partition' is 4, but its name contains 3"),
        ],
    )
    def test_invalid_data_is_unreadable_and_the_node_is_named(self, data: bytes, why: str) -> None:
        with pytest.raises(CorruptData) as caught:
            self.LAYOUT.decode("/kafkastorm/g/partition_3", data, TopicPartition("", 3))

        assert caught.value.what == "ZooKeeper node /kafkastorm/g/partition_3"
        assert why in caught.value.why

    @given(st.binary(max_size=80))
    def test_any_bytes_give_a_value_or_a_typed_error(self, data: bytes) -> None:
        with contextlib.suppress(CorruptData):
            self.LAYOUT.decode("/x", data, TopicPartition("", 3))
