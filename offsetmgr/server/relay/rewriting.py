"""The brokers in a Metadata answer, and the same answer with other brokers in it; pure.

They come near its beginning, so everything behind them is kept byte for byte: the topics, which may be many, are
neither read nor made anew.  Source: MetadataResponse.json, versions 0 to 13.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from offsetmgr.wire.primitives import INT16, INT32, NO_TAGS, Cursor, count, string

API_KEY: Final = 3
HIGHEST: Final = 13
FLEXIBLE: Final = 9

_BODY: Final = 8
"""Behind the length field and the correlation id."""


class NamedBroker(NamedTuple):
    """A broker as an answer names it."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class BrokersPart(NamedTuple):
    """The array of brokers in an answer: where it begins and ends in the frame, and what is in it."""

    start: int
    end: int
    brokers: tuple[NamedBroker, ...]


def find_brokers(frame: bytes, version: int) -> BrokersPart:
    """The brokers in a whole Metadata answer (length field first). Raises `InvalidRequest` where it makes no sense."""
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
    """The same answer with ``brokers`` in place of ``part``."""
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


def _nullable(text: str | None, *, flexible: bool) -> bytes:
    if text is None:
        return b"\0" if flexible else INT16.pack(-1)
    return string(text, flexible=flexible)
