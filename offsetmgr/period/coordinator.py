"""`PeriodCoordinator`: one member of a group that goes through periods in step.

One thread of its own talks to ZooKeeper: it registers the member, follows which period is open (by watches, never by
asking again and again), writes what was reported and, in the oldest member, turns to the next period.  Everything else
reads what that thread has seen, under one lock, and waits for it.

What happens to a period's end, in order: a partition's work is durable -> `finished` -> the report is in ZooKeeper ->
the leader has read it -> one transaction opens the next period -> `wait` returns in every member.  A member or leader
that dies between two of these leaves the step before it done for good; whoever leads then goes on from there.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from types import TracebackType
from typing import Final, Self

from offsetmgr.clock import Clock, SystemClock
from offsetmgr.config import ConnectionConfig
from offsetmgr.errors import Conflict, LateRecord, LimitUnknown, OffsetMgrError, SessionExpired, TimedOut, UsageError
from offsetmgr.model import TopicPartition
from offsetmgr.period.barrier import OpenPeriod, Place, Verdict, judge
from offsetmgr.period.leading import Leading, Topics
from offsetmgr.period.records import MemberNode, OpenNode, PartitionsNode, ProgressNode
from offsetmgr.period.room import Room, View
from offsetmgr.period.schedule import Period, Schedule
from offsetmgr.period.turning import Leader
from offsetmgr.zookeeper.session import ZookeeperSession
from offsetmgr.zookeeper.sessionlease import SessionLease

_LOG: Final = logging.getLogger("offsetmgr.period")
_PAUSE: Final = 0.5
"""Seconds before what failed is tried again."""
_LOOK: Final = 1.0
"""Seconds between two looks of a leader at partitions that may have nothing in the period."""
_CANCEL: Final = 0.05


class PeriodCoordinator:
    """See the module's docstring. No I/O before `start`; a context manager. Methods may be called from any thread."""

    def __init__(
        self,
        zookeeper: str,
        root: str,
        member: str,
        schedule: Schedule,
        topics: Topics,
        *,
        owned: Iterable[TopicPartition] = (),
        idle: Callable[[Period, Collection[TopicPartition]], Collection[TopicPartition]] | None = None,
        grace_ms: int = 0,
        config: ConnectionConfig | None = None,
        session_timeout_ms: int = 6_000,
        clock: Clock | None = None,
    ) -> None:
        """``schedule`` counts where no period was ever opened under ``root``; afterwards the first one's is kept.

        ``topics`` gives every partition that takes part, as they are now. ``idle`` tells which of some partitions have
        no record in a period (`idle.idle_partitions`); it is asked once the period's end and ``grace_ms`` have passed
        by the wall clock. Raises `InvalidUri`, `UsageError`.
        """
        if not member or "/" in member:
            raise UsageError(f"member {member!r}", "cannot be the name of a node")
        Room(ZookeeperSession(zookeeper, config), root)  # wrong addresses and paths are told at once
        self.member = member
        self.root = root
        self._zookeeper = zookeeper
        self._config = config
        self._session_timeout_ms = session_timeout_ms
        self._clock = clock or SystemClock()
        self._leading = Leading(schedule, topics, idle, grace_ms, self._clock)
        self._changed = threading.Condition()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._owned = frozenset(owned)
        self._described = frozenset[TopicPartition]()
        self._open: OpenNode | None = None
        self._partitions = frozenset[TopicPartition]()
        self._known: dict[TopicPartition, int] = {}
        """Finished, as far as this member has read or written it."""
        self._reported: dict[TopicPartition, int] = {}
        """Finished by this member, and in ZooKeeper only once it is in ``_known``."""
        self._all_seen = False
        """Whether what others had finished was read since the owned partitions changed last."""
        self._error: OffsetMgrError | None = None

    # --- life ---------------------------------------------------------------------------------------

    def start(self, timeout: float = 30.0) -> Self:
        """Joins and waits (seconds) until it is known which period is open. Raises what hindered it, `TimedOut`."""
        self._thread = threading.Thread(target=self._run, name=f"offsetmgr-period-{self.member}", daemon=True)
        self._thread.start()
        try:
            with self._changed:
                if not self._changed.wait_for(lambda: self._open is not None or self._ended, timeout):
                    raise self._error or TimedOut(f"member {self.member}", "no period is open yet")
            self._check()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Leaves. What was reported stays; whoever waits is told."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self._changed:
            self._changed.notify_all()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def _ended(self) -> bool:
        return self._stopping.is_set()

    def _check(self) -> None:
        if self._ended:
            raise self._error or Conflict(f"member {self.member}", "has left")

    # --- what a member asks -------------------------------------------------------------------------

    def own(self, partitions: Iterable[TopicPartition]) -> None:
        """From now on this member consumes exactly these. What earlier owners of them had finished is looked up."""
        with self._changed:
            self._owned = frozenset(partitions)
            self._all_seen = False
        self._wake.set()

    def open_period(self) -> OpenPeriod | None:
        """The open period and its partitions; None while it is unknown. Never waits."""
        with self._changed:
            if self._open is None:
                return None
            return OpenPeriod(self._open.schedule.period(self._open.number), self._partitions)

    def limit(self, partition: TopicPartition) -> int | None:
        """The time (ms) from which records of this partition must wait; None while it is unknown. Never waits.

        A partition that takes part from the next period on waits from the open one's start.
        """
        open_ = self.open_period()
        if open_ is None:
            return None
        return open_.period.end_ms if partition in open_.partitions else open_.period.start_ms

    def place(self, timestamp_ms: int, partition: TopicPartition) -> Place:
        """Where a record belongs, for this partition: one of a period that the partition has finished is EARLIER.

        Raises `LimitUnknown`.
        """
        with self._changed:
            if self._open is None or not self._all_seen:
                raise LimitUnknown(f"member {self.member}", "which period is open has not been read yet")
            open_ = OpenPeriod(self._open.schedule.period(self._open.number), self._partitions)
            done = max(self._known.get(partition, -1), self._reported.get(partition, -1)) >= open_.period.number
        place = open_.place(timestamp_ms)
        if place is Place.OPEN and partition not in open_.partitions:
            return Place.LATER
        return Place.EARLIER if place is Place.OPEN and done else place

    def check_limit(self, timestamp_ms: int, partition: TopicPartition) -> bool:
        """Whether the record belongs to the open period; False: the partition must wait for the next one.

        Raises `LateRecord` for a record of a period that is over for its partition, and `LimitUnknown`.
        """
        place = self.place(timestamp_ms, partition)
        if place is Place.EARLIER:
            raise LateRecord(f"record of {partition} at {timestamp_ms}", "belongs to a period that it has finished")
        return place is Place.OPEN

    def paused(self) -> list[TopicPartition]:
        """Those of this member's partitions that have finished the open period (or join at the next): they wait."""
        with self._changed:
            if self._open is None:
                return sorted(self._owned)
            return sorted(tp for tp in self._owned if tp not in self._partitions or self._done(tp, self._open.number))

    def finished(
        self, partitions: Iterable[TopicPartition], number: int | None = None, timeout: float = 30.0
    ) -> dict[TopicPartition, Verdict]:
        """Reports that these have finished period ``number`` (the open one), their work being durable; returns when
        that is in ZooKeeper.

        A report that is not `Verdict.COUNTED` or `REPEATED` changes nothing: the caller has jumped over a period, or
        comes late. Raises `LimitUnknown`, `TimedOut`, and what ended the membership.
        """
        with self._changed:
            self._check()
            open_ = self.open_period()
            if open_ is None:
                raise LimitUnknown(f"member {self.member}", "which period is open has not been read yet")
            at = open_.period.number if number is None else number
            known = {tp: max(self._known.get(tp, -1), self._reported.get(tp, -1)) for tp in partitions}
            verdicts = {tp: judge(open_, known, tp, at) for tp in known}
            counted = {tp: at for tp, verdict in verdicts.items() if verdict is Verdict.COUNTED}
            self._reported.update(counted)
        self._wake.set()
        waiting = [tp for tp, verdict in verdicts.items() if verdict in (Verdict.COUNTED, Verdict.REPEATED)]
        with self._changed:
            written = lambda: self._ended or all(self._known.get(tp, -1) >= at for tp in waiting)  # noqa: E731
            if not self._changed.wait_for(written, timeout):
                raise TimedOut(f"report of member {self.member}", f"is not in ZooKeeper after {timeout:g} s")
            if any(self._known.get(tp, -1) < at for tp in waiting):
                self._check()
        return verdicts

    def wait(self, after: int, timeout: float | None = None, cancel: threading.Event | None = None) -> Period:
        """Waits until a period after number ``after`` is open, and gives it.

        Raises `TimedOut` (also when ``cancel`` is set), and `Conflict` where the run was stopped or this member left.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while True:
                if self._open is not None and self._open.number > after:
                    return self._open.schedule.period(self._open.number)
                if self._open is not None and self._open.stopped:
                    raise Conflict(f"run of {self.root}", f"was stopped: {self._open.stopped}")
                self._check()
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TimedOut(f"member {self.member}", f"period {after} is still open after {timeout:g} s")
                if cancel is not None:
                    if cancel.is_set():
                        raise TimedOut(f"member {self.member}", f"its wait for the end of period {after} was cancelled")
                    left = _CANCEL if left is None else min(left, _CANCEL)
                self._changed.wait(left)

    def current_period_complete(
        self,
        partitions: Iterable[TopicPartition],
        timeout: float | None = None,
        cancel: threading.Event | None = None,
    ) -> Period:
        """Reports these partitions, and waits until every other one has finished too; gives the next period.

        For a member that consumes several partitions: `finished` each by itself, pause those in `paused`, go on with
        the others, and `wait` only when all are; one thread that waits here for one of two partitions would hold up
        the other for ever, so that is refused with `Conflict`.
        """
        partitions = list(partitions)
        open_ = self.open_period()
        if open_ is None:
            raise LimitUnknown(f"member {self.member}", "which period is open has not been read yet")
        number = open_.period.number
        self.finished(partitions, number, 30.0 if timeout is None else timeout)
        with self._changed:
            mine = sorted(self._owned & self._partitions) if self._open and self._open.number == number else []
            if behind := [tp for tp in mine if not self._done(tp, number)]:
                shown = ", ".join(map(str, behind[:3]))
                why = f"would wait for {shown}, which this member consumes itself"
                raise Conflict(
                    f"member {self.member}", why, "report all of its partitions, or use finished() and wait()"
                )
        return self.wait(number, timeout, cancel)

    def _done(self, partition: TopicPartition, number: int) -> bool:
        return max(self._known.get(partition, -1), self._reported.get(partition, -1)) >= number

    # --- the thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ended:
            session = ZookeeperSession(self._zookeeper, self._config, session_timeout_ms=self._session_timeout_ms)
            lease = SessionLease(session, self._wake.set)
            try:
                self._live(session, lease)
            except SessionExpired as expired:
                _LOG.warning("period member %s: %s; joining again", self.member, expired)
            except OffsetMgrError as error:
                _LOG.warning("period member %s: %s", self.member, error)
                with self._changed:
                    self._error = error
                    if not (error.retriable or isinstance(error, Conflict)):
                        self._stopping.set()
                    self._changed.notify_all()
            finally:
                lease.end()
                session.close()
            self._stopping.wait(_PAUSE)

    def _live(self, session: ZookeeperSession, lease: SessionLease) -> None:
        """One session from its beginning to its end."""
        lease.begin()
        room = Room(session, self.root)
        room.prepare()
        me = self._me()
        epoch = room.register(self.member, me)
        self._described = me.owned
        watches = _Watches(room, self._wake.set)
        leads = False
        while not self._ended:
            if lease.expired:
                raise SessionExpired(f"period member {self.member}", "its ZooKeeper session has expired")
            self._wake.clear()
            if self._owned != self._described:
                me = self._me()
                room.describe(self.member, me)
                self._described = me.owned
            watches.follow([room.open_path], [room.members_path])
            if watches.members_changed or leads or not self._all_seen or self._unwritten():
                view = room.read()
                leads = view.leader == self.member
                again = self._take(view, epoch) | self._report(room, view, epoch)
                if leads:
                    watches.follow(
                        [f"{room.progress_path}/{name}" for name in view.seen.progress], [room.progress_path]
                    )
                    again |= self._lead(room, epoch)
            else:
                again = self._take_open(*room.read_open())
            if not again:
                self._wake.wait(_LOOK if leads else None)

    def _me(self) -> MemberNode:
        return MemberNode(socket.gethostname(), os.getpid(), self._owned)

    def _unwritten(self) -> bool:
        with self._changed:
            return any(number > self._known.get(tp, -1) for tp, number in self._reported.items())

    def _lead(self, room: Room, epoch: int) -> bool:
        """Whether to look again at once. The progress is read after the watches on it stand."""
        view = room.read()
        self._take(view, epoch)
        return self._leading.step(room, view, Leader(self.member, epoch), self.member)

    def _take(self, view: View, epoch: int) -> bool:
        """Takes what was read for known; whether it must be read again. Raises `Conflict` where a later process has
        this member's name."""
        own = view.seen.progress.get(self.member)
        if own is not None and own.epoch > epoch:
            raise Conflict(f"member {self.member}", "another process of this name has taken over")
        finished = view.seen.finished()
        with self._changed:
            for partition, number in finished.items():
                if number > self._known.get(partition, -1):
                    self._known[partition] = number
            self._all_seen = self._described == self._owned
        return self._take_open(view.seen.open_, view.seen.partitions)

    def _take_open(self, open_: OpenNode | None, partitions: PartitionsNode | None) -> bool:
        """Whether the two did not belong together and must be read again."""
        if open_ is None or partitions is None or partitions.number != open_.number:
            return open_ is not None
        with self._changed:
            if self._open is None or open_.number >= self._open.number:
                self._open, self._partitions, self._error = open_, partitions.partitions, None
            self._changed.notify_all()
        return False

    def _report(self, room: Room, view: View, epoch: int) -> bool:
        """Writes what was reported and is not there yet; and, once a session, this member's epoch, so that an earlier
        process of its name writes nothing more. Whether it must be tried again."""
        before = view.seen.progress.get(self.member)
        finished: Mapping[TopicPartition, int] = before.finished if before else {}
        with self._changed:
            new = {tp: n for tp, n in self._reported.items() if n > finished.get(tp, -1)}
        if before is not None and before.epoch == epoch and not new:
            return False
        node = ProgressNode(self.member, epoch, {**finished, **new}, before.idle if before else frozenset())
        if not room.report(node, view.progress_versions.get(self.member)):
            return True
        with self._changed:
            for partition, number in new.items():
                self._known[partition] = max(number, self._known.get(partition, -1))
                if self._reported.get(partition) == number:
                    del self._reported[partition]
            self._changed.notify_all()
        return False


class _Watches:
    """The watches of one session; each that fires wakes the member."""

    def __init__(self, room: Room, wake: Callable[[], None]) -> None:
        self._room = room
        self._wake = wake
        self._set = set[str]()
        self._lock = threading.Lock()
        self.members_changed = True
        """Whether members have come or gone since the watch on them was set last, or it has just been set."""

    def follow(self, nodes: Collection[str], parents: Collection[str]) -> None:
        """Watches those of these that are not watched yet."""
        with self._lock:
            nodes = [path for path in nodes if path not in self._set]
            parents = [path for path in parents if path not in self._set]
            self._set.update(nodes, parents)
            self.members_changed = self._room.members_path in parents
        missing = self._room.watch(nodes, parents, self._fired) if nodes or parents else ()
        with self._lock:
            self._set.difference_update(missing)

    def _fired(self, path: str) -> None:
        with self._lock:
            self._set.discard(path)
        self._wake()
