"""Edits of some groups in few transactions: read, decide, write on the condition that nothing changed, read again.

This module decides every case, one partition at a time. `bulk_edits` carries out the common case and passes all others
to this module.

Ordering contract: every write names the data version that was read before it (or creates the node, or deletes that
version), so it happens only while the node still has the content on which the decision was based. A transaction is
rejected as a whole if one of its nodes has changed. Everything in it is then read and decided again, in smaller
transactions, so that nodes that other clients keep changing end up alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from offsetmgr.core.errors import Conflict, OffsetMgrError, RewindRefused, Unreachable
from offsetmgr.core.model import ABSENT, Absent, Committed, Offset, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, ChangeOutcome, EditStatus, GroupEdit, GroupEditResult
from offsetmgr.zookeeper.client.jute import NodeData, ZookeeperError
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.session_reads import Node
from offsetmgr.zookeeper.client.transactions import (
    MAX_BYTES_PER_TRANSACTION,
    MAX_OPERATIONS_PER_TRANSACTION,
    Create,
    Delete,
    Operation,
    OperationState,
    SetData,
    TransactionResult,
    max_encoded_size,
)
from offsetmgr.zookeeper.nodes import paths
from offsetmgr.zookeeper.offsets.layouts import Layout
from offsetmgr.zookeeper.offsets.topic_directories import existing_topic_directories, in_directory

_TRIES: Final = 8
_RACES: Final = (ZookeeperError.BAD_VERSION, ZookeeperError.NO_NODE, ZookeeperError.NODE_EXISTS)


@dataclass(slots=True)
class NodeWrite:
    """One partition's change in progress."""

    edit: int
    group: str
    partition: TopicPartition
    change: Change
    path: str
    data: bytes | None
    """The node's new content; None deletes it. Computed again from the present content at each read."""
    found: Offset | None = None
    node: NodeData | None = None
    as_of: int | None = None
    """If set, ``node`` was not read but expected: a node created after this zxid is a different one."""
    tries: int = 0

    def __str__(self) -> str:
        return f"offset of group {self.group}, {self.partition}"

    def operation(self) -> Operation:
        if self.data is None:
            return Delete(self.path, self.node.version if self.node else 0)
        return SetData(self.path, self.data, self.node.version) if self.node else Create(self.path, self.data)

    def untouched(self, now: NodeData | None) -> bool:
        """Whether the node is still as it was when the write was decided."""
        if self.node is None or now is None:
            return self.node is now
        same = now.czxid == self.node.czxid if self.as_of is None else now.czxid <= self.as_of
        return same and now.version == self.node.version

    def done(self, now: NodeData | None) -> bool:
        """Whether the node is exactly as the write would have left it."""
        if self.data is None or now is None:
            return self.data is None and now is None
        return now.data == self.data and now.version == (self.node.version + 1 if self.node else 0)


@dataclass(slots=True)
class Transaction:
    """Some writes that are carried out together or not at all."""

    operations: list[Operation]
    writes: list[NodeWrite | None]
    """For each operation its write; None for a parent that had to be created."""

    def wanted(self) -> list[NodeWrite]:
        return [write for write in self.writes if write is not None]

    def write_at(self, index: int) -> NodeWrite:
        """The write at an operation, or the write that needs the parent created there."""
        return next(write for write in self.writes[index:] if write is not None)


