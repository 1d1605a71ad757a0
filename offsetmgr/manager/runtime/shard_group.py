"""`ShardGroup`: one shard group on the event loop, with its shards, its requests in flight and their waiters."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.core.errors import TimedOut
from offsetmgr.manager.lease import boottime
from offsetmgr.manager.lifecycle import Lifecycle, ShardState
from offsetmgr.manager.log.base import CorruptRecords
from offsetmgr.manager.results import CoordinatorResult
from offsetmgr.manager.runtime.services import RuntimeServices
from offsetmgr.manager.runtime.shard_writer import ShardWriter
from offsetmgr.manager.runtime.write_batch import (
    AppendResult,
    PendingRequest,
    WriteBatch,
    acknowledge,
    answer_with_error,
)
from offsetmgr.manager.shard import Shard
from offsetmgr.records.base import EncodedRecord

_logger: Final = logging.getLogger(__name__)
_MAX_LISTED: Final = 5
"""The maximum number of unreadable records that a log message lists."""


class ShardGroup:
    """All methods run on the loop.

    ``on_released`` is called when this process no longer owns the shard group, so that a standby may use its shards.
    ``on_changed`` is called after every change of the lifecycle, since the served shards may have changed.
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
        self.lifecycle = Lifecycle(ShardState.CLOSED)
        self.since = time.time()
        self.last_error = ""
        self.ownership_epoch = 0
        """The number of times that this process has started to own the shard group."""
        self.assigned = False
        """Whether ownership has assigned the shard group to this process and has not revoked it."""
        self.recovering = False
        """Whether the writer is determining the outcome of an append. Fetches are served during this time (see
        `shard_writer`)."""
        self.current_at = -float("inf")
        """The last time at which the shards were known to contain every record of the log (`lease.boottime`)."""
        self._services = services
        self._settings = services.settings
        self._loop = asyncio.get_running_loop()
        self._counters = services.counters
        self._backpressure = services.backpressure
        self._on_changed = on_changed
        self._on_released = on_released
        self._writer: ShardWriter | None = None
        self._diverged = False
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
            return Lifecycle().error_code
        return self.lifecycle.error_code

    @property
    def loading(self) -> bool:
        """Whether the shards belong to a loading thread."""
        return self._writer is not None and self._writer.loading

    @property
    def load_progress(self) -> tuple[int, int]:
        """The numbers of offsets that the current or last load has read and has to read."""
        load = None if self._writer is None else self._writer.load
        return (0, 0) if load is None else (load.offsets_read, load.offsets_to_read)

    def start(self) -> None:
        """Starts a writer that claims and serves the shard group. Call it only after the writer of the previous
        lifecycle has ended."""
        assert self._writer is None
        if self.is_outdated(boottime()):
            self.reset()
        self._resolve_in_doubt()
        self.lifecycle, self.last_error = Lifecycle(), ""
        self._enter(ShardState.LOADING)
        self._ended.clear()
        self.ownership_epoch += 1
        self._writer = ShardWriter(self.number, self._services, self, self.shards, self.log_id)
        self._writer.start()

    def stop(self) -> None:
        """Stops serving. Requests in flight are completed."""
        if self._writer is not None and not self._writer.stopping:
            self._submit_batch()
            self._enter(ShardState.CLOSED, "revoked")
            self._writer.stop()

    async def stopped(self) -> None:
        """Waits until the writer has ended, so that this process appends nothing any more."""
        if self._writer is not None:
            await self._ended.wait()

    def is_outdated(self, now: float) -> bool:
        """Returns whether the shards have been behind the log for so long that they may have missed tombstones."""
        return now - self.current_at > self._settings.max_standby_age_s

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

    def _enter(self, state: ShardState, why: str = "") -> None:
        self.lifecycle = self.lifecycle.transition_to(state, why)
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
        self._backpressure.add(batch.count - before)
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
        remaining = []
        for newest, done in self._waiters:
            if done.done():
                continue
            if newest is not None or self.recovering:
                remaining.append((newest, done))
            else:
                done.set_result(None)
        self._waiters = remaining

    # --- calls of the writer -------------------------------------------------------------------------

    def on_loading(self) -> None:
        if self.lifecycle.state is ShardState.FAILED:
            self._enter(ShardState.LOADING)

    def on_retry(self, error: Exception) -> None:
        """See `WriterCallbacks.on_retry`."""
        self.last_error, damaged = f"{type(error).__name__}: {error}", isinstance(error, CorruptRecords)
        self._counters.shard_group_failures += 1
        reason = "its log is damaged" if damaged else "it cannot be claimed or loaded"
        log = _logger.error if damaged else _logger.warning
        log(f"a shard group is not served: {reason}", extra={"shard_group": self.number, "why": self.last_error})
        if self.lifecycle.state is ShardState.LOADING:
            self._enter(ShardState.FAILED, self.last_error)
        elif damaged and self.lifecycle.state is ShardState.ACTIVE:
            # The read failed after an append with an unknown outcome, so memory may differ from the log.
            self._diverged = True
            self.stop()

    def on_loaded(self, shards: Mapping[int, Shard], generation: str, as_of: float) -> None:
        """See `WriterCallbacks.on_loaded`."""
        self.shards = dict(shards)
        self.log_id = generation
        self.current_at = as_of
        if self.lifecycle.state is not ShardState.CLOSED:
            self.last_error = ""
            self._counters.loads += 1
            self._counters.load_seconds += time.time() - self.since
            self._enter(ShardState.ACTIVE)
            for shard in self.shards.values():
                _log_unreadable(shard)

    def on_topic_recreated(self) -> None:
        """See `WriterCallbacks.on_topic_recreated`."""
        _logger.warning(
            "the offsets topic was recreated: reloading the shard group", extra={"shard_group": self.number}
        )
        self._diverged = True
        self.stop()

    def note_generation(self, generation: str) -> None:
        """Stops serving the shards if they were read from a log other than the current one. ``generation`` is the
        identity of the current log (`PartitionLog.generation`)."""
        if self.lifecycle.state is ShardState.ACTIVE and generation not in ("", self.log_id):
            self.on_topic_recreated()

    def note_current(self) -> None:
        """Sets `current_at` to now if this process serves with a valid lease, since its shards then contain every
        record of the log. The method is called periodically, so if the process is suspended, `current_at` remains at a
        time before the suspension."""
        now = boottime()
        if self.lifecycle.state is ShardState.ACTIVE and self._services.ownership.valid():
            self.current_at = now

    def on_replay(self, partition: int, part: Mapping[bytes, bytes | None], position: int) -> None:
        """See `WriterCallbacks.on_replay`."""
        self.shards[partition].replay_newest(part, position)

    def record(self, partition: int, key: bytes) -> EncodedRecord | None:
        """See `WriterCallbacks.record`."""
        return self.shards[partition].record(key)

    def on_recovered(self) -> None:
        """See `WriterCallbacks.on_recovered`."""
        self._resolve_in_doubt()
        self.recovering = False
        self._complete_waiters()
        self.last_error = ""

    def on_append_ended(self, results: Sequence[AppendResult], batches: int, seconds: float) -> None:
        """See `WriterCallbacks.on_append_ended`."""
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
        """See `WriterCallbacks.on_finished`."""
        self._submit_batch()
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
        if self.lifecycle.state is not ShardState.CLOSED:
            self._enter(ShardState.CLOSED, fenced)
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
        if result.certain:
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
        self._backpressure.remove(batch.count)
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
