"""Builds the requests of the Kafka client, and converts responses into values of `offsetmgr.core.model`. Pure.

The module builds each request in one version only, the lowest version that has all needed fields. Brokers from 3.0 to
4.x support these versions: 3.0 introduced requests for many groups (FindCoordinator v4 and OffsetFetch v8, KIP-699 and
KIP-709), and 4.0 removed only older versions (KIP-896). For brokers before 3.0, `old_versions` translates the requests.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

from offsetmgr.core.advice import Advice, Invocation
from offsetmgr.core.batches import by_key
from offsetmgr.core.errors import ErrorCode, InvalidRequest, MalformedData, OffsetMgrError
from offsetmgr.core.model import (
    INTERNAL_TOPICS,
    LOCK_PROTOCOL,
    NEGATIVE_OFFSET,
    NO_OFFSET,
    Committed,
    GroupDescription,
    GroupMember,
    OffsetAndMetadata,
    TopicPartition,
    is_deleted,
)
from offsetmgr.core.offset_store import Committer, PlainOffsets
from offsetmgr.core.varint import encode_varint
from offsetmgr.kafka.protocol.errors import NegativeOffset, kafka_error
from offsetmgr.kafka.protocol.frames import Address, EncodedRequest, Request
from offsetmgr.kafka.protocol.releases import ApiKey
from offsetmgr.kafka.protocol.schema_codec import INT16, INT32, NO_TAGS, Cursor, Message, count, request_string

# Encodes and decodes the subscription and the assignment of a consumer group member. The members exchange
# subscriptions and assignments through the coordinator. Source: ConsumerProtocolSubscription.json and
# ConsumerProtocolAssignment.json, version 0 of both. Every client can read version 0, and later versions begin with
# the same fields.

PROTOCOL_TYPE: Final = "consumer"

_VERSION: Final = INT16.pack(0)
_NO_USER_DATA: Final = INT32.pack(-1)


class MemberSubscription(NamedTuple):
    """The metadata of a member: the topics that it subscribes to, and the partitions that it still owns.

    Only members with a cooperative assignor (subscription version 1 and later) name the partitions that they own.
    """

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()


def encode_subscription(topics: Iterable[str] = ()) -> bytes:
    """Encodes a version 0 subscription to ``topics`` without user data."""
    names = [request_string(name, flexible=False) for name in topics]
    return b"".join([_VERSION, count(len(names), flexible=False), *names, _NO_USER_DATA])


def decode_subscription(data: bytes) -> MemberSubscription:
    """Decodes the topics and the owned partitions from a subscription of any version. Raises `MalformedData`."""
    cursor = Cursor(data, 0, flexible=False, is_response=True)
    try:
        version = cursor.number(INT16)
        topics = tuple(cursor.string() for _ in range(cursor.nullable_count(INT16.size)))
        if version < 1:
            return MemberSubscription(topics)
        cursor.nullable_octets()  # the data of the assignor
        return MemberSubscription(topics, tuple(_read_assigned(cursor)))
    except InvalidRequest as error:
        raise MalformedData("consumer group subscription", error.why) from None


def _read_assigned(cursor: Cursor) -> list[TopicPartition]:
    found: list[TopicPartition] = []
    for _ in range(cursor.nullable_count(INT16.size + INT32.size)):
        topic = cursor.string()
        found += [TopicPartition(topic, cursor.int32()) for _ in range(cursor.nullable_count(INT32.size))]
    return found


def encode_assignment(partitions: Iterable[TopicPartition] = ()) -> bytes:
    """Encodes a version 0 assignment of ``partitions`` without user data."""
    by_topic = by_key(partitions)
    parts = [_VERSION, count(len(by_topic), flexible=False)]
    for topic, numbers in by_topic.items():
        parts.append(request_string(topic, flexible=False))
        parts.append(struct.pack(f">i{len(numbers)}i", len(numbers), *numbers))
    return b"".join(parts) + _NO_USER_DATA


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """Decodes the assigned partitions, sorted, from an assignment of any version.

    Returns no partitions if ``data`` is empty, because a member with empty data has no assignment.

    Raises `MalformedData`.
    """
    if not data:
        return ()
    cursor = Cursor(data, len(_VERSION), flexible=False, is_response=True)
    try:
        return tuple(sorted(_read_assigned(cursor)))
    except InvalidRequest as error:
        raise MalformedData("consumer group assignment", error.why) from None


OFFSETS_TOPIC: Final = "__consumer_offsets"
"""The topic in which brokers store committed offsets."""

OFFSET_COMMIT: Final = (ApiKey.OFFSET_COMMIT, 7)

MANAGER_API_VERSIONS: Final[Mapping[int, tuple[str, int]]] = {
    ApiKey.METADATA: ("Metadata", 8),
    ApiKey.OFFSET_FETCH: ("OffsetFetch", 8),
    ApiKey.OFFSET_COMMIT: ("OffsetCommit", 7),
    ApiKey.FIND_COORDINATOR: ("FindCoordinator", 4),
    ApiKey.DESCRIBE_GROUPS: ("DescribeGroups", 4),
    ApiKey.LIST_GROUPS: ("ListGroups", 4),
    ApiKey.DELETE_GROUPS: ("DeleteGroups", 1),
    ApiKey.OFFSET_DELETE: ("OffsetDelete", 0),
}
"""The name and version of each API that an offset manager must support, by API key."""

METADATA_OPTIONS: Final = {
    "allow_auto_topic_creation": False,
    "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
}
"""The options of a Metadata request that creates no topics."""

_COMMITTED: Final = struct.Struct(">iqih")
"""A partition in OffsetCommit v7 up to the length of the metadata: number, offset, leader epoch, length."""
_FETCHED: Final = struct.Struct(">iqi")
"""The start of a partition in OffsetFetch v8: number, offset, leader epoch. Metadata, error code and tags follow."""
_FETCHED_EMPTY: Final = struct.Struct(">iqiI")
"""A partition in OffsetFetch v8 whose last 4 bytes are `_PLAIN_ENDS`."""
_PLAIN_ENDS: Final = frozenset({0x0000_0000, 0x0100_0000})
"""The end of a partition without metadata and without an error: null or an empty string, the error code 0, no tags."""
_MAX_TOGETHER: Final = 1_000
"""The maximum number of partitions of a topic that are decoded together. The limit bounds the memory of the caches."""


class FetchedGroup(NamedTuple):
    """The OffsetFetch response for one group. ``offsets`` omits partitions without a committed offset; ``errors``
    contains partitions that could not be read."""

    offsets: Mapping[TopicPartition, Committed]
    errors: dict[TopicPartition, OffsetMgrError]


RequestedOffsets: TypeAlias = Mapping[str, Sequence[TopicPartition] | None]
"""The partitions whose offsets are requested, by group; None selects all partitions of a group."""
FetchedGroups: TypeAlias = dict[str, FetchedGroup | OffsetMgrError]


def find_coordinator(names: Sequence[str], *, of_transactions: bool = False) -> Request:
    """Requests the coordinators of groups, or of transactional ids."""
    return Request(ApiKey.FIND_COORDINATOR, 4, {"key_type": int(of_transactions), "coordinator_keys": names})


def metadata(topics: Sequence[str] | None = ()) -> Request:
    """Requests the brokers and the given topics; all topics if None. The response contains no replicas."""
    names = None if topics is None else [{"name": name} for name in topics]
    return Request(ApiKey.METADATA, 8, {"topics": names, **METADATA_OPTIONS}, read_metadata)


def broker_addresses(answer: Message) -> dict[int, Address]:
    """Returns the address of each broker in a Metadata response, by the broker's id."""
    return {broker["node_id"]: Address(broker["host"], broker["port"]) for broker in answer["brokers"]}


