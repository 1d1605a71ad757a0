"""The version in front of every key and value, and which format's it is.

Kafka numbers its keys by kind, from 0 upwards (to 23 in 4.1).  Ours begin at 0x4F00, which Kafka's readers skip,
so one format's key is never taken for the other's.  Ours read ``4F kr``: the kind of record k (0 a committed offset,
1 a group) and its revision r, the same for keys and values so that a value under the wrong key is found out.

A key's revision is for ever: a manager that does not know it would skip offsets that exist.  What changes is the
revision of values, whose unknown ones are an error of that offset.
"""

from __future__ import annotations

from typing import Final

from offsetmgr.records.base import OtherFormat

AVRO: Final = "avro"
KAFKA: Final = "kafka"

AVRO_OFFSET: Final = 0x4F00
AVRO_GROUP: Final = 0x4F10
_AVRO_VERSIONS: Final = range(0x4F00, 0x5000)
_KAFKA_VERSIONS: Final = range(0x100)


def packed(version: int) -> bytes:
    """The two bytes, big-endian and signed as in Kafka."""
    return version.to_bytes(2, "big", signed=True)


def version_of(data: bytes) -> int | None:
    """The version of a key or value; None where there are not even two bytes."""
    return int.from_bytes(data[:2], "big", signed=True) if len(data) >= 2 else None


def format_of(key: bytes) -> str | None:
    """The name of the format that a key is of; None for what neither would write."""
    version = version_of(key)
    if version in _AVRO_VERSIONS:
        return AVRO
    return KAFKA if version in _KAFKA_VERSIONS else None


def refuse_other(key: bytes, name: str) -> None:
    """Raises `OtherFormat` for a key of another format than this one."""
    actual = format_of(key)
    if actual is not None and actual != name:
        raise OtherFormat(
            f"a key of version {version_of(key)}",
            f"it is written in the record format {actual!r}, and this topic is read as {name!r}",
            "name the format that the topic was written in, or another topic",
        )
