"""Connect strings, names, and the layouts of offsets in ZooKeeper: Kafka 0.7, later releases, and Storm's spouts."""

import contextlib
import json
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.cli.app import run
from offsetmgr.core.errors import CorruptData, InvalidUri, UsageError
from offsetmgr.core.model import BrokerPartition, TopicPartition
from offsetmgr.core.offset_store import GroupEdit, GroupEditResult
from offsetmgr.stores.zookeeper import ZookeeperStore
from offsetmgr.zookeeper.offsets import edits as bulk_edits
from offsetmgr.zookeeper.offsets.layouts import layout_named

NO_SESSION: Any = None
CONSUMERS, BROKERS, STORM = layout_named("0.8"), layout_named("0.7"), layout_named("storm", "/kafkastorm")
T0, T12 = TopicPartition("t", 0), TopicPartition("t", 12)
OLD = TopicPartition("t", BrokerPartition(1, 0))


# --- connect strings and URIs ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "uri"),
    [
        ("h1:2181,h2:2181/kafka/one", "h1:2181,h2:2181/kafka/one"),
        ("h1", "h1"),
        ("h1:2181/", "h1:2181"),
        ("[::1]:2181/k", "[::1]:2181/k"),
        (" h1:2181, h2:2181 ,h3/k ", "h1:2181,h2:2181,h3/k"),
    ],
)
def test_the_uri_names_hosts_chroot_and_layout(text: str, uri: str) -> None:
    with ZookeeperStore(text) as store:
        assert store.uri == f"zookeeper://{uri}?layout=0.8"
    with ZookeeperStore(text, layout="storm", root="/kafka/storm") as store:
        assert store.uri == f"zookeeper://{uri}?layout=storm&root=/kafka/storm"


@pytest.mark.parametrize("text", ["", "h1,,h2", "h:99999", "h:x", "h:1//a", "h:1/../a", "h 1:2", "user:sesame@h1:2181"])
def test_an_invalid_connect_string_is_rejected_and_its_credentials_are_not_shown(text: str) -> None:
    with pytest.raises(InvalidUri) as caught:
        ZookeeperStore(text)
    assert "sesame" not in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize("text", ["h1:2181/kafka,h2:2181/kafka", "h1/kafka,h2", "h1:2181/kafka, h2:2181"])
