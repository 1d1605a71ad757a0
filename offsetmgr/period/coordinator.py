"""`PeriodCoordinator`: one member of a group that goes through periods in step.

One thread of its own talks to ZooKeeper (`following`); everything here reads what that thread has seen (`knowledge`),
and waits for it.

What happens to a period's end, in order: a partition's work is durable -> `finished` -> the report is in ZooKeeper ->
the leader has read it -> one transaction opens the next period -> `wait` returns in every member.  A member or leader
that dies between two of these leaves the step before it done for good; whoever leads then goes on from there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping
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
_CANCEL: Final = 0.05
"""Seconds between two looks at the event that cancels a wait."""


class PeriodCoordinator:
    """See the module's docstring. No I/O before `start`; a context manager. Methods may be called from any thread.

    A lost connection or session is repaired by itself: whoever waits goes on waiting, and `place` says
    `OpenPeriodUnknown` meanwhile. What cannot be repaired ends the membership, and every later call raises it.
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
        idle: Idle | None = None,
        grace_ms: int = 0,
        history_kept: int = HISTORY_KEPT,
        config: ConnectionConfig | None = None,
        session_timeout_ms: int = 6_000,
        clock: Clock | None = None,
    ) -> None:
        """``schedule`` counts where no period was ever opened under ``root``; afterwards the first one's is kept.

        ``topics`` gives every partition that takes part, as they are now. ``idle`` tells which of some partitions have
        no record in a period (`idle.idle_partitions`); it is asked once the period's end and ``grace_ms`` have passed
        by the wall clock. The leader keeps the newest ``history_kept`` periods' entries. Raises `InvalidUri`,
        `UsageError`.
        """
        if not member or "/" in member or member in (".", ".."):
            raise UsageError(f"member {member!r}", "cannot be the name of a node")
        session = ZookeeperSession(zookeeper, config)
        BarrierStateStore(session, root)  # wrong addresses and paths are told at once
        self.member = member
        self.root = root
        self._zookeeper = f"ZooKeeper at {session.hosts}"
        leading = LeaderRound(schedule, topics, idle, grace_ms, history_kept, clock or SystemClock())
        self._knowledge = MemberState(member, root, owned)
        self._following = MemberThread(zookeeper, config, session_timeout_ms, self._knowledge, leading)

    # --- life ---------------------------------------------------------------------------------------

    def start(self, timeout: float = 30.0) -> Self:
        """Joins and waits (seconds) until it is known which period is open. Raises what hindered it, `TimedOut`."""
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
        """Leaves, within a few seconds. What was reported and is in ZooKeeper stays; whoever waits is told."""
        self._following.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.stop()

    def registered(self, timeout: float = 30.0) -> int:
        """This process's epoch, larger than that of every process of this member's name before it; waits (seconds)
        until it is registered. It may have been overtaken meanwhile: what is written must carry the epoch.

        Raises `Conflict` where another live process has the name, `TimedOut`, and what ended the membership.
        """
        knowledge = self._knowledge
        with knowledge.changed:
            if not knowledge.changed.wait_for(lambda: knowledge.epoch is not None or knowledge.ended, timeout):
                raise knowledge.error or TimedOut(f"member {self.member}", "is not registered in ZooKeeper")
            knowledge.check()
            assert knowledge.epoch is not None
            return knowledge.epoch

    # --- what a member asks -------------------------------------------------------------------------

    @property
    def owned(self) -> frozenset[TopicPartition]:
        return self._knowledge.owned

    def own(self, partitions: Iterable[TopicPartition]) -> None:
        """From now on this member consumes exactly these. What earlier owners of them had finished is looked up."""
        self._knowledge.own(partitions)
        self._following.wake()

    def open_period(self) -> OpenPeriod | None:
        """The open period and its partitions; None while it is unknown. Never waits."""
        return self._knowledge.open_period()

    def limit(self, partition: TopicPartition) -> int | None:
        """The time (ms) from which records of this partition must wait; None while it is unknown. Never waits.

        A partition that takes part from the next period on waits from the open one's start.
        """
        open_ = self.open_period()
        if open_ is None:
            return None
        return open_.period.end_ms if partition in open_.partitions else open_.period.start_ms

    def place(self, timestamp_ms: int, partition: TopicPartition) -> TimePosition:
        """Where a record belongs, for this partition: one of a period that the partition has finished is EARLIER.

        Raises `OpenPeriodUnknown`, also while ZooKeeper has not answered for so long that others may have gone on: a
        member that was frozen and wakes is not told that its record's period is open.
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
        """Reports that these have finished period ``number``, their work being durable; returns when that is in
        ZooKeeper. With a mapping it also says which offsets the period had, for the history.

        Without ``number`` it is the period that the caller was told of last: for a partition by `place` or
        `current_period_complete`, else by `wait` or `start`. A report that is not `ReportStatus.COUNTED` or `REPEATED`
        changes nothing: the caller has jumped over a period, or comes late. Raises `OpenPeriodUnknown`, `TimedOut` (the
        report will be written later; asking again is safe), and what ended the membership.
        """
        return self._finished(partitions, number, _Deadline(timeout))[0]

    def _finished(
        self,
        partitions: Iterable[TopicPartition] | Mapping[TopicPartition, OffsetRange],
        number: int | None,
        patience: _Deadline,
    ) -> tuple[dict[TopicPartition, ReportStatus], dict[TopicPartition, int]]:
        knowledge = self._knowledge
        ranges = partitions if isinstance(partitions, Mapping) else {}
        verdicts, at = knowledge.report(partitions, number, ranges)
        self._following.wake()
        waiting = {tp: at[tp] for tp, v in verdicts.items() if v in (ReportStatus.ACCEPTED, ReportStatus.DUPLICATE)}
        with knowledge.changed:
            while not knowledge.written(waiting):
                knowledge.check()
                left = patience.left(f"report of member {self.member}", "is not in ZooKeeper", "the wait for it")
                knowledge.changed.wait(left)
        return verdicts, at

    def wait(self, after: int, timeout: float | None = None, cancel: threading.Event | None = None) -> Period:
        """Waits until a period after number ``after`` is open, and gives it.

        It need not be the next one: where others finished this member's partitions meanwhile, periods lie between.
        Raises `TimedOut` (also when ``cancel`` is set), `RunEnded` where no further period will open, and `Conflict`
        where this member left.
        """
        return self._wait(after, _Deadline(timeout, cancel), ())

    def _wait(self, after: int, patience: _Deadline, told: Iterable[TopicPartition]) -> Period:
        knowledge = self._knowledge
        with knowledge.changed:
            while (number := knowledge.next_after(after)) is None:
                what, why = f"member {self.member}", f"period {after} is still open"
                knowledge.changed.wait(patience.left(what, why, f"its wait for the end of period {after}"))
            return knowledge.give(number, told)

    def current_period_complete(
        self,
        partitions: Iterable[TopicPartition] | Mapping[TopicPartition, OffsetRange],
        timeout: float | None = None,
        cancel: threading.Event | None = None,
    ) -> Period:
        """Reports these partitions, and waits until every other one has finished too; gives the next period.

        For a member that consumes several partitions: `finished` each by itself, pause those in `paused`, go on with
        the others, and `wait` only when all are; one thread that waits here for one of two partitions would hold up
        the other for ever, so that is refused with `Conflict`. ``timeout`` (None: for ever) and ``cancel`` are of both
        together. A report that comes late is told in the log, and the period that is given then is not the one after
        it. Raises what `finished` and `wait` raise.
        """
        named = partitions if isinstance(partitions, Mapping) else list(partitions)
        if not named:
            raise UsageError(f"member {self.member}", "names no partition that has completed the period")
        patience = _Deadline(timeout, cancel)
        verdicts, at = self._finished(named, None, patience)
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
        return self._wait(number, patience, named)


class _Deadline:
    """How long a call may wait, in all (seconds; None: for ever), and what cancels it."""

    def __init__(self, timeout: float | None, cancel: threading.Event | None = None) -> None:
        self._timeout = timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._cancel = cancel

    def left(self, what: str, why: str, cancelled: str) -> float | None:
        """Seconds until it must be asked again; None: no need. Raises `TimedOut`, also where the wait is cancelled."""
        left = None if self._deadline is None else self._deadline - time.monotonic()
        if self._cancel is not None and self._cancel.is_set():
            raise TimedOut(what, f"{cancelled} was cancelled")
        if left is not None and left <= 0:
            raise TimedOut(what, f"{why} after {self._timeout:g} s")
        if self._cancel is None:
            return left
        return _CANCEL if left is None else min(left, _CANCEL)