class EditBatch:
    """Some edits, of different groups, until their results are complete."""

    def __init__(self, session: ZookeeperSession, layout: Layout, edits: list[GroupEdit]) -> None:
        self.edits = edits
        self.outcomes: list[dict[TopicPartition, ChangeOutcome]] = [{} for _ in edits]
        """For each edit the outcome of its partitions; complete, and in their order, after `results` has run."""
        self._session = session
        self._layout = layout
        self._existing: set[str] = set()

    def results(self, pending: list[NodeWrite], *, begun: bool) -> list[GroupEditResult]:
        """Carries out the remaining writes, each partition as needed; ``begun``: something of this batch has been
        written.

        Raises if the session fails before anything was written; from then on a failure is an outcome.
        """
        size = MAX_OPERATIONS_PER_TRANSACTION
        while pending:
            try:
                decided = self._decide(pending)
                self._look_for_parents(decided)
                transactions = list(self._transactions(decided, size))
                outcomes = self._session.transactions([t.operations for t in transactions]) if transactions else []
            except OffsetMgrError as error:
                if not begun:
                    raise
                self._fail_rest(pending, error)
                break
            begun = True
            pending = []
            for transaction, outcome in zip(transactions, outcomes, strict=True):
                pending += self.settle(transaction, outcome)
            size = max(1, size // 6)
        return [
            # In the order in which the changes were given, as common ones are already.
            GroupEditResult(
                edit.group,
                outcomes if [*outcomes] == [*edit.changes] else {tp: outcomes[tp] for tp in edit.changes},
            )
            for edit, outcomes in zip(self.edits, self.outcomes, strict=True)
        ]

    def prepared(self, wanted: Iterable[tuple[int, TopicPartition, Change]]) -> Iterator[NodeWrite]:
        """The writes for changes, each with its edit's index; a change that can never be written gets its outcome at
        once."""
        directories = self._topic_directories()
        for index, partition, change in wanted:
            group = self.edits[index].group
            try:
                path = self._layout.path(group, partition)
                if self._layout.loose and self._layout.topic_directory(group, partition.topic) in directories:
                    path = in_directory(path, partition)
                data = None if change.after is None else self._encoded(partition, change.after, None)
            except OffsetMgrError as error:
                self.outcomes[index][partition] = ChangeOutcome(EditStatus.FAILED, None, error)
                continue
            yield NodeWrite(index, group, partition, change, path, data)

    def _topic_directories(self) -> set[str]:
        """Directories of topics that exist, if the layout leaves a choice."""
        if not self._layout.loose:
            return set()
        return existing_topic_directories(
            self._session, self._layout, ((edit.group, tp.topic) for edit in self.edits for tp in edit.changes)
        )

    def _encoded(self, partition: TopicPartition, after: OffsetAndMetadata, held: NodeData | None) -> bytes:
        return self._layout.encode(partition, after.offset, None if held is None else held.data)

    # --- deciding ---------------------------------------------------------------------------------

    def _decide(self, pending: list[NodeWrite]) -> list[NodeWrite]:
        """Reads the present content and records changes that need no write; returns the rest."""
        nodes = self._session.get_many([write.path for write in pending])
        return [write for write, node in zip(pending, nodes, strict=True) if self._needs_writing(write, node)]

    def _needs_writing(self, write: NodeWrite, node: Node) -> bool:
        write.found = None
        if isinstance(node, OffsetMgrError):
            self._fail(write, node)
            return False
        try:
            found = self._offset(write, node)
            after, expected = write.change.after, write.change.expected
            if after is not None and self._layout.loose:
                write.data = self._encoded(write.partition, after, node)
        except OffsetMgrError as error:
            self._fail(write, error)
            return False
        write.found, write.node, write.as_of = found, node, None
        if expected is not None and not _holds(expected, found):
            why = f"expected {_said(expected)}, but ZooKeeper holds {_said(found)}"
            self._fail(write, Conflict(str(write), why, "nothing was written; read again and decide", actual=found))
            return False
        held = found.offset if isinstance(found, Committed) else None
        if held == (None if after is None else after.offset):
            self.outcomes[write.edit][write.partition] = ChangeOutcome(EditStatus.UNCHANGED, found)
            return False
        if after is not None and held is not None and after.offset < held and not write.change.allow_rewind:
            why = f"{after.offset} lies before the committed {held}"
            self._fail(write, RewindRefused(str(write), why, "allow the rewind if it is intended"))
            return False
        return True

    def _offset(self, write: NodeWrite, node: NodeData | None) -> Offset:
        if node is None:
            return ABSENT
        path = self._session.chroot + write.path
        partition, offset = self._layout.decode(path, node.data, write.partition)
        if partition != write.partition:
            raise Conflict(
                str(write),
                f"ZooKeeper node {path} holds the offset of topic {partition.topic}: there is one node for both",
                "give this topic a group (a spout's id) of its own",
            )
        return Committed(offset, "", None, node.mtime_ms, node.version)

    # --- writing ----------------------------------------------------------------------------------

    def _look_for_parents(self, writes: list[NodeWrite]) -> None:
        wanted = {
            parent: None
            for write in writes
            if write.node is None
            for parent in paths.above(write.path.rpartition("/")[0])
            if parent not in self._existing
        }
        found = self._session.get_many(list(wanted))
        # An unreadable parent exists all the same.
        self._existing.update(path for path, node in zip(wanted, found, strict=True) if node is not None)

    def _transactions(self, writes: list[NodeWrite], size: int) -> Iterator[Transaction]:
        planned: set[str] = set()
        current, used = Transaction([], []), 0
        for write in writes:
            creations = (
                [
                    Create(parent)
                    for parent in paths.above(write.path.rpartition("/")[0])
                    if parent not in self._existing and parent not in planned
                ]
                if write.node is None
                else []
            )
            planned.update(creation.path for creation in creations)
            operations = [*creations, write.operation()]
            more = sum(map(max_encoded_size, operations))
            full = len(current.operations) + len(operations) > size or used + more > MAX_BYTES_PER_TRANSACTION
            if full and current.operations:
                yield current
                current, used = Transaction([], []), 0
            current.operations += operations
            current.writes += [*(None for _ in creations), write]
            used += more
        if current.operations:
            yield current

    def settle(self, transaction: Transaction, outcome: TransactionResult) -> list[NodeWrite]:
        """Records the outcome of a transaction; returns the writes that must be tried again."""
        match outcome.state:
            case OperationState.COMMITTED:
                return self._written(transaction)
            case OperationState.NOT_SENT:
                return self._again(transaction.wanted(), transaction.wanted(), outcome.error)
            case OperationState.UNKNOWN:
                return self._find_out(transaction, outcome.error)
            case OperationState.REJECTED:
                return self._refused(transaction, outcome)

    def _refused(self, transaction: Transaction, outcome: TransactionResult) -> list[NodeWrite]:
        wanted = transaction.wanted()
        if outcome.failed_index is None:
            for write in wanted:
                self._fail(write, outcome.error)
            return []
        failed_index = transaction.write_at(outcome.failed_index)
        # An existing parent may have been deleted (NO_NODE), a missing one may have been created (NODE_EXISTS): read
        # again.
        self._existing.difference_update(paths.above(failed_index.path.rpartition("/")[0]))
        if outcome.code in _RACES:
            error = Conflict(str(failed_index), "others kept changing it", "try again when the group is quiet")
            return self._again(wanted, [failed_index], error)
        self._fail(failed_index, outcome.error)
        return [write for write in wanted if write is not failed_index]

    def _find_out(self, transaction: Transaction, error: OffsetMgrError | None) -> list[NodeWrite]:
        """Decides from a fresh read whether a transaction without a response was carried out. It was carried out as a
        whole or not at all: one unchanged node proves that it was not, one node with exactly the new content proves
        that it was."""
        wanted = transaction.wanted()
        try:
            # Without it a server that lags behind the leader could still show the state before the transaction.
            self._session.sync()
            nodes = self._session.get_many([write.path for write in wanted])
        except OffsetMgrError as failure:
            return self._unknown(wanted, failure)
        seen = [
            (write, node) for write, node in zip(wanted, nodes, strict=True) if not isinstance(node, OffsetMgrError)
        ]
        if any(write.untouched(node) for write, node in seen):
            return self._again(wanted, wanted, error)
        if any(write.done(node) for write, node in seen):
            return self._written(transaction)
        return self._unknown(wanted, error)

    def _again(
        self, writes: list[NodeWrite], counted: list[NodeWrite], error: OffsetMgrError | None
    ) -> list[NodeWrite]:
        """The writes to try again; those in ``counted`` fail with ``error`` after enough attempts."""
        for write in counted:
            write.tries += 1
            if write.tries >= _TRIES:
                self._fail(write, error)
        return [write for write in writes if write.tries < _TRIES]

    # --- outcomes ---------------------------------------------------------------------------------

    def _written(self, transaction: Transaction) -> list[NodeWrite]:
        for write in transaction.wanted():
            self.outcomes[write.edit][write.partition] = ChangeOutcome(EditStatus.WRITTEN, write.found)
        return []

    def _unknown(self, writes: list[NodeWrite], error: OffsetMgrError | None) -> list[NodeWrite]:
        why = f"the connection was lost during the write, and whether it happened is not known ({error})"
        for write in writes:
            self._fail(write, Unreachable(str(write), why, "read the offset again before deciding anything"))
        return []

    def _fail(self, write: NodeWrite, error: OffsetMgrError | None) -> None:
        self.outcomes[write.edit][write.partition] = ChangeOutcome(EditStatus.FAILED, write.found, error)

    def _fail_rest(self, writes: list[NodeWrite], error: OffsetMgrError) -> None:
        for write in writes:
            if write.partition not in self.outcomes[write.edit]:
                self._fail(write, error)


def _holds(expected: Offset, found: Offset) -> bool:
    if isinstance(expected, Absent) or isinstance(found, Absent):
        return isinstance(expected, Absent) and isinstance(found, Absent)
    return expected.offset == found.offset and expected.version in (None, found.version)


def _said(offset: Offset) -> str:
    if isinstance(offset, Absent):
        return "no commit"
    return f"{offset.offset}" + (f" (version {offset.version})" if offset.version is not None else "")
