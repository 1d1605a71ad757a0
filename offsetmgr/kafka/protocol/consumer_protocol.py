"""Encodes and decodes the subscription and the assignment of a consumer group member.

The members exchange subscriptions and assignments through the coordinator. Source: ConsumerProtocolSubscription.json
and ConsumerProtocolAssignment.json, version 0 of both. Every client can read version 0, and later versions begin with
the same fields.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from offsetmgr.core.batches import by_key
from offsetmgr.core.errors import InvalidRequest, MalformedData
from offsetmgr.core.model import TopicPartition
from offsetmgr.kafka.protocol.primitives import INT16, INT32, Cursor, count, request_string

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


def decode_subscription(data: bytes) -> tuple[str, ...]:
    """Decodes the subscribed topics from a subscription of any version. Raises `MalformedData`."""
    cursor = Cursor(data, len(_VERSION), flexible=False, is_response=True)
    try:
        return tuple(cursor.string() for _ in range(cursor.nullable_count(INT16.size)))
    except InvalidRequest as error:
        raise MalformedData("consumer group subscription", error.why) from None


def decode_owned_subscription(data: bytes) -> MemberSubscription:
    """Decodes the topics and the owned partitions from a subscription of any version. Raises `MalformedData`."""
    cursor = Cursor(data, 0, flexible=False, is_response=True)
    try:
        version = cursor.number(INT16)
        topics = tuple(cursor.string() for _ in range(cursor.nullable_count(INT16.size)))
        if version < 1:
            return MemberSubscription(topics)
        cursor.nullable_octets()  # the data of the assignor
        owned: list[TopicPartition] = []
        for _ in range(cursor.nullable_count(INT16.size + INT32.size)):
            topic = cursor.string()
            owned += [TopicPartition(topic, cursor.int32()) for _ in range(cursor.nullable_count(INT32.size))]
    except InvalidRequest as error:
        raise MalformedData("consumer group subscription", error.why) from None
    return MemberSubscription(topics, tuple(owned))


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
    found: list[TopicPartition] = []
    try:
        for _ in range(cursor.nullable_count(INT16.size + INT32.size)):
            topic = cursor.string()
            found += [TopicPartition(topic, cursor.int32()) for _ in range(cursor.nullable_count(INT32.size))]
    except InvalidRequest as error:
        raise MalformedData("consumer group assignment", error.why) from None
    return tuple(sorted(found))
