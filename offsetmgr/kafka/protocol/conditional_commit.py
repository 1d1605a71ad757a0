"""Conditional commits, an extension of Kafka's protocol that offsetmgr's listener supports. The module also contains
the names of other features that the listener announces.

Kafka has no compare-and-set on offsets. OffsetCommit is flexible from version 8 on (KIP-482), so a partition may have
tagged fields, and brokers ignore tagged fields that they do not know. offsetmgr's tagged field contains the expected
offset. The commit of the partition takes effect only if the currently committed offset equals the expected offset. A
client sends the field only to a server that announces the feature in its ApiVersions response. A server without the
feature would ignore the field and commit unconditionally.

The client and the server share these constants.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from offsetmgr.core.batches import by_key
from offsetmgr.core.errors import ErrorCode
from offsetmgr.core.model import NO_OFFSET, OffsetAndMetadata, TopicPartition
from offsetmgr.core.varint import encode_varint
from offsetmgr.kafka.protocol.api_key import ApiKey
from offsetmgr.kafka.protocol.channel import EncodedRequest
from offsetmgr.kafka.protocol.primitives import INT32, NO_TAGS, count, request_string

CONDITIONAL_FEATURE: Final = "offsetmgr.conditional"
"""A supported feature (KIP-584) in the ApiVersions response. Level 1 means that OffsetCommit versions 8 and 9 accept
`EXPECTED_TAG`."""

EXPECTED_TAG: Final = 10_001
"""The tagged field of a partition in OffsetCommit. The field contains the expected offset (8 bytes). The commit takes
effect only if the currently committed offset equals the expected offset. `NO_OFFSET` requires that nothing is
committed. In a commit with this field, a new offset of -1 deletes the committed offset. offsetmgr uses tags from 10,000
on, and Kafka numbers its own tags from 0 on."""

EXPECTED: Final = struct.Struct(">q")

CONFLICT: Final = ErrorCode.OPERATION_NOT_ATTEMPTED
"""The error code of a partition in two cases: the condition is false, or the condition cannot be checked yet because
another commit to the partition is in flight. Kafka's clients do not retry after this code."""

LOG_FEATURE: Final = "offsetmgr.manager.log."
"""The prefix of the name of a feature that managers announce. The rest of the name is the topic in which the manager
stores the offsets."""

STORE_FEATURE: Final = "offsetmgr.store."
"""The prefix of the name of a feature that other listeners announce. The rest of the name is the kind of the listener's
store."""

CONDITIONAL_COMMIT: Final = (ApiKey.OFFSET_COMMIT, 8)
"""The API key and version of requests with conditions."""

DROPS_METADATA: Final = "offsetmgr.drops-metadata"
DROPS_LEADER_EPOCH: Final = "offsetmgr.drops-leader-epoch"
"""Features with which a listener announces that its store cannot save metadata or leader epochs."""

_PARTITION: Final = struct.Struct(">iqi")
_TAG: Final = b"\1" + encode_varint(EXPECTED_TAG) + encode_varint(EXPECTED.size)
"""The bytes in front of the tag's value: the number of tagged fields (one), the tag, and the size of the value."""


def conditional_commit(
    group: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata | None],
    expected: Mapping[TopicPartition, int],
) -> EncodedRequest:
    """Encodes OffsetCommit v8 without membership. ``offsets`` contains the new value of each partition; None deletes
    the committed offset. ``expected`` contains the expected offset of each partition."""
    topics = by_key((topic, (partition, after)) for (topic, partition), after in offsets.items())
    body = bytearray(
        NO_TAGS + request_string(group, flexible=True) + INT32.pack(-1) + request_string("", flexible=True) + b"\0"
    )
    body += count(len(topics), flexible=True)
    for topic, parts in topics.items():
        body += request_string(topic, flexible=True)
        body += count(len(parts), flexible=True)
        for partition, after in parts:
            new = OffsetAndMetadata(NO_OFFSET) if after is None else after
            epoch = -1 if new.leader_epoch is None else new.leader_epoch
            body += _PARTITION.pack(partition, new.offset, epoch)
            body += request_string(new.metadata, flexible=True)
            body += _TAG
            body += EXPECTED.pack(expected[TopicPartition(topic, partition)])
        body += NO_TAGS
    return EncodedRequest(*CONDITIONAL_COMMIT, bytes(body + NO_TAGS))
