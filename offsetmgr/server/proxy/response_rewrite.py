"""Replaces the brokers in an encoded Metadata response, or removes a topic from it. Pure.

The array of brokers is near the beginning of the response; all bytes after it are copied. So the topics, which may be
many, are neither decoded nor encoded again. To remove a topic, the module searches for the bytes of its name and
decodes only this topic.

Source: MetadataResponse.json, versions 0 to 13.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from offsetmgr.core.errors import InvalidRequest
from offsetmgr.kafka.protocol.schema_codec import INT16, INT32, NO_TAGS, Cursor, count, string

MAX_VERSION: Final = 13
FLEXIBLE: Final = 9

_MIN_NAME_BYTES: Final = 6
"""Minimum length of a topic name for which `without_topic` searches the response. A shorter name could be equal to
other bytes of the response by chance."""
_MAX_ERROR_CODE: Final = 256
_MIN_TOPIC_BYTES: Final = 4
_MIN_PARTITION_BYTES: Final = 10
_HEADER_TAGS: Final = 8
"""Position of a response header's tagged fields, after the length field and the correlation id."""


class NamedBroker(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None = None


class BrokersPart(NamedTuple):
    """The array of brokers in a response: its position in the frame, and its items."""

    start: int
    end: int
    brokers: tuple[NamedBroker, ...]


def response_body(frame: bytes, *, flexible: bool) -> Cursor:
    """Returns a reader of the body of a whole response (with its length field). Raises `InvalidRequest`."""
    cursor = Cursor(frame, _HEADER_TAGS, flexible=flexible)
    cursor.tags()
    return cursor


def find_brokers(frame: bytes, version: int) -> BrokersPart:
    """Reads the brokers of a whole Metadata response (with its length field). Raises `InvalidRequest`."""
    cursor = response_body(frame, flexible=version >= FLEXIBLE)
    if version >= 3:
        cursor.int32()  # throttle time
    start = cursor.at
    brokers = []
    for _ in range(cursor.count(10)):
        node_id, host, port = cursor.int32(), cursor.string(), cursor.int32()
        rack = cursor.nullable_string() if version >= 1 else None
        cursor.tags()
        brokers.append(NamedBroker(node_id, host, port, rack))
    return BrokersPart(start, cursor.at, tuple(brokers))


def replace_brokers(frame: bytes, version: int, part: BrokersPart, brokers: Sequence[NamedBroker]) -> bytes:
    """Returns the same response with ``brokers`` instead of those in ``part``."""
    flexible = version >= FLEXIBLE
    out = bytearray(count(len(brokers), flexible=flexible))
    for broker in brokers:
        out += INT32.pack(broker.node_id) + string(broker.host, flexible=flexible) + INT32.pack(broker.port)
        if version >= 1:
            out += _nullable(broker.rack, flexible=flexible)
        if flexible:
            out += NO_TAGS
    length = len(frame) - 4 - (part.end - part.start) + len(out)
    return b"".join((INT32.pack(length), frame[4 : part.start], out, frame[part.end :]))


def without_topic(frame: bytes, version: int, name: str) -> bytes | None:
    """Returns the same response without the topic of this name; None if the topic cannot be found with certainty.

    The bytes of the name may also occur elsewhere in the response. An occurrence counts as the topic only if a known
    error code and the name's length precede the name, and if a whole topic, which begins with the error code, can be
    parsed.
    """
    flexible = version >= FLEXIBLE
    needle = string(name, flexible=flexible)
    if len(name) < _MIN_NAME_BYTES:
        return None
    cursor = Cursor(frame, find_brokers(frame, version).end, flexible=flexible)
    if version >= 2:
        cursor.nullable_string()  # the cluster's id
    if version >= 1:
        cursor.int32()  # the controller
    topics_at = cursor.at
    number = cursor.count(_MIN_TOPIC_BYTES)
    first = cursor.at
    at = frame.find(needle, first)
    while at >= 0:
        start = at - INT16.size
        if start >= first and -1 <= INT16.unpack_from(frame, start)[0] < _MAX_ERROR_CODE:
            try:
                end = _topic_end(frame, start, version)
            except InvalidRequest:
                end = -1
            if end > 0:
                out = b"".join(
                    (frame[4:topics_at], count(number - 1, flexible=flexible), frame[first:start], frame[end:])
                )
                return INT32.pack(len(out)) + out
        at = frame.find(needle, at + 1)
    return None


def _topic_end(frame: bytes, start: int, version: int) -> int:
    cursor = Cursor(frame, start, flexible=version >= FLEXIBLE)
    cursor.number(INT16)
    cursor.string()
    if version >= 10:
        cursor.take(16)  # the topic's id
    if version >= 1:
        cursor.boolean()
    for _ in range(cursor.count(_MIN_PARTITION_BYTES)):
        cursor.take(10 if version < 7 else 14)  # error, index, leader, the leader's epoch
        for _ in range(2 if version < 5 else 3):  # replicas, those in sync, those offline
            cursor.take(4 * cursor.count(4))
        cursor.tags()
    if version >= 8:
        cursor.int32()  # authorized operations
    cursor.tags()
    return cursor.at


def _nullable(text: str | None, *, flexible: bool) -> bytes:
    if text is None:
        return b"\0" if flexible else INT16.pack(-1)
    return string(text, flexible=flexible)
