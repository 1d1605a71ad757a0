"""Decides the leader's next step from what it has read: open the first period, advance to the next one, or wait. Pure.

An `Advance` is one transaction: the open period, its partitions and the history of the closed one change together or
not at all, provided that the first two have not changed since they were read. So it does not matter how many members
consider themselves the leader, or when each of them is frozen, killed or woken: of several advances of one period one
succeeds.

Reports may have been read at different moments, and may come from members that are gone. That does no harm: a finished
partition stays finished, so a period that looks closed in them is closed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from offsetmgr.core.model import TopicPartition
from offsetmgr.period.barrier import OpenPeriod, advance, lagging_partitions, merged, opening
from offsetmgr.period.records import ClosedPeriod, OpenNode, PartitionsNode, ProgressNode, Rerun
from offsetmgr.period.schedule import PeriodSchedule


@dataclass(frozen=True, slots=True)
class LeaderView:
    """The nodes under the root. ``open_`` and ``partitions`` are None together, before the first period."""

    open_: OpenNode | None
    partitions: PartitionsNode | None
    progress: Mapping[str, ProgressNode]
    """By member."""

    def barrier(self) -> OpenPeriod | None:
        """The open period; None before the first, and if the two nodes, read one after the other, do not match because
        they have just changed."""
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
    """The nodes to write together."""

    open_: OpenNode
    partitions: PartitionsNode
    closed: ClosedPeriod | None
    """The entry for the history; None when the first period opens."""


def next_step(
    seen: LeaderView, schedule: PeriodSchedule, partitions: Iterable[TopicPartition], leader: Leader, now_ms: int
) -> Advance | list[TopicPartition]:
    """The due advance, or the partitions that hold the open period (empty if the nodes do not match, or the run has
    been stopped).

    ``schedule`` applies only to the first period; afterwards that of the open one is kept. ``partitions`` is evaluated
    only if a period opens, because that may involve a request to a cluster. Raises `UsageError` if there is no
    partition at all.
    """
    if seen.open_ is None:
        first = opening(schedule, partitions)
        return Advance(
            OpenNode(schedule, 0, leader.member, leader.epoch, now_ms), PartitionsNode(0, first.partitions), None
        )
    barrier = seen.barrier()
    if barrier is None or seen.open_.stopped:
        return []
    finished = seen.finished()
    if held := lagging_partitions(barrier, finished):
        return held
    closed = _closed(seen.open_, barrier, seen.progress, leader, now_ms)
    goes_on = after(seen.open_, now_ms)
    if goes_on is None:
        ended = replace(seen.open_, stopped="its last period is closed: the rerun is done", done=True)
        return Advance(ended, PartitionsNode(barrier.period.number, barrier.partitions), closed)
    schedule, rerun = goes_on
    following = advance(schedule, barrier, finished, partitions)
    number = following.period.number
    return Advance(
        OpenNode(schedule, number, leader.member, leader.epoch, now_ms, rerun=rerun),
        PartitionsNode(number, following.partitions),
        closed,
    )


def after(open_: OpenNode, now_ms: int) -> tuple[PeriodSchedule, Rerun | None] | None:
    """The schedule of the next period, and its rerun if it belongs to one; None: this was the last one.

    A rerun that will adopt another schedule continues with its own small periods until one of the other's begins.
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
    ranges = {tp: progress[m].ranges[tp] for m, tps in by.items() for tp in tps if _tells(progress[m], tp, number)}
    idle = frozenset(tp for m, tps in by.items() for tp in tps & progress[m].idle if _at(progress[m], tp, number))
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


def _at(node: ProgressNode, partition: TopicPartition, number: int) -> bool:
    return node.finished.get(partition) == number


def _tells(node: ProgressNode, partition: TopicPartition, number: int) -> bool:
    return partition in node.ranges and _at(node, partition, number)
