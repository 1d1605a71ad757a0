"""`ConsumerMember`: one member of an old consumer group, in its own thread from joining to leaving.

It registers, rebalances after each change (several changes at once cause one rebalance), and starts again under the
same id after its session has expired. `rebalance` defines the steps of a rebalance and their order.

Source: the registration algorithm of the 0.10.1 implementation page, in its five steps: register, watch the ids, watch
the brokers, watch the topics, rebalance.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import Final

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import (
    Conflict,
    CorruptData,
    InvalidPattern,
    OffsetMgrError,
    SessionExpired,
    UnknownVersion,
    UnsupportedOperation,
)
from offsetmgr.core.model import TopicPartition
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.session_lease import SessionLease
from offsetmgr.zookeeper.groups.assignors import Assignor, ThreadId
from offsetmgr.zookeeper.groups.membership import GroupRegistration, read_registration, register
from offsetmgr.zookeeper.groups.partition_claims import Claims
from offsetmgr.zookeeper.groups.rebalance import MemberOwnership, PartitionListener
from offsetmgr.zookeeper.groups.subscription import Subscription

_NOT_UNDERSTOOD: Final = (CorruptData, UnknownVersion, UnsupportedOperation, InvalidPattern)
_LOG: Final = logging.getLogger("offsetmgr.consumer")
_CLOCK: Final = SystemClock()


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """All in milliseconds except ``max_retries``.

    ``backoff_ms`` and ``max_retries`` are ``rebalance.backoff.ms`` and ``rebalance.max.retries``: the pause before a
    retry (which ends early if the cause goes away), and the number of retries of a permanent error before the member
    gives up. For a joining member, an unreadable registration or topic is such an error; a member that has completed a
    rebalance keeps its partitions and keeps retrying. ``settle_ms`` is the time during which changes are gathered into
    one rebalance. ``exclude_internal`` is ``exclude.internal.topics``.
    """

    session_timeout_ms: int = 6000
    backoff_ms: int = 500
    max_retries: int = 4
    settle_ms: int = 50
    exclude_internal: bool = True


class ConsumerMember:
    """One member of ``group``; no I/O before `start`. Runs in its own thread until `leave`."""

    def __init__(
        self,
        connect: str,
        group: str,
        member_id: str,
        subscription: Subscription,
        assignor: Assignor,
        holder: PartitionListener,
        *,
        config: ConnectionConfig | None = None,
        settings: MemberSettings = MemberSettings(),
    ) -> None:
        """``connect`` is ``h1:2181,h2:2181/chroot``. Raises `InvalidUri`."""
        ZookeeperSession(connect, config)  # reports an invalid address at once
        self.group = group
        self.member_id = member_id
        self.subscription = subscription
        self.rebalances = 0
        """Number of rebalances that this member has completed after a change of members, topics or partitions."""
        self._connect = connect
        self._config = config
        self._settings = settings
        self._assignor = assignor
        self._holder = holder
        self._wake = threading.Event()
        self._leaving = threading.Event()
        self._settled = threading.Event()
        self._thread: threading.Thread | None = None
        self._share: MemberOwnership | None = None
        self._error: OffsetMgrError | None = None
        self._joined = False
        self.hindered_by: OffsetMgrError | None = None
        """The unreadable registration or topic that prevents a rebalance; meanwhile the member keeps its partitions.
        None if the member can read the whole group."""

    @property
    def owned(self) -> dict[TopicPartition, ThreadId]:
        """The partitions that it owns now, each with its thread."""
        share = self._share
        return {} if share is None else dict(share.owned)

    @property
    def held_by_others(self) -> dict[TopicPartition, str]:
        """Partitions assigned to this member that others have not released yet, with the texts of their owner nodes."""
        share = self._share
        return {} if share is None else dict(share.held)

    def start(self, timeout_s: float) -> None:
        """Joins the group and waits until the first rebalance has ended (partitions that others still hold may follow
        later). If it fails, the member leaves and the error is raised."""
        self._thread = threading.Thread(target=self._run, name=f"offsetmgr-member-{self.member_id}", daemon=True)
        self._thread.start()
        self._settled.wait(timeout_s)
        if not self._settled.is_set() or self._error is not None:
            error = self._error or Conflict(f"consumer {self.member_id}", f"no rebalance within {timeout_s:g} s")
            self.leave()
            raise error

    def leave(self) -> None:
        """Stops, commits, releases and unregisters; returns after that has been done or has failed."""
        self._leaving.set()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    # --- the member's thread ------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._run_sessions()
        except BaseException:
            self._error = OffsetMgrError(
                f"consumer {self.member_id}", "has ended by a defect of offsetmgr", "see the traceback"
            )
            self._holder.failed(self._error)
            raise
        finally:
            self._settled.set()

    def _run_sessions(self) -> None:
        failures = 0
        while not self._leaving.is_set():
            session = ZookeeperSession(
                self._connect, self._config, session_timeout_ms=self._settings.session_timeout_ms
            )
            lease = SessionLease(session, self._wake.set)
            try:
                self._live(session, lease)
            except SessionExpired as expired:
                _LOG.warning("consumer %s: %s; registering again", self.member_id, expired)
                failures = 0
            except OffsetMgrError as error:
                failures += 1
                self._error = error
                _LOG.warning("consumer %s: %s", self.member_id, error)
                # A configured id stays registered until the session of its last owner ends, so a conflict can be
                # temporary.
                passes = isinstance(error, Conflict) and failures <= self._patience()
                if not passes and (not error.retriable or not self._joined):
                    self._leaving.set()
                    self._holder.failed(error)
            finally:
                lease.end()
                self._share = None
                self._holder.drop(None)
                session.close()
            self._leaving.wait(self._settings.backoff_ms / 1000 if self._error else 0.0)

    def _patience(self) -> float:
        """Number of attempts that outlast a dead session."""
        return self._settings.max_retries + 2 * self._settings.session_timeout_ms / self._settings.backoff_ms

    def _live(self, session: ZookeeperSession, lease: SessionLease) -> None:
        """One session from its beginning to its end. Raises `SessionExpired`, and errors that this session cannot
        recover from."""
        lease.begin()
        session_id = register(session, self.group, self.member_id, self.subscription, _CLOCK.now_ms())
        self._error = None
        self._joined = True
        self._holder.joined(session, lease)
        share = MemberOwnership(self, session, Claims(session, session_id, self.group))
        self._share = share
        failures = 0
        gone = False
        try:
            while not self._leaving.is_set():
                if lease.expired:
                    raise SessionExpired(f"consumer {self.member_id}", "its ZooKeeper session is over")
                self._wake.clear()
                try:
                    complete = share.rebalance()
                    failures = 0
                    self._settled.set()
                except SessionExpired:
                    raise
                except OffsetMgrError as error:
                    failures += 1
                    # The first, second, fourth, eighth time: the error may last for days.
                    level = logging.WARNING if failures & (failures - 1) == 0 else logging.DEBUG
                    _LOG.log(level, "consumer %s: rebalance (try %d): %s", self.member_id, failures, error)
                    passes = error.retriable or isinstance(error, Conflict)
                    # Leaving would not help: the same error stops all other members.
                    passes = passes or (error is self.hindered_by and self._settled.is_set())
                    if not passes and failures > self._settings.max_retries:
                        raise
                    complete = False
                self._wake.wait(None if complete else self._settings.backoff_ms / 1000)
                self._leaving.wait(self._settings.settle_ms / 1000)
        except SessionExpired:
            gone = True
            raise
        finally:
            if not gone:
                self._leave_well(share)

    def _leave_well(self, share: MemberOwnership) -> None:
        """Leaves in good order if that is still possible; otherwise the nodes disappear with the session."""
        try:
            self._holder.stop(share.owned)
        except OffsetMgrError as error:
            _LOG.warning("consumer %s: its last messages are not committed: %s", self.member_id, error)

    # --- implements `Group` for its `MemberOwnership` ------------------------------------------------

    @property
    def holder(self) -> PartitionListener:
        return self._holder

    def look(self, session: ZookeeperSession) -> GroupRegistration:
        """Reads the group; registers again if another client has deleted the registration."""
        try:
            snapshot = read_registration(session, self.group, exclude_internal=self._settings.exclude_internal)
            if self.member_id not in snapshot.members:
                register(session, self.group, self.member_id, self.subscription, _CLOCK.now_ms())
                snapshot = read_registration(session, self.group, exclude_internal=self._settings.exclude_internal)
        except _NOT_UNDERSTOOD as error:
            self.hindered_by = error
            raise
        self.hindered_by = None
        return snapshot

    def part(self, snapshot: GroupRegistration) -> dict[TopicPartition, ThreadId]:
        """This member's part of the assignment."""
        assigned = self._assignor.assign(snapshot.streams, snapshot.partitions)
        return {tp: thread for tp, thread in assigned.items() if thread.member_id == self.member_id}

    def rebalanced(self) -> None:
        self.rebalances += 1

    def wake(self) -> None:
        self._wake.set()
