"""`Leading`: one round of the leader: turn, or see whether those who hold the period have nothing to finish."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from typing import Final, TypeAlias

from offsetmgr.clock import Clock
from offsetmgr.errors import OffsetMgrError
from offsetmgr.model import TopicPartition
from offsetmgr.period.records import ProgressNode
from offsetmgr.period.room import Room, View
from offsetmgr.period.schedule import Period, Schedule
from offsetmgr.period.turning import Leader, Turn, next_turn

Topics: TypeAlias = Callable[[], Iterable[TopicPartition]]
"""Every partition that takes part, as they are now. May ask a cluster; raises `OffsetMgrError`."""

Idle: TypeAlias = Callable[[Period, Collection[TopicPartition]], Collection[TopicPartition]]
"""Which of some partitions have no record in a period. May ask a cluster; raises `OffsetMgrError`."""

_LOG: Final = logging.getLogger("offsetmgr.period")
_FRESH: Final = 1.0
"""Seconds for which an answer of `Topics` counts: a turn needs it, and must not wait for a cluster each time."""
_IDLE_EVERY: Final = 1.0
_KEPT: Final = 2
"""Periods after which what dead members had finished is forgotten."""


class Leading:
    """For one thread."""

    def __init__(self, schedule: Schedule, topics: Topics, idle: Idle | None, grace_ms: int, clock: Clock) -> None:
        self._schedule = schedule
        self._topics = topics
        self._idle = idle
        self._grace_ms = grace_ms
        self._clock = clock
        self._partitions = frozenset[TopicPartition]()
        self._asked = -float("inf")
        self._looked = -float("inf")

    def step(self, room: Room, view: View, leader: Leader, member: str) -> bool:
        """One round; whether there may be more to do at once. Raises what reading and writing raise."""
        turn = next_turn(view.seen, self._schedule, self._now_there(), leader, self._clock.now_ms())
        if isinstance(turn, Turn):
            done = room.turn(turn, view)
            if done and turn.closed is not None:
                number = turn.closed.period.number
                _LOG.info("period %d is closed, %d is open", number, turn.open_.number)
                self._forget(room, view, number)
            return True
        return bool(turn) and self._close_idle(room, view, turn, leader, member)

    def _now_there(self) -> frozenset[TopicPartition]:
        now = self._clock.monotonic()
        if not self._partitions or now - self._asked > _FRESH:
            try:
                self._partitions, self._asked = frozenset(self._topics()), now
            except OffsetMgrError as error:
                if not self._partitions:
                    raise
                _LOG.warning("which partitions there are is not known anew: %s", error)
        return self._partitions

    def _close_idle(
        self, room: Room, view: View, held: Collection[TopicPartition], leader: Leader, member: str
    ) -> bool:
        """Reports, in the leader's own progress, partitions that have no record in the period."""
        barrier, now = view.seen.barrier(), self._clock.monotonic()
        if self._idle is None or barrier is None or now - self._looked < _IDLE_EVERY:
            return False
        if self._clock.now_ms() < barrier.period.end_ms + self._grace_ms:
            return False
        self._looked = now
        try:
            empty = self._idle(barrier.period, held)
        except OffsetMgrError as error:
            _LOG.warning("whether partitions have records in period %d is not known: %s", barrier.period.number, error)
            return False
        before = view.seen.progress.get(member)
        if not empty or before is None:
            return False
        number = barrier.period.number
        finished = {**before.finished, **dict.fromkeys(empty, number)}
        still = {tp for tp in before.idle if finished[tp] == number and tp not in empty}
        node = ProgressNode(member, leader.epoch, finished, frozenset(still | set(empty)))
        return room.report(node, view.progress_versions[member])

    def _forget(self, room: Room, view: View, closed: int) -> None:
        """What dead members have finished long ago is of no use any more."""
        old = [
            name
            for name, node in view.seen.progress.items()
            if name not in view.members and max(node.finished.values(), default=-1) <= closed - _KEPT
        ]
        room.forget(old, view)
