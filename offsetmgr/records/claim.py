"""`Claim`: the record with which a manager takes over a partition of the offsets topic.

The owner appends a claim to a partition before it serves the partition. The claim is the only record of the first batch
of a new producer epoch, so the leader of the partition rejects every later batch of an earlier epoch. All claims of a
partition have the same key, so compaction keeps the newest one. Readers of offsets skip claims. The value is a JSON
object.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from offsetmgr.core.errors import CorruptData
from offsetmgr.core.field_reader import FieldReader
from offsetmgr.records.base import EncodedRecord, pack_version

_VERSION: Final = 1
KEY_VERSION: Final = 0x4F20
CLAIM_KEY: Final = pack_version(KEY_VERSION) + b"claim"
"""The key of every claim."""
FENCE_KEY: Final = pack_version(KEY_VERSION) + b"fence"
"""The key of the record with which a new owner fences the producer id of an earlier owner. The record is the only
record of its batch, and its value is null or empty. The batch has the earlier producer id and the epoch `FENCE_EPOCH`.
Readers of offsets skip the record."""
FENCE_EPOCH: Final = 32767
"""The largest epoch. Brokers assign epochs up to 32766, so a batch with this epoch fences every producer of its
producer id."""


class Claim(NamedTuple):
    """A claim of one partition."""

    token: str
    """A random text that no other claim has. The owner reads its claim back and compares the token, because a broker
    answers a resent batch without comparing its content."""
    manager: str
    """The manager that wrote the claim, for people who read the log."""
    time_ms: int
    """The time of the brokers, in milliseconds since 1970, for people who read the log."""
    producer_ids: tuple[int, ...]
    """Every producer id that has ever written to the partition, in ascending order, with the id of this claim.
    Compaction removes older claims, but records of their producer ids remain."""
    complete_from: int = 0
    """All offsets of the partition are in records from this offset of the log on. The owner raises it after records
    were deleted and it has appended all offsets again. Earlier versions do not write it."""


def encode_claim(claim: Claim) -> EncodedRecord:
    fields = {"version": _VERSION, **claim._asdict()}
    return CLAIM_KEY, json.dumps(fields, separators=(",", ":")).encode()


def decode_claim(value: bytes) -> Claim:
    """Decodes the value of a claim. Raises `CorruptData` and `UnknownVersion`."""
    fields = FieldReader.parse(value, "claim", CorruptData)
    fields.version((_VERSION,))
    ids = fields.get("producer_ids")
    if not isinstance(ids, list) or not all(type(one) is int and one >= 0 for one in ids):
        raise fields.invalid("producer_ids", "a list of producer ids")
    complete_from = fields.optional_integer("complete_from") or 0
    return Claim(fields.text("token"), fields.text("manager"), fields.integer("time_ms"), tuple(ids), complete_from)
