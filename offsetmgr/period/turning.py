"""What a leader does next, from what it has read: open the first period, turn to the next one, or wait. Pure.

A `Turn` is one transaction: the open period, its partitions and the history of the closed one change together or not at
all, on condition that nobody has changed the first two since they were read. So it does not matter how many members
take themselves for the leader, nor when each of them is frozen, killed or woken: of several turns of one period one
happens.

Reports may have been read at different moments, and may be of members that are gone. That does no harm: what is
finished stays finished, so a period that looks closed in them is closed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from offsetmgr.model import TopicPartition
from offsetmgr.period.barrier import OpenPeriod, holding, merged, opening, turn
from offsetmgr.period.records import ClosedPeriod, OpenNode, PartitionsNode, ProgressNode
from offsetmgr.period.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Seen:
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
class Turn:
    """What to write, together."""

    open_: OpenNode
    partitions: PartitionsNode
    closed: ClosedPeriod | None
    """For the history; None where the first period opens."""


def next_turn(
    seen: Seen, schedule: Schedule, partitions: Iterable[TopicPartition], leader: Leader, now_ms: int
) -> Turn | list[TopicPartition]:
    """The turn that is due, or the partitions that hold the open period (none where what was read does not fit
    together, or the run has been stopped).

    ``schedule`` counts for the first period only; afterwards that of the open one is kept.
    Raises `UsageError` where there is no partition at all.
    """
    if seen.open_ is None:
        first = opening(schedule, partitions)
        return Turn(
            OpenNode(schedule, 0, leader.member, leader.epoch, now_ms), PartitionsNode(0, first.partitions), None
        )
    barrier = seen.barrier()
    if barrier is None or seen.open_.stopped:
        return []
    finished = seen.finished()
    if held := holding(barrier, finished):
        return held
    following = turn(seen.open_.schedule, barrier, finished, partitions)
    number = following.period.number
    return Turn(
        OpenNode(seen.open_.schedule, number, leader.member, leader.epoch, now_ms),
        PartitionsNode(number, following.partitions),
        _closed(seen.open_, barrier, seen.progress, leader, now_ms),
    )


def _closed(
    open_: OpenNode, barrier: OpenPeriod, progress: Mapping[str, ProgressNode], leader: Leader, now_ms: int
) -> ClosedPeriod:
    number = barrier.period.number
    by = {
        member: frozenset(tp for tp in barrier.partitions if node.finished.get(tp, -1) >= number)
        for member, node in sorted(progress.items())
    }
    return ClosedPeriod(
        barrier.period, open_.opened_ms, now_ms, leader.member, leader.epoch, {m: tps for m, tps in by.items() if tps}
    )
