"""The relay's pure parts: the fence for commits, the rewrite of Metadata, and the parsing of group requests."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import struct
import typing
from typing import Any, cast

import pytest
from kio.index import UnknownEntity, load_request_schema, load_response_schema
from kio.schema.metadata.v0.response import MetadataResponse as OldestMetadata
from kio.serial import entity_reader, entity_writer

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.kafka.protocol.api_key import ApiKey
from offsetmgr.kafka.protocol.schema_codec import encode_request, encode_response, request_is_flexible
from offsetmgr.server.network.api import ApiRequest
from offsetmgr.server.proxy import group_requests, response_rewrite
from offsetmgr.server.proxy.brokers import ProxyPorts
from offsetmgr.server.proxy.forwarder import FORWARDED, common_versions
from offsetmgr.server.proxy.member_fence import EMPTY_GROUP_LIFETIME_S, EVIDENCE_LIFETIME_S, MemberFence
from offsetmgr.server.proxy.response_rewrite import NamedBroker

OWNERSHIP_EPOCH = 1
ILLEGAL_GENERATION, UNKNOWN_MEMBER, REBALANCING = 22, 25, 27


class KnownMember:
    """A fence that knows member ``m`` of generation 5 of group ``g``, at time 0."""

    def __init__(self) -> None:
        self.fence = MemberFence()
        self.fence.on_join_response("g", OWNERSHIP_EPOCH, 5, static=False)
        self.fence.on_sync_response("g", OWNERSHIP_EPOCH, self.evidence_epoch(), 5, "m", 0.0)

    def evidence_epoch(self) -> int:
        return self.fence.evidence_epoch("g", OWNERSHIP_EPOCH)

    def check(
        self, generation: int = 5, member: str = "m", *, now: float = 0.0, ownership_epoch: int = OWNERSHIP_EPOCH
    ) -> int | None:
        return self.fence.check_commit("g", ownership_epoch, generation, member, now)


# --- commits of members -------------------------------------------------------------------------------


def test_a_synced_member_may_commit_until_its_evidence_expires() -> None:
    known = KnownMember()
    assert known.check(now=EVIDENCE_LIFETIME_S - 0.01) == 0
    assert known.check(now=EVIDENCE_LIFETIME_S) is None, "the coordinator must confirm the member again"


def test_a_newer_generation_ends_the_older_one_at_once() -> None:
    known = KnownMember()
    known.fence.on_join_response("g", OWNERSHIP_EPOCH, 6, static=False)
    assert known.check(5) == ILLEGAL_GENERATION
    assert known.check(6, "n") == REBALANCING, "the coordinator has not stored the generation yet"
    known.fence.on_sync_response("g", OWNERSHIP_EPOCH, known.evidence_epoch(), 6, "n", 0.0)
    assert known.check(6, "n") == 0


def test_a_late_response_is_no_evidence() -> None:
    known = KnownMember()
    evidence_epoch = known.evidence_epoch()
    known.fence.on_join_response("g", OWNERSHIP_EPOCH, 6, static=False)
    known.fence.on_join_response("g", OWNERSHIP_EPOCH, 5, static=False)
    known.fence.on_heartbeat_response("g", OWNERSHIP_EPOCH, evidence_epoch, 5, "m", 0.0)
    assert not known.fence.on_member_proof("g", OWNERSHIP_EPOCH, evidence_epoch, 5, "m", 0.0)
    assert known.check(5) == ILLEGAL_GENERATION


def test_a_replaced_static_member_needs_new_evidence_within_the_same_generation() -> None:
    known = KnownMember()
    evidence_epoch = known.evidence_epoch()
    known.fence.on_join_response("g", OWNERSHIP_EPOCH, 5, static=True)
    known.fence.on_heartbeat_response("g", OWNERSHIP_EPOCH, evidence_epoch, 5, "m", 0.0)
    known.fence.on_heartbeat_response("g", OWNERSHIP_EPOCH, known.evidence_epoch(), 5, "m", 0.0)
    assert known.check() is None, "a Heartbeat alone does not restore the evidence"
    assert not known.fence.heartbeat_suffices("g", OWNERSHIP_EPOCH, 5, "m", 0.0)


def test_a_join_of_a_dynamic_member_in_the_same_generation_keeps_the_evidence() -> None:
    known = KnownMember()
    known.fence.on_join_response("g", OWNERSHIP_EPOCH, 5, static=False)
    assert known.check() == 0


def test_heartbeats_extend_the_evidence_unless_a_gap_is_as_long_as_a_session() -> None:
    known = KnownMember()
    known.fence.on_heartbeat_response("g", OWNERSHIP_EPOCH, known.evidence_epoch(), 5, "m", 3.0)
    assert known.check(now=4.0) == 0
    known.fence.on_heartbeat_response("g", OWNERSHIP_EPOCH, known.evidence_epoch(), 5, "m", 8.0)
    assert known.check(now=8.0) is None, "the coordinator may have removed the member meanwhile"


def test_a_short_session_timeout_shortens_the_evidence() -> None:
    known = KnownMember()
    known.fence.on_join_request("g", OWNERSHIP_EPOCH, 1.0)
    assert (known.check(now=0.4), known.check(now=0.6)) == (0, None)


def test_a_new_ownership_epoch_starts_without_evidence() -> None:
    known = KnownMember()
    assert known.check(ownership_epoch=2) is None
    assert not known.fence.on_member_proof("g", 2, known.evidence_epoch(), 5, "m", 0.0), (
        "the proof was requested in the epoch before"
    )
    assert known.check(4, ownership_epoch=2) is None, "the ended generations are unknown as well"


def test_a_member_proof_sets_the_newest_generation() -> None:
    fence = MemberFence()
    assert fence.on_member_proof("g", OWNERSHIP_EPOCH, fence.evidence_epoch("g", OWNERSHIP_EPOCH), 7, "m", 0.0)
    assert fence.check_commit("g", OWNERSHIP_EPOCH, 7, "m", 0.0) == 0
    assert fence.check_commit("g", OWNERSHIP_EPOCH, 6, "m", 0.0) == ILLEGAL_GENERATION
    assert fence.check_commit("g", OWNERSHIP_EPOCH, 8, "m", 0.0) is None


def test_a_commit_without_a_member_is_accepted_while_the_group_is_empty() -> None:
    fence = MemberFence()
    assert fence.check_commit("g", OWNERSHIP_EPOCH, -1, "", 0.0) is None
    assert fence.on_group_proof("g", OWNERSHIP_EPOCH, fence.evidence_epoch("g", OWNERSHIP_EPOCH), empty=True, sent=0.0)
    assert fence.check_commit("g", OWNERSHIP_EPOCH, -1, "", EMPTY_GROUP_LIFETIME_S / 2) == 0
    assert fence.check_commit("g", OWNERSHIP_EPOCH, -1, "", EMPTY_GROUP_LIFETIME_S) is None
    fence.on_join_response("g", OWNERSHIP_EPOCH, 1, static=False)
    assert fence.check_commit("g", OWNERSHIP_EPOCH, -1, "", 0.0) is None
    assert fence.on_group_proof("g", OWNERSHIP_EPOCH, fence.evidence_epoch("g", OWNERSHIP_EPOCH), empty=False, sent=0.0)
    assert fence.check_commit("g", OWNERSHIP_EPOCH, -1, "", 0.0) == UNKNOWN_MEMBER


def test_evidence_of_an_empty_group_drops_its_members() -> None:
    known = KnownMember()
    assert known.fence.on_group_proof("g", OWNERSHIP_EPOCH, known.evidence_epoch(), empty=True, sent=0.5)
    assert known.check(now=0.5) is None


def test_a_join_invalidates_pending_evidence_of_an_empty_group() -> None:
    fence = MemberFence()
    evidence_epoch = fence.evidence_epoch("g", OWNERSHIP_EPOCH)
    fence.on_join_response("g", OWNERSHIP_EPOCH, 1, static=False)
    assert not fence.on_group_proof("g", OWNERSHIP_EPOCH, evidence_epoch, empty=True, sent=0.0)


def test_a_leave_invalidates_the_evidence() -> None:
    known = KnownMember()
    evidence_epoch = known.evidence_epoch()
    known.fence.on_leave("g")
    assert known.check() is None
    assert not known.fence.on_member_proof("g", OWNERSHIP_EPOCH, evidence_epoch, 5, "m", 0.0)


def test_groups_without_fresh_evidence_are_forgotten_once_there_are_many() -> None:
    fence = MemberFence()
    for n in range(10_001):
        fence.on_member_proof(
            f"g{n}", OWNERSHIP_EPOCH, fence.evidence_epoch(f"g{n}", OWNERSHIP_EPOCH), 1, "m", 0.0 if n else 100.0
        )
    fence.sweep(100.0)
    assert len(fence) == 1


# --- Metadata -------------------------------------------------------------------------------------


def metadata_answer(version: int) -> bytes:
    """A complete response with two brokers and a topic."""
    message: dict[str, Any] = {
        "brokers": [
            {"node_id": 1, "host": "real-1", "port": 9092, "rack": "r1"},
            {"node_id": 2, "host": "real-2", "port": 9093, "rack": None},
        ],
        "cluster_id": "cluster",
        "controller_id": 2,
        "error_code": 0,
        "topics": [
            {
                "error_code": 0,
                "name": "orders",
                "topic_id": None,
                "partitions": [
                    {"error_code": 0, "partition_index": 0, "leader_id": 1, "replica_nodes": [1], "isr_nodes": [1]}
                ],
            }
        ],
    }
    body = encode_response(3, version, message)
    head = struct.pack(">i", 77) + (b"\0" if version >= response_rewrite.FLEXIBLE else b"")
    return struct.pack(">i", len(head) + len(body)) + head + body


@pytest.mark.parametrize("version", range(response_rewrite.MAX_VERSION + 1))
def test_only_the_brokers_of_a_metadata_response_change(version: int) -> None:
    before = metadata_answer(version)
    part = response_rewrite.find_brokers(before, version)
    assert [(b.node_id, b.host, b.port) for b in part.brokers] == [(1, "real-1", 9092), (2, "real-2", 9093)]
    ours = [NamedBroker(1, "relay", 1001, "r1"), NamedBroker(2, "relay", 1002), NamedBroker(10**9, "manager", 1000)]
    after = response_rewrite.replace_brokers(before, version, part, ours)
    assert struct.unpack_from(">ii", after) == (len(after) - 4, 77)
    at = 9 if version >= response_rewrite.FLEXIBLE else 8
    schema: Any = load_response_schema(3, version)
    old, _ = entity_reader(schema)(before, at)
    new, end = entity_reader(schema)(after, at)
    assert (end if end == len(after) else end + at) == len(after)
    assert [(b.node_id, b.host, b.port) for b in new.brokers] == [(b.node_id, b.host, b.port) for b in ours]
    if not isinstance(new, OldestMetadata):
        assert [b.rack for b in new.brokers] == ["r1", None, None]
        assert new.controller_id == old.controller_id
    assert new.topics == old.topics


# --- group requests -------------------------------------------------------------------------------


def request(api_key: int, version: int, message: dict[str, Any]) -> ApiRequest:
    body = encode_request(api_key, version, message)
    head = struct.pack(">hhih", api_key, version, 5, 6) + b"client"
    head += b"\0" if request_is_flexible(api_key, version) else b""
    connection: Any = None
    return ApiRequest(connection, struct.pack(">i", len(head) + len(body)) + head + body)


MEMBER_FIELDS = {"group_id": "g", "generation_id": 8, "member_id": "m" * 200, "group_instance_id": "i"}
OTHER_FIELDS: dict[int, dict[str, Any]] = {
    ApiKey.JOIN_GROUP: {
        "session_timeout": 45_000, "rebalance_timeout": 1, "protocol_type": "consumer", "protocols": [], "reason": None
    },
    ApiKey.SYNC_GROUP: {"assignments": [], "protocol_type": None, "protocol_name": None},
    ApiKey.HEARTBEAT: {},
    ApiKey.LEAVE_GROUP: {"members": []},
}  # fmt: skip
EVERY = [(key, version) for key, highest in group_requests.MAX_VERSIONS.items() for version in range(highest + 1)]


@pytest.mark.parametrize(("key", "version"), EVERY)
def test_group_requests_are_read_in_every_version(key: int, version: int) -> None:
    parsed = group_requests.read_request(request(key, version, {**MEMBER_FIELDS, **OTHER_FIELDS[key]}))
    assert parsed.group == "g"
    if key == ApiKey.LEAVE_GROUP:
        return
    assert parsed.member_id == "m" * 200
    static = version >= (5 if key == ApiKey.JOIN_GROUP else 3)
    assert parsed.instance_id == ("i" if static else None)
    assert (parsed.generation, parsed.session_seconds) == ((-1, 45.0) if key == ApiKey.JOIN_GROUP else (8, None))


@pytest.mark.parametrize(("key", "version"), EVERY)
def test_error_responses_can_be_decoded_in_every_version(key: int, version: int) -> None:
    group_request = request(key, version, {**MEMBER_FIELDS, **OTHER_FIELDS[key]})
    body = group_requests.error_response(group_request, 16, "m" * 200)
    answer, _ = entity_reader(cast(Any, load_response_schema(key, version)))(body, 0)
    assert answer.error_code == ErrorCode.NOT_COORDINATOR
    if key == ApiKey.JOIN_GROUP:
        assert (answer.member_id, answer.generation_id, answer.members) == ("m" * 200, -1, ())


@pytest.mark.parametrize(("key", "version"), EVERY)
def test_responses_are_parsed_in_every_version(key: int, version: int) -> None:
    message = {
        "error_code": 27, "generation_id": 31, "protocol_name": "range", "protocol_type": "consumer", "leader": "l",
        "member_id": "m", "members": [], "assignment": b"",
    }  # fmt: skip
    schema = load_response_schema(key, version)
    buffer = io.BytesIO()
    decoded, _ = entity_reader(schema)(encode_response(key, version, message), 0)
    entity_writer(schema)(buffer, decoded)
    head = struct.pack(">i", 5) + (b"\0" if request_is_flexible(key, version) else b"")
    frame = struct.pack(">i", len(head) + len(buffer.getvalue())) + head + buffer.getvalue()
    assert group_requests.read_error(key, version, frame) == 27
    if key == ApiKey.JOIN_GROUP:
        assert group_requests.read_joined(version, frame) == (27, 31)


# --- forwarded APIs ----------------------------------------------------------------------------


def field_names(schema: Any) -> set[str]:
    """The names of a message's fields, also those of nested messages."""
    names = set()
    for field, hint in typing.get_type_hints(schema).items():
        names.add(field)
        for part in typing.get_args(hint) or [hint]:
            for kind in typing.get_args(part) or [part]:
                names |= field_names(kind) if dataclasses.is_dataclass(kind) else set()
    return names


