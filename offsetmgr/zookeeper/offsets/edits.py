"""`EditBatch`: executes edits of groups in few transactions. It reads the nodes and decides for each change whether to
write. A write succeeds only if its node has not changed since the node was read.

Ordering contract: every write either creates its node or names the data version of the node that was read. Therefore a
write takes effect only if the node still has the content on which the decision was based. If one node of a transaction
has changed, the server rejects the whole transaction. If a transaction is rejected, this module reads the transaction's
nodes again, decides for each change again, and retries the changes in smaller transactions. After several retries, each
transaction contains only one node, so that a node that other clients keep changing does not prevent other writes.

The nodes are read just before the write, even if an earlier scan has read them: a recreated node begins again at
version 0, so the version of an earlier scan proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from offsetmgr.core.batches import by_key
from offsetmgr.core.errors import Conflict, OffsetMgrError, Unreachable
from offsetmgr.core.evaluation import evaluate, stopped
from offsetmgr.core.model import ABSENT, Committed, Offset, TopicPartition
from offsetmgr.core.offset_store import Capabilities, Change, ChangeOutcome, EditStatus, GroupEdit, GroupEditResult
from offsetmgr.zookeeper.client.jute import NodeData
from offsetmgr.zookeeper.client.session import RACES, Node, ZookeeperSession
from offsetmgr.zookeeper.client.transactions import (
    MAX_BYTES_PER_TRANSACTION,
    MAX_OPERATIONS_PER_TRANSACTION,
    Create,
    Delete,
    OperationState,
    SetData,
    TransactionOperation,
    TransactionResult,
    max_encoded_size,
)
from offsetmgr.zookeeper.nodes import paths
from offsetmgr.zookeeper.nodes.offset_data import decimal_commit
from offsetmgr.zookeeper.offsets.group_nodes import locate_directories
from offsetmgr.zookeeper.offsets.layouts import Layout, existing_topic_directories

_MAX_TRIES: Final = 8
_COMPARED_FIELDS: Final = Capabilities(
    metadata=False, leader_epoch=False, commit_timestamp=False, conditional="version"
)


@dataclass(slots=True)
class NodeWrite:
    """The change of one partition, while it is being executed."""

    edit: int
    group: str
    partition: TopicPartition
    change: Change
    path: str
    data: bytes | None
    """The node's new content, or None if the node is to be deleted. If the layout has ``topic_in_data``, the content is
    computed again after each read of the node."""
    found: Offset | None = None
    node: NodeData | None = None
    tries: int = 0

    def __str__(self) -> str:
        return f"offset of group {self.group}, {self.partition}"

    def operation(self) -> TransactionOperation:
        if self.data is None:
            return Delete(self.path, self.node.version if self.node else 0)
        return SetData(self.path, self.data, self.node.version) if self.node else Create(self.path, self.data)

    def is_unchanged(self, now: NodeData | None) -> bool:
        """Whether the node has not changed since this module decided to write."""
        if self.node is None or now is None:
            return self.node is now
        return now.czxid == self.node.czxid and now.version == self.node.version

    def is_applied(self, now: NodeData | None) -> bool:
        """Whether ``now`` is exactly the state of the node that this write produces."""
        if self.data is None or now is None:
            return self.data is None and now is None
        return now.data == self.data and now.version == (self.node.version + 1 if self.node else 0)


@dataclass(slots=True)
class Transaction:
    """The writes of one ZooKeeper transaction."""

    operations: list[TransactionOperation]
    writes: list[NodeWrite | None]
    """The write to which each operation belongs; None if the operation creates a parent."""

    def node_writes(self) -> list[NodeWrite]:
        return [write for write in self.writes if write is not None]


class EditBatch:
    """Executes edits of different groups together: the constructor starts to read the nodes, `write` sends the first
    transactions, and `results` completes all edits. Other batches can be read and written in between."""

    def __init__(self, session: ZookeeperSession, layout: Layout, edits: list[GroupEdit]) -> None:
        """Raises the errors of the session."""
        self.edits = edits
        self.outcomes: list[dict[TopicPartition, ChangeOutcome]] = [{} for _ in edits]
        """The outcomes of each edit, by partition. They are complete when `results` has returned."""
        self._session = session
        self._layout = layout
        self._existing: set[str] = set()
        self._pending = list(self._node_writes())
        self._nodes = session.begin_get_many([write.path for write in self._pending])
        self._sent: list[Transaction] = []
        self._responses: Callable[[], list[TransactionResult]] = list

    def write(self) -> None:
        """Waits for the nodes and sends the writes that are necessary. If the session fails, raises the error; no node
        of this batch was written in this case."""
        self._send(self._pending, self._nodes(), MAX_OPERATIONS_PER_TRANSACTION)

    def results(self) -> list[GroupEditResult]:
        """Waits for the transactions, retries the writes that other clients prevented, and returns the results of all
        edits. If the session fails, the results contain the error."""
        size = MAX_OPERATIONS_PER_TRANSACTION
        while pending := [
            write
            for transaction, outcome in zip(self._sent, self._responses(), strict=True)
            for write in self.record_result(transaction, outcome)
        ]:
            size = max(1, size // 6)
            try:
                self._send(pending, self._session.get_many([write.path for write in pending]), size)
            except OffsetMgrError as error:
                for write in pending:
                    if write.partition not in self.outcomes[write.edit]:
                        self._fail(write, error)
                break
        return [
            # Outcomes are returned in the order of the edit's changes, which they usually have already.
            GroupEditResult(
                edit.group,
                outcomes if [*outcomes] == [*edit.changes] else {tp: outcomes[tp] for tp in edit.changes},
            )
            for edit, outcomes in zip(self.edits, self.outcomes, strict=True)
        ]

    def _node_writes(self) -> Iterator[NodeWrite]:
        """Yields the writes of all changes. If a change can never be written, its outcome is recorded immediately."""
        topics = ((edit.group, tp.topic) for edit in self.edits for tp in edit.changes)
        directories = existing_topic_directories(self._session, self._layout, topics)
        for index, edit in enumerate(self.edits):
            group = edit.group
            for partition, change in edit.changes.items():
                try:
                    path = self._layout.path(group, partition, directories)
                    if change.after is None:
                        _, data = edit.raw.get(partition, (None, None))
                    else:
                        data = self._layout.encode(partition, change.after.offset, None)
                except OffsetMgrError as error:
                    self.outcomes[index][partition] = ChangeOutcome(EditStatus.FAILED, None, error)
                    continue
                yield NodeWrite(index, group, partition, change, path, data)

    # --- deciding ---------------------------------------------------------------------------------

    def _writes_needed(self, pending: list[NodeWrite], nodes: list[Node]) -> list[NodeWrite]:
        """Returns the pending writes that are necessary, and records the outcomes of the other writes. ``nodes`` are
        the nodes of the pending writes."""
        needed = [write for write, node in zip(pending, nodes, strict=True) if self._needs_writing(write, node)]
        others = ((write.edit, write.partition) for write in needed if self.outcomes[write.edit])
        for index, partitions in by_key(others).items():
            if self.edits[index].whole:
                self.outcomes[index] |= stopped(self.edits[index].group, self.outcomes[index], partitions)
        return [write for write in needed if write.partition not in self.outcomes[write.edit]]

    def _needs_writing(self, write: NodeWrite, node: Node) -> bool:
        write.found = None
        raw = self.edits[write.edit].raw.get(write.partition)
        if isinstance(node, OffsetMgrError):
            self._fail(write, node)
            return False
        try:
            replaces = raw is not None and node is not None and node.data == raw[0]
            found = ABSENT if replaces else self._offset(write, node)
            after = write.change.after
            if after is not None and self._layout.topic_in_data:
                held = None if replaces or node is None else node.data
                write.data = self._layout.encode(write.partition, after.offset, held)
            if raw is not None and raw[0] is not None and not replaces:
                raise Conflict(str(write), "its znode has other data now", "nothing was written; read the offset again")
        except OffsetMgrError as error:
            self._fail(write, error)
            return False
        write.found, write.node = found, node
        outcome = evaluate(write.group, write.partition, write.change, found, _COMPARED_FIELDS)
        if raw is not None and outcome is not None and outcome.error is None:
            return True  # data that is no offset is deleted or restored
        if outcome is not None:
            self.outcomes[write.edit][write.partition] = outcome
        return outcome is None

    def _offset(self, write: NodeWrite, node: NodeData | None) -> Offset:
        if node is None:
            return ABSENT
        if not self._layout.topic_in_data and (found := decimal_commit(node)) is not None:
            return found
        path = self._session.chroot + write.path
        partition, offset = self._layout.decode(path, node.data, write.partition)
        if partition != write.partition:
            raise Conflict(
                str(write),
                f"ZooKeeper node {path} holds the offset of topic {partition.topic}: the two topics share this node",
                "use a different group (spout id) for this topic",
            )
        return Committed(offset, "", None, node.mtime_ms, node.version)

    # --- writing ----------------------------------------------------------------------------------

    def _send(self, pending: list[NodeWrite], nodes: list[Node], size: int) -> None:
        """Decides which of the pending writes are necessary, and sends them in transactions of at most ``size``
        operations."""
        self._sent, self._responses = [], list
        needed = self._writes_needed(pending, nodes)
        parents = list(dict.fromkeys(parent for write in needed for parent in self._missing_parents(write)))
        found = self._session.get_many(parents)
        # An unreadable parent exists, too.
        self._existing.update(path for path, node in zip(parents, found, strict=True) if node is not None)
        transactions = list(self._transactions(needed, size))
        if transactions:
            self._responses = self._session.begin_transactions([t.operations for t in transactions])
            self._sent = transactions

    def _missing_parents(self, write: NodeWrite) -> list[str]:
        """Returns the ancestors of a node to be created that are not known to exist, outermost first."""
        ancestors = paths.with_ancestors(write.path.rpartition("/")[0]) if write.node is None else ()
        return [path for path in ancestors if path not in self._existing]

    def _transactions(self, writes: list[NodeWrite], size: int) -> Iterator[Transaction]:
        planned: set[str] = set()
        current, used = Transaction([], []), 0
        for write in writes:
            creations = [Create(parent) for parent in self._missing_parents(write) if parent not in planned]
            planned.update(creation.path for creation in creations)
            operation = write.operation()
            more = max_encoded_size(operation) + sum(map(max_encoded_size, creations))
            full = len(current.operations) + len(creations) >= size or used + more > MAX_BYTES_PER_TRANSACTION
            if full and current.operations:
                yield current
                current, used = Transaction([], []), 0
            current.operations += creations
            current.operations.append(operation)
            current.writes += [None] * len(creations)
            current.writes.append(write)
            used += more
        if current.operations:
            yield current

    def record_result(self, transaction: Transaction, outcome: TransactionResult) -> list[NodeWrite]:
        """Records the outcome of a transaction. Returns the writes that must be tried again."""
        match outcome.state:
            case OperationState.COMMITTED:
                return self._written(transaction)
            case OperationState.NOT_SENT:
                return self._retry(transaction.node_writes(), transaction.node_writes(), outcome.error)
            case OperationState.UNKNOWN:
                return self._resolve_in_doubt(transaction, outcome.error)
            case OperationState.REJECTED:
                return self._rejected(transaction, outcome)

    def _rejected(self, transaction: Transaction, outcome: TransactionResult) -> list[NodeWrite]:
        writes = transaction.node_writes()
        if outcome.failed_index is None:
            for write in writes:
                self._fail(write, outcome.error)
            return []
        # If the failed operation creates a parent, the write is the one that needs this parent.
        failed = next(write for write in transaction.writes[outcome.failed_index :] if write is not None)
        # Another client may have deleted a parent (NO_NODE) or created a missing parent (NODE_EXISTS), so the parents
        # must be read again.
        self._existing.difference_update(paths.with_ancestors(failed.path.rpartition("/")[0]))
        if outcome.code in RACES:
            error = Conflict(str(failed), "other clients kept changing it", "try again when the group is idle")
            return self._retry(writes, [failed], error)
        self._fail(failed, outcome.error)
        return [write for write in writes if write is not failed]

    def _resolve_in_doubt(self, transaction: Transaction, error: OffsetMgrError | None) -> list[NodeWrite]:
        """Finds out whether the server executed a transaction that got no response, by reading the transaction's nodes.

        The server executes a transaction entirely or not at all. Therefore, if one node is unchanged, the server did
        not execute the transaction. If one node is in exactly the state that its write produces, the server executed
        the transaction.
        """
        writes = transaction.node_writes()
        try:
            # Without a sync, a server that lags behind the leader could show the state before the transaction.
            self._session.sync()
            nodes = self._session.get_many([write.path for write in writes])
        except OffsetMgrError as failure:
            return self._unknown(writes, failure)
        seen = [
            (write, node) for write, node in zip(writes, nodes, strict=True) if not isinstance(node, OffsetMgrError)
        ]
        if any(write.is_unchanged(node) for write, node in seen):
            return self._retry(writes, writes, error)
        if any(write.is_applied(node) for write, node in seen):
            return self._written(transaction)
        return self._unknown(writes, error)

    def _retry(
        self, writes: list[NodeWrite], counted: list[NodeWrite], error: OffsetMgrError | None
    ) -> list[NodeWrite]:
        """Returns the writes to try again. Counts one attempt for each write in ``counted``. After `_MAX_TRIES`
        attempts, a write fails with ``error``."""
        for write in counted:
            write.tries += 1
            if write.tries >= _MAX_TRIES:
                self._fail(write, error)
        return [write for write in writes if write.tries < _MAX_TRIES]

    # --- outcomes ---------------------------------------------------------------------------------

    def _written(self, transaction: Transaction) -> list[NodeWrite]:
        for write in transaction.node_writes():
            self.outcomes[write.edit][write.partition] = ChangeOutcome(EditStatus.WRITTEN, write.found)
        return []

    def _unknown(self, writes: list[NodeWrite], error: OffsetMgrError | None) -> list[NodeWrite]:
        why = f"the connection was lost during the write, so its outcome is unknown ({error})"
        for write in writes:
            self._fail(write, Unreachable(str(write), why, "read the offset again before you write it"))
        return []

    def _fail(self, write: NodeWrite, error: OffsetMgrError | None) -> None:
        self.outcomes[write.edit][write.partition] = ChangeOutcome(EditStatus.FAILED, write.found, error)


# Executes streams of edits in batches. The nodes of a batch are read while those of the batch before it are written.
# Ordering contract: as in `EditBatch`, every write requires that its node still has the version that was read before
# the write. The nodes of an edit are read only after all earlier edits of the same group are complete.

CHANGES_PER_BATCH: Final = 10 * MAX_OPERATIONS_PER_TRANSACTION
"""The number of changes in one batch. The nodes of a batch are read together."""


def execute(session: ZookeeperSession, layout: Layout, edits: Iterable[GroupEdit]) -> Iterator[GroupEditResult]:
    """Executes a stream of edits and yields their results in the same order.

    An edit of a group sees the results of earlier edits of the same group. If the session fails before any node of a
    batch was written, the error is raised. If the session fails after a node of the batch may have been written, the
    results of the batch contain the error. If the session or the iterator ``edits`` raises an error, this function
    first completes the transactions that were sent and yields their results, and then raises the error.
    """
    pipeline = _EditPipeline(session, layout)
    try:
        for edit in edits:
            if edit.group in pipeline.groups:
                yield from pipeline.finish()
            yield from pipeline.add(edit)
        yield from pipeline.finish()
    except Exception:
        yield from pipeline.finish_sent()
        raise


class _EditPipeline:
    """The edits in progress. The edits are collected into batches. The nodes of a batch are read first, and then
    written. One batch at a time is read, and one is written."""

    def __init__(self, session: ZookeeperSession, layout: Layout) -> None:
        self._session = session
        self._layout = layout
        self._edits: list[GroupEdit] = []
        self._changes = 0
        self._reading: EditBatch | None = None
        self._writing: EditBatch | None = None
        self.groups: set[str] = set()
        """The groups of all edits in progress."""

    def add(self, edit: GroupEdit) -> Iterator[GroupEditResult]:
        """Adds an edit to the present batch. Yields the results of earlier edits that are now complete."""
        self._edits.append(edit)
        self.groups.add(edit.group)
        self._changes += len(edit.changes) + 1
        if self._changes >= CHANGES_PER_BATCH:
            yield from self._advance()

    def finish(self) -> Iterator[GroupEditResult]:
        """Completes all edits and yields their results."""
        while self._edits or self._reading is not None:
            yield from self._advance()
        yield from self.finish_sent()

    def finish_sent(self) -> Iterator[GroupEditResult]:
        """Completes the edits that may have been written, and yields their results. Starts no new reads or writes."""
        batch, self._writing = self._writing, None
        yield from self._results(batch)

    def _results(self, batch: EditBatch | None) -> Iterator[GroupEditResult]:
        if batch is not None:
            self.groups.difference_update(edit.group for edit in batch.edits)
            yield from batch.results()

    def _advance(self) -> Iterator[GroupEditResult]:
        """Starts reading the nodes of the collected edits, writes the batch that was read, and completes the one that
        was written."""
        batch, self._reading = self._reading, None
        if self._edits:
            edits, self._edits, self._changes = self._edits, [], 0
            locate_directories(self._session, self._layout, [edit.group for edit in edits])
            self._reading = EditBatch(self._session, self._layout, edits)
        if batch is not None:
            batch.write()
            written, self._writing = self._writing, batch
            yield from self._results(written)
