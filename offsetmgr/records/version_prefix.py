"""The version of keys and values. Every key and every value begins with a version of two bytes, which also identifies
the record format.

Kafka numbers its kinds of keys from 0 on; the last number in 4.4 is 23. The versions of offsetmgr's keys start at
0x4F00. Kafka's readers skip keys with these versions. The two ranges of versions do not overlap, so a reader of one
format never misinterprets a key of the other format. The two bytes are ``4F kr``, where k is the kind of the record (0
for a committed offset, 1 for a group) and r its revision. A key and its value have the same k, so that a reader detects
a value that is stored under the wrong kind of key.

The revision of keys never changes. If this revision changed, a manager that does not know the new revision would skip
keys with the new revision, and would miss their offsets. A change of the format increases the revision of values. If a
value has an unknown revision, the decoding of this value raises `UnknownVersion`.
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
    """Encodes a version as two bytes, big-endian and signed as in Kafka."""
    return version.to_bytes(2, "big", signed=True)


def format_of(key: bytes) -> str | None:
    """Returns the name of the record format that a key belongs to; None if the key belongs to neither format."""
    version = _version(key)
    if version in _AVRO_VERSIONS:
        return AVRO
    return KAFKA if version in _KAFKA_VERSIONS else None


def key_version(key: bytes, name: str) -> int:
    """Returns the version of a key in a topic of the format ``name``.

    Raises `CorruptData` if the key is too short, and `FormatMismatch` if the key belongs to the other format.
    """
    version = _version(key)
    if version is None:
        raise CorruptData("key", f"{len(key)} bytes: too short to have a version")
    actual = format_of(key)
    if actual is not None and actual != name:
        raise FormatMismatch(
            f"a key of version {version}",
            f"it is written in the record format {actual!r}, and this topic is read as {name!r}",
            "specify the record format of this topic, or another topic",
        )
    return version


def value_version(value: bytes, what: str, known: range) -> int:
    """Returns the version of a value. Raises `CorruptData` if the value is too short, and `UnknownVersion` if the
    version is not in ``known``."""
    version = _version(value)
    if version is None:
        raise CorruptData(what, f"{len(value)} bytes: too short to have a version")
    if version not in known:
        raise UnknownVersion(what, f"version {version}; known are {known[0]} to {known[-1]}")
    return version


def _version(data: bytes) -> int | None:
    return int.from_bytes(data[:2], "big", signed=True) if len(data) >= 2 else None