def parts_of(
    message: Mapping[str, Any], topics: str = "topics", name: str = "name"
) -> Iterator[tuple[TopicPartition, Message]]:
    """Yields the partitions of all topics in a response or request, each with its fields. ``topics`` and ``name`` are
    the names of two fields: the topics, and the name of a topic."""
    for topic in message[topics]:
        for part in topic["partitions"]:
            yield TopicPartition(topic[name], part["partition_index"]), part


def topics_with(parts: Iterable[tuple[TopicPartition, Mapping[str, object]]], name: str = "name") -> list[Message]:
    """Returns the topics of a request with their partitions, each with its fields. ``name`` is as in `parts_of`."""
    by_topic = by_key((tp.topic, {"partition_index": tp.partition, **fields}) for tp, fields in parts)
    return [{name: topic, "partitions": of_topic} for topic, of_topic in by_topic.items()]


LISTS_TYPES: Final = 5
"""The version of ListGroups that reports the types of groups (KIP-848)."""


def list_groups(types: Sequence[str] | None = None) -> Request:
    """Requests all groups; with ``types``, requests the groups of these types, or of all types if it is empty, and
    their types."""
    version = 4 if types is None else LISTS_TYPES
    return Request(ApiKey.LIST_GROUPS, version, {"states_filter": (), "types_filter": types or ()})


