"""`StoreExecutor`: calls a synchronous store in a few threads, and merges concurrent requests into bulk calls.

It passes calls to the store and returns their outcomes. `store_backend` translates clients' requests into these calls,
and the outcomes into responses.

Ordering contract: the writes of one group take effect in the order of their submission; consecutive writes may be
merged into one. A read sees every write that had ended when the read was submitted.

While one stream of edits (or one scan) runs, new requests wait and are then combined into the next stream or scan, so
that all clients share round trips. If the store allows concurrent calls, groups are divided among a few queues
(*lanes*). Each lane runs one stream at a time. A group is *failing* if its last call had a retriable error, for example
because a broker is down. A failing group uses a separate lane until one of its calls succeeds, so that its timeouts do
not delay other groups.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from offsetmgr.core.errors import OffsetMgrError, TimedOut
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.offset_store import (
    Capabilities,
    Change,
    ChangeOutcomes,
    Committer,
    GroupEdit,
    GroupOffsets,
    Guard,
    OffsetStore,
)
from offsetmgr.server.store_backends.store_calls import (
    all_failed,
    closing_error,
    delete_group,
    edit_groups,
    read_groups,
)
from offsetmgr.server.store_backends.store_health import StoreHealth

T = TypeVar("T")

_log = logging.getLogger(__name__)

MAX_CHANGES_PER_STREAM: Final = 5_000
"""Maximum number of partitions in one stream of edits. This limit bounds how long a write waits for the previous
stream."""

_CLOSE_GRACE_S: Final = 1.0
_MIN_THREADS_TO_SEPARATE: Final = 4
"""If the store has at least this number of threads, one write lane and one read thread are reserved for failing
groups."""

_UNKNOWN: Final = Capabilities(metadata=True, leader_epoch=True, commit_timestamp=False, conditional="none")


@dataclass(slots=True, eq=False)
class StoreWrite:
    """A pending write to one group. ``done`` receives its outcomes, one per partition."""

    group: str
    changes: Mapping[TopicPartition, Change]
    done: asyncio.Future[ChangeOutcomes]
    committer: Committer | None = None
    """The group member that committed, if the commit names one."""
    exclusive: bool = False
    """Whether the write must not be merged with others of its group, because it has a condition."""
    abandoned: bool = False
    """Whether the client has already received an error, so that the write must not start any more."""


@dataclass(slots=True)
class MergedWrite:
    """Writes of one group that the store receives as one write. If several of these writes change the same partition,
    only the last value is written."""

    writes: list[StoreWrite]
    changes: dict[TopicPartition, Change]

    def can_merge(self, write: StoreWrite) -> bool:
        """Whether ``write`` may be added to the merged writes. A value with metadata must not replace an earlier value
        of the same partition: if the store rejected the metadata as too long, the earlier value would be lost."""
        first = self.writes[0]
        if write.exclusive or first.exclusive or write.committer != first.committer:
            return False
        return not any(
            change.after is not None and change.after.metadata and tp in self.changes
            for tp, change in write.changes.items()
        )


OnWritten: TypeAlias = Callable[[str, Mapping[TopicPartition, Change], ChangeOutcomes], asyncio.Future[None] | None]
"""A callback that receives the outcomes of each merged write. The calls for one group are in the order of the group's
writes. The field ``done`` of each `StoreWrite` completes after the call or, if the callback returns a future, when that
future completes."""


class StoreExecutor:
    """A store and the threads that may use it. All methods are called on the event loop."""

    reports_missing_groups = True
    """Whether a deletion of offsets reports an error if the group does not exist."""

    def __init__(self, store: OffsetStore, *, on_written: OnWritten | None = None) -> None:
        self.store = store
        self.health = StoreHealth(store.uri)
        self.failure = self.health.failure
        self.capabilities = _UNKNOWN
        """The store's capabilities. Until `read_capabilities` has succeeded, this is a default without conditional
        writes."""
        threads = max(1, getattr(store, "parallel_calls", 1))
        self._calls: set[asyncio.Future[Any]] = set()
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="offsetmgr-store")
        separate = threads >= _MIN_THREADS_TO_SEPARATE
        lanes = max(1, threads // 2)
        self._lanes = [_WriteLane(self, on_written) for _ in range(lanes)]
        self._normal_lanes = self._lanes[:-1] if separate else self._lanes
        self._failing_lane = self._lanes[-1] if separate else None
        """The lane for failing groups; None if the store has too few threads."""
        self._failing_groups: set[str] = set()
        self._unfinished: dict[str, set[StoreWrite]] = {}
        at_once = max(1, threads - lanes)
        self._reads = _ReadQueue(self, at_once - 1 if separate else at_once)
        self._failing_reads = _ReadQueue(self, 1) if separate else None
        self._unreadable_groups: set[str] = set()

    @property
    def supports_conditional_commits(self) -> bool:
        """Whether the store can compare and write atomically. False for Kafka, where each commit would need the group
        lock."""
        return self.capabilities.conditional in ("version", "file")

    def start(self, interval_s: float, wait_s: float) -> None:
        """Starts to probe the store; see `StoreHealth.start_probing`."""
        self.health.start_probing(lambda group, work: asyncio.shield(self.read(group, work)), interval_s, wait_s)

    async def read_capabilities(self) -> None:
        """Reads the store's capabilities, and logs which fields of a commit the store drops. Some stores request the
        capabilities from a server."""
        try:
            can = self.capabilities = await self.call(lambda: self.store.capabilities)
        except OffsetMgrError as error:
            what = {"store": self.store.uri, "error": str(error)}
            _log.warning("the store cannot be reached yet; its capabilities are unknown", extra=what)
            return
        lost = [name for name, kept in (("metadata", can.metadata), ("leader epochs", can.leader_epoch)) if not kept]
        if lost:
            what = {"store": self.store.uri, "dropped": " and ".join(lost)}
            _log.warning("the store cannot hold all fields of a commit; it drops some", extra=what)

    async def groups(self) -> list[str]:
        """Returns the groups of the store. Raises `OffsetMgrError`."""
        return await self.call(lambda: list(self.store.groups()))

    async def edit(self, edits: Sequence[GroupEdit]) -> dict[str, ChangeOutcomes]:
        """See `edit_groups`. Raises `asyncio.CancelledError` or RuntimeError if the executor has been closed."""
        return await self.call(partial(edit_groups, self.store, edits))

    async def delete_group(self, group: str) -> int:
        """Deletes the group after all earlier writes of the group have ended; see `store_calls.delete_group`."""
        await self.wait_for_writes(group)
        return await self.call(partial(delete_group, self.store, group))

    def write(self, write: StoreWrite) -> None:
        """Submits a write; ``done`` receives its outcomes."""
        self._unfinished.setdefault(write.group, set()).add(write)
        write.done.add_done_callback(lambda _: self._on_done(write))
        self._lane(write.group).add(write)

    def read(self, group: str, partitions: Sequence[TopicPartition] | None) -> asyncio.Future[GroupOffsets]:
        """Reads a group's offsets for these partitions, or for all if ``partitions`` is None. The result contains the
        errors."""
        if self._failing_reads is not None and group in self._unreadable_groups:
            return self._failing_reads.add(group, partitions)
        return self._reads.add(group, partitions)

    async def wait_for_writes(self, group: str) -> None:
        """Waits until every earlier write of the group has ended."""
        if unfinished := self._unfinished.get(group):
            await asyncio.wait({write.done for write in unfinished})

    def is_writing(self, group: str, tp: TopicPartition) -> bool:
        """Whether a write of the partition has not ended."""
        return any(tp in write.changes for write in self._unfinished.get(group, ()))

    async def call(self, work: Callable[[], T]) -> T:
        """Runs a call of the store in one of its threads. The call continues if the caller is cancelled."""
        call = asyncio.get_running_loop().run_in_executor(self._executor, work)
        self._calls.add(call)
        call.add_done_callback(self._call_ended)
        return await asyncio.shield(call)

    def _call_ended(self, call: asyncio.Future[Any]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # retrieves the exception, since the caller may have stopped waiting

    def metrics(self) -> Mapping[str, float]:
        """See `Backend.metrics`. A partition waits until its write has ended."""
        return {"store_writes_waiting": sum(lane.waiting for lane in self._lanes)}

    async def close(self, grace_s: float = _CLOSE_GRACE_S) -> None:
        """Waits for running calls, for the smaller of ``grace_s`` and one second, then closes the store. Closing the
        store ends the remaining calls. Writes that have not started fail."""
        await self.health.close()
        for lane in self._lanes:
            lane.close()
        if self._calls:
            await asyncio.wait(self._calls, timeout=min(grace_s, _CLOSE_GRACE_S))
        await asyncio.get_running_loop().run_in_executor(None, self.store.close)
        self._executor.shutdown(wait=False, cancel_futures=True)

    # --- called by write lanes and read queues -------------------------------------------------------

    def on_written(self, group: str, outcomes: ChangeOutcomes) -> None:
        """Called when a lane has finished a write. Moves the group to the lane for failing groups, or back to the
        group's normal lane."""
        self.health.record(group, [outcome.error for outcome in outcomes.values()])
        if self._failing_lane is None:
            return
        if any(outcome.error is not None and outcome.error.retriable for outcome in outcomes.values()):
            if group not in self._failing_groups:
                waiting = self._lane(group).remove_waiting(group)
                self._failing_groups.add(group)
                for write in waiting:  # in their order
                    self._failing_lane.add(write)
        elif group in self._failing_groups and not self._failing_lane.has(group):
            self._failing_groups.discard(group)

    def on_read(self, found: Mapping[str, GroupOffsets]) -> None:
        """Called when a read queue has finished these reads."""
        for group, result in found.items():
            self.health.record(group, [result.error, *result.errors.values()])
            if result.error is not None and result.error.retriable:
                self._unreadable_groups.add(group)
            else:
                self._unreadable_groups.discard(group)

    def _lane(self, group: str) -> _WriteLane:
        if self._failing_lane is not None and group in self._failing_groups:
            return self._failing_lane
        return self._normal_lanes[zlib.crc32(group.encode(errors="surrogatepass")) % len(self._normal_lanes)]

    def _on_done(self, write: StoreWrite) -> None:
        unfinished = self._unfinished[write.group]
        unfinished.discard(write)
        if not unfinished:
            del self._unfinished[write.group]


