"""Decides the leader's next step from the nodes that it has read: open the first period, advance to the next period, or
wait. Pure.

An `Advance` is written as one transaction. The transaction replaces the nodes with the open period and its partitions,
and adds the closed period to the history. It succeeds only if the two replaced nodes have not changed since they were
read. Therefore only one advance of a period succeeds, even if several members act as the leader, and even if some of
them freeze, continue or die at any point.

The reports may have been read at different moments, and may come from dead members. Old reports do no harm: a finished
partition stays finished, so every report remains true after the leader has read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from offsetmgr.core.model import TopicPartition
from offsetmgr.period.barrier import OpenPeriod, lagging_partitions, merged, opening
from offsetmgr.period.records import ClosedPeriod, OpenNode, PartitionsNode, ProgressNode, Rerun
from offsetmgr.period.schedule import PeriodSchedule


@dataclass(frozen=True, slots=True)
class LeaderView:
    """The nodes that the leader has read. Before the first period both ``open_`` and ``partitions`` are None."""

    open_: OpenNode | None
    partitions: PartitionsNode | None
    progress: Mapping[str, ProgressNode]
    """By member."""

    def barrier(self) -> OpenPeriod | None:
        """Returns the open period. Returns `None` in two cases: before the first period, or if ``open_`` and
        ``partitions`` belong to different periods because the run advanced between the two reads."""
        if self.open_ is None or self.partitions is None or self.open_.number != self.partitions.number:
            return None
        return OpenPeriod(self.open_.schedule.period(self.open_.number), self.partitions.partitions)

    def finished(self) -> dict[TopicPartition, int]:
        return merged(node.finished for node in self.progress.values())


@dataclass(frozen=True, slots=True)
class Leader:
    """The leader's name, and its epoch, which is larger than that of every earlier leader."""

    member: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Advance:
    """The nodes that the leader writes in one transaction."""

    open_: OpenNode
    partitions: PartitionsNode
    closed: ClosedPeriod | None
    """The entry for the history; None when the first period opens."""


def next_step(
    seen: LeaderView, schedule: PeriodSchedule, partitions: Iterable[TopicPartition], leader: Leader, now_ms: int
) -> Advance | list[TopicPartition]:
    """Returns the advance that the leader must write, or, if the leader has to wait, the list of partitions that have
    not finished the open period. The list is empty if the open period is unknown (`LeaderView.barrier` returns None) or
    if the run was stopped.

    ``schedule`` applies only to the first period. Every later period uses the schedule of the open period, or the
    schedule that follows a rerun. ``partitions`` is iterated only if a period opens, because the iteration may send a
    request to a cluster. Raises `UsageError` if there are no partitions.
    """
    if seen.open_ is None:
        first = opening(schedule, 0, partitions)
        return Advance(
            OpenNode(schedule, 0, leader.member, leader.epoch, now_ms), PartitionsNode(0, first.partitions), None
        )
    barrier = seen.barrier()
    if barrier is None or seen.open_.stopped:
        return []
    if lagging := lagging_partitions(barrier, seen.finished()):
        return lagging
    closed = _closed(seen.open_, barrier, seen.progress, leader, now_ms)
    next_period = after(seen.open_, now_ms)
    if next_period is None:
        ended = replace(seen.open_, stopped="its last period is closed: the rerun is done", done=True)
        return Advance(ended, PartitionsNode(barrier.period.number, barrier.partitions), closed)
    schedule, rerun = next_period
    number = barrier.period.number + 1
    next_open = opening(schedule, number, partitions)
    return Advance(
        OpenNode(schedule, number, leader.member, leader.epoch, now_ms, rerun=rerun),
        PartitionsNode(number, next_open.partitions),
        closed,
    )


def after(open_: OpenNode, now_ms: int) -> tuple[PeriodSchedule, Rerun | None] | None:
    """Returns the schedule of the period after ``open_``, and the rerun to which that period belongs (`None` outside of
    a rerun). Returns None if the open period is the last one.

    If another schedule follows a rerun, the rerun continues beyond its end time until a period of the rerun ends
    exactly where a period of the other schedule begins.
    """
    rerun, end = open_.rerun, open_.limit_ms
    if rerun is None:
        return open_.schedule, None
    over = end + open_.schedule.length_ms > now_ms if rerun.until_ms is None else end >= rerun.until_ms
    if not over:
        return open_.schedule, rerun
    if rerun.then is None:
        return None
    if rerun.then.begins_at(end):
        return PeriodSchedule(end, rerun.then.length_ms, open_.number + 1), None
    return open_.schedule, rerun


def _closed(
    open_: OpenNode, barrier: OpenPeriod, progress: Mapping[str, ProgressNode], leader: Leader, now_ms: int
) -> ClosedPeriod:
    number = barrier.period.number
    by = {
        member: frozenset(tp for tp in barrier.partitions if node.finished.get(tp, -1) >= number)
        for member, node in sorted(progress.items())
    }
    exact = [(progress[m], tp) for m, tps in by.items() for tp in tps if progress[m].finished.get(tp) == number]
    ranges = {tp: node.ranges[tp] for node, tp in exact if tp in node.ranges}
    idle = frozenset(tp for node, tp in exact if tp in node.idle)
    return ClosedPeriod(
        barrier.period,
        open_.opened_ms,
        now_ms,
        leader.member,
        leader.epoch,
        {m: tps for m, tps in by.items() if tps},
        idle - ranges.keys(),
        ranges,
    )
