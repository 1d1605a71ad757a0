"""`ShardGroup`: a shard group on the event loop, owned or not: its shards, its requests in flight, and their
waiters."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.core.errors import ServerError, TimedOut
from offsetmgr.manager.lease import boottime
from offsetmgr.manager.lifecycle import Lifecycle, ShardState
from offsetmgr.manager.log.base import CorruptRecords
from offsetmgr.manager.results import CoordinatorResult
from offsetmgr.manager.runtime.services import RuntimeServices
from offsetmgr.manager.runtime.shard_writer import ShardWriterThread
from offsetmgr.manager.runtime.write_batch import AppendResult, PendingRequest, WriteBatch
from offsetmgr.manager.shard import Shard

_logger: Final = logging.getLogger(__name__)
_NAMED: Final = 5
"""The maximum number of unreadable records that the log names."""
_CUT: Final = "was the offsets topic truncated, or recreated? then restart the managers"


class ShardGroup:
    """All methods run on the loop.

    ``released`` is called when this process does not own the shard group any more and its shards may be followed as
    standbys; ``changed`` with every change of the served shards.
    """

    def __init__(
        self,
        number: int,
        partitions: Sequence[int],
        services: RuntimeServices,
        *,
        changed: Callable[[ShardGroup], None],
        released: Callable[[ShardGroup], None],
    ) -> None:
        self.number = number
        self.partitions = partitions
        self.shards: dict[int, Shard] = {partition: services.new_shard(partition) for partition in partitions}
        """The shards as far as the loop knows; during a load they belong to the loading thread."""
        self.generation = ""
        """The `PartitionLog.generation` of the log from which its shards were read."""
        self.life = Lifecycle(ShardState.CLOSED)
        self.since = time.time()
        self.last_error = ""
        self.lives = 0
        """The number of times it was taken."""
        self.wanted = False
        """Whether ownership has assigned it and not revoked it."""
        self.recovering = False
        """Whether the outcome of an append is being determined; fetches are answered meanwhile (see `shard_writer`)."""
        self.current_at = -float("inf")
        """When its shards were last known to contain everything in the log; seconds of `lease.boottime`."""
        self._services = services
        self._config = services.config
        self._loop = asyncio.get_running_loop()
        self._counters = services.counters
        self._pressure = services.pressure
        self._changed = changed
        self._released = released
        self._thread: ShardWriterThread | None = None
        self._spoilt = False
        self._ended: asyncio.Event = asyncio.Event()
        self._open: WriteBatch | None = None
        self._outstanding: deque[WriteBatch] = deque()
        self._doubtful: list[PendingRequest] = []
        self._overdue: asyncio.TimerHandle | None = None
        self._waiting: list[tuple[WriteBatch | None, asyncio.Future[None]]] = []

    # --- ownership -----------------------------------------------------------------------------------

    @property
    def owned(self) -> bool:
        """Returns whether a thread claims, loads or serves it."""
        return self._thread is not None

    @property
    def refusal(self) -> int:
        """Returns the error code for requests; 0 while it serves."""
        if self._thread is None and self.wanted:
            return Lifecycle().error_code
        return self.life.error_code

    @property
    def loading(self) -> bool:
        """Returns whether its shards belong to a loading thread."""
        return self._thread is not None and self._thread.loading

    @property
    def load_progress(self) -> tuple[int, int]:
        """Returns the offsets read and to be read by the current or the last load."""
        load = None if self._thread is None else self._thread.load
        return (0, 0) if load is None else (load.offsets_read, load.offsets_to_read)

    def start(self) -> None:
        """Claims and serves it, in a new lifecycle. This must wait for the thread of the last one."""
        assert self._thread is None
        if self.too_old(boottime()):
            self.reset()
        self._resolve_in_doubt()
        self.life, self.last_error = Lifecycle(), ""
        self._enter(ShardState.LOADING)
        self._ended.clear()
        self.lives += 1
        self._thread = ShardWriterThread(self.number, self._services, self, self.shards, self.generation)
        self._thread.start()

    def stop(self) -> None:
        """Stops serving; requests in flight still end."""
        if self._thread is not None and not self._thread.stopping:
            self._seal()
            self._enter(ShardState.CLOSED, "given up")
            self._thread.stop()

    async def stopped(self) -> None:
        """Returns once its thread has ended, and this process appends nothing any more."""
        if self._thread is not None:
            await self._ended.wait()

    def too_old(self, now: float) -> bool:
        """Returns whether the shards lagged for so long that they may have missed deletions."""
        return now - self.current_at > self._config.most_standby_age

    def reset(self) -> None:
        """Starts again with empty shards."""
        self.shards = {partition: self._services.new_shard(partition) for partition in self.partitions}
        self.generation = ""

    def _resolve_in_doubt(self) -> None:
        """Ends the in-doubt results: they are in the shards if they are in the log (or will be before the shards are
        served again)."""
        for entry in self._doubtful:
            entry.shard.on_discarded(entry.prepared)
        self._doubtful.clear()

    def _enter(self, state: ShardState, why: str = "") -> None:
        self.life = self.life.to(state, why)
        self.since = time.time()
        self._changed(self)

    # --- requests ------------------------------------------------------------------------------------

    def append(
        self, shard: Shard, prepared: CoordinatorResult[Any], refuse: Callable[[int], Any]
    ) -> asyncio.Future[Any]:
        """Appends a result; the future's result is the response once it is acknowledged, or the result of ``refuse``
        for an error code. Only while the shard group serves."""
        answer: asyncio.Future[Any] = self._loop.create_future()
        batch = self._open
        if batch is None:
            batch = self._open = WriteBatch(time.monotonic() + self._config.commit_timeout)
            self._loop.call_soon(self._seal)
        before = batch.count
        batch.add(shard, prepared, answer, refuse)
        self._pressure.add(batch.count - before)
        if batch.count >= self._config.transaction_records or batch.bytes >= self._config.transaction_bytes:
            self._seal()
        return answer

    def settled(self) -> asyncio.Future[None]:
        """Returns once everything in flight has ended, so that nothing can take effect any more: neither a timeout nor
        an unknown outcome counts as ended. The result is `TimedOut` if that takes too long."""
        done: asyncio.Future[None] = self._loop.create_future()
        newest = self._open or (self._outstanding[-1] if self._outstanding else None)
        if newest is None and not self.recovering:
            done.set_result(None)
        else:
            self._waiting.append((newest, done))
            bound = self._loop.call_later(self._config.claim_timeout + self._config.commit_timeout, _give_up, done)
            done.add_done_callback(lambda _: bound.cancel())
        return done

    def _seal(self) -> None:
        """Hands everything of this iteration of the loop to the thread."""
        batch, self._open = self._open, None
        if batch is None or self._thread is None:
            return
        self._outstanding.append(batch)
        if self._overdue is None:
            self._overdue = self._loop.call_later(self._config.commit_timeout, self._answer_overdue)
        self._thread.put(batch)

    def _answer_overdue(self) -> None:
        """Answers requests whose time is over; if they are acknowledged later, memory follows the log."""
        self._overdue = None
        now = time.monotonic()
        for batch in self._outstanding:
            if batch.deadline > now:
                self._overdue = self._loop.call_later(batch.deadline - now, self._answer_overdue)
                break
            self._counters.timeouts += _refuse(batch.entries, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _release_waiting(self) -> None:
        """Wakes waiters without anything left to wait for."""
        still = []
        for newest, done in self._waiting:
            if done.done():
                continue
            if newest is not None or self.recovering:
                still.append((newest, done))
            else:
                done.set_result(None)
        self._waiting = still

    # --- calls of the thread -------------------------------------------------------------------------

    def on_loading(self) -> None:
        if self.life.state is ShardState.FAILED:
            self._enter(ShardState.LOADING)

    def on_retry(self, error: Exception) -> None:
        """See `WriterCallbacks.on_retry`."""
        self.last_error, damaged = f"{type(error).__name__}: {error}", isinstance(error, CorruptRecords)
        self._counters.failures += 1
        what = "a shard group is not served: its log is damaged" if damaged else "a shard group cannot be taken or read"
        tell = _logger.error if damaged else _logger.warning
        tell(what, extra={"shard_group": self.number, "why": self.last_error})
        if self.life.state is ShardState.LOADING:
            self._enter(ShardState.FAILED, self.last_error)
        elif (
            damaged and self.life.state is ShardState.ACTIVE
        ):  # after an unknown outcome: memory may differ from the log
            self._spoilt = True
            self.stop()

    def on_loaded(self, shards: Mapping[int, Shard], generation: str, as_of: float) -> None:
        """See `WriterCallbacks.on_loaded`."""
        self.shards = dict(shards)
        self.generation = generation
        self.current_at = as_of
        if self.life.state is not ShardState.CLOSED:
            self.last_error = ""
            self._counters.loads += 1
            self._counters.load_seconds += time.time() - self.since
            self._enter(ShardState.ACTIVE)
            for shard in self.shards.values():
                _tell_unread(shard)

    def on_topic_recreated(self) -> None:
        """See `WriterCallbacks.on_topic_recreated`."""
        _logger.warning(
            "the offsets topic was recreated: reloading the shard group", extra={"shard_group": self.number}
        )
        self._spoilt = True
        self.stop()

    def note_generation(self, generation: str) -> None:
        """Records the current identity of the log (`PartitionLog.generation`); shards of another log are not served any
        more."""
        if self.life.state is ShardState.ACTIVE and generation not in ("", self.generation):
            self.on_topic_recreated()

    def note_current(self) -> None:
        """Records that an owner with a valid lease has everything in the log: called periodically, so that after a
        suspension the time is known since when that may be wrong."""
        now = boottime()
        if self.life.state is ShardState.ACTIVE and self._services.ownership.valid():
            self.current_at = now

    def on_replay(self, partition: int, part: Mapping[bytes, bytes | None], position: int) -> None:
        """See `WriterCallbacks.on_replay`."""
        self.shards[partition].replay_newest(part, position)

    def on_recovered(self) -> None:
        """See `WriterCallbacks.on_recovered`."""
        self._resolve_in_doubt()
        self.recovering = False
        self._release_waiting()
        self.last_error = ""

    def on_ended(self, outcomes: Sequence[AppendResult], batches: int, seconds: float) -> None:
        """See `WriterCallbacks.on_ended`."""
        counters = self._counters
        counters.transactions += 1
        counters.transaction_seconds += seconds
        if any(outcome.error is None for outcome in outcomes):
            self.last_error = ""
        try:
            for outcome in outcomes:
                if outcome.error is None:
                    _acknowledge(outcome)
                else:
                    self._failed(outcome)
        except Exception:
            _logger.exception(
                "shard state diverged from the log; reloading the shard group", extra={"shard_group": self.number}
            )
            self._spoilt = True
            for outcome in outcomes:
                _refuse(outcome.entries, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            self.stop()
        for _ in range(batches):
            self._end(self._outstanding.popleft())

    def on_finished(self, fenced: str) -> None:
        """See `WriterCallbacks.on_finished`."""
        self._seal()
        self._thread = None
        self.recovering = False
        for batch in self._outstanding:
            for entry in batch.entries:
                entry.shard.on_discarded(entry.prepared)
            _refuse(batch.entries, ErrorCode.NOT_COORDINATOR)
            self._end(batch)
        self._outstanding.clear()
        self._release_waiting()
        if fenced:
            self.wanted = False
            self.last_error = fenced
            self._counters.fenced += 1
            _logger.warning("another manager claimed a shard group", extra={"shard_group": self.number, "why": fenced})
        if self.life.state is not ShardState.CLOSED:
            self._enter(ShardState.CLOSED, fenced)
        self._ended.set()
        if self._spoilt:
            self._spoilt = False
            self.reset()
        if fenced:
            self._services.ownership.lost(self.number, fenced)
        self._released(self)

    def _failed(self, outcome: AppendResult) -> None:
        assert outcome.error is not None
        code = outcome.error.code or ErrorCode.COORDINATOR_NOT_AVAILABLE
        self._counters.refusals[code] += _refuse(outcome.entries, code)
        self.last_error = str(outcome.error)
        if outcome.certain:
            for entry in outcome.entries:
                entry.shard.on_discarded(entry.prepared)
        else:
            self.recovering = True
            self._counters.unknown_outcomes += 1
            self._doubtful += outcome.entries
            _logger.warning(
                "the outcome of commits is unknown", extra={"shard_group": self.number, "why": self.last_error}
            )

    def _end(self, batch: WriteBatch) -> None:
        self._pressure.remove(batch.count)
        if self._waiting:
            self._waiting = [(None if newest is batch else newest, done) for newest, done in self._waiting]
            self._release_waiting()


def _acknowledge(outcome: AppendResult) -> None:
    firsts = outcome.firsts
    for shard, prepared, answer, _, at in outcome.entries:
        first = firsts[shard.partition] + at
        if first < shard.position:  # replay would skip it as known, and no fetch would see it
            raise ServerError(f"partition {shard.partition}", f"written at {first}, read up to {shard.position}", _CUT)
        shard.acknowledged(prepared, first)
        if not answer.done():
            answer.set_result(prepared.response)


def _tell_unread(shard: Shard) -> None:
    """Logs the records that a load could not decode: a client cannot tell offsets with an unreadable key from absent
    ones."""
    versions = shard.unknown_versions
    if not versions and not shard.unreadable:
        return
    _logger.warning(
        "a shard has records that this version cannot read",
        extra={
            "shard": shard.partition,
            "keys_of_unknown_versions": {f"0x{version & 0xFFFF:04x}": n for version, n in sorted(versions.items())},
            "unreadable": shard.unreadable,
            "first": list(shard.problems[:_NAMED]),
            "meaning": "groups may look as if they had committed nothing; start no manager older than the newest",
        },
    )


def _give_up(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_exception(TimedOut("commits in flight", "their outcome is not known yet"))


def _refuse(entries: Sequence[PendingRequest], code: int) -> int:
    """Answers requests that were not answered yet; returns their number."""
    waiting = [entry for entry in entries if not entry.answer.done()]
    for entry in waiting:
        entry.answer.set_result(entry.refuse(code))
    return len(waiting)