def delete_groups(groups: Sequence[str]) -> Request:
    return Request(ApiKey.DELETE_GROUPS, 1, {"groups_names": groups})


def describe_groups(groups: Sequence[str], *, permissions: bool = False) -> Request:
    """Requests the descriptions of groups, with ``permissions`` also what the principal may do with them."""
    return Request(ApiKey.DESCRIBE_GROUPS, 4, {"groups": groups, "include_authorized_operations": permissions})


def describe_kind(groups: Sequence[str], api_key: ApiKey = ApiKey.CONSUMER_GROUP_DESCRIBE, version: int = 0) -> Request:
    """Requests the descriptions of groups of one kind: those of the consumer protocol, share groups, or those of the
    Streams protocol."""
    return Request(api_key, version, {"group_ids": groups, "include_authorized_operations": False})


def offset_fetch(partitions_by_group: RequestedOffsets) -> Request:
    """Requests the offsets of many groups; None requests all partitions of a group.

    The request sets ``require_stable`` (KIP-447): if an open transaction has a pending commit for a partition, the
    broker returns an error for the partition instead of the previously committed offset.
    """
    groups = [
        {
            "group_id": group,
            "topics": None
            if partitions is None
            else [{"name": topic, "partition_indexes": numbers} for topic, numbers in by_key(partitions).items()],
        }
        for group, partitions in partitions_by_group.items()
    ]
    return Request(ApiKey.OFFSET_FETCH, 8, {"groups": groups, "require_stable": True})


def read_offset_fetch(cursor: Cursor, listed: Container[str] = ()) -> FetchedGroups:
    """Decodes an OffsetFetch v8 response: for each group its offsets, or its error.

    ``listed`` are the groups of which all partitions were requested. A response lists only partitions that have a
    commit, so a -1 in it was committed. If the request names a partition, a -1 also means that nothing is committed.

    The codec is hand-written, because bulk reads consist of these responses: the schema codec takes three times as
    long. Raises `InvalidRequest` for invalid bytes.
    """
    cursor.int32()  # throttle time
    found: FetchedGroups = {}
    for _ in range(cursor.count(4)):
        group = cursor.string()
        plain: list[PlainOffsets] = []
        offsets: dict[TopicPartition, Committed] = {}
        errors: dict[TopicPartition, OffsetMgrError] = {}
        for _ in range(cursor.count(3)):
            topic, number = cursor.string(), cursor.count(_FETCHED_EMPTY.size)
            if (part := _read_plain_partitions(cursor, topic, number)) is not None:
                plain.append(part)
            else:
                _read_partitions(cursor, group, topic, number, offsets, errors, committed=group in listed)
            cursor.tags()
        code = cursor.number(INT16)
        cursor.tags()
        together = PlainOffsets.joined(plain) if plain else {}
        fetched = FetchedGroup({**offsets, **together} if offsets else together, errors)
        found[group] = kafka_error(code, f"group {group}") if code else fetched
    cursor.tags()
    return found


