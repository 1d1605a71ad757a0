"""The group lock: join as the only member of a group, commit with the generation, leave.

Kafka has no compare-and-set on offsets, but the coordinator of a group with members accepts commits only from them,
with their generation. So the only member of a group may read, compare and write, and no other commit comes between. The
lock needs no clock: the coordinator rejects the commits of a process that lost its membership, even if that process was
frozen.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from kio.schema.heartbeat.v3.request import HeartbeatRequest
from kio.schema.heartbeat.v3.response import HeartbeatResponse
from kio.schema.join_group.v3.response import JoinGroupResponse
from kio.schema.join_group.v5.response import JoinGroupResponse as StaticJoinGroupResponse
from kio.schema.leave_group.v3.response import LeaveGroupResponse
from kio.schema.offset_commit.v7.response import OffsetCommitResponse
from kio.schema.offset_delete.v0.response import OffsetDeleteResponse
from kio.schema.offset_fetch.v8.response import OffsetFetchResponse
from kio.schema.sync_group.v3.response import SyncGroupResponse
from kio.schema.types import GroupId
from kio.static.primitive import i32
from kio.static.protocol import Payload

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.core.errors import Conflict, GroupActive, LockLost, OffsetMgrError
from offsetmgr.core.model import (
    LOCK_SESSION_S,
    Committed,
    GroupDescription,
    OffsetAndMetadata,
    TopicPartition,
    deletion_mark,
)
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import BrokerConnection
from offsetmgr.kafka.client.node import DedicatedConnection
from offsetmgr.kafka.client.offset_commits import commit_outcomes
from offsetmgr.kafka.client.retries import backoff
from offsetmgr.kafka.groups import member_requests
from offsetmgr.kafka.protocol import requests
from offsetmgr.kafka.protocol.errors import RETRIABLE, kafka_error
from offsetmgr.kafka.protocol.releases import DELETES_OFFSETS
from offsetmgr.kafka.protocol.requests import FetchedGroup

R = TypeVar("R", bound=Payload)

SESSION_MS: Final = LOCK_SESSION_S * 1000
"""Milliseconds for which the coordinator keeps a silent member; a killed process blocks its groups for this time.
Brokers allow 6 s to 30 min by default."""

_PARK_AFTER_S: Final = 0.1
"""Seconds after which a join counts as waiting for the broker's rebalance delay."""

_READS: Final = 5
_OLD_AFTER_S: Final = 1.0
"""Seconds after which a response counts as old and the request is repeated, because this process may have been stopped
meanwhile."""

_LEAST_TO_LEAVE_S: Final = 1.0
"""Minimum number of seconds for the leave request after the deadline."""


@dataclass(frozen=True, slots=True)
class LockMembership:
    """The proof of membership for the coordinator."""

    group: str
    member_id: str
    generation: int
    instance_id: str | None = None


def no_member(group: str) -> LockMembership:
    """Returns the membership of a client that is no member; an empty group accepts its commits."""
    return LockMembership(group, "", -1)


def active_members_error(group: str, members: Sequence[str], lock_ends_s: float = 0) -> GroupActive:
    """Returns the error of an edit of a group with other members, with their names. ``lock_ends_s``: see
    `GroupDescription`."""
    named = ", ".join(members)
    return GroupActive(
        f"group {group}",
        f"has active members: {named}" if members else "has active members",
        "stop its consumers, or wait until it is empty",
        members=tuple(members),
        lock_ends_s=lock_ends_s,
    )


async def join_as_static_member(
    lane: DedicatedConnection, client: Client, group: str, instance_id: str | None, deadline: float
) -> LockMembership:
    """Works as `join_alone`; while the join waits in the broker, another lane may work."""
    parking = asyncio.get_running_loop().call_later(_PARK_AFTER_S, lane.park)
    try:
        return await join_alone(lane.connection, client, group, instance_id, deadline)
    finally:
        parking.cancel()


