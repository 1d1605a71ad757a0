"""`Member`: one member of an old consumer group, which keeps its share of the partitions.

It registers, watches what the assignment depends on, and after each change gives up what is no longer its own and
claims what has become so. Whoever consumes is told through `Holder`. Partitions that stay with their thread are not
interrupted; the old consumer lets go of all of them at every change, which to the others looks the same.

Ordering contract, for each partition: `Holder.stop` (nothing is handed out any more, and what was is committed) before
the owner node is deleted; the owner node is created before `Holder.begin` (which reads the committed offset after it).
Once the session is over `Holder.drop` is called, and nothing of it is committed; before anybody calls it, the session's
lease has run out, which whoever hands out messages must ask for each of them.

Source: the registration algorithm and the rebalancing algorithm of the 0.10.1 implementation page; ZKRebalancerListener
of kafka.consumer.ZookeeperConsumerConnector.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from offsetmgr.clock import Clock, SystemClock
from offsetmgr.config import ConnectionConfig
from offsetmgr.errors import Conflict, OffsetMgrError, SessionExpired
from offsetmgr.model import TopicPartition
from offsetmgr.zookeeper import paths
from offsetmgr.zookeeper.assignors import Assignor, ThreadId
from offsetmgr.zookeeper.claims import Claims
from offsetmgr.zookeeper.membership import Picture, look, register
from offsetmgr.zookeeper.session import ZookeeperSession
from offsetmgr.zookeeper.sessionlease import SessionLease
from offsetmgr.zookeeper.subscription import Subscription

_LOG: Final = logging.getLogger("offsetmgr.consumer")


class Holder(Protocol):
    """Whoever consumes the partitions that a member owns. Called in the member's thread, one call at a time."""

    def joined(self, session: ZookeeperSession, lease: SessionLease) -> None:
        """The member is registered in this session; all that is claimed until `drop` hangs on it."""
        ...

    def begin(self, claimed: Mapping[TopicPartition, ThreadId]) -> Collection[TopicPartition]:
        """Consume these from their committed offsets on. Gives those that could not be begun yet (asked again soon).
        Raises where that will not change by itself."""
        ...

    def stop(self, partitions: Collection[TopicPartition], *, leaving: bool) -> None:
        """Hand out nothing more of these, commit what was, forget them. ``leaving``: the whole group is left, so nobody
        claims them before the registration has gone too."""
        ...

    def drop(self, partitions: Collection[TopicPartition] | None) -> None:
        """These (None: all) are others' already: hand out nothing more of them and commit nothing."""
        ...

    def failed(self, error: OffsetMgrError) -> None:
        """The member has given up and left the group."""
        ...


@dataclass(frozen=True, slots=True)
class Timing:
    """All in milliseconds but ``max_retries``.

    ``backoff_ms`` and ``max_retries`` are ``rebalance.backoff.ms`` and ``rebalance.max.retries``: the pause before what
    failed is tried again (at once where the cause goes away before), and how often an error that will not go away by
    itself is met before the member gives up. ``settle_ms`` is how long changes are gathered into one rebalance.
    """

    session_timeout_ms: int = 6000
    backoff_ms: int = 500
    max_retries: int = 4
    settle_ms: int = 50
    release_delay_ms: int = 1000


