"""The table of the resources that each forwarded API names, and its refusals, in every version of every API."""

from __future__ import annotations

import dataclasses
import struct
import typing
import uuid
from typing import Any

import pytest
from kio.index import UnknownEntity, load_request_schema

from offsetmgr.core.errors import InvalidRequest
from offsetmgr.kafka.protocol.schema_codec import (
    Message,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    is_known,
)
from offsetmgr.server.network.api import ApiRequest
from offsetmgr.server.proxy import response_rewrite
from offsetmgr.server.proxy.api_resources import API_RESOURCES, error_response, hide_items, requested_items, with_items
from offsetmgr.server.proxy.forwarder import FORWARDED
from offsetmgr.server.proxy.request_filter import RequestFilter
from offsetmgr.server.proxy.topic_ids import fetched_ids
from offsetmgr.server.security.authorization import ADMIN_APIS, AllowAllAuthorizer, ReservedGroups

VERSIONS = [
    (key, version)
    for key, (_, highest) in FORWARDED.items()
    for version in range(highest + 1)
    if is_known(key, version)
]
NAMING = ("topic", "group", "transactional", "resource")
NAMELESS = {"transactional_id_pattern", "topic_authorized_operations", "include_topic_authorized_operations"}


def sample(schema: Any) -> Message:
    """A message with one item in each array and with sample names."""
    message: Message = {}
    hints = typing.get_type_hints(schema)
    for field in dataclasses.fields(schema):
        hint = hints[field.name]
        kinds = [hint, *typing.get_args(hint)]
        kinds += [inner for kind in list(kinds) for inner in typing.get_args(kind)]
        nested = next((kind for kind in kinds if dataclasses.is_dataclass(kind)), None)
        array = any(typing.get_origin(kind) is tuple for kind in kinds)
        value = _value(field.metadata.get("kafka_type", "")) if nested is None else sample(nested)
        message[field.name] = [value] if array else value
    return message


def _value(kind: str) -> Any:
    if kind == "string":
        return "name"
    if kind in ("bytes", "records"):
        return b"octets"
    if kind == "bool":
        return True
    if kind == "uuid":
        return uuid.UUID(int=7)
    if kind == "float64":
        return 1.5
    return 2


def fields(schema: Any) -> set[str]:
    """The fields that may name a resource, also those of nested messages."""
    found = set()
    for field, hint in typing.get_type_hints(schema).items():
        kinds = [hint, *typing.get_args(hint)]
        kinds += [inner for kind in list(kinds) for inner in typing.get_args(kind)]
        if any(part in field for part in NAMING) and field not in NAMELESS:
            found.add(field)
        for kind in kinds:
            if dataclasses.is_dataclass(kind):
                found |= fields(kind)
    return found


def test_every_api_that_the_relay_forwards_is_in_the_table() -> None:
    assert API_RESOURCES.keys() == FORWARDED.keys()
    assert {key: FORWARDED[key][0] for key in ADMIN_APIS} == ADMIN_APIS


def test_an_api_without_an_entry_is_rejected() -> None:
    """Such as APIs between brokers and controllers, offsets in transactions, other clients' transactions, features."""
    unused: Any = None
    request_filter = RequestFilter(
        unused, unused, AllowAllAuthorizer(), ReservedGroups("offsets", "group", "offsets-shard-group-")
    )
    for key in range(100):
        if key not in FORWARDED:
            request = ApiRequest(unused, struct.pack(">ihhi", 8, key, 0, 1))
            with pytest.raises(InvalidRequest, match=f"API {key}: the relay cannot determine which"):
                request_filter.filter(request, unused)
    assert not FORWARDED.keys() & {4, 5, 6, 7, 25, 27, 28, 29, 30, 31, 50, 51, 56, 57, 58, 59, 63, 67, 68}
    assert FORWARDED[1][1] == 15, "a newer Fetch has another header: see topic_ids"


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_the_table_covers_every_field_that_names_a_resource(key: int, version: int) -> None:
    resources = API_RESOURCES[key]
    named = fields(load_request_schema(key, version))
    known = {*resources.items, resources.name, resources.transactional_id, "topic_id", "resource_type"}
    elsewhere = {
        1: {"forgotten_topics_data"},  # topics that the client stops fetching
        34: {"topics"},  # within directories
        55: {"topics", "topic_name"},  # topics of the controllers' own log
        74: {"resource_types"},
        75: {"cursor", "topic_name"},  # the next position in a list; the relay checks the response
    }
    assert named <= known | elsewhere.get(key, set())


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_error_items_are_encoded_in_place_of_the_brokers_items(key: int, version: int) -> None:
    resources = API_RESOURCES[key]
    body = encode_request(key, version, sample(load_request_schema(key, version)))
    decoded = decode_request(key, version, body, 0)
    items = requested_items(resources, decoded)
    assert items is None or not resources.items or len(items) == 1
    assert decode_request(key, version, encode_request(key, version, with_items(resources, decoded, [])), 0) is not None
    if key in (71, 72):
        return
    message = error_response(resources, decoded, [29] * len(items or ()), 31)
    answer = decode_response(key, version, encode_response(key, version, message), 0)
    found = list(_codes(answer))
    if resources.error_item is not None and items:
        assert 29 in found
        assert len(answer[resources.response_items]) == 1
        assert _names(answer[resources.response_items][0]) >= _names(items[0]) & {"name", uuid.UUID(int=7)}
    elif key != 75 and not (key == 35 and version < 3) and not (key == 43 and version == 0):
        assert found == [31]
    if resources.visible_items is not None:
        assert hide_items(resources, answer, lambda _kind, _item: True)


