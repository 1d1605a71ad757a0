"""`MemberState`: the state of one member, which `MemberThread` updates from ZooKeeper.

The caller's threads read the state through `PeriodCoordinator` and wait until it changes.

The state includes the period that the caller received last. If a report does not contain the number of a period, it is
a report on the period that the caller received last, even if another period is open by now. If it were a report on the
open period, a consumer that was frozen while the other members advanced would report a period that it has never
processed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from offsetmgr.core.errors import Conflict, OffsetMgrError, OpenPeriodUnknown, RunEnded
from offsetmgr.core.model import TopicPartition
from offsetmgr.period.barrier import OpenPeriod, ReportStatus, TimePosition, check_report, merged
from offsetmgr.period.records import OffsetRange, OpenNode, PartitionsNode, ProgressNode
from offsetmgr.period.schedule import Period

_NEVER: Final = -1


class MemberState:
    """The state of one member. The lock of the condition ``changed`` protects the state. The methods that make a change
    for which a caller may wait notify the condition."""

    def __init__(self, member: str, root: str, owned: Iterable[TopicPartition]) -> None:
        self.member = member
        self.root = root
        self.changed = threading.Condition()
        self.owned = frozenset(owned)
        self.open: OpenNode | None = None
        self.partitions = frozenset[TopicPartition]()
        self.ended = False
        self.error: OffsetMgrError | None = None
        self.epoch: int | None = None
        """The epoch with which this process is registered in its present session; `None` if the process is not
        registered."""
        self.valid: Callable[[], bool] = lambda: False
        """A function that returns whether the session is known to be alive, according to its `SessionLease`."""
        self._written: dict[TopicPartition, int] = {}
        """For each partition the number of its newest finished period, among the numbers that this member has read from
        ZooKeeper or written to ZooKeeper."""
        self._reported: dict[TopicPartition, int] = {}
        """For each partition the period that the caller has reported as finished. An entry is removed when the report
        is in ZooKeeper."""
        self._ranges: dict[TopicPartition, tuple[int, OffsetRange]] = {}
        self._delivered_by_partition: dict[TopicPartition, int] = {}
        self._delivered = _NEVER
        self._all_read = False
        """Whether the progress of all members has been read since the last change of the owned partitions or of the
        session."""

    # --- called by the member's own code -------------------------------------------------------------

    def ready(self) -> bool:
        """Returns whether the open period and the progress of all members have been read."""
        return self.open is not None and self._all_read

    def check(self) -> None:
        """Raises the error that ended the membership."""
        if self.ended:
            raise self.error or Conflict(f"member {self.member}", "has left")

    def own(self, partitions: Iterable[TopicPartition]) -> None:
        with self.changed:
            self.owned = frozenset(partitions)
            self._all_read = False

    def open_period(self) -> OpenPeriod | None:
        with self.changed:
            if self.open is None:
                return None
            return OpenPeriod(self.open.schedule.period(self.open.number), self.partitions)

    def require_open(self) -> OpenPeriod:
        """Returns the open period. Raises `OpenPeriodUnknown` if it has not been read yet."""
        open_ = self.open_period()
        if open_ is None:
            raise OpenPeriodUnknown(f"member {self.member}", "the open period has not been read from ZooKeeper yet")
        return open_

    def time_position(self, timestamp_ms: int, partition: TopicPartition) -> TimePosition:
        """See `PeriodCoordinator.time_position`. Also records that the caller has received the open period."""
        with self.changed:
            open_ = self.require_open()
            if not self._all_read or not self.valid():
                raise OpenPeriodUnknown(
                    f"member {self.member}", "ZooKeeper has not responded recently, so the open period may have changed"
                )
            number = open_.period.number
            self._delivered_by_partition[partition] = number
            position = open_.time_position(timestamp_ms)
            if position is TimePosition.OPEN and partition not in open_.partitions:
                return TimePosition.LATER
            return TimePosition.EARLIER if position is TimePosition.OPEN and self.done(partition, number) else position

    def done(self, partition: TopicPartition, number: int) -> bool:
        return max(self._written.get(partition, _NEVER), self._reported.get(partition, _NEVER)) >= number

    def paused(self) -> list[TopicPartition]:
        with self.changed:
            if self.open is None:
                return sorted(self.owned)
            return sorted(tp for tp in self.owned if tp not in self.partitions or self.done(tp, self.open.number))

    def deliver(self, number: int, partitions: Iterable[TopicPartition] = ()) -> Period:
        """Returns period ``number``, and records that the caller has received this period for ``partitions``. If
        ``partitions`` is empty, records it for all partitions of the member."""
        with self.changed:
            assert self.open is not None
            received = list(partitions)
            self._delivered_by_partition |= dict.fromkeys(received, number)
            if not received:
                self._delivered = max(number, self._delivered)
            return self.open.schedule.period(number)

    def last_delivered(self, partition: TopicPartition) -> int:
        """Returns the number of the period that the caller received last for a partition. This is the last period that
        the caller received for this partition in particular, unless the partition has finished that period. In this
        case, or if there is no such period, it is the last period that the caller received for all partitions of the
        member."""
        number = self._delivered_by_partition.get(partition, _NEVER)
        return self._delivered if number == _NEVER or self.done(partition, number) else number

    def unfinished_own_partitions(self, number: int) -> list[TopicPartition]:
        """Returns this member's partitions that have not finished period ``number``. The list is empty if period
        ``number`` is not open."""
        with self.changed:
            if self.open is None or self.open.number != number:
                return []
            return sorted(tp for tp in self.owned & self.partitions if not self.done(tp, number))

    def report(
        self, partitions: Iterable[TopicPartition], number: int | None, ranges: Mapping[TopicPartition, OffsetRange]
    ) -> tuple[dict[TopicPartition, ReportStatus], dict[TopicPartition, int]]:
        """Records a report, which `MemberThread` will write. Returns two mappings with the partitions as keys: the
        status of the report, and the number of the reported period."""
        delivered = self._delivered_by_partition
        with self.changed:
            self.check()
            open_ = self.require_open()
            at = {tp: self.last_delivered(tp) if number is None else number for tp in partitions}
            known = merged([self._written, self._reported])
            statuses = {tp: check_report(open_, known, tp, at[tp]) for tp in at}
            for partition, status in statuses.items():
                if status is ReportStatus.ACCEPTED:
                    self._reported[partition] = at[partition]
                    if partition in ranges:
                        self._ranges[partition] = (at[partition], ranges[partition])
                elif status is ReportStatus.LATE and delivered.get(partition, _NEVER) <= at[partition]:
                    # The returned status tells the caller that this period is closed.
                    delivered.pop(partition, None)
            return statuses, at

    def written(self, at: Mapping[TopicPartition, int]) -> bool:
        return all(self._written.get(partition, _NEVER) >= number for partition, number in at.items())

    # --- called by the thread that communicates with ZooKeeper ---------------------------------------

    def needs_full_read(self) -> bool:
        """Returns True if the progress of the other members is unknown or a report must be written. In both cases the
        thread must read all nodes; otherwise it is sufficient to read the open period."""
        with self.changed:
            return not self._all_read or any(n > self._written.get(tp, _NEVER) for tp, n in self._reported.items())

    def invalidate_session(self) -> None:
        """Records that the session has ended. The state counts as unknown until a new session has read the nodes."""
        with self.changed:
            self.valid = lambda: False
            self.epoch = None
            self._all_read = False

    def set_registered(self, epoch: int, valid: Callable[[], bool]) -> None:
        """Records that the member is registered with ``epoch``. The session is known to be alive as long as ``valid``
        returns True."""
        with self.changed:
            self.epoch, self.valid = epoch, valid
            self.changed.notify_all()

    def end(self, error: OffsetMgrError | None) -> None:
        with self.changed:
            self.ended, self.error = True, error or self.error
            self.changed.notify_all()

    def set_error(self, error: OffsetMgrError) -> None:
        """Records a temporary error, which `PeriodCoordinator.start` raises if its wait times out."""
        with self.changed:
            self.error = error
            self.changed.notify_all()

    def set_finished(self, finished: Mapping[TopicPartition, int], described: frozenset[TopicPartition]) -> None:
        """Records the progress of all members. ``described`` are the partitions that this member's node under
        ``members`` contained when the progress was read."""
        with self.changed:
            self._written = merged([self._written, finished])
            self._all_read = described == self.owned
            self.changed.notify_all()

    def set_open(self, open_: OpenNode | None, partitions: PartitionsNode | None) -> bool:
        """Records the open period and its partitions. If the two nodes do not belong to the same period, records
        nothing and returns True; the caller must read both nodes again."""
        if open_ is None or partitions is None or partitions.number != open_.number:
            return open_ is not None
        with self.changed:
            if self.open is None or open_.number >= self.open.number:
                self.open, self.partitions, self.error = open_, partitions.partitions, None
            self.changed.notify_all()
        return False

    def unwritten(self, before: ProgressNode | None, epoch: int) -> ProgressNode | None:
        """Returns the new content of this member's progress node; `None` if the present content ``before`` is up to
        date. The member writes the node at least once in each session, so that the node contains the epoch of the
        session. An earlier process with this member's name does not write a node that contains a larger epoch than its
        own.
        """
        finished: Mapping[TopicPartition, int] = before.finished if before else {}
        with self.changed:
            new = {tp: n for tp, n in self._reported.items() if n > finished.get(tp, _NEVER)}
            new_ranges = {
                tp: self._ranges[tp][1] for tp, n in new.items() if tp in self._ranges and self._ranges[tp][0] == n
            }
        if before is not None and before.epoch == epoch and not new:
            return None
        idle = before.idle - new.keys() if before else frozenset()
        kept = {tp: found for tp, found in (before.ranges if before else {}).items() if tp not in new}
        return ProgressNode(self.member, epoch, {**finished, **new}, frozenset(idle), {**kept, **new_ranges})

    def set_written(self, node: ProgressNode) -> None:
        """Records that this content of the member's progress node is in ZooKeeper."""
        with self.changed:
            for partition, number in node.finished.items():
                self._written[partition] = max(number, self._written.get(partition, _NEVER))
                if self._reported.get(partition, _NEVER) <= number:
                    self._reported.pop(partition, None)
                    self._ranges.pop(partition, None)
            self.changed.notify_all()

    # --- waiting ------------------------------------------------------------------------------------

    def next_after(self, number: int) -> int | None:
        """Returns the number of the open period if it is above ``number``, otherwise None. Raises `RunEnded` if no
        further period will open. Raises the error of `check` if the membership has ended."""
        if self.open is not None and self.open.number > number:
            return self.open.number
        if self.open is not None and self.open.stopped:
            raise RunEnded(f"run of {self.root}", self.open.stopped, done=self.open.done)
        self.check()
        return None
