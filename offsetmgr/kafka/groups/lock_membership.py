"""The steps of a group lock: join as the only member of a group, commit with the generation, leave.

Kafka has no compare-and-set on offsets. However, if a group has members, the coordinator accepts a commit only if it
comes from a member and contains the current generation. Therefore a client that is the only member of a group can read,
compare and write offsets, and no other client can commit between the read and the write. The lock does not depend on
clocks: the coordinator rejects the commits of a process whose membership has ended, even if the process was frozen and
has not noticed the end of its membership.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from offsetmgr.core.errors import Conflict, ErrorCode, GroupActive, LockLost, OffsetMgrError, value_of
from offsetmgr.core.model import (
    LOCK_SESSION_S,
    Committed,
    OffsetAndMetadata,
    TopicPartition,
    deletion_mark,
)
from offsetmgr.core.retry import Retries
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import BrokerConnection, DedicatedConnection, remaining
from offsetmgr.kafka.client.offset_commits import commit_outcomes
from offsetmgr.kafka.groups import member_requests
from offsetmgr.kafka.groups.member_requests import LockMembership
from offsetmgr.kafka.protocol import requests
from offsetmgr.kafka.protocol.channel import Address, Request
from offsetmgr.kafka.protocol.consumer_protocol import encode_assignment
from offsetmgr.kafka.protocol.errors import RETRIABLE, VALID_MEMBER_CODES, kafka_error
from offsetmgr.kafka.protocol.releases import DELETES_OFFSETS
from offsetmgr.kafka.protocol.requests import FetchedGroup

SESSION_MS: Final = LOCK_SESSION_S * 1000
"""The session timeout in milliseconds. If a process is killed, its groups remain locked for this time. Brokers allow 6
s to 30 min by default."""

_WAITING_AFTER_S: Final = 0.1
"""The time after which a JoinGroup request counts as waiting in the broker for the initial rebalance delay."""

_MAX_READS: Final = 5
_STALE_READ_S: Final = 1.0
"""If a read takes longer than this time, the client repeats the read, because this process may have been frozen after
the client sent the request."""

_MIN_LEAVE_TIMEOUT_S: Final = 1.0
"""The minimum time for the LeaveGroup request. It applies even if the deadline has passed."""


def non_member(group: str) -> LockMembership:
    """Returns the identity of a client without membership. A coordinator accepts commits with this identity if the
    group has no members."""
    return LockMembership(group, "", -1)


def active_members_error(group: str, members: Sequence[str], lock_ends_s: float = 0) -> GroupActive:
    """Returns the error for an edit of a group that has other members. ``lock_ends_s`` has the same meaning as
    `GroupDescription.lock_ends_s`."""
    named = ", ".join(members)
    return GroupActive(
        f"group {group}",
        f"has active members: {named}" if members else "has active members",
        "stop its consumers, or wait until it is empty",
        members=tuple(members),
        lock_ends_s=lock_ends_s,
    )


async def join_alone(
    dedicated: DedicatedConnection, client: Client, group: str, instance_id: str | None, deadline: float
) -> LockMembership:
    """Joins the group as its only member, in one attempt.

    If the group has other members, the function leaves the group and raises `GroupActive`. If the join fails for
    another reason, the function raises the error of the coordinator.
    """
    connection, request = dedicated.connection, member_requests.join_lock(group, instance_id, SESSION_MS)
    # The broker delays the first join of an empty group by group.initial.rebalance.delay.ms. During this delay the
    # connection does not count towards the limit of the pool.
    timer = asyncio.get_running_loop().call_later(_WAITING_AFTER_S, dedicated.mark_waiting)
    try:
        answer = await connection.call(request, remaining(deadline))
    finally:
        timer.cancel()
    if answer["error_code"]:
        raise kafka_error(answer["error_code"], f"lock of group {group}")
    membership = LockMembership(group, answer["member_id"], answer["generation_id"], instance_id)
    try:
        is_leader = answer["leader"] == answer["member_id"]
        # If a static member replaces its dead predecessor, the response contains no member list. In this case the code
        # below requests the members with `other_members_error`.
        if (not is_leader and instance_id is None) or len(answer["members"]) > 1:
            raise await other_members_error(client, membership, deadline)
        assignments = {membership.member_id: encode_assignment()} if is_leader else {}
        sync = await connection.call(member_requests.sync_group(membership, assignments), remaining(deadline))
        if sync["error_code"] == ErrorCode.REBALANCE_IN_PROGRESS:
            # Another client has just sent a JoinGroup, which waits in the coordinator until this member leaves the
            # group.
            raise await other_members_error(client, membership, deadline)
        if sync["error_code"]:
            raise kafka_error(sync["error_code"], f"lock of group {group}")
        if not is_leader:
            other_members = await other_members_error(client, membership, deadline)
            if other_members.members:
                raise other_members
    except OffsetMgrError:
        await leave(client, membership, deadline, connection=connection)
        raise
    return membership


async def leave(
    client: Client,
    membership: LockMembership,
    deadline: float,
    *,
    at: Address | None = None,
    connection: BrokerConnection | None = None,
) -> None:
    """Leaves the group. The first attempt uses ``connection``, or the coordinator ``at``. Each further attempt looks up
    the coordinator, because the coordinator may have moved.

    The method retries until the deadline, but for at least `_MIN_LEAVE_TIMEOUT_S` and for at most the session timeout.
    If all attempts fail, the membership ends when the session times out.
    """
    leave_request = member_requests.evict(membership.group, [(membership.member_id, membership.instance_id)])
    await send_leave(client, membership.group, leave_request, deadline, at=at, connection=connection)


async def send_leave(
    client: Client,
    group: str,
    request: Request,
    deadline: float,
    *,
    at: Address | None = None,
    connection: BrokerConnection | None = None,
) -> None:
    """Sends the request with which a member leaves the group; see `leave`."""
    now = asyncio.get_running_loop().time
    until = min(max(deadline, now() + _MIN_LEAVE_TIMEOUT_S), now() + SESSION_MS / 1000)
    retries = Retries(until)
    while True:
        try:
            if connection is None:
                node = client.node(at or await client.coordinator(group, until))
                connection = await node.connection(until)
            answer = await connection.call(request, remaining(until))
            if answer["error_code"] not in RETRIABLE:
                return
        except OffsetMgrError as error:
            if not error.retriable:
                return
        if not await retries.pause():
            return
        connection = at = None


async def fetch(
    connection: BrokerConnection, group: str, partitions: Sequence[TopicPartition] | None, deadline: float
) -> FetchedGroup:
    """Returns the committed offsets of the group from its coordinator."""
    request = requests.offset_fetch({group: partitions})
    read = partial(requests.read_offset_fetch, listed=(group,) if partitions is None else ())
    (found,) = (await connection.call_and_read(request, remaining(deadline), read)).values()
    return value_of(found)


async def commit(
    connection: BrokerConnection,
    membership: LockMembership,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    deadline: float,
) -> dict[TopicPartition, OffsetMgrError | None]:
    """Commits as the member and returns one outcome for each partition. Raises `LockLost` if the membership has
    ended."""
    request = requests.offset_commit(membership.group, offsets, membership.committer)
    answer = await connection.call(request, remaining(deadline))
    outcomes = value_of(commit_outcomes(membership.group, answer))
    for error in outcomes.values():
        if isinstance(error, LockLost):
            raise error
    return outcomes


async def delete(
    connection: BrokerConnection,
    membership: LockMembership,
    partitions: Sequence[TopicPartition],
    deadline: float,
    expected: Mapping[TopicPartition, Committed] | None = None,
) -> dict[TopicPartition, OffsetMgrError | None]:
    """Deletes committed offsets and returns one outcome for each partition.

    An OffsetDelete request contains no generation. It is still safe, because no other client can commit during the
    membership. If the broker cannot delete single offsets, the function makes the offsets expire instead. Only in this
    case it uses ``expected``, which contains the offsets that the caller has read without a group lock. If the
    committed offset of a partition differs from ``expected``, the function does not change the offset, and the outcome
    of the partition is `Conflict`.
    """
    group = membership.group
    if not DELETES_OFFSETS.supported_by(connection.versions):
        return await _expire(connection, membership, partitions, deadline, expected)
    answer = await connection.call(member_requests.offset_delete(group, partitions), remaining(deadline))
    if answer["error_code"]:
        raise kafka_error(answer["error_code"], f"delete in group {group}")
    outcomes: dict[TopicPartition, OffsetMgrError | None] = {}
    for topic in answer["topics"]:
        for part in topic["partitions"]:
            tp, code = TopicPartition(topic["name"], part["partition_index"]), part["error_code"]
            outcomes[tp] = kafka_error(code, f"group {group}, {tp}") if code else None
    return outcomes


async def _expire(
    connection: BrokerConnection,
    membership: LockMembership,
    partitions: Sequence[TopicPartition],
    deadline: float,
    expected: Mapping[TopicPartition, Committed] | None,
) -> dict[TopicPartition, OffsetMgrError | None]:
    """Commits the offsets again with a deletion mark and an expired retention (see `deletion_mark`)."""
    from offsetmgr.kafka.protocol.old_versions import expire_offsets

    now = asyncio.get_running_loop().time
    for _ in range(_MAX_READS):
        asked_at = now()
        found = await fetch(connection, membership.group, partitions, deadline)
        if now() - asked_at < _STALE_READ_S:
            break
    outcomes: dict[TopicPartition, OffsetMgrError | None] = {tp: found.errors.get(tp) for tp in partitions}
    topics: dict[str, list[dict[str, object]]] = {}
    for tp, committed in found.offsets.items():
        if expected is not None and expected.get(tp) != committed:
            why = f"offset {committed.offset} was committed since it was read"
            outcomes[tp] = Conflict(f"group {membership.group}, {tp}", why, actual=committed)
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
        "group_id": membership.group,
        "generation_id_or_member_epoch": membership.generation,
        "member_id": membership.member_id,
        "topics": [{"name": topic, "partitions": parts} for topic, parts in topics.items()],
    }
    answer = await expire_offsets(connection, commit, remaining(deadline))
    for topic in answer["topics"]:
        for part in topic["partitions"]:
            tp, code = TopicPartition(topic["name"], part["partition_index"]), part["error_code"]
            outcomes[tp] = kafka_error(code, f"delete in group {membership.group}, {tp}") if code else None
    return outcomes


async def heartbeat(connection: BrokerConnection, membership: LockMembership, timeout_s: float) -> int:
    """Sends a heartbeat and returns its error code; 0 means that the membership is valid."""
    code: int = (await connection.call(member_requests.heartbeat(membership), timeout_s))["error_code"]
    return code


async def prove(
    connection: BrokerConnection, membership: LockMembership, partition: TopicPartition, timeout_s: float
) -> int:
    """Commits the generation as the offset of ``partition`` and returns the error code of the commit. If the code is 0,
    the client was a member of this generation when the coordinator processed the request, and the coordinator was not
    replaced by another broker at this time: it responds only after the in-sync replicas have the commit."""
    proof = {partition: OffsetAndMetadata(membership.generation)}
    request = requests.offset_commit(membership.group, proof, membership.committer)
    answer = await connection.call(request, timeout_s)
    code: int = answer["topics"][0]["partitions"][0]["error_code"]
    return code


async def check(connection: BrokerConnection, membership: LockMembership, deadline: float) -> bool:
    """Checks with a heartbeat that the membership is valid. Returns whether another client waits for this member to
    leave.

    Raises `LockLost` if the membership has ended, or another error if the coordinator rejects the heartbeat for another
    reason.
    """
    code = await heartbeat(connection, membership, remaining(deadline))
    if code not in VALID_MEMBER_CODES:
        raise kafka_error(code, f"lock of group {membership.group}")
    return code == ErrorCode.REBALANCE_IN_PROGRESS


async def other_members_error(client: Client, membership: LockMembership, deadline: float) -> GroupActive:
    """Returns a `GroupActive` error with the names of the other members of the group. Raises `OffsetMgrError` if the
    coordinator returns an error for the group."""
    described = value_of((await client.describe([membership.group], deadline))[membership.group])
    others = [str(member) for member in described.members if member.member_id != membership.member_id]
    return active_members_error(membership.group, others, described.lock_ends_s)
