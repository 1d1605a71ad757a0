"""Claims on partitions: ephemeral owner nodes, created only if none exists, and deleted only by their session.

Ordering contract: all requests here use the member's one session, so the server rejects them after the session is over.
An owner node of this session is therefore never mistaken for a free partition, and a node that another member has
created since is never deleted. Source: reflectPartitionOwnershipDecision of kafka.consumer.ZookeeperConsumerConnector,
which claims all of its partitions or none. This code claims each partition separately, so that one late owner does not
delay the others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from offsetmgr.core.errors import Conflict, OffsetMgrError, ServerError
from offsetmgr.core.model import TopicPartition
from offsetmgr.zookeeper.client.jute import NodeData, ZookeeperError
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.transactions import (
    MAX_OPERATIONS_PER_TRANSACTION,
    Create,
    Delete,
    Operation,
    OperationState,
    TransactionResult,
)
from offsetmgr.zookeeper.groups.assignors import ThreadId
from offsetmgr.zookeeper.groups.membership import ensure
from offsetmgr.zookeeper.nodes import paths

_TRIES: Final = 8
_RACES: Final = (ZookeeperError.NODE_EXISTS, ZookeeperError.NO_NODE, ZookeeperError.BAD_VERSION)


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """``mine`` have been claimed; ``held`` still belong to others: partition -> the text of its owner node."""

    mine: Mapping[TopicPartition, ThreadId]
    held: Mapping[TopicPartition, str]


class Claims:
    """The owner nodes of one group, as the session with this id sees and changes them."""

    def __init__(self, session: ZookeeperSession, session_id: int, group: str) -> None:
        self._session = session
        self._session_id = session_id
        self._group = group
        self.unsure: set[TopicPartition] = set()
        """Partitions whose claim has an unknown outcome: their nodes may be ours."""

    def path(self, partition: TopicPartition) -> str:
        return paths.owner(self._group, partition.topic, partition.partition)

    def claim(self, wanted: Mapping[TopicPartition, ThreadId]) -> ClaimResult:
        """Claims those of the partitions that have no owner. Raises what the session raises; the partitions of the
        failed request are then in `unsure`."""
        for _ in range(_TRIES):
            found = self._read(wanted)
            mine = {tp: wanted[tp] for tp, node in found.items() if self._is(node, wanted[tp])}
            held = {
                tp: node.data.decode("utf-8", "backslashreplace")
                for tp, node in found.items()
                if node is not None and node.ephemeral_owner != self._session_id
            }
            free = [tp for tp in wanted if tp not in mine and tp not in held]
            if not free:
                self.unsure -= wanted.keys()
                return ClaimResult(mine, held)
            self._ensure_parents(free)
            operations: list[Operation] = []
            for tp in free:
                if (ours := found[tp]) is not None:  # but for another thread, or overwritten by hand
                    operations.append(Delete(self.path(tp), ours.version))
                operations.append(Create(self.path(tp), str(wanted[tp]).encode(), ephemeral=True))
            self.unsure |= set(free)
            self._carry_out(operations)
        raise Conflict(f"partitions of group {self._group}", "their owners come and go", "try again when it is quiet")

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Releases those of the partitions that are ours. Raises what the session raises."""
        left = set(partitions)
        if left & self.unsure:
            self._session.sync()  # by then a request sent on a lost connection has been carried out, or never will be
        for _ in range(_TRIES):
            ours = {tp: node for tp, node in self._read(left).items() if node is not None and self._ours(node)}
            self.unsure -= left - ours.keys()
            if not ours:
                return
            self._carry_out([Delete(self.path(tp), node.version) for tp, node in ours.items()])
        raise Conflict(f"partitions of group {self._group}", "their owners come and go", "try again when it is quiet")

    def lost(self, owned: Mapping[TopicPartition, ThreadId]) -> set[TopicPartition]:
        """Returns those of the partitions whose node is no longer ours, because another client deleted or overwrote it.
        Raises what the session raises."""
        return {tp for tp, node in self._read(owned).items() if not self._is(node, owned[tp])}

    def _read(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, NodeData | None]:
        found: dict[TopicPartition, NodeData | None] = {}
        nodes = self._session.get_many([self.path(tp) for tp in partitions])
        for tp, node in zip(partitions, nodes, strict=True):
            if isinstance(node, OffsetMgrError):
                raise node
            found[tp] = node
        return found

    def _ours(self, node: NodeData) -> bool:
        return node.ephemeral_owner == self._session_id

    def _is(self, node: NodeData | None, thread: ThreadId) -> bool:
        return node is not None and self._ours(node) and node.data == str(thread).encode()

    def _ensure_parents(self, partitions: Iterable[TopicPartition]) -> None:
        topics = sorted({tp.topic for tp in partitions})
        root = paths.owners(self._group)
        ensure(self._session, [root, *(paths.owners_of_topic(self._group, topic) for topic in topics)])

    def _carry_out(self, operations: list[Operation]) -> None:
        """Sends transactions, each of which is carried out or not; the caller reads again to find out."""
        batches = [
            operations[at : at + MAX_OPERATIONS_PER_TRANSACTION]
            for at in range(0, len(operations), MAX_OPERATIONS_PER_TRANSACTION)
        ]
        outcomes = self._session.transactions(batches)
        if any(outcome.state in (OperationState.UNKNOWN, OperationState.NOT_SENT) for outcome in outcomes):
            self._session.sync()
        for outcome in outcomes:
            if outcome.state is OperationState.REJECTED and outcome.code not in _RACES:
                raise _refusal(outcome)


def _refusal(outcome: TransactionResult) -> OffsetMgrError:
    return outcome.error or ServerError("ZooKeeper", f"refused a claim with code {outcome.code}")