@pytest.mark.parametrize("key", FORWARDED)
def test_no_forwarded_version_names_a_broker_or_a_group(key: int) -> None:
    """Also in tagged fields: those of Produce from version 10 and Fetch from 16 name new leaders (KIP-951)."""
    checked = 0
    for version in range(FORWARDED[key][1] + 1):
        with contextlib.suppress(UnknownEntity):  # a version that Kafka 4 and kio have removed
            assert "group_id" not in field_names(load_request_schema(key, version))
            assert not field_names(load_response_schema(key, version)) & {"host", "node_endpoints", "listeners"}
            checked += 1
    assert checked


def test_the_version_after_the_highest_fetch_would_name_brokers() -> None:
    assert "node_endpoints" in field_names(load_response_schema(1, FORWARDED[1][1] + 1))
    assert "node_endpoints" in field_names(load_response_schema(0, FORWARDED[0][1] + 1))


def test_only_versions_that_the_broker_supports_are_offered() -> None:
    broker = {0: (3, 13), 1: (4, 18), 2: (1, 3), 68: (0, 1), 25: (0, 4), 22: (7, 9)}
    assert common_versions(broker) == {0: (3, 9), 1: (4, 15), 2: (1, 3)}


def test_a_broker_has_the_same_port_after_a_restart() -> None:
    ports = ProxyPorts(9200, 10)
    assert [next(iter(ports.candidates(node))) for node in (0, 3, 1001)] == [9200, 9203, 9201]
    assert sorted(ports.candidates(7)) == list(range(9200, 9210))
