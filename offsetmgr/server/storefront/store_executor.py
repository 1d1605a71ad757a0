"""Synchronous stores behind an event loop: a few threads for each, and requests gathered into bulk calls.

This module passes calls to a store and returns their outcomes; `store_backend` defines the calls and the clients'
responses.

Ordering contract: the writes of one group are carried out in the order of their submission, each before the next begins
or together with it; a read sees every write that had ended when the read was submitted.

While one stream of edits (or one scan) runs, new requests are gathered for the next, so that all clients share round
trips. If the store allows concurrent calls, groups are spread over a few lanes. Groups in trouble (their last call
failed temporarily, for example because a broker is down) have a separate lane until one of their calls succeeds, so
that they do not delay the others by a timeout each.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from offsetmgr.core.errors import TimedOut
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.offset_store import (
    Capabilities,
    Change,
    Committer,
    GroupEdit,
    GroupOffsets,
    Guard,
    OffsetStore,
)
from offsetmgr.server.storefront.store_calls import Outcomes, all_failed, closing, edited, read
from offsetmgr.server.storefront.store_health import StoreHealth

T = TypeVar("T")

CHANGES_A_STREAM: Final = 5_000
"""Partitions in one stream of edits; it bounds how long a write waits for the stream before it."""

_ENOUGH_TO_PART: Final = 4
"""Number of threads from which one of the lanes, and one of the reads, is reserved for groups in trouble."""

_UNKNOWN: Final = Capabilities(metadata=True, leader_epoch=True, commit_timestamp=False, conditional="none")


@dataclass(slots=True, eq=False)
class StoreWrite:
    """A pending change to one group. ``done`` is set with its outcomes, one per partition."""

    group: str
    changes: Mapping[TopicPartition, Change]
    done: asyncio.Future[Outcomes]
    committer: Committer | None = None
    """The member whose commit it is, if there is one."""
    alone: bool = False
    """Must not be merged with other writes of its group (it has a condition)."""
    given_up: bool = False
    """Its client has already received an error: must not be started any more."""

    def outcomes(self, of_all: Outcomes) -> Outcomes:
        return {tp: of_all[tp] for tp in self.changes}


@dataclass(slots=True)
class MergedWrite:
    """Writes of one group that are carried out as one; of several values for a partition the last."""

    writes: list[StoreWrite]
    changes: dict[TopicPartition, Change]

    def takes(self, write: StoreWrite) -> bool:
        """Whether one more write may be merged. The store may reject a value with metadata for its length, which must
        not affect an earlier value."""
        first = self.writes[0]
        if write.alone or first.alone or write.committer != first.committer:
            return False
        return not any(
            change.after is not None and change.after.metadata and tp in self.changes
            for tp, change in write.changes.items()
        )

    def join(self, write: StoreWrite) -> None:
        self.writes.append(write)
        self.changes.update(write.changes)


Written: TypeAlias = Callable[[str, Mapping[TopicPartition, Change], Outcomes], asyncio.Future[None] | None]
"""Called with the outcome of each merged write, in order within each group, before its writes' ``done`` is set; they
wait for the future, if it returns one."""


class StoreExecutor:
    """A store and the threads that may use it. All methods are called on the event loop."""

    def __init__(self, store: OffsetStore, *, guard: Guard = Guard.OVERWRITE, written: Written | None = None) -> None:
        self.store = store
        self.health = StoreHealth(store.uri)
        self.capabilities = _UNKNOWN
        """The store's capabilities, after `read_capabilities`; all of them until then."""
        threads = max(1, getattr(store, "parallel_calls", 1))
        self._calls: set[asyncio.Future[Any]] = set()
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="offsetmgr-store")
        apart = threads >= _ENOUGH_TO_PART
        lanes = max(1, threads // 2)
        self._lanes = [_WriteLane(self, guard, written) for _ in range(lanes)]
        self._usual = self._lanes[:-1] if apart else self._lanes
        self._apart = self._lanes[-1] if apart else None
        """The lane for groups in trouble."""
        self._trouble: set[str] = set()
        self._ends: dict[str, set[asyncio.Future[Outcomes]]] = {}
        at_once = max(1, threads - lanes)
        self._reads = _Reads(self, at_once - 1 if apart else at_once)
        self._reads_apart = _Reads(self, 1) if apart else None
        self._unread: set[str] = set()

    def watch(self, every: float, wait_s: float) -> None:
        """See `StoreHealth.watch`."""
        self.health.watch(lambda group, asked: asyncio.shield(self.read(group, asked)), every, wait_s)

    async def read_capabilities(self) -> None:
        """Reads the store's capabilities; some stores have to ask a server. Raises `OffsetMgrError`."""
        self.capabilities = await self.call(lambda: self.store.capabilities)

    @property
    def waiting(self) -> int:
        """Number of partitions that are waiting to be written, or being written."""
        return sum(lane.waiting for lane in self._lanes)

    def write(self, write: StoreWrite) -> None:
        """Submits a write; its outcome comes through ``done``."""
        self._ends.setdefault(write.group, set()).add(write.done)
        write.done.add_done_callback(partial(self._ended, write.group))
        self._lane(write.group).add(write)

    def read(self, group: str, partitions: Sequence[TopicPartition] | None) -> asyncio.Future[GroupOffsets]:
        """Reads a group's offsets, of these partitions or all; failures are in the result."""
        reads = self._reads if self._reads_apart is None or group not in self._unread else self._reads_apart
        return reads.add(group, partitions)

    async def settled(self, group: str) -> None:
        """Waits until every earlier write of the group has ended."""
        if ends := self._ends.get(group):
            await asyncio.wait(set(ends))

    async def call(self, work: Callable[[], T]) -> T:
        """Runs any call of the store in one of its threads, to its end even if the caller has stopped waiting."""
        call = asyncio.get_running_loop().run_in_executor(self._executor, work)
        self._calls.add(call)
        call.add_done_callback(self._over)
        return await asyncio.shield(call)

    def _over(self, call: asyncio.Future[Any]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # retrieved: the caller may be gone

    async def close(self, grace: float = 1.0) -> None:
        """Gives running calls ``grace`` seconds, then closes the store, which ends them. Writes that have not begun
        fail."""
        await self.health.close()
        for lane in self._lanes:
            lane.close()
        if self._calls:
            await asyncio.wait(self._calls, timeout=grace)
        await asyncio.get_running_loop().run_in_executor(None, self.store.close)
        self._executor.shutdown(wait=False, cancel_futures=True)

    # --- called by lanes and reads -------------------------------------------------------------------

    def written(self, group: str, outcomes: Outcomes) -> None:
        """A group's write has ended in its lane."""
        self.health.note(group, [outcome.error for outcome in outcomes.values()])
        if self._apart is None:
            return
        if any(outcome.error is not None and outcome.error.retriable for outcome in outcomes.values()):
            if group not in self._trouble:
                waiting = self._lane(group).give_up(group)
                self._trouble.add(group)
                self._apart.take_over(waiting)
        elif group in self._trouble and not self._apart.has(group):
            self._trouble.discard(group)

    def were_read(self, found: Mapping[str, GroupOffsets]) -> None:
        """Reports the results of reads."""
        for group, answer in found.items():
            self.health.note(group, [answer.error, *answer.errors.values()])
            if answer.error is not None and answer.error.retriable:
                self._unread.add(group)
            else:
                self._unread.discard(group)

    def _lane(self, group: str) -> _WriteLane:
        if self._apart is not None and group in self._trouble:
            return self._apart
        return self._usual[zlib.crc32(group.encode(errors="surrogatepass")) % len(self._usual)]

    def _ended(self, group: str, done: asyncio.Future[Outcomes]) -> None:
        ends = self._ends[group]
        ends.discard(done)
        if not ends:
            del self._ends[group]


class _WriteLane:
    """One stream of edits at a time; see the module's docstring."""

    def __init__(self, threads: StoreExecutor, guard: Guard, written: Written | None) -> None:
        self._threads = threads
        self._guard = guard
        self._written = written
        self._queue: deque[StoreWrite] = deque()
        self._running: asyncio.Task[None] | None = None
        self._closed = False
        self.waiting = 0

    def add(self, write: StoreWrite) -> None:
        if self._closed:
            write.done.set_result(all_failed(write.changes, closing(self._threads.store)))
            return
        self._queue.append(write)
        self.waiting += len(write.changes)
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._run())

    def has(self, group: str) -> bool:
        """Whether writes of the group wait here."""
        return any(write.group == group for write in self._queue)

    def give_up(self, group: str) -> list[StoreWrite]:
        """Removes and returns the group's waiting writes."""
        waiting = [write for write in self._queue if write.group == group]
        if waiting:
            self._queue = deque(write for write in self._queue if write.group != group)
            self.waiting -= sum(len(write.changes) for write in waiting)
        return waiting

    def take_over(self, writes: Iterable[StoreWrite]) -> None:
        """Appends the writes from another lane, in their order."""
        for write in writes:
            self.add(write)

    def close(self) -> None:
        self._closed = True
        error = closing(self._threads.store)
        while self._queue:
            write = self._queue.popleft()
            self._resolve(write, all_failed(write.changes, error))

    async def _run(self) -> None:
        # Lets writes that arrived together with the first one join it.
        await asyncio.sleep(0)
        while batch := self._take():
            edits = [GroupEdit(g, m.changes, self._guard, m.writes[0].committer) for g, m in batch.items()]
            try:
                found = await self._threads.call(partial(edited, self._threads.store, edits))
            except (asyncio.CancelledError, RuntimeError):  # the threads have been closed meanwhile
                error = closing(self._threads.store)
                found = {edit.group: all_failed(edit.changes, error) for edit in edits}
            for group, merged in batch.items():
                self._threads.written(group, found[group])
                self._settle(group, merged, found[group])
        self._running = None

    def _take(self) -> dict[str, MergedWrite]:
        """Takes the next stream: all waiting writes, but of each group only those that may be merged."""
        batch: dict[str, MergedWrite] = {}
        later: list[StoreWrite] = []
        held_up: set[str] = set()
        size = 0
        while self._queue and size < CHANGES_A_STREAM:
            write = self._queue.popleft()
            if write.given_up:
                self._resolve(
                    write, all_failed(write.changes, TimedOut(self._threads.store.uri, "was not begun in time"))
                )
                continue
            merged = batch.get(write.group)
            if write.group in held_up or (merged is not None and not merged.takes(write)):
                held_up.add(write.group)
                later.append(write)
                continue
            size += len(write.changes)
            if merged is None:
                batch[write.group] = MergedWrite([write], dict(write.changes))
            else:
                merged.join(write)
        self._queue.extendleft(reversed(later))
        return batch

    def _settle(self, group: str, merged: MergedWrite, outcomes: Outcomes) -> None:
        until = self._written(group, merged.changes, outcomes) if self._written is not None else None
        if until is None:
            self._resolve_all(merged, outcomes)
        else:
            until.add_done_callback(lambda _: self._resolve_all(merged, outcomes))

    def _resolve_all(self, merged: MergedWrite, outcomes: Outcomes) -> None:
        for write in merged.writes:
            self._resolve(write, write.outcomes(outcomes))

    def _resolve(self, write: StoreWrite, outcomes: Outcomes) -> None:
        self.waiting -= len(write.changes)
        if not write.done.done():
            write.done.set_result(outcomes)


@dataclass(slots=True)
class _FetchWork:
    """The partitions of one group that callers wait for, or (None) all."""

    partitions: dict[TopicPartition, None] | None
    waiting: list[asyncio.Future[GroupOffsets]] = field(default_factory=list)


class _Reads:
    """Gathered reads: many groups in one scan, one group's named partitions in one fetch."""

    def __init__(self, threads: StoreExecutor, at_once: int) -> None:
        self._threads = threads
        self._free = at_once
        self._queue: dict[str, _FetchWork] = {}

    def add(self, group: str, partitions: Sequence[TopicPartition] | None) -> asyncio.Future[GroupOffsets]:
        asked = self._queue.get(group)
        if asked is None:
            asked = self._queue[group] = _FetchWork({})
        if partitions is None:
            asked.partitions = None
        elif asked.partitions is not None:
            asked.partitions.update(dict.fromkeys(partitions))
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[GroupOffsets] = loop.create_future()
        asked.waiting.append(answer)
        if self._free:
            self._free -= 1
            loop.create_task(self._run())  # noqa: RUF006  # it ends with the queue, and its waiters hold its results
        return answer

    async def _run(self) -> None:
        await asyncio.sleep(0)
        while self._queue:
            batch, self._queue = self._queue, {}
            wanted = {group: None if a.partitions is None else list(a.partitions) for group, a in batch.items()}
            try:
                found = await self._threads.call(partial(read, self._threads.store, wanted))
            except (asyncio.CancelledError, RuntimeError):  # the threads have been closed meanwhile
                error = closing(self._threads.store)
                found = {group: GroupOffsets(group, {}, error=error) for group in wanted}
            self._threads.were_read(found)
            for group, asked in batch.items():
                for answer in asked.waiting:
                    if not answer.done():
                        answer.set_result(found[group])
        self._free += 1
