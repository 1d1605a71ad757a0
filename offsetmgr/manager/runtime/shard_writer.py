"""`ShardWriter`: the task that claims, loads and appends to an owned shard group.

The task runs on the event loop of the manager and reports its results to the shard group (`WriterCallbacks`). Only
reads of the log run in threads, because they take long.

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
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, TypeVar

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.outcome import value_of
from offsetmgr.manager.lease import boottime
from offsetmgr.manager.log.base import AppendOutcome, Fenced, OutcomeUnknown, ShardGroupWriter, TooLarge
from offsetmgr.manager.runtime.services import RuntimeServices
from offsetmgr.manager.runtime.write_batch import (
    AppendResult,
    WriteBatch,
    append_results,
    deadline_passed,
    failed_results,
    halves,
    merge_records,
)
from offsetmgr.manager.runtime.writer_callbacks import WriterCallbacks
from offsetmgr.manager.shard import Shard
from offsetmgr.manager.shard_loader import ShardLoader, check_same_log
from offsetmgr.records.base import EncodedRecord

T = TypeVar("T")

NON_RETRIABLE_BACKOFF_S: Final = 60.0
"""The longest pause after an error that is not retriable. The pause is long because each attempt may read a whole topic
again."""
_LEASE_CHECK_INTERVAL_S: Final = 0.05
_MIN_TIME_SHARE: Final = 0.1
"""If less than this fraction of the commit timeout remains for a batch, the task does not try to append it."""
_REPLAY_PART: Final = 1000
_RECORDS_PER_APPEND: Final = 500
_REFRESH_RETRY_S: Final = 10.0
"""The pause after a failed refresh of the claim. It is short, because the claim must not expire."""

_logger: Final = logging.getLogger(__name__)


class ShardWriter:
    """Claims, loads and appends to one shard group. ``shards`` belong to the task until
    `WriterCallbacks.on_loaded`."""

    def __init__(
        self,
        shard_group: int,
        services: RuntimeServices,
        listener: WriterCallbacks,
        shards: Mapping[int, Shard],
        generation: str,
    ) -> None:
        self.load: ShardLoader | None = None
        self._shard_group = shard_group
        self._services = services
        self._log = services.log
        self._ownership = services.ownership
        self._settings = services.settings
        self._listener = listener
        self._shards: dict[int, Shard] | None = dict(shards)
        self._partitions = sorted(shards)
        self._generation = generation
        self._positions: dict[int, int] = {}
        self._queue: deque[WriteBatch] = deque()
        self._stopping = threading.Event()  # the threads that read the log check it, too
        self._stopped = asyncio.Event()
        self._wake = asyncio.Event()
        self._writer: ShardGroupWriter | None = None
        self._claimed = False
        self._refresh_due = False
        self._refresh_timer: asyncio.TimerHandle | None = None
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
        self._stopping.set()
        self._stopped.set()
        self._wake.set()

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

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
            if self._writer is not None:
                self._writer.close()
        self._listener.on_finished(fenced)

    async def _claim_and_serve(self) -> None:
        """Claims and serves the shard group until the task is stopped. After an append with an unknown outcome, the
        task claims the shard group again."""
        pause_s = self._settings.retry_pause_s
        while not self._stopping.is_set():
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
        while not self._ownership.valid():
            if await self._wait_until_stopped(_LEASE_CHECK_INTERVAL_S):
                return False
        self._listener.on_loading()
        if not self._discard_other_log(await self._in_thread(self._log.generation, self._settings.claim_timeout_s)):
            return False
        if self._writer is None:
            self._writer = self._log.writer(self._shard_group)
        ends = await self._writer.claim(self._settings.claim_timeout_s)
        # The lease must be checked after the claim: see `ownership_protocol`.
        if not self._ownership.valid() or self._stopping.is_set():
            return False
        self._refresh_later(self._settings.claim_refresh_s)
        done = await (self._read_tail(ends) if self._shards is None else self._load_shards(self._shards, ends))
        self._claimed = done
        return done

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
        if not await self._in_thread(self._read_all, shards, ends):
            return False
        self._positions = {partition: shard.position for partition, shard in shards.items()}
        await self._complete_claim()
        if self.load is not None:
            await self._append_again(self.load.invalid_keys, lambda partition, key: shards[partition].record(key))
        self._shards = None
        self._listener.on_loaded(shards, self._generation, as_of)
        return True

    def _read_all(self, shards: dict[int, Shard], ends: Mapping[int, int]) -> bool:
        """Reads the missing part of the log. Runs in a thread."""

        def begin(load: ShardLoader) -> None:
            self.load = load

        return self._services.load(shards, ends, self._generation, self._stopping, begin)

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
        await self._append_again(invalid_keys, self._listener.record)
        self._listener.on_recovered()
        return True

    def _read_range(
        self, ends: Mapping[int, int], newest: Mapping[int, dict[bytes, bytes | None]]
    ) -> tuple[Mapping[int, int], Mapping[int, AbstractSet[bytes]]]:
        """Reads the log up to ``ends``. Returns the positions and the `LogReader.invalid_keys`. Runs in a thread."""
        if not ends:
            return {}, {}
        starts = {partition: self._positions[partition] for partition in ends}
        reader = self._log.reader()
        try:
            reached = reader.load(starts, ends, newest, stopped=self._stopping.is_set)
            invalid_keys = reader.invalid_keys
        finally:
            reader.close()
        check_same_log(self._log, self._generation, self._settings.claim_timeout_s)
        return reached, invalid_keys

    async def _replay(self, partition: int, newest: Mapping[bytes, bytes | None], position: int) -> None:
        """Replays the records in parts, so that the loop can do other work between two parts. The last part advances
        the shard's position."""
        items = list(newest.items())
        while len(items) > _REPLAY_PART:
            part, items = dict(items[:_REPLAY_PART]), items[_REPLAY_PART:]
            self._listener.on_replay(partition, part, self._positions[partition])
            await asyncio.sleep(0)
        self._listener.on_replay(partition, dict(items), position)
        self._positions[partition] = position

    async def _complete_claim(self) -> None:
        assert self._writer is not None
        self._check(await self._writer.complete_claim(self._settings.claim_timeout_s))

    async def _append_again(
        self,
        invalid_keys: Mapping[int, AbstractSet[bytes]],
        record_of: Callable[[int, bytes], EncodedRecord | None],
    ) -> None:
        """Appends the valid records of keys whose newest record in the log is invalid, because the log cleaner keeps
        only the newest record of each key."""
        assert self._writer is not None
        for partition, keys in invalid_keys.items():
            records = [record for key in sorted(keys) if (record := record_of(partition, key)) is not None]
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
            batches = self._next_batches()
            if batches:
                await self._append_and_report(batches)
            elif self._stopping.is_set():
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
        assert self._writer is not None
        records = merge_records(batches)
        timeout_s = batches[0].deadline - time.monotonic()
        if timeout_s <= 0:
            return failed_results(batches, deadline_passed())
        try:
            outcomes = dict(await self._writer.append(records, timeout_s))
        except Exception as error:  # after an unexpected error the outcome is unknown, too
            return failed_results(batches, OutcomeUnknown("commit", _text(error)))
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
        assert self._writer is not None
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
        return self._stopping.is_set()

    async def _in_thread(self, call: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._services.readers, call, *arguments)


def is_retriable(error: Exception) -> bool:
    """Returns whether a retry may succeed without a change by an administrator."""
    return isinstance(error, OffsetMgrError) and error.retriable


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, OffsetMgrError) else f"{type(error).__name__}: {error}"
