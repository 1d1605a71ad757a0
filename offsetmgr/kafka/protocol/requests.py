"""Builds the requests of the Kafka client, and converts responses into values of `offsetmgr.core.model`. Pure.

The module builds each request in one version only, the lowest version that has all needed fields. Brokers from 3.0 to
4.x support these versions: 3.0 introduced requests for many groups (FindCoordinator v4 and OffsetFetch v8, KIP-699 and
KIP-709), and 4.0 removed only older versions (KIP-896). For brokers before 3.0, `old_versions` translates the requests.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from offsetmgr.core.batches import by_key
from offsetmgr.core.errors import InvalidRequest, MalformedData, OffsetMgrError
from offsetmgr.core.model import (
    NEGATIVE_OFFSET,
    NO_OFFSET,
    Committed,
    GroupDescription,
    GroupMember,
    OffsetAndMetadata,
    TopicPartition,
    is_deleted,
)
from offsetmgr.kafka.protocol.api_key import ApiKey
from offsetmgr.kafka.protocol.channel import Address, EncodedRequest, Request
from offsetmgr.kafka.protocol.consumer_protocol import PROTOCOL_TYPE, decode_assignment, decode_subscription
from offsetmgr.kafka.protocol.errors import NegativeOffset, kafka_error
from offsetmgr.kafka.protocol.primitives import INT16, INT32, NO_TAGS, Cursor, request_string
from offsetmgr.kafka.protocol.schema_codec import Message

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
_FETCHED_EMPTY: Final = struct.Struct(">iqi4s")
"""A partition in OffsetFetch v8 whose last 4 bytes are `_PLAIN_ENDS`."""
_PLAIN_ENDS: Final = frozenset({b"\0\0\0" + NO_TAGS, b"\1\0\0" + NO_TAGS})
"""The end of a partition without metadata and without an error: null or an empty string, the error code 0, no tags."""


class FetchedGroup(NamedTuple):
    """The OffsetFetch response for one group. ``offsets`` omits partitions without a committed offset; ``errors``
    contains partitions that could not be read."""

    offsets: dict[TopicPartition, Committed]
    errors: dict[TopicPartition, OffsetMgrError]


def find_coordinator(names: Sequence[str], *, of_transactions: bool = False) -> Request:
    """Requests the coordinators of groups, or of transactional ids."""
    return Request(ApiKey.FIND_COORDINATOR, 4, {"key_type": int(of_transactions), "coordinator_keys": names})


def metadata(topics: Sequence[str] | None = ()) -> Request:
    """Requests the brokers and the given topics; all topics if None. The response contains no replicas."""
    names = None if topics is None else [{"name": name} for name in topics]
    return Request(ApiKey.METADATA, 8, {"topics": names, **METADATA_OPTIONS}, metadata_reader(8))


def broker_addresses(answer: Message) -> dict[int, Address]:
    """Returns the address of each broker in a Metadata response, by the broker's id."""
    return {broker["node_id"]: Address(broker["host"], broker["port"]) for broker in answer["brokers"]}


def list_groups() -> Request:
    return Request(ApiKey.LIST_GROUPS, 4, {"states_filter": ()})


def delete_groups(groups: Sequence[str]) -> Request:
    return Request(ApiKey.DELETE_GROUPS, 1, {"groups_names": groups})


def describe_groups(groups: Sequence[str]) -> Request:
    return Request(ApiKey.DESCRIBE_GROUPS, 4, {"groups": groups, "include_authorized_operations": False})


def consumer_group_describe(groups: Sequence[str]) -> Request:
    return Request(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, {"group_ids": groups, "include_authorized_operations": False})


def offset_fetch(partitions_by_group: Mapping[str, Sequence[TopicPartition] | None]) -> Request:
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


