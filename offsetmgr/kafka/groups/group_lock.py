"""`GroupLock`: the reads and writes of a locked group; `acquire_lock` locks an idle group for one edit.

An edit takes some milliseconds, which is much shorter than the session timeout. Therefore the lock of an edit sends no
periodic heartbeats. If an edit takes longer than the session timeout, the coordinator rejects the commit.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeVar

from offsetmgr.core.errors import CoordinatorNotAvailable, LockLost, OffsetMgrError, TimedOut, Unreachable
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.core.retry import REQUEST_BACKOFF, Backoff, Retries
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import BrokerConnection
from offsetmgr.kafka.groups import lock_membership
from offsetmgr.kafka.groups.member_requests import LockMembership
from offsetmgr.kafka.protocol.channel import Address
from offsetmgr.kafka.protocol.requests import FetchedGroup

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
        self._joined_on = joined_on
        self._dedicates_writes = joined_on is None
        self._lost: OffsetMgrError | None = None

    @property
    def group(self) -> str:
        return self._membership.group

    @property
    def locked(self) -> bool:
        """Whether the lock prevents commits of other clients. Brokers without group membership have no lock."""
        return self._membership != lock_membership.non_member(self.group)

    async def fetch(self, partitions: Sequence[TopicPartition] | None, deadline: float) -> FetchedGroup:
        """Returns the committed offsets. While the group is locked, no other client can change these offsets. Raises
        `LockLost` if the loss of the lock is already known."""
        return await self._retry(lambda c: lock_membership.fetch(c, self.group, partitions, deadline), deadline)

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], deadline: float
    ) -> dict[TopicPartition, OffsetMgrError | None]:
        """Commits, and returns one outcome for each partition. Raises `LockLost` if the lock was lost before the write.
        After this error the offsets are unchanged."""
        return await self._retry(
            lambda c: lock_membership.commit(c, self._membership, offsets, deadline), deadline, writes=True
        )

    async def delete(
        self, partitions: Sequence[TopicPartition], deadline: float
    ) -> dict[TopicPartition, OffsetMgrError | None]:
        """Deletes committed offsets, and returns one outcome for each partition. Raises `LockLost` like `commit`.

        The request contains no generation, so the method first checks with a heartbeat that the lock is still held.
        """

        async def delete_if_locked(connection: BrokerConnection) -> dict[TopicPartition, OffsetMgrError | None]:
            if self.locked:
                await lock_membership.check(connection, self._membership, deadline)
            return await lock_membership.delete(connection, self._membership, partitions, deadline)

        return await self._retry(delete_if_locked, deadline, writes=True)

    async def leave(self, deadline: float) -> None:
        """Leaves the group, even if the lock is already lost (see `lock_membership.leave`)."""
        await lock_membership.leave(
            self._client, self._membership, deadline, at=self._coordinator, connection=self._joined_on
        )

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
            if self._lost is not None:
                # An earlier attempt whose outcome is unknown may have succeeded. Therefore the method raises the error
                # of that attempt.
                raise unconfirmed or self._lost_error(self._lost)
            sent = False
            try:
                async with self._connect(deadline, writes=writes) as connection:
                    sent = True
                    return await attempt(connection)
            except LockLost as error:
                self._lost = type(error)(f"lock of group {self.group}", error.why)
                continue
            except OffsetMgrError as error:
                # The coordinator may have appended the commit to its log even if it reports that too few replicas are
                # in sync.
                if writes and sent and isinstance(error, Unreachable | TimedOut | CoordinatorNotAvailable):
                    error = unconfirmed = type(error)(error.what, f"{error.why}; the outcome of the write is unknown")
                await retries.pause_or_raise(error)
            try:
                self._coordinator = await self._client.coordinator(self.group, deadline)
            except OffsetMgrError as error:
                raise unconfirmed or error from None
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
    async with AsyncExitStack() as resources:
        lock = await _acquire(resources, client, group, deadline, at)
        try:
            yield lock
        finally:
            await lock.leave(deadline)


async def _acquire(
    resources: AsyncExitStack, client: Client, group: str, deadline: float, at: Address | None
) -> GroupLock:
    retries = Retries(deadline)
    while True:
        try:
            address = at or await client.coordinator(group, deadline)
            at = None
            async with AsyncExitStack() as attempt:
                dedicated = await attempt.enter_async_context(client.node(address).dedicated_connection(deadline))
                membership = await lock_membership.join_alone(dedicated, client, group, None, deadline)
                resources.push_async_exit(attempt.pop_all())
                return GroupLock(client, address, membership, dedicated.connection)
        except OffsetMgrError as error:
            await retries.pause_or_raise(error)
