"""Sends a conditional commit (`offsetmgr.kafka.protocol.conditional_commit`) to a coordinator that has announced
support."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from offsetmgr.core.errors import Conflict, OffsetMgrError, UnsupportedOperation, value_of
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import CommitErrors
from offsetmgr.kafka.client.api_versions import features
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import remaining
from offsetmgr.kafka.client.offset_commits import NotAMember
from offsetmgr.kafka.protocol.channel import Address
from offsetmgr.kafka.protocol.conditional_commit import CONDITIONAL_FEATURE, CONFLICT, conditional_commit
from offsetmgr.kafka.protocol.errors import NOT_A_MEMBER, RETRIABLE, kafka_error, reason
from offsetmgr.kafka.protocol.schema_codec import Message


class CommitResult(NamedTuple):
    """The outcome of each partition. ``retried`` is True if the client sent the commit more than once. In this case a
    `Conflict` may be the result of an earlier attempt that succeeded without a response."""

    outcomes: CommitErrors
    retried: bool


async def commit_if(
    client: Client,
    group: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata | None],
    expected: Mapping[TopicPartition, int],
    deadline: float,
) -> CommitResult:
    """Commits ``offsets``; the value None deletes the offset of a partition. The commit of a partition takes effect
    only if the committed offset of the partition equals the offset in ``expected``.

    Retries retriable errors until the deadline. The outcome of a partition whose condition is false is `Conflict`.
    Raises `UnsupportedOperation`, without sending the commit, if the coordinator does not announce conditional commits.
    Raises `NotAMember` if the group has members. Also raises any other error of the coordinator for the whole group.
    """
    request = conditional_commit(group, offsets, expected)
    attempts = 0

    async def ask(address: Address, groups: list[str]) -> dict[str, CommitErrors | OffsetMgrError]:
        nonlocal attempts
        async with client.node(address).dedicated_connection(deadline) as dedicated:
            if CONDITIONAL_FEATURE not in await features(dedicated.connection, remaining(deadline)):
                raise UnsupportedOperation(f"coordinator {address}", "it announces no conditional commits")
            attempts += 1
            answer = await dedicated.connection.call(request, remaining(deadline))
        return dict.fromkeys(groups, _outcomes(group, answer))

    result = value_of((await client.per_group([group], ask, deadline))[group])
    return CommitResult(result, attempts > 1)


def _outcomes(group: str, answer: Message) -> CommitErrors | OffsetMgrError:
    """Returns the outcome of each partition, or the error of the whole commit.

    A retriable code in any partition makes the whole commit retriable. A retry is safe: if the first attempt has
    succeeded, the condition of the second attempt is false, so the second attempt changes nothing.
    """
    outcomes: CommitErrors = {}
    for topic in answer["topics"]:
        for part in topic["partitions"]:
            tp, code = TopicPartition(topic["name"], part["partition_index"]), part["error_code"]
            if code in NOT_A_MEMBER:
                return NotAMember(f"commit of group {group}", reason(code))
            if code in RETRIABLE:
                return kafka_error(code, f"commit of group {group}")
            if code == CONFLICT:
                outcomes[tp] = Conflict(f"group {group}, {tp}", "its committed offset is not the expected one")
            else:
                outcomes[tp] = kafka_error(code, f"group {group}, {tp}") if code else None
    return outcomes
