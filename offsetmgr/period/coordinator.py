"""`PeriodCoordinator`: one member of a group whose members process the same period at the same time.

A thread (`member_thread`) communicates with ZooKeeper and updates the state of the member (`member_state`). The methods
of `PeriodCoordinator` read the member's state and wait for changes of it.

The steps at the end of a period, in order: the partition's results are durable -> the caller calls `finished` -> the
report is in ZooKeeper -> the leader has read it -> one transaction opens the next period -> `wait` returns in every
member. If a member or the leader dies between two steps, the completed steps keep their effect, and the next leader
continues with the next step.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Final, Self

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import Conflict, LateRecord, TimedOut, UsageError
from offsetmgr.core.model import TopicPartition
from offsetmgr.period.barrier import OpenPeriod, ReportStatus, TimePosition
from offsetmgr.period.leader import CoordinatorOptions, LeaderRound, ListPartitions
from offsetmgr.period.member_state import MemberState
from offsetmgr.period.member_thread import MemberThread
from offsetmgr.period.records import OffsetRange
from offsetmgr.period.schedule import Period, PeriodSchedule
from offsetmgr.period.state_nodes import BarrierStateStore
from offsetmgr.zookeeper.client.session import ZookeeperSession

_LOG: Final = logging.getLogger("offsetmgr.period")
_CANCEL_POLL_S: Final = 0.05
"""Seconds between two checks of the event that cancels a wait."""


class PeriodCoordinator:
    """One member of the group. The class performs no I/O before `start`, and is a context manager. All methods are
    thread-safe.

    The member reconnects after it loses its connection or session. Until the member has reconnected, calls such as
    `wait` continue to wait, and `time_position` raises `OpenPeriodUnknown`. A permanent error ends the membership, and
    every later call raises it.

    Example::

        from offsetmgr.period import OffsetRange, PeriodCoordinator, PeriodSchedule, TopicPartition

        hourly, orders = PeriodSchedule(1_700_006_400_000, 3_600_000), TopicPartition("orders", 0)
        worker = PeriodCoordinator("h1:2181", "/shop/periods", "worker-1", hourly, lambda: [orders], owned=[orders])
        with worker as member:
            if member.check_limit(1_700_006_400_005, orders):  # a record with this time may be processed
                print("a record of the open period")
            period = member.current_period_complete({orders: OffsetRange(0, 5)}, timeout_s=30)
            print("period", period.number, "is open")
    """

    def __init__(
        self,
        zookeeper: str,
        root: str,
        member: str,
        schedule: PeriodSchedule,
        topics: ListPartitions,
        *,
        owned: Iterable[TopicPartition] = (),
        config: ConnectionConfig | None = None,
        options: CoordinatorOptions | None = None,
    ) -> None:
        """``zookeeper`` is a connect string, ``root`` the path of the run's nodes, ``member`` the name of this member.
        ``owned`` are the partitions that the member consumes.

        ``schedule`` applies only if no period was ever opened under ``root``; otherwise the run keeps its schedule.
        ``topics`` returns all partitions that take part at present. Raises `InvalidUri`, `UsageError`.
        """
        if not member or "/" in member or member in (".", ".."):
            raise UsageError(f"member {member!r}", "cannot be the name of a node")
        session = ZookeeperSession(zookeeper, config)
        BarrierStateStore(session, root)  # reports invalid addresses and paths at once
        self.member = member
        self.root = root
        self._zookeeper = f"ZooKeeper at {session.hosts}"
        chosen = options or CoordinatorOptions()
        self._state = MemberState(member, root, owned)
        leader_round = LeaderRound(schedule, topics, chosen)
        self._thread = MemberThread(zookeeper, config, chosen.session_timeout_ms, self._state, leader_round)

    # --- start and stop -------------------------------------------------------------------------------

    def start(self, timeout_s: float = 30.0) -> Self:
        """Joins the group, and waits for up to ``timeout_s`` seconds until the open period is known.

        If the open period is not known by then, leaves the group and raises the last error, or `TimedOut` if there was
        no error. Raises `LegacyMembersPresent` if the original coordinator has written under ``root``.
        """
        state = self._state
        self._thread.start()
        try:
            with state.changed:
                if not state.changed.wait_for(lambda: state.ready() or state.ended, timeout_s):
                    connected = self._thread.connected
                    why = "no period is open yet" if connected else f"{self._zookeeper} does not respond"
                    raise state.error or TimedOut(f"member {self.member}", f"{why}, after {timeout_s:g} s")
                state.check()
                assert state.open is not None
                state.deliver(state.open.number)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Leaves the group within a few seconds. The member's reports stay in ZooKeeper. Calls of this object's methods
        that are still waiting in other threads raise an error."""
        self._thread.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait_registered(self, timeout_s: float = 30.0) -> int:
        """Waits for up to ``timeout_s`` seconds until this process is registered, and returns its epoch.

        The epoch is larger than that of every earlier process with this member's name. When this call returns, another
        process with the same member name may already have replaced this process. Therefore every write that depends on
        the registration must contain the epoch. Raises `Conflict` if another live process is registered under this
        member's name, `TimedOut` after ``timeout_s``, or the error that ended the membership.
        """
        state = self._state
        with state.changed:
            if not state.changed.wait_for(lambda: state.epoch is not None or state.ended, timeout_s):
                raise state.error or TimedOut(f"member {self.member}", "is not registered in ZooKeeper")
            state.check()
            assert state.epoch is not None
            return state.epoch

    # --- member API ----------------------------------------------------------------------------------

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """The partitions that this member consumes (see `own`)."""
        return self._state.owned

    def own(self, partitions: Iterable[TopicPartition]) -> None:
        """Sets the partitions that this member consumes from now on. Until the progress of all members has been read
        again, `time_position` raises `OpenPeriodUnknown`."""
        self._state.own(partitions)
        self._thread.wake()

    def open_period(self) -> OpenPeriod | None:
        """Returns the open period and its partitions. Returns None while the open period is unknown. Never waits."""
        return self._state.open_period()

    def limit(self, partition: TopicPartition) -> int | None:
        """Returns a time in ms: records of this partition with this time or a later time must wait. Returns None while
        the open period is unknown. Never waits.

        The limit is the end of the open period. For a partition that takes part only from the next period on, the limit
        is the start of the open period.
        """
        open_ = self.open_period()
        if open_ is None:
            return None
        return open_.period.end_ms if partition in open_.partitions else open_.period.start_ms

    def time_position(self, timestamp_ms: int, partition: TopicPartition) -> TimePosition:
        """Returns whether a record's time is before, within or after the open period. A time within the open period is
        EARLIER if the partition has already finished the period, and LATER if the partition takes part only from the
        next period on.

        Raises `OpenPeriodUnknown` in two cases: the open period has not been read yet, or ZooKeeper has not responded
        for so long that the other members may have advanced to a later period. Because of the second case, a process
        that continues after a freeze does not mistake an old period for the open period.
        """
        return self._state.time_position(timestamp_ms, partition)

    def check_limit(self, timestamp_ms: int, partition: TopicPartition) -> bool:
        """Returns whether a record belongs to the open period. If the method returns False, the partition must wait for
        the next period.

        Raises `LateRecord` if the partition has already finished the record's period, and `OpenPeriodUnknown` (see
        `time_position`).
        """
        position = self.time_position(timestamp_ms, partition)
        if position is TimePosition.EARLIER:
            raise LateRecord(f"record of {partition} at {timestamp_ms}", "belongs to a period that it has finished")
        return position is TimePosition.OPEN

    def paused(self) -> list[TopicPartition]:
        """Returns the partitions of this member that must wait, because they have finished the open period or take part
        only from the next period on."""
        return self._state.paused()

    def finished(
        self,
        partitions: Iterable[TopicPartition] | Mapping[TopicPartition, OffsetRange],
        number: int | None = None,
        timeout_s: float = 30.0,
    ) -> dict[TopicPartition, ReportStatus]:
        """Reports that these partitions have finished period ``number`` and that their work is durable. Returns when
        the report is in ZooKeeper. If ``partitions`` is a mapping, its offset ranges are reported as well and become
        part of the period's entry in the history.

        Without ``number``, a partition's report concerns the period that the caller received last for this partition
        from `time_position` or `current_period_complete`. If the caller received no period for the partition from these
        methods, or if the partition has already finished that period, the report concerns the period that the caller
        received last from `wait` or `start`. Only a report with the status `ReportStatus.ACCEPTED` or `DUPLICATE` has
        an effect. Raises `OpenPeriodUnknown`, `TimedOut`, and the error that ended the membership. After `TimedOut`,
        the member's thread still writes the report; repeating the call is safe.
        """
        return self._finished(partitions, number, _Deadline(timeout_s))[0]

    def _finished(
        self,
        partitions: Iterable[TopicPartition] | Mapping[TopicPartition, OffsetRange],
        number: int | None,
        deadline: _Deadline,
    ) -> tuple[dict[TopicPartition, ReportStatus], dict[TopicPartition, int]]:
        state = self._state
        ranges = partitions if isinstance(partitions, Mapping) else {}
        statuses, at = state.report(partitions, number, ranges)
        self._thread.wake()
        waiting = {tp: at[tp] for tp, v in statuses.items() if v in (ReportStatus.ACCEPTED, ReportStatus.DUPLICATE)}
        with state.changed:
            while not state.written(waiting):
                state.check()
                left = deadline.left(f"report of member {self.member}", "is not in ZooKeeper", "the wait for it")
                state.changed.wait(left)
        return statuses, at

    def wait(self, after: int, timeout_s: float | None = None, cancel: threading.Event | None = None) -> Period:
        """Waits until a period with a number above ``after`` is open, and returns this period.

        The returned period may have a number above ``after + 1``: if other members have taken over and finished this
        member's partitions, the run may have advanced by several periods. Raises `TimedOut` (also when ``cancel`` is
        set), `RunEnded` if no further period will open, and `Conflict` if this member has left.
        """
        return self._wait(after, _Deadline(timeout_s, cancel), ())

    def _wait(self, after: int, deadline: _Deadline, partitions: Iterable[TopicPartition]) -> Period:
        state = self._state
        with state.changed:
            while (number := state.next_after(after)) is None:
                what, why = f"member {self.member}", f"period {after} is still open"
                state.changed.wait(deadline.left(what, why, f"its wait for the end of period {after}"))
            return state.deliver(number, partitions)

    def current_period_complete(
        self,
        partitions: Iterable[TopicPartition] | Mapping[TopicPartition, OffsetRange],
        timeout_s: float | None = None,
        cancel: threading.Event | None = None,
    ) -> Period:
        """Reports these partitions as `finished` does, waits until all other partitions have finished too, and returns
        the next period.

        A member that consumes several partitions with one thread must not call this method for one of them. It calls
        `finished` for each partition, pauses the partitions that `paused` returns, and continues with its other
        partitions. When all of its partitions have finished, it calls `wait`. Raises `Conflict` if this member consumes
        another partition that has not finished the period, because the period cannot close while this member waits.
        ``timeout_s`` (`None` means no limit) and ``cancel`` apply to the report and the wait together. If a report is
        late, the method logs the report. After a late report, the returned period may be later than the period directly
        after the reported period, because the run may have advanced by several periods. Also raises the errors of
        `finished` and `wait`.
        """
        named = partitions if isinstance(partitions, Mapping) else list(partitions)
        if not named:
            raise UsageError(f"member {self.member}", "reports no partition: the list of finished partitions is empty")
        deadline = _Deadline(timeout_s, cancel)
        statuses, at = self._finished(named, None, deadline)
        if late := sorted(tp for tp, status in statuses.items() if status is ReportStatus.LATE):
            shown = ", ".join(f"{tp} of period {at[tp]}" for tp in late[:3]) + (" and more" if len(late) > 3 else "")
            _LOG.warning("member %s: late report ignored, the period is already closed: %s", self.member, shown)
        number = max(at.values())
        if unfinished := self._state.unfinished_own_partitions(number):
            shown = ", ".join(map(str, unfinished[:3]))
            raise Conflict(
                f"member {self.member}",
                f"would wait forever for {shown}, which this member consumes itself",
                "report all of its partitions, or use finished() and wait()",
            )
        return self._wait(number, deadline, named)


class _Deadline:
    """The time limit of a call that waits several times (in seconds; `None` means no limit), and the event that cancels
    the call."""

    def __init__(self, timeout_s: float | None, cancel: threading.Event | None = None) -> None:
        self._timeout_s = timeout_s
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._cancel = cancel

    def left(self, what: str, why: str, cancelled: str) -> float | None:
        """Returns the seconds until the next check; `None` if there is neither a time limit nor a cancel event. Raises
        `TimedOut` if the time limit has passed or the wait was cancelled."""
        left = None if self._deadline is None else self._deadline - time.monotonic()
        if self._cancel is not None and self._cancel.is_set():
            raise TimedOut(what, f"{cancelled} was cancelled")
        if left is not None and left <= 0:
            raise TimedOut(what, f"{why} after {self._timeout_s:g} s")
        if self._cancel is None:
            return left
        return _CANCEL_POLL_S if left is None else min(left, _CANCEL_POLL_S)