def read_offset_fetch(cursor: Cursor, listed: Container[str] = ()) -> dict[str, FetchedGroup | OffsetMgrError]:
    """Decodes an OffsetFetch v8 response: for each group its offsets, or its error.

    ``listed`` are the groups of which all partitions were requested. A response lists only partitions that have a
    commit, so a -1 in it was committed. If the request names a partition, a -1 also means that nothing is committed.

    The codec is hand-written, because bulk reads consist of these responses: the schema codec takes three times as
    long. Raises `InvalidRequest` for invalid bytes.
    """
    cursor.int32()  # throttle time
    found: dict[str, FetchedGroup | OffsetMgrError] = {}
    for _ in range(cursor.count(4)):
        group = cursor.string()
        fetched = FetchedGroup({}, {})
        for _ in range(cursor.count(3)):
            _read_partitions(cursor, group, cursor.string(), fetched, committed=group in listed)
            cursor.tags()
        code = cursor.number(INT16)
        cursor.tags()
        found[group] = kafka_error(code, f"group {group}") if code else fetched
    cursor.tags()
    return found


def _read_partitions(cursor: Cursor, group: str, topic: str, found: FetchedGroup, *, committed: bool) -> None:
    data, new = cursor.data, tuple.__new__  # skips the argument handling of named tuples
    for _ in range(cursor.count(_FETCHED_EMPTY.size)):
        at = cursor.take(_FETCHED_EMPTY.size)
        partition, offset, epoch, end = _FETCHED_EMPTY.unpack_from(data, at)
        metadata, code = "", 0
        if end not in _PLAIN_ENDS:
            cursor.at = at + _FETCHED.size
            metadata, code = cursor.nullable_string() or "", cursor.number(INT16)
            cursor.tags()
        tp = new(TopicPartition, (topic, partition))
        if code:
            found.errors[tp] = kafka_error(code, f"group {group}, {tp}")
        elif offset < 0:
            if committed or offset != NO_OFFSET:
                why, hint = f"holds {offset}: {NEGATIVE_OFFSET}", "offsetmgr offsets set replaces it"
                found.errors[tp] = NegativeOffset(f"group {group}, {tp}", why, hint)
        elif not is_deleted(offset, metadata):
            known = epoch if epoch >= 0 else None
            found.offsets[tp] = new(Committed, (offset, metadata, known, None, None))


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
    group = answer["group_id"]
    if answer["error_code"]:
        return kafka_error(answer["error_code"], f"group {group}")
    consumer = answer["protocol_type"] == PROTOCOL_TYPE
    return GroupDescription(
        group=group,
        state=upper_state(answer["group_state"]),
        protocol_type=answer["protocol_type"],
        partition_assignor=answer["protocol_data"],
        coordinator=coordinator,
        members=tuple(
            GroupMember(
                member_id=member["member_id"],
                client_id=member["client_id"],
                host=member["client_host"].removeprefix("/"),
                instance_id=member.get("group_instance_id"),
                partitions=decode_assignment(member["member_assignment"]) if consumer else (),
                topics=_subscription(member.get("member_metadata", b"")) if consumer else None,
            )
            for member in answer["members"]
        ),
    )


def _subscription(metadata: bytes) -> tuple[str, ...] | None:
    """Returns the topics of a member; None if the coordinator does not report them, as during a rebalance."""
    with suppress(MalformedData):
        return decode_subscription(metadata)
    return None


def group_without_membership(group: str, coordinator: str) -> GroupDescription:
    """Returns the description of a group on a broker that does not support group membership (0.8.2)."""
    return GroupDescription(group, "UNKNOWN", coordinator=coordinator, membership=False)


