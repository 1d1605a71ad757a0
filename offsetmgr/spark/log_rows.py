"""Decodes the records of an offsets topic to the rows of ``format("offsetmgr-log")``, as Arrow columns.

Pure: it converts bytes to record batches. The key of each record shows whether the record is in Kafka's format or in
offsetmgr's. An unreadable record becomes a row with an ``error`` and is never omitted (data rules "absent is not zero"
and "versioned formats"). The part that many keys have in common is decoded only once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.records.avro import AvroRecordFormat
from offsetmgr.records.base import GroupKey, OffsetKey, RecordFormat, version_of
from offsetmgr.records.kafka import KafkaFieldReader, KafkaRecordFormat, decode_group_metadata
from offsetmgr.records.registry import FORMATS, format_of

SCHEMA: Final = (
    "log_partition int, log_offset bigint, log_timestamp bigint, format string, kind string, key_version int, "
    "group string, topic string, partition int, tombstone boolean, offset bigint, leader_epoch int, metadata string, "
    "commit_timestamp bigint, expire_timestamp bigint, members int, group_timestamp bigint, error string"
)
"""The columns, as Spark's DDL. Times are milliseconds since 1970; unknown values are null.

``log_partition``, ``log_offset`` and ``log_timestamp`` are the record's position and append time. ``kind`` is
``offset`` (a committed offset), ``group`` (group metadata), ``state`` (a record of a group of the KIP-848 protocol) or
``other``. ``members`` and ``group_timestamp`` are set for groups only. ``members`` is the number of members of the
group; only Kafka's records contain this number. In Kafka's records, ``group_timestamp`` is the time at which the group
entered its present state. In offsetmgr's records, ``group_timestamp`` is the time at which the group last had members.
"""

OFFSET, GROUP, STATE, OTHER = "offset", "group", "state", "other"
_STATES: Final = range(3, 9)
"""The versions of Kafka's keys for groups of the KIP-848 protocol. Such a key begins with the group id."""


class _Key(NamedTuple):
    """The name of a key's record format, and the content of the key without the partition."""

    format: str | None
    kind: str
    version: int | None
    group: str | None = None
    topic: str | None = None
    error: str | None = None


_Value = tuple[int | None, int | None, str | None, int | None, int | None, int | None, int | None, str | None]
"""Offset, leader epoch, metadata, commit and expire timestamps, members, the group's timestamp, error."""

LogRecords = Sequence[Iterable[Any]]
"""Records as five columns of equal length: partition, offset, timestamp, key and value."""

_NOTHING: Final[_Value] = (None,) * 8
_ROWS_PER_BATCH: Final = 20_000
_REMEMBERED: Final = 65_536
"""Maximum number of cached pairs of a group and a topic."""
_ARROW_TYPES: Final = {"int": pa.int32(), "bigint": pa.int64(), "string": pa.string(), "boolean": pa.bool_()}


def arrow_types(schema: str) -> dict[str, pa.DataType]:
    """Returns the type of each column of ``schema``, which is Spark's DDL, in order."""
    columns = (column.split() for column in schema.split(", "))
    return {name: _ARROW_TYPES[kind] for name, kind in columns}


def arrow_columns(rows: Sequence[Sequence[Any]], types: Iterable[pa.DataType]) -> list[Any]:
    """Converts rows (at least one) to columns of these types."""
    return [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), types, strict=True)]


_TYPES: Final = arrow_types(SCHEMA)
_KEY_TYPES: Final = [_TYPES[name] for name in ("format", "kind", "key_version", "group", "topic", "error")]
"""The types of the fields of `_Key`."""
_VALUE_TYPES: Final = list(_TYPES.values())[-8:]
"""The types of the fields of `_Value`."""


