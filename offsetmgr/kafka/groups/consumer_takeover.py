"""`take_over_consumer_group`: takes over a running group of the consumer protocol (KIP-848).

The steps correspond to those of `group_takeover`, but the coordinator makes the assignment:

1. The client joins with the subscription of the group and waits until the epochs of all members are equal. A member
   that is removed during a rebalance could otherwise fail in its application.
2. It removes all other members. The coordinator assigns all partitions to the client.
3. In the epoch of this assignment the client reads, compares and commits.
4. The client keeps all partitions until the removed consumers are back, so that no consumer begins before the edit is
   complete. Then it leaves, and the coordinator assigns the partitions to the consumers.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar

from offsetmgr.core.errors import GroupActive, LockLost, OffsetMgrError, UnsupportedOperation, value_of
from offsetmgr.core.model import EDIT_CLIENT_ID, GroupDescription, GroupMember, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import CommitErrors
from offsetmgr.core.retry import Backoff, Retries, cancel_tasks
from offsetmgr.kafka.client.client import Client, NotAMember, commit_outcomes
from offsetmgr.kafka.client.connection import BrokerConnection, remaining
from offsetmgr.kafka.client.topics import format_topic_id, topic_ids
from offsetmgr.kafka.groups import group_lock as lock_membership
from offsetmgr.kafka.groups.group_takeover import abandoned, reject_edit
from offsetmgr.kafka.protocol import requests
from offsetmgr.kafka.protocol.errors import kafka_error
from offsetmgr.kafka.protocol.frames import Address
from offsetmgr.kafka.protocol.requests import FetchedGroup
from offsetmgr.kafka.protocol.schema_codec import Message

T = TypeVar("T")

_POLL_S: Final = 0.3
_MAX_EVICTIONS: Final = 20
_SETTLED_S: Final = 5.0
"""Seconds for which all epochs must be equal: the heartbeat interval of the consumer protocol."""
_AWAY_EPOCH: Final = -2
"""The epoch of a static member that was stopped. The coordinator keeps its partitions until it is back, or until its
session times out."""


@dataclass(slots=True)
class _Membership:
    """The member of this process: its epoch, its subscription, and its partitions by the ids of their topics.

    Until ``collects`` is True, the heartbeats claim no partition, so that the other members keep theirs. After that the
    member gives back no partition until it leaves.
    """

    group: str
    member_id: str
    topics: frozenset[str]
    epoch: int = 0
    assigned: dict[uuid.UUID, list[int]] = field(default_factory=dict)
    collects: bool = False
    away: set[str] = field(default_factory=set)
    """The ids of static members that were stopped before this process removed them."""


class ConsumerTakeover:
    """A group of the consumer protocol of which this process is the only member, after it has removed the other
    members. It has the methods of `offsetmgr.kafka.groups.group_takeover.GroupTakeover`."""

    def __init__(
        self, client: Client, connection: BrokerConnection, membership: _Membership, evicted: Sequence[str]
    ) -> None:
        self.evicted = evicted
        self._client = client
        self._connection = connection
        self._membership = membership
        self._heartbeat_task = asyncio.create_task(self._heartbeat_loop())

    @property
    def group(self) -> str:
        return self._membership.group

    async def fetch(self, partitions: Sequence[TopicPartition], deadline: float) -> FetchedGroup:
        """Returns the committed offsets, which no other client can change while the group is taken over."""
        return await self._retry(lambda c: lock_membership.fetch(c, self.group, partitions, deadline), deadline)

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], deadline: float) -> CommitErrors:
        """Commits in the epoch of the membership. Raises `LockLost` if the membership has ended."""

        async def attempt(connection: BrokerConnection) -> CommitErrors:
            member = self._membership
            request = requests.commit_in_epoch(member.group, member.member_id, member.epoch, offsets)
            return value_of(commit_outcomes(member.group, await connection.call(request, remaining(deadline))))

        return await self._retry(attempt, deadline)

    async def delete(self, partitions: Sequence[TopicPartition], deadline: float) -> CommitErrors:
        """Rejects the deletion, because the coordinator deletes no offset of a topic to which a member subscribes."""
        del deadline
        why = "the coordinator deletes no offsets of topics to which a group of the consumer protocol subscribes"
        error = UnsupportedOperation(f"deletion in the running group {self.group}", why, "stop its consumers first")
        return dict.fromkeys(partitions, error)

    async def readmit(self, withheld: Collection[TopicPartition], until: float) -> int:
        """Keeps all partitions until as many members as were removed are in the group again, or until ``until``.
        Returns the number of other members."""
        del withheld  # the client keeps every partition
        poll = Retries(until, Backoff.fixed(_POLL_S))
        while True:
            described = await self._retry(lambda connection: _describe(connection, self.group, until), until)
            back: int = sum(one["member_id"] != self._membership.member_id for one in described["members"])
            if back >= len(self.evicted) or not await poll.pause():
                return back

    async def leave(self, deadline: float) -> None:
        """Leaves the group. Retries until the deadline; after that the session of the member times out."""
        await cancel_tasks(self._heartbeat_task)
        await _leave(self._client, self._connection, self._membership, deadline)
        self._connection.abort()

    async def _retry(self, attempt: Callable[[BrokerConnection], Awaitable[T]], deadline: float) -> T:
        """Calls ``attempt``. After an error that is retriable, connects to the current coordinator and calls it again.

        The epoch of the membership may have changed before the coordinator has processed a commit. After a heartbeat,
        which fails if the membership has ended, the same commit is valid. A commit may be repeated, because it writes
        the same values.
        """
        retries = Retries(deadline)
        while True:
            try:
                return await attempt(self._connection)
            except NotAMember:
                await _heartbeat(self._connection, self._membership, deadline)
                if not await retries.pause():
                    raise
            except OffsetMgrError as error:
                await retries.pause_or_raise(error)
                self._client.rotate_lookup_broker()
                with contextlib.suppress(OffsetMgrError):
                    address = await self._client.coordinator(self.group, deadline)
                    connection = await self._client.node(address).open(deadline, EDIT_CLIENT_ID)
                    self._connection.abort()
                    self._connection = connection

    async def _heartbeat_loop(self) -> None:
        """Keeps the session alive. The commits notice that the membership has ended."""
        while True:
            await asyncio.sleep(_POLL_S)
            with contextlib.suppress(OffsetMgrError):
                await _heartbeat(self._connection, self._membership, asyncio.get_running_loop().time() + 5)


@asynccontextmanager
async def take_over_consumer_group(
    client: Client, described: GroupDescription, partitions: Collection[TopicPartition], deadline: float
) -> AsyncIterator[ConsumerTakeover]:
    """Removes all members of a group of the consumer protocol and joins it as its only member, until the ``async with``
    block ends. ``partitions`` are the partitions to edit. Raises `GroupActive` if the group does not settle."""
    address = Address.parse(described.coordinator)
    connection, group = await client.node(address).open(deadline, EDIT_CLIENT_ID), described.group
    takeover: ConsumerTakeover | None = None
    membership: _Membership | None = None
    try:
        found = await _describe(connection, group, deadline)
        topics = {topic for member in found["members"] for topic in member["subscribed_topic_names"]}
        topics |= {part["topic_name"] for member in found["members"] for part in _target(member)}
        topics |= {tp.topic for member in described.members for tp in member.partitions}
        membership = _Membership(group, str(uuid.uuid4()), frozenset(topics))
        ids = await topic_ids(client, topics, deadline)
        needed = {(ids.get(tp.topic, ""), tp.partition) for tp in partitions if tp.topic in topics}
        await _settle(connection, membership, deadline)
        membership.collects = True
        evicted = await _own(connection, membership, needed, deadline)
        before = (member.member_id for member in described.members)
        expected = evicted or [one for one in before if one not in membership.away]  # not back after a failed attempt
        takeover = ConsumerTakeover(client, connection, membership, expected)
        yield takeover
    finally:
        if takeover is not None:
            await takeover.leave(deadline)
        elif membership is not None:
            await _leave(client, connection, membership, deadline)
        connection.abort()


def _target(member: Message) -> list[Message]:
    assigned: list[Message] = member["target_assignment"]["topic_partitions"]
    return assigned


async def _settle(connection: BrokerConnection, membership: _Membership, deadline: float) -> None:
    """Joins, and waits until the epochs of all members that run have been equal for a heartbeat interval."""
    now = asyncio.get_running_loop().time
    settled_since: float | None = None
    poll = Retries(deadline, Backoff.fixed(_POLL_S))
    while True:
        await _heartbeat(connection, membership, deadline)
        described = await _describe(connection, membership.group, deadline)
        _reject_other_edit(
            membership.group, (one for one in described["members"] if one["member_id"] != membership.member_id)
        )
        epochs = {one["member_epoch"] for one in described["members"]} - {_AWAY_EPOCH}
        if epochs == {described["group_epoch"]} and described["assignment_epoch"] == described["group_epoch"]:
            settled_since = settled_since or now()
            if now() - settled_since >= _SETTLED_S:
                return
        else:
            settled_since = None
        if not await poll.pause():
            why = "its members do not reach the same epoch"
            raise GroupActive(f"group {membership.group}", why, "try again when the group is stable")


async def _own(
    connection: BrokerConnection, membership: _Membership, needed: set[tuple[str, int]], deadline: float
) -> list[str]:
    """Removes all other members and becomes the owner of the partitions ``needed`` (topic id and number). Returns the
    ids of the members of the first removal, without static members that were stopped before.

    The removal and the heartbeat are in flight together, so that the coordinator assigns the partitions to the client
    before a removed member is back. If a member is back earlier nevertheless, the function removes it, too. Raises
    `LockLost` if members come back again and again.
    """
    evicted: list[str] | None = None
    for _ in range(_MAX_EVICTIONS):
        described = await _describe(connection, membership.group, deadline)
        others = [one for one in described["members"] if one["member_id"] != membership.member_id]
        _reject_other_edit(membership.group, others)
        if evicted is None:
            membership.away = {one["member_id"] for one in others if one["member_epoch"] == _AWAY_EPOCH}
            here = (one["member_id"] for one in others if one["member_id"] not in membership.away)
            evicted = [member_id for member_id in here if member_id not in abandoned]
        request = requests.evict(membership.group, [(one["member_id"], one["instance_id"]) for one in others])
        removed, _ = await asyncio.gather(
            connection.call(request, remaining(deadline)),
            _heartbeat(connection, membership, deadline),
        )
        if removed["error_code"]:
            raise kafka_error(removed["error_code"], f"removal of the members of group {membership.group}")
        await _heartbeat(connection, membership, deadline)
        have = {(format_topic_id(one.bytes), number) for one, ns in membership.assigned.items() for number in ns}
        if have.issuperset(needed) and needed.isdisjoint(await _owned_by_others(connection, membership, deadline)):
            return evicted
    raise LockLost(f"takeover of group {membership.group}", "its members come back before the partitions are assigned")


async def _heartbeat(connection: BrokerConnection, membership: _Membership, deadline: float) -> None:
    """Sends a heartbeat that claims the partitions of the membership, and adds the newly assigned ones if the
    membership collects them."""
    member = membership
    owned = member.assigned if member.collects else {}
    request = requests.consumer_heartbeat(member.group, member.member_id, member.epoch, member.topics, owned)
    answer = await connection.call(request, remaining(deadline))
    if answer["error_code"]:
        raise kafka_error(
            answer["error_code"], f"takeover of group {member.group}", detail=answer["error_message"] or ""
        )
    member.epoch = answer["member_epoch"]
    if member.collects and answer["assignment"] is not None:
        for one in answer["assignment"]["topic_partitions"]:
            numbers = {*member.assigned.get(one["topic_id"], ()), *one["partitions"]}
            member.assigned[one["topic_id"]] = sorted(numbers)


async def _leave(client: Client, connection: BrokerConnection, membership: _Membership, deadline: float) -> None:
    abandoned.add(membership.member_id)
    request = requests.consumer_heartbeat(membership.group, membership.member_id, -1, (), None)
    await lock_membership.send_leave(client, membership.group, request, deadline, connection=connection)


async def _owned_by_others(
    connection: BrokerConnection, membership: _Membership, deadline: float
) -> set[tuple[str, int]]:
    """Returns the partitions (topic id and number) that the coordinator has assigned to other members. A member that
    came back during the removal may own partitions that the coordinator has assigned to this member, too."""
    described = await _describe(connection, membership.group, deadline)
    return {
        (format_topic_id(part["topic_id"].bytes), number)
        for one in described["members"]
        if one["member_id"] != membership.member_id
        for part in one["assignment"]["topic_partitions"]
        for number in part["partitions"]
    }


def _reject_other_edit(group: str, others: Iterable[Message]) -> None:
    """Raises `GroupActive` if one of the members is another edit of the running group."""
    reject_edit(group, [GroupMember(one["member_id"], one["client_id"], one["client_host"]) for one in others])


async def _describe(connection: BrokerConnection, group: str, deadline: float) -> Message:
    answer = await connection.call(requests.consumer_group_describe([group]), remaining(deadline))
    found: Message = answer["groups"][0]
    if found["error_code"]:
        raise kafka_error(found["error_code"], f"group {group}", detail=found["error_message"] or "")
    return found
