"""The second store of a dual commit, which receives the values that the first one accepted (data rule "dual commit:
Kafka first"), however long that takes.

State and decisions are on the event loop; the store is written in its own threads (`store_executor`), one stream of
edits at a time. For each partition only the newest value is kept, so a delayed value is written once.

Overwriting. A value written at once may overwrite everything: the last commit wins, as with the old consumers. But a
value that is written *late*, because the secondary was unavailable, must not undo other clients' commits of the
meantime. It only moves the secondary forward; a late rewind (a value below the last known value of the secondary)
overwrites only that value. If nothing is known, the last commit wins.

Ordering contract: `take` is called for the writes of a group in the order in which the primary accepted them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from offsetmgr.core.errors import Conflict, OffsetMgrError, RewindRefused, UsageError
from offsetmgr.core.model import Absent, Committed, Offset, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, ChangeOutcome, GroupEdit, same_value
from offsetmgr.server.storefront.store_calls import Outcomes, edited
from offsetmgr.server.storefront.store_executor import CHANGES_A_STREAM, StoreExecutor

_log = logging.getLogger(__name__)

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 2.0
_STUCK_PAUSE_S: Final = 30.0
"""Seconds until a partition with a permanent error (not allowed, unreadable) is tried again."""
_LOG_EVERY_S: Final = 30.0
_KNOWN: Final = 200_000
"""Number of partitions for which the secondary's value is cached."""

_Key: TypeAlias = tuple[str, TopicPartition]


@dataclass(slots=True, eq=False)
class _PendingWrite:
    """The new value of one partition (None: deletion), and the commits that wait for it."""

    after: OffsetAndMetadata | None
    late: bool
    """Whether an attempt has failed, or the secondary was already unavailable when the value arrived."""
    waiting: list[_Waiter] = field(default_factory=list)
    not_before: float = 0.0