def _read_partitions(
    cursor: Cursor,
    group: str,
    topic: str,
    number: int,
    offsets: dict[TopicPartition, Committed],
    errors: dict[TopicPartition, OffsetMgrError],
    *,
    committed: bool,
) -> None:
    data, new = cursor.data, tuple.__new__
    for _ in range(number):
        at = cursor.take(_FETCHED_EMPTY.size)
        partition, offset, epoch, end = _FETCHED_EMPTY.unpack_from(data, at)
        metadata, code = "", 0
        if end not in _PLAIN_ENDS:
            cursor.at = at + _FETCHED.size
            metadata, code = cursor.nullable_string() or "", cursor.number(INT16)
            cursor.tags()
        tp = new(TopicPartition, (topic, partition))
        if code:
            errors[tp] = kafka_error(code, f"group {group}, {tp}")
        elif offset < 0:
            if committed or offset != NO_OFFSET:
                hint = Advice("{} replaces it", Invocation("offsets set"))
                errors[tp] = NegativeOffset(f"group {group}, {tp}", f"holds {offset}: {NEGATIVE_OFFSET}", hint)
        elif not is_deleted(offset, metadata):
            known = epoch if epoch >= 0 else None
            offsets[tp] = new(Committed, (offset, metadata, known, None, None))


def _read_plain_partitions(cursor: Cursor, topic: str, number: int) -> PlainOffsets | None:
    """Decodes all partitions of a topic together if each has an offset, no metadata and no error, as most have.
    Otherwise returns None and reads nothing."""
    if not 0 < number <= _MAX_TOGETHER:
        return None
    fields = _fields_of(number).unpack_from(cursor.data, cursor.at)
    offsets, ends = fields[1::4], fields[3::4]
    if min(offsets) < 0 or not _PLAIN_ENDS.issuperset(ends):  # the first item of another size has another end
        return None
    partitions, in_order = _in_order(topic, fields[::4])
    cursor.at += number * _FETCHED_EMPTY.size
    return PlainOffsets(partitions, in_order(offsets), in_order(fields[2::4]))


@lru_cache(maxsize=64)
def _fields_of(number: int) -> struct.Struct:
    """Returns the form of this number of partitions that have no metadata."""
    return struct.Struct(">" + _FETCHED_EMPTY.format[1:] * number)


@lru_cache(maxsize=512)
def _in_order(
    topic: str, numbers: tuple[int, ...]
) -> tuple[Sequence[TopicPartition], Callable[[Any], tuple[Any, ...]]]:
    """Returns the partitions of a topic in the order of their numbers, and a function that puts other fields of the
    same partitions into this order. A broker lists the partitions of all groups in one order, and the groups share the
    returned objects."""
    order = sorted(range(len(numbers)), key=numbers.__getitem__)
    return tuple(TopicPartition(topic, numbers[at]) for at in order), itemgetter(*order) if order[1:] else tuple


def offset_commit(
    group: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    member: tuple[int, str, str | None] | None = None,
) -> EncodedRequest:
    """Encodes OffsetCommit v7 by hand, because bulk edits consist of these requests and the schema codec takes several
    times as long. ``member`` has the generation, the member id and the instance id."""
    generation, member_id, instance_id = member or (-1, "", None)
    body = bytearray(
        request_string(group, flexible=False) + INT32.pack(generation) + request_string(member_id, flexible=False)
    )
    body += INT16.pack(-1) if instance_id is None else request_string(instance_id, flexible=False)
    topics = by_key((topic, (partition, offset)) for (topic, partition), offset in offsets.items())
    body += INT32.pack(len(topics))
    for topic, parts in topics.items():
        body += request_string(topic, flexible=False) + INT32.pack(len(parts))
        for partition, new in parts:
            epoch = -1 if new.leader_epoch is None else new.leader_epoch
            metadata = new.metadata.encode()
            body += _COMMITTED.pack(partition, new.offset, epoch, len(metadata))
            body += metadata
    return EncodedRequest(*OFFSET_COMMIT, bytes(body))


def parse_described_group(answer: Message, coordinator: str) -> GroupDescription | OffsetMgrError:
    """Converts one group of a DescribeGroups response. Its state ``PreparingRebalance`` becomes PREPARING_REBALANCE."""
    consumer = answer["protocol_type"] == PROTOCOL_TYPE

    def own_fields(member: Message) -> _OwnFields:
        partitions = decode_assignment(member["member_assignment"]) if consumer else ()
        topics = _subscription(member.get("member_metadata", b"")) if consumer else None
        return member.get("group_instance_id"), partitions, topics

    return _description(answer, coordinator, answer["protocol_type"], answer["protocol_data"], own_fields)


