"""`ShardGroup`: one shard group on the event loop, with its shards, its requests in flight and their waiters.
`ShardWriter`: the task that claims, loads and appends to an owned shard group.

The task runs on the event loop of the manager and reports its results to the shard group. Only reads of the log run in
threads, because they take long.

The manager serves fetches from memory while the outcome of an append is unknown. This is correct for two reasons. No
commit of this append was acknowledged: the clients have received an error, or no response yet. Memory therefore
contains the last *acknowledged* offsets. In addition, no other process can have acknowledged a commit since this
append: the next owner acknowledges commits only after this process's lease has ended, and every fetch checks the lease
(data rule "one writer per shard"). A process that claims a shard group without owning it appends nothing but its claim
(see `ownership_protocol`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, TypeVar

from offsetmgr.core.errors import ErrorCode, OffsetMgrError, TimedOut, value_of
from offsetmgr.manager.lease import boottime
from offsetmgr.manager.lifecycle import ShardState
from offsetmgr.manager.log.base import AppendOutcome, CorruptRecords, Fenced, OutcomeUnknown, TooLarge
from offsetmgr.manager.results import CoordinatorResult
from offsetmgr.manager.runtime.services import RuntimeServices, ShardLoader
from offsetmgr.manager.runtime.write_batch import (
    AppendResult,
    PendingRequest,
    WriteBatch,
    acknowledge,
    answer_with_error,
    append_results,
    deadline_passed,
    failed_results,
    halves,
    merge_records,
)
from offsetmgr.manager.shard import Shard
from offsetmgr.records.base import EncodedRecord

T = TypeVar("T")

_logger: Final = logging.getLogger(__name__)
_MAX_LISTED: Final = 5
"""The maximum number of unreadable records that a log message lists."""
NON_RETRIABLE_BACKOFF_S: Final = 60.0
"""The longest pause after an error that is not retriable. The pause is long because each attempt may read a whole topic
again."""
_LEASE_CHECK_INTERVAL_S: Final = 0.05
_MIN_TIME_SHARE: Final = 0.1
"""If less than this fraction of the commit timeout remains for a batch, the task does not try to append it."""
_REPLAY_PART: Final = 1000
_RECORDS_PER_APPEND: Final = 500
LOSS: Final = (
    "were deleted before this manager read them: offsets may be lost, or older or deleted ones served, unless the "
    "topic was emptied on purpose, as before an upgrade; compare them with a snapshot before you import it"
)
_RESTORE_BYTES: Final = 256 * 1024
_RESTORE_PAUSE_S: Final = 0.2
"""The size of the parts in which a shard is appended again, and the pause between two parts. They limit how long the
commits wait."""
_RESTORE_LIMIT_S: Final = 30.0
"""The longest time for which a shard group is kept until its shards are appended again."""
_REFRESH_RETRY_S: Final = 10.0
"""The pause after a failed refresh of the claim. It is short, because the claim must not expire."""


class ShardWriter:
    """Claims, loads and appends to one shard group. ``shards`` belong to the task until
    `ShardGroup.on_loaded`."""

    def __init__(
        self,
        shard_group: int,
        services: RuntimeServices,
        listener: ShardGroup,
        shards: Mapping[int, Shard],
        generation: str,
    ) -> None:
        self.loader: ShardLoader | None = None
        self._shard_group = shard_group
        self._services = services
        self._settings = services.settings
        self._listener = listener
        self._shards: dict[int, Shard] | None = dict(shards)
        self._partitions = sorted(shards)
        self._generation = generation
        self._positions: dict[int, int] = {}
        self._queue: deque[WriteBatch] = deque()
        self.stopping = threading.Event()  # the threads that read the log check it, too
        self._stopped = asyncio.Event()
        self._wake = asyncio.Event()
        self._writer = services.log.writer(shard_group)
        self._claimed = False
        self._refresh_due = False
        self._refresh_timer: asyncio.TimerHandle | None = None
        self.restores: dict[int, tuple[int, Iterator[EncodedRecord], list[str]] | None] = {}
        """The partitions whose shards are appended again: the first offset, the remaining records and the keys, as
        text, of those that were too large; None before the first record."""
        self._next_restore = 0.0
        self.restore_pause_s = _RESTORE_PAUSE_S
        self.too_large: dict[int, list[str]] = {}
        """The keys, as text, whose records were too large to be appended again the last time."""
        self._retry_at: dict[int, float] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"offsetmgr-shard-group-{self._shard_group}")

    def put(self, batch: WriteBatch) -> None:
        """Queues a batch behind all earlier batches."""
        self._queue.append(batch)
        self._wake.set()

    def wake(self) -> None:
        """Makes the task check its queue in the next iteration of the event loop, after the callbacks that are already
        scheduled for this iteration."""
        self._wake.set()

    def stop(self) -> None:
        """Stops the task after it has appended the queued batches."""
        self.stopping.set()
        self._stopped.set()
        self._wake.set()

    @property
    def loading(self) -> bool:
        """Whether the shards still belong to the task."""
        return self._shards is not None

    async def _run(self) -> None:
        fenced = ""
        try:
            await self._claim_and_serve()
        except Fenced as error:
            fenced = str(error)
        finally:
            if self._refresh_timer is not None:
                self._refresh_timer.cancel()  # the loop would keep this object, and its load, until the refresh
            self._writer.close()
        self._listener.on_finished(fenced)

    async def _claim_and_serve(self) -> None:
        """Claims and serves the shard group until the task is stopped. After an append with an unknown outcome, the
        task claims the shard group again."""
        pause_s = self._settings.retry_pause_s
        while not self.stopping.is_set():
            try:
                if await self._claim_and_load():
                    pause_s = self._settings.retry_pause_s
                    await self._serve()
            except Fenced:
                raise
            except Exception as error:  # retried, since the shard group needs an owner
                self._listener.on_retry(error)
                await self._wait_until_stopped(pause_s)
                pause_s = min(
                    pause_s * 2, self._settings.max_retry_pause_s if is_retriable(error) else NON_RETRIABLE_BACKOFF_S
                )

    # --- claim and load ------------------------------------------------------------------------------

    async def _claim_and_load(self) -> bool:
        """Claims the shard group and reads the log up to the claim. Returns False if the lease has expired by now, or
        if the task was stopped."""
        while not self._services.ownership.valid():
            if await self._wait_until_stopped(_LEASE_CHECK_INTERVAL_S):
                return False
        self._listener.on_loading()
        generation = await self._in_thread(self._services.log.generation, self._settings.claim_timeout_s)
        if not self._discard_other_log(generation):
            return False
        ends = await self._writer.claim(self._settings.claim_timeout_s)
        # The lease must be checked after the claim: see `ownership_protocol`.
        if not self._services.ownership.valid() or self.stopping.is_set():
            return False
        self._refresh_later(self._settings.claim_refresh_s)
        self._claimed = await (self._read_tail(ends) if self._shards is None else self._load_shards(self._shards, ends))
        return self._claimed

    def _discard_other_log(self, generation: str) -> bool:
        """Discards shards that were read from another log. If the outdated shards belong to the loop, returns False,
        and the shard group reloads them."""
        if generation in ("", self._generation):
            return True
        if self._shards is None:
            self._listener.on_topic_recreated()
            return False
        self._shards = {partition: self._services.new_shard(partition) for partition in self._partitions}
        self._generation = generation
        return True

    async def _load_shards(self, shards: dict[int, Shard], ends: Mapping[int, int]) -> bool:
        as_of = boottime()
        loader = self.loader = ShardLoader(self._services, shards, self.stopping)
        if not await self._in_thread(loader.load, ends, self._generation):
            return False
        self._positions = {partition: shard.position for partition, shard in shards.items()}
        await self._complete_claim()
        await self._append_again(loader.invalid_keys, shards)
        self._shards = None
        self._listener.on_loaded(shards, self._generation, as_of)
        return True

    async def _read_tail(self, ends: Mapping[int, int]) -> bool:
        """Reads the end of the log after an append with an unknown outcome. Only the records of this append are new.
        They are few, so the loop replays them."""
        behind = {partition: end for partition, end in ends.items() if end > self._positions[partition]}
        newest: dict[int, dict[bytes, bytes | None]] = {partition: {} for partition in behind}
        reached, invalid_keys = await self._in_thread(self._read_range, behind, newest)
        if any(reached[partition] < end for partition, end in behind.items()):
            return False
        for partition, found in newest.items():
            await self._replay(partition, found, reached[partition])
        await self._complete_claim()
        await self._append_again(invalid_keys, self._listener.shards)
        self._listener.on_recovered()
        return True

    def _read_range(
        self, ends: Mapping[int, int], newest: Mapping[int, dict[bytes, bytes | None]]
    ) -> tuple[Mapping[int, int], Mapping[int, AbstractSet[bytes]]]:
        """Reads the log up to ``ends``. Returns the positions and the `LogReader.invalid_keys`. Runs in a thread."""
        if not ends:
            return {}, {}
        starts = {partition: self._positions[partition] for partition in ends}
        with contextlib.closing(self._services.log.reader()) as reader:
            reached = reader.load(starts, ends, newest, stopped=self.stopping.is_set)
            invalid_keys = reader.invalid_keys
        self._services.check_same_log(self._generation)
        return reached, invalid_keys

    async def _replay(self, partition: int, newest: Mapping[bytes, bytes | None], position: int) -> None:
        """Replays the records in parts, so that the loop can do other work between two parts. The last part advances
        the shard's position."""
        shard = self._listener.shards[partition]
        items = list(newest.items())
        while len(items) > _REPLAY_PART:
            part, items = dict(items[:_REPLAY_PART]), items[_REPLAY_PART:]
            shard.replay_newest(part, self._positions[partition])
            await asyncio.sleep(0)
        shard.replay_newest(dict(items), position)
        self._positions[partition] = position

    async def _complete_claim(self) -> None:
        self._check(await self._writer.complete_claim(self._settings.claim_timeout_s))

    async def _append_again(self, invalid_keys: Mapping[int, AbstractSet[bytes]], shards: Mapping[int, Shard]) -> None:
        """Appends the valid records of keys whose newest record in the log is invalid, because the log cleaner keeps
        only the newest record of each key."""
        for partition, keys in invalid_keys.items():
            records = [record for key in sorted(keys) if (record := shards[partition].record(key)) is not None]
            while records:
                part, records = records[:_RECORDS_PER_APPEND], records[_RECORDS_PER_APPEND:]
                self._check(await self._writer.append({partition: part}, self._settings.claim_timeout_s))
                _logger.warning(
                    "the newest records of some keys were invalid; their valid records were appended again",
                    extra={"shard": partition, "keys": len(part)},
                )

    def _check(self, outcomes: Mapping[int, AppendOutcome]) -> None:
        """Advances the positions after an append whose records change no shard. Raises the error of a partition."""
        for partition, outcome in outcomes.items():
            self._positions[partition] = value_of(outcome) + 1

    # --- appends -------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        """Appends queued records until the task is stopped or the outcome of an append is unknown."""
        while self._claimed:
            if self.restores and time.monotonic() >= self._next_restore and not self.stopping.is_set():
                await self._restore_part()
            elif batches := self._next_batches():
                await self._append_and_report(batches)
            elif self.stopping.is_set():
                return
            elif self._refresh_due:
                await self._refresh_claim()
            else:
                self._wake.clear()
                await self._wake.wait()

    async def _append_and_report(self, batches: Sequence[WriteBatch]) -> None:
        started_at = time.monotonic()
        results = await self._append_in_time(batches)
        if any(isinstance(result.error, OutcomeUnknown) for result in results):
            self._claimed = False
        self._listener.on_append_ended(results, len(batches), time.monotonic() - started_at)
        for result in results:
            if isinstance(result.error, Fenced):
                raise result.error

    def _next_batches(self) -> Sequence[WriteBatch]:
        """Takes batches from the queue, up to the limits of an append."""
        batches: list[WriteBatch] = []
        records = size = 0
        while self._queue and records < self._settings.max_append_records and size < self._settings.max_append_bytes:
            batches.append(self._queue.popleft())
            records += batches[-1].count
            size += batches[-1].bytes
        return batches

    async def _append_in_time(self, batches: Sequence[WriteBatch]) -> list[AppendResult]:
        """Appends the batches whose deadline is far enough away, and rejects the others."""
        min_deadline = time.monotonic() + _MIN_TIME_SHARE * self._settings.commit_timeout_s
        expired = sum(batch.deadline < min_deadline for batch in batches)  # the oldest batches come first
        results = failed_results(batches[:expired], deadline_passed())
        return results + await self._append(batches[expired:]) if expired < len(batches) else results

    async def _append(self, batches: Sequence[WriteBatch]) -> list[AppendResult]:
        """Appends all batches. If the batch of a partition is too large, splits it, so that only the request with the
        record that is too large fails."""
        records = merge_records(batches)
        timeout_s = batches[0].deadline - time.monotonic()
        if timeout_s <= 0:
            return failed_results(batches, deadline_passed())
        try:
            outcomes = dict(await self._writer.append(records, timeout_s))
        except Exception as error:  # after an unexpected error the outcome is unknown, too
            why = str(error) if isinstance(error, OffsetMgrError) else f"{type(error).__name__}: {error}"
            return failed_results(batches, OutcomeUnknown("commit", why))
        results = []
        for partition in [p for p, outcome in outcomes.items() if isinstance(outcome, TooLarge)]:
            if parts := halves(batches, partition):
                del outcomes[partition]
                for part in parts:
                    results += await self._append([part])
        for partition, outcome in outcomes.items():
            if isinstance(outcome, int):
                self._positions[partition] = outcome + 1
        return results + append_results(batches, records, outcomes)

    # --- restore -------------------------------------------------------------------------------------

    def restore(self, partition: int) -> None:
        """Makes the task append all records of a shard again, because records of its log were deleted. If some were too
        large, this has an effect only after a pause."""
        if time.monotonic() >= self._retry_at.get(partition, 0.0):
            self.restores.setdefault(partition, None)
        self._wake.set()

    async def _restore_part(self) -> None:
        """Appends the next records of a shard again. Memory has the newest value of each key in the log, because no
        commit is being appended, and the queued commits follow. After an error the task begins with the first record
        again."""
        partition = next(iter(self.restores))
        try:
            if self.restores[partition] is None:
                self._positions |= await self._writer.claim(self._settings.claim_timeout_s)
                for one in [one for one, begun in self.restores.items() if begun is None]:
                    self.restores[one] = self._positions[one], self._listener.shards[one].records(), []
                    _logger.warning("records were deleted: a shard is appended again", extra={"shard": one})
            begun = self.restores[partition] = self.restores.pop(partition)  # the next part is that of another shard
            assert begun is not None
            first, records, too_large = begun
            part: list[EncodedRecord] = []
            size = 0
            while size < _RESTORE_BYTES and (record := next(records, None)) is not None:
                part.append(record)
                size += sum(map(len, filter(None, record)))
            if part:
                await self._append_part(partition, part, too_large)
            elif too_large:
                self.too_large[partition] = too_large
                self._retry_at[partition] = time.monotonic() + NON_RETRIABLE_BACKOFF_S
                del self.restores[partition]
            else:
                self._listener.on_restored(partition, first)
                await self._complete_claim()
                self.too_large.pop(partition, None)
                del self.restores[partition]
        except Fenced:
            raise
        except OffsetMgrError as error:
            self.restores[partition] = None
            self._claimed = self._writer.claimed and not isinstance(error, OutcomeUnknown)
            _logger.warning("a shard was not appended again", extra={"shard": partition, "why": str(error)})
        self._next_restore = time.monotonic() + self.restore_pause_s
        asyncio.get_running_loop().call_later(self.restore_pause_s, self._wake.set)

    async def _append_part(self, partition: int, part: Sequence[EncodedRecord], too_large: list[str]) -> None:
        """Appends records again. If they are too large together, divides them, so that only the record that is too
        large is left out, and adds its key to ``too_large``."""
        try:
            self._check(await self._writer.append({partition: part}, self._settings.claim_timeout_s))
            self._services.counters.restored_records += len(part)
        except TooLarge as error:
            if not (middle := len(part) // 2):
                key = self._listener.shards[partition].record_format.decode_key(part[0][0])
                too_large.append(", ".join(f"{name} {value}" for name, value in key._asdict().items()))
                _logger.error("a record cannot be appended again", extra={"shard": partition, "why": str(error)})
            for half in (part[:middle], part[middle:]) if middle else ():
                await self._append_part(partition, half, too_large)

    # --- refresh -------------------------------------------------------------------------------------

    def _refresh_later(self, delay_s: float) -> None:
        """Makes the task claim the shard group again after ``delay_s`` seconds."""

        def refresh() -> None:
            self._refresh_due = True
            self._wake.set()

        if self._refresh_timer is not None:
            self._refresh_timer.cancel()
        self._refresh_due = False
        self._refresh_timer = asyncio.get_running_loop().call_later(delay_s, refresh)

    async def _refresh_claim(self) -> None:
        """Claims the shard group again, so that the brokers keep the state of the producers. After a failure the next
        attempt follows soon, and the task continues to append if the earlier claim is still valid."""
        # This process has reported its losses since its first claim; a later owner does not report them again.
        deleted = self._services.log.deleted
        for partition in self._listener.lost.difference(self.restores, self.too_large):
            deleted.note_complete(partition, deleted.missing_below[partition])
        try:
            self._positions |= await self._writer.claim(self._settings.claim_timeout_s)
        except Fenced:
            raise
        except OffsetMgrError as error:
            _logger.warning(
                "the claim of a shard group was not refreshed",
                extra={"shard_group": self._shard_group, "why": str(error)},
            )
            self._claimed = self._writer.claimed
            self._refresh_later(min(_REFRESH_RETRY_S, self._settings.claim_refresh_s))
        else:
            self._refresh_later(self._settings.claim_refresh_s)

    async def _wait_until_stopped(self, timeout_s: float) -> bool:
        """Waits up to ``timeout_s`` seconds. Returns whether the task is stopped."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopped.wait(), timeout_s)
        return self.stopping.is_set()

    async def _in_thread(self, call: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._services.readers, call, *arguments)


def is_retriable(error: Exception) -> bool:
    """Returns whether a retry may succeed without a change by an administrator."""
    return isinstance(error, OffsetMgrError) and error.retriable


class ShardGroup:
    """All methods run on the loop.

    ``on_released`` is called when this process no longer owns the shard group, so that a standby may use its shards.
    ``on_changed`` is called after every change of the state, since the served shards may have changed.
    """

    def __init__(
        self,
        number: int,
        partitions: Sequence[int],
        services: RuntimeServices,
        *,
        on_changed: Callable[[ShardGroup], None],
        on_released: Callable[[ShardGroup], None],
    ) -> None:
        self.number = number
        self.partitions = partitions
        self.shards: dict[int, Shard] = {partition: services.new_shard(partition) for partition in partitions}
        """The shards by partition. During a load the shards belong to the loading thread."""
        self.log_id = ""
        """The `PartitionLog.generation` of the log from which the shards were read."""
        self.state = ShardState.CLOSED
        self.since = time.time()
        self.last_error = ""
        self.ownership_epoch = 0
        """The number of times that this process has started to own the shard group."""
        self.assigned = False
        """Whether ownership has assigned the shard group to this process and has not revoked it."""
        self.recovering = False
        """Whether the writer is determining the outcome of an append. Fetches are served during this time (see
        the module's docstring)."""
        self.current_at = -float("inf")
        """The last time at which the shards were known to contain every record of the log (`lease.boottime`)."""
        self._services = services
        self._settings = services.settings
        self._loop = asyncio.get_running_loop()
        self._counters = services.counters
        self._on_changed = on_changed
        self._on_released = on_released
        self._writer: ShardWriter | None = None
        self._diverged = False
        self.lost: set[int] = set()
        """The partitions whose offsets may be lost, because this process has owned them without records that were
        deleted."""
        self._ended: asyncio.Event = asyncio.Event()
        self._open_batch: WriteBatch | None = None
        self._in_flight: deque[WriteBatch] = deque()
        self._in_doubt: list[PendingRequest] = []
        self._timeout_timer: asyncio.TimerHandle | None = None
        self._waiters: list[tuple[WriteBatch | None, asyncio.Future[None]]] = []

    # --- ownership -----------------------------------------------------------------------------------

    @property
    def has_writer(self) -> bool:
        """Whether a writer claims, loads or serves the shard group."""
        return self._writer is not None

    @property
    def error_code(self) -> int:
        """The error code for requests; 0 while the shard group serves."""
        if self._writer is None and self.assigned:
            return ShardState.INITIAL.error_code
        return self.state.error_code

    @property
    def loading(self) -> bool:
        """Whether the shards belong to a loading thread."""
        return self._writer is not None and self._writer.loading

    @property
    def load_progress(self) -> tuple[int, int]:
        """The numbers of offsets that the current or last load has read and has to read."""
        loader = None if self._writer is None else self._writer.loader
        return (0, 0) if loader is None else loader.progress

    @property
    def restoring(self) -> Collection[int]:
        """The partitions whose shards are being appended again."""
        return () if self._writer is None else self._writer.restores

    @property
    def too_large(self) -> Mapping[int, Sequence[str]]:
        """See `ShardWriter.too_large`."""
        return {} if self._writer is None else self._writer.too_large

    async def finish_restore(self) -> None:
        """Waits until the shards are appended again, now almost without pauses, because their offsets are only in the
        memory of this process."""
        deadline = time.monotonic() + _RESTORE_LIMIT_S
        while self._writer is not None and self._writer.restores and time.monotonic() < deadline:
            self._writer.restore_pause_s = _RESTORE_PAUSE_S / 20
            await asyncio.sleep(self._writer.restore_pause_s)

    def start(self) -> None:
        """Starts a writer that claims and serves the shard group. Call it only after the writer of the previous
        lifecycle has ended."""
        assert self._writer is None
        if self.is_outdated():
            self.reset()
        self._resolve_in_doubt()
        self.state, self.last_error = ShardState.INITIAL, ""
        self._enter(ShardState.LOADING)
        self._ended.clear()
        self.ownership_epoch += 1
        self._writer = ShardWriter(self.number, self._services, self, self.shards, self.log_id)
        self._writer.start()

    def stop(self) -> None:
        """Stops serving. Requests in flight are completed."""
        if self._writer is not None and not self._writer.stopping.is_set():
            self.reject_requests()
            self._writer.stop()

    def reject_requests(self) -> None:
        """Rejects new requests. The writer continues."""
        if self.state is not ShardState.CLOSED:
            self._submit_batch()
            self._enter(ShardState.CLOSED)

    async def stopped(self) -> None:
        """Waits until the writer has ended, so that this process appends nothing any more."""
        if self._writer is not None:
            await self._ended.wait()

    def is_outdated(self) -> bool:
        """Returns whether the shards have been behind the log for so long that they may have missed tombstones."""
        return boottime() - self.current_at > self._settings.max_standby_age_s

    def reset(self) -> None:
        """Replaces the shards by empty ones."""
        self.shards = {partition: self._services.new_shard(partition) for partition in self.partitions}
        self.log_id = ""

    def _resolve_in_doubt(self) -> None:
        """Removes the results with an unknown outcome from the results in flight. If the records of such a result are
        in the log, the shards contain these records, or will contain them before the shards are served again."""
        for entry in self._in_doubt:
            entry.shard.on_discarded(entry.result)
        self._in_doubt.clear()

    def _enter(self, state: ShardState) -> None:
        self.state = self.state.transition_to(state)
        self.since = time.time()
        self._on_changed(self)

    # --- requests ------------------------------------------------------------------------------------

    def append(
        self, shard: Shard, result: CoordinatorResult[Any], error_response: Callable[[int], Any]
    ) -> asyncio.Future[Any]:
        """Appends the records of a result. The future completes with the response once the records are acknowledged, or
        with ``error_response(code)`` after an error. Call it only while the shard group serves."""
        future: asyncio.Future[Any] = self._loop.create_future()
        batch = self._open_batch
        if batch is None:
            batch = self._open_batch = WriteBatch(time.monotonic() + self._settings.commit_timeout_s)
            self._loop.call_soon(self._submit_batch)
            if self._writer is not None:
                self._writer.wake()  # The task then runs right after `_submit_batch`, not an iteration later.
        before = batch.count
        batch.add(shard, result, future, error_response)
        self._services.backpressure.add(batch.count - before)
        if batch.count >= self._settings.max_append_records or batch.bytes >= self._settings.max_append_bytes:
            self._submit_batch()
        return future

    def wait_for_writes(self) -> asyncio.Future[None]:
        """Returns a future that completes once all writes in flight have ended, even writes whose request has timed out
        or whose outcome is unknown. The future fails with `TimedOut` after the sum of the claim and commit timeouts."""
        done: asyncio.Future[None] = self._loop.create_future()
        newest = self._open_batch or (self._in_flight[-1] if self._in_flight else None)
        if newest is None and not self.recovering:
            done.set_result(None)
        else:
            self._waiters.append((newest, done))
            limit_s = self._settings.claim_timeout_s + self._settings.commit_timeout_s
            timer = self._loop.call_later(limit_s, _fail_waiter, done)
            done.add_done_callback(lambda _: timer.cancel())
        return done

    def _submit_batch(self) -> None:
        """Passes the open batch, which contains the requests of this iteration of the loop, to the writer."""
        batch, self._open_batch = self._open_batch, None
        if batch is None or self._writer is None:
            return
        self._in_flight.append(batch)
        if self._timeout_timer is None:
            self._timeout_timer = self._loop.call_later(self._settings.commit_timeout_s, self._answer_timed_out)
        self._writer.put(batch)

    def _answer_timed_out(self) -> None:
        """Answers requests whose deadline has passed. If the records of such a request are acknowledged later, the
        shards still apply them."""
        self._timeout_timer = None
        now = time.monotonic()
        for batch in self._in_flight:
            if batch.deadline > now:
                self._timeout_timer = self._loop.call_later(batch.deadline - now, self._answer_timed_out)
                break
            self._counters.commit_timeouts += answer_with_error(batch.requests(), ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _complete_waiters(self) -> None:
        """Completes the futures of the waiters whose writes have all ended."""
        for newest, done in self._waiters:
            if newest is None and not self.recovering and not done.done():
                done.set_result(None)
        self._waiters = [waiter for waiter in self._waiters if not waiter[1].done()]

    # --- calls of the writer -------------------------------------------------------------------------

    def on_loading(self) -> None:
        """Called when the writer starts to claim and load the shard group."""
        if self.state is ShardState.FAILED:
            self._enter(ShardState.LOADING)

    def on_retry(self, error: Exception) -> None:
        """The writer has failed to claim or load the shard group, and will retry it."""
        self.last_error, damaged = f"{type(error).__name__}: {error}", isinstance(error, CorruptRecords)
        self._counters.shard_group_failures += 1
        reason = "its log is damaged" if damaged else "it cannot be claimed or loaded"
        log = _logger.error if damaged else _logger.warning
        log(f"a shard group is not served: {reason}", extra={"shard_group": self.number, "why": self.last_error})
        if self.state is ShardState.LOADING:
            self._enter(ShardState.FAILED)
        elif damaged and self.state is ShardState.ACTIVE:
            # The read failed after an append with an unknown outcome, so memory may differ from the log.
            self._diverged = True
            self.stop()

    def on_loaded(self, shards: Mapping[int, Shard], generation: str, as_of: float) -> None:
        """Serves the shards after a complete load; they now belong to the loop. ``generation`` is the
        `PartitionLog.generation` of the log from which the shards were read. The shards contain every record that this
        log had at the time ``as_of`` (`lease.boottime`), which is after the claim."""
        self.shards = dict(shards)
        self.log_id = generation
        self.current_at = as_of
        if self.state is not ShardState.CLOSED:
            self.last_error = ""
            self._counters.loads += 1
            self._counters.load_seconds += time.time() - self.since
            self._enter(ShardState.ACTIVE)
            self._note_losses()
            for shard in self.shards.values():
                _log_unreadable(shard)

    def on_topic_recreated(self) -> None:
        """Loads the shards again, because the topic was recreated after the shards had been read."""
        _logger.warning(
            "the offsets topic was recreated: reloading the shard group", extra={"shard_group": self.number}
        )
        self._diverged = True
        self.lost.clear()
        self.stop()

    def note_generation(self, generation: str) -> None:
        """Stops serving the shards if they were read from a log other than the current one. ``generation`` is the
        identity of the current log (`PartitionLog.generation`)."""
        if self.state is ShardState.ACTIVE and generation not in ("", self.log_id):
            self.on_topic_recreated()

    def note_starts(self, starts: Mapping[int, int]) -> None:
        """Appends a shard again if its log, with these first offsets, may lack records of the shard."""
        for partition, shard in self.shards.items() if self._writer and not self._writer.loading else ():
            held_from = max(shard.held_from, self._services.log.deleted.complete_from[partition])
            if starts[partition] > held_from and self._writer:
                self._writer.restore(partition)

    def on_restored(self, partition: int, first: int) -> None:
        """Called after every record of a shard was appended again, from the offset ``first`` of the log on."""
        shard, deleted = self.shards[partition], self._services.log.deleted
        shard.held_from = first
        if deleted.is_missing(partition) or shard.unreadable or shard.unknown_keys:
            deleted.note_missing(partition, first)
            self._note_losses()
        else:
            deleted.note_complete(partition, first)

    def _note_losses(self) -> None:
        for partition in filter(self._services.log.deleted.is_missing, self.shards.keys() - self.lost):
            self.lost.add(partition)
            _logger.error("records of a shard %s", LOSS, extra={"shard": partition})

    def note_current(self) -> None:
        """Sets `current_at` to now if this process serves with a valid lease, since its shards then contain every
        record of the log. The method is called periodically, so if the process is suspended, `current_at` remains at a
        time before the suspension."""
        now = boottime()
        if self.state is ShardState.ACTIVE and self._services.ownership.valid():
            self.current_at = now

    def on_recovered(self) -> None:
        """Called after an append with an unknown outcome, once the writer has read the log up to its new claim and has
        replayed all records."""
        self._resolve_in_doubt()
        self.recovering = False
        self._complete_waiters()
        self.last_error = ""

    def on_append_ended(self, results: Sequence[AppendResult], batches: int, seconds: float) -> None:
        """Answers the requests of the oldest batches, whose append ended after ``seconds`` seconds. ``batches`` is the
        number of these batches, and ``results`` are their results. Those of one partition are in order."""
        counters = self._counters
        counters.appends += 1
        counters.append_seconds += seconds
        if any(result.error is None for result in results):
            self.last_error = ""
        try:
            for result in results:
                if result.error is None:
                    acknowledge(result)
                else:
                    self._on_append_failed(result)
        except Exception:
            _logger.exception(
                "shard state diverged from the log; reloading the shard group", extra={"shard_group": self.number}
            )
            self._diverged = True
            for result in results:
                answer_with_error(result.entries, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            self.stop()
        for _ in range(batches):
            self._on_batch_ended(self._in_flight.popleft())

    def on_finished(self, fenced: str) -> None:
        """Called when the writer ends and appends nothing any more. ``fenced`` is the text of the error if another
        writer claimed the shard group, and empty otherwise."""
        self._submit_batch()
        if (left := {*self.restoring, *self.too_large}) and not self._diverged:
            offsets = sum(self.shards[partition].offset_count for partition in left)
            why = "shards were revoked before their deleted records were appended again: offsets may be lost"
            _logger.error(why, extra={"shards": sorted(left), "offsets": offsets})
        self._writer = None
        self.recovering = False
        for batch in self._in_flight:
            for entry in batch.requests():
                entry.shard.on_discarded(entry.result)
            answer_with_error(batch.requests(), ErrorCode.NOT_COORDINATOR)
            self._on_batch_ended(batch)
        self._in_flight.clear()
        self._complete_waiters()
        if fenced:
            self.assigned = False
            self.last_error = fenced
            self._counters.fenced += 1
            _logger.warning("another manager claimed a shard group", extra={"shard_group": self.number, "why": fenced})
        if self.state is not ShardState.CLOSED:
            self._enter(ShardState.CLOSED)
        self._ended.set()
        if self._diverged:
            self._diverged = False
            self.reset()
        if fenced:
            self._services.ownership.on_fenced(self.number, fenced)
        self._on_released(self)

    def _on_append_failed(self, result: AppendResult) -> None:
        assert result.error is not None
        code = result.error.code or ErrorCode.COORDINATOR_NOT_AVAILABLE
        self._counters.errors[code] += answer_with_error(result.entries, code)
        self.last_error = str(result.error)
        if not isinstance(result.error, OutcomeUnknown):
            for entry in result.entries:
                entry.shard.on_discarded(entry.result)
        else:
            self.recovering = True
            self._counters.unknown_outcomes += 1
            self._in_doubt += result.entries
            _logger.warning(
                "the outcome of commits is unknown", extra={"shard_group": self.number, "why": self.last_error}
            )

    def _on_batch_ended(self, batch: WriteBatch) -> None:
        self._services.backpressure.remove(batch.count)
        if self._waiters:
            self._waiters = [(None if newest is batch else newest, done) for newest, done in self._waiters]
            self._complete_waiters()


def _log_unreadable(shard: Shard) -> None:
    """Logs the records that a load could not decode, because a client cannot distinguish an offset with an unreadable
    key from an absent offset."""
    versions = shard.unknown_versions
    if not versions and not shard.unreadable:
        return
    _logger.warning(
        "a shard has records that this version cannot read",
        extra={
            "shard": shard.partition,
            "keys_of_unknown_versions": {f"0x{version & 0xFFFF:04x}": n for version, n in sorted(versions.items())},
            "unreadable": shard.unreadable,
            "first": list(shard.problems[:_MAX_LISTED]),
            "meaning": "offsets in these records look absent to clients; run the newest version of the manager only",
        },
    )


def _fail_waiter(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_exception(TimedOut("commits in flight", "their outcome is still unknown"))
