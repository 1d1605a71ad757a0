"""`ConsumerMember`: one member of an old consumer group. Its thread runs from the time when the member joins until the
member has left.

The member registers itself, and rebalances after changes of the group. Changes that follow each other closely cause
only one rebalance, which `MemberOwnership` executes. If its session expires, the member registers again under the same
id.

Ordering contract, for each partition: `PartitionListener.on_revoked`, which stops delivery and commits, runs before the
owner node is deleted. `PartitionListener.on_assigned`, which reads the committed offset, runs after the owner node has
been created. When the session has ended, `PartitionListener.on_lost` runs, which commits nothing. The session's lease
may end before `PartitionListener.on_lost` runs, so code that delivers messages must check the lease before each
message.

Source: the consumer registration algorithm on the "Implementation" page of Kafka 0.10.1's documentation. This algorithm
has five steps: register, watch the ids, watch the brokers, watch the topics, rebalance.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

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
from offsetmgr.core.plurals import list_of
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.session_member import SessionLease, SessionMember
from offsetmgr.zookeeper.client.watches import Watches
from offsetmgr.zookeeper.groups.assignors import Assignor, ThreadId
from offsetmgr.zookeeper.groups.partition_claims import PartitionClaims
from offsetmgr.zookeeper.groups.registration import GroupRegistration, read_registration, register
from offsetmgr.zookeeper.groups.subscription import Subscription
from offsetmgr.zookeeper.nodes import paths

_UNREADABLE: Final = (CorruptData, UnknownVersion, UnsupportedOperation, InvalidPattern)
_LOG: Final = logging.getLogger("offsetmgr.consumer")
_CLOCK: Final = SystemClock()


class PartitionListener(Protocol):
    """Consumes the partitions that a member owns. The member's thread calls these methods."""

    def on_joined(self, session: ZookeeperSession, lease: SessionLease) -> None:
        """Called when the member has registered in this session. Until `on_lost` is called, this session owns all
        partitions of the member."""

    def on_assigned(self, claimed: Mapping[TopicPartition, ThreadId]) -> Collection[TopicPartition]:
        """Starts to consume these partitions from their committed offsets.

        ``claimed`` may include partitions that were revoked but were assigned to this member again before the member
        released them. Returns the partitions whose consumption could not be started. The member soon calls this method
        again for the returned partitions. Raises an error if a retry cannot help.
        """

    def on_revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Stops delivery of these partitions, commits their offsets, and forgets them.

        If the member fails to release the partitions, the member calls this method again for the same partitions.
        """

    def on_lost(self, partitions: Collection[TopicPartition] | None) -> None:
        """Stops delivery of these partitions, or of all partitions if None. Does not commit, because other members may
        own the partitions already."""

    def on_failed(self, error: OffsetMgrError) -> None:
        """Called when the member leaves the group because of this error."""


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """The settings of a member. Durations are in milliseconds.

    * ``backoff_ms`` (``rebalance.backoff.ms``) is the wait before a retry. A change in ZooKeeper ends the wait early.
    * ``max_retries`` (``rebalance.max.retries``) is the number of retries after a permanent error. If all retries fail,
      the member leaves. Until a member has completed its first rebalance, it treats a registration or topic that cannot
      be decoded as a permanent error. After its first rebalance, the member does not leave if a registration or topic
      cannot be decoded. Instead, it keeps its partitions and retries without a limit.
    * ``debounce_ms`` is how long the member waits for further changes before it rebalances.
    * ``exclude_internal`` is the setting ``exclude.internal.topics``.
    """

    session_timeout_ms: int = 6000
    backoff_ms: int = 500
    max_retries: int = 4
    debounce_ms: int = 50
    exclude_internal: bool = True


class ConsumerMember(SessionMember):
    """One member of ``group``. The constructor does no I/O. `start` starts the member's thread, which runs until
    `leave`."""

    _log = _LOG

    def __init__(
        self,
        connect: str,
        group: str,
        member_id: str,
        subscription: Subscription,
        assignor: Assignor,
        listener: PartitionListener,
        *,
        config: ConnectionConfig | None = None,
        settings: MemberSettings = MemberSettings(),
    ) -> None:
        """``connect`` is ``h1:2181,h2:2181/chroot``. Raises `InvalidUri`."""
        super().__init__(f"consumer {member_id}", connect, config, settings.session_timeout_ms)
        self.group = group
        self.member_id = member_id
        self.subscription = subscription
        self.rebalances = 0
        """The number of completed rebalances. A rebalance is counted only if the input of the assignment or the owned
        partitions have changed."""
        self._settings = settings
        self._assignor = assignor
        self.listener = listener
        self._rebalanced_or_failed = threading.Event()
        self._ownership: MemberOwnership | None = None
        self._error: OffsetMgrError | None = None
        self._failures = 0
        self._joined = False
        self.unreadable_group_error: OffsetMgrError | None = None
        """The error if the member cannot decode a registration or topic; None if the member could decode all
        registrations and topics of the group. While this error is set, the member cannot rebalance, and keeps its
        partitions."""

    @property
    def owned(self) -> dict[TopicPartition, ThreadId]:
        """The partitions that this member owns now, each with its thread."""
        ownership = self._ownership
        return {} if ownership is None else dict(ownership.owned)

    @property
    def held_by_others(self) -> dict[TopicPartition, str]:
        """Partitions that are assigned to this member but still owned by other members, each with the content of its
        owner node."""
        ownership = self._ownership
        return {} if ownership is None else dict(ownership.held_by_others)

    def start(self, timeout_s: float) -> None:
        """Joins the group and waits for the first rebalance. If other members still own some of the partitions that are
        assigned to this member, this member claims these partitions later.

        If the first rebalance fails or does not end within ``timeout_s`` seconds, the member leaves and this method
        raises an error.
        """
        self._thread.start()
        self._rebalanced_or_failed.wait(timeout_s)
        if not self._rebalanced_or_failed.is_set() or self._error is not None:
            error = self._error or Conflict(
                f"consumer {self.member_id}", f"the first rebalance did not end within {timeout_s:g} s"
            )
            self.leave()
            raise error

    def leave(self) -> None:
        """Stops consumption, commits, releases the partitions and unregisters. Returns when all of these steps are
        complete or have failed."""
        self._stop()

    # --- the member's thread ------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            super()._run()
        finally:
            self._rebalanced_or_failed.set()

    def _on_error(self, error: OffsetMgrError) -> float:
        if isinstance(error, SessionExpired):
            self._failures = 0
            return 0.0
        self._failures += 1
        self._error = error
        # A conflict may be temporary: if a process with the same configured consumer id has died, the id stays
        # registered until the session of this process ends.
        settings = self._settings
        max_conflicts = settings.max_retries + 2 * settings.session_timeout_ms / settings.backoff_ms
        temporary = isinstance(error, Conflict) and self._failures <= max_conflicts
        if not temporary and (not error.retriable or not self._joined):
            self._stopping.set()
            self.listener.on_failed(error)
        return self._settings.backoff_ms / 1000

    def _on_session_end(self) -> None:
        self._ownership = None
        self.listener.on_lost(None)

    def _on_crash(self, error: BaseException) -> None:
        self._error = OffsetMgrError(
            self._label, f"crashed (a bug in offsetmgr): {error!r}", "see the traceback in the log"
        )
        self.listener.on_failed(self._error)

    def _run_session(self, session: ZookeeperSession, lease: SessionLease) -> None:
        """Registers the member in a session, and rebalances in this session until the member leaves.

        Raises `SessionExpired`, and any other error that ends the session.
        """
        session_id = register(session, self.group, self.member_id, self.subscription, _CLOCK.now_ms())
        self._error = None
        self._joined = True
        self.listener.on_joined(session, lease)
        ownership = MemberOwnership(self, session, PartitionClaims(session, session_id, self.group))
        self._ownership = ownership
        failures = 0
        expired = False
        try:
            while not self._stopping.is_set():
                self._require_session(lease)
                self._wake.clear()
                try:
                    complete = ownership.rebalance()
                    failures = 0
                    self._rebalanced_or_failed.set()
                except SessionExpired:
                    raise
                except OffsetMgrError as error:
                    failures += 1
                    # Logs a warning only for the first, second, fourth, eighth failure and so on, because an error may
                    # last for days.
                    level = logging.WARNING if failures & (failures - 1) == 0 else logging.DEBUG
                    _LOG.log(level, "consumer %s: rebalance (try %d): %s", self.member_id, failures, error)
                    temporary = error.retriable or isinstance(error, Conflict)
                    # The member stays in the group: leaving would not help, because the other members cannot read the
                    # group either.
                    temporary = temporary or (
                        error is self.unreadable_group_error and self._rebalanced_or_failed.is_set()
                    )
                    if not temporary and failures > self._settings.max_retries:
                        raise
                    complete = False
                self._wake.wait(None if complete else self._settings.backoff_ms / 1000)
                self._stopping.wait(self._settings.debounce_ms / 1000)
        except SessionExpired:
            expired = True
            raise
        finally:
            if not expired:
                # ZooKeeper deletes the member's nodes when the caller closes the session.
                try:
                    self.listener.on_revoked(ownership.owned)
                except OffsetMgrError as error:
                    _LOG.warning(
                        "consumer %s: the final commit failed, so the next owners receive some messages again: %s",
                        self.member_id,
                        error,
                    )

    # --- used by `MemberOwnership` -------------------------------------------------------------------------

    def read_group(self, session: ZookeeperSession) -> GroupRegistration:
        """Reads the group. Registers this member again if another client has deleted its registration."""
        try:
            snapshot = read_registration(session, self.group, exclude_internal=self._settings.exclude_internal)
            if self.member_id not in snapshot.streams:
                register(session, self.group, self.member_id, self.subscription, _CLOCK.now_ms())
                snapshot = read_registration(session, self.group, exclude_internal=self._settings.exclude_internal)
        except _UNREADABLE as error:
            self.unreadable_group_error = error
            raise
        self.unreadable_group_error = None
        return snapshot

    def own_assignment(self, snapshot: GroupRegistration) -> dict[TopicPartition, ThreadId]:
        """Computes the partitions that are assigned to this member, each with its thread."""
        assigned = self._assignor(snapshot.streams, snapshot.partitions)
        return {tp: thread for tp, thread in assigned.items() if thread.member_id == self.member_id}


class MemberOwnership:
    """The partitions that a member owns in one session.

    It watches the nodes that determine the assignment, releases the partitions that are no longer assigned to the
    member, and claims the partitions that are newly assigned. Partitions that stay assigned to the same thread are
    consumed without interruption. The old consumer instead releases all its partitions at every change. Despite this
    difference, a group can contain both. Source: the consumer rebalancing algorithm on the "Implementation" page of
    Kafka 0.10.1's documentation; ZKRebalancerListener of kafka.consumer.ZookeeperConsumerConnector.

    Only one thread may call the methods, but every thread may read ``owned`` and ``held_by_others``.
    """

    def __init__(self, member: ConsumerMember, session: ZookeeperSession, claims: PartitionClaims) -> None:
        self._member = member
        self._session = session
        self._claims = claims
        self._watches = Watches(session, lambda _path: member.wake())
        self.owned: dict[TopicPartition, ThreadId] = {}
        """The owned partitions, each with its thread. Each change replaces the mapping."""
        self.held_by_others: dict[TopicPartition, str] = {}
        """Partitions that are assigned to this member but still owned by other members, each with the content of its
        owner node. Each change replaces the mapping."""
        self._not_consumed: set[TopicPartition] = set()
        """The partitions in ``owned`` whose consumption has not started yet, or was stopped because the partitions are
        to be released."""
        self._last_assignment_input: object = None

    def rebalance(self) -> bool:
        """Releases and claims partitions according to the present assignment. Returns False if other members still own
        assigned partitions or if consumption of a partition could not be started. In this case, the caller must call
        this method again soon."""
        member, listener = self._member, self._member.listener
        parents = [paths.ids(member.group), paths.BROKER_IDS, paths.BROKER_TOPICS]
        self._watch([self._claims.path(tp) for tp in self.owned], parents)
        # Lost partitions are found before the group is read. If a registration is unreadable, reading the group fails,
        # but the listener must still be notified of lost partitions.
        if lost := self._claims.lost(self.owned):
            _LOG.warning(
                "consumer %s: other clients deleted or overwrote its owner nodes, consumption stops: %s",
                member.member_id,
                list_of(sorted(lost), 5),
            )
            listener.on_lost(lost)
            self._forget(lost)
        snapshot = member.read_group(self._session)
        if self._watch([paths.topic(topic) for topic in snapshot.streams.get(member.member_id, {})], []):
            snapshot = member.read_group(self._session)  # a change may have occurred before the new watches were set
        if not snapshot.brokers:
            # As in the old consumer, the member keeps its partitions: without brokers no member could consume them.
            return not self._not_consumed
        assigned = member.own_assignment(snapshot)
        if leaving := [tp for tp, thread in self.owned.items() if assigned.get(tp) != thread]:
            self._stop(leaving)
            self._claims.release(leaving)
            self._forget(leaving)
        if unassigned := self._claims.in_doubt - assigned.keys():
            self._claims.release(unassigned)
        result = self._claims.claim({tp: thread for tp, thread in assigned.items() if tp not in self.owned})
        self.owned = {**self.owned, **result.claimed}
        self._not_consumed |= result.claimed.keys()
        self.held_by_others = dict(result.held_by_others)
        self._watch([self._claims.path(tp) for tp in (*result.claimed, *result.held_by_others)], [])
        if self._not_consumed:
            self._not_consumed = set(listener.on_assigned({tp: self.owned[tp] for tp in self._not_consumed}))
        assignment_input = (snapshot.streams, snapshot.partitions)
        if leaving or result.claimed or assignment_input != self._last_assignment_input:
            member.rebalances += 1
        self._last_assignment_input = assignment_input
        if leaving or result.claimed or result.held_by_others:
            _LOG.info(
                "consumer %s: owns %d partitions (%d revoked, %d claimed, %d still owned by others)",
                member.member_id,
                len(self.owned),
                len(leaving),
                len(result.claimed),
                len(result.held_by_others),
            )
        return not self.held_by_others and not self._not_consumed

    def _stop(self, leaving: Collection[TopicPartition]) -> None:
        """Stops consumption of these partitions before their release.

        If these partitions are assigned to this member again before they are released, consumption starts again.
        """
        self._not_consumed |= set(leaving)
        try:
            self._member.listener.on_revoked(leaving)
        except OffsetMgrError:
            self._member.listener.on_lost(leaving)
            raise

    def _forget(self, partitions: Collection[TopicPartition]) -> None:
        self.owned = {tp: thread for tp, thread in self.owned.items() if tp not in partitions}
        self._not_consumed -= set(partitions)

    def _watch(self, nodes: Iterable[str], parents: Iterable[str]) -> bool:
        """Sets watches on these nodes, so that the next change of a node wakes the member. Returns whether any watch is
        new.

        If a parent is missing, sets a watch for the creation of the parent. If an owner node is missing, wakes the
        member immediately.
        """
        added = self._watches.add(nodes, parents, await_parents=True)
        if any(self._claims.path(tp) in added.missing for tp in (*self.owned, *self.held_by_others)):
            self._member.wake()
        return bool(added.nodes or added.parents)