def parse_consumer_group(
    answer: Message, coordinator: str, protocol_type: str = PROTOCOL_TYPE
) -> GroupDescription | OffsetMgrError:
    """Converts one group of a ConsumerGroupDescribe response, for groups of the new consumer protocol (KIP-848), or of
    a ShareGroupDescribe response."""

    def own_fields(member: Message) -> _OwnFields:
        topics = member["assignment"]["topic_partitions"]
        assigned = sorted(TopicPartition(one["topic_name"], number) for one in topics for number in one["partitions"])
        subscribed = None if member.get("subscribed_topic_regex") else tuple(member["subscribed_topic_names"])
        return member.get("instance_id"), tuple(assigned), subscribed

    return _description(answer, coordinator, protocol_type, answer["assignor_name"], own_fields)


def parse_streams_group(
    answer: Message, coordinator: str, counts: Mapping[str, int]
) -> GroupDescription | OffsetMgrError:
    """Converts one group of a StreamsGroupDescribe response (KIP-1071). ``counts`` are the partition counts of the
    topics in `sources_of`: a task reads only those partitions with its number that exist."""
    subtopologies = _subtopologies(answer)
    sources = {one["subtopology_id"]: _sources(one) for one in subtopologies}

    def own_fields(member: Message) -> _OwnFields:
        active = _tasks(member, "active_tasks")
        assigned = {
            TopicPartition(topic, number)
            for subtopology, number in active
            for topic in sources.get(subtopology, ())
            if number < counts.get(topic, 0)
        }
        return member["instance_id"], tuple(sorted(assigned)), tuple(sorted(sources_of(answer)))

    found = _description(answer, coordinator, "streams", "", own_fields)
    if isinstance(found, OffsetMgrError):
        return found
    members = tuple(
        replace(one, tasks=tuple(f"{kind} {s}_{n}" for kind in _TASKS for s, n in _tasks(member, f"{kind}_tasks")))
        for one, member in zip(found.members, answer["members"], strict=True)
    )
    keys = zip(INTERNAL_TOPICS, ("repartition_source_topics", "state_changelog_topics"), strict=True)
    internal = ((topic["name"], kind) for kind, key in keys for one in subtopologies for topic in one[key])
    return replace(found, members=members, internal_topics=tuple(internal))


_TASKS: Final = ("active", "standby", "warmup")


def sources_of(answer: Message) -> set[str]:
    """Returns the topics that a group of a StreamsGroupDescribe response reads."""
    return {topic for one in _subtopologies(answer) for topic in _sources(one)}


def _subtopologies(answer: Message) -> Sequence[Message]:
    """The group has no topology before the first member has joined."""
    return (answer["topology"] or {}).get("subtopologies") or ()


def _sources(subtopology: Message) -> list[str]:
    return [*subtopology["source_topics"], *(one["name"] for one in subtopology["repartition_source_topics"])]


def _tasks(member: Message, key: str) -> list[tuple[str, int]]:
    return [(one["subtopology_id"], number) for one in member["assignment"][key] for number in one["partitions"]]


_OwnFields: TypeAlias = tuple[str | None, tuple[TopicPartition, ...], tuple[str, ...] | None]
"""The fields of a member that depend on the protocol of its group: instance id, partitions and topics."""


def _description(
    answer: Message,
    coordinator: str,
    protocol_type: str,
    assignor: str,
    own_fields: Callable[[Message], _OwnFields],
) -> GroupDescription | OffsetMgrError:
    group, code = answer["group_id"], answer["error_code"]
    if code:
        return kafka_error(code, f"group {group}", detail=answer.get("error_message") or "")
    members = tuple(
        GroupMember(one["member_id"], one["client_id"], one["client_host"].removeprefix("/"), *own_fields(one))
        for one in answer["members"]
    )
    return GroupDescription(group, upper_state(answer["group_state"]), protocol_type, assignor, coordinator, members)


