"""`GroupLock`: an idle group held for the milliseconds of one edit.

It needs no heartbeat: a session outlasts the edit, and if it should not, the commit is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeVar

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.core.errors import CoordinatorNotAvailable, LockLost, OffsetMgrError, TimedOut, Unreachable
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.kafka.client.client import Client, backoff, is_retriable
from offsetmgr.kafka.client.connection import BrokerConnection
from offsetmgr.kafka.groups import lock_membership
from offsetmgr.kafka.groups.lock_membership import LockMembership
from offsetmgr.kafka.protocol.channel import Address
from offsetmgr.kafka.protocol.errors import kafka_error
from offsetmgr.kafka.protocol.requests import FetchedGroup

T = TypeVar("T")


class GroupLock:
    """The lock while it is held; got from `locked`."""

    def __init__(self, client: Client, connection: BrokerConnection, mine: LockMembership, deadline: float) -> None:
        self._client = client
        self._connection = connection
        self._mine = mine
        self._deadline = deadline

    async def fetch(self, partitions: Sequence[TopicPartition] | None) -> FetchedGroup:
        """Committed offsets as they stand, and will stand until we write or leave."""
        return await self._repeated(lambda c: lock_membership.fetch(c, self._mine.group, partitions, self._deadline))

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, OffsetMgrError | None]:
        """One commit, one outcome a partition. Raises `LockLost` if the lock was lost: then nothing was written."""
        return await self._repeated(
            lambda c: lock_membership.commit(c, self._mine, offsets, self._deadline), writes=True
        )

    async def delete(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, OffsetMgrError | None]:
        """Deletes commits, having proved with a heartbeat that the lock is still ours (the request cannot say so)."""

        async def proved(connection: BrokerConnection) -> dict[TopicPartition, OffsetMgrError | None]:
            left = max(self._deadline - asyncio.get_running_loop().time(), 0.001)
            code = await lock_membership.heartbeat(connection, self._mine, left)
            if code not in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):  # another client waits for us to leave
                raise kafka_error(code, f"lock of group {self._mine.group}")
            return await lock_membership.delete(connection, self._mine, partitions, self._deadline)

        return await self._repeated(proved, writes=True)

    async def leave(self) -> None:
        """Gives the group free."""
        await lock_membership.leave(self._client, self._connection, self._mine, self._deadline)

    async def _repeated(self, attempt: Callable[[BrokerConnection], Awaitable[T]], *, writes: bool = False) -> T:
        """Repeats what may succeed later, at the coordinator of that moment: a membership moves with its group.

        Writing the same again as the same member changes nothing, so this is safe.
        """
        unanswered: OffsetMgrError | None = None
        for pause in backoff():
            try:
                return await attempt(self._connection)
            except LockLost:
                # An earlier attempt without an answer may have been written: that is what must be told.
                raise unanswered or LockLost(
                    f"lock of group {self._mine.group}", "was lost before the write; nothing was written"
                ) from None
            except OffsetMgrError as error:
                # A coordinator that finds too few replicas may have appended the commit all the same.
                if writes and isinstance(error, Unreachable | TimedOut | CoordinatorNotAvailable):
                    unanswered = type(error)(error.what, f"{error.why}; whether it wrote is not known")
                    error = unanswered
                if not is_retriable(error) or asyncio.get_running_loop().time() + pause >= self._deadline:
                    raise error from None
            await asyncio.sleep(pause)
            address = await self._client.coordinator(self._mine.group, self._deadline)
            self._connection = await self._client.node(address).connection(self._deadline)
        raise AssertionError("back-off has no end")


@asynccontextmanager
async def locked(client: Client, group: str, deadline: float, at: Address | None = None) -> AsyncIterator[GroupLock]:
    """Holds the lock of an idle group; join errors that may pass are repeated until the deadline.

    ``at`` is the coordinator, where it is known.

    Joining a group with members makes them rebalance, so look before you lock: this is for groups seen idle.
    Raises `GroupActive`, with the members' names, where somebody was quicker.
    """
    async with AsyncExitStack() as held:
        lock = await _acquire(held, client, group, deadline, at)
        try:
            yield lock
        finally:
            await lock.leave()


async def _acquire(held: AsyncExitStack, client: Client, group: str, deadline: float, at: Address | None) -> GroupLock:
    for pause in backoff():
        try:
            address = at or await client.coordinator(group, deadline)
            at = None
            async with AsyncExitStack() as attempt:
                lane = await attempt.enter_async_context(client.node(address).lane(deadline))
                mine = await lock_membership.join_as_static_member(lane, client, group, None, deadline)
                held.push_async_exit(attempt.pop_all())
                return GroupLock(client, lane.connection, mine, deadline)
        except OffsetMgrError as error:
            if not is_retriable(error) or asyncio.get_running_loop().time() + pause >= deadline:
                raise
        await asyncio.sleep(pause)
    raise AssertionError("back-off has no end")
