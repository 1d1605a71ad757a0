"""Conditional commits: an extension of Kafka's protocol that the listener supports, and how a client detects it.

Kafka has no compare-and-set on offsets. OffsetCommit is flexible from version 8 on (KIP-482), so a partition may carry
tagged fields that a broker ignores. The tag of offsetmgr means: commit this partition only while that offset is
committed. A client uses it only on a connection whose ApiVersions response announces the feature, because a broker or
an older manager would ignore the condition and commit.

Client and server share these constants.
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
"""Supported feature (KIP-584) in the ApiVersions response, level 1: OffsetCommit versions 8 and 9 accept
`EXPECTED_TAG`."""

EXPECTED_TAG: Final = 10_001
"""Tagged field of a partition in OffsetCommit: 8 bytes, the offset that must be committed for the change to happen;
`NO_OFFSET` for none. With it, a new offset of -1 deletes the commit. Tags from 10,000 on are offsetmgr's; Kafka numbers
its own from 0."""

EXPECTED: Final = struct.Struct(">q")

NO_OFFSET: Final = -1

CONFLICT: Final = ErrorCode.OPERATION_NOT_ATTEMPTED
"""The code for a partition whose condition does not hold, or cannot be checked yet because another commit to it is in
flight. Kafka's clients do not retry it."""

LOG_FEATURE: Final = "offsetmgr.manager.log."
"""The prefix of the feature that names the topic in which the manager keeps the offsets."""

STORE_FEATURE: Final = "offsetmgr.store."
"""The prefix of the feature that names the kind of store behind the listener, if it is not a manager."""

CONDITIONAL_COMMIT: Final = (ApiKey.OFFSET_COMMIT, 8)
"""API key and version of the request with conditions."""

DROPS_METADATA: Final = "offsetmgr.drops-metadata"
DROPS_LEADER_EPOCH: Final = "offsetmgr.drops-leader-epoch"
"""Features of a listener in front of a store that cannot keep these fields."""

_PARTITION: Final = struct.Struct(">iqi")
_TAG: Final = b"\1" + varint(EXPECTED_TAG) + varint(EXPECTED.size)
"""One tagged field, and the bytes before its value."""


def conditional_commit(
    group: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata | None],
    expected: Mapping[TopicPartition, int],
) -> EncodedRequest:
    """Encodes OffsetCommit v8 without membership, each partition with its condition in ``expected``; None deletes."""
    topics: dict[str, list[tuple[int, OffsetAndMetadata | None]]] = {}
    for (topic, partition), after in offsets.items():
        topics.setdefault(topic, []).append((partition, after))
    body = bytearray(NO_TAGS + string(group, flexible=True) + INT32.pack(-1) + string("", flexible=True) + b"\0")
    body += count(len(topics), flexible=True)
    for topic, parts in topics.items():
        body += string(topic, flexible=True)
        body += count(len(parts), flexible=True)
        for partition, after in parts:
            new = OffsetAndMetadata(NO_OFFSET) if after is None else after
            epoch = -1 if new.leader_epoch is None else new.leader_epoch
            body += _PARTITION.pack(partition, new.offset, epoch)
            body += string(new.metadata, flexible=True)
            body += _TAG
            body += EXPECTED.pack(expected[TopicPartition(topic, partition)])
        body += NO_TAGS
    return EncodedRequest(*CONDITIONAL_COMMIT, bytes(body + NO_TAGS))
