"""`MemberOwnership`: the partitions that one session of a member owns, adjusted to the group after each change.

It watches the facts that the assignment depends on, releases the partitions that no longer belong to the member, and
claims the new ones. It notifies the consuming code through `PartitionListener`. Partitions that stay with their thread
are not interrupted. The old consumer releases all of them at every change, which looks the same to the others.

Ordering contract, for each partition: `PartitionListener.stop` (which stops delivery and commits) runs before the owner
node is deleted; the owner node is created before `PartitionListener.begin` (which then reads the committed offset).
After the session is over, `PartitionListener.drop` runs and nothing is committed. Before that call the session's lease
has already run out; code that delivers messages must check the lease for each of them.

Source: the rebalancing algorithm of the 0.10.1 implementation page; ZKRebalancerListener of
kafka.consumer.ZookeeperConsumerConnector.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping
from typing import Final, Protocol

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import TopicPartition
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.session_lease import SessionLease
from offsetmgr.zookeeper.groups.assignors import ThreadId
from offsetmgr.zookeeper.groups.membership import GroupRegistration
from offsetmgr.zookeeper.groups.partition_claims import Claims
from offsetmgr.zookeeper.nodes import paths

_LOG: Final = logging.getLogger("offsetmgr.consumer")


class PartitionListener(Protocol):
    """Consumes the partitions that a member owns. Called in the member's thread, one call at a time."""

    def joined(self, session: ZookeeperSession, lease: SessionLease) -> None:
        """The member is registered in this session; all claims until `drop` belong to it."""
        ...

    def begin(self, claimed: Mapping[TopicPartition, ThreadId]) -> Collection[TopicPartition]:
        """Consume these partitions from their committed offsets, including partitions that were stopped and came back
        before their release. Returns the partitions that could not be started yet; they are passed again soon. Raises
        if retrying cannot help."""
        ...

    def stop(self, partitions: Collection[TopicPartition]) -> None:
        """Stop delivery of these partitions, commit, and forget them. Called again for stopped partitions whose release
        has failed."""
        ...

    def drop(self, partitions: Collection[TopicPartition] | None) -> None:
        """These partitions (None: all) already belong to others: stop delivery and commit nothing."""
        ...

    def failed(self, error: OffsetMgrError) -> None:
        """The member has given up and left the group."""
        ...


class Group(Protocol):
    """The services of its member and group that a `MemberOwnership` needs."""

    @property
    def group(self) -> str: ...

    @property
    def member_id(self) -> str: ...

    @property
    def holder(self) -> PartitionListener: ...

    def look(self, session: ZookeeperSession) -> GroupRegistration:
        """Reads the group."""
        ...

    def part(self, snapshot: GroupRegistration) -> dict[TopicPartition, ThreadId]:
        """The member's part of the assignment."""
        ...

    def rebalanced(self) -> None:
        """Members, topics or partitions have changed since the last call."""
        ...

    def wake(self) -> None:
        """Something has changed: a rebalance is needed soon. Thread-safe."""
        ...


class MemberOwnership:
    """Belongs to one session. For one thread, except ``owned`` and ``held``."""

    def __init__(self, member: Group, session: ZookeeperSession, claims: Claims) -> None:
        self._member = member
        self._session = session
        self._claims = claims
        self._watched: set[str] = set()
        self._lock = threading.Lock()
        self.owned: dict[TopicPartition, ThreadId] = {}
        """The owned partitions, each with its thread; the mapping is replaced, never changed."""
        self.held: dict[TopicPartition, str] = {}
        """Partitions assigned to this member that others still hold, with the texts of their owner nodes; replaced
        too."""
        self._unbegun: set[TopicPartition] = set()
        """Those of ``owned`` that are not consumed: not begun yet, or stopped and not released yet."""
        self._seen: object = None

    def rebalance(self) -> bool:
        """Adjusts the owned partitions to the present assignment. Returns False if something must be retried."""
        member, holder = self._member, self._member.holder
        parents = [paths.ids(member.group), paths.BROKER_IDS, paths.BROKER_TOPICS]
        self._watch([self._claims.path(tp) for tp in self.owned], parents)
        # Before the group is read, because that fails as long as a registration is unreadable; lost partitions must be
        # dropped even then.
        if lost := self._claims.lost(self.owned):
            _LOG.warning("consumer %s: others deleted or wrote its owner nodes: %s", member.member_id, _listed(lost))
            holder.drop(lost)
            self._forget(lost)
        snapshot = member.look(self._session)
        if self._watch([paths.topic(topic) for topic in snapshot.streams.get(member.member_id, {})], []):
            snapshot = member.look(self._session)  # changes from before the watches were set
        if not snapshot.brokers:
            # As in the old consumer: nothing can be consumed, and releasing would not help.
            return not self._unbegun
        share = member.part(snapshot)
        if leaving := [tp for tp, thread in self.owned.items() if share.get(tp) != thread]:
            self._stop(leaving)
            self._claims.release(leaving)
            self._forget(leaving)
        if stray := self._claims.unsure - share.keys():
            self._claims.release(stray)
        claimed = self._claims.claim({tp: thread for tp, thread in share.items() if tp not in self.owned})
        self.owned = {**self.owned, **claimed.mine}
        self._unbegun |= claimed.mine.keys()
        self.held = dict(claimed.held)
        self._watch([self._claims.path(tp) for tp in (*claimed.mine, *claimed.held)], [])
        if self._unbegun:
            self._unbegun = set(holder.begin({tp: self.owned[tp] for tp in self._unbegun}))
        seen = (snapshot.streams, snapshot.partitions)
        if leaving or claimed.mine or seen != self._seen:
            member.rebalanced()
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

    def _stop(self, leaving: Collection[TopicPartition]) -> None:
        """Stops consumption of these partitions, whatever fails afterwards. If they come back before their owner nodes
        are deleted, they are begun again."""
        self._unbegun |= set(leaving)
        try:
            self._member.holder.stop(leaving)
        except OffsetMgrError:
            self._member.holder.drop(leaving)
            raise

    def _forget(self, partitions: Collection[TopicPartition]) -> None:
        self.owned = {tp: thread for tp, thread in self.owned.items() if tp not in partitions}
        self._unbegun -= set(partitions)

    def _watch(self, nodes: list[str], parents: list[str]) -> bool:
        """Sets watches so that a change of these nodes wakes the member once. Also watches for the creation of a
        missing parent. Returns whether any watch is new; a deleted owner node wakes the member at once."""
        with self._lock:
            nodes = [path for path in nodes if path not in self._watched]
            parents = [path for path in parents if path not in self._watched]
            self._watched |= {*nodes, *parents}
        missing = {*nodes, *parents}
        try:
            if missing:
                missing = set(self._session.watch_many(nodes, parents, self._fired))
            for path in missing.intersection(parents):
                self._session.watch_children(path, self._fired)
                missing.discard(path)
        finally:
            with self._lock:
                self._watched -= missing
        if missing and any(self._claims.path(tp) in missing for tp in (*self.owned, *self.held)):
            self._member.wake()
        return bool(nodes or parents)

    def _fired(self, path: str) -> None:
        with self._lock:
            self._watched.discard(path)
        self._member.wake()


def _listed(partitions: Collection[TopicPartition]) -> str:
    shown = ", ".join(map(str, sorted(partitions)[:5]))
    return shown + (f" and {len(partitions) - 5} more" if len(partitions) > 5 else "")
