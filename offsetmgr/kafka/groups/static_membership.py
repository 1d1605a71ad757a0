"""`StaticMemberLock`: a group lock that a process holds for longer than one edit, as a static member with heartbeats.

On brokers from 2.3 on, the lock is a static member (KIP-345). The instance id of a static member remains the same when
the process restarts, so a restarted process replaces its dead predecessor at once. If the predecessor is frozen instead
of dead, the coordinator fences the predecessor (FENCED_INSTANCE_ID). On brokers before 2.3 the lock of a dead process
remains until its session times out. When a consumer joins the group, the process that holds the lock leaves the group
and sets `lost`, so that the consumer can continue.

Brokers of Kafka 0.8.2 have no group membership and therefore no lock. On these brokers `locked` is False, and other
clients may commit at any moment.

A membership does not depend on a connection, so thousands of locks can share the connections to a broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from offsetmgr.core.errors import LockLost, OffsetMgrError, value_of
from offsetmgr.core.model import LOCK_SESSION_S, TopicPartition
from offsetmgr.core.retry import Backoff, Retries, cancel_tasks, is_retriable
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.group_lists import describe
from offsetmgr.kafka.groups import lock_membership
from offsetmgr.kafka.groups.group_lock import GroupLock
from offsetmgr.kafka.groups.lock_membership import active_members_error
from offsetmgr.kafka.groups.member_requests import LockMembership
from offsetmgr.kafka.protocol.channel import Address
from offsetmgr.kafka.protocol.releases import HOLDS_LOCK, KEEPS_EPOCHS
from offsetmgr.kafka.protocol.requests import FetchedGroup

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
        retries = Retries(deadline)
        while True:
            try:
                described = value_of((await describe(client, [group], deadline))[group])
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
                    membership = await lock_membership.join_alone(own, client, group, instance_id, deadline)
                return cls(client, coordinator, membership, replaced=bool(described.members), keeps_epochs=keeps_epochs)
            except OffsetMgrError as error:
                await retries.pause_or_raise(error)

    @property
    def lost(self) -> OffsetMgrError | None:
        """Returns the error that describes why the lock was lost; None while the lock is held."""
        return self._lost

    async def fetch(self, partitions: Sequence[TopicPartition] | None, deadline: float) -> FetchedGroup:
        """Returns the committed offsets of the group. Raises `LockLost`."""
        if not self.locked:
            return value_of((await self._client.fetch({self.group: partitions}, deadline))[self.group])
        return await super().fetch(partitions, deadline)

    async def release(self, deadline: float) -> None:
        """Releases the lock. Does nothing if the lock is already lost."""
        await cancel_tasks(self._heartbeat_task)
        if self._lost is None:
            self._lost = LockLost(f"lock of group {self.group}", "was released")
            if self.locked:
                await self.leave(deadline)

    async def _heartbeat_loop(self) -> None:
        """Sends heartbeats until another client joins or the membership ends."""
        while self._lost is None:
            await asyncio.sleep(_HEARTBEAT_INTERVAL_S)
            deadline = asyncio.get_running_loop().time() + LOCK_SESSION_S
            try:
                send = partial(lock_membership.check, membership=self._membership, deadline=deadline)
                rebalancing = await self._retry(send, deadline, backoff=Backoff.fixed(_HEARTBEAT_INTERVAL_S))
            except OffsetMgrError as error:
                if self._lost is None and not is_retriable(error):
                    self._lost = error
            else:
                if rebalancing:
                    await self._leave_to_others(deadline)

    async def _leave_to_others(self, deadline: float) -> None:
        try:
            self._lost = await lock_membership.other_members_error(self._client, self._membership, deadline)
        except OffsetMgrError:
            self._lost = active_members_error(self.group, ())
        await self.leave(deadline)
