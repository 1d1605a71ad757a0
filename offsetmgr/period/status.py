"""The status and the history of a run, for people. Pure.

The status shows the partitions that have not finished the open period, how long the run has waited for them, and the
members that consume them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from offsetmgr.core.model import TopicPartition
from offsetmgr.period.job_records import Work
from offsetmgr.period.records import ClosedPeriod, OffsetRange, OpenNode
from offsetmgr.period.schedule import Period
from offsetmgr.period.state_nodes import BarrierView

HOLDS: Final = "holds"
"""The state of a partition that has not finished the open period."""


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition of the open period, which has the number ``period``."""

    period: int
    partition: TopicPartition
    state: str
    """``holds`` (the partition has not finished the period), ``idle`` (it had no record in the period), or
    ``finished``."""
    last: int | None
    """The newest period that the partition has finished; `None` if there is no report."""
    waiting_ms: int | None
    """The milliseconds since the period opened, by this machine's clock; `None` if the partition has finished."""
    owner: str | None
    """The live member that consumes the partition; `None` if no live member consumes it."""
    host: str | None
    process: int | None


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The open period and its partitions. Partitions that have not finished the period come first."""

    period: Period
    open_for_ms: int
    """The time since the period opened, by this machine's clock."""
    stopped: str
    rerun: bool
    leader: str | None
    """The live member that is the leader; None if there is no live member."""
    members: int
    partitions: tuple[PartitionStatus, ...]

    @property
    def lagging(self) -> list[PartitionStatus]:
        """The partitions that have not finished the open period."""
        return [partition for partition in self.partitions if partition.state == HOLDS]


def status_of(view: BarrierView, open_: OpenNode, now_ms: int) -> RunStatus:
    """Returns the status of a run from a consistent view; ``open_`` is its open period."""
    barrier = view.seen.barrier()
    assert barrier is not None  # the view is consistent
    number, open_for_ms = open_.number, max(0, now_ms - open_.opened_ms)
    finished = view.seen.finished()
    idle = {tp for node in view.seen.progress.values() for tp in node.idle if node.finished.get(tp) == number}
    owners: Mapping[TopicPartition, str] = {
        tp: name for name, member in sorted(view.members.items()) for tp in member.owned
    }
    rows = []
    for partition in sorted(barrier.partitions):
        owner = owners.get(partition)
        node = view.members[owner] if owner is not None else None
        done = finished.get(partition, -1) >= number
        rows.append(
            PartitionStatus(
                number,
                partition,
                HOLDS if not done else "idle" if partition in idle else "finished",
                finished.get(partition),
                None if done else open_for_ms,
                owner,
                node.host if node else None,
                node.process if node else None,
            )
        )
    rows.sort(key=lambda row: (row.state != HOLDS, row.partition))
    return RunStatus(
        barrier.period,
        open_for_ms,
        open_.stopped,
        open_.rerun is not None,
        view.leader,
        len(view.members),
        tuple(rows),
    )


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """One partition of a period in the history; None for the row that shows that the period was abandoned."""

    period: Period
    closed: ClosedPeriod | None
    """The record of the closed period; None while it is open."""
    partition: TopicPartition | None
    state: str
    """Without a job ``finished``, ``idle`` or ``abandoned``; of a job's work ``fixed``, ``under way`` or
    ``published``."""
    member: str | None = None
    """The member that reported the partition, or that made the last attempt at the work."""
    offsets: OffsetRange | None = None
    work: Work | None = None
    """The work of a job with fixed offset ranges."""
    abandoned: str | None = None

    @property
    def took_ms(self) -> int | None:
        """How long the period was open."""
        return None if self.closed is None else max(0, self.closed.closed_ms - self.closed.opened_ms)


def history_of(closed: Mapping[int, ClosedPeriod], works: Mapping[tuple[int, str], Work]) -> Iterator[HistoryRow]:
    """Yields the rows of these periods, sorted. A period that is not closed yet has only the rows of its jobs."""
    for number in sorted({*closed, *(number for number, _ in works)}):
        period = closed.get(number)
        jobs = [work for (of, _), work in sorted(works.items()) if of == number]
        by: dict[TopicPartition, str] = {}
        if period is not None:
            by = {tp: member for member, tps in period.by.items() for tp in tps}
            for partition in sorted({*by, *period.ranges} - {tp for work in jobs for tp in work.ranges}):
                state = "idle" if partition in period.idle else "finished"
                offsets = period.ranges.get(partition)
                yield HistoryRow(period.period, period, partition, state, by.get(partition), offsets)
        for work in jobs:
            state = "published" if work.published else "under way" if work.attempts else "fixed"
            last = work.attempts[-1].member if work.attempts else None
            for partition, offsets in sorted(work.ranges.items()):
                of_period = work.period if period is None else period.period
                yield HistoryRow(of_period, period, partition, state, by.get(partition, last), offsets, work)
        if period is not None and period.abandoned:
            yield HistoryRow(period.period, period, None, "abandoned", abandoned=period.abandoned)
