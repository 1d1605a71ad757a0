"""Writes values to the secondary of a dual store after the primary has accepted these values, and retries failed writes
(data rule "dual commit: Kafka first").

The state is read and changed only on the event loop. The store's own threads (`store_executor`) write one stream of
edits at a time. Only the newest value of a partition is kept, so after a delay only that value is written.

Overwriting: a value that is written at once may overwrite any value, because the last commit wins, as with the old
consumers. A value is *late* if it is written after a delay, because the secondary was unavailable or an earlier attempt
failed. A late value is written only if the primary still holds it. It must not undo commits that other clients made in
the meantime, so it may only raise the secondary's value. There is one exception: a late rewind (a value below the last
known value of the secondary) is written if the secondary still has that known value. If no value of the secondary is
known, a late value may overwrite any value.

Ordering contract: the caller passes the writes of a group to `enqueue` in the order in which the primary accepted them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from offsetmgr.core.batches import by_key
from offsetmgr.core.errors import Conflict, OffsetMgrError, RewindRefused, UsageError
from offsetmgr.core.evaluation import same_value
from offsetmgr.core.model import Absent, Committed, Offset, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, ChangeOutcome, ChangeOutcomes, GroupEdit
from offsetmgr.core.retry import Backoff
from offsetmgr.server.store_backends.store_executor import MAX_CHANGES_PER_STREAM, StoreExecutor
from offsetmgr.stores.dual_policy import SUPERSEDED, is_superseded, outcome_of, secondary_change

_log = logging.getLogger(__name__)

_BACKOFF: Final = Backoff(0.1, 2.0)
_PERMANENT_ERROR_PAUSE_S: Final = 30.0
"""Seconds before a partition with a permanent error (not allowed, unreadable) is tried again."""
_LOG_EVERY_S: Final = 30.0
_FLUSH_POLL_S: Final = 0.02
"""Seconds between two checks whether all pending values are written."""
_MAX_KNOWN_VALUES: Final = 200_000
"""Maximum number of partitions whose value in the secondary is cached."""

_PartitionKey: TypeAlias = tuple[str, TopicPartition]


@dataclass(slots=True, eq=False)
class _PendingWrite:
    """The new value of one partition (None for a deletion), and the commits that wait for the write of this value."""

    after: OffsetAndMetadata | None
    late: bool
    """Whether an attempt has failed, or the secondary was unavailable when the value arrived."""
    waiting: list[_Waiter] = field(default_factory=list)
    not_before: float = 0.0


class _Waiter:
    """Completes a future when the last of several partitions has been written, or after a timeout."""

    __slots__ = ("done", "left")

    def __init__(self, partitions: int, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        self.left = partitions
        self.done: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(wait_s, self.release)
        self.done.add_done_callback(lambda _: timer.cancel())

    def on_written(self) -> None:
        self.left -= 1
        if not self.left:
            self.release()

    def release(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


class _Attempt(NamedTuple):
    """The write of one partition in a stream of edits."""

    group: str
    tp: TopicPartition
    pending: _PendingWrite
    change: Change


class Secondary:
    """The queue of values for the secondary. Use it on the event loop; the caller closes ``executor``."""

    def __init__(
        self,
        executor: StoreExecutor,
        primary: StoreExecutor,
        may_change: Callable[[str, TopicPartition], bool],
        *,
        wait_s: float,
        keeps_epochs: bool,
    ) -> None:
        """``wait_s``: maximum time in seconds for which a commit waits for the secondary. After one commit has waited
        for this time, no commit waits for the secondary until a write to the secondary succeeds. ``keeps_epochs``:
        whether the primary's leader epochs are valid for the secondary's logs. If they are not valid, no leader epochs
        are written. ``primary`` is read again before a late value is written. ``may_change(group, partition)``:
        whether the primary may hold a newer value that has not been passed to `enqueue` yet."""
        self._executor = executor
        self._primary = primary
        self._may_change = may_change
        self._wait_s = wait_s
        self._keeps_epochs = keeps_epochs
        self._pending_writes: dict[str, dict[TopicPartition, _PendingWrite]] = {}
        self._known_values: dict[_PartitionKey, int | None] = {}
        self._attempted: dict[_PartitionKey, set[int | None]] = {}
        self._running: asyncio.Task[None] | None = None
        self._failed_streams = 0
        """Number of consecutive streams with a retriable error."""
        self._timer: asyncio.TimerHandle | None = None
        self._logged_at = self._drop_logged_at = -_LOG_EVERY_S
        self.failing = False
        """Whether commits currently do not wait for the secondary."""
        self._closed = False
        self.pending = 0
        """Number of partitions whose newest value the secondary has not received yet."""
        self.failures = 0
        """Number of failed attempts."""
        self.dropped = 0
        """Number of discarded values. A value is discarded if another client has written a different value to the
        secondary in the meantime, or if the secondary cannot hold the value."""

    # --- called by the backend -----------------------------------------------------------------------

    def enqueue(
        self, group: str, values: Mapping[TopicPartition, OffsetAndMetadata | None]
    ) -> asyncio.Future[None] | None:
        """Queues values that the primary accepted. Returns the future that the commit must wait for; None if the commit
        need not wait."""
        waiter = None if self.failing or not values else _Waiter(len(values), self._wait_s)
        if waiter is not None:
            waiter.done.add_done_callback(lambda _: self._on_wait_ended(waiter))
        writes = self._pending_writes.setdefault(group, {})
        for tp, value in values.items():
            after = value if value is None or self._keeps_epochs else value._replace(leader_epoch=None)
            before = writes.get(tp)
            pending = writes[tp] = _PendingWrite(after, self.failing)
            if before is None:
                self.pending += 1
            else:  # the commits that wait for the replaced value now wait for the new value
                pending.waiting = before.waiting
            if waiter is not None:
                pending.waiting.append(waiter)
        if not writes:
            del self._pending_writes[group]
        self._start_if_idle()
        return waiter.done if waiter is not None else None

    def rewinding(self, group: str) -> frozenset[TopicPartition]:
        """The partitions whose value in the secondary may be too high, because the pending value is a deletion or may
        be lower than the secondary's value."""
        return frozenset(
            tp
            for tp, pending in self._pending_writes.get(group, {}).items()
            if not self._moves_forward((group, tp), pending.after)
        )

    def pending_partitions(self, group: str) -> frozenset[TopicPartition]:
        """The partitions of the group with a pending value."""
        return frozenset(self._pending_writes.get(group, ()))

    def remember(self, key: _PartitionKey, offset: int | None) -> None:
        """Records the value of a partition in the secondary."""
        self._attempted.pop(key, None)
        self._known_values.pop(key, None)
        self._known_values[key] = offset
        if len(self._known_values) > _MAX_KNOWN_VALUES:
            del self._known_values[next(iter(self._known_values))]

    async def flush(self, seconds: float) -> int:
        """Waits at most ``seconds`` until all pending values are written; returns the number of partitions that are
        still pending."""
        until = asyncio.get_running_loop().time() + seconds
        while self.pending and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(_FLUSH_POLL_S)
        return self.pending

    def close(self) -> None:
        """Starts no further attempts, and releases the waiting commits."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._release_all_waiters()

    def _on_wait_ended(self, waiter: _Waiter) -> None:
        if waiter.left:
            self.failing = True

    # --- attempts ------------------------------------------------------------------------------------

    def _start_if_idle(self) -> None:
        if self._running is None and self._timer is None and self._pending_writes and not self._closed:
            self._running = asyncio.get_running_loop().create_task(self._run())

    def _resume(self) -> None:
        self._timer = None
        self._start_if_idle()

    async def _run(self) -> None:
        await asyncio.sleep(0)
        pause: float | None = None
        while pause is None and not self._closed:
            attempts = self._attempts()
            if not attempts:
                break
            try:
                if not (attempts := await self._still_current(attempts)):
                    continue
                changes = by_key((attempt.group, (attempt.tp, attempt.change)) for attempt in attempts)
                found = await self._executor.edit([GroupEdit(group, dict(some)) for group, some in changes.items()])
            except (asyncio.CancelledError, RuntimeError):  # the executor has been closed
                self._closed = True
                break
            pause = self._process_outcomes(attempts, found)
        self._running = None
        if self._pending_writes and not self._closed:
            loop = asyncio.get_running_loop()
            if pause is None:  # every remaining value has a later `not_before`
                pause = max(
                    0.0, min(w.not_before for c in self._pending_writes.values() for w in c.values()) - loop.time()
                )
            self._timer = loop.call_later(pause, self._resume)

    def _attempts(self) -> list[_Attempt]:
        now = asyncio.get_running_loop().time()
        attempts: list[_Attempt] = []
        for group, changes in self._pending_writes.items():
            attempts += [
                _Attempt(group, tp, pending, self._change((group, tp), pending))
                for tp, pending in changes.items()
                if pending.not_before <= now
            ]
            if len(attempts) >= MAX_CHANGES_PER_STREAM:
                break
        return attempts

    async def _still_current(self, attempts: list[_Attempt]) -> list[_Attempt]:
        """Reads the primary again before late values are written. Returns the attempts without the values that the
        primary no longer holds, which are dropped, and without those that cannot be compared yet."""
        late = by_key((attempt.group, attempt.tp) for attempt in attempts if attempt.pending.late)
        if not late:
            return attempts
        reads = [self._primary.read(group, partitions) for group, partitions in late.items()]
        found = dict(zip(late, await asyncio.gather(*map(asyncio.shield, reads)), strict=True))
        current: list[_Attempt] = []
        for attempt in attempts:
            pending = attempt.pending
            held = outcome_of(found[attempt.group], attempt.tp) if pending.late else None
            if held is None or not (
                isinstance(held, OffsetMgrError) or is_superseded(pending.after, held, may_lower=False)
            ):
                current.append(attempt)  # the write of a larger offset in the primary follows
            elif isinstance(held, OffsetMgrError) or self._may_change(attempt.group, attempt.tp):
                pending.not_before = asyncio.get_running_loop().time() + _BACKOFF.max_s
            elif self._pending_writes.get(attempt.group, {}).get(attempt.tp) is pending:
                self._drop(attempt, Conflict(f"group {attempt.group}, {attempt.tp}", SUPERSEDED, actual=held))
        return current

    def _moves_forward(self, key: _PartitionKey, after: OffsetAndMetadata | None) -> bool:
        """Whether the value is known to be at or above the secondary's value."""
        if after is None or key not in self._known_values:
            return False
        known = self._known_values[key]
        return known is None or after.offset >= known

    def _change(self, key: _PartitionKey, pending: _PendingWrite) -> Change:
        if not pending.late:
            return Change(pending.after, None, allow_rewind=True)
        known = self._known_values.get(key)
        may_lower = not self._moves_forward(key, pending.after)
        return secondary_change(pending.after, None if known is None else Committed(known), may_lower=may_lower)

    # --- outcomes ------------------------------------------------------------------------------------

    def _process_outcomes(self, attempts: Iterable[_Attempt], found: Mapping[str, ChangeOutcomes]) -> float | None:
        """Processes the outcomes of a stream of edits. Returns the seconds to wait before the next stream; None if the
        next stream can start at once."""
        error: OffsetMgrError | None = None
        for group, outcomes in found.items():
            self._executor.health.record(group, [outcome.error for outcome in outcomes.values()])
        for attempt in attempts:
            failure = self._process_outcome(attempt, found[attempt.group][attempt.tp])
            error = failure if failure is not None and (error is None or failure.retriable) else error
        now = asyncio.get_running_loop().time()
        if error is not None and now - self._logged_at >= _LOG_EVERY_S:
            self._logged_at = now
            _log.warning(
                "writes to the secondary store fail; the primary takes commits, and the secondary receives them later",
                extra={"error": str(error), "pending": self.pending},
            )
        if error is not None and error.retriable:
            self.failing = True
            self._failed_streams += 1
            self._release_all_waiters()
            return _BACKOFF.pause_s(self._failed_streams)
        if self.failing:
            self.failing = False
            _log.info("the secondary store can be written again", extra={"pending": self.pending})
        self._failed_streams = 0
        return None

    def _process_outcome(self, attempt: _Attempt, outcome: ChangeOutcome) -> OffsetMgrError | None:
        """Processes one outcome. Returns the error; None if the partition is written or can be tried again at once."""
        key, after = (attempt.group, attempt.tp), attempt.pending.after
        error = outcome.error
        if error is None:
            self.remember(key, None if after is None else after.offset)
            self._finished(attempt)
            return None
        if isinstance(error, Conflict | RewindRefused):
            found = error.actual if isinstance(error, Conflict) else outcome.before
            if found is not None:
                self._process_conflict(attempt, found)
                return None
            # a conflict without a value is a race with another writer, not a failed comparison
        self.failures += 1
        self._attempted.setdefault(key, set()).add(None if after is None else after.offset)
        attempt.pending.late = True
        if isinstance(error, UsageError):
            self._drop(attempt, error)
        elif error.retriable or isinstance(error, Conflict):
            return error
        else:
            attempt.pending.not_before = asyncio.get_running_loop().time() + _PERMANENT_ERROR_PAUSE_S
            self._release_waiters(attempt.pending)
        return error

    def _process_conflict(self, attempt: _Attempt, found: Offset) -> None:
        """Processes a conflict: the secondary held ``found`` instead of the known value."""
        key, after = (attempt.group, attempt.tp), attempt.pending.after
        actual_offset = None if isinstance(found, Absent) else found.offset
        own_attempt = actual_offset in self._attempted.get(key, ())
        self.remember(key, actual_offset)
        if same_value(found, after, self._executor.capabilities):
            self._finished(attempt)
        elif not own_attempt and not (after is not None and (actual_offset is None or actual_offset < after.offset)):
            error = Conflict(f"group {key[0]}, {key[1]}", "another client has written it since", actual=found)
            self._drop(attempt, error)
        # In all other cases, the write is retried. The retry overwrites ``found``, which is either lower than the new
        # value or the result of our own earlier attempt.

    def _drop(self, attempt: _Attempt, error: OffsetMgrError) -> None:
        self.dropped += 1
        now = asyncio.get_running_loop().time()
        if now - self._drop_logged_at >= _LOG_EVERY_S:
            self._drop_logged_at = now
            what = {"group": attempt.group, "partition": str(attempt.tp), "dropped": self.dropped, "error": str(error)}
            _log.warning("a commit was dropped for the secondary store; the primary store holds it", extra=what)
        self._finished(attempt)

    def _finished(self, attempt: _Attempt) -> None:
        """Removes the attempt's value, which has been written or discarded. If a newer value of the partition is
        pending, the newer value stays pending."""
        changes = self._pending_writes.get(attempt.group, {})
        if changes.get(attempt.tp) is not attempt.pending:
            return
        del changes[attempt.tp]
        if not changes:
            del self._pending_writes[attempt.group]
        self.pending -= 1
        self._release_waiters(attempt.pending)

    def _release_waiters(self, pending: _PendingWrite) -> None:
        waiting, pending.waiting = pending.waiting, []
        for waiter in waiting:
            waiter.on_written()

    def _release_all_waiters(self) -> None:
        for changes in self._pending_writes.values():
            for pending in changes.values():
                self._release_waiters(pending)
