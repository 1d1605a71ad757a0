"""`LeaderRound`: one round of the leader, which opens the next period or reports idle partitions."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from offsetmgr.core.clock import Clock, SystemClock
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import TopicPartition
from offsetmgr.period.leader_decision import Advance, Leader, next_step
from offsetmgr.period.records import ProgressNode
from offsetmgr.period.schedule import Period, PeriodSchedule
from offsetmgr.period.state_nodes import BarrierStateStore, BarrierView

ListPartitions: TypeAlias = Callable[[], Iterable[TopicPartition]]
"""A function that returns all partitions that take part at present. It may send requests to a cluster, and raises
`OffsetMgrError`."""

FindIdlePartitions: TypeAlias = Callable[[Period, Collection[TopicPartition]], Collection[TopicPartition]]
"""A function that receives a period and partitions, and returns the partitions without a record in the period. It may
send requests to a cluster, and raises `OffsetMgrError`."""

_HISTORY_KEPT: Final = 10_000
"""Default number of closed periods in the history. The names of all history nodes must fit into one response of
ZooKeeper."""

_LOG: Final = logging.getLogger("offsetmgr.period")
_CACHE_S: Final = 1.0
"""Seconds for which the result of `ListPartitions` is cached, so that only some rounds send requests to a cluster."""
_IDLE_CHECK_INTERVALS_S: Final = (1.0, 30.0)
"""Seconds between two checks for idle partitions: the first interval and the longest one."""
_MAX_SLEEP_S: Final = 60.0
"""Maximum seconds between two reads of the wall clock, because an administrator or NTP may set the clock."""
_KEPT_PERIODS: Final = 2
"""The progress of a dead member is deleted when its newest finished period is this many periods behind the period that
was just closed."""


@dataclass(frozen=True, slots=True)
class CoordinatorOptions:
    """Optional settings of a `PeriodCoordinator`.

    ``idle`` is a function that receives a period and partitions, and returns the partitions without a record in the
    period (see `idle_check.idle_partitions`). The leader calls the function no earlier than ``grace_ms`` after the
    end of the period, by the wall clock. The history keeps the newest ``history_kept`` closed periods. Times are in
    milliseconds.

    >>> CoordinatorOptions(grace_ms=60_000).session_timeout_ms
    6000
    """

    idle: FindIdlePartitions | None = None
    grace_ms: int = 0
    history_kept: int = _HISTORY_KEPT
    session_timeout_ms: int = 6_000
    clock: Clock | None = None


@dataclass(slots=True)
class LeaderRound:
    """The leader's rounds. An instance must be used by one thread only."""

    schedule: PeriodSchedule
    topics: ListPartitions
    options: CoordinatorOptions
    _partitions: frozenset[TopicPartition] = frozenset()
    _partitions_read_at: float = -math.inf
    _idle_checked_at: float = -math.inf
    _idle_check_interval_s: float = _IDLE_CHECK_INTERVALS_S[0]
    _clock: Clock = field(init=False)

    def __post_init__(self) -> None:
        self._clock = self.options.clock or SystemClock()

    def step(self, nodes: BarrierStateStore, view: BarrierView, leader: Leader) -> bool:
        """Runs one round, and returns whether the caller should read the nodes again and run the next round at once.

        Raises the errors of ``nodes`` and of the caller's functions, and `ServerError` if the run cannot continue
        because nodes were deleted.
        """
        if view.seen.open_ is None:
            nodes.require_new()
        # `_current_partitions` is a generator, so `ListPartitions` is called only if a period opens.
        step = next_step(view.seen, self.schedule, self._current_partitions(view), leader, self._clock.now_ms())
        if isinstance(step, Advance):
            done = nodes.write_advance(step, view)
            if done and step.closed is not None:
                number = step.closed.period.number
                _LOG.info("period %d is closed; open: %s", number, step.open_.stopped or step.open_.number)
                # The old progress of dead members, and the oldest closed period if the history exceeds its limit.
                old = [
                    name
                    for name, node in view.seen.progress.items()
                    if name not in view.members and max(node.finished.values(), default=-1) <= number - _KEPT_PERIODS
                ]
                nodes.delete_progress(old, view)
                if number >= self.options.history_kept:
                    nodes.delete_history(number - self.options.history_kept)
            self._idle_check_interval_s = _IDLE_CHECK_INTERVALS_S[0]
            return True
        return bool(step) and self._close_idle(nodes, view, step, leader)

    def next_check_in_s(self, view: BarrierView) -> float | None:
        """Returns the seconds until the next check for idle partitions; `None` if no check is due before the nodes
        change."""
        barrier, open_ = view.seen.barrier(), view.seen.open_
        if self.options.idle is None or barrier is None or (open_ is not None and open_.stopped):
            return None
        over_in = (barrier.period.end_ms + self.options.grace_ms - self._clock.now_ms()) / 1000
        due_in = self._idle_checked_at + self._idle_check_interval_s - self._clock.monotonic()
        return min(max(over_in, due_in, 0.0), _MAX_SLEEP_S)

    def _current_partitions(self, view: BarrierView) -> Iterator[TopicPartition]:
        """Yields the partitions that take part at present. If `ListPartitions` fails or returns no partitions, yields
        the partitions of the open period. If `ListPartitions` fails and no partitions are known yet, raises the error
        of `ListPartitions`."""
        now = self._clock.monotonic()
        if now - self._partitions_read_at > _CACHE_S:
            # Prefer the partitions of the open period to this member's earlier result of `ListPartitions`. Another
            # member may have been the leader since, and may have read newer partitions.
            before = view.seen.partitions.partitions if view.seen.partitions else self._partitions
            try:
                found = frozenset(self.topics())
            except OffsetMgrError as error:
                if not before:
                    raise
                _LOG.warning("cannot read the partitions of the topics; keeping those of the open period: %s", error)
                found = before
            if not found:
                _LOG.warning("the topics have no partitions any more; keeping those of the open period")
            self._partitions, self._partitions_read_at = found or before, self._clock.monotonic()
        yield from self._partitions

    def _close_idle(
        self, nodes: BarrierStateStore, view: BarrierView, lagging: Collection[TopicPartition], leader: Leader
    ) -> bool:
        """Reports idle partitions as finished, in the leader's own progress node. Returns whether it wrote a report."""
        barrier, now = view.seen.barrier(), self._clock.monotonic()
        if self.options.idle is None or barrier is None or now < self._idle_checked_at + self._idle_check_interval_s:
            return False
        if self._clock.now_ms() < barrier.period.end_ms + self.options.grace_ms:
            return False
        self._idle_checked_at = now
        self._idle_check_interval_s = min(2 * self._idle_check_interval_s, _IDLE_CHECK_INTERVALS_S[1])
        number = barrier.period.number
        try:
            idle = set(self.options.idle(barrier.period, lagging)) & set(lagging)
        except OffsetMgrError as error:
            _LOG.warning("period %d: cannot check for idle partitions: %s", number, error)
            return False
        before = view.seen.progress.get(leader.member)
        if not idle or before is None:
            return False
        finished = {**before.finished, **dict.fromkeys(idle, number)}
        still = {tp for tp in before.idle if finished.get(tp) == number}
        kept = {tp: offsets for tp, offsets in before.ranges.items() if tp not in idle}
        node = ProgressNode(leader.member, leader.epoch, finished, frozenset(still | idle), kept)
        return nodes.report(node, view.progress_versions[leader.member])
