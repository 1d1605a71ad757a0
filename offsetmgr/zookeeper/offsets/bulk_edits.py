"""Executes streams of edits, optimized for simple updates.

A simple update replaces the decimal offset of a node that exists. If the change states an expected value, the change is
a simple update only if the node has this value. Nearly all changes of a migration are simple updates, so their cost
determines the duration of a migration. This module encodes, compares and writes hundreds of simple updates at a time,
without creating an object for each update. It reads the nodes of the next batch while it writes the nodes of the
present batch. All other changes are passed to `edits`, which handles each change separately. The other changes are
creations, deletions, changes of nodes with an unexpected value, and changes whose transaction was rejected or got no
response.

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
from dataclasses import dataclass, field
from itertools import chain, repeat
from operator import gt, ne
from typing import Any, Final, NamedTuple

from offsetmgr.core.model import Committed, TopicPartition
from offsetmgr.core.offset_store import Change, ChangeOutcome, EditStatus, GroupEdit, GroupEditResult
from offsetmgr.zookeeper.client import jute
from offsetmgr.zookeeper.client.bulk_requests import MAX_PATHS_PER_REQUEST, BulkChildren, BulkVerify, RawResponse
from offsetmgr.zookeeper.client.jute import ExpectedContent, NodeData, Op
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.transactions import (
    MAX_OPERATIONS_PER_TRANSACTION,
    BulkWrite,
    OperationState,
    SetData,
    TransactionOperation,
    TransactionResult,
)
from offsetmgr.zookeeper.nodes.offset_data import SAFE_DIGITS
from offsetmgr.zookeeper.offsets.edits import EditBatch, NodeWrite, Transaction
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
    """Changes that fit in one request and one transaction. Changes that turn out not to be simple updates are removed
    before the write."""

    rows: list[ChangeRow]
    response: RawResponse | None = None
    """The response to the read, if all nodes had their expected content. None if a node had other content, or if the
    nodes were not read."""
    found: list[NodeData] = field(default_factory=list)
    """The content of the nodes that was read. Empty if ``response`` is set, or if the nodes were not read."""
    before: list[Committed] = field(default_factory=list)
    """The committed offsets that the changes replace."""

    @property
    def paths(self) -> list[bytes]:
        return [row[3] for row in self.rows]

    def read(self) -> BulkVerify:
        expected = _expected([row[2] for row in self.rows])
        return BulkVerify([jute.read_operations(Op.GET, self.paths)], len(self.rows), expected and expected.nodes())

    def expectation_complete(self) -> bool:
        """Whether the changes state the expected content of every node, and would all be simple updates of this
        content."""
        return _expected([row[2] for row in self.rows]) is not None

    def nodes(self) -> list[NodeData]:
        """The content of each row's node. If the nodes were not read, returns the expected content."""
        if self.found:
            return self.found
        if self.response is None:
            return [
                NodeData(b"%d" % expected.offset, 0, 0, expected.commit_timestamp or 0, expected.version or 0, 0)
                for expected in self.before
            ]
        found = jute.multi_node_data(*self.response, len(self.rows))
        return [node for node in found if isinstance(node, NodeData)]

    @property
    def assumed(self) -> bool:
        """Whether the nodes were not read. If True, the nodes' creation zxids are unknown."""
        return not self.found and self.response is None


class _Expectation(NamedTuple):
    """The expected content of the nodes of several changes."""

    offsets: tuple[int, ...]
    times: tuple[int, ...]
    versions: tuple[int, ...]

    def nodes(self) -> ExpectedContent:
        return list(map(b"%d".__mod__, self.offsets)), self.times, self.versions


def _expected(changes: list[Any]) -> _Expectation | None:
    """Returns the expected content of the nodes if every change is a simple update of this content; returns None
    otherwise."""
    afters, values_before, rewinds = zip(*changes, strict=True)
    if None in values_before:
        return None
    old_offsets, metadata, epochs, times, versions = zip(*values_before, strict=True)
    if None in times or None in versions or any(metadata) or epochs.count(None) < len(epochs):
        return None
    new_offsets = [after[0] for after in afters]
    if not (all(map(gt, new_offsets, old_offsets)) or (all(rewinds) and all(map(ne, new_offsets, old_offsets)))):
        return None
    return _Expectation(old_offsets, times, versions)