class _Waiter:
    """Completes a future when the last of several partitions has been written, or after a timeout."""

    __slots__ = ("done", "left")

    def __init__(self, partitions: int, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        self.left = partitions
        self.done: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(wait_s, self.let_go)
        self.done.add_done_callback(lambda _: timer.cancel())

    def settled(self) -> None:
        self.left -= 1
        if not self.left:
            self.let_go()

    def let_go(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


class _Attempt(NamedTuple):
    """One partition's part of a stream of edits."""

    group: str
    tp: TopicPartition
    wanted: _PendingWrite
    change: Change


class Secondary:
    """See the module's docstring. Used on the event loop; the caller closes ``threads``."""

    def __init__(self, threads: StoreExecutor, *, wait_s: float = 1.0, keeps_epochs: bool = True) -> None:
        """``wait_s``: seconds that a commit waits for the secondary. After one has waited in vain, none waits until
        the secondary can be written again. ``keeps_epochs``: whether the primary's leader epochs are those of the
        secondary's logs; otherwise none is written."""
        self._threads = threads
        self._wait_s = wait_s
        self._keeps_epochs = keeps_epochs
        self._wanted: dict[str, dict[TopicPartition, _PendingWrite]] = {}
        self._known: dict[_Key, int | None] = {}
        self._tried: dict[_Key, set[int | None]] = {}
        self._running: asyncio.Task[None] | None = None
        self._pause = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._said = self._said_dropped = -_LOG_EVERY_S
        self._failing = False
        self._closed = False
        self.pending = 0
        """Partitions that the secondary has not received yet."""
        self.failures = 0
        """Failed writes; each attempt counts."""
        self.dropped = 0
        """Values discarded because other clients have written the secondary since, or because it cannot hold them."""

    @property
    def failing(self) -> bool:
        """Whether commits currently do not wait for the secondary."""
        return self._failing

    # --- called by the backend -----------------------------------------------------------------------

    def take(
        self, group: str, values: Mapping[TopicPartition, OffsetAndMetadata | None]
    ) -> asyncio.Future[None] | None:
        """Receives the values that the primary accepted. Returns a future that the commit should wait for; None if it
        should not wait."""
        waiter = None if self._failing or not values else _Waiter(len(values), self._wait_s)
        if waiter is not None:
            waiter.done.add_done_callback(lambda _: self._waited(waiter))
        held = self._wanted.setdefault(group, {})
        for tp, taken in values.items():
            after = taken if taken is None or self._keeps_epochs else taken._replace(leader_epoch=None)
            before = held.get(tp)
            wanted = held[tp] = _PendingWrite(after, self._failing)
            if before is None:
                self.pending += 1
            else:  # a value that was not written yet is replaced: its commits wait for this one
                wanted.waiting = before.waiting
            if waiter is not None:
                wanted.waiting.append(waiter)
        if not held:
            del self._wanted[group]
        self._go_on()
        return waiter.done if waiter is not None else None

    def lowering(self, group: str) -> frozenset[TopicPartition]:
        """The partitions with a pending rewind or deletion, for which the secondary's value is too high."""
        return frozenset(
            tp for tp, wanted in self._wanted.get(group, {}).items() if not self._forward((group, tp), wanted.after)
        )

    def wanted(self, group: str) -> frozenset[TopicPartition]:
        """The pending values of the group."""
        return frozenset(self._wanted.get(group, ()))

    def read_capabilities(self, group: str, tp: TopicPartition, offset: int) -> None:
        """Records a value that another client has written to the secondary."""
        self._learn((group, tp), offset)

    async def flush(self, seconds: float) -> int:
        """Waits until the secondary has everything, at most ``seconds``; returns the number of missing partitions."""
        until = asyncio.get_running_loop().time() + seconds
        while self.pending and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(0.02)
        return self.pending

    def close(self) -> None:
        """Stops starting attempts."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for wanted in [w for changes in self._wanted.values() for w in changes.values()]:
            self._let_go(wanted)

    def _waited(self, waiter: _Waiter) -> None:
        if waiter.left:
            self._failing = True

    # --- attempts ------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        if self._running is None and self._timer is None and self._wanted and not self._closed:
            self._running = asyncio.get_running_loop().create_task(self._run())

    def _again(self) -> None:
        self._timer = None
        self._go_on()

    async def _run(self) -> None:
        await asyncio.sleep(0)
        pause: float | None = None
        while pause is None and not self._closed:
            attempts = self._attempts()
            if not attempts:
                break
            edits = _edits(attempts)
            try:
                found = await self._threads.call(partial(edited, self._threads.store, edits))
            except (asyncio.CancelledError, RuntimeError):  # the threads have been closed meanwhile
                self._closed = True
                break
            pause = self._settle(attempts, found)
        self._running = None
        if self._wanted and not self._closed:
            loop = asyncio.get_running_loop()
            if pause is None:  # only values remain that must not be tried yet
                pause = max(0.0, min(w.not_before for c in self._wanted.values() for w in c.values()) - loop.time())
            self._timer = loop.call_later(pause, self._again)

    def _attempts(self) -> list[_Attempt]:
        now = asyncio.get_running_loop().time()
        attempts: list[_Attempt] = []
        for group, changes in self._wanted.items():
            attempts += [
                _Attempt(group, tp, wanted, self._change((group, tp), wanted))
                for tp, wanted in changes.items()
                if wanted.not_before <= now
            ]
            if len(attempts) >= CHANGES_A_STREAM:
                break
        return attempts

    def _forward(self, key: _Key, after: OffsetAndMetadata | None) -> bool:
        """Whether the value cannot be below the secondary's, as far as that is known."""
        if after is None or key not in self._known:
            return False
        known = self._known[key]
        return known is None or after.offset >= known

    def _change(self, key: _Key, wanted: _PendingWrite) -> Change:
        if not wanted.late:
            return Change(wanted.after, None, allow_rewind=True)
        if self._forward(key, wanted.after):
            return Change(wanted.after)
        known = self._known.get(key)
        return Change(wanted.after, None if known is None else Committed(known), allow_rewind=True)

    # --- outcomes ------------------------------------------------------------------------------------

    def _settle(self, attempts: Iterable[_Attempt], found: Mapping[str, Outcomes]) -> float | None:
        """Processes the outcomes of a stream; returns the pause before the next one, None if none is needed."""
        error: OffsetMgrError | None = None
        for group, outcomes in found.items():
            self._threads.health.note(group, [outcome.error for outcome in outcomes.values()])
        for attempt in attempts:
            failure = self._settle_one(attempt, found[attempt.group][attempt.tp])
            error = failure if failure is not None and (error is None or failure.retriable) else error
        if error is not None:
            self._say(error)
        if error is not None and error.retriable:
            self._failing = True
            self._pause = min(max(self._pause * 2, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
            self._let_all_go()
            return self._pause
        if self._failing:
            self._failing = False
            _log.info("the secondary store can be written again", extra={"pending": self.pending})
        self._pause = 0.0
        return None

    def _settle_one(self, attempt: _Attempt, outcome: ChangeOutcome) -> OffsetMgrError | None:
        """Processes one outcome; returns the error, unless the partition is complete or can be tried again at once."""
        key, after = (attempt.group, attempt.tp), attempt.wanted.after
        error = outcome.error
        if error is None:
            self._learn(key, None if after is None else after.offset)
            self._finished(attempt)
            return None
        if isinstance(error, Conflict | RewindRefused):
            found = error.actual if isinstance(error, Conflict) else outcome.before
            if found is not None:
                self._met(attempt, found)
                return None
            # without a value it was not a failed comparison but a race
        self.failures += 1
        self._tried.setdefault(key, set()).add(None if after is None else after.offset)
        attempt.wanted.late = True
        if isinstance(error, UsageError):
            self._drop(attempt, error)
        elif error.retriable or isinstance(error, Conflict):
            return error
        else:
            attempt.wanted.not_before = asyncio.get_running_loop().time() + _STUCK_PAUSE_S
            self._let_go(attempt.wanted)
        return error

    def _met(self, attempt: _Attempt, found: Offset) -> None:
        """The secondary held a value other than the known one."""
        key, after = (attempt.group, attempt.tp), attempt.wanted.after
        held = None if isinstance(found, Absent) else found.offset
        ours = held in self._tried.get(key, ())
        self._learn(key, held)
        if same_value(found, after, self._threads.capabilities):
            self._finished(attempt)
        elif not ours and not (after is not None and (held is None or held < after.offset)):
            self._drop(attempt, Conflict(f"group {key[0]}, {key[1]}", "others have written it since", actual=found))
        # otherwise it is tried again, over the value that is known now: an earlier attempt of ours that did succeed, or
        # a lower one

    def _learn(self, key: _Key, offset: int | None) -> None:
        self._tried.pop(key, None)
        self._known.pop(key, None)
        self._known[key] = offset
        if len(self._known) > _KNOWN:
            del self._known[next(iter(self._known))]

    def _drop(self, attempt: _Attempt, error: OffsetMgrError) -> None:
        self.dropped += 1
        now = asyncio.get_running_loop().time()
        if now - self._said_dropped >= _LOG_EVERY_S:
            self._said_dropped = now
            what = {"group": attempt.group, "partition": str(attempt.tp), "dropped": self.dropped, "error": str(error)}
            _log.warning("a value is not written to the secondary store", extra=what)
        self._finished(attempt)

    def _finished(self, attempt: _Attempt) -> None:
        """The attempt's value is written or discarded; a newer one stays pending."""
        changes = self._wanted.get(attempt.group, {})
        if changes.get(attempt.tp) is not attempt.wanted:
            return
        del changes[attempt.tp]
        if not changes:
            del self._wanted[attempt.group]
        self.pending -= 1
        self._let_go(attempt.wanted)

    def _let_go(self, wanted: _PendingWrite) -> None:
        waiting, wanted.waiting = wanted.waiting, []
        for waiter in waiting:
            waiter.settled()

    def _let_all_go(self) -> None:
        for changes in self._wanted.values():
            for wanted in changes.values():
                self._let_go(wanted)

    def _say(self, error: OffsetMgrError) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._said >= _LOG_EVERY_S:
            self._said = now
            _log.warning(
                "the secondary store cannot be written; commits go on, and are written there later",
                extra={"error": str(error), "pending": self.pending},
            )


def _edits(attempts: Iterable[_Attempt]) -> list[GroupEdit]:
    groups: dict[str, dict[TopicPartition, Change]] = {}
    for attempt in attempts:
        groups.setdefault(attempt.group, {})[attempt.tp] = attempt.change
    return [GroupEdit(group, changes) for group, changes in groups.items()]
