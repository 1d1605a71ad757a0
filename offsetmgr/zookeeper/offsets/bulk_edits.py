"""Executes streams of edits.

Every edit takes the same path: its nodes are read, the module decides for each change whether to write, and a
transaction writes the nodes. `_BulkBatch` does this for hundreds of simple updates at a time, without creating an
object for each update, and reads the nodes of the next batch while it writes the nodes of the present batch. A simple
update replaces the decimal offset of a node that exists; if the change states an expected value, the node has this
value. Nearly all changes of a migration are simple updates, so their cost determines the duration of a migration.

`EditBatch` does the same for each change separately. It executes every change that is not, or not any more, a simple
update: creations, deletions, changes of nodes with an unexpected value, and changes whose transaction was rejected or
got no response. It also executes all changes of small batches, of layouts whose nodes contain more than a number, and
of servers without multi-reads. Without `_BulkBatch`, a large import took 1.4 times as long.

Ordering contract: as in `edits`, every write requires that its node still has the version that was read before the
write. The node was read either by this module or by an earlier scan. If a scan has read the nodes of an edit, the
edit's ``as_of`` is the scan's zxid. In this case, this module reads only the nodes' parents, which show whether any
child has been created or deleted since the scan. If no child has been created or deleted, a node with the expected
version is the same node that the scan read. This module reads the nodes of an edit only after all earlier edits of the
same group are complete.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, repeat
from operator import gt, ne
from typing import Any, Final, TypeAlias

from offsetmgr.core.model import Committed, TopicPartition
from offsetmgr.core.offset_store import Change, ChangeOutcome, EditStatus, GroupEdit, GroupEditResult
from offsetmgr.zookeeper.client import jute
from offsetmgr.zookeeper.client.bulk_requests import MAX_PATHS_PER_REQUEST, BulkChildren, BulkVerify
from offsetmgr.zookeeper.client.jute import ExpectedContent, NodeData, Op
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.transactions import (
    MAX_OPERATIONS_PER_TRANSACTION,
    BulkWrite,
    SetData,
    TransactionOperation,
    TransactionResult,
)
from offsetmgr.zookeeper.nodes.offset_data import decimal_commit
from offsetmgr.zookeeper.offsets.edits import EditBatch, NodeWrite, Transaction
from offsetmgr.zookeeper.offsets.group_nodes import locate_directories
from offsetmgr.zookeeper.offsets.layouts import ConsumersLayout, Layout
from offsetmgr.zookeeper.offsets.node_paths import ChangeRow, NodePaths

CHANGES_PER_BATCH: Final = 10 * MAX_OPERATIONS_PER_TRANSACTION
"""The number of changes in one batch. The nodes of a batch are read together."""

_MIN_BULK_CHANGES: Final = MAX_OPERATIONS_PER_TRANSACTION
"""If a batch has at most this many changes, `edits` executes the batch, so that the batch can be one transaction."""

_MAX_BATCHES_READING: Final = 1
_MAX_BATCHES_WRITING: Final = 1

_MAX_SHORT_PATH_BYTES: Final = 1000
"""If no path is longer than this, a request and a transaction can hold `MAX_OPERATIONS_PER_TRANSACTION` paths with
their data."""

_ReadResult: TypeAlias = tuple[int, list[NodeData | int] | None]
"""See `BulkVerify`."""


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
            if pipeline.includes(edit.group):
                yield from pipeline.finish()
            yield from pipeline.add(edit)
        yield from pipeline.finish()
    except Exception:
        yield from pipeline.finish_sent()
        raise


class _EditPipeline:
    """The edits in progress. The edits are collected into batches. The nodes of a batch are read first, and then
    written."""

    def __init__(self, session: ZookeeperSession, layout: Layout) -> None:
        self._session = session
        self._layout = layout
        self._decimal = isinstance(layout, ConsumersLayout)
        self._nodes = NodePaths(session.chroot, layout)
        self._edits: list[GroupEdit] = []
        self._changes = 0
        self._reading: deque[_BulkBatch] = deque()
        self._writing: deque[_BulkBatch] = deque()
        self._groups: set[str] = set()

    def includes(self, group: str) -> bool:
        return group in self._groups

    def add(self, edit: GroupEdit) -> Iterator[GroupEditResult]:
        """Adds an edit to the present batch. Yields the results of earlier edits that are now complete."""
        self._edits.append(edit)
        self._groups.add(edit.group)
        self._changes += len(edit.changes) + 1
        if self._changes >= CHANGES_PER_BATCH:
            in_bulk = self._start_batch()
            yield from self._advance(_MAX_BATCHES_READING, _MAX_BATCHES_WRITING) if in_bulk else self._advance(0, 0)

    def finish(self) -> Iterator[GroupEditResult]:
        """Completes all edits and yields their results."""
        if self._edits:
            self._start_batch()
        yield from self._advance(0, 0)

    def finish_sent(self) -> Iterator[GroupEditResult]:
        """After an error, yields the results of edits that may have been written. Starts no new reads or writes."""
        while self._writing:
            yield from self._finish_oldest()

    def _start_batch(self) -> bool:
        """Starts reading the nodes of the collected edits. Returns False if `EditBatch` must execute all changes of
        these edits."""
        in_bulk = self._decimal and self._changes > _MIN_BULK_CHANGES and self._session.supports_bulk_reads()
        edits, self._edits, self._changes = self._edits, [], 0
        locate_directories(self._session, self._layout, [edit.group for edit in edits])
        batch = EditBatch(self._session, self._layout, edits)
        self._reading.append(_BulkBatch(self._session, batch, self._nodes if in_bulk else None))
        return in_bulk

    def _advance(self, max_reading: int, max_writing: int) -> Iterator[GroupEditResult]:
        """Sends the writes of batches until at most ``max_reading`` batches are still being read, and completes batches
        until at most ``max_writing`` are still being written."""
        while len(self._reading) > max_reading or len(self._writing) > max_writing:
            if len(self._reading) > max_reading:
                bulk = self._reading.popleft()
                bulk.write()
                self._writing.append(bulk)
            if len(self._writing) > max_writing:
                yield from self._finish_oldest()

    def _finish_oldest(self) -> list[GroupEditResult]:
        bulk = self._writing.popleft()
        self._groups.difference_update(edit.group for edit in bulk.batch.edits)
        return bulk.results()


@dataclass(slots=True)
class _Chunk:
    """Changes that fit in one request and one transaction."""

    rows: list[ChangeRow]
    expected: ExpectedContent | None
    """The content of the nodes, if every change states it and is a simple update of it."""
    before: list[Committed]
    """The committed offsets that the changes replace."""
    as_of: int | None = None
    """The zxid of the response to the read. None if the nodes were not read, because the edits' own ``as_of`` shows
    that they have not changed."""

    @classmethod
    def of(cls, rows: list[ChangeRow]) -> _Chunk:
        changes = [row[2] for row in rows]
        return cls(rows, _expected_content(changes), [change[1] for change in changes])

    @property
    def paths(self) -> list[bytes]:
        return [row[3] for row in self.rows]

    def read(self) -> BulkVerify:
        return BulkVerify([jute.read_operations(Op.GET, self.paths)], len(self.rows), self.expected)

    def write(self) -> BulkWrite:
        offsets = [b"%d" % row[2][0][0] for row in self.rows]
        versions: list[Any] = [before[4] for before in self.before]  # a node that was read has a version
        paths = self.paths
        return BulkWrite(jute.encode_set_data_many(paths, offsets, versions), paths)

    def remove_others(self, nodes: list[NodeData | int]) -> list[tuple[int, TopicPartition, Change]]:
        """Removes and returns the changes that are no simple updates of the content in ``nodes``."""
        rows: list[ChangeRow] = []
        before: list[Committed] = []
        others: list[tuple[int, TopicPartition, Change]] = []
        for node, row in zip(nodes, self.rows, strict=True):
            index, partition, change, _ = row
            if (found := decimal_commit(node)) is not None:
                after, expected, allow_rewind = change[:3]
                old_offset, new_offset = found[0], after[0]
                # `core.evaluation` would permit the write: the node has its expected content, the offset changes, and
                # the offset is not lowered without permission. A call for each node would cost more than the write.
                if (
                    expected is None or (expected[0] == old_offset and (expected[4] is None or expected[4] == found[4]))
                ) and (new_offset > old_offset or (allow_rewind and new_offset < old_offset)):
                    rows.append(row)
                    before.append(found)
                    continue
            others.append((index, partition, change))
        self.rows, self.before = rows, before
        return others


def _expected_content(changes: list[Any]) -> ExpectedContent | None:
    """Returns the expected content of the nodes if every change is a simple update of this content; returns None
    otherwise."""
    afters, values_before, rewinds, _ = zip(*changes, strict=True)
    if None in values_before:
        return None
    old_offsets, metadata, epochs, times, versions = zip(*values_before, strict=True)
    if None in times or None in versions or any(metadata) or epochs.count(None) < len(epochs):
        return None
    new_offsets = [after[0] for after in afters]
    if not (all(map(gt, new_offsets, old_offsets)) or (all(rewinds) and all(map(ne, new_offsets, old_offsets)))):
        return None
    return list(map(b"%d".__mod__, old_offsets)), times, versions


def _chunks(rows: list[ChangeRow]) -> list[_Chunk]:
    # Because all paths are shorter than 4 KiB, a quarter of the maximum number of operations always fits.
    short = max((len(row[3]) for row in rows), default=0) <= _MAX_SHORT_PATH_BYTES
    size = MAX_OPERATIONS_PER_TRANSACTION if short else MAX_OPERATIONS_PER_TRANSACTION // 4
    return [_Chunk.of(rows[at : at + size]) for at in range(0, len(rows), size)]


class _BulkBatch:
    """The edits of one batch. The changes that may be simple updates are divided into chunks. `EditBatch` executes all
    other changes.

    The constructor starts reading the nodes. If every edit contains the zxid of a scan and the expected content of its
    nodes, the constructor starts reading the nodes' parents instead.
    """

    def __init__(self, session: ZookeeperSession, batch: EditBatch, nodes: NodePaths | None) -> None:
        """If ``nodes`` is None, `EditBatch` executes all changes."""
        self.batch = batch
        self._session = session
        self._others: list[tuple[int, TopicPartition, Change]] = []
        self._sent: list[_Chunk] = []
        self._outcomes: Callable[[], list[TransactionResult]] = list
        self._responses: Callable[[], list[_ReadResult]] | None = None
        self._directories: list[tuple[int, bytes]] = []
        """The parents of the nodes, each with the zxid of the scan. If a child of a parent was created or deleted after
        this zxid, the nodes must be read."""
        self._zxids: Callable[[], list[list[int | None]]] = list
        rows: list[ChangeRow] = []
        for index, edit in enumerate(batch.edits):
            if nodes is None:
                self._others += [(index, partition, change) for partition, change in edit.changes.items()]
            else:
                nodes.classify(index, edit, rows, self._others)
        self._chunks = _chunks(rows)
        if not self._chunks:
            return
        scan_zxids = [edit.as_of for edit in batch.edits if edit.as_of is not None]
        if (
            nodes is None
            or len(scan_zxids) < len(batch.edits)
            or not all(chunk.expected is not None for chunk in self._chunks)
        ):
            self._responses = self._send_reads()
            return
        for zxid, edit in zip(scan_zxids, batch.edits, strict=True):
            self._directories += [(zxid, directory) for directory in nodes.directories(edit)]
        some = [
            self._directories[at : at + MAX_PATHS_PER_REQUEST]
            for at in range(0, len(self._directories), MAX_PATHS_PER_REQUEST)
        ]
        self._zxids = session.begin_reads(
            [
                BulkChildren([jute.read_operations(Op.GET, [path for _, path in directories])], len(directories))
                for directories in some
            ]
        )

    def _send_reads(self) -> Callable[[], list[_ReadResult]]:
        return self._session.begin_reads([chunk.read() for chunk in self._chunks])

    def _children_unchanged(self) -> bool:
        """Whether no child of the nodes in ``_directories`` has been created or deleted since the scan."""
        return all(
            zxid is not None and zxid <= as_of
            for zxid, (as_of, _) in zip(chain.from_iterable(self._zxids()), self._directories, strict=True)
        )

    def write(self) -> None:
        """Waits for the reads and sends the transactions. If the session fails, raises the error; no node of this batch
        was written in this case."""
        if self._responses is None and self._chunks and not self._children_unchanged():
            self._responses = self._send_reads()
        if self._responses is not None:
            for chunk, (zxid, nodes) in zip(self._chunks, self._responses(), strict=True):
                chunk.as_of = zxid
                if nodes is not None:
                    self._others += chunk.remove_others(nodes)
        self._sent = [chunk for chunk in self._chunks if chunk.rows]
        if self._sent:
            self._outcomes = self._session.begin_transactions([chunk.write() for chunk in self._sent])

    def results(self) -> list[GroupEditResult]:
        """Waits for the transactions, passes the remaining changes to `EditBatch`, and returns all results.

        Raises an error if the session fails before any node of this batch was written.
        """
        outcomes, new = self.batch.outcomes, tuple.__new__
        again: list[NodeWrite] = []
        for chunk, outcome in zip(self._sent, self._outcomes(), strict=True):
            if outcome.error is None:
                indexes, partitions, _, _ = zip(*chunk.rows, strict=True)
                written = list(
                    map(new, repeat(ChangeOutcome), zip(repeat(EditStatus.WRITTEN), chunk.before, repeat(None)))
                )
                at = 0
                while at < len(indexes):  # the changes of one edit are adjacent
                    end = bisect_right(indexes, indexes[at], at)
                    outcomes[indexes[at]].update(zip(partitions[at:end], written[at:end], strict=True))
                    at = end
            else:
                again += self.batch.record_result(self._as_transaction(chunk), outcome)
        return self.batch.results([*again, *self.batch.node_writes(self._others)], wrote_any=bool(self._sent))

    def _as_transaction(self, chunk: _Chunk) -> Transaction:
        """Converts a chunk that was sent to a `Transaction`, so that `EditBatch` can record its outcome."""
        chroot = len(self._session.chroot)
        operations: list[TransactionOperation] = []
        writes: list[NodeWrite | None] = []
        for (index, partition, change, path), before in zip(chunk.rows, chunk.before, strict=True):
            edit = self.batch.edits[index]
            as_of = edit.as_of if chunk.as_of is None else chunk.as_of
            node = NodeData(b"%d" % before.offset, 0, 0, before.commit_timestamp or 0, before.version or 0, 0)
            at, data = jute.decode_ustring(path)[chroot:], b"%d" % change.after.offset
            operations.append(SetData(at, data, node.version))
            writes.append(NodeWrite(index, edit.group, partition, change, at, data, before, node, as_of))
        return Transaction(operations, writes)
