"""Describes share groups (KIP-932), and reads and changes their start offsets.

A share group has no committed offsets. For each partition (*share-partition*) it has a start offset: the records before
it are acknowledged, and the states of the records behind it are kept by the share coordinator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from offsetmgr.core.batches import batched
from offsetmgr.core.errors import ErrorCode, NotAuthorized, OffsetMgrError
from offsetmgr.core.model import GroupDescription, TopicPartition
from offsetmgr.core.offset_store import CommitErrors
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import BrokerConnection
from offsetmgr.kafka.protocol.errors import checked, failure_of
from offsetmgr.kafka.protocol.frames import Address, Request
from offsetmgr.kafka.protocol.releases import ApiKey
from offsetmgr.kafka.protocol.requests import describe_kind, parse_consumer_group, parts_of, topics_with
from offsetmgr.kafka.protocol.schema_codec import Message

NO_START: Final = -1
"""The start offset of a partition whose start `share.auto.offset.reset` decides."""
_BATCH: Final = 100
"""The number of groups in one request."""


class ShareOffset(NamedTuple):
    """The position of a share group in one partition.

    ``start`` is None if the group has no start offset yet, which its ``share.auto.offset.reset`` then decides. ``lag``
    is the number of records that are not acknowledged; None on brokers before 4.2, or if the broker does not know it.
    """

    start: int | None
    leader_epoch: int | None = None
    lag: int | None = None


class ShareOffsets(NamedTuple):
    """The positions of a share group, and the partitions whose position could not be read."""

    offsets: dict[TopicPartition, ShareOffset]
    errors: dict[TopicPartition, OffsetMgrError]


async def describe(
    client: Client, groups: Sequence[str], deadline: float
) -> dict[str, GroupDescription | OffsetMgrError]:
    """Returns the state and the members of share groups. The error of a group that is no share group is
    `GroupNotFound`, and `UnsupportedOperation` on a broker without share groups."""

    async def ask(address: Address, names: list[str]) -> dict[str, GroupDescription | OffsetMgrError]:
        answer = await client.call(address, describe_kind(names, ApiKey.SHARE_GROUP_DESCRIBE, 1), deadline)
        return {one["group_id"]: parse_consumer_group(one, str(address), "share") for one in answer["groups"]}

    return await client.per_group(groups, ask, deadline)


async def fetch(client: Client, groups: Iterable[str], deadline: float) -> dict[str, ShareOffsets | OffsetMgrError]:
    """Returns all start offsets of share groups. The errors are those of `describe`, but a group that does not exist
    has no start offsets.

    The request names no partitions, because brokers from 4.2 on answer a request that names a missing partition only
    after their timeout.
    """

    async def ask(address: Address, names: list[str]) -> dict[str, ShareOffsets | OffsetMgrError]:
        found: dict[str, ShareOffsets | OffsetMgrError] = {}
        for batch in batched(names, _BATCH):
            message = {"groups": [{"group_id": group, "topics": None} for group in batch]}
            answer = await client.call(address, Request(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1, message), deadline)
            found |= {one["group_id"]: _offsets(one) for one in answer["groups"]}
        return found

    return await client.per_group(list(groups), ask, deadline)


async def alter(
    connection: BrokerConnection, group: str, starts: Mapping[TopicPartition, int], timeout_s: float
) -> CommitErrors:
    """Sets start offsets of a share group, whose coordinator the connection leads to; `NO_START` removes one. The
    broker forgets which records behind them are acknowledged.

    Returns the outcome of each partition, and retries nothing, because a second request would also discard what was
    acknowledged after the first one. Raises `GroupActive` if the group has members. If the broker does not answer, the
    change may have been made. Brokers of Kafka 4.1 change nothing, see `RESETS_SHARE_GROUPS`.
    """
    topics = topics_with(((tp, {"start_offset": at}) for tp, at in starts.items()), "topic_name")
    request = Request(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, {"group_id": group, "topics": topics})
    answer = await connection.call(request, timeout_s)
    if answer["error_code"] == ErrorCode.GROUP_AUTHORIZATION_FAILED:
        raise NotAuthorized(f"share group {group}", "may not be reset by this login", "allow Read on the group")
    checked(answer, f"share group {group}")
    parts = parts_of(answer, "responses", "topic_name")
    return {tp: failure_of(part, f"share group {group}, {tp}") for tp, part in parts}


def _offsets(answer: Message) -> ShareOffsets | OffsetMgrError:
    group = answer["group_id"]
    if (failure := failure_of(answer, f"share group {group}")) is not None:
        return failure
    found = ShareOffsets({}, {})
    for tp, part in parts_of(answer, name="topic_name"):
        if (error := failure_of(part, f"share group {group}, {tp}")) is not None:
            found.errors[tp] = error
        else:
            numbers = part["start_offset"], part["leader_epoch"], part.get("lag", -1)
            found.offsets[tp] = ShareOffset(*(number if number >= 0 else None for number in numbers))
    return found