def _subscription(metadata: bytes) -> tuple[str, ...] | None:
    """Returns the topics of a member; None if the coordinator does not report them, as during a rebalance."""
    with suppress(MalformedData):
        return decode_subscription(metadata).topics
    return None


def upper_state(state: str) -> str:
    """Returns a state as librdkafka names it: ``PreparingRebalance`` becomes ``PREPARING_REBALANCE``."""
    words = "".join(f"_{c}" if c.isupper() else c for c in state).lstrip("_")
    return words.upper() or "UNKNOWN"


# Decodes Metadata responses of version 8. Pure. The codec is hand-written, because it takes a third of the time of the
# schema codec. It skips the replica ids, which no caller of the client needs and which make up most of the response of
# a large cluster.

_PARTITION: Final = struct.Struct(">hiiii")
"""The start of a partition: error code, partition number, leader, leader epoch, and the number of replicas."""
_FURTHER_LISTS: Final = range(2)
"""The lists of replicas in sync and of offline replicas."""


def read_metadata(cursor: Cursor) -> Message:
    """Decodes a Metadata response of version 8. The result has the fields of the schema codec, without the replicas and
    the authorized operations."""
    cursor.int32()  # throttle time
    answer: Message = {
        "brokers": [_broker(cursor) for _ in range(cursor.count(10))],
        "cluster_id": cursor.nullable_string(),
        "controller_id": cursor.int32(),
        "topics": [_topic(cursor) for _ in range(cursor.count(8))],
    }
    cursor.int32()  # authorized operations on the cluster
    return answer


def _broker(cursor: Cursor) -> Message:
    node_id, host, port = cursor.int32(), cursor.string(), cursor.int32()
    return {"node_id": node_id, "host": host, "port": port, "rack": cursor.nullable_string()}


def _topic(cursor: Cursor) -> Message:
    code, name, internal = cursor.number(INT16), cursor.string(), cursor.boolean()
    found: Message = {"error_code": code, "name": name, "is_internal": internal, "partitions": _partitions(cursor)}
    cursor.int32()  # authorized operations on the topic
    return found


def _partitions(cursor: Cursor) -> list[dict[str, int]]:
    unpack, size = _PARTITION.unpack_from, _PARTITION.size
    data, partitions = cursor.data, []
    number = cursor.count(size + len(_FURTHER_LISTS) * INT32.size)
    at = cursor.at
    try:
        for _ in range(number):
            error, index, leader, epoch, ids = unpack(data, at)
            at = _after(at + size, ids)
            for _ in _FURTHER_LISTS:
                (ids,) = INT32.unpack_from(data, at)
                at = _after(at + INT32.size, ids)
            partitions.append(
                {"error_code": error, "partition_index": index, "leader_id": leader, "leader_epoch": epoch}
            )
    except struct.error:
        raise InvalidRequest("message", "it ends too early") from None
    cursor.take(at - cursor.at)
    return partitions


def _after(at: int, ids: int) -> int:
    """Returns the position after this number of replica ids, which begin at ``at``."""
    if ids < 0:
        raise InvalidRequest("message", f"an array of {ids} items")
    return at + ids * INT32.size


# Conditional commits, an extension of Kafka's protocol that offsetmgr's listener supports. The module also contains
# the names of other features that the listener announces. Kafka has no compare-and-set on offsets. OffsetCommit is
# flexible from version 8 on (KIP-482), so a partition may have tagged fields, and brokers ignore tagged fields that
# they do not know. offsetmgr's tagged field contains the expected offset. The commit of the partition takes effect
# only if the currently committed offset equals the expected offset. A client sends the field only to a server that
# announces the feature in its ApiVersions response. A server without the feature would ignore the field and commit
# unconditionally. The client and the server share these constants.

CONDITIONAL_FEATURE: Final = "offsetmgr.conditional"
"""A supported feature (KIP-584) in the ApiVersions response. Level 1 means that OffsetCommit versions 8 and 9 accept
`EXPECTED_TAG`."""

