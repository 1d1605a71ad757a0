"""Encodes batches of new records for a broker to append: without headers, timestamps and compression.

`offsetmgr.segments.batch_builder` encodes every kind of batch. This module takes about a sixth of its time, and the
manager encodes all records of all commits with it. The broker sets the offsets and, in a topic with LogAppendTime, the
timestamps.

Source: org.apache.kafka.common.record (DefaultRecordBatch, DefaultRecord).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from offsetmgr.core.varint import encode_varint
from offsetmgr.segments.batch_builder import Producer, sealed

_UNKNOWN: Final = -1
_NUMBERS: Final = [encode_varint(number << 1) for number in range(1 << 13)]
"""The zigzag varints of small numbers."""
_NULL: Final = b"\1"
"""The length of a value that is null."""


def append_batch(records: Sequence[tuple[bytes, bytes | None]], producer: Producer) -> bytes:
    """Encodes one batch. A record is a key and a value; the value None is a tombstone. ``producer`` is the idempotent
    producer and the sequence number of the first record.

    >>> from offsetmgr.segments.batch_reader import batches
    >>> (found,) = batches(append_batch([(b"key", b"value"), (b"gone", None)], Producer(7, 0, 0)))
    >>> [(record.key, record.value) for record in found.records]
    [(b'key', b'value'), (b'gone', None)]
    """
    try:
        body = _short_records(records)
    except IndexError:
        parts: list[bytes] = []
        for delta, (key, value) in enumerate(records):
            value_length = _NULL if value is None else _number(len(value))
            content = b"".join((b"\0\0", _number(delta), _number(len(key)), key, value_length, value or b"", b"\0"))
            parts += _number(len(content)), content
        body = b"".join(parts)
    number = len(records)
    return sealed(0, (_UNKNOWN, 2, 0, 0, number - 1, _UNKNOWN, _UNKNOWN, *producer[:3], number), body)


def _short_records(records: Sequence[tuple[bytes, bytes | None]]) -> bytes:
    """Encodes records. Raises IndexError if there are more of them than `_NUMBERS` has numbers, or if one is longer.
    There is no call for each number, because that would take as long as the rest."""
    numbers = _NUMBERS
    parts: list[bytes] = []
    for delta, (key, value) in enumerate(records):
        at, key_length = numbers[delta], numbers[len(key)]
        content = value or b""
        value_length = _NULL if value is None else numbers[len(content)]
        size = 3 + len(at) + len(key_length) + len(key) + len(value_length) + len(content)
        # The attributes and the timestamp delta precede the offset delta; the number of headers is the last byte.
        parts += numbers[size], b"\0\0", at, key_length, key, value_length, content, b"\0"
    return b"".join(parts)


def _number(number: int) -> bytes:
    return encode_varint(number << 1)