def _chunks(rows: list[ChangeRow]) -> list[_Chunk]:
    # Because all paths are shorter than 4 KiB, a quarter of the maximum number of operations always fits.
    short = max((len(row[3]) for row in rows), default=0) <= _MAX_SHORT_PATH_BYTES
    size = MAX_OPERATIONS_PER_TRANSACTION if short else MAX_OPERATIONS_PER_TRANSACTION // 4
    return [_Chunk(rows[at : at + size]) for at in range(0, len(rows), size)]


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
        self._responses: Callable[[], list[tuple[RawResponse, list[NodeData | int] | None]]] | None = None
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
            or not all(chunk.expectation_complete() for chunk in self._chunks)
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

    def _send_reads(self) -> Callable[[], list[tuple[RawResponse, list[NodeData | int] | None]]]:
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
        writes: list[BulkWrite] = []
        if self._responses is None and self._chunks and not self._children_unchanged():
            self._responses = self._send_reads()
        responses = self._responses() if self._responses is not None else [(None, None)] * len(self._chunks)
        for chunk, (response, nodes) in zip(self._chunks, responses, strict=True):
            if (
                operations := self._expected_writes(chunk, response)
                if nodes is None
                else self._simple_writes(chunk, nodes)
            ):
                writes.append(BulkWrite(operations, chunk.paths))
                self._sent.append(chunk)
        if writes:
            self._outcomes = self._session.begin_transactions(writes)

    def results(self) -> list[GroupEditResult]:
        """Waits for the transactions, passes the remaining changes to `EditBatch`, and returns all results.

        Raises an error if the session fails before any node of this batch was written.
        """
        outcomes, new = self.batch.outcomes, tuple.__new__
        again: list[NodeWrite] = []
        for chunk, outcome in zip(self._sent, self._outcomes(), strict=True):
            if outcome.state is OperationState.COMMITTED:
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

    def _expected_writes(self, chunk: _Chunk, response: RawResponse | None) -> list[bytes]:
        """Returns the write operations of a chunk whose nodes all have their expected content.

        ``response`` is the response with the content of the nodes, or None if only the parents were read.
        """
        chunk.response = response
        chunk.before = [row[2][1] for row in chunk.rows]
        new_offsets = [b"%d" % row[2][0][0] for row in chunk.rows]
        return jute.encode_set_data_many(chunk.paths, new_offsets, [row[2][1][4] for row in chunk.rows])

    def _simple_writes(self, chunk: _Chunk, nodes: list[NodeData | int]) -> list[bytes]:
        """Returns the write operations for the changes of a chunk that are simple updates of the content in ``nodes``.
        Moves all other changes of the chunk to ``_others``.
        """
        new, set_data = tuple.__new__, jute.encode_set_data
        operations: list[bytes] = []
        others: set[int] = set()
        for at, (node, (index, partition, change, path)) in enumerate(zip(nodes, chunk.rows, strict=True)):
            if isinstance(node, NodeData):
                data, _, _, mtime, version, _ = node
                if data.isdigit() and len(data) <= SAFE_DIGITS:
                    after, expected, allow_rewind = change
                    old_offset, new_offset = int(data), after[0]
                    # `core.evaluation` would permit the write: the node has its expected content, the offset changes,
                    # and the offset is not lowered without permission. A call for each node would cost more than the
                    # write.
                    if (
                        expected is None
                        or (expected[0] == old_offset and (expected[4] is None or expected[4] == version))
                    ) and (new_offset > old_offset or (allow_rewind and new_offset < old_offset)):
                        chunk.found.append(node)
                        chunk.before.append(new(Committed, (old_offset, "", None, mtime, version)))
                        operations.append(set_data(path, b"%d" % new_offset, version))
                        continue
            self._others.append((index, partition, change))
            others.add(at)
        if others:
            chunk.rows = [row for at, row in enumerate(chunk.rows) if at not in others]
        return operations

    def _as_transaction(self, chunk: _Chunk) -> Transaction:
        """Converts a chunk that was sent to a `Transaction`, so that `EditBatch` can record its outcome."""
        chroot = len(self._session.chroot)
        operations: list[TransactionOperation] = []
        writes: list[NodeWrite | None] = []
        nodes, as_of = chunk.nodes(), None
        for (index, partition, change, path), node, before in zip(chunk.rows, nodes, chunk.before, strict=True):
            edit = self.batch.edits[index]
            if chunk.assumed:
                as_of = edit.as_of
            at, data = jute.decode_ustring(path)[chroot:], b"%d" % change.after.offset
            operations.append(SetData(at, data, node.version))
            writes.append(NodeWrite(index, edit.group, partition, change, at, data, before, node, as_of))
        return Transaction(operations, writes)