async def join_alone(
    connection: BrokerConnection, client: Client, group: str, instance_id: str | None, deadline: float
) -> LockMembership:
    """Becomes the only member; makes one attempt.

    Raises `GroupActive` if there are other members (it leaves again first), else the error of the coordinator.
    """
    request = member_requests.join_group(group, instance_id, SESSION_MS)
    # The first join of an empty group takes as long as the broker's group.initial.rebalance.delay.ms.
    answer: JoinGroupResponse | StaticJoinGroupResponse
    if instance_id is None:
        answer = await connection.call(request, JoinGroupResponse, _left(deadline))
    else:
        answer = await connection.call(request, StaticJoinGroupResponse, _left(deadline))
    if answer.error_code:
        raise kafka_error(int(answer.error_code), f"lock of group {group}")
    mine = LockMembership(group, answer.member_id, int(answer.generation_id), instance_id)
    try:
        leads = answer.leader == answer.member_id
        # A static member that replaces its dead predecessor receives no member list, so the group is described.
        if (not leads and instance_id is None) or len(answer.members) > 1:
            raise await _others(client, mine, deadline)
        sync = await connection.call(
            member_requests.sync_group(group, mine.generation, mine.member_id, instance_id, leader=leads),
            SyncGroupResponse,
            _left(deadline),
        )
        if (
            int(sync.error_code) == ErrorCode.REBALANCE_IN_PROGRESS
        ):  # another client joined at this moment; it waits and this member leaves
            raise await _others(client, mine, deadline)
        if sync.error_code:
            raise kafka_error(int(sync.error_code), f"lock of group {group}")
        if not leads:
            refusal = await _others(client, mine, deadline)
            if refusal.members:
                raise refusal
    except OffsetMgrError:
        await leave(client, connection, mine, deadline)
        raise
    return mine


async def leave(client: Client, connection: BrokerConnection, mine: LockMembership, deadline: float) -> None:
    """Leaves the group at its current coordinator, because a membership moves with its group.

    If the request fails until the deadline (at least a second, at most a session), the membership ends with its
    session.
    """
    request = member_requests.leave_group(mine.group, mine.member_id, mine.instance_id)
    now = asyncio.get_running_loop().time
    until = min(max(deadline, now() + _LEAST_TO_LEAVE_S), now() + SESSION_MS / 1000)
    for pause in backoff():
        try:
            answer = await connection.call(request, LeaveGroupResponse, _left(until))
            if int(answer.error_code) not in RETRIABLE:
                return
        except OffsetMgrError as error:
            if not error.retriable:
                return
        if now() + pause >= until:
            return
        await asyncio.sleep(pause)
        with contextlib.suppress(OffsetMgrError):
            connection = await client.node(await client.coordinator(mine.group, until)).connection(until)
    raise AssertionError("back-off has no end")


async def fetch(
    connection: BrokerConnection, group: str, partitions: Sequence[TopicPartition] | None, deadline: float
) -> FetchedGroup:
    """Returns the committed offsets of the group from its coordinator."""
    answer = await connection.call(requests.offset_fetch({group: partitions}), OffsetFetchResponse, _left(deadline))
    found = requests.read_offset_fetch(answer.groups[0])
    if isinstance(found, OffsetMgrError):
        raise found
    return found


async def commit(
    connection: BrokerConnection,
    mine: LockMembership,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    deadline: float,
) -> dict[TopicPartition, OffsetMgrError | None]:
    """Commits as the member. Raises `LockLost` if the membership has ended; partitions have their own outcomes."""
    answer = await connection.call(
        requests.offset_commit(
            mine.group,
            offsets,
            generation=mine.generation,
            member_id=mine.member_id,
            instance_id=mine.instance_id,
        ),
        OffsetCommitResponse,
        _left(deadline),
    )
    outcomes = commit_outcomes(mine.group, answer)
    if isinstance(outcomes, OffsetMgrError):
        raise outcomes
    for error in outcomes.values():
        if isinstance(error, LockLost):
            raise error
    return outcomes


