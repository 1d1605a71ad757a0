"""Turns the bytes of a log into a `LogStretch`, with a fingerprint of each record.

In format 2, a record ends with its key, its value and its headers. Equal keys, values and headers have equal bytes,
because there is one way to encode them. Therefore a fingerprint is the hash of these bytes, which need no decoding.
Records of older formats are encoded in the same way first.
"""

from __future__ import annotations

import struct
from array import array
from enum import IntEnum
from hashlib import blake2b
from typing import Final, NamedTuple

from offsetmgr.core.errors import CorruptData
from offsetmgr.core.model import LogRange
from offsetmgr.core.varint import encode_varint
from offsetmgr.segments.batch_reader import (
    BATCH_HEADER,
    CONTROL,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    Record,
    batches,
    signed_varint,
)
from offsetmgr.segments.compression import decompress
from offsetmgr.segments.raw_batches import RECORDS_FROM, RawBatch, raw_batches
from offsetmgr.segments.transactions import ABORT, marker_of
from offsetmgr.translation.alignment import NO_KEY, LogStretch

_FINGERPRINT_BYTES: Final = 12
_TIME: Final = struct.Struct(">q")

COPIERS_HEADERS: Final = ("redpanda-migrator-offset", "x-original-offset")
"""Headers that Redpanda's migrator and kafka-backup add to the records that they copy."""


class Equality(IntEnum):
    """The parts of two records that have to be equal, beginning with the strictest comparison."""

    ALL = 0
    """Key, value and headers. The time stamp too, if the target keeps it."""
    KEY_AND_VALUE = 1
    WITHOUT_SCHEMA_ID = 2
    """The key, and the value without its bytes 1 to 4 if byte 0 is zero: these bytes are the id of a schema, and two
    schema registries may give one schema two ids."""

    @property
    def text(self) -> str:
        """Describes a comparison that is not the strictest one; empty for that one."""
        return ("", "compared by key and value alone", "compared by key and value without schema ids")[self]


class FingerprintRules(NamedTuple):
    """How records are compared. ``timestamps`` tells whether time stamps count; if it is None, they count unless the
    broker set those of the first records. ``ignored_headers`` do not count in either log: a record of the source has
    them if a copier wrote it, or if it is a dead letter."""

    equality: Equality = Equality.ALL
    timestamps: bool | None = None
    ignored_headers: tuple[str, ...] = ()