EXPECTED_TAG: Final = 10_001
"""The tagged field of a partition in OffsetCommit. The field contains the expected offset (8 bytes). The commit takes
effect only if the currently committed offset equals the expected offset. `NO_OFFSET` requires that nothing is
committed. In a commit with this field, a new offset of -1 deletes the committed offset. offsetmgr uses tags from 10,000
on, and Kafka numbers its own tags from 0 on."""

EXPECTED: Final = struct.Struct(">q")

CONFLICT: Final = ErrorCode.OPERATION_NOT_ATTEMPTED
"""The error code of a partition in two cases: the condition is false, or the condition cannot be checked yet because
another commit to the partition is in flight. Kafka's clients do not retry after this code."""

LOG_FEATURE: Final = "offsetmgr.manager.log."
"""The prefix of the name of a feature that managers announce. The rest of the name is the topic in which the manager
stores the offsets."""

STORE_FEATURE: Final = "offsetmgr.store."
"""The prefix of the name of a feature that other listeners announce. The rest of the name is the kind of the listener's
store."""

CONDITIONAL_COMMIT: Final = (ApiKey.OFFSET_COMMIT, 8)
"""The API key and version of requests with conditions."""

DROPS_METADATA: Final = "offsetmgr.drops-metadata"
DROPS_LEADER_EPOCH: Final = "offsetmgr.drops-leader-epoch"
"""Features with which a listener announces that its store cannot save metadata or leader epochs."""

_CONDITIONAL: Final = struct.Struct(">iqi")
_TAG: Final = b"\1" + encode_varint(EXPECTED_TAG) + encode_varint(EXPECTED.size)
"""The bytes in front of the tag's value: the number of tagged fields (one), the tag, and the size of the value."""


def conditional_commit(
    group: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata | None],
    expected: Mapping[TopicPartition, int],
) -> EncodedRequest:
    """Encodes OffsetCommit v8 without membership. ``offsets`` contains the new value of each partition; None deletes
    the committed offset. ``expected`` contains the expected offset of each partition."""
    topics = by_key((topic, (partition, after)) for (topic, partition), after in offsets.items())
    body = bytearray(
        NO_TAGS + request_string(group, flexible=True) + INT32.pack(-1) + request_string("", flexible=True) + b"\0"
    )
    body += count(len(topics), flexible=True)
    for topic, parts in topics.items():
        body += request_string(topic, flexible=True)
        body += count(len(parts), flexible=True)
        for partition, after in parts:
            new = OffsetAndMetadata(NO_OFFSET) if after is None else after
            epoch = -1 if new.leader_epoch is None else new.leader_epoch
            body += _CONDITIONAL.pack(partition, new.offset, epoch)
            body += request_string(new.metadata, flexible=True)
            body += _TAG
            body += EXPECTED.pack(expected[TopicPartition(topic, partition)])
        body += NO_TAGS
    return EncodedRequest(*CONDITIONAL_COMMIT, bytes(body + NO_TAGS))


# Builds the requests of the group lock and of ordinary group members: JoinGroup, SyncGroup, Heartbeat, LeaveGroup and
# OffsetDelete. Pure.

PROTOCOLS: Final = (LOCK_PROTOCOL, "range", "roundrobin", "cooperative-sticky", "sticky")
"""The assignment protocols in the JoinGroup request of the group lock: offsetmgr's own protocol and the usual protocols
of consumers. A consumer may join while the lock is held. If the consumer and the lock had no protocol in common, the
coordinator would reject the consumer with INCONSISTENT_GROUP_PROTOCOL. With a common protocol, the consumer waits until
the lock is released."""

CONSUMER_REBALANCE_MS: Final = 120_000
"""The rebalance timeout of a member of the consumer protocol: the time for which it may keep partitions that the
coordinator wants to assign to another member."""


@dataclass(frozen=True, slots=True)
class LockMembership:
    """The identity of a member in its requests to the coordinator."""

    group: str
    member_id: str
    generation: int
    instance_id: str | None = None

    @property
    def committer(self) -> Committer:
        """The member as the sender of a commit."""
        return Committer(self.generation, self.member_id, self.instance_id)

    def fields(self) -> dict[str, object]:
        """Returns the fields of a request that identify the member."""
        return {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
        }