async def delete(
    connection: BrokerConnection,
    mine: LockMembership,
    partitions: Sequence[TopicPartition],
    deadline: float,
    compared: Mapping[TopicPartition, Committed] | None = None,
) -> dict[TopicPartition, OffsetMgrError | None]:
    """Deletes commits. The request carries no generation, but no other client can commit while we are the member.

    On a broker that cannot delete single offsets, the offsets are made to expire. ``compared`` are the offsets that the
    caller decided on: without the group lock, an offset that has changed since is a `Conflict` and stays.
    """
    group = mine.group
    if not DELETES_OFFSETS.on(connection.versions):
        return await _expire(connection, mine, partitions, deadline, compared)
    answer = await connection.call(
        member_requests.offset_delete(group, partitions), OffsetDeleteResponse, _left(deadline)
    )
    if answer.error_code:
        raise kafka_error(int(answer.error_code), f"delete in group {group}")
    outcomes: dict[TopicPartition, OffsetMgrError | None] = {}
    for topic in answer.topics:
        for part in topic.partitions:
            tp = TopicPartition(str(topic.name), int(part.partition_index))
            outcomes[tp] = kafka_error(int(part.error_code), f"group {group}, {tp}") if part.error_code else None
    return outcomes


async def _expire(
    connection: BrokerConnection,
    mine: LockMembership,
    partitions: Sequence[TopicPartition],
    deadline: float,
    compared: Mapping[TopicPartition, Committed] | None,
) -> dict[TopicPartition, OffsetMgrError | None]:
    """Commits the same offsets again with the mark of a deletion and a retention that has ended."""
    from offsetmgr.kafka.protocol.old_versions import expire_offsets

    now = asyncio.get_running_loop().time
    for _ in range(_READS):
        asked_at = now()
        found = await fetch(connection, mine.group, partitions, deadline)
        if now() - asked_at < _OLD_AFTER_S:
            break
    outcomes: dict[TopicPartition, OffsetMgrError | None] = {tp: found.errors.get(tp) for tp in partitions}
    topics: dict[str, list[dict[str, object]]] = {}
    for tp, committed in found.offsets.items():
        if compared is not None and compared.get(tp) != committed:
            why = f"offset {committed.offset} was committed since it was read"
            outcomes[tp] = Conflict(f"group {mine.group}, {tp}", why, actual=committed)
            continue
        part = {
            "partition_index": tp.partition,
            "committed_offset": committed.offset,
            "committed_metadata": deletion_mark(committed.offset),
        }
        topics.setdefault(tp.topic, []).append(part)
    if not topics:
        return outcomes
    commit = {
        "group_id": mine.group,
        "generation_id_or_member_epoch": mine.generation,
        "member_id": mine.member_id,
        "topics": [{"name": topic, "partitions": parts} for topic, parts in topics.items()],
    }
    answer = await expire_offsets(connection, commit, _left(deadline))
    for topic in answer["topics"]:
        for part in topic["partitions"]:
            tp, code = TopicPartition(topic["name"], part["partition_index"]), part["error_code"]
            outcomes[tp] = kafka_error(code, f"delete in group {mine.group}, {tp}") if code else None
    return outcomes


async def heartbeat(connection: BrokerConnection, mine: LockMembership, timeout: float) -> int:
    """Sends a heartbeat and returns the error code of the response (0: still the member)."""
    request = HeartbeatRequest(
        group_id=GroupId(mine.group),
        generation_id=i32(mine.generation),
        member_id=mine.member_id,
        group_instance_id=mine.instance_id,
    )
    return int((await connection.call(request, HeartbeatResponse, timeout)).error_code)


async def _others(client: Client, mine: LockMembership, deadline: float) -> GroupActive:
    described = (await client.describe([mine.group], deadline))[mine.group]
    if not isinstance(described, GroupDescription):
        raise described
    others = [str(member) for member in described.members if member.member_id != mine.member_id]
    return active_members_error(mine.group, others, described.lock_ends_s)


def _left(deadline: float) -> float:
    return max(deadline - asyncio.get_running_loop().time(), 0.001)
