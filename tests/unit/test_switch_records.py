"""Pure parts of a switch: the content of its nodes, and the URIs of switched stores."""

from __future__ import annotations

import pytest

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.core.errors import CorruptData, InvalidUri, OffsetMgrError, UnknownVersion
from offsetmgr.stores.pair_uri import inner_uris
from offsetmgr.stores.switched.mode_listener import mode_after_abandoned_switch
from offsetmgr.stores.switched.records import (
    FollowerNode,
    StorageModeNode,
    SwitcherNode,
    decode_follower,
    decode_storage,
    decode_switcher,
    encode_follower,
    encode_storage,
    encode_switcher,
)
from offsetmgr.stores.uri import bootstrap_of, open_store, parse_uri, zookeeper_of

URI = "switched:?zookeeper=zookeeper%3A%2F%2Fz%3A2181%2Fk&kafka=kafka%3A%2F%2Fb%3A9092"


def test_the_nodes_are_json_with_a_version() -> None:
    storage = StorageModeNode(CommitMode.DUAL, 7, "ann on h", 1_700_000_000_000, CommitMode.KAFKA)

    assert encode_storage(storage) == (
        b'{"version":2,"mode":"dual","epoch":7,"who":"ann on h","when":1700000000000,"switching_to":"kafka"}'
    )
    assert encode_follower(FollowerNode(7, "h", 12)) == b'{"version":2,"epoch":7,"host":"h","process":12}'
    assert encode_switcher(SwitcherNode("ann")) == b'{"version":2,"who":"ann"}'


def test_written_nodes_are_read_back() -> None:
    for storage in (
        StorageModeNode(CommitMode.ZOOKEEPER, 1, "a", 2),
        StorageModeNode(CommitMode.KAFKA, 2, "b", 3, CommitMode.DUAL),
    ):
        assert decode_storage("/s", encode_storage(storage)) == storage
    assert decode_follower("/s/m", encode_follower(FollowerNode(3, "h", 4))) == FollowerNode(3, "h", 4)
    assert decode_switcher("/w", encode_switcher(SwitcherNode("x"))) == SwitcherNode("x")


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", CorruptData),
        (b"kafka", CorruptData),
        (b"[]", CorruptData),
        (b'{"version":3,"mode":"kafka"}', UnknownVersion),
        (b'{"version":2,"mode":"file","epoch":1,"who":"","when":1,"switching_to":null}', CorruptData),
        (b'{"version":2,"mode":"kafka","epoch":-1,"who":"","when":1,"switching_to":null}', CorruptData),
        (b'{"version":2,"mode":"kafka","epoch":true,"who":"","when":1,"switching_to":null}', CorruptData),
        (b'{"version":2,"mode":"kafka","epoch":1,"who":"","when":1}', CorruptData),
        (b'{"version":2,"mode":"kafka","epoch":1,"who":5,"when":1,"switching_to":null}', CorruptData),
    ],
)
def test_an_invalid_node_is_an_error_and_never_a_mode(data: bytes, kind: type[OffsetMgrError]) -> None:
    with pytest.raises(kind, match="/offsetmgr/groups/g/storage"):
        decode_storage("/offsetmgr/groups/g/storage", data)


def test_an_abandoned_switch_is_a_new_epoch_of_the_old_mode() -> None:
    storage = StorageModeNode(CommitMode.DUAL, 7, "ann", 5, CommitMode.KAFKA)

    assert mode_after_abandoned_switch(storage, "bob", 9) == StorageModeNode(CommitMode.DUAL, 8, "bob", 9, None)


def test_a_switched_store_consists_of_a_zookeeper_and_a_kafka_store() -> None:
    config = ConnectionConfig(stores={"x": {"zookeeper": "zookeeper://z:2181", "kafka": "manager://m:9192"}})

    assert inner_uris(URI, ConnectionConfig()) == ("zookeeper://z:2181/k", "kafka://b:9092")
    assert (zookeeper_of(URI, config), bootstrap_of(URI, config)) == ("z:2181/k", "b:9092")
    assert inner_uris("switched:x", config) == ("zookeeper://z:2181", "manager://m:9192")
    assert open_store(URI + "&start=dual").uri == URI + "&start=dual"


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("switched:", "needs either the name"),
        (URI + "&start=both", "unknown mode 'both'"),
        ("switched:?zookeeper=zookeeper%3A%2F%2Fz%3A2181", "needs either the name"),
        ("switched:?primary=a&secondary=b", "unknown option 'primary'"),
    ],
)
def test_an_invalid_uri_is_rejected(uri: str, why: str) -> None:
    with pytest.raises(InvalidUri, match=why):
        parse_uri(uri)


@pytest.mark.parametrize(
    "inner",
    [
        {"zookeeper": "kafka://h:1", "kafka": "kafka://h:1"},
        {"zookeeper": "zookeeper://h:1?layout=0.7", "kafka": "kafka://h:1"},
        {"zookeeper": "zookeeper://h:1", "kafka": "file:x.avro"},
        {"primary": "kafka://h:1", "secondary": "zookeeper://h:1"},
    ],
)
def test_unsuitable_pairs_of_stores_are_rejected(inner: dict[str, str]) -> None:
    with pytest.raises(InvalidUri):
        open_store("switched:x", ConnectionConfig(stores={"x": inner}))
