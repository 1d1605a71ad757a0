"""`GroupLock`: the reads and writes of a locked group; `acquire_lock` locks an idle group for one edit.

An edit takes some milliseconds, which is much shorter than the session timeout. Therefore the lock of an edit sends no
periodic heartbeats. If an edit takes longer than the session timeout, the coordinator rejects the commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Final, TypeVar

from offsetmgr.core.errors import (
    Conflict,
    CoordinatorNotAvailable,
    ErrorCode,
    GroupActive,
    LockLost,
    OffsetMgrError,
    TimedOut,
    Unreachable,
    value_of,
)
from offsetmgr.core.model import (
    LOCK_SESSION_S,
    Committed,
    OffsetAndMetadata,
    TopicPartition,
    deletion_mark,
)
from offsetmgr.core.offset_store import CommitErrors
from offsetmgr.core.retry import REQUEST_BACKOFF, Backoff, Retries, cancel_tasks, is_retriable
from offsetmgr.kafka.client.client import Client, commit_outcomes, with_retries
from offsetmgr.kafka.client.connection import BrokerConnection, DedicatedConnection, remaining
from offsetmgr.kafka.client.groups import describe
from offsetmgr.kafka.protocol import requests
from offsetmgr.kafka.protocol.errors import VALID_MEMBER_CODES, checked, failure_of, kafka_error
from offsetmgr.kafka.protocol.frames import Address, Request
from offsetmgr.kafka.protocol.releases import DELETES_OFFSETS, HOLDS_LOCK, KEEPS_EPOCHS
from offsetmgr.kafka.protocol.requests import FetchedGroup, LockMembership, encode_assignment

T = TypeVar("T")


class GroupLock:
    """A locked group, whose only member is this process. `acquire_lock` returns a `GroupLock`.

    A membership remains valid if the coordinator of its group moves, so every request is retried at the current
    coordinator. A retry is safe, because the repeated request writes the same values for the same member.
    """

    def __init__(
        self,
        client: Client,
        coordinator: Address,
        membership: LockMembership,
        joined_on: BrokerConnection | None = None,
    ) -> None:
        """``joined_on`` is the dedicated connection of the member; None if the member does not keep a dedicated
        connection. Until a request fails, the lock uses only this connection. After a failed request, the lock uses the
        shared connection to the coordinator, because a wait for a second dedicated connection could be a deadlock."""
        self._client = client
        self._coordinator = coordinator
        self._membership = membership
        self.group = membership.group
        self._joined_on = joined_on
        self._dedicates_writes = joined_on is None
        self.lost: OffsetMgrError | None = None
        """The error that describes why the lock was lost; None while the lock is held."""

    @property
    def locked(self) -> bool:
        """Whether the lock prevents commits of other clients. Brokers without group membership have no lock."""
        return self._membership != non_member(self.group)

    async def fetch(self, partitions: Sequence[TopicPartition] | None, deadline: float) -> FetchedGroup:
        """Returns the committed offsets. While the group is locked, no other client can change these offsets. Raises
        `LockLost` if the loss of the lock is already known."""
        return await self._retry(lambda c: fetch(c, self.group, partitions, deadline), deadline)

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], deadline: float) -> CommitErrors:
        """Commits, and returns one outcome for each partition. Raises `LockLost` if the lock was lost before the write.
        After this error the offsets are unchanged."""
        return await self._retry(lambda c: commit(c, self._membership, offsets, deadline), deadline, writes=True)

    async def delete(self, partitions: Sequence[TopicPartition], deadline: float) -> CommitErrors:
        """Deletes committed offsets, and returns one outcome for each partition. Raises `LockLost` like `commit`.

        The request contains no generation, so the method first checks with a heartbeat that the lock is still held.
        """

        async def delete_if_locked(connection: BrokerConnection) -> CommitErrors:
            if self.locked:
                await check(connection, self._membership, deadline)
            return await delete(connection, self._membership, partitions, deadline)

        return await self._retry(delete_if_locked, deadline, writes=True)

    async def leave(self, deadline: float) -> None:
        """Leaves the group, even if the lock is already lost (see `leave`)."""
        await leave(self._client, self._membership, deadline, at=self._coordinator, connection=self._joined_on)

    @asynccontextmanager
    async def _connect(self, deadline: float, *, writes: bool) -> AsyncIterator[BrokerConnection]:
        node = self._client.node(self._coordinator)
        if self._joined_on is not None:
            yield self._joined_on
        elif writes and self._dedicates_writes:
            async with node.dedicated_connection(deadline) as dedicated:
                yield dedicated.connection
        else:
            yield await node.connection(deadline)

    async def _retry(
        self,
        attempt: Callable[[BrokerConnection], Awaitable[T]],
        deadline: float,
        *,
        writes: bool = False,
        backoff: Backoff = REQUEST_BACKOFF,
    ) -> T:
        """Calls ``attempt``. After a retriable error, looks up the coordinator of the group and calls ``attempt``
        again."""
        unconfirmed: OffsetMgrError | None = None
        retries = Retries(deadline, backoff)
        while True:
            if self.lost is not None:
                # An earlier attempt whose outcome is unknown may have succeeded. Therefore the method raises the error
                # of that attempt.
                raise unconfirmed or self._lost_error(self.lost)
            sent = False
            try:
                async with self._connect(deadline, writes=writes) as connection:
                    sent = True
                    return await attempt(connection)
            except LockLost as error:
                self.lost = type(error)(f"lock of group {self.group}", error.why)
                continue
            except OffsetMgrError as error:
                # The coordinator may have appended the commit to its log even if it reports that too few replicas are
                # in sync.
                if writes and sent and isinstance(error, Unreachable | TimedOut | CoordinatorNotAvailable):
                    error = unconfirmed = type(error)(error.what, f"{error.why}; the outcome of the write is unknown")
                await retries.pause_or_raise(error)
                self._client.rotate_after([error])
            try:
                await self._follow_coordinator(deadline)
            except OffsetMgrError as error:
                raise unconfirmed or error from None

    async def _follow_coordinator(self, deadline: float) -> None:
        """Looks up the coordinator of the group, which may have moved. Raises `OffsetMgrError`."""
        self._coordinator = await self._client.coordinator(self.group, deadline)
        self._joined_on = None

    def _lost_error(self, lost: OffsetMgrError) -> LockLost:
        """Returns the error of every call after the loss of the lock."""
        what, why = f"lock of group {self.group}", "was lost before the write; nothing was written"
        if isinstance(lost, LockLost):
            return type(lost)(what, f"{why}: {lost.why}")
        return LockLost(what, f"{why}: {lost}")


@asynccontextmanager
async def acquire_lock(
    client: Client, group: str, deadline: float, at: Address | None = None
) -> AsyncIterator[GroupLock]:
    """Acquires the lock of an idle group and holds it until the ``async with`` block ends. Retries retriable errors
    until the deadline.

    ``at`` is the coordinator; None if the caller does not know it. A join would trigger a rebalance of existing
    members, so callers first check that the group is idle. If another client has joined the group since this check, the
    function raises `GroupActive` with the names of the members.
    """
    retries = Retries(deadline)
    while True:
        async with AsyncExitStack() as resources:
            try:
                address = at or await client.coordinator(group, deadline)
                at = None
                dedicated = await resources.enter_async_context(client.node(address).dedicated_connection(deadline))
                membership = await join_alone(dedicated, client, group, None, deadline)
            except OffsetMgrError as error:
                failure = error
            else:
                lock = GroupLock(client, address, membership, dedicated.connection)
                try:
                    yield lock
                finally:
                    await lock.leave(deadline)
                return
        await retries.pause_or_raise(failure)
        client.rotate_after([failure])


# The steps of a group lock: join as the only member of a group, commit with the generation, leave. Kafka has no
# compare-and-set on offsets. However, if a group has members, the coordinator accepts a commit only if it comes from
# a member and contains the current generation. Therefore a client that is the only member of a group can read,
# compare and write offsets, and no other client can commit between the read and the write. The lock does not depend
# on clocks: the coordinator rejects the commits of a process whose membership has ended, even if the process was
# frozen and has not noticed the end of its membership.

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
    connection, request = dedicated.connection, requests.join_lock(group, instance_id, SESSION_MS)
    # The broker delays the first join of an empty group by group.initial.rebalance.delay.ms. During this delay the
    # connection does not count towards the limit of the pool.
    timer = asyncio.get_running_loop().call_later(_WAITING_AFTER_S, dedicated.mark_waiting)
    try:
        answer = await connection.call(request, remaining(deadline))
    finally:
        timer.cancel()
    checked(answer, f"lock of group {group}")
    membership = LockMembership(group, answer["member_id"], answer["generation_id"], instance_id)
    try:
        is_leader = answer["leader"] == answer["member_id"]
        # If a static member replaces its dead predecessor, the response contains no member list. In this case the code
        # below requests the members with `other_members_error`.
        if (not is_leader and instance_id is None) or len(answer["members"]) > 1:
            raise await other_members_error(client, membership, deadline)
        assignments = {membership.member_id: encode_assignment()} if is_leader else {}
        sync = await connection.call(requests.sync_group(membership, assignments), remaining(deadline))
        if sync["error_code"] == ErrorCode.REBALANCE_IN_PROGRESS:
            # Another client has just sent a JoinGroup, which waits in the coordinator until this member leaves the
            # group.
            raise await other_members_error(client, membership, deadline)
        checked(sync, f"lock of group {group}")
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
    request: Request | None = None,
) -> None:
    """Leaves the group. The first attempt uses ``connection``, or the coordinator ``at``. Each further attempt looks up
    the coordinator, because the coordinator may have moved. ``request`` is the request with which a member of the
    consumer protocol leaves.

    The method retries until the deadline, but for at least `_MIN_LEAVE_TIMEOUT_S` and for at most the session timeout.
    If all attempts fail, the membership ends when the session times out.
    """
    group, now = membership.group, asyncio.get_running_loop().time
    request = request or requests.evict(group, [(membership.member_id, membership.instance_id)])
    until = min(max(deadline, now() + _MIN_LEAVE_TIMEOUT_S), now() + SESSION_MS / 1000)
    retries = Retries(until)
    while True:
        try:
            if connection is None:
                connection = await client.node(at or await client.coordinator(group, until)).connection(until)
            checked(await connection.call(request, remaining(until)), f"leave of group {group}")
            return
        except OffsetMgrError as error:
            if not is_retriable(error):
                return
            client.rotate_after([error])
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
) -> CommitErrors:
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
) -> CommitErrors:
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
    request = requests.offset_delete(group, partitions)
    answer = checked(await connection.call(request, remaining(deadline)), f"delete in group {group}")
    return {tp: failure_of(part, f"group {group}, {tp}") for tp, part in requests.parts_of(answer)}


async def _expire(
    connection: BrokerConnection,
    membership: LockMembership,
    partitions: Sequence[TopicPartition],
    deadline: float,
    expected: Mapping[TopicPartition, Committed] | None,
) -> CommitErrors:
    """Commits the offsets again with a deletion mark and an expired retention (see `deletion_mark`)."""
    from offsetmgr.kafka.protocol.old_versions import expire_offsets

    now = asyncio.get_running_loop().time
    for _ in range(_MAX_READS):
        asked_at = now()
        found = await fetch(connection, membership.group, partitions, deadline)
        if now() - asked_at < _STALE_READ_S:
            break
    outcomes: CommitErrors = {tp: found.errors.get(tp) for tp in partitions}
    marked: dict[TopicPartition, Mapping[str, object]] = {}
    for tp, committed in found.offsets.items():
        if expected is not None and expected.get(tp) != committed:
            why = f"offset {committed.offset} was committed since it was read"
            outcomes[tp] = Conflict(f"group {membership.group}, {tp}", why, actual=committed)
            continue
        mark = deletion_mark(committed.offset)
        marked[tp] = {"committed_offset": committed.offset, "committed_metadata": mark}
    if not marked:
        return outcomes
    commit = {
        "group_id": membership.group,
        "generation_id_or_member_epoch": membership.generation,
        "member_id": membership.member_id,
        "topics": requests.topics_with(marked.items()),
    }
    answer = await expire_offsets(connection, commit, remaining(deadline))
    for tp, part in requests.parts_of(answer):
        outcomes[tp] = failure_of(part, f"delete in group {membership.group}, {tp}")
    return outcomes


async def heartbeat(connection: BrokerConnection, membership: LockMembership, timeout_s: float) -> int:
    """Sends a heartbeat and returns its error code; 0 means that the membership is valid."""
    code: int = (await connection.call(requests.heartbeat(membership), timeout_s))["error_code"]
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


# `StaticMemberLock`: a group lock that a process holds for longer than one edit, as a static member with heartbeats.
# On brokers from 2.3 on, the lock is a static member (KIP-345). The instance id of a static member remains the same
# when the process restarts, so a restarted process replaces its dead predecessor at once. If the predecessor is
# frozen instead of dead, the coordinator fences the predecessor (FENCED_INSTANCE_ID). On brokers before 2.3 the lock
# of a dead process remains until its session times out. When a consumer joins the group, the process that holds the
# lock leaves the group and sets `lost`, so that the consumer can continue. Brokers of Kafka 0.8.2 have no group
# membership and therefore no lock. On these brokers `locked` is False, and other clients may commit at any moment. A
# membership does not depend on a connection, so thousands of locks can share the connections to a broker.

_HEARTBEAT_INTERVAL_S: Final = 1.0
"""The interval between heartbeats. A consumer that joins a locked group waits at most about one interval until the lock
is released."""


class StaticMemberLock(GroupLock):
    """The lock of a group. `acquire` acquires the lock, and `release` releases the lock."""

    def __init__(
        self, client: Client, coordinator: Address, membership: LockMembership, *, replaced: bool, keeps_epochs: bool
    ) -> None:
        super().__init__(client, coordinator, membership)
        self.replaced = replaced
        """Whether a process with the same instance id, dead or alive, was a member when this process acquired the
        lock."""
        self.keeps_epochs = keeps_epochs
        """Whether the coordinator saves the leader epochs of commits."""
        self._heartbeat_task = asyncio.create_task(self._heartbeat_loop()) if self.locked else None

    @classmethod
    async def acquire(cls, client: Client, group: str, instance_id: str, deadline: float) -> StaticMemberLock:
        """Joins the group with ``instance_id`` as the only member. Replaces an earlier process with the same instance
        id.

        If the group has other members, the method raises `GroupActive` with their names.
        """

        async def attempt() -> StaticMemberLock:
            described = value_of((await describe(client, [group], deadline))[group])
            others = [str(member) for member in described.members if member.instance_id != instance_id]
            if others:
                raise active_members_error(group, others, described.lock_ends_s)
            coordinator = Address.parse(described.coordinator)
            versions = await client.versions(coordinator, deadline)
            keeps_epochs, membership = KEEPS_EPOCHS.supported_by(versions), non_member(group)
            if HOLDS_LOCK.supported_by(versions):
                async with client.node(coordinator).dedicated_connection(deadline) as own:
                    membership = await join_alone(own, client, group, instance_id, deadline)
            return cls(client, coordinator, membership, replaced=bool(described.members), keeps_epochs=keeps_epochs)

        return await with_retries(client, attempt, deadline)

    async def fetch(self, partitions: Sequence[TopicPartition] | None, deadline: float) -> FetchedGroup:
        """Returns the committed offsets of the group. Raises `LockLost`."""
        if not self.locked:
            return value_of((await self._client.fetch({self.group: partitions}, deadline))[self.group])
        return await super().fetch(partitions, deadline)

    async def release(self, deadline: float) -> None:
        """Releases the lock. Does nothing if the lock is already lost."""
        await cancel_tasks(self._heartbeat_task)
        if self.lost is None:
            self.lost = LockLost(f"lock of group {self.group}", "was released")
            if self.locked:
                await self.leave(deadline)

    async def _heartbeat_loop(self) -> None:
        """Sends heartbeats until another client joins or the membership ends."""
        while self.lost is None:
            await asyncio.sleep(_HEARTBEAT_INTERVAL_S)
            deadline = asyncio.get_running_loop().time() + LOCK_SESSION_S
            try:
                send = partial(check, membership=self._membership, deadline=deadline)
                rebalancing = await self._retry(send, deadline, backoff=Backoff.fixed(_HEARTBEAT_INTERVAL_S))
            except OffsetMgrError as error:
                if self.lost is None and not is_retriable(error):
                    self.lost = error
            else:
                if rebalancing:
                    await self._leave_to_others(deadline)

    async def _leave_to_others(self, deadline: float) -> None:
        try:
            self.lost = await other_members_error(self._client, self._membership, deadline)
        except OffsetMgrError:
            self.lost = active_members_error(self.group, ())
        await self.leave(deadline)
