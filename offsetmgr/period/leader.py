"""`LeaderRound`: one round of the leader: opens the next period, or checks whether the partitions that hold it are
idle."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final, TypeAlias

from offsetmgr.core.clock import Clock
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import TopicPartition
from offsetmgr.period.leader_decision import Advance, Leader, next_step
from offsetmgr.period.records import ProgressNode
from offsetmgr.period.schedule import Period, PeriodSchedule
from offsetmgr.period.state_nodes import BarrierStateStore, BarrierView

Topics: TypeAlias = Callable[[], Iterable[TopicPartition]]
"""Every partition that takes part at present. May ask a cluster; raises `OffsetMgrError`."""

Idle: TypeAlias = Callable[[Period, Collection[TopicPartition]], Collection[TopicPartition]]
"""The partitions, among the given ones, without a record in a period. May ask a cluster; raises `OffsetMgrError`."""

HISTORY_KEPT: Final = 10_000
"""Number of closed periods in the history: all of their names must fit into one response of ZooKeeper."""

_LOG: Final = logging.getLogger("offsetmgr.period")
_CACHE_S: Final = 1.0
"""Seconds for which a result of `Topics`, or its failure, is cached, so that a round does not wait for a cluster each
time."""
_IDLE_CHECKS_S: Final = (1.0, 30.0)
"""Seconds between two checks of partitions that may have no records: the first and the longest interval."""
_LONGEST_SLEEP_S: Final = 60.0
"""Seconds after which the wall clock is read again, in case it was set."""
_KEPT: Final = 2
"""Number of periods after which dead members' progress is deleted."""


class LeaderRound:
    """For one thread."""

    def __init__(
        self,
        schedule: PeriodSchedule,
        topics: Topics,
        idle: Idle | None,
        grace_ms: int,
        history_kept: int,
        clock: Clock,
    ) -> None:
        self._schedule = schedule
        self._topics = topics
        self._idle = idle
        self._grace_ms = grace_ms
        self._history_kept = history_kept
        self._clock = clock
        self._partitions = frozenset[TopicPartition]()
        self._asked = -float("inf")
        self._looked = -float("inf")
        self._pause = _IDLE_CHECKS_S[0]

    def step(self, nodes: BarrierStateStore, view: BarrierView, leader: Leader) -> bool:
        """Runs one round; returns whether there may be more to do at once. Raises what reading and writing raise, and
        `ServerError` if nodes were deleted so that the run cannot continue."""
        if view.seen.open_ is None:
            nodes.require_new()
        # A generator: the cluster is asked only if a period opens.
        turn = next_step(view.seen, self._schedule, self._now_there(view), leader, self._clock.now_ms())
        if isinstance(turn, Advance):
            done = nodes.turn(turn, view)
            if done and turn.closed is not None:
                number = turn.closed.period.number
                _LOG.info("period %d is closed; open: %s", number, turn.open_.stopped or turn.open_.number)
                self._forget(nodes, view, number)
            self._pause = _IDLE_CHECKS_S[0]
            return True
        return bool(turn) and self._close_idle(nodes, view, turn, leader)

    def next_look(self, view: BarrierView) -> float | None:
        """Seconds until a round may find something without a change; None: never."""
        barrier, open_ = view.seen.barrier(), view.seen.open_
        if self._idle is None or barrier is None or (open_ is not None and open_.stopped):
            return None
        over_in = (barrier.period.end_ms + self._grace_ms - self._clock.now_ms()) / 1000
        due_in = self._looked + self._pause - self._clock.monotonic()
        return min(max(over_in, due_in, 0.0), _LONGEST_SLEEP_S)

    def _now_there(self, view: BarrierView) -> Iterator[TopicPartition]:
        """The present participants; if unknown, the previous ones. Raises if neither is known."""
        now = self._clock.monotonic()
        if now - self._asked > _CACHE_S:
            # Never a cached result of its own from long ago, because another member may have led since.
            before = view.seen.partitions.partitions if view.seen.partitions else self._partitions
            try:
                found = frozenset(self._topics())
            except OffsetMgrError as error:
                if not before:
                    raise
                _LOG.warning("the partitions could not be read again: %s", error)
                found = before
            if not found:
                _LOG.warning("no partition exists any more; the previous ones are kept")
            self._partitions, self._asked = found or before, self._clock.monotonic()
        yield from self._partitions

    def _close_idle(
        self, nodes: BarrierStateStore, view: BarrierView, held: Collection[TopicPartition], leader: Leader
    ) -> bool:
        """Reports, in the leader's own progress, partitions that have no record in the period."""
        barrier, now = view.seen.barrier(), self._clock.monotonic()
        if self._idle is None or barrier is None or now < self._looked + self._pause:
            return False
        if self._clock.now_ms() < barrier.period.end_ms + self._grace_ms:
            return False
        self._looked, self._pause = now, min(2 * self._pause, _IDLE_CHECKS_S[1])
        number = barrier.period.number
        try:
            empty = set(self._idle(barrier.period, held)) & set(held)
        except OffsetMgrError as error:
            _LOG.warning("whether partitions have records in period %d is not known: %s", number, error)
            return False
        before = view.seen.progress.get(leader.member)
        if not empty or before is None:
            return False
        finished = {**before.finished, **dict.fromkeys(empty, number)}
        still = {tp for tp in before.idle if finished.get(tp) == number}
        kept = {tp: offsets for tp, offsets in before.ranges.items() if tp not in empty}
        node = ProgressNode(leader.member, leader.epoch, finished, frozenset(still | empty), kept)
        return nodes.report(node, view.progress_versions[leader.member])

    def _forget(self, nodes: BarrierStateStore, view: BarrierView, closed: int) -> None:
        """Deletes dead members' old progress, and history beyond its limit."""
        old = [
            name
            for name, node in view.seen.progress.items()
            if name not in view.members and max(node.finished.values(), default=-1) <= closed - _KEPT
        ]
        nodes.forget(old, view)
        if closed >= self._history_kept:
            nodes.forget_history(closed - self._history_kept)
