"""`GroupLock`: the lock of an idle group for the duration of one edit, some milliseconds.

The lock sends no periodic heartbeats, because an edit is shorter than the session timeout. If an edit takes longer than
the session timeout, the coordinator rejects the commit of the edit.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeVar

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.core.errors import CoordinatorNotAvailable, LockLost, OffsetMgrError, TimedOut, Unreachable
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import BrokerConnection
from offsetmgr.kafka.client.retries import backoff, is_retriable
from offsetmgr.kafka.groups import lock_membership
from offsetmgr.kafka.groups.lock_membership import LockMembership
from offsetmgr.kafka.protocol.channel import Address
from offsetmgr.kafka.protocol.errors import kafka_error
from offsetmgr.kafka.protocol.requests import FetchedGroup

T = TypeVar("T")


class GroupLock:
    """A group lock that is held. `acquire_lock` returns it."""

    def __init__(
        self, client: Client, connection: BrokerConnection, membership: LockMembership, deadline: float
    ) -> None:
        self._client = client
        self._connection = connection
        self._membership = membership
        self._deadline = deadline

    async def fetch(self, partitions: Sequence[TopicPartition] | None) -> FetchedGroup:
        """Returns committed offsets. No other client can change the offsets until this lock is released."""
        return await self._retry(lambda c: lock_membership.fetch(c, self._membership.group, partitions, self._deadline))

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, OffsetMgrError | None]:
        """Commits, and returns one outcome for each partition. Raises `LockLost` if the lock was lost before the write;
        in this case nothing was written."""
        return await self._retry(
            lambda c: lock_membership.commit(c, self._membership, offsets, self._deadline), writes=True
        )

    async def delete(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, OffsetMgrError | None]:
        """Deletes committed offsets, and returns one outcome for each partition.

        The request contains no generation, so the method first checks with a heartbeat that the lock is still held.
        """

        async def delete_if_locked(connection: BrokerConnection) -> dict[TopicPartition, OffsetMgrError | None]:
            left = max(self._deadline - asyncio.get_running_loop().time(), 0.001)
            code = await lock_membership.heartbeat(connection, self._membership, left)
            # REBALANCE_IN_PROGRESS means that another client is waiting for this member to leave.
            if code not in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
                raise kafka_error(code, f"lock of group {self._membership.group}")
            return await lock_membership.delete(connection, self._membership, partitions, self._deadline)

        return await self._retry(delete_if_locked, writes=True)

    async def leave(self) -> None:
        """Releases the lock."""
        await lock_membership.leave(self._client, self._connection, self._membership, self._deadline)

    async def _retry(self, attempt: Callable[[BrokerConnection], Awaitable[T]], *, writes: bool = False) -> T:
        """Calls ``attempt`` and retries retriable errors at the current coordinator of the group.

        A membership remains valid if the coordinator of its group moves. A retry is safe, because it writes the same
        values on behalf of the same member.
        """
        unconfirmed: OffsetMgrError | None = None
        for pause in backoff():
            try:
                return await attempt(self._connection)
            except LockLost:
                # If an earlier attempt received no response, that attempt may have succeeded. Therefore the method
                # raises the error of the earlier attempt.
                raise unconfirmed or LockLost(
                    f"lock of group {self._membership.group}", "was lost before the write; nothing was written"
                ) from None
            except OffsetMgrError as error:
                # If too few replicas are in sync, the coordinator may still have appended the commit.
                if writes and isinstance(error, Unreachable | TimedOut | CoordinatorNotAvailable):
                    unconfirmed = type(error)(error.what, f"{error.why}; the outcome of the write is unknown")
                    error = unconfirmed
                if not is_retriable(error) or asyncio.get_running_loop().time() + pause >= self._deadline:
                    raise error from None
            await asyncio.sleep(pause)
            address = await self._client.coordinator(self._membership.group, self._deadline)
            self._connection = await self._client.node(address).connection(self._deadline)
        raise AssertionError("back-off has no end")


@asynccontextmanager
async def acquire_lock(
    client: Client, group: str, deadline: float, at: Address | None = None
) -> AsyncIterator[GroupLock]:
    """Acquires the lock of an idle group and holds it until the ``async with`` block ends. Retries retriable errors
    until the deadline.

    ``at`` is the coordinator; None if the caller does not know it. A join would trigger a rebalance of existing
    members, so callers first check that the group is idle. Raises `GroupActive` with the members' names if another
    client has joined the group since this check.
    """
    async with AsyncExitStack() as resources:
        lock = await _acquire(resources, client, group, deadline, at)
        try:
            yield lock
        finally:
            await lock.leave()


async def _acquire(
    resources: AsyncExitStack, client: Client, group: str, deadline: float, at: Address | None
) -> GroupLock:
    for pause in backoff():
        try:
            address = at or await client.coordinator(group, deadline)
            at = None
            async with AsyncExitStack() as attempt:
                dedicated = await attempt.enter_async_context(client.node(address).dedicated_connection(deadline))
                membership = await lock_membership.join_alone_dedicated(dedicated, client, group, None, deadline)
                resources.push_async_exit(attempt.pop_all())
                return GroupLock(client, dedicated.connection, membership, deadline)
        except OffsetMgrError as error:
            if not is_retriable(error) or asyncio.get_running_loop().time() + pause >= deadline:
                raise
        await asyncio.sleep(pause)
    raise AssertionError("back-off has no end")
