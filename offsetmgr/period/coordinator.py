"""`PeriodCoordinator`: one member of a group that goes through periods in step.

One thread communicates with ZooKeeper (`member_thread`). The methods here read what that thread has received
(`member_state`), and wait for it.

The end of a period, in order: a partition's work is durable -> `finished` -> the report is in ZooKeeper -> the leader
has read it -> one transaction opens the next period -> `wait` returns in every member. If a member or leader dies
between two of these, the completed steps remain, and the next leader continues from there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.clock import Clock, SystemClock
from offsetmgr.core.errors import Conflict, LateRecord, TimedOut, UsageError
from offsetmgr.core.model import TopicPartition
from offsetmgr.period.barrier import OpenPeriod, ReportStatus, TimePosition
from offsetmgr.period.leader import HISTORY_KEPT, Idle, LeaderRound, Topics
from offsetmgr.period.member_state import MemberState
from offsetmgr.period.member_thread import MemberThread
from offsetmgr.period.node_codec import OffsetRange
from offsetmgr.period.schedule import Period, PeriodSchedule
from offsetmgr.period.state_nodes import BarrierStateStore
from offsetmgr.zookeeper.client.session import ZookeeperSession

_LOG: Final = logging.getLogger("offsetmgr.period")
_CANCEL_POLL_S: Final = 0.05
"""Seconds between two checks of the event that cancels a wait."""


@dataclass(frozen=True, slots=True)
class CoordinatorOptions:
    """Optional settings of a `PeriodCoordinator`.

    ``idle`` returns which of some partitions have no record in a period (`idle_partitions.idle_partitions`); it is
    called once the period's end and ``grace_ms`` have passed by the wall clock. The leader keeps the newest
    ``history_kept`` periods' entries.
    """

    idle: Idle | None = None
    grace_ms: int = 0
    history_kept: int = HISTORY_KEPT
    session_timeout_ms: int = 6_000
    clock: Clock | None = None


class PeriodCoordinator:
    """See the module's docstring. No I/O before `start`; a context manager. All methods are thread-safe.

    The member recovers from a lost connection or session by itself: waiting calls continue to wait, and `place` raises
    `OpenPeriodUnknown` meanwhile. A permanent error ends the membership, and every later call raises it.
    """

    def __init__(
        self,
        zookeeper: str,
        root: str,
        member: str,
        schedule: PeriodSchedule,
        topics: Topics,
        *,
        owned: Iterable[TopicPartition] = (),
        config: ConnectionConfig | None = None,
        options: CoordinatorOptions | None = None,
    ) -> None:
        """``schedule`` applies if no period was ever opened under ``root``; afterwards the first one's is kept.

        ``topics`` returns every partition that takes part at present. Raises `InvalidUri`, `UsageError`.
        """
        if not member or "/" in member or member in (".", ".."):
            raise UsageError(f"member {member!r}", "cannot be the name of a node")
        session = ZookeeperSession(zookeeper, config)
        BarrierStateStore(session, root)  # reports invalid addresses and paths at once
        self.member = member
        self.root = root
        self._zookeeper = f"ZooKeeper at {session.hosts}"
        chosen = options or CoordinatorOptions()
        leading = LeaderRound(
            schedule, topics, chosen.idle, chosen.grace_ms, chosen.history_kept, chosen.clock or SystemClock()
        )
        self._knowledge = MemberState(member, root, owned)
        self._following = MemberThread(zookeeper, config, chosen.session_timeout_ms, self._knowledge, leading)

    # --- life ---------------------------------------------------------------------------------------

    def start(self, timeout: float = 30.0) -> Self:
        """Joins and waits (seconds) until the open period is known. Raises the error that prevented it, `TimedOut`."""
        knowledge = self._knowledge
        self._following.start()
        try:
            with knowledge.changed:
                if not knowledge.changed.wait_for(lambda: knowledge.ready() or knowledge.ended, timeout):
                    connected = self._following.connected
                    why = "no period is open yet" if connected else f"{self._zookeeper} does not answer"
                    raise knowledge.error or TimedOut(f"member {self.member}", f"{why}, after {timeout:g} s")
                knowledge.check()
                assert knowledge.open is not None
                knowledge.give(knowledge.open.number)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Leaves, within a few seconds. Reports that are in ZooKeeper stay; waiting calls raise an error."""
        self._following.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.stop()

    def registered(self, timeout: float = 30.0) -> int:
        """This process's epoch, larger than that of every earlier process of this member's name; waits (seconds) until
        it is registered. Another process may have replaced it meanwhile, so all writes must carry the epoch.

        Raises `Conflict` if another live process has the name, `TimedOut`, and the error that ended the membership.
        """
        knowledge = self._knowledge
        with knowledge.changed:
            if not knowledge.changed.wait_for(lambda: knowledge.epoch is not None or knowledge.ended, timeout):
                raise knowledge.error or TimedOut(f"member {self.member}", "is not registered in ZooKeeper")
            knowledge.check()
            assert knowledge.epoch is not None
            return knowledge.epoch

    # --- member API ----------------------------------------------------------------------------------

    @property
    def owned(self) -> frozenset[TopicPartition]:
        return self._knowledge.owned

    def own(self, partitions: Iterable[TopicPartition]) -> None:
        """Sets the partitions that this member consumes from now on. The progress of their earlier owners is read."""
        self._knowledge.own(partitions)
        self._following.wake()

    def open_period(self) -> OpenPeriod | None:
        """The open period and its partitions; None while it is unknown. Never waits."""
        return self._knowledge.open_period()

    def limit(self, partition: TopicPartition) -> int | None:
        """The time (ms) from which records of this partition must wait; None while it is unknown. Never waits.

        For a partition that takes part from the next period on it is the open one's start.
        """
        open_ = self.open_period()
        if open_ is None:
            return None
        return open_.period.end_ms if partition in open_.partitions else open_.period.start_ms

    def place(self, timestamp_ms: int, partition: TopicPartition) -> TimePosition:
        """The position of a record for this partition: EARLIER if the partition has finished its period.

        Raises `OpenPeriodUnknown`, also while ZooKeeper has not responded for so long that others may have continued: a
        member that was frozen and wakes must not treat its record's period as open.
        """
        return self._knowledge.place(timestamp_ms, partition)

    def check_limit(self, timestamp_ms: int, partition: TopicPartition) -> bool:
        """Whether the record belongs to the open period; False: the partition must wait for the next one.

        Raises `LateRecord` for a record of a period that is over for its partition, and `OpenPeriodUnknown` (see
        `place`).
        """
        place = self.place(timestamp_ms, partition)
        if place is TimePosition.EARLIER:
            raise LateRecord(f"record of {partition} at {timestamp_ms}", "belongs to a period that it has finished")
        return place is TimePosition.OPEN

    def paused(self) -> list[TopicPartition]:
        """Those of this member's partitions that have finished the open period (or join at the next): they wait."""
        return self._knowledge.paused()

    def finished(
        self,
        partitions: Iterable[TopicPartition] | Mapping[TopicPartition, OffsetRange],
        number: int | None = None,
        timeout: float = 30.0,
    ) -> dict[TopicPartition, ReportStatus]:
        """Reports that these have finished period ``number`` and that their work is durable; returns when the report is
        in ZooKeeper. A mapping adds each partition's offsets of the period, for the history.

        Without ``number`` it is the period that the caller received last: for a partition from `place` or
        `current_period_complete`, else from `wait` or `start`. Reports other than `ReportStatus.ACCEPTED` and
        `DUPLICATE` have no effect: the caller has skipped a period, or is late. Raises `OpenPeriodUnknown`, `TimedOut`
        (the report will be written later; repeating it is safe), and the error that ended the membership.
        """
        return self._finished(partitions, number, _Deadline(timeout))[0]

    def _finished(
        self,
        partitions: Iterable[TopicPartition] | Mapping[TopicPartition, OffsetRange],
        number: int | None,
        deadline: _Deadline,
    ) -> tuple[dict[TopicPartition, ReportStatus], dict[TopicPartition, int]]:
        knowledge = self._knowledge
        ranges = partitions if isinstance(partitions, Mapping) else {}
        verdicts, at = knowledge.report(partitions, number, ranges)
        self._following.wake()
        waiting = {tp: at[tp] for tp, v in verdicts.items() if v in (ReportStatus.ACCEPTED, ReportStatus.DUPLICATE)}
        with knowledge.changed:
            while not knowledge.written(waiting):
                knowledge.check()
                left = deadline.left(f"report of member {self.member}", "is not in ZooKeeper", "the wait for it")
                knowledge.changed.wait(left)
        return verdicts, at

    def wait(self, after: int, timeout: float | None = None, cancel: threading.Event | None = None) -> Period:
        """Waits until a period after number ``after`` is open, and returns it.

        It need not be the next one: others may have finished this member's partitions meanwhile. Raises `TimedOut`
        (also when ``cancel`` is set), `RunEnded` if no further period will open, and `Conflict` if this member left.
        """
        return self._wait(after, _Deadline(timeout, cancel), ())

    def _wait(self, after: int, deadline: _Deadline, told: Iterable[TopicPartition]) -> Period:
        knowledge = self._knowledge
        with knowledge.changed:
            while (number := knowledge.next_after(after)) is None:
                what, why = f"member {self.member}", f"period {after} is still open"
                knowledge.changed.wait(deadline.left(what, why, f"its wait for the end of period {after}"))
            return knowledge.give(number, told)

    def current_period_complete(
        self,
        partitions: Iterable[TopicPartition] | Mapping[TopicPartition, OffsetRange],
        timeout: float | None = None,
        cancel: threading.Event | None = None,
    ) -> Period:
        """Reports these partitions, and waits until every other one has finished too; returns the next period.

        For a member that consumes several partitions: call `finished` for each, pause those in `paused`, continue with
        the others, and `wait` only when all are finished. A thread that waited here for one of two partitions would
        block the other forever, so that is rejected with `Conflict`. ``timeout`` (None: forever) and ``cancel`` apply
        to both steps together. A late report is logged, and the returned period is then not the one after it. Raises
        what `finished` and `wait` raise.
        """
        named = partitions if isinstance(partitions, Mapping) else list(partitions)
        if not named:
            raise UsageError(f"member {self.member}", "names no partition that has completed the period")
        deadline = _Deadline(timeout, cancel)
        verdicts, at = self._finished(named, None, deadline)
        if late := sorted(tp for tp, verdict in verdicts.items() if verdict is ReportStatus.LATE):
            shown = ", ".join(f"{tp} of period {at[tp]}" for tp in late[:3]) + (" and more" if len(late) > 3 else "")
            _LOG.warning("member %s reports late, and it counts for nothing: %s", self.member, shown)
        number = max(at.values())
        if behind := self._knowledge.behind(number):
            shown = ", ".join(map(str, behind[:3]))
            raise Conflict(
                f"member {self.member}",
                f"would wait for {shown}, which this member consumes itself",
                "report all of its partitions, or use finished() and wait()",
            )
        return self._wait(number, deadline, named)


class _Deadline:
    """The time limit of a call in total (seconds; None: forever), and the event that cancels it."""

    def __init__(self, timeout: float | None, cancel: threading.Event | None = None) -> None:
        self._timeout = timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._cancel = cancel

    def left(self, what: str, why: str, cancelled: str) -> float | None:
        """Seconds until the next check; None: not needed. Raises `TimedOut`, also if the wait is cancelled."""
        left = None if self._deadline is None else self._deadline - time.monotonic()
        if self._cancel is not None and self._cancel.is_set():
            raise TimedOut(what, f"{cancelled} was cancelled")
        if left is not None and left <= 0:
            raise TimedOut(what, f"{why} after {self._timeout:g} s")
        if self._cancel is None:
            return left
        return _CANCEL_POLL_S if left is None else min(left, _CANCEL_POLL_S)