class Piece:
    """The part of a log from one offset up to another, which is read from its beginning to its end."""

    def __init__(self, log: LogRange, first: int, stop: int, comparison: FingerprintRules) -> None:
        self.next_offset, self.stop = first, stop
        self.bytes_per_record: float | None = None
        """The size of the whole batches that were added last, by the number of all their records."""
        self.mixed_times = False
        """Whether time stamps count, although the broker set some of them."""
        self.timestamps = comparison.timestamps if comparison.equality is Equality.ALL else False
        self.stretch = LogStretch(first, log.start, log.end, timed=bool(self.timestamps))
        self._equality = comparison.equality
        self._headers = frozenset(name.encode() for name in comparison.ignored_headers)
        self._open: dict[int, list[int]] = {}
        """For each producer, the indexes of its records whose transaction has no marker in this piece."""
        self._first_markers: dict[int, int] = {}
        """For each producer, the type of its first marker in this piece."""

    def add(self, data: bytes) -> int:
        """Adds the complete batches of ``data``, which begins at or before `next_offset`, up to `stop`. Returns the
        number of their bytes. Raises `CorruptData`, `UnknownVersion` and `LimitExceeded`."""
        size = count = 0
        for batch in raw_batches(data):
            if batch.last_offset < self.next_offset:
                continue
            if batch.magic < 2:
                (old,) = batches(data[batch.start : batch.end])
                first, records = old.base_offset, old.records
            else:
                first, records = batch.base_offset, []
            if first >= self.stop:
                self.skip_to_stop()
                break
            size += batch.end - batch.start
            count += len(records) if batch.magic < 2 else batch.record_count
            self.stretch.gaps |= first > self.next_offset
            if batch.magic < 2:
                for record in records:
                    if self.next_offset <= record.offset < self.stop:
                        self.stretch.gaps |= record.offset > self.next_offset
                        self._add_old(record)
                        self.next_offset = record.offset + 1
            elif batch.attributes & CONTROL:
                self._add_markers(data, batch)
            else:
                self._add_batch(data, batch)
            self.next_offset = min(batch.last_offset + 1, self.stop)
        self.bytes_per_record = size / count if count else self.bytes_per_record
        return size

    def skip_to_stop(self) -> None:
        """Ends the piece: the log has no more records before `stop`."""
        self.stretch.gaps |= self.next_offset < self.stop
        self.next_offset = self.stop

    def extend(self, later: Piece) -> None:
        """Adds the piece that begins where this one ends."""
        stretch, other = self.stretch, later.stretch
        shift = len(stretch.prints)
        for producer, kind in later._first_markers.items():
            if kind == ABORT:
                stretch.aborted.update(self._open.get(producer, ()))
            self._open.pop(producer, None)
            self._first_markers.setdefault(producer, kind)
        for producer, indexes in later._open.items():
            self._open.setdefault(producer, []).extend(index + shift for index in indexes)
        stretch.offsets.extend(other.offsets)
        stretch.prints.extend(other.prints)
        stretch.keys.extend(other.keys)
        stretch.aborted.update(index + shift for index in other.aborted)
        stretch.gaps |= other.gaps
        self.next_offset, self.stop = later.next_offset, later.stop
        self.mixed_times |= later.mixed_times

    def committed(self) -> LogStretch:
        """Returns the records before the first transaction that is still open, which is all that a consumer with
        ``isolation.level=read_committed`` gets now. Such a consumer gets no record of an aborted transaction either."""
        stretch = self.stretch
        stop = min((indexes[0] for indexes in self._open.values() if indexes), default=len(stretch.prints))
        kept = [index for index in range(stop) if index not in stretch.aborted]
        if len(kept) == len(stretch.prints):
            return stretch
        return LogStretch(
            stretch.first,
            stretch.start,
            stretch.offset_at(stop),
            array("q", (stretch.offsets[index] for index in kept)),
            [stretch.prints[index] for index in kept],
            array("q", (stretch.keys[index] for index in kept)),
            gaps=stretch.gaps,
            hidden=stretch.end - stretch.offset_at(stop),
        )

    # --- records ------------------------------------------------------------------------------------

    def _add_markers(self, data: bytes, batch: RawBatch) -> None:
        (decoded,) = batches(data[batch.start : batch.end], controls=True)
        for record in decoded.records:
            kind = marker_of(record).kind
            self._first_markers.setdefault(batch.producer_id, kind)
            indexes = self._open.pop(batch.producer_id, ())
            if kind == ABORT:
                self.stretch.aborted.update(indexes)

    def _count_times(self, append_time: bool) -> None:
        if self.timestamps is None:
            self.timestamps = not append_time
        self.mixed_times |= append_time and self.timestamps

    def _add_old(self, record: Record) -> None:
        """Adds a message of format 0 or 1, encoded like a record of format 2 without headers."""
        fields = (
            b"\1" if field is None else encode_varint(len(field) << 1) + field for field in (record.key, record.value)
        )
        self._count_times(record.log_append_time)
        self._append(record.offset, -1 if record.timestamp is None else record.timestamp, b"".join(fields) + b"\0")
        self.stretch.keys.append(NO_KEY if record.key is None else hash(record.key))

    def _add_batch(self, data: bytes, batch: RawBatch) -> None:
        header = BATCH_HEADER.unpack_from(data, batch.start + LOG_OVERHEAD)
        first_time, largest_time, count = header[5], header[6], header[10]
        what = f"batch at offset {batch.base_offset}"
        body = decompress(batch.codec, data[batch.start + RECORDS_FROM : batch.end], what)
        appended = largest_time if batch.attributes & LOG_APPEND_TIME else None
        self._count_times(appended is not None)
        self.stretch.gaps |= count != batch.last_offset - batch.base_offset + 1
        before = len(self.stretch.prints)
        try:
            wanted = range(max(batch.base_offset, self.next_offset), self.stop)
            self._add_records(body, count, wanted, batch.base_offset, first_time, appended)
        except (IndexError, ValueError) as error:
            raise CorruptData(what, f"it breaks Kafka's format: {error}") from error
        if batch.transactional:
            self._open.setdefault(batch.producer_id, []).extend(range(before, len(self.stretch.prints)))

    def _add_records(
        self, body: bytes, count: int, wanted: range, base: int, first_time: int, appended: int | None
    ) -> None:
        """Adds the wanted records of a batch. Of each record it reads the size, the differences of time and offset, and
        the key, and hashes the rest as it is. Short numbers are decoded inline, because a log has many records."""
        plain = self._equality is Equality.ALL and not any(name in body for name in self._headers)
        stretch, times, at, pack = self.stretch, self.timestamps, 0, _TIME.pack
        first, end = wanted.start, wanted.stop
        add_offset, add_print, add_key = stretch.offsets.append, stretch.prints.append, stretch.keys.append
        for _ in range(count):
            size, at = signed_varint(body, at)
            following = at + size
            if size < 0 or following > len(body):
                raise ValueError(f"a record of {size} bytes does not fit in it")
            if (byte := body[at + 1]) < 0x80:
                time, at = first_time + ((byte >> 1) ^ -(byte & 1)), at + 2
            else:
                delta, at = signed_varint(body, at + 1)
                time = first_time + delta
            if (byte := body[at]) < 0x80:
                offset, at = base + (byte >> 1), at + 1
            else:
                delta, at = signed_varint(body, at)
                offset = base + delta
            content = body[at:following]
            at = following
            if not first <= offset < end:
                continue
            size, start = signed_varint(content, 0)
            add_key(hash(content[start : start + size]) if size >= 0 else NO_KEY)
            if plain:
                if times:
                    content = pack(time if appended is None else appended) + content
                add_offset(offset)
                add_print(blake2b(content, digest_size=_FINGERPRINT_BYTES).digest())
            else:
                self._append(offset, time if appended is None else appended, content)
        if at != len(body):
            raise ValueError(f"{len(body) - at} bytes follow its {count} records")

    def _append(self, offset: int, time: int, content: bytes) -> None:
        """Adds a record that may have headers of a copier, or that is compared by a part of its content."""
        stretch = self.stretch
        prefix = _TIME.pack(time) if self.timestamps else b""
        key, value, headers = _fields(content)
        if self._equality is Equality.ALL:
            kept = [header for name, header in headers if name not in self._headers]
            if len(kept) < len(headers):
                content = key + value + encode_varint(len(kept) << 1) + b"".join(kept)
        else:
            size, start = signed_varint(value, 0)
            if self._equality is Equality.WITHOUT_SCHEMA_ID and size > 4 and not value[start]:
                value = value[: start + 1] + value[start + 5 :]
            prefix, content = b"", key + value
        stretch.offsets.append(offset)
        stretch.prints.append(blake2b(prefix + content, digest_size=_FINGERPRINT_BYTES).digest())


def _fields(content: bytes) -> tuple[bytes, bytes, list[tuple[bytes, bytes]]]:
    """Splits the key, the value and the headers of a record, each still encoded; a header comes with its name."""
    value_at = _end_of_field(content, 0)
    headers_at = _end_of_field(content, value_at)
    count, at = signed_varint(content, headers_at)
    headers = []
    for _ in range(count):
        size, name_at = signed_varint(content, at)
        end = _end_of_field(content, name_at + max(size, 0))
        headers.append((content[name_at : name_at + max(size, 0)], content[at:end]))
        at = end
    return content[:value_at], content[value_at:headers_at], headers


def _end_of_field(content: bytes, at: int) -> int:
    size, start = signed_varint(content, at)
    end = start + max(size, 0)
    if end > len(content):
        raise ValueError(f"a field of {size} bytes does not fit in it")
    return end