class _WriteLane:
    """A queue of writes; runs one stream of edits at a time."""

    def __init__(self, executor: StoreExecutor, on_written: OnWritten | None) -> None:
        self._executor = executor
        self._on_written = on_written
        self._queue: deque[StoreWrite] = deque()
        self._running: asyncio.Task[None] | None = None
        self._closed = False
        self.waiting = 0

    def add(self, write: StoreWrite) -> None:
        if self._closed:
            write.done.set_result(all_failed(write.changes, closing_error(self._executor.store)))
            return
        self._queue.append(write)
        self.waiting += len(write.changes)
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._run())

    def has(self, group: str) -> bool:
        """Whether writes of the group are queued."""
        return any(write.group == group for write in self._queue)

    def remove_waiting(self, group: str) -> list[StoreWrite]:
        """Removes and returns the group's queued writes."""
        waiting = [write for write in self._queue if write.group == group]
        if waiting:
            self._queue = deque(write for write in self._queue if write.group != group)
            self.waiting -= sum(len(write.changes) for write in waiting)
        return waiting

    def close(self) -> None:
        self._closed = True
        error = closing_error(self._executor.store)
        while self._queue:
            write = self._queue.popleft()
            self._resolve(write, all_failed(write.changes, error))

    async def _run(self) -> None:
        # Yields once, so that writes from the same turn of the event loop are merged with the first one.
        await asyncio.sleep(0)
        while batch := self._next_batch():
            edits = [GroupEdit(g, m.changes, Guard.OVERWRITE, m.writes[0].committer) for g, m in batch.items()]
            try:
                found = await self._executor.edit(edits)
            except (asyncio.CancelledError, RuntimeError):  # the executor has been closed
                error = closing_error(self._executor.store)
                found = {edit.group: all_failed(edit.changes, error) for edit in edits}
            for group, merged in batch.items():
                self._executor.on_written(group, found[group])
                self._complete(group, merged, found[group])
        self._running = None

    def _next_batch(self) -> dict[str, MergedWrite]:
        """Removes the writes of the next stream from the queue. For each group, the stream contains the group's first
        queued write and the later writes that may be merged with the first write."""
        batch: dict[str, MergedWrite] = {}
        postponed: list[StoreWrite] = []
        blocked: set[str] = set()
        size = 0
        while self._queue and size < MAX_CHANGES_PER_STREAM:
            write = self._queue.popleft()
            if write.abandoned:
                late = TimedOut(self._executor.store.uri, "the write did not start before its timeout")
                self._resolve(write, all_failed(write.changes, late))
                continue
            merged = batch.get(write.group)
            if write.group in blocked or (merged is not None and not merged.can_merge(write)):
                blocked.add(write.group)
                postponed.append(write)
                continue
            size += len(write.changes)
            if merged is None:
                batch[write.group] = MergedWrite([write], dict(write.changes))
            else:
                merged.writes.append(write)
                merged.changes.update(write.changes)
        self._queue.extendleft(reversed(postponed))
        return batch

    def _complete(self, group: str, merged: MergedWrite, outcomes: ChangeOutcomes) -> None:
        until = self._on_written(group, merged.changes, outcomes) if self._on_written is not None else None
        if until is None:
            self._resolve_all(merged, outcomes)
        else:
            until.add_done_callback(lambda _: self._resolve_all(merged, outcomes))

    def _resolve_all(self, merged: MergedWrite, outcomes: ChangeOutcomes) -> None:
        for write in merged.writes:
            self._resolve(write, {tp: outcomes[tp] for tp in write.changes})

    def _resolve(self, write: StoreWrite, outcomes: ChangeOutcomes) -> None:
        self.waiting -= len(write.changes)
        if not write.done.done():
            write.done.set_result(outcomes)


