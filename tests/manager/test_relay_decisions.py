"""The decisions of the relay without I/O: the resources that each forwarded API names and its refusal in every version,
and the commits of members that need no request to the coordinator."""

import dataclasses
import typing
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from kio.index import UnknownAPIKey, UnknownEntity, load_request_schema, load_response_schema
from processes import fails
from running_relay import FORWARDED

from offsetmgr.kafka.protocol.schema_codec import (
    Message,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from offsetmgr.server.proxy.api_resources import API_RESOURCES, error_response, hide_items, requested_items, with_items
from offsetmgr.server.proxy.member_fence import EMPTY_GROUP_LIFETIME_S, EVIDENCE_LIFETIME_S, MemberFence

# --- resources -------------------------------------------------------------------------------------------------


def is_known(key: int, version: int) -> bool:
    """Whether kio has this version; Kafka 4 has removed some."""
    return not fails((UnknownAPIKey, UnknownEntity), load_request_schema, key, version)


VERSIONS = [(key, version) for key, high in FORWARDED.items() for version in range(high + 1) if is_known(key, version)]
NAMING = ("topic", "group", "transactional", "resource")
NAMELESS = {"transactional_id_pattern", "topic_authorized_operations", "include_topic_authorized_operations"}
VALUES: dict[str, Any] = {
    "string": "name", "bytes": b"octets", "records": b"octets", "bool": True, "uuid": uuid.UUID(int=7), "float64": 1.5,
}  # fmt: skip


def fields_of(schema: Any) -> typing.Iterator[tuple[dataclasses.Field[Any], Any, bool]]:
    """Each field of a message, the schema of its items if it has one, and whether it is an array."""
    hints = typing.get_type_hints(schema)
    for field in dataclasses.fields(schema):
        kinds = [hints[field.name], *typing.get_args(hints[field.name])]
        kinds += [inner for kind in list(kinds) for inner in typing.get_args(kind)]
        nested = next((kind for kind in kinds if dataclasses.is_dataclass(kind)), None)
        yield field, nested, any(typing.get_origin(kind) is tuple for kind in kinds)


def sample(schema: Any) -> Message:
    """A message with one item in each array and with sample names."""
    message: Message = {}
    for field, nested, array in fields_of(schema):
        value = sample(nested) if nested else VALUES.get(field.metadata.get("kafka_type", ""), 2)
        message[field.name] = [value] if array else value
    return message


def names(schema: Any) -> set[str]:
    """The names of a message's fields, also those of nested messages."""
    found = set()
    for field, nested, _ in fields_of(schema):
        found |= {field.name} | (names(nested) if nested else set())
    return found


def fields(schema: Any) -> set[str]:
    """The fields that may name a resource."""
    return {name for name in names(schema) if any(part in name for part in NAMING)} - NAMELESS


@pytest.mark.parametrize("key", FORWARDED)
def test_no_forwarded_version_names_a_broker_or_a_group(key: int) -> None:
    """Also in tagged fields: those of Produce from version 10 and Fetch from 16 name new leaders (KIP-951)."""
    versions = [version for version in range(FORWARDED[key] + 1) if is_known(key, version)]
    assert versions
    for version in versions:
        assert "group_id" not in names(load_request_schema(key, version))
        assert not names(load_response_schema(key, version)) & {"host", "node_endpoints", "listeners"}
    if key in (0, 1):
        assert "node_endpoints" in names(load_response_schema(key, FORWARDED[key] + 1))


def test_every_api_that_the_relay_forwards_is_in_the_table() -> None:
    assert API_RESOURCES.keys() == FORWARDED.keys()


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


# --- members ---------------------------------------------------------------------------------------------------


ILLEGAL_GENERATION, UNKNOWN_MEMBER, REBALANCING = 22, 25, 27
OWNED = ("g", 1)
"""The group of all calls, and its ownership epoch."""


class Fence:
    """A fence that knows member ``m`` of generation 5 at time 0, unless ``known`` is false."""

    def __init__(self, *, known: bool) -> None:
        self.fence = MemberFence()
        self.evidence = self.epoch()
        """The evidence epoch after the set-up: that of the requests with late responses."""
        if known:
            self.join(5)
            self.sync(5, "m")
            self.evidence = self.epoch()

    def epoch(self) -> int:
        return self.fence.evidence_epoch(*OWNED)

    def join(self, generation: int, static: bool = False) -> None:
        self.fence.on_join_response(*OWNED, generation, static=static)

    def session(self, seconds: float) -> None:
        self.fence.on_join_request(*OWNED, seconds)

    def sync(self, generation: int, member: str) -> None:
        self.fence.on_sync_response(*OWNED, self.epoch(), generation, member, 0.0)

    def heartbeat(self, now: float, *, late: bool = False) -> None:
        self.fence.on_heartbeat_response(*OWNED, self.evidence if late else self.epoch(), 5, "m", now)

    def member_proof(self, generation: int, *, late: bool = False, epoch: int = 1) -> None:
        self.fence.on_member_proof("g", epoch, self.evidence if late else self.epoch(), generation, "m", 0.0)

    def group_proof(self, empty: bool, *, late: bool = False, sent: float = 0.0) -> None:
        self.fence.on_group_proof(*OWNED, self.evidence if late else self.epoch(), empty=empty, sent=sent)

    def leave(self) -> None:
        self.fence.on_leave("g")

    def check(self, code: int | None, generation: int = 5, member: str = "m", now: float = 0.0, epoch: int = 1) -> None:
        """Checks a commit. The code is None if the coordinator has to confirm the member."""
        assert self.fence.check_commit("g", epoch, generation, member, now) == code


KNOWN: dict[str, Callable[[Fence], object]] = {
    "evidence expires":
        lambda f: (f.check(0, now=EVIDENCE_LIFETIME_S - 0.01), f.check(None, now=EVIDENCE_LIFETIME_S)),
    "a newer generation ends the older one at once, also before its SyncGroup":
        lambda f: (f.join(6), f.check(ILLEGAL_GENERATION), f.check(REBALANCING, 6, "n"), f.sync(6, "n"),
                   f.check(0, 6, "n")),
    "a late response is no evidence":
        lambda f: (f.join(6), f.join(5), f.heartbeat(0, late=True), f.member_proof(5, late=True),
                   f.check(ILLEGAL_GENERATION)),
    "a heartbeat is no evidence after a replacement of a static member":
        lambda f: (f.join(5, True), f.heartbeat(0, late=True), f.heartbeat(0), f.check(None)),
    "a dynamic member joins in the same generation": lambda f: (f.join(5), f.check(0)),
    "heartbeats extend the evidence unless a gap is as long as a session":
        lambda f: (f.heartbeat(3.0), f.check(0, now=4.0), f.heartbeat(8.0), f.check(None, now=8.0)),
    "a short session timeout": lambda f: (f.session(1.0), f.check(0, now=0.4), f.check(None, now=0.6)),
    "a new ownership epoch starts without evidence":
        lambda f: (f.check(None, epoch=2), f.member_proof(5, epoch=2), f.check(None, 4, epoch=2)),
    "an empty group has no members": lambda f: (f.group_proof(True, sent=0.5), f.check(None, now=0.5)),
    "a leave ends the evidence": lambda f: (f.leave(), f.check(None), f.member_proof(5, late=True), f.check(None)),
}  # fmt: skip
UNKNOWN: dict[str, Callable[[Fence], object]] = {
    "a member proof sets the newest generation":
        lambda f: (f.member_proof(7), f.check(0, 7), f.check(ILLEGAL_GENERATION, 6), f.check(None, 8)),
    "commits without a member are accepted while the group is empty":
        lambda f: (f.check(None, -1, ""), f.group_proof(True), f.check(0, -1, "", EMPTY_GROUP_LIFETIME_S / 2),
                   f.check(None, -1, "", EMPTY_GROUP_LIFETIME_S), f.join(1), f.check(None, -1, ""),
                   f.group_proof(False), f.check(UNKNOWN_MEMBER, -1, "")),
    "a join invalidates pending evidence": lambda f: (f.join(1), f.group_proof(True, late=True), f.check(None, -1, "")),
}  # fmt: skip


@pytest.mark.parametrize("case", [*KNOWN, *UNKNOWN])
def test_the_commits_of_members(case: str) -> None:
    (KNOWN | UNKNOWN)[case](Fence(known=case in KNOWN))


def test_groups_without_fresh_evidence_are_forgotten_once_there_are_many() -> None:
    fence = MemberFence()
    for n in range(10_001):
        fence.on_member_proof(f"g{n}", 1, fence.evidence_epoch(f"g{n}", 1), 1, "m", 0.0 if n else 100.0)
    fence.sweep(100.0)
    assert len(fence) == 1