def parse_consumer_group(answer: Message, coordinator: str) -> GroupDescription | OffsetMgrError:
    """Converts one group of a ConsumerGroupDescribe response, for groups of the new consumer protocol (KIP-848)."""
    group = answer["group_id"]
    if answer["error_code"]:
        return kafka_error(answer["error_code"], f"group {group}", detail=answer["error_message"] or "")
    return GroupDescription(
        group=group,
        state=upper_state(answer["group_state"]),
        protocol_type=PROTOCOL_TYPE,
        partition_assignor=answer["assignor_name"],
        coordinator=coordinator,
        members=tuple(
            GroupMember(
                member_id=member["member_id"],
                client_id=member["client_id"],
                host=member["client_host"].removeprefix("/"),
                instance_id=member["instance_id"],
                partitions=tuple(
                    sorted(
                        TopicPartition(topic["topic_name"], number)
                        for topic in member["assignment"]["topic_partitions"]
                        for number in topic["partitions"]
                    )
                ),
                topics=None if member.get("subscribed_topic_regex") else tuple(member["subscribed_topic_names"]),
            )
            for member in answer["members"]
        ),
    )


def upper_state(state: str) -> str:
    """Returns a state as librdkafka names it: ``PreparingRebalance`` becomes ``PREPARING_REBALANCE``."""
    words = "".join(f"_{c}" if c.isupper() else c for c in state).lstrip("_")
    return words.upper() or "UNKNOWN"


# Decodes Metadata responses of versions 0 to 8. Pure. The codec is hand-written, because it takes a third of the time
# of the schema codec. It skips the replica ids, which no caller of the client needs and which make up most of the
# response of a large cluster.

_PARTITION: Final = struct.Struct(">hiii")
"""The start of a partition before version 7: error code, partition number, leader, and the number of replicas."""
_PARTITION_EPOCH: Final = struct.Struct(">hiiii")
"""The start of a partition from version 7 on: error code, partition number, leader, leader epoch, and the number of
replicas."""


def metadata_reader(version: int, topics: Collection[str] | None = None) -> Callable[[Cursor], Message]:
    """Returns a decoder of Metadata responses of this version. The result has the fields of the schema codec, without
    the replicas and the authorized operations.

    If ``topics`` is not None, the decoder skips the partitions of the topics that are not in ``topics``.
    """

    def read(cursor: Cursor) -> Message:
        answer: Message = {}
        if version >= 3:
            cursor.int32()  # throttle time
        answer["brokers"] = [_broker(cursor, version) for _ in range(cursor.count(10))]
        if version >= 2:
            answer["cluster_id"] = cursor.nullable_string()
        if version >= 1:
            answer["controller_id"] = cursor.int32()
        answer["topics"] = [_topic(cursor, version, topics) for _ in range(cursor.count(8))]
        if version >= 8:
            cursor.int32()  # authorized operations on the cluster
        return answer

    return read


def _broker(cursor: Cursor, version: int) -> Message:
    found: Message = {"node_id": cursor.int32(), "host": cursor.string(), "port": cursor.int32()}
    if version >= 1:
        found["rack"] = cursor.nullable_string()
    return found


def _topic(cursor: Cursor, version: int, topics: Collection[str] | None) -> Message:
    found: Message = {"error_code": cursor.number(INT16), "name": cursor.string()}
    if version >= 1:
        found["is_internal"] = cursor.boolean()
    partitions = _partitions(cursor, version)
    found["partitions"] = partitions if topics is None or found["name"] in topics else []
    if version >= 8:
        cursor.int32()  # authorized operations on the topic
    return found


def _partitions(cursor: Cursor, version: int) -> list[dict[str, int]]:
    form = _PARTITION_EPOCH if version >= 7 else _PARTITION
    unpack, size = form.unpack_from, form.size
    further_lists = range(2 if version >= 5 else 1)  # replicas in sync; from version 5 on also offline replicas
    data, partitions = cursor.data, []
    number = cursor.count(size + len(further_lists) * INT32.size)
    at = cursor.at
    try:
        for _ in range(number):
            error, index, leader, *epoch, ids = unpack(data, at)
            at = _after(at + size, ids)
            for _ in further_lists:
                (ids,) = INT32.unpack_from(data, at)
                at = _after(at + INT32.size, ids)
            leader_epoch = epoch[0] if epoch else -1
            partitions.append(
                {"error_code": error, "partition_index": index, "leader_id": leader, "leader_epoch": leader_epoch}
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