@dataclass(slots=True)
class _FetchWork:
    """The partitions of one group that callers have requested; None stands for all partitions."""

    partitions: dict[TopicPartition, None] | None
    waiting: list[asyncio.Future[GroupOffsets]] = field(default_factory=list)


class _ReadQueue:
    """A queue of reads. Reads of several groups share one scan; requested partitions of one group share one fetch."""

    def __init__(self, executor: StoreExecutor, at_once: int) -> None:
        self._executor = executor
        self._free = at_once
        self._queue: dict[str, _FetchWork] = {}

    def add(self, group: str, partitions: Sequence[TopicPartition] | None) -> asyncio.Future[GroupOffsets]:
        work = self._queue.get(group)
        if work is None:
            work = self._queue[group] = _FetchWork({})
        if partitions is None:
            work.partitions = None
        elif work.partitions is not None:
            work.partitions.update(dict.fromkeys(partitions))
        loop = asyncio.get_running_loop()
        result: asyncio.Future[GroupOffsets] = loop.create_future()
        work.waiting.append(result)
        if self._free:
            self._free -= 1
            loop.create_task(self._run())  # noqa: RUF006  # the event loop and the executor's future hold it
        return result

    async def _run(self) -> None:
        await asyncio.sleep(0)
        while self._queue:
            batch, self._queue = self._queue, {}
            requested = {group: None if a.partitions is None else list(a.partitions) for group, a in batch.items()}
            try:
                found = await self._executor.call(partial(read_groups, self._executor.store, requested))
            except (asyncio.CancelledError, RuntimeError):  # the executor has been closed
                error = closing_error(self._executor.store)
                found = {group: GroupOffsets(group, {}, error=error) for group in requested}
            self._executor.on_read(found)
            for group, work in batch.items():
                for result in work.waiting:
                    if not result.done():
                        result.set_result(found[group])
        self._free += 1
