"""Synchronous stores behind an event loop: a few threads for each, and requests gathered into bulk calls.

Here belongs how calls reach a store and their outcomes come back; what is asked, and what clients are told, is
`storebackend`'s.

Ordering contract: the writes of one group are carried out in the order in which they were handed in, each before the
next begins or together with it; a read sees every write that had ended when the read was handed in.

While one stream of edits (or one scan) runs, what comes meanwhile is gathered for the next, so that round trips are
shared by as many clients as there are.  Groups are spread over a few lanes where the store allows calls side by side:
a group that has to wait for its coordinator holds up only its lane.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from offsetmgr.errors import OffsetMgrError, PartialFailure, ServerError, TimedOut, Unreachable
from offsetmgr.model import Committed, TopicPartition
from offsetmgr.stores.base import (
    Capabilities,
    Change,
    ChangeOutcome,
    Committer,
    GroupEdit,
    GroupOffsets,
    Guard,
    OffsetStore,
    Verdict,
)

T = TypeVar("T")

_log = logging.getLogger(__name__)

CHANGES_A_STREAM: Final = 5_000
"""Partitions in one stream of edits: so long does a write wait at most for the stream before it."""

_UNKNOWN: Final = Capabilities(metadata=True, leader_epoch=True, commit_timestamp=False, conditional="none")

Outcomes: TypeAlias = Mapping[TopicPartition, ChangeOutcome]


@dataclass(slots=True, eq=False)
class Write:
    """A change to one group on its way. ``done`` is set with its outcomes, one a partition."""

    group: str
    changes: Mapping[TopicPartition, Change]
    done: asyncio.Future[Outcomes]
    committer: Committer | None = None
    """The member whose commit it is, if it is one's."""
    alone: bool = False
    """Not to be put together with other writes of its group (it expects something)."""
    given_up: bool = False
    """Its client has been told that it failed: not to be begun any more."""

    def outcomes(self, of_all: Outcomes) -> Outcomes:
        return {tp: of_all[tp] for tp in self.changes}


@dataclass(slots=True)
class Merged:
    """Writes of one group that are carried out as one; of several values for a partition the last."""

    writes: list[Write]
    changes: dict[TopicPartition, Change]

    def takes(self, write: Write) -> bool:
        """Whether one more write may be joined. A value with metadata may be refused by the store for its length, and
        must not draw a value before it along."""
        first = self.writes[0]
        if write.alone or first.alone or write.committer != first.committer:
            return False
        return not any(
            change.after is not None and change.after.metadata and tp in self.changes
            for tp, change in write.changes.items()
        )

    def join(self, write: Write) -> None:
        self.writes.append(write)
        self.changes.update(write.changes)


Written: TypeAlias = Callable[[str, Mapping[TopicPartition, Change], Outcomes], asyncio.Future[None] | None]
"""Told what became of each merged write, in order within each group, before its writes' ``done`` is set; they wait
for the future, if one is given."""


