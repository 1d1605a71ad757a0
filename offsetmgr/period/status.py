"""The status of a run: the partitions that have not finished the open period, how long the run has waited for them, and
the members that consume them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from offsetmgr.core.errors import Conflict
from offsetmgr.core.model import TopicPartition
from offsetmgr.period.schedule import Period
from offsetmgr.period.state_nodes import BarrierView


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition of the open period."""

    partition: TopicPartition
    finished: bool
    idle: bool
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
    opened_ms: int
    stopped: str
    rerun: bool
    leader: str | None
    """The live member that is the leader; None if there is no live member."""
    members: int
    partitions: tuple[PartitionStatus, ...]

    @property
    def lagging(self) -> list[PartitionStatus]:
        """The partitions that have not finished the open period."""
        return [partition for partition in self.partitions if not partition.finished]


def status_of(view: BarrierView, now_ms: int) -> RunStatus | None:
    """Returns the status of the run; None before the first period.

    Raises `Conflict` if the two nodes belong to different periods because the run has just advanced; the caller must
    then read the nodes again.
    """
    open_, barrier = view.seen.open_, view.seen.barrier()
    if open_ is None:
        return None
    if barrier is None:
        raise Conflict("the run", "has just advanced to another period", "try again")
    number = open_.number
    finished = view.seen.finished()
    idle = {tp for node in view.seen.progress.values() for tp in node.idle if node.finished.get(tp) == number}
    owners: Mapping[TopicPartition, str] = {
        tp: name for name, member in sorted(view.members.items()) for tp in member.node.owned
    }
    rows = []
    for partition in sorted(barrier.partitions):
        owner = owners.get(partition)
        node = view.members[owner].node if owner is not None else None
        done = finished.get(partition, -1) >= number
        rows.append(
            PartitionStatus(
                partition,
                done,
                partition in idle,
                finished.get(partition),
                None if done else max(0, now_ms - open_.opened_ms),
                owner,
                node.host if node else None,
                node.process if node else None,
            )
        )
    rows.sort(key=lambda row: (row.finished, row.partition))
    return RunStatus(
        barrier.period,
        open_.opened_ms,
        open_.stopped,
        open_.rerun is not None,
        view.leader,
        len(view.members),
        tuple(rows),
    )
