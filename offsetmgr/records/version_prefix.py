"""The version at the start of every key and value, and the format that it belongs to.

Kafka numbers its kinds of keys from 0 (to 23 in 4.1). The keys of offsetmgr begin at 0x4F00, which Kafka's
readers skip, so neither format takes a key of the other for its own. The bytes are ``4F kr``: the kind of record k (0 a
committed offset, 1 a group) and its revision r. A key and its value have the same k, so that the reader detects a value
under the wrong key.

The revision of a key never changes, because a manager that does not know it would skip existing offsets. Changes of the
format raise the revision of values; an unknown one is an error of that offset.
"""

from __future__ import annotations

from typing import Final

from offsetmgr.core.errors import CorruptData, UnknownVersion
from offsetmgr.records.base import FormatMismatch

AVRO: Final = "avro"
KAFKA: Final = "kafka"

AVRO_OFFSET: Final = 0x4F00
AVRO_GROUP: Final = 0x4F10
_AVRO_VERSIONS: Final = range(0x4F00, 0x5000)
_KAFKA_VERSIONS: Final = range(0x100)


def pack_version(version: int) -> bytes:
    """Returns the two bytes of a version, big-endian and signed as in Kafka."""
    return version.to_bytes(2, "big", signed=True)


def format_of(key: bytes) -> str | None:
    """Returns the name of the format of a key; None if neither format writes such a key."""
    version = _version(key)
    if version in _AVRO_VERSIONS:
        return AVRO
    return KAFKA if version in _KAFKA_VERSIONS else None


def key_version(key: bytes, name: str) -> int:
    """Returns the version of a key in a topic of this format. Raises `CorruptData` if it has none, `FormatMismatch`."""
    version = _version(key)
    if version is None:
        raise CorruptData("key", f"{len(key)} bytes: too short to have a version")
    actual = format_of(key)
    if actual is not None and actual != name:
        raise FormatMismatch(
            f"a key of version {version}",
            f"it is written in the record format {actual!r}, and this topic is read as {name!r}",
            "name the format that the topic was written in, or another topic",
        )
    return version


def value_version(value: bytes, what: str, known: range) -> int:
    """Returns the version of a value. Raises `CorruptData` if it has none, `UnknownVersion` if it is not a known
    one."""
    version = _version(value)
    if version is None:
        raise CorruptData(what, f"{len(value)} bytes: too short to have a version")
    if version not in known:
        raise UnknownVersion(what, f"version {version}; known are {known[0]} to {known[-1]}")
    return version


def _version(data: bytes) -> int | None:
    return int.from_bytes(data[:2], "big", signed=True) if len(data) >= 2 else None
