"""`MemberState`: the state of one member, under one lock: one thread fills it from ZooKeeper, others wait for it.

It also records the last period that the member's own code received. A report without a number concerns that period,
never the one that happens to be open. Otherwise a consumer that was frozen, and wakes when others are periods further,
would report a period that it has never seen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from offsetmgr.core.errors import Conflict, OffsetMgrError, OpenPeriodUnknown, RunEnded
from offsetmgr.core.model import TopicPartition
from offsetmgr.period.barrier import OpenPeriod, ReportStatus, TimePosition, check_report
from offsetmgr.period.node_codec import OffsetRange
from offsetmgr.period.records import OpenNode, PartitionsNode, ProgressNode
from offsetmgr.period.schedule import Period

_NEVER: Final = -1


class MemberState:
    """Guarded by ``changed``, which is notified of every change. Methods acquire the lock themselves."""

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
        """This process's epoch, while its session is believed to be alive."""
        self.valid: Callable[[], bool] = lambda: False
        """Whether the session is known to be alive, according to its `SessionLease`."""
        self._known: dict[TopicPartition, int] = {}
        """Finished partitions, as far as this member has read or written them."""
        self._reported: dict[TopicPartition, int] = {}
        """Partitions that this member has finished; in ZooKeeper only once they are in ``_known``."""
        self._ranges: dict[TopicPartition, tuple[int, OffsetRange]] = {}
        self._told: dict[TopicPartition, int] = {}
        self._given = _NEVER
        self._all_seen = False
        """Whether the others' progress has been read since the owned partitions or the session last changed."""

    # --- called by the member's own code -------------------------------------------------------------

    def ready(self) -> bool:
        """Whether all nodes that results depend on have been read."""
        return self.open is not None and self._all_seen

    def check(self) -> None:
        """Raises the error that ended the membership."""
        if self.ended:
            raise self.error or Conflict(f"member {self.member}", "has left")

    def own(self, partitions: Iterable[TopicPartition]) -> None:
        with self.changed:
            self.owned = frozenset(partitions)
            self._all_seen = False

    def open_period(self) -> OpenPeriod | None:
        with self.changed:
            if self.open is None:
                return None
            return OpenPeriod(self.open.schedule.period(self.open.number), self.partitions)

    def surely_open(self) -> OpenPeriod:
        """Raises `OpenPeriodUnknown`."""
        open_ = self.open_period()
        if open_ is None:
            raise OpenPeriodUnknown(f"member {self.member}", "which period is open has not been read yet")
        return open_

    def place(self, timestamp_ms: int, partition: TopicPartition) -> TimePosition:
        """Raises `OpenPeriodUnknown`, also while it is unknown whether the nodes have changed."""
        with self.changed:
            open_ = self.surely_open()
            if not self._all_seen or not self.valid():
                raise OpenPeriodUnknown(f"member {self.member}", "ZooKeeper has not answered lately")
            number = open_.period.number
            self._told[partition] = number
            place = open_.place(timestamp_ms)
            if place is TimePosition.OPEN and partition not in open_.partitions:
                return TimePosition.LATER
            return TimePosition.EARLIER if place is TimePosition.OPEN and self.done(partition, number) else place

    def done(self, partition: TopicPartition, number: int) -> bool:
        return max(self._known.get(partition, _NEVER), self._reported.get(partition, _NEVER)) >= number

    def paused(self) -> list[TopicPartition]:
        with self.changed:
            if self.open is None:
                return sorted(self.owned)
            return sorted(tp for tp in self.owned if tp not in self.partitions or self.done(tp, self.open.number))

    def give(self, number: int, partitions: Iterable[TopicPartition] = ()) -> Period:
        """Returns period ``number`` and records that the member's code has received it, for these or for all of its
        partitions."""
        with self.changed:
            assert self.open is not None
            told = list(partitions)
            for partition in told:
                self._told[partition] = number
            if not told:
                self._given = max(number, self._given)
            return self.open.schedule.period(number)

    def told(self, partition: TopicPartition) -> int:
        """The period that the member's code received last, for a partition that it has not finished there."""
        told = self._told.get(partition, _NEVER)
        return self._given if told == _NEVER or self.done(partition, told) else told

    def behind(self, number: int) -> list[TopicPartition]:
        """This member's own partitions that hold period ``number``, if it is the open one."""
        with self.changed:
            if self.open is None or self.open.number != number:
                return []
            return sorted(tp for tp in self.owned & self.partitions if not self.done(tp, number))

    def report(
        self, partitions: Iterable[TopicPartition], number: int | None, ranges: Mapping[TopicPartition, OffsetRange]
    ) -> tuple[dict[TopicPartition, ReportStatus], dict[TopicPartition, int]]:
        """Records a report; returns each partition's status and the report's period."""
        with self.changed:
            self.check()
            open_ = self.surely_open()
            at = {tp: self.told(tp) if number is None else number for tp in partitions}
            known = {tp: max(self._known.get(tp, _NEVER), self._reported.get(tp, _NEVER)) for tp in at}
            verdicts = {tp: check_report(open_, known, tp, at[tp]) for tp in at}
            for partition, verdict in verdicts.items():
                if verdict is ReportStatus.ACCEPTED:
                    self._reported[partition] = at[partition]
                    if partition in ranges:
                        self._ranges[partition] = (at[partition], ranges[partition])
                elif verdict is ReportStatus.LATE and self._told.get(partition, _NEVER) <= at[partition]:
                    self._told.pop(partition, None)  # the caller learns now that this period is over
            return verdicts, at

    def written(self, at: Mapping[TopicPartition, int]) -> bool:
        return all(self._known.get(partition, _NEVER) >= number for partition, number in at.items())

    # --- called by the thread that communicates with ZooKeeper ---------------------------------------

    def must_read_all(self) -> bool:
        """Whether the open period alone is not sufficient: others' progress matters, or a report must be written."""
        with self.changed:
            return not self._all_seen or any(n > self._known.get(tp, _NEVER) for tp, n in self._reported.items())

    def forget_session(self) -> None:
        """Invalidates everything until it has been read in a new session."""
        with self.changed:
            self.valid = lambda: False
            self.epoch = None
            self._all_seen = False

    def take_registered(self, epoch: int, valid: Callable[[], bool]) -> None:
        """The member is registered under ``epoch``, as long as ``valid`` returns True."""
        with self.changed:
            self.epoch, self.valid = epoch, valid
            self.changed.notify_all()

    def end(self, error: OffsetMgrError | None) -> None:
        with self.changed:
            self.ended, self.error = True, error or self.error
            self.changed.notify_all()

    def trouble(self, error: OffsetMgrError) -> None:
        """Records the present problem, which only a waiting `start` raises."""
        with self.changed:
            self.error = error
            self.changed.notify_all()

    def take_finished(self, finished: Mapping[TopicPartition, int], described: frozenset[TopicPartition]) -> None:
        """Records all members' progress, read while ``described`` were this member's partitions."""
        with self.changed:
            for partition, number in finished.items():
                self._known[partition] = max(number, self._known.get(partition, _NEVER))
            self._all_seen = described == self.owned
            self.changed.notify_all()

    def take_open(self, open_: OpenNode | None, partitions: PartitionsNode | None) -> bool:
        """Returns whether the two nodes did not match and must be read again."""
        if open_ is None or partitions is None or partitions.number != open_.number:
            return open_ is not None
        with self.changed:
            if self.open is None or open_.number >= self.open.number:
                self.open, self.partitions, self.error = open_, partitions.partitions, None
            self.changed.notify_all()
        return False

    def unwritten(self, before: ProgressNode | None, epoch: int) -> ProgressNode | None:
        """The new content of this member's node, which is ``before`` now; None if it is up to date.

        It is written once per session even without news: its epoch prevents an earlier process of this name from
        writing.
        """
        finished: Mapping[TopicPartition, int] = before.finished if before else {}
        with self.changed:
            new = {tp: n for tp, n in self._reported.items() if n > finished.get(tp, _NEVER)}
            told = {tp: self._ranges[tp][1] for tp, n in new.items() if tp in self._ranges and self._ranges[tp][0] == n}
        if before is not None and before.epoch == epoch and not new:
            return None
        idle = before.idle - new.keys() if before else frozenset()
        kept = {tp: found for tp, found in (before.ranges if before else {}).items() if tp not in new}
        return ProgressNode(self.member, epoch, {**finished, **new}, frozenset(idle), {**kept, **told})

    def take_written(self, node: ProgressNode) -> None:
        """The member's node is in ZooKeeper."""
        with self.changed:
            for partition, number in node.finished.items():
                self._known[partition] = max(number, self._known.get(partition, _NEVER))
                if self._reported.get(partition, _NEVER) <= number:
                    self._reported.pop(partition, None)
                    self._ranges.pop(partition, None)
            self.changed.notify_all()

    # --- waiting ------------------------------------------------------------------------------------

    def next_after(self, number: int) -> int | None:
        """The open period's number if it is after ``number``. Raises `RunEnded`, and what ended the membership."""
        if self.open is not None and self.open.number > number:
            return self.open.number
        if self.open is not None and self.open.stopped:
            raise RunEnded(f"run of {self.root}", self.open.stopped, done=self.open.done)
        self.check()
        return None
