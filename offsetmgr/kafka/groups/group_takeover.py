"""`take_over` and `take_over_consumer_group`: take over a running group of the classic protocol or of the consumer
protocol, so that its committed offsets can be changed.

A commit that carries a valid generation overwrites every other commit, so it is not enough to commit at the right
moment. The steps are these:

1. The client requests a member id. This request causes no rebalance (KIP-394).
2. On one connection it removes all members and joins. The coordinator processes the requests in this order and rejects
   every later commit of the removed members. The group is never empty in between, so that commits without membership
   are rejected, too.
3. As the only member, the client reads, compares and commits (`GroupTakeover.fetch`, `commit`, `delete`).
4. The removed consumers notice their removal with their next heartbeat and join again. `GroupTakeover.readmit` leads
   the group for one generation whose assignment contains every partition except the edited ones. A consumer that kept
   its position in an edited partition drops the position now.
5. The client checks the committed offsets again and leaves. The next rebalance assigns the edited partitions, and their
   new owners begin at the committed offsets.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from offsetmgr.core.batches import by_key
from offsetmgr.core.errors import (
    ErrorCode,
    GroupActive,
    LockLost,
    OffsetMgrError,
    TimedOut,
    UnsupportedOperation,
    value_of,
)
from offsetmgr.core.model import EDIT_CLIENT_ID, GroupDescription, GroupMember, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import CommitErrors
from offsetmgr.core.retry import Backoff, Retries, cancel_tasks, is_retriable
from offsetmgr.kafka.client.client import Client, NotAMember, commit_outcomes
from offsetmgr.kafka.client.connection import BrokerConnection, remaining
from offsetmgr.kafka.client.fetch import partition_counts
from offsetmgr.kafka.client.topics import format_topic_id, topic_ids
from offsetmgr.kafka.groups import group_lock as lock_membership
from offsetmgr.kafka.groups.group_inspection import check_supported
from offsetmgr.kafka.groups.group_lock import SESSION_MS, GroupLock, active_members_error
from offsetmgr.kafka.protocol import requests
from offsetmgr.kafka.protocol.errors import VALID_MEMBER_CODES, checked, kafka_error
from offsetmgr.kafka.protocol.frames import Address
from offsetmgr.kafka.protocol.requests import (
    PROTOCOL_TYPE,
    LockMembership,
    MemberSubscription,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from offsetmgr.kafka.protocol.schema_codec import Message

# `assign_without`: an assignment that leaves out the partitions whose offsets are being edited. Pure. While offsetmgr
# edits a running group, it leads the group for one generation. In this generation the members keep the partitions
# that they own, and no member owns an edited partition. Therefore a member forgets its position in an edited
# partition before another rebalance assigns the partition again.


def assign_without(
    withheld: Collection[TopicPartition], members: Mapping[str, MemberSubscription], counts: Mapping[str, int]
) -> dict[str, list[TopicPartition]]:
    """Returns the partitions of each member. ``counts`` contains the number of partitions of each topic.

    A member keeps the partitions that it owns. If two members name the same partition, no member gets it, because one
    of them has to revoke it first. Each other partition goes to the subscribed member with the fewest partitions.
    """
    owners = by_key((tp, member) for member, subscription in members.items() for tp in set(subscription.owned))
    assigned: dict[str, list[TopicPartition]] = {member: [] for member in members}
    free: list[TopicPartition] = []
    for topic in sorted({topic for subscription in members.values() for topic in subscription.topics}):
        for tp in (TopicPartition(topic, number) for number in range(counts.get(topic, 0))):
            owning = [member for member in owners.get(tp, ()) if topic in members[member].topics]
            if tp in withheld or len(owning) > 1:
                continue
            if owning:
                assigned[owning[0]].append(tp)
            else:
                free.append(tp)
    for tp in free:
        subscribed = [member for member, subscription in members.items() if tp.topic in subscription.topics]
        assigned[min(subscribed, key=lambda member: (len(assigned[member]), member))].append(tp)
    return assigned


_POLL_S: Final = 0.1
"""Seconds between two requests for the state of the group."""
_REQUEST_S: Final = 5.0
"""Seconds for a request for the state of the group that begins before the deadline, and for a heartbeat."""
_SWEEP_AFTER_S: Final = 0.5
"""Seconds after which a JoinGroup counts as waiting for another member. The client then removes the members again."""
_GATHER_S: Final = 3.5
"""Seconds for which a rebalance waits for removed consumers. The heartbeat interval of consumers is 3 s by default."""
_MAX_EVICTIONS: Final = 10
abandoned: Final[set[str]] = set()
"""The ids of members of this process that have left a group, or tried to while its coordinator was not available."""
_CONSUMER_PROTOCOLS: Final = ("range", "roundrobin", "cooperative-sticky", "sticky")
_CONSUMER_PROTOCOL_STATES: Final = ("ASSIGNING", "RECONCILING")
"""The states of a group of the consumer protocol (KIP-848) during a rebalance."""


class GroupTakeover(GroupLock):
    """A group of which this process is the only member, after it has removed the other members.

    ``evicted`` are the removed members. `take_over` and `take_over_consumer_group` return the object.
    """

    _heartbeat_interval_s = 1.0

    def __init__(
        self,
        client: Client,
        membership: LockMembership,
        connection: BrokerConnection,
        evicted: Sequence[GroupMember | str],
        assignor: str = "",
    ) -> None:
        super().__init__(client, connection.address, membership, connection)
        self.evicted = evicted
        self._assignor = assignor
        self._connection = connection
        self._heartbeat_task = asyncio.create_task(self._heartbeat_loop())

    async def readmit(self, withheld: Collection[TopicPartition], until: float) -> int:
        """Leads the group, without assigning the partitions ``withheld``, until as many members as were removed are in
        it, or until ``until``. Returns the number of other members. Raises `LockLost` if the membership ended."""
        back = 0
        gather_until: float | None = None
        now, wanted = asyncio.get_running_loop().time, len(self.evicted)
        poll = Retries(until, Backoff.fixed(_POLL_S))
        while True:
            try:
                code = await self._heartbeat(until)
                if code == ErrorCode.REBALANCE_IN_PROGRESS:
                    gather_until = gather_until or now() + _GATHER_S
                    if (
                        now() >= gather_until
                        or len(await _other_members(self._client, self.group, self._membership.member_id, until))
                        >= wanted
                    ):
                        try:
                            back = await self._lead(withheld, until)
                        except TimedOut:  # a member that is in the group again does not call poll
                            return back
                        gather_until = None
                elif code not in VALID_MEMBER_CODES:
                    raise kafka_error(code, f"takeover of group {self.group}")
                elif back >= wanted:
                    return back
            except OffsetMgrError as error:  # the coordinator may have moved; the membership is valid there
                if not is_retriable(error):
                    raise
                self._client.rotate_after([error])
                with contextlib.suppress(OffsetMgrError):  # then the next request fails, too
                    await self._follow_coordinator(until)
            if not await poll.pause():
                return back

    async def leave(self, deadline: float) -> None:
        """Leaves the group. Retries until the deadline; after that the session of the member times out."""
        await cancel_tasks(self._heartbeat_task)
        abandoned.add(self._membership.member_id)
        await self._send_leave(deadline)
        self._connection.abort()  # a JoinGroup of this connection may still wait in the broker

    async def _send_leave(self, deadline: float) -> None:
        await lock_membership.leave(self._client, self._membership, deadline, at=self._coordinator)

    async def _follow_coordinator(self, deadline: float) -> None:
        """Looks up the coordinator of the group, and opens a connection to it. Raises the errors of the lookup. If the
        coordinator does not respond, keeps the former connection, so that the next request fails, too."""
        await super()._follow_coordinator(deadline)
        with contextlib.suppress(OffsetMgrError):
            connection = await self._client.node(self._coordinator).open(deadline, EDIT_CLIENT_ID)
            self._connection.abort()
            self._connection = connection

    async def _heartbeat_loop(self) -> None:
        """Keeps the session alive. `readmit` and the commits notice that the membership has ended."""
        while True:
            await asyncio.sleep(self._heartbeat_interval_s)
            with contextlib.suppress(OffsetMgrError):
                await self._heartbeat(asyncio.get_running_loop().time() + _REQUEST_S)

    async def _lead(self, withheld: Collection[TopicPartition], until: float) -> int:
        """Joins again as the leader and sends the assignments. Returns the number of other members; 0 if another
        rebalance has begun. Raises `TimedOut` if a member does not join again before ``until``."""
        membership = self._membership
        joined = await _join(self._connection, membership.group, membership.member_id, self._assignor, until)
        self._membership = LockMembership(membership.group, membership.member_id, joined["generation_id"])
        if joined["leader"] != membership.member_id:
            raise LockLost(f"takeover of group {self.group}", "another member leads the group")
        members = {
            member["member_id"]: decode_subscription(member["metadata"])
            for member in joined["members"]
            if member["member_id"] != membership.member_id
        }
        topics = {topic for subscription in members.values() for topic in subscription.topics}
        counts = await partition_counts(self._client, topics, until) if topics else {}
        assigned = {member: encode_assignment(tps) for member, tps in assign_without(withheld, members, counts).items()}
        complete = await _sync(self._connection, self._membership, assigned, until)
        return len(members) if complete else 0

    async def _heartbeat(self, until: float) -> int:
        connection = await self._client.node(self._coordinator).connection(until)
        return await lock_membership.heartbeat(connection, self._membership, remaining(until))


@asynccontextmanager
async def take_over(client: Client, described: GroupDescription, deadline: float) -> AsyncIterator[GroupTakeover]:
    """Removes all members of a group and joins it as its only member, until the ``async with`` block ends.

    ``described`` is the result of `settled`. Raises `UnsupportedOperation` if the brokers or the group do not support a
    takeover, and `LockLost` if other members join again and again.
    """
    address = Address.parse(described.coordinator)
    if not described.idle:
        check_supported(described, await client.versions(address, deadline))
    connection = await client.node(address).open(deadline, EDIT_CLIENT_ID)
    try:
        group, assignor = described.group, described.partition_assignor
        member_id: str = (await _join(connection, group, "", assignor, deadline))["member_id"]
        try:
            membership, evicted = await _evict_until_alone(client, connection, group, member_id, assignor, deadline)
        except BaseException:
            abandoned.add(member_id)
            await lock_membership.leave(client, LockMembership(group, member_id, -1), deadline)
            raise
        # After a failed attempt the consumers may not be back yet.
        takeover = GroupTakeover(client, membership, connection, evicted or described.members, assignor)
        try:
            yield takeover
        finally:
            await takeover.leave(deadline)
    finally:
        connection.abort()  # a JoinGroup of this connection may still wait in the broker


async def settled(client: Client, group: str, deadline: float) -> GroupDescription:
    """Returns the description of a group that is idle, or whose rebalance is complete. Waits until another edit of the
    running group has ended. At the deadline returns also a group of the consumer protocol that is rebalancing, because
    a stopped static member keeps it in this state, and its takeover checks the epochs of the members.

    Raises `GroupActive` if the group is still rebalancing at the deadline, or if another run of offsetmgr still locks
    or edits it.
    """
    poll = Retries(deadline, Backoff.fixed(_POLL_S))
    while True:
        # The last request begins shortly before the deadline, so it needs a later deadline of its own.
        described = await _describe(client, group, deadline + _REQUEST_S)
        edited = other_edit(described.members) is not None
        if described.lock_ends_s and described.edited_by is None:
            raise active_members_error(group, [str(member) for member in described.members], described.lock_ends_s)
        if (described.idle or described.state == "STABLE") and not edited:
            return described
        if not await poll.pause():
            if edited:
                raise edited_error(described)
            if described.state in _CONSUMER_PROTOCOL_STATES:
                return described
            why = f"its rebalance does not end: the state is {described.state}"
            hint = "try again when the group is stable, or stop its consumers"
            raise GroupActive(f"group {group}", why, hint)


def other_edit(members: Iterable[GroupMember]) -> GroupMember | None:
    """Returns the member that is an edit by another run of offsetmgr; None if there is none."""
    edits = (member for member in members if member.client_id == EDIT_CLIENT_ID)
    return next((member for member in edits if member.member_id not in abandoned), None)


def edited_error(described: GroupDescription) -> GroupActive:
    """Returns the error for a running group that another run of offsetmgr edits."""
    return GroupActive(
        f"group {described.group}",
        f"another run of offsetmgr edits it: {other_edit(described.members)}",
        f"try again when that run has ended; if it was killed, the group is free after {described.lock_ends_s:g} s",
        members=tuple(str(member) for member in described.members),
        lock_ends_s=described.lock_ends_s,
    )


async def _evict_until_alone(
    client: Client, connection: BrokerConnection, group: str, member_id: str, assignor: str, deadline: float
) -> tuple[LockMembership, tuple[GroupMember, ...]]:
    """Returns the membership, and the members that were removed first."""

    async def evict(members: Collection[GroupMember], at: BrokerConnection) -> None:
        request = requests.evict(group, [(member.member_id, member.instance_id) for member in members])
        checked(await at.call(request, remaining(deadline)), f"removal of the members of group {group}")

    evicted: tuple[GroupMember, ...] | None = None
    for _ in range(_MAX_EVICTIONS):
        others = await _consumers_without_sync(client, group, member_id, deadline)
        if evicted is None:
            evicted = tuple(member for member in others if member.member_id not in abandoned)
        # Both requests are in flight on one connection. Members that joined since their description would delay the
        # join, so they are removed as well.
        evicting = asyncio.ensure_future(evict(others, connection))
        joining = asyncio.ensure_future(_join(connection, group, member_id, assignor, deadline))
        try:
            await evicting
            while not (await asyncio.wait([joining], timeout=_SWEEP_AFTER_S))[0]:
                if late := reject_edit(group, await _other_members(client, group, member_id, deadline)):
                    await evict(late, await client.node(connection.address).connection(deadline))
            joined = await joining
        finally:
            joining.cancel()
        membership = LockMembership(group, member_id, joined["generation_id"])
        alone = [member["member_id"] for member in joined["members"]] == [member_id]
        if joined["leader"] == member_id and alone:
            # If a removed consumer is joining already, the response is REBALANCE_IN_PROGRESS. This does no harm: the
            # rebalance waits for this member, whose generation remains the only valid one until it joins again.
            await _sync(connection, membership, {}, deadline)
            return membership, evicted
        if joined["leader"] == member_id:  # answer the SyncGroup requests of the others before they are removed
            empty = {member["member_id"]: encode_assignment() for member in joined["members"]}
            await _sync(connection, membership, empty, deadline)
    raise LockLost(f"takeover of group {group}", "other members join again and again; nothing was written")


async def _join(connection: BrokerConnection, group: str, member_id: str, assignor: str, until: float) -> Message:
    """Sends JoinGroup. Without a ``member_id``, returns the response that contains the new member id. Raises the error
    of the coordinator; `TimedOut` closes the connection."""
    names = filter(None, (assignor, *_CONSUMER_PROTOCOLS))  # a group without members has no assignor
    protocols = dict.fromkeys(names, encode_subscription())
    request = requests.join_as(group, member_id, PROTOCOL_TYPE, protocols, SESSION_MS, SESSION_MS)
    accepted = (ErrorCode.NONE,) if member_id else (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED)
    return checked(await connection.call(request, remaining(until)), f"takeover of group {group}", accepted)


async def _sync(
    connection: BrokerConnection, membership: LockMembership, assignments: Mapping[str, bytes], until: float
) -> bool:
    """Sends the assignments. Returns False if another rebalance has begun."""
    own = {membership.member_id: encode_assignment()}
    request = requests.sync_group(membership, {**own, **assignments})
    what, answer = f"takeover of group {membership.group}", await connection.call(request, remaining(until))
    return bool(checked(answer, what, VALID_MEMBER_CODES)["error_code"] == ErrorCode.NONE)


async def _describe(client: Client, group: str, deadline: float) -> GroupDescription:
    return value_of((await client.describe([group], deadline))[group])


async def _other_members(client: Client, group: str, member_id: str, deadline: float) -> list[GroupMember]:
    described = await _describe(client, group, deadline)
    return [member for member in described.members if member.member_id != member_id]


async def _consumers_without_sync(client: Client, group: str, member_id: str, deadline: float) -> list[GroupMember]:
    """Like `_other_members`, at a moment at which no SyncGroup request waits in the coordinator. If the coordinator
    removed a member whose SyncGroup waits, it would not answer the request, and the consumer would stop until its
    request times out, 30 to 60 s later. Raises `GroupActive` if a member is another edit of the running group."""
    poll = Retries(deadline, Backoff.fixed(_POLL_S))
    while True:
        described = await _describe(client, group, deadline)
        if described.state != "COMPLETING_REBALANCE" or not await poll.pause():
            return reject_edit(group, [member for member in described.members if member.member_id != member_id])


def reject_edit(group: str, members: list[GroupMember]) -> list[GroupMember]:
    """Returns the members. Raises `GroupActive` if one of them is another edit of the running group."""
    if other_edit(members) is not None:
        raise edited_error(GroupDescription(group, "STABLE", members=tuple(members)))
    return members


# `take_over_consumer_group`: takes over a running group of the consumer protocol (KIP-848). The steps correspond to
# those of `take_over`, but the coordinator makes the assignment:
#
# 1. The client joins with the subscription of the group and waits until the epochs of all members are equal. A member
#    that is removed during a rebalance could otherwise fail in its application.
# 2. It removes all other members. The coordinator assigns all partitions to the client.
# 3. In the epoch of this assignment the client reads, compares and commits.
# 4. The client keeps all partitions until the removed consumers are back, so that no consumer begins before the edit is
#    complete. Then it leaves, and the coordinator assigns the partitions to the consumers.

_CONSUMER_POLL_S: Final = 0.3
_MAX_CONSUMER_EVICTIONS: Final = 20
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


class ConsumerTakeover(GroupTakeover):
    """A group of the consumer protocol after the removal of its members."""

    _heartbeat_interval_s = _CONSUMER_POLL_S

    def __init__(
        self, client: Client, connection: BrokerConnection, member: _Membership, evicted: Sequence[str]
    ) -> None:
        super().__init__(client, LockMembership(member.group, member.member_id, -1), connection, evicted)
        self._member = member

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], deadline: float) -> CommitErrors:
        """Commits in the epoch of the membership. Raises `LockLost` if the membership has ended.

        The epoch of the membership may have changed before the coordinator has processed a commit. After a heartbeat,
        which fails if the membership has ended, the same commit is valid.
        """

        async def attempt(connection: BrokerConnection) -> CommitErrors:
            member, retries = self._member, Retries(deadline)
            while True:
                request = requests.commit_in_epoch(member.group, member.member_id, member.epoch, offsets)
                try:
                    return value_of(commit_outcomes(member.group, await connection.call(request, remaining(deadline))))
                except NotAMember:
                    await _consumer_heartbeat(connection, member, deadline)
                    if not await retries.pause():
                        raise

        return await self._retry(attempt, deadline, writes=True)

    async def delete(self, partitions: Sequence[TopicPartition], deadline: float) -> CommitErrors:
        """Rejects the deletion, because the coordinator deletes no offset of a topic to which a member subscribes."""
        del deadline
        why = "the coordinator deletes no offsets of topics to which a group of the consumer protocol subscribes"
        error = UnsupportedOperation(f"deletion in the running group {self.group}", why, "stop its consumers first")
        return dict.fromkeys(partitions, error)

    async def readmit(self, withheld: Collection[TopicPartition], until: float) -> int:
        """Waits, while this member keeps all partitions that it owns, until as many members as were removed are in the
        group, or until ``until``. Returns the number of other members. Raises `LockLost` if the membership ended."""
        del withheld
        poll = Retries(until, Backoff.fixed(_CONSUMER_POLL_S))
        while True:
            described = await self._retry(lambda connection: _describe_consumers(connection, self.group, until), until)
            back: int = sum(one["member_id"] != self._member.member_id for one in described["members"])
            if back >= len(self.evicted) or not await poll.pause():
                return back

    async def _send_leave(self, deadline: float) -> None:
        await _leave(self._client, self._connection, self._member, deadline)

    async def _follow_coordinator(self, deadline: float) -> None:
        await super()._follow_coordinator(deadline)
        self._joined_on = self._connection  # the coordinator keeps the client id of the last heartbeat

    async def _heartbeat(self, until: float) -> int:
        await _consumer_heartbeat(self._connection, self._member, until)
        return ErrorCode.NONE


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
        found = await _describe_consumers(connection, group, deadline)
        topics = {topic for member in found["members"] for topic in member["subscribed_topic_names"]}
        targets = (part for one in found["members"] for part in one["target_assignment"]["topic_partitions"])
        topics |= {part["topic_name"] for part in targets}
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


async def _settle(connection: BrokerConnection, membership: _Membership, deadline: float) -> None:
    """Joins, and waits until the epochs of all members that run have been equal for a heartbeat interval."""
    now = asyncio.get_running_loop().time
    settled_since: float | None = None
    poll = Retries(deadline, Backoff.fixed(_CONSUMER_POLL_S))
    while True:
        await _consumer_heartbeat(connection, membership, deadline)
        described = await _describe_consumers(connection, membership.group, deadline)
        others = [one for one in described["members"] if one["member_id"] != membership.member_id]
        _reject_other_edit(membership.group, others)
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
    for _ in range(_MAX_CONSUMER_EVICTIONS):
        described = await _describe_consumers(connection, membership.group, deadline)
        others = [one for one in described["members"] if one["member_id"] != membership.member_id]
        _reject_other_edit(membership.group, others)
        if evicted is None:
            membership.away = {one["member_id"] for one in others if one["member_epoch"] == _AWAY_EPOCH}
            here = (one["member_id"] for one in others if one["member_id"] not in membership.away)
            evicted = [member_id for member_id in here if member_id not in abandoned]
        request = requests.evict(membership.group, [(one["member_id"], one["instance_id"]) for one in others])
        removed, _ = await asyncio.gather(
            connection.call(request, remaining(deadline)),
            _consumer_heartbeat(connection, membership, deadline),
        )
        checked(removed, f"removal of the members of group {membership.group}")
        await _consumer_heartbeat(connection, membership, deadline)
        have = {(format_topic_id(one.bytes), number) for one, ns in membership.assigned.items() for number in ns}
        if have.issuperset(needed) and needed.isdisjoint(await _owned_by_others(connection, membership, deadline)):
            return evicted
    raise LockLost(f"takeover of group {membership.group}", "its members come back before the partitions are assigned")


async def _consumer_heartbeat(connection: BrokerConnection, membership: _Membership, deadline: float) -> None:
    """Sends a heartbeat that claims the partitions of the membership, and adds the newly assigned ones if the
    membership collects them."""
    member = membership
    owned = member.assigned if member.collects else {}
    request = requests.consumer_heartbeat(member.group, member.member_id, member.epoch, member.topics, owned)
    answer = checked(await connection.call(request, remaining(deadline)), f"takeover of group {member.group}")
    member.epoch = answer["member_epoch"]
    if member.collects and answer["assignment"] is not None:
        for one in answer["assignment"]["topic_partitions"]:
            numbers = {*member.assigned.get(one["topic_id"], ()), *one["partitions"]}
            member.assigned[one["topic_id"]] = sorted(numbers)


async def _leave(client: Client, connection: BrokerConnection, membership: _Membership, deadline: float) -> None:
    abandoned.add(membership.member_id)
    request = requests.consumer_heartbeat(membership.group, membership.member_id, -1, (), None)
    member = LockMembership(membership.group, membership.member_id, -1)
    await lock_membership.leave(client, member, deadline, connection=connection, request=request)


async def _owned_by_others(
    connection: BrokerConnection, membership: _Membership, deadline: float
) -> set[tuple[str, int]]:
    """Returns the partitions (topic id and number) that the coordinator has assigned to other members. A member that
    came back during the removal may own partitions that the coordinator has assigned to this member, too."""
    described = await _describe_consumers(connection, membership.group, deadline)
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


async def _describe_consumers(connection: BrokerConnection, group: str, deadline: float) -> Message:
    answer = await connection.call(requests.describe_kind([group]), remaining(deadline))
    return checked(answer["groups"][0], f"group {group}")
