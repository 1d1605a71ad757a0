"""Conditional commits: what our listener understands beyond Kafka's protocol, and how a client knows that it does.

Kafka has no compare-and-set on offsets.  OffsetCommit is flexible from version 8 on (KIP-482), so a partition may
carry tagged fields that a broker ignores.  Ours means: commit this partition only while that offset is committed.  A
client believes in it only on a connection whose ApiVersions answer announces the feature, as a broker or an older
manager would ignore the condition and commit.

Both ends of the wire take their numbers from here.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.kafka.protocol.api_key import ApiKey
from offsetmgr.kafka.protocol.channel import EncodedRequest
from offsetmgr.kafka.protocol.primitives import INT32, NO_TAGS, count, string, varint

CONDITIONAL_FEATURE: Final = "offsetmgr.conditional"
"""Supported feature (KIP-584) in the ApiVersions answer, level 1: OffsetCommit versions 8 and 9 take `EXPECTED_TAG`."""

EXPECTED_TAG: Final = 10_001
"""Tagged field of a partition in OffsetCommit: 8 bytes, the offset that must be committed for the partition to be
changed; `NOTHING` for none.  With it, a new offset of -1 deletes the commit instead.  Tags from 10,000 on are ours:
Kafka numbers its own from 0."""

EXPECTED: Final = struct.Struct(">q")

NOTHING: Final = -1

CONFLICT: Final = ErrorCode.OPERATION_NOT_ATTEMPTED
"""OPERATION_NOT_ATTEMPTED, for a partition whose condition does not hold, or cannot be told yet because another commit
to it is under way. Clients do not repeat it by themselves."""

LOG_FEATURE: Final = "offsetmgr.manager.log."
"""Beginning of the feature that names the topic in which the manager keeps the offsets."""

STORE_FEATURE: Final = "offsetmgr.store."
"""Beginning of the feature that names the kind of store behind the listener, where it is not a manager."""

CONDITIONAL_COMMIT: Final = (ApiKey.OFFSET_COMMIT, 8)
"""API key and version of the request that carries conditions."""

DROPS_METADATA: Final = "offsetmgr.drops-metadata"
DROPS_LEADER_EPOCH: Final = "offsetmgr.drops-leader-epoch"
"""Features of a listener before a store that cannot keep these."""

_PARTITION: Final = struct.Struct(">iqi")
_TAG: Final = b"\1" + varint(EXPECTED_TAG) + varint(EXPECTED.size)
"""One tagged field, and what comes before its value."""


def conditional_commit(
    group: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata | None],
    expected: Mapping[TopicPartition, int],
) -> EncodedRequest:
    """OffsetCommit v8 of nobody's, each partition on the condition that ``expected`` names; None deletes."""
    topics: dict[str, list[tuple[int, OffsetAndMetadata | None]]] = {}
    for (topic, partition), after in offsets.items():
        topics.setdefault(topic, []).append((partition, after))
    body = bytearray(NO_TAGS + string(group, flexible=True) + INT32.pack(-1) + string("", flexible=True) + b"\0")
    body += count(len(topics), flexible=True)
    for topic, parts in topics.items():
        body += string(topic, flexible=True)
        body += count(len(parts), flexible=True)
        for partition, after in parts:
            wanted = OffsetAndMetadata(NOTHING) if after is None else after
            epoch = -1 if wanted.leader_epoch is None else wanted.leader_epoch
            body += _PARTITION.pack(partition, wanted.offset, epoch)
            body += string(wanted.metadata, flexible=True)
            body += _TAG
            body += EXPECTED.pack(expected[TopicPartition(topic, partition)])
        body += NO_TAGS
    return EncodedRequest(*CONDITIONAL_COMMIT, bytes(body + NO_TAGS))
