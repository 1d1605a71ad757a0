"""`OffsetManager`: a blocking API for programs that contain an offset manager, such as a Spark driver. The manager runs
on an event loop in its own thread, without a separate server process.

The manager does the same as ``offsetmgr manager serve``, but has no listener. It joins the managers' group, owns the
shard groups that are assigned to it, and appends to the same topic. If it is the only manager of the topic, it owns all
groups. If the topic has several managers, they divide the groups among them. Clients cannot connect to an embedded
manager. If clients need the offsets of the program's groups, use ``manager serve`` instead.
"""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, ParamSpec, Self, TypeVar

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.config.manager_settings import ManagerSettings
from offsetmgr.core.batches import by_key
from offsetmgr.core.closeable import Closeable
from offsetmgr.core.errors import (
    Conflict,
    CorruptData,
    ErrorCode,
    NotCoordinator,
    OffsetMgrError,
    PartialFailure,
    UsageError,
)
from offsetmgr.core.evaluation import rejection
from offsetmgr.core.model import (
    ABSENT,
    NO_OFFSET,
    Committed,
    Offset,
    OffsetAndMetadata,
    TopicPartition,
    is_valid_offset,
)
from offsetmgr.core.offset_store import Change
from offsetmgr.core.retry import Backoff, Retries, completed
from offsetmgr.kafka.client.client import EventLoopThread
from offsetmgr.kafka.protocol.errors import kafka_error
from offsetmgr.manager.log.base import shard_group_of
from offsetmgr.manager.node.manager_node import ManagerNode
from offsetmgr.manager.results import CommitRequest, FetchRequest
from offsetmgr.manager.runtime import ManagerRuntime, ShardStatus

P = ParamSpec("P")
T = TypeVar("T")

_BACKOFF: Final = Backoff.fixed(0.02)
"""The interval between two attempts while a shard is loading or moves to another owner."""