def test_a_chroot_before_the_last_host_is_rejected_in_every_form(text, capsys, monkeypatch):
    assert run(["groups", "list", "--zookeeper", text]) == 2
    assert run(["groups", "list", "--store", f"zookeeper://{text}"]) == 2
    monkeypatch.setenv("OFFSETMGR_ZOOKEEPER", text)
    assert run(["zk", "topics"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 6
    assert all("the chroot follows the last host only" in line for line in errors[::2])
    assert set(errors[1::2]) == {"hint: write the chroot once, at the end: h1:2181,h2:2181/chroot"}


# --- names and paths ------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", ["a/b", "", ".", "..", "a\x00b", "a\x1fb", "\ud800", "😀"])
def test_a_group_name_that_no_node_can_have_is_rejected(group: str) -> None:
    with pytest.raises(UsageError) as caught:
        CONSUMERS.offsets_root(group)
    assert "cannot exist in ZooKeeper" in str(caught.value)
    assert repr(group) in str(caught.value)


def test_the_paths_of_offsets_also_of_groups_with_unusual_names() -> None:
    for group in ("a.b", "-", "ü", "with space", "...", "a:b"):
        assert CONSUMERS.group_root(group) == f"/consumers/{group}"
    clicks = TopicPartition("clicks", 3)
    assert CONSUMERS.path("g", T12) == "/consumers/g/offsets/t/12"
    assert BROKERS.path("g", OLD) == "/consumers/g/offsets/t/1-0"
    assert STORM.path("discovery", clicks) == "/kafkastorm/discovery/partition_3"
    assert STORM.topic_directory("discovery", "clicks") == "/kafkastorm/discovery/clicks"


@pytest.mark.parametrize(
    ("layout", "partition", "why"),
    [
        (CONSUMERS, OLD, r"partition 1-0: is a partition of Kafka 0\.7"),
        (CONSUMERS, TopicPartition("t", -1), "negative"),
        (BROKERS, TopicPartition("t", 3), r"partition 3: is not a partition of Kafka 0\.7"),
    ],
)
def test_a_partition_of_another_layout_has_no_path(layout: Any, partition: TopicPartition, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        layout.path("g", partition)


@pytest.mark.parametrize(
    ("layout", "name", "partition"),
    [
        (CONSUMERS, "0", T0),
        (CONSUMERS, "12", T12),
        *((CONSUMERS, name, None) for name in ("0-0", "01", "", "-1", "x")),
        (BROKERS, "1-0", OLD),
        (BROKERS, "1", None),
    ],
)
def test_names_of_partitions(layout: Any, name: str, partition: TopicPartition | None) -> None:
    assert layout.partition("t", name) == partition


# --- data ---------------------------------------------------------------------------------------------


@given(st.integers(0, 2**63 - 1))
def test_every_offset_is_read_back(offset: int) -> None:
    assert CONSUMERS.decode("/x", CONSUMERS.encode(T0, offset, None), T0) == (T0, offset)
    assert CONSUMERS.encode(T0, offset, None) == str(offset).encode()
    for invalid in (-1 - offset, 2**63 + offset):
        with pytest.raises(UsageError, match="is not a valid offset"):
            CONSUMERS.encode(T0, invalid, None)


WRITTEN = (
    b'{"topology":{"id":"3c1f","name":"clicks"},"offset":4711,"partition":3,'
    b'"broker":{"host":"kafka7","port":9092},"topic":"clicks"}'
)
"""A node that storm-kafka's PartitionManager wrote."""


def test_a_spouts_node_is_read_and_its_other_fields_are_kept() -> None:
    clicks = TopicPartition("clicks", 3)
    assert STORM.decode("/x", WRITTEN, TopicPartition("", 3)) == (clicks, 4711)
    after = STORM.encode(clicks, 5000, WRITTEN[:-1] + b',"mine":[1,2]}')
    assert after == WRITTEN.replace(b"4711", b"5000")[:-1] + b',"mine":[1,2]}'
    assert json.loads(STORM.encode(clicks, 5000, None)) == {
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
def test_an_invalid_node_of_a_spout_is_unreadable_and_named(data: bytes, why: str) -> None:
    with pytest.raises(CorruptData) as caught:
        STORM.decode("/kafkastorm/g/partition_3", data, TopicPartition("", 3))
    assert caught.value.what == "ZooKeeper node /kafkastorm/g/partition_3"
    assert why in caught.value.why


@given(st.binary(max_size=80))
def test_any_bytes_of_a_spouts_node_give_a_value_or_a_typed_error(data: bytes) -> None:
    with contextlib.suppress(CorruptData):
        STORM.decode("/x", data, TopicPartition("", 3))


# --- partitions of Kafka 0.7 ------------------------------------------------------------------------------


@given(st.integers(0, 65_534), st.integers(0, 32_767))
def test_broker_and_partition_survive_every_conversion_and_equal_no_later_partition(broker, partition):
    tp = BrokerPartition(broker, partition)
    assert (tp.broker, tp.partition) == (broker, partition)
    assert str(tp) == f"{tp}" == f"{broker}-{partition}"
    assert -(2**31) <= tp < 0
    for copied in (BrokerPartition.parse(str(tp)), BrokerPartition.of(int(tp)), pickle.loads(pickle.dumps(tp))):
        assert isinstance(copied, BrokerPartition)
        assert copied == tp


def test_other_text_and_numbers_are_no_partition_of_0_7_and_its_partitions_sort_by_broker() -> None:
    for text in ("1", "1-", "-1", "01-0", "1-0-0", "65535-0", "0-32768", "a-b", "1-0\n", ""):
        assert BrokerPartition.parse(text) is None
    for broker, partition in ((-1, 0), (65_535, 0), (0, -1), (0, 32_768)):
        with pytest.raises(ValueError, match="65534"):
            BrokerPartition(broker, partition)
    for number in (0, 7, 2**31 - 1, -1, -(2**31) - 1):
        assert type(BrokerPartition.of(number)) is int
    unsorted = [BrokerPartition(broker, partition) for broker in (10, 2) for partition in (3, 0)]
    assert list(map(str, sorted(unsorted))) == ["2-0", "2-3", "10-0", "10-3"]


def test_the_results_of_a_batch_survive_an_error_of_the_batch_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def batch(_session: object, _layout: object, edits: list[GroupEdit]) -> Any:
        found = [GroupEditResult(edit.group, {}) for edit in edits if edit.group != "broken"]
        return SimpleNamespace(edits=edits, write=lambda: None, results=lambda: found or [].pop())

    for name, value in {"locate_directories": lambda *_: None, "CHANGES_PER_BATCH": 1, "EditBatch": batch}.items():
        monkeypatch.setattr(bulk_edits, name, value)
    results = bulk_edits.execute(NO_SESSION, CONSUMERS, [GroupEdit(name, {}) for name in ("broken", "second")])
    assert next(results).group == "second"
    with pytest.raises(IndexError):
        next(results)
