"""`MemberOwnership`: the partitions that one session of a member owns. After each change of the group,
`MemberOwnership` claims and releases partitions according to the new assignment.

It watches the nodes that determine the assignment, releases the partitions that are no longer assigned to the member,
and claims the partitions that are newly assigned. It notifies the code that consumes the partitions through
`PartitionListener`. Partitions that stay assigned to the same thread are consumed without interruption. The old
consumer instead releases all its partitions at every change. Despite this difference, a group can contain both old
consumers and members that use this class.

Ordering contract, for each partition: `PartitionListener.on_revoked`, which stops delivery and commits, runs before the
owner node is deleted. `PartitionListener.on_assigned`, which reads the committed offset, runs after the owner node has
been created. When the session has ended, `PartitionListener.on_lost` runs, which commits nothing. The session's lease
may end before `PartitionListener.on_lost` runs, so code that delivers messages must check the lease before each
message.

Source: the consumer rebalancing algorithm on the "Implementation" page of Kafka 0.10.1's documentation;
ZKRebalancerListener of kafka.consumer.ZookeeperConsumerConnector.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping
from typing import Final, Protocol

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.plurals import list_of
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.session_lease import SessionLease
from offsetmgr.zookeeper.groups.assignors import ThreadId
from offsetmgr.zookeeper.groups.partition_claims import PartitionClaims
from offsetmgr.zookeeper.groups.registration import GroupRegistration
from offsetmgr.zookeeper.nodes import paths

_LOG: Final = logging.getLogger("offsetmgr.consumer")


class PartitionListener(Protocol):
    """Consumes the partitions that a member owns. The member's thread calls these methods."""

    def on_joined(self, session: ZookeeperSession, lease: SessionLease) -> None:
        """Called when the member has registered in this session. Until `on_lost` is called, this session owns all
        partitions of the member."""
        ...

    def on_assigned(self, claimed: Mapping[TopicPartition, ThreadId]) -> Collection[TopicPartition]:
        """Starts to consume these partitions from their committed offsets.

        ``claimed`` may include partitions that were revoked but were assigned to this member again before the member
        released them. Returns the partitions whose consumption could not be started. The member soon calls this method
        again for the returned partitions. Raises an error if a retry cannot help.
        """
        ...

    def on_revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Stops delivery of these partitions, commits their offsets, and forgets them.

        If the member fails to release the partitions, the member calls this method again for the same partitions.
        """
        ...

    def on_lost(self, partitions: Collection[TopicPartition] | None) -> None:
        """Stops delivery of these partitions, or of all partitions if None. Does not commit, because other members may
        own the partitions already."""
        ...

    def on_failed(self, error: OffsetMgrError) -> None:
        """Called when the member leaves the group because of this error."""
        ...


class MemberContext(Protocol):
    """The operations of a group member that a `MemberOwnership` needs."""

    @property
    def group(self) -> str: ...

    @property
    def member_id(self) -> str: ...

    @property
    def listener(self) -> PartitionListener: ...

    def read_group(self, session: ZookeeperSession) -> GroupRegistration:
        """Reads the input of the group's assignment."""
        ...

    def own_assignment(self, snapshot: GroupRegistration) -> dict[TopicPartition, ThreadId]:
        """Computes the partitions that are assigned to this member, each with its thread."""
        ...

    def on_rebalanced(self) -> None:
        """Called at the end of a rebalance, if the input of the assignment or the owned partitions have changed."""
        ...

    def wake(self) -> None:
        """Requests a rebalance, because something has changed. Thread-safe."""
        ...


class MemberOwnership:
    """The partitions that a member owns in one session.

    Only one thread may call the methods, but every thread may read ``owned`` and ``held_by_others``.
    """

    def __init__(self, member: MemberContext, session: ZookeeperSession, claims: PartitionClaims) -> None:
        self._member = member
        self._session = session
        self._claims = claims
        self._watched: set[str] = set()
        self._lock = threading.Lock()
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
            member.on_rebalanced()
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

    def _watch(self, nodes: list[str], parents: list[str]) -> bool:
        """Sets watches on these nodes, so that the next change of a node wakes the member. Returns whether any watch is
        new.

        If a parent is missing, sets a watch for the creation of the parent. If an owner node is missing, wakes the
        member immediately.
        """
        with self._lock:
            nodes = [path for path in nodes if path not in self._watched]
            parents = [path for path in parents if path not in self._watched]
            self._watched |= {*nodes, *parents}
        missing = {*nodes, *parents}
        try:
            if missing:
                missing = set(self._session.watch_many(nodes, parents, self._on_watch))
            for path in missing.intersection(parents):
                self._session.watch_children(path, self._on_watch)
                missing.discard(path)
        finally:
            with self._lock:
                self._watched -= missing
        if missing and any(self._claims.path(tp) in missing for tp in (*self.owned, *self.held_by_others)):
            self._member.wake()
        return bool(nodes or parents)

    def _on_watch(self, path: str) -> None:
        with self._lock:
            self._watched.discard(path)
        self._member.wake()
