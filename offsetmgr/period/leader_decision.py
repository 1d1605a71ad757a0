"""What a leader does next, from what it has read: open the first period, turn to the next one, or wait. Pure.

A `Advance` is one transaction: the open period, its partitions and the history of the closed one change together or not
at all, on condition that nobody has changed the first two since they were read. So it does not matter how many members
take themselves for the leader, nor when each of them is frozen, killed or woken: of several turns of one period one
happens.

Reports may have been read at different moments, and may be of members that are gone. That does no harm: what is
finished stays finished, so a period that looks closed in them is closed.
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
    """What is under the root. ``open_`` and ``partitions`` come and go together; both None before the first period."""

    open_: OpenNode | None
    partitions: PartitionsNode | None
    progress: Mapping[str, ProgressNode]
    """By member."""

    def barrier(self) -> OpenPeriod | None:
        """The open period; None before the first, and while the two nodes, read one after the other, do not belong
        together: then they have just changed."""
        if self.open_ is None or self.partitions is None or self.open_.number != self.partitions.number:
            return None
        return OpenPeriod(self.open_.schedule.period(self.open_.number), self.partitions.partitions)

    def finished(self) -> dict[TopicPartition, int]:
        return merged(node.finished for node in self.progress.values())


@dataclass(frozen=True, slots=True)
class Leader:
    """Who turns: its name, and its epoch, which is larger than that of every leader before it."""

    member: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Advance:
    """What to write, together."""

    open_: OpenNode
    partitions: PartitionsNode
    closed: ClosedPeriod | None
    """For the history; None where the first period opens."""


def next_step(
    seen: LeaderView, schedule: PeriodSchedule, partitions: Iterable[TopicPartition], leader: Leader, now_ms: int
) -> Advance | list[TopicPartition]:
    """The turn that is due, or the partitions that hold the open period (none where what was read does not fit
    together, or the run has been stopped).

    ``schedule`` counts for the first period only; afterwards that of the open one is kept.
    ``partitions`` are asked for only where a period opens, for asking may mean asking a cluster.
    Raises `UsageError` where there is no partition at all.
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
    """By which schedule the next period opens, and whether it is a rerun's; None: this was the last one.

    A rerun that takes on another schedule goes on with its own small periods until one of the other's begins.
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