class OffsetManager(Closeable):
    """An offset manager in this process. Use it as a context manager, or call `start` and `close`.

    ``config`` contains the settings of the connection to the brokers, by default those in ``manager``, which has the
    settings of the manager. ``topic`` (the offsets topic), ``partitions``, ``record_format`` and ``retention_ms`` (the
    retention of offsets of groups without members) replace the settings in ``manager``, whose defaults are those of
    ``manager serve``. With ``manager.members`` a program decides which groups have members, whose offsets do not
    expire. ``timeout_s`` limits how long `start` waits to join the managers' group, and how long each other call waits
    until the group's shard has an owner and is loaded. Several threads may use the same `OffsetManager`.

    Calls raise `NotCoordinator` if another manager owns the group (the message names this manager),
    `CoordinatorNotAvailable` if a commit was not replicated in time (the commit may have succeeded, or may still
    succeed), and `CoordinatorLoadInProgress` or `TimedOut` if ``timeout_s`` was too short. All of these errors are
    retriable.

    Example::

        from offsetmgr import OffsetAndMetadata, OffsetManager, TopicPartition

        orders = TopicPartition("orders", 0)
        with OffsetManager("h1:9092", topic="shop-offsets", partitions=2) as manager:
            manager.commit("shop", {orders: OffsetAndMetadata(42)})
            print(manager.fetch("shop"), manager.groups())
    """

    def __init__(
        self,
        bootstrap: str,
        config: ConnectionConfig | None = None,
        *,
        topic: str | None = None,
        partitions: int | None = None,
        record_format: str | None = None,
        retention_ms: int | None = None,
        manager: ManagerSettings | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        given: dict[str, Any] = {
            "offsets_topic": topic,
            "partitions": partitions,
            "record_format": record_format,
            "retention_ms": retention_ms,
        }
        base = manager or ManagerSettings(standby=False)
        settings = replace(
            base,
            bootstrap=bootstrap,
            connection=replace(config or base.connection, timeout_ms=round(timeout_s * 1000)),
            **{name: value for name, value in given.items() if value is not None},
        )
        self._timeout_s = timeout_s
        # The node has no listener, so a readable unique name takes the place of the host name.
        self._name = f"embedded-{uuid.uuid4().hex[:6]}-in-process-{os.getpid()}-of-{socket.gethostname()}"
        self._node = ManagerNode(settings, self._name, 0)
        self._joined = False
        self._running = False

    def start(self) -> Self:
        """Creates the topic if it does not exist, joins the managers' group and starts to load the assigned shards.
        Raises `OffsetMgrError`."""
        self._running = True
        self._loop_thread = EventLoopThread()
        try:
            self._loop_thread.run(self._open())
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Completes commits in flight, revokes the shard groups and leaves the managers' group."""
        if self._running:
            self._running = False
            self._joined = False
            self._loop_thread.run(self._node.close())
            self._loop_thread.close()

    def __enter__(self) -> Self:
        return self.start()

    def commit(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], *, allow_rewind: bool = False
    ) -> None:
        """Commits offsets, and returns once every in-sync replica has the commit.

        Raises `PartialFailure` if some partitions failed. Unless ``allow_rewind`` is set, an offset below the committed
        one fails with `RewindRefused`.
        """
        self._run(self._commit, group, offsets, allow_rewind)

    def fetch(self, group: str, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, Offset]:
        """Returns the committed offset of each of these partitions, or `Absent` for a partition without a committed
        offset. If ``partitions`` is None, returns all committed offsets of the group.

        Raises `PartialFailure` if some offsets are unreadable.
        """
        return self._run(self._fetch, group, None if partitions is None else list(partitions))

    def delete(self, group: str, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Deletes the offsets of these partitions, or all offsets of the group if ``partitions`` is None. A missing
        offset is not an error. Raises the errors that the class's docstring describes."""
        self._run(self._delete, group, None if partitions is None else list(partitions))

    def groups(self) -> list[str]:
        """Returns the groups that this process owns and that have offsets, sorted. Raises `NotCoordinator` if the
        manager is not running or has lost its shards, `CoordinatorLoadInProgress` or `CoordinatorNotAvailable` if a
        shard of this process cannot be read within ``timeout_s``."""
        return self._run(self._groups)

    def status(self) -> Sequence[ShardStatus]:
        """Returns the status of every shard in this process. Raises `NotCoordinator` if the manager is not running."""
        return self._run(self._status)

    def _run(self, call: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        if not self._joined:
            raise NotCoordinator("offset manager", "it is not running", "use it within `with OffsetManager(...):`")
        return self._loop_thread.run(call(*args, **kwargs))

    # --- on the event loop -----------------------------------------------------------------------------

    async def _open(self) -> None:
        """Opens the node and joins the managers' group. Raises `OffsetMgrError`; the caller must then call `close`."""
        await self._node.open()
        await self._node.join(self._timeout_s)
        self._joined = True

    async def _status(self) -> Sequence[ShardStatus]:
        return self._node.runtime.status()

    def _other_owner(self, group: str) -> str | None:
        """Returns the address of the manager that owns a group; None if this process owns it, or no manager is known to
        own it."""
        node, ownership = self._node, self._node.ownership
        shard_group = shard_group_of(node.runtime.partition_of(group), node.topic.partitions)
        owner = ownership.owner_of(shard_group)
        if owner is None or owner.host == self._name or shard_group in ownership.owned():
            return None
        return f"{owner.host}:{owner.port}" if owner.port else owner.host

    async def _commit(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], allow_rewind: bool
    ) -> None:
        failures: dict[TopicPartition, OffsetMgrError] = {
            tp: UsageError(f"group {group}, {tp}", f"{after.offset} is not an offset")
            for tp, after in offsets.items()
            if not is_valid_offset(after.offset)
        }
        remaining = {tp: after for tp, after in offsets.items() if tp not in failures}
        retries = self._retries()
        while remaining:
            expected: dict[tuple[str, int], int] = {}
            if not allow_rewind:
                found = await self._fetch(group, list(remaining))
                failures |= {
                    tp: error
                    for tp, after in remaining.items()
                    if (error := rejection(group, tp, Change(after), found[tp])) is not None
                }
                remaining = {tp: offset for tp, offset in remaining.items() if tp not in failures}
                committed = {tp: offset.offset for tp, offset in found.items() if isinstance(offset, Committed)}
                expected = {(tp.topic, tp.partition): committed.get(tp, NO_OFFSET) for tp in remaining}
            if not remaining:
                break
            topics = by_key(
                (topic, (partition, offset, -1 if epoch is None else epoch, metadata))
                for (topic, partition), (offset, metadata, epoch, _) in remaining.items()
            )
            request = CommitRequest(group, list(topics.items()), expected=expected)
            response = await self._retry_until_answered(
                f"commit of group {group}",
                group,
                partial(ManagerRuntime.commit, request=request),
                lambda found: found.error,
            )
            again: dict[TopicPartition, OffsetAndMetadata] = {}
            for tp, offset in remaining.items():
                code = response.errors.get((tp.topic, tp.partition), ErrorCode.NONE)
                if code == ErrorCode.OPERATION_NOT_ATTEMPTED:
                    again[tp] = offset  # another commit of this partition is in flight, or has changed its offset
                elif code != ErrorCode.NONE:
                    failures[tp] = kafka_error(code, f"commit of {tp} of group {group}")
            remaining = again
            if remaining and not await retries.pause():
                why = "other clients committed to it during every attempt"
                failures |= {tp: Conflict(f"commit of {tp} of group {group}", why) for tp in remaining}
                break
        if failures:
            successes = {tp: offset for tp, offset in offsets.items() if tp not in failures}
            raise PartialFailure(f"commit of group {group}", successes=successes, failures=failures)

    def _retries(self) -> Retries:
        return Retries(asyncio.get_running_loop().time() + self._timeout_s, _BACKOFF)

    async def _fetch(self, group: str, partitions: Sequence[TopicPartition] | None) -> dict[TopicPartition, Offset]:
        request = FetchRequest(group, None if partitions is None else list(by_key(partitions).items()))
        response = await self._retry_until_answered(
            f"offsets of group {group}",
            group,
            lambda manager: completed(manager.fetch(request)),
            lambda response: response.error,
        )
        found: dict[TopicPartition, Offset] = {}
        failures: dict[TopicPartition, OffsetMgrError] = {}
        for topic, entries in response.topics:
            for partition, offset, epoch, metadata, code in entries:
                tp = TopicPartition(topic, partition)
                if code != ErrorCode.NONE:
                    why = "its record in the offsets topic is unreadable"
                    failures[tp] = CorruptData(f"offset of {tp} of group {group}", why)
                else:
                    found[tp] = ABSENT if offset < 0 else Committed(offset, metadata, None if epoch < 0 else epoch)
        if failures:
            raise PartialFailure(f"fetch of group {group}", successes=found, failures=failures)
        return found

    async def _delete(self, group: str, partitions: Sequence[TopicPartition] | None) -> None:
        async def send(manager: ManagerRuntime) -> int:
            if partitions is None:
                return await manager.delete_group(group)
            return (await manager.delete_offsets(group, list(by_key(partitions).items()))).error

        what = f"group {group}" if partitions is None else f"offsets of group {group}"
        await self._retry_until_answered(
            what, group, send, lambda code: ErrorCode.NONE if code == ErrorCode.GROUP_ID_NOT_FOUND else code
        )

    async def _groups(self) -> list[str]:
        _, found = await self._retry_until_answered(
            "groups", None, lambda manager: completed(manager.list_groups()), lambda response: response[0]
        )
        return sorted(found)

    async def _retry_until_answered(
        self,
        what: str,
        group: str | None,
        send: Callable[[ManagerRuntime], Awaitable[T]],
        error_of: Callable[[T], int],
    ) -> T:
        """Sends a request, with retries while the shard is loading or has no owner, until the timeout. ``error_of``
        returns the error code of a response. Raises `NotCoordinator` if another manager owns the group."""
        retries = self._retries()
        while True:
            response = await send(self._node.runtime)
            code = error_of(response)
            if code == ErrorCode.NONE:
                return response
            owner = self._other_owner(group) if group is not None and code == ErrorCode.NOT_COORDINATOR else None
            if owner is not None:
                raise NotCoordinator(what, f"the group belongs to the manager {owner}")
            unavailable = code in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)
            if not unavailable or not await retries.pause():
                raise kafka_error(code, what)
