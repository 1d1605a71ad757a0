"""`StaticMemberLock`: a group lock that a process holds for longer than one edit, as a static member with heartbeats.

On brokers from 2.3 on, the lock is a static member (KIP-345), whose name outlives the process. A restarted process
replaces its dead predecessor at once. If the predecessor was not dead but frozen, the coordinator fences it
(FENCED_INSTANCE_ID). On brokers before 2.3 the lock of a dead process remains until its session times out. When a
consumer joins, the lock leaves the group and sets `lost`, so that the consumer can continue.

Brokers without group membership (0.8.2) have no lock: `locked` is False, and other clients may commit at any moment.

A membership does not depend on a connection, so thousands of locks can share the connections to a broker.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.core.errors import LockLost, OffsetMgrError, TimedOut, Unreachable
from offsetmgr.core.model import GroupDescription, OffsetAndMetadata, TopicPartition
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import BrokerConnection
from offsetmgr.kafka.client.retries import backoff, is_retriable
from offsetmgr.kafka.groups import lock_membership
from offsetmgr.kafka.groups.lock_membership import LockMembership, active_members_error
from offsetmgr.kafka.protocol.channel import Address
from offsetmgr.kafka.protocol.errors import kafka_error
from offsetmgr.kafka.protocol.releases import HOLDS_LOCK, KEEPS_EPOCHS
from offsetmgr.kafka.protocol.requests import FetchedGroup

T = TypeVar("T")

_HEARTBEAT_INTERVAL_S: Final = 1.0
"""The interval between heartbeats. A consumer that joins waits about this long until the lock leaves the group."""
_COORDINATOR_MOVED: Final = frozenset(
    {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
)


class StaticMemberLock:
    """A locked group. `acquire` acquires the lock and `release` releases it."""

    def __init__(
        self, client: Client, coordinator: Address, membership: LockMembership, *, replaced: bool, keeps_epochs: bool
    ) -> None:
        self._client = client
        self._coordinator = coordinator
        self._membership = membership
        self.replaced = replaced
        """Whether a process with the same instance id, dead or alive, was a member when this process acquired the
        lock."""
        self.keeps_epochs = keeps_epochs
        """Whether the coordinator saves the leader epochs of commits."""
        self._lost: OffsetMgrError | None = None
        self._heartbeat_task = asyncio.create_task(self._heartbeat_loop()) if self.locked else None

    @classmethod
    async def acquire(cls, client: Client, group: str, instance_id: str, deadline: float) -> StaticMemberLock:
        """Joins the group as its only member with ``instance_id``, and replaces an earlier process with the same
        instance id.

        Raises `GroupActive` with the members' names if there are other members.
        """
        for pause in backoff():
            try:
                described = (await client.describe([group], deadline))[group]
                if not isinstance(described, GroupDescription):
                    raise described
                others = [str(member) for member in described.members if member.instance_id != instance_id]
                if others:
                    raise active_members_error(group, others, described.lock_ends_s)
                coordinator = Address.parse(described.coordinator)
                versions = await client.versions(coordinator, deadline)
                keeps_epochs = KEEPS_EPOCHS.supported_by(versions)
                if not HOLDS_LOCK.supported_by(versions):
                    membership = lock_membership.non_member(group)
                    return cls(client, coordinator, membership, replaced=False, keeps_epochs=keeps_epochs)
                async with client.node(coordinator).dedicated_connection(deadline) as own:
                    membership = await lock_membership.join_alone_dedicated(own, client, group, instance_id, deadline)
                return cls(client, coordinator, membership, replaced=bool(described.members), keeps_epochs=keeps_epochs)
            except OffsetMgrError as error:
                if not is_retriable(error) or asyncio.get_running_loop().time() + pause >= deadline:
                    raise
            await asyncio.sleep(pause)
        raise AssertionError("back-off has no end")

    @property
    def group(self) -> str:
        return self._membership.group

    @property
    def locked(self) -> bool:
        """Returns whether the lock prevents commits of other clients."""
        return self._membership != lock_membership.non_member(self.group)

    @property
    def lost(self) -> OffsetMgrError | None:
        """Returns the error that describes why the lock was lost; None while the lock is held."""
        return self._lost

    async def fetch(self, partitions: Sequence[TopicPartition] | None, deadline: float) -> FetchedGroup:
        """Returns the committed offsets of the group. Raises `LockLost`."""
        if not self.locked:
            found = (await self._client.fetch({self.group: partitions}, deadline))[self.group]
            if isinstance(found, OffsetMgrError):
                raise found
            return found
        return await self._retry(
            lambda c: lock_membership.fetch(c, self._membership.group, partitions, deadline), deadline
        )

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], deadline: float
    ) -> dict[TopicPartition, OffsetMgrError | None]:
        """Commits and returns one outcome for each partition. Raises `LockLost`."""
        return await self._retry(
            lambda c: lock_membership.commit(c, self._membership, offsets, deadline), deadline, dedicated=True
        )

    async def delete(
        self, partitions: Sequence[TopicPartition], deadline: float
    ) -> dict[TopicPartition, OffsetMgrError | None]:
        """Deletes committed offsets and returns one outcome for each partition. Raises `LockLost`."""
        if self.locked:
            await self._check_membership(deadline)
        return await self._retry(
            lambda c: lock_membership.delete(c, self._membership, partitions, deadline), deadline, dedicated=True
        )

    async def release(self, deadline: float) -> None:
        """Releases the lock. Does nothing if the lock is already lost."""
        if self._heartbeat_task is not None:
            self._heartbeat_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._heartbeat_task
        if self._lost is None:
            self._lost = LockLost(f"lock of group {self.group}", "was released")
            if self.locked:
                await self._leave(deadline)

    async def _check_membership(self, deadline: float) -> None:
        left = max(deadline - asyncio.get_running_loop().time(), 0.001)
        code = await self._retry(lambda c: lock_membership.heartbeat(c, self._membership, left), deadline)
        if code not in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            self._lost = kafka_error(code, f"lock of group {self.group}")
            raise self._lock_lost(self._lost)

    def _lock_lost(self, lost: OffsetMgrError) -> LockLost:
        """Returns the error that every call raises after the loss of the lock."""
        return lost if isinstance(lost, LockLost) else LockLost(f"lock of group {self.group}", f"was lost: {lost}")

    async def _retry(
        self, attempt: Callable[[BrokerConnection], Awaitable[T]], deadline: float, *, dedicated: bool = False
    ) -> T:
        """Calls ``attempt`` and retries retriable errors at the current coordinator.

        If ``dedicated`` is True, uses a dedicated connection. Use a dedicated connection for commits and deletions,
        because the broker appends these to its log.
        """
        for pause in backoff():
            if self._lost is not None:
                raise self._lock_lost(self._lost)
            try:
                node = self._client.node(self._coordinator)
                if not dedicated:
                    return await attempt(await node.connection(deadline))
                async with node.dedicated_connection(deadline) as own:
                    return await attempt(own.connection)
            except LockLost as error:
                self._lost = type(error)(f"lock of group {self.group}", error.why)
                raise self._lock_lost(self._lost) from None
            except OffsetMgrError as error:
                if not is_retriable(error) or asyncio.get_running_loop().time() + pause >= deadline:
                    raise
            await asyncio.sleep(pause)
            self._coordinator = await self._client.coordinator(self.group, deadline)
        raise AssertionError("back-off has no end")

    async def _leave(self, deadline: float) -> None:
        with contextlib.suppress(OffsetMgrError):
            connection = await self._client.node(self._coordinator).connection(deadline)
            await lock_membership.leave(self._client, connection, self._membership, deadline)

    async def _heartbeat_loop(self) -> None:
        """Sends heartbeats until another client joins or the membership ends."""
        session = lock_membership.SESSION_MS / 1000
        while self._lost is None:
            await asyncio.sleep(_HEARTBEAT_INTERVAL_S)
            deadline = asyncio.get_running_loop().time() + session
            try:
                connection = await self._client.node(self._coordinator).connection(deadline)
                code = await lock_membership.heartbeat(connection, self._membership, session)
                if code in (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR):
                    self._coordinator = await self._client.coordinator(self.group, deadline)
            except (Unreachable, TimedOut):
                with contextlib.suppress(OffsetMgrError):
                    self._coordinator = await self._client.coordinator(self.group, deadline)
                continue
            except OffsetMgrError as error:
                self._lost = error
                return
            if code == ErrorCode.REBALANCE_IN_PROGRESS:
                await self._leave_to_others(deadline)
            elif code not in (ErrorCode.NONE, *_COORDINATOR_MOVED):
                self._lost = kafka_error(code, f"lock of group {self.group}")

    async def _leave_to_others(self, deadline: float) -> None:
        names: list[str] = []
        with contextlib.suppress(OffsetMgrError):
            described = (await self._client.describe([self.group], deadline))[self.group]
            if isinstance(described, GroupDescription):
                names = [str(m) for m in described.members if m.member_id != self._membership.member_id]
        self._lost = active_members_error(self.group, names)
        await self._leave(deadline)
