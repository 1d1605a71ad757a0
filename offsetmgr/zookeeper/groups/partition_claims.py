"""`PartitionClaims`: claims and releases partitions through ephemeral owner nodes.

A claim of a partition creates the owner node only if the partition has no owner node. Only the session that owns an
owner node deletes it.

Ordering contract: all requests of this module use the member's only session, so the server rejects these requests after
the session has ended. Therefore, when other members have taken over a member's partitions, a late request of this
member can neither create nor delete an owner node. Source: reflectPartitionOwnershipDecision of
kafka.consumer.ZookeeperConsumerConnector, which claims either all of a member's partitions or none. This module claims
each partition separately. Therefore, if another member releases one partition late, the claims of other partitions are
not delayed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from offsetmgr.core.batches import batched
from offsetmgr.core.errors import Conflict, value_of
from offsetmgr.core.model import TopicPartition
from offsetmgr.zookeeper.client.jute import NodeData
from offsetmgr.zookeeper.client.session import ZookeeperSession, committed, ensure_nodes
from offsetmgr.zookeeper.client.transactions import (
    MAX_OPERATIONS_PER_TRANSACTION,
    Create,
    Delete,
    TransactionOperation,
)
from offsetmgr.zookeeper.groups.assignors import ThreadId
from offsetmgr.zookeeper.nodes import paths

_MAX_TRIES: Final = 8


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """The result of a claim: the partitions that this session owns, and the partitions that other sessions own.

    ``held_by_others`` maps each partition that another session owns to the content of the partition's owner node.
    """

    claimed: Mapping[TopicPartition, ThreadId]
    held_by_others: Mapping[TopicPartition, str]


class PartitionClaims:
    """Claims and releases partitions of one group for the session with the id ``session_id``."""

    def __init__(self, session: ZookeeperSession, session_id: int, group: str) -> None:
        self._session = session
        self._session_id = session_id
        self._group = group
        self.in_doubt: set[TopicPartition] = set()
        """Partitions that this session may own, because the outcome of a claim of these partitions is unknown."""

    def path(self, partition: TopicPartition) -> str:
        return paths.owner(self._group, partition.topic, partition.partition)

    def claim(self, partitions: Mapping[TopicPartition, ThreadId]) -> ClaimResult:
        """Claims the partitions in ``partitions`` that have no owner. ``partitions`` maps each partition to the thread
        that will consume it.

        Raises any error of the session. After an error, `in_doubt` includes the partitions whose claim may have been
        sent.
        """
        for _ in range(_MAX_TRIES):
            found = self._read(partitions)
            claimed = {tp: partitions[tp] for tp, node in found.items() if self._is_owned_by(node, partitions[tp])}
            held_by_others = {
                tp: node.data.decode("utf-8", "backslashreplace")
                for tp, node in found.items()
                if node is not None and node.ephemeral_owner != self._session_id
            }
            free = [tp for tp in partitions if tp not in claimed and tp not in held_by_others]
            if not free:
                self.in_doubt -= partitions.keys()
                return ClaimResult(claimed, held_by_others)
            topics = sorted({tp.topic for tp in free})
            parents = [paths.owners(self._group), *(paths.owners_of_topic(self._group, topic) for topic in topics)]
            ensure_nodes(self._session, parents)
            operations: list[TransactionOperation] = []
            for tp in free:
                if (own_node := found[tp]) is not None:  # this node names another thread, or a user has overwritten it
                    operations.append(Delete(self.path(tp), own_node.version))
                operations.append(Create(self.path(tp), str(partitions[tp]).encode(), ephemeral=True))
            self.in_doubt |= set(free)
            self._send(operations)
        raise self._conflict()

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Releases the partitions in ``partitions`` that this session owns. Raises any error of the session."""
        left = set(partitions)
        if left & self.in_doubt:
            self._session.sync()  # after the sync, no request from a lost connection can take effect
        for _ in range(_MAX_TRIES):
            owned_nodes = {
                tp: node for tp, node in self._read(left).items() if node is not None and self._is_ours(node)
            }
            self.in_doubt -= left - owned_nodes.keys()
            if not owned_nodes:
                return
            self._send([Delete(self.path(tp), node.version) for tp, node in owned_nodes.items()])
        raise self._conflict()

    def lost(self, owned: Mapping[TopicPartition, ThreadId]) -> set[TopicPartition]:
        """Returns the partitions in ``owned`` that this session has lost, because another client has deleted or
        overwritten the partition's owner node.

        Raises any error of the session.
        """
        return {tp for tp, node in self._read(owned).items() if not self._is_owned_by(node, owned[tp])}

    def _read(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, NodeData | None]:
        nodes = self._session.get_many([self.path(tp) for tp in partitions])
        return {tp: value_of(node) for tp, node in zip(partitions, nodes, strict=True)}

    def _conflict(self) -> Conflict:
        why, hint = "their owner nodes keep changing", "try again when the group is stable"
        return Conflict(f"partitions of group {self._group}", why, hint)

    def _is_ours(self, node: NodeData) -> bool:
        return node.ephemeral_owner == self._session_id

    def _is_owned_by(self, node: NodeData | None, thread: ThreadId) -> bool:
        return node is not None and self._is_ours(node) and node.data == str(thread).encode()

    def _send(self, operations: list[TransactionOperation]) -> None:
        """Sends transactions. Some of the transactions may be rejected or have an unknown outcome, so the caller must
        read the nodes again after this call."""
        batches = batched(operations, MAX_OPERATIONS_PER_TRANSACTION)
        for outcome in self._session.transactions(list(batches)):
            committed(self._session, outcome)