class RowDecoder:
    """Decodes batches of records. Only one thread at a time may use it."""

    def __init__(self) -> None:
        self._formats: dict[str, RecordFormat] = {name: make() for name, make in FORMATS.items()}
        self._prefixes: dict[bytes, _Key] = {}

    def batch(
        self,
        partitions: Sequence[int],
        offsets: Sequence[int],
        timestamps: Sequence[int],
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
    ) -> pa.RecordBatch:
        """Returns one row for each record, in the same order."""
        split = [self._split(key) for key in keys]
        of_values = [self._value(key, value) for (key, _), value in zip(split, values, strict=True)]
        numbers: dict[int, int] = {}
        which = pa.array([numbers.setdefault(id(key), len(numbers)) for key, _ in split], pa.int32())
        distinct = {id(key): key for key, _ in split}
        of_keys = arrow_columns([distinct[number] for number in numbers], _KEY_TYPES)
        *names, key_error = [column.take(which) for column in of_keys]
        *read, value_error = arrow_columns(of_values, _VALUE_TYPES)
        columns: list[Any] = [
            pa.array(partitions, pa.int32()),
            pa.array(offsets, pa.int64()),
            pa.array(timestamps, pa.int64()),
            *names,
            pa.array([partition for _, partition in split], pa.int32()),
            pa.array([value is None for value in values], pa.bool_()),
            *read,
            pc.coalesce(key_error, value_error),
        ]
        return pa.RecordBatch.from_arrays(columns, names=list(_TYPES))

    def _split(self, key: bytes | None) -> tuple[_Key, int | None]:
        """Splits a key into the partition and the rest of the key. The decoded rest is cached, because many keys differ
        only in the partition."""
        name = None if key is None else format_of(key)
        if key is None or name is None:
            why = "the record has no key" if key is None else "the key has an unknown format"
            return _Key(None, OTHER, version_of(key or b""), error=why), None
        form = self._formats[name]
        try:
            parts = form.split(key)
            if parts is None:
                return _other(form, key), None
            prefix, partition = parts
            known = self._prefixes.get(prefix)
            if known is None:
                decoded = form.decode_key(key)
                assert isinstance(decoded, OffsetKey)  # only an offset's key can be split
                if len(self._prefixes) >= _REMEMBERED:
                    self._prefixes.clear()
                known = _Key(name, OFFSET, version_of(key), decoded.group, decoded.topic)
                self._prefixes[prefix] = known
        except OffsetMgrError as error:
            return _Key(name, OTHER, version_of(key), error=str(error)), None
        return known, partition

    def _value(self, key: _Key, value: bytes | None) -> _Value:
        if value is None or key.format is None:
            return _NOTHING
        try:
            if key.kind == OFFSET:
                offset, epoch, metadata, committed, expires, _ = self._formats[key.format].decode_value(value)
                return offset, epoch, metadata, committed, expires, None, None, None
            if key.kind == GROUP:
                if key.format == AvroRecordFormat.name:
                    active = self._formats[key.format].decode_group(value).last_active
                    return None, None, None, None, None, None, active, None
                group = decode_group_metadata(value)
                return None, None, None, None, None, len(group.members), group.current_state_timestamp, None
        except OffsetMgrError as error:
            return None, None, None, None, None, None, None, str(error)
        return _NOTHING


def decode_rows(chunks: Iterable[LogRecords], groups: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yields the rows of these groups, or all rows if ``groups`` is empty. A batch has about `_ROWS_PER_BATCH` rows."""
    decoder = RowDecoder()
    columns: list[list[Any]] = [[], [], [], [], []]
    for chunk in chunks:
        for column, values in zip(columns, chunk, strict=True):
            column.extend(values)
        if len(columns[0]) >= _ROWS_PER_BATCH:
            yield _of_groups(decoder.batch(*columns), groups)
            for column in columns:
                column.clear()
    if columns[0]:
        yield _of_groups(decoder.batch(*columns), groups)


def _of_groups(batch: pa.RecordBatch, groups: Sequence[str]) -> pa.RecordBatch:
    """Returns the rows of these groups, or all rows if ``groups`` is empty."""
    return batch.filter(pc.is_in(batch.column("group"), pa.array(groups, pa.string()))) if groups else batch


def _other(form: RecordFormat, key: bytes) -> _Key:
    """Decodes a key that is not the key of an offset."""
    decoded, version = form.decode_key(key), version_of(key)
    if isinstance(decoded, GroupKey):
        return _Key(form.name, GROUP, version, decoded.group)
    if form.name == KafkaRecordFormat.name and version in _STATES:
        return _Key(form.name, STATE, version, KafkaFieldReader(key, "key").string("groupId"))
    return _Key(form.name, OTHER, version)
