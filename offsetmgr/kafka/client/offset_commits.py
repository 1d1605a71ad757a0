"""Interprets OffsetCommit responses, and defines the interface to the offsets topic that the client needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from offsetmgr.core.errors import (
    ErrorCode,
    LockLost,
    OffsetMgrError,
    ServerError,
)
from offsetmgr.core.model import TopicPartition
from offsetmgr.kafka.protocol.errors import NOT_A_MEMBER, RETRIABLE, kafka_error, reason
from offsetmgr.kafka.protocol.schema_codec import Message

_REJECTS_MEMBER: Final = NOT_A_MEMBER | {ErrorCode.FENCED_INSTANCE_ID}


class OffsetsTopic(Protocol):
    """A reader of the topic in which brokers store committed offsets."""

    async def groups(self, deadline: float) -> list[str]:
        """Returns the ids of all groups with offsets."""
        ...

    async def partitions(self, groups: Sequence[str], deadline: float) -> Mapping[str, Sequence[TopicPartition]]:
        """Returns the partitions for which each of these groups has committed offsets."""
        ...

    async def partitions_in_log(
        self, groups: Sequence[str], deadline: float
    ) -> dict[str, Mapping[TopicPartition, bool]]:
        """Returns each partition for which the log has an offset of these groups, and whether the offset is pending in
        an open transaction."""
        ...


def commit_outcomes(
    group: str, answer: Message, *, forwarded: bool = False
) -> dict[TopicPartition, OffsetMgrError | None] | OffsetMgrError:
    """Returns the outcome of each partition of a commit, or the error of the whole commit.

    If an error concerns the whole group, Kafka reports the error for every partition, and the function returns it once.
    If ``forwarded`` is True, the commit contains the membership of another client. If the coordinator rejects this
    membership, the returned error contains the broker's error code. A retriable code in some partitions makes the whole
    commit retriable. This is safe, because the retry commits the same offsets.
    """
    outcomes: dict[TopicPartition, OffsetMgrError | None] = {}
    for topic in answer["topics"]:
        for part in topic["partitions"]:
            tp, code = TopicPartition(topic["name"], part["partition_index"]), part["error_code"]
            if forwarded and code in _REJECTS_MEMBER:
                return ServerError(f"commit of group {group}", reason(code), kafka_code=code)
            if code in NOT_A_MEMBER:
                error = kafka_error(code, f"commit of group {group}")
                return error if code == ErrorCode.ILLEGAL_GENERATION else NotAMember(error.what, error.why)
            if code in RETRIABLE:
                return kafka_error(code, f"commit of group {group}")
            outcomes[tp] = kafka_error(code, f"group {group}, {tp}") if code else None
    return outcomes


class NotAMember(LockLost):
    """The coordinator rejected a commit because the group has members and the client is not one of them."""