class Member:
    """One member of ``group``; no I/O before `start`. Runs in a thread of its own until `leave`."""

    def __init__(
        self,
        connect: str,
        group: str,
        member_id: str,
        subscription: Subscription,
        assignor: Assignor,
        holder: Holder,
        *,
        config: ConnectionConfig | None = None,
        timing: Timing = Timing(),
        exclude_internal: bool = True,
        clock: Clock | None = None,
    ) -> None:
        """``connect`` is ``h1:2181,h2:2181/chroot``. Raises `InvalidUri`."""
        ZookeeperSession(connect, config)  # a wrong address is told at once
        self.group = group
        self.member_id = member_id
        self.subscription = subscription
        self.rebalances = 0
        """How often this member has divided the partitions anew, because members, topics or partitions had changed."""
        self._connect = connect
        self._config = config
        self._timing = timing
        self._assignor = assignor
        self._holder = holder
        self._exclude_internal = exclude_internal
        self._clock = clock or SystemClock()
        self._wake = threading.Event()
        self._leaving = threading.Event()
        self._settled = threading.Event()
        self._thread: threading.Thread | None = None
        self._membership: _Membership | None = None
        self._error: OffsetMgrError | None = None
        self._joined = False

    @property
    def owned(self) -> dict[TopicPartition, ThreadId]:
        """What it owns now, each partition with its thread."""
        membership = self._membership
        return {} if membership is None else dict(membership.owned)

    @property
    def held_by_others(self) -> dict[TopicPartition, str]:
        """Partitions of its share that others have not released yet, with the texts of their owner nodes."""
        membership = self._membership
        return {} if membership is None else dict(membership.held)

    def start(self, timeout_s: float) -> None:
        """Joins the group and waits until the first rebalance has ended (partitions that others still hold may follow
        later). Raises what hindered it; the member has left then."""
        self._thread = threading.Thread(target=self._run, name=f"offsetmgr-member-{self.member_id}", daemon=True)
        self._thread.start()
        self._settled.wait(timeout_s)
        if not self._settled.is_set() or self._error is not None:
            error = self._error or Conflict(f"consumer {self.member_id}", f"no rebalance within {timeout_s:g} s")
            self.leave()
            raise error

    def leave(self) -> None:
        """Stops, commits, releases, unregisters; returns when that has been done or found impossible."""
        self._leaving.set()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    # --- the member's thread ------------------------------------------------------------------------

    def _run(self) -> None:
        failures = 0
        while not self._leaving.is_set():
            session = ZookeeperSession(self._connect, self._config, session_timeout_ms=self._timing.session_timeout_ms)
            lease = SessionLease(session, self._wake.set)
            try:
                self._live(session, lease)
            except SessionExpired as expired:
                _LOG.warning("consumer %s: %s; registering anew", self.member_id, expired)
                failures = 0
            except OffsetMgrError as error:
                failures += 1
                self._error = error
                _LOG.warning("consumer %s: %s", self.member_id, error)
                # A configured id stays taken until the session of its last owner ends, so a conflict may pass.
                passes = isinstance(error, Conflict) and failures <= self._patience()
                if not passes and (not error.retriable or not self._joined):
                    self._leaving.set()
                    self._holder.failed(error)
            finally:
                lease.end()
                self._membership = None
                self._holder.drop(None)
                session.close()
            self._leaving.wait(self._timing.backoff_ms / 1000 if self._error else 0.0)
        self._settled.set()

    def _patience(self) -> float:
        """Tries that outlast a dead session."""
        return self._timing.max_retries + 2 * self._timing.session_timeout_ms / self._timing.backoff_ms

    def _live(self, session: ZookeeperSession, lease: SessionLease) -> None:
        """One session from its beginning to its end. Raises `SessionExpired`, and what cannot be got over in it."""
        lease.begin()
        session_id = register(session, self.group, self.member_id, self.subscription, self._clock.now_ms())
        self._error = None
        self._joined = True
        self._holder.joined(session, lease)
        membership = _Membership(self, session, Claims(session, session_id, self.group))
        self._membership = membership
        failures = 0
        gone = False
        try:
            while not self._leaving.is_set():
                if lease.expired:
                    raise SessionExpired(f"consumer {self.member_id}", "its ZooKeeper session has expired")
                self._wake.clear()
                try:
                    complete = membership.rebalance()
                    failures = 0
                    self._settled.set()
                except SessionExpired:
                    raise
                except OffsetMgrError as error:
                    failures += 1
                    _LOG.warning("consumer %s: rebalance: %s", self.member_id, error)
                    if not error.retriable and not isinstance(error, Conflict) and failures > self._timing.max_retries:
                        raise
                    complete = False
                self._wake.wait(None if complete else self._timing.backoff_ms / 1000)
                self._leaving.wait(self._timing.settle_ms / 1000)
        except SessionExpired:
            gone = True
            raise
        finally:
            if not gone:
                self._part(membership)

    def _part(self, membership: _Membership) -> None:
        """Leaves in good order where that is still possible; the nodes go with the session."""
        try:
            self._holder.stop(membership.owned, leaving=True)
        except OffsetMgrError as error:
            _LOG.warning("consumer %s: what it consumed last is not committed: %s", self.member_id, error)

    # --- what a membership needs of its member --------------------------------------------------------

    @property
    def holder(self) -> Holder:
        return self._holder

    def look(self, session: ZookeeperSession) -> Picture:
        """Reads the group; registers again where somebody has deleted the registration."""
        picture = look(session, self.group, exclude_internal=self._exclude_internal)
        if self.member_id in picture.members:
            return picture
        register(session, self.group, self.member_id, self.subscription, self._clock.now_ms())
        return look(session, self.group, exclude_internal=self._exclude_internal)

    def share(self, picture: Picture) -> dict[TopicPartition, ThreadId]:
        """This member's part of the assignment."""
        assigned = self._assignor.assign(picture.streams, picture.partitions)
        return {tp: thread for tp, thread in assigned.items() if thread.member_id == self.member_id}

    def wake(self) -> None:
        self._wake.set()


