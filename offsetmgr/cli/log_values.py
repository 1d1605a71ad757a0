"""Formats keys and values of records for people and for programs.

Programs get JSON: text as a string, other bytes as ``{"hex": "..."}``, null as null, and known formats as an object.
People get one line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.records.base import GroupKey, Key, OffsetKey, RecordFormat, UnknownKey
from offsetmgr.records.kafka import KEY_NAMES, KafkaRecordFormat
from offsetmgr.records.kafka_group import decode_group_metadata
from offsetmgr.records.registry import FORMATS, format_of

if TYPE_CHECKING:
    from offsetmgr.segments.batch_reader import Record
    from offsetmgr.segments.transactions import Marker

KAFKA_OFFSETS: Final = "__consumer_offsets"
MAX_SHOWN: Final = 100
"""Maximum number of characters of a key or value in a table."""

JsonValue: TypeAlias = Any


class ValueFormat(StrEnum):
    """The values of ``--decode``."""

    AUTO = "auto"
    OFFSETS = "offsets"
    RAW = "raw"


class ValueDecoder:
    """Decodes keys and values of one partition.

    With ``auto``, records in Kafka's format of committed offsets are decoded only in ``__consumer_offsets``. Records in
    the offset manager's own format are decoded in every topic.
    """

    def __init__(self, decode: ValueFormat, topic: str | None) -> None:
        self._decode = decode
        self._kafka = decode is ValueFormat.OFFSETS or topic == KAFKA_OFFSETS
        self._formats: dict[str, RecordFormat] = {name: make() for name, make in FORMATS.items()}

    def json(self, record: Record) -> tuple[JsonValue, JsonValue]:
        """Returns a record's key and value as JSON values."""
        known = self._format(record.key)
        if known is None or record.key is None:
            return raw_json(record.key), raw_json(record.value)
        try:
            key = known.decode_key(record.key)
        except OffsetMgrError as error:
            return raw_json(record.key) if self._decode is ValueFormat.AUTO else _failed(record.key, error), raw_json(
                record.value
            )
        return _key(key), _value(known, key, record.value)

    def _format(self, key: bytes | None) -> RecordFormat | None:
        name = None if key is None or self._decode is ValueFormat.RAW else format_of(key)
        if name is None or (name == KafkaRecordFormat.name and not self._kafka):
            return None
        return self._formats[name]


def raw_json(data: bytes | None) -> JsonValue:
    """Returns bytes of an unknown format as a JSON value: as text if the bytes are valid UTF-8, else as hexadecimal
    digits."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"hex": data.hex()}


def display_text(value: JsonValue) -> str | None:
    """A JSON value as one line of text, shortened to `MAX_SHOWN` characters."""
    if value is None:
        return None
    text = value if isinstance(value, str) else _fields(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}... ({len(text):,} characters)"


def control_value(record: Record, marker: Marker) -> JsonValue:
    """Returns the fields of a control record except its kind."""
    if marker.coordinator_epoch is not None:
        return {"coordinator_epoch": marker.coordinator_epoch}
    return None if record.value is None else {"hex": record.value.hex()}


def _fields(value: JsonValue) -> str:
    if isinstance(value, Mapping):
        if set(value) == {"hex"}:
            return f"0x{value['hex']}"
        return " ".join(f"{name}={_plain(field)}" for name, field in value.items() if field not in (None, ""))
    return _plain(value)


def _plain(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _key(key: Key) -> JsonValue:
    if isinstance(key, OffsetKey):
        return {"type": "offset", **key._asdict()}
    if isinstance(key, GroupKey):
        return {"type": "group", "group": key.group}
    return {"type": KEY_NAMES.get(key.version, "unknown"), "version": key.version}


def _value(known: RecordFormat, key: Key, value: bytes | None) -> JsonValue:
    if value is None or isinstance(key, UnknownKey):
        return raw_json(value)
    try:
        if isinstance(key, OffsetKey):
            found = known.decode_value(value)._asdict()
            found["topic_id"] = None if found["topic_id"] is None else str(found["topic_id"])
            return found
        if known.name != KafkaRecordFormat.name:
            return known.decode_group(value)._asdict()
        group = decode_group_metadata(value)._asdict()
        group["members"] = [
            {
                **member._asdict(),
                "subscription": {"hex": member.subscription.hex()},
                "assignment": {"hex": member.assignment.hex()},
            }
            for member in group["members"]
        ]
    except OffsetMgrError as error:
        return _failed(value, error)
    return group


def _failed(data: bytes, error: OffsetMgrError) -> JsonValue:
    """Returns the raw bytes of a key or value that cannot be decoded, and the reason."""
    return {"hex": data.hex(), "error": str(error)}
