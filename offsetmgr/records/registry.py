"""Looks up a record format by its name, ``avro`` or ``kafka``, or by a record's key (`format_of`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from offsetmgr.core.errors import UsageError
from offsetmgr.records.avro import AvroRecordFormat
from offsetmgr.records.base import RecordFormat, format_of
from offsetmgr.records.kafka import KafkaRecordFormat

__all__ = ["FORMATS", "format_of", "record_format"]

FORMATS: Final[Mapping[str, Callable[[], RecordFormat]]] = MappingProxyType(
    {AvroRecordFormat.name: AvroRecordFormat, KafkaRecordFormat.name: KafkaRecordFormat}
)


def record_format(name: str) -> RecordFormat:
    """Returns a new instance of the format ``avro`` or ``kafka``. Raises `UsageError` for another name."""
    if name not in FORMATS:
        raise UsageError(f"record format {name!r}", "there is no such format", f"known are {', '.join(FORMATS)}")
    return FORMATS[name]()