_LOCK_PROTOCOLS: Final = dict.fromkeys(PROTOCOLS, encode_subscription())


def offset_delete(group: str, partitions: Iterable[TopicPartition]) -> Request:
    topics = topics_with((tp, {}) for tp in partitions)
    return Request(ApiKey.OFFSET_DELETE, 0, {"group_id": group, "topics": topics})


def join_lock(group: str, instance_id: str | None, session_timeout_ms: int) -> Request:
    """Returns the JoinGroup request of a group lock, with an empty subscription.

    If ``instance_id`` is None, the member is dynamic and uses version 3, because later versions need a second round
    trip for dynamic members (KIP-394). Static membership needs version 5 (KIP-345).
    """
    request = join_as(group, "", PROTOCOL_TYPE, _LOCK_PROTOCOLS, session_timeout_ms, session_timeout_ms, instance_id)
    return request if instance_id is not None else request._replace(version=3)


def evict(group: str, members: Iterable[tuple[str, str | None]]) -> Request:
    """Returns the LeaveGroup request that removes members (member id and instance id) from the group: the client's own
    member, or on brokers from 2.4 on any members."""
    leaving = [{"member_id": member_id, "group_instance_id": instance_id} for member_id, instance_id in members]
    return Request(ApiKey.LEAVE_GROUP, 3, {"group_id": group, "members": leaving})


def join_as(
    group: str,
    member_id: str,
    protocol_type: str,
    protocols: Mapping[str, bytes],
    session_timeout_ms: int,
    rebalance_timeout_ms: int,
    instance_id: str | None = None,
) -> Request:
    """Returns a JoinGroup request. ``member_id`` is empty in the first request of a member. ``protocols`` maps the name
    of each assignment protocol to the metadata of the member."""
    message = {
        "group_id": group,
        "session_timeout": session_timeout_ms,
        "rebalance_timeout": rebalance_timeout_ms,
        "member_id": member_id,
        "group_instance_id": instance_id,
        "protocol_type": protocol_type,
        "protocols": [{"name": name, "metadata": data} for name, data in protocols.items()],
    }
    return Request(ApiKey.JOIN_GROUP, 5, message)


def sync_group(membership: LockMembership, assignments: Mapping[str, bytes]) -> Request:
    """Returns the SyncGroup request of a member. The leader sends the assignments of all members; a follower sends
    none."""
    assigned = [{"member_id": member, "assignment": data} for member, data in assignments.items()]
    return Request(ApiKey.SYNC_GROUP, 3, {**membership.fields(), "assignments": assigned})


def heartbeat(membership: LockMembership) -> Request:
    return Request(ApiKey.HEARTBEAT, 3, membership.fields())


def consumer_heartbeat(
    group: str, member_id: str, epoch: int, topics: Iterable[str], owned: Mapping[uuid.UUID, list[int]] | None
) -> Request:
    """Returns the heartbeat of a member of the consumer protocol (KIP-848). The epoch 0 joins the group, and -1 leaves
    it. ``owned`` are the partitions that the member owns, by the ids of their topics."""
    message = {
        "group_id": group,
        "member_id": member_id,
        "member_epoch": epoch,
        "rebalance_timeout": CONSUMER_REBALANCE_MS,
        "subscribed_topic_names": sorted(topics),
        "topic_partitions": None
        if owned is None
        else [{"topic_id": topic_id, "partitions": numbers} for topic_id, numbers in owned.items()],
    }
    return Request(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, message)


def commit_in_epoch(
    group: str, member_id: str, epoch: int, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> Request:
    """Returns the commit of a member of the consumer protocol, which the coordinator accepts from version 9 on."""
    parts: dict[TopicPartition, Mapping[str, object]] = {
        tp: {
            "committed_offset": new.offset,
            "committed_leader_epoch": -1 if new.leader_epoch is None else new.leader_epoch,
            "committed_metadata": new.metadata,
        }
        for tp, new in offsets.items()
    }
    message = {
        "group_id": group,
        "generation_id_or_member_epoch": epoch,
        "member_id": member_id,
        "topics": topics_with(parts.items()),
    }
    return Request(ApiKey.OFFSET_COMMIT, 9, message)
