"""The brokers in a Metadata response, and the same response with other brokers or without one topic; pure.

The brokers are near the beginning, so everything after them is kept byte for byte: the topics, which may be many, are
neither decoded nor encoded again. A topic to be removed is found by its name; only the removed part is decoded.

Source: MetadataResponse.json, versions 0 to 13.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from offsetmgr.core.errors import InvalidRequest
from offsetmgr.kafka.protocol.primitives import INT16, INT32, NO_TAGS, Cursor, count, string

HIGHEST: Final = 13
FLEXIBLE: Final = 9

_CERTAIN: Final = 6
"""Length of a name from which other bytes of a response are unlikely to look the same."""
_MOST_ERRORS: Final = 256
_SMALLEST_TOPIC: Final = 4
_SMALLEST_PARTITION: Final = 10
_BODY: Final = 8
"""After the length field and the correlation id."""


class NamedBroker(NamedTuple):
    """A broker in a response."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class BrokersPart(NamedTuple):
    """The array of brokers in a response: its position in the frame, and its content."""

    start: int
    end: int
    brokers: tuple[NamedBroker, ...]


def find_brokers(frame: bytes, version: int) -> BrokersPart:
    """The brokers in a whole Metadata response (length field first). Raises `InvalidRequest` if it cannot be parsed."""
    cursor = Cursor(frame, _BODY, flexible=version >= FLEXIBLE)
    cursor.tags()
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
    """The same response with ``brokers`` instead of ``part``."""
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
    """The same response without the topic of this name; None if it cannot be found with certainty.

    An occurrence of the name is the topic's own only if a known error code and the name's length are in front of it,
    which no name's characters can look like, and a whole topic begins there.
    """
    flexible = version >= FLEXIBLE
    needle = string(name, flexible=flexible)
    if len(name) < _CERTAIN:
        return None
    counted = _behind_cluster(frame, version)
    cursor = Cursor(frame, counted, flexible=flexible)
    number = cursor.count(_SMALLEST_TOPIC)
    first = cursor.at
    at = frame.find(needle, first)
    while at >= 0:
        start = at - INT16.size
        if start >= first and -1 <= INT16.unpack_from(frame, start)[0] < _MOST_ERRORS:
            try:
                end = _behind_topic(frame, start, version)
            except InvalidRequest:
                end = -1
            if end > 0:
                out = b"".join(
                    (frame[4:counted], count(number - 1, flexible=flexible), frame[first:start], frame[end:])
                )
                return INT32.pack(len(out)) + out
        at = frame.find(needle, at + 1)
    return None


def _behind_cluster(frame: bytes, version: int) -> int:
    """The position of the array of topics."""
    cursor = Cursor(frame, find_brokers(frame, version).end, flexible=version >= FLEXIBLE)
    if version >= 2:
        cursor.nullable_string()  # the cluster's id
    if version >= 1:
        cursor.int32()  # the controller
    return cursor.at


def _behind_topic(frame: bytes, start: int, version: int) -> int:
    cursor = Cursor(frame, start, flexible=version >= FLEXIBLE)
    cursor.number(INT16)
    cursor.string()
    if version >= 10:
        cursor.take(16)  # the topic's id
    if version >= 1:
        cursor.boolean()
    for _ in range(cursor.count(_SMALLEST_PARTITION)):
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
