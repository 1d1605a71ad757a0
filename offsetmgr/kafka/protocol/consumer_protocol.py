"""Encodes and decodes the subscription and the assignment of a consumer group member.

The members exchange subscriptions and assignments through the coordinator. Source: ConsumerProtocolSubscription.json
and ConsumerProtocolAssignment.json, version 0 of both. Every client can read version 0, and later versions begin with
the same fields.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from offsetmgr.core.errors import MalformedData
from offsetmgr.core.model import TopicPartition

PROTOCOL_TYPE: Final = "consumer"

_NO_USER_DATA: Final = struct.pack(">i", -1)


def encode_subscription(topics: Iterable[str] = ()) -> bytes:
    """Encodes a version 0 subscription to ``topics`` without user data."""
    names = [name.encode() for name in topics]
    listed = b"".join(struct.pack(">h", len(name)) + name for name in names)
    return struct.pack(">hi", 0, len(names)) + listed + _NO_USER_DATA


def decode_subscription(data: bytes) -> tuple[str, ...]:
    """Decodes the subscribed topics from a subscription of any version. Raises `MalformedData`."""
    try:
        (count,) = struct.unpack_from(">i", data, 2)
        at, topics = 6, []
        for _ in range(count):
            name, at = _string(data, at)
            topics.append(name)
        return tuple(topics)
    except (struct.error, UnicodeDecodeError) as error:
        raise MalformedData("consumer group subscription", str(error)) from None


def encode_assignment(partitions: Iterable[TopicPartition] = ()) -> bytes:
    """Encodes a version 0 assignment of ``partitions`` without user data."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    parts = [struct.pack(">hi", 0, len(by_topic))]
    for topic, numbers in by_topic.items():
        name = topic.encode()
        parts.append(struct.pack(">h", len(name)) + name)
        parts.append(struct.pack(f">i{len(numbers)}i", len(numbers), *numbers))
    return b"".join(parts) + _NO_USER_DATA


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """Decodes the assigned partitions, sorted, from an assignment of any version.

    Returns no partitions if ``data`` is empty, because a member with empty data has no assignment.

    Raises `MalformedData`.
    """
    if not data:
        return ()
    try:
        (count,) = struct.unpack_from(">i", data, 2)
        at, found = 6, []
        for _ in range(count):
            topic, at = _string(data, at)
            (length,) = struct.unpack_from(">i", data, at)
            numbers = struct.unpack_from(f">{max(length, 0)}i", data, at + 4)
            at += 4 + 4 * length
            found += [TopicPartition(topic, number) for number in numbers]
        return tuple(sorted(found))
    except (struct.error, UnicodeDecodeError) as error:
        raise MalformedData("consumer group assignment", str(error)) from None


def _string(data: bytes, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">h", data, at)
    end = at + 2 + length
    if length < 0 or end > len(data):
        raise struct.error("a name runs past the end")
    return data[at + 2 : end].decode(), end