def _codes(value: Any) -> typing.Iterator[int]:
    if isinstance(value, dict):
        for field, inner in value.items():
            if field in ("error_code", "partition_error_code"):
                if inner:
                    yield inner
            else:
                yield from _codes(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _codes(inner)


def _names(value: Any) -> set[Any]:
    if isinstance(value, dict):
        return set().union(*map(_names, value.values())) if value else set()
    if isinstance(value, list):
        return set().union(*map(_names, value)) if value else set()
    return {value} if isinstance(value, str | uuid.UUID) else set()


@pytest.mark.parametrize("version", [13, 14, 15])
def test_the_ids_of_a_fetch_are_read_without_decoding_it(version: int) -> None:
    ids = [uuid.UUID(int=number) for number in (5, 6)]
    partition = {
        "partition": 0, "current_leader_epoch": -1, "fetch_offset": 0, "last_fetched_epoch": -1, "log_start_offset": -1,
        "partition_max_bytes": 1,
    }  # fmt: skip
    message = {
        "replica_id": -1, "max_wait": 1, "min_bytes": 1, "max_bytes": 1, "isolation_level": 0, "session_id": 0,
        "session_epoch": 0, "forgotten_topics_data": [], "rack_id": "",
        "topics": [{"topic_id": one, "partitions": [partition] * number} for number, one in enumerate(ids, 1)],
    }  # fmt: skip
    body = encode_request(1, version, message)
    assert fetched_ids(body, 0, version) == ids
    tagged = bytearray(body)
    at = body.index(ids[0].bytes) + 16 + 1 + 32
    tagged[at : at + 1] = b"\x01\x05\x00"  # one tagged field, number 5, empty
    assert fetched_ids(bytes(tagged), 0, version) is None
    assert [topic["topic_id"] for topic in decode_request(1, version, bytes(tagged), 0)["topics"]] == ids


@pytest.mark.parametrize("version", range(response_rewrite.MAX_VERSION + 1))
@pytest.mark.parametrize("name", ["__offsetmgr_offsets", "long-" * 20, "t", "absent-topic"])
def test_a_topic_is_removed_from_metadata(version: int, name: str) -> None:
    partition = {
        "error_code": 0, "partition_index": 0, "leader_id": 1, "leader_epoch": 3, "replica_nodes": [1, 2],
        "isr_nodes": [1], "offline_replicas": [2],
    }  # fmt: skip
    names = [f"x{name}", f"{name}x", f"before-{name}", name, "orders", f"behind-{name}"]
    topics = [
        {
            "error_code": 0,
            "name": each,
            "topic_id": uuid.UUID(int=number),
            "is_internal": False,
            "partitions": [{**partition, "partition_index": n} for n in range(number)],
        }
        for number, each in enumerate(names, 1)
        if each != "absent-topic"
    ]
    message = {
        "brokers": [{"node_id": 1, "host": name, "port": 9092, "rack": name}],
        "error_code": 0,
        "cluster_id": name,
        "controller_id": 1,
        "topics": topics,
    }
    body = encode_response(3, version, message)
    head = struct.pack(">i", 77) + (b"\0" if version >= response_rewrite.FLEXIBLE else b"")
    frame = struct.pack(">i", len(head) + len(body)) + head + body
    cut = response_rewrite.without_topic(frame, version, name)
    if name in ("t", "absent-topic"):
        assert cut is None
        return
    assert cut is not None
    assert struct.unpack_from(">ii", cut) == (len(cut) - 4, 77)
    before = decode_response(3, version, frame, 4 + len(head))
    after = decode_response(3, version, cut, 4 + len(head))
    assert after == {**before, "topics": [topic for topic in before["topics"] if topic["name"] != name]}
    assert len(after["topics"]) == len(before["topics"]) - 1


def test_a_version_without_a_schema_is_unknown() -> None:
    assert not is_known(0, 0)
    with pytest.raises(UnknownEntity):
        load_request_schema(0, 0)