class _Membership:
    """What one session holds, and its watches."""

    def __init__(self, member: Member, session: ZookeeperSession, claims: Claims) -> None:
        self._member = member
        self._session = session
        self._claims = claims
        self._watched: set[str] = set()
        self._lock = threading.Lock()
        self.owned: dict[TopicPartition, ThreadId] = {}
        self.held: dict[TopicPartition, str] = {}
        self._unbegun: set[TopicPartition] = set()
        self._seen: object = None

    def rebalance(self) -> bool:
        """Brings what is owned in line with what is there now. False where something is left to be tried again."""
        member, holder = self._member, self._member.holder
        self._watch([], [paths.ids(member.group), paths.BROKER_IDS, paths.BROKER_TOPICS])
        picture = member.look(self._session)
        if self._watch([paths.topic(topic) for topic in picture.streams.get(member.member_id, {})], []):
            picture = member.look(self._session)  # what changed before the watches stood
        if lost := self._claims.lost(self.owned):
            _LOG.warning("consumer %s: owner nodes were deleted by others: %s", member.member_id, _listed(lost))
            holder.drop(lost)
            self._forget(lost)
        if not picture.brokers:
            # As the old consumer: nothing can be consumed, and nothing is gained by letting go.
            return not self._unbegun
        share = member.share(picture)
        if leaving := [tp for tp, thread in self.owned.items() if share.get(tp) != thread]:
            holder.stop(leaving, leaving=False)
            self._claims.release(leaving)
            self._forget(leaving)
        claimed = self._claims.claim({tp: thread for tp, thread in share.items() if tp not in self.owned})
        self.owned = {**self.owned, **claimed.mine}
        self.held = dict(claimed.held)
        self._watch([self._claims.path(tp) for tp in (*claimed.mine, *claimed.held)], [])
        self._unbegun |= claimed.mine.keys()
        if self._unbegun:
            self._unbegun = set(holder.begin({tp: self.owned[tp] for tp in self._unbegun}))
        seen = (picture.streams, picture.partitions)
        if leaving or claimed.mine or seen != self._seen:
            member.rebalances += 1
        self._seen = seen
        if leaving or claimed.mine or claimed.held:
            _LOG.info(
                "consumer %s: owns %d partitions (%d given up, %d gained, %d still held by others)",
                member.member_id,
                len(self.owned),
                len(leaving),
                len(claimed.mine),
                len(claimed.held),
            )
        return not self.held and not self._unbegun

    def _forget(self, partitions: Collection[TopicPartition]) -> None:
        self.owned = {tp: thread for tp, thread in self.owned.items() if tp not in partitions}
        self._unbegun -= set(partitions)

    def _watch(self, nodes: list[str], parents: list[str]) -> bool:
        """Lets a change of these wake the member, once each. Whether any watch is new; a node that has gone wakes the
        member at once where it was to be watched for going."""
        with self._lock:
            nodes = [path for path in nodes if path not in self._watched]
            parents = [path for path in parents if path not in self._watched]
            self._watched |= {*nodes, *parents}
        missing: Collection[str] = {*nodes, *parents}
        try:
            missing = self._session.watch_many(nodes, parents, self._fired) if missing else ()
        finally:
            with self._lock:
                self._watched -= set(missing)
        if any(self._claims.path(tp) in missing for tp in self.held):
            self._member.wake()
        return bool(nodes or parents)

    def _fired(self, path: str) -> None:
        with self._lock:
            self._watched.discard(path)
        self._member.wake()


def _listed(partitions: Collection[TopicPartition]) -> str:
    shown = ", ".join(map(str, sorted(partitions)[:5]))
    return shown + (f" and {len(partitions) - 5} more" if len(partitions) > 5 else "")