class StoreThreads:
    """A store and the threads that may use it. Everything here is called on the event loop."""

    def __init__(self, store: OffsetStore, *, guard: Guard = Guard.OVERWRITE, written: Written | None = None) -> None:
        self.store = store
        self.capabilities = _UNKNOWN
        """What the store can carry, once `learn` has been told; until then as much as there is."""
        threads = max(1, getattr(store, "parallel_calls", 1))
        self._calls: set[asyncio.Future[Any]] = set()
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="offsetmgr-store")
        self._lanes = [_WriteLane(self, guard, written) for _ in range(max(1, threads // 2))]
        self._reads = _Reads(self, max(1, threads - len(self._lanes)))

    async def learn(self) -> None:
        """Asks the store what it can carry; some have to ask a server. Raises `OffsetMgrError`."""
        self.capabilities = await self.call(lambda: self.store.capabilities)

    @property
    def waiting(self) -> int:
        """Partitions that are waiting to be written, or being written."""
        return sum(lane.waiting for lane in self._lanes)

    def write(self, write: Write) -> None:
        """Hands in a write; its outcome comes through ``done``."""
        self._lane(write.group).add(write)

    def read(self, group: str, partitions: Sequence[TopicPartition] | None) -> asyncio.Future[GroupOffsets]:
        """Reads a group's offsets, of these partitions or all; failures are in the result."""
        return self._reads.add(group, partitions)

    async def settled(self, group: str) -> None:
        """Waits until every write of the group that was handed in before has ended."""
        await self._lane(group).settled(group)

    async def call(self, work: Callable[[], T]) -> T:
        """Runs any call of the store in one of its threads, to its end even if nobody waits for it any more."""
        call = asyncio.get_running_loop().run_in_executor(self._executor, work)
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return await asyncio.shield(call)

    async def close(self, grace: float = 1.0) -> None:
        """Gives calls under way ``grace`` seconds, then closes the store, which ends them. Writes not begun fail."""
        for lane in self._lanes:
            lane.close()
        if self._calls:
            await asyncio.wait(self._calls, timeout=grace)
        await asyncio.get_running_loop().run_in_executor(None, self.store.close)
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _lane(self, group: str) -> _WriteLane:
        return self._lanes[zlib.crc32(group.encode(errors="surrogatepass")) % len(self._lanes)]


class _WriteLane:
    """One stream of edits at a time; see the module's docstring."""

    def __init__(self, threads: StoreThreads, guard: Guard, written: Written | None) -> None:
        self._threads = threads
        self._guard = guard
        self._written = written
        self._queue: deque[Write] = deque()
        self._ends: dict[str, set[asyncio.Future[Outcomes]]] = {}
        self._running: asyncio.Task[None] | None = None
        self._closed = False
        self.waiting = 0

    def add(self, write: Write) -> None:
        if self._closed:
            write.done.set_result(all_failed(write.changes, _closing(self._threads.store)))
            return
        self._queue.append(write)
        self.waiting += len(write.changes)
        self._ends.setdefault(write.group, set()).add(write.done)
        write.done.add_done_callback(lambda done: self._ended(write.group, done))
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._run())

    async def settled(self, group: str) -> None:
        if ends := self._ends.get(group):
            await asyncio.wait(set(ends))

    def close(self) -> None:
        self._closed = True
        error = _closing(self._threads.store)
        while self._queue:
            write = self._queue.popleft()
            self._resolve(write, all_failed(write.changes, error))

    async def _run(self) -> None:
        # A moment for the writes that arrived together with the first one.
        await asyncio.sleep(0)
        while batch := self._take():
            edits = [GroupEdit(g, m.changes, self._guard, m.writes[0].committer) for g, m in batch.items()]
            try:
                found = await self._threads.call(partial(edited, self._threads.store, edits))
            except (asyncio.CancelledError, RuntimeError):  # the threads have been closed meanwhile
                error = _closing(self._threads.store)
                found = {edit.group: all_failed(edit.changes, error) for edit in edits}
            for group, merged in batch.items():
                self._settle(group, merged, found[group])
        self._running = None

    def _take(self) -> dict[str, Merged]:
        """The next stream: all that waits, but of each group only what may be carried out together."""
        batch: dict[str, Merged] = {}
        later: list[Write] = []
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
                batch[write.group] = Merged([write], dict(write.changes))
            else:
                merged.join(write)
        self._queue.extendleft(reversed(later))
        return batch

    def _settle(self, group: str, merged: Merged, outcomes: Outcomes) -> None:
        until = self._written(group, merged.changes, outcomes) if self._written is not None else None
        if until is None:
            self._resolve_all(merged, outcomes)
        else:
            until.add_done_callback(lambda _: self._resolve_all(merged, outcomes))

    def _resolve_all(self, merged: Merged, outcomes: Outcomes) -> None:
        for write in merged.writes:
            self._resolve(write, write.outcomes(outcomes))

    def _resolve(self, write: Write, outcomes: Outcomes) -> None:
        self.waiting -= len(write.changes)
        if not write.done.done():
            write.done.set_result(outcomes)

    def _ended(self, group: str, done: asyncio.Future[Outcomes]) -> None:
        ends = self._ends[group]
        ends.discard(done)
        if not ends:
            del self._ends[group]


@dataclass(slots=True)
class _Asked:
    """What is wanted of one group by those who wait for it: these partitions, or (None) all."""

    partitions: dict[TopicPartition, None] | None
    waiting: list[asyncio.Future[GroupOffsets]] = field(default_factory=list)


class _Reads:
    """Reads, gathered: many groups in one scan, one group's named partitions in one fetch."""

    def __init__(self, threads: StoreThreads, at_once: int) -> None:
        self._threads = threads
        self._free = at_once
        self._queue: dict[str, _Asked] = {}

    def add(self, group: str, partitions: Sequence[TopicPartition] | None) -> asyncio.Future[GroupOffsets]:
        asked = self._queue.get(group)
        if asked is None:
            asked = self._queue[group] = _Asked({})
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
                error = _closing(self._threads.store)
                found = {group: GroupOffsets(group, {}, error=error) for group in wanted}
            for group, asked in batch.items():
                for answer in asked.waiting:
                    if not answer.done():
                        answer.set_result(found[group])
        self._free += 1


# --- in the store's threads -----------------------------------------------------------------------


def edited(store: OffsetStore, edits: Sequence[GroupEdit]) -> dict[str, Outcomes]:
    """Carries out edits of different groups: outcomes for every one of them, whatever happens."""
    found: dict[str, Outcomes] = {}
    error: OffsetMgrError = ServerError(store.uri, "the store did not answer for the group")
    try:
        for result in store.edit(edits):
            found[result.group] = result.outcomes
    except OffsetMgrError as failure:
        error = failure
    except CancelledError:
        error = _closing(store)
    except Exception as defect:
        _log.exception("an edit failed in an unforeseen way", extra={"store": store.uri})
        error = ServerError(store.uri, f"{type(defect).__name__} during an edit")
    return {edit.group: found.get(edit.group) or all_failed(edit.changes, error) for edit in edits}


def read(store: OffsetStore, wanted: Mapping[str, list[TopicPartition] | None]) -> dict[str, GroupOffsets]:
    """Reads many groups: an answer for every one of them, whatever happens."""
    found: dict[str, GroupOffsets] = {}
    error: OffsetMgrError = ServerError(store.uri, "the store did not answer for the group")
    try:
        if len(wanted) > 1 or None in wanted.values():
            for answer in store.scan(wanted):
                found[answer.group] = answer
        # What hinders the reading of a whole group need not hinder that of the partitions asked for.
        for group, partitions in wanted.items():
            if partitions is not None and _incomplete(found.get(group), partitions):
                found[group] = _fetched(store, group, partitions)
    except OffsetMgrError as failure:
        error = failure
    except CancelledError:
        error = _closing(store)
    except Exception as defect:
        _log.exception("a read failed in an unforeseen way", extra={"store": store.uri})
        error = ServerError(store.uri, f"{type(defect).__name__} during a read")
    return {group: found.get(group) or GroupOffsets(group, {}, error=error) for group in wanted}


def all_failed(partitions: Iterable[TopicPartition], error: OffsetMgrError) -> Outcomes:
    return dict.fromkeys(partitions, ChangeOutcome(Verdict.FAILED, None, error))


def _incomplete(found: GroupOffsets | None, partitions: Iterable[TopicPartition]) -> bool:
    if found is None:
        return True
    if found.error is not None:
        return not found.error.retriable
    return any(tp in found.errors for tp in partitions)


def _fetched(store: OffsetStore, group: str, partitions: list[TopicPartition]) -> GroupOffsets:
    try:
        found, errors = store.fetch(group, partitions), {}
    except PartialFailure as partial:
        found, errors = partial.successes, partial.failures
    except OffsetMgrError as error:
        return GroupOffsets(group, {}, error=error)
    return GroupOffsets(group, {tp: held for tp, held in found.items() if isinstance(held, Committed)}, errors)


def _closing(store: OffsetStore) -> OffsetMgrError:
    return Unreachable(store.uri, "the listener is being closed")
