"""Decodes the keys and values of records in an offsets topic as JSON values. Other keys and values stay text, or
hexadecimal digits. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.plurals import raw_json
from offsetmgr.records.base import GroupKey, Key, OffsetKey, RecordFormat, UnknownKey
from offsetmgr.records.kafka import KEY_NAMES, KafkaRecordFormat, decode_group_metadata
from offsetmgr.records.registry import FORMATS, format_of

CONSUMER_OFFSETS: Final = "__consumer_offsets"


class ValueFormat(StrEnum):
    """The topics whose records are decoded as committed offsets: known offsets topics, all, or none."""

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
        self._kafka = decode is ValueFormat.OFFSETS or topic == CONSUMER_OFFSETS
        self._formats: dict[str, RecordFormat] = {name: make() for name, make in FORMATS.items()}

    def json(self, key: bytes | None, value: bytes | None) -> tuple[Any, Any]:
        """Returns a record's key and value as JSON values."""
        name = None if key is None or self._decode is ValueFormat.RAW else format_of(key)
        if key is None or name is None or (name == KafkaRecordFormat.name and not self._kafka):
            return raw_json(key), raw_json(value)
        known = self._formats[name]
        try:
            decoded = known.decode_key(key)
        except OffsetMgrError as error:
            return raw_json(key) if self._decode is ValueFormat.AUTO else _failed(key, error), raw_json(value)
        return _key(decoded), _value(known, decoded, value)


def _key(key: Key) -> dict[str, Any]:
    if isinstance(key, OffsetKey):
        return {"type": "offset", **key._asdict()}
    if isinstance(key, GroupKey):
        return {"type": "group", "group": key.group}
    return {"type": KEY_NAMES.get(key.version, "unknown"), "version": key.version}


def _value(known: RecordFormat, key: Key, value: bytes | None) -> Any:
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


def _failed(data: bytes, error: OffsetMgrError) -> dict[str, str]:
    """Returns the raw bytes of a key or value that cannot be decoded, and the reason."""
    return {"hex": data.hex(), "error": str(error)}
