"""Streams of edits, optimized for the common change: a decimal offset has its expected value and is replaced.

Nearly all of a hundred thousand changes are of this kind, and their cost is the cost of a migration. They are encoded,
compared and written hundreds at a time, without an object for each of them. While some are being written, the following
ones are read. All other changes (a creation or deletion, an unexpected value, a rejected transaction or one without a
response) go to `edits`, which decides each case separately.

Ordering contract: as in `edits`. Every write names the version of its node that was read before it. There are two ways
of reading it. Either the same stream reads the node. Or the scan of the edit's ``as_of`` has read it, and the stream
reads only the nodes' parents, which show whether any of their children has been created or deleted since. If none has,
a node with the expected version has not been replaced since the scan. An edit is read only after earlier edits of the
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
from offsetmgr.zookeeper.client.jute import Expected, NodeData, Op
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.transactions import (
    MAX_OPERATIONS_PER_TRANSACTION,
    BulkWrite,
    Operation,
    OperationState,
    SetData,
    TransactionResult,
)
from offsetmgr.zookeeper.nodes.offset_data import SURE_DIGITS
from offsetmgr.zookeeper.offsets.edits import EditBatch, NodeWrite, Transaction
from offsetmgr.zookeeper.offsets.layouts import ConsumersLayout, Layout
from offsetmgr.zookeeper.offsets.node_paths import _Nodes, _Row

CHANGES_AT_ONCE: Final = 10 * MAX_OPERATIONS_PER_TRANSACTION
"""Number of changes that are taken from the stream of edits and read together."""

_FEW: Final = MAX_OPERATIONS_PER_TRANSACTION
"""Up to this many changes always stay together in one transaction, common or not."""

_READ_AHEAD: Final = 1
_WRITTEN_AHEAD: Final = 1

_LONG_PATH: Final = 1000
"""Bytes; up to this length `MAX_OPERATIONS_PER_TRANSACTION` paths with their data fit a request and a transaction."""


def execute(session: ZookeeperSession, layout: Layout, edits: Iterable[GroupEdit]) -> Iterator[GroupEditResult]:
    """Carries out a stream of edits; yields one result each, in their order.

    A second edit of the same group sees the result of its first. Raises if the session fails before anything of the
    edits taken together was written; from then on a failure is an outcome. If this or the iterator ``edits`` raises,
    the results of the requests already sent are completed and yielded first.
    """
    stream = _Stream(session, layout)
    try:
        for edit in edits:
            if stream.holds(edit.group):
                yield from stream.settle()
            yield from stream.take(edit)
        yield from stream.settle()
    except Exception:
        yield from stream.settle_what_was_sent()
        raise


class _Stream:
    """The edits in progress: taken from the stream, then read, then written."""

    def __init__(self, session: ZookeeperSession, layout: Layout) -> None:
        self._session = session
        self._layout = layout
        self._decimal = isinstance(layout, ConsumersLayout)
        self._nodes = _Nodes(session.chroot, layout)
        self._taken: list[GroupEdit] = []
        self._changes = 0
        self._read: deque[_BulkBatch] = deque()
        self._written: deque[_BulkBatch] = deque()
        self._groups: set[str] = set()

    def holds(self, group: str) -> bool:
        return group in self._groups

    def take(self, edit: GroupEdit) -> Iterator[GroupEditResult]:
        """Adds an edit; yields the results that are complete by then."""
        self._taken.append(edit)
        self._groups.add(edit.group)
        self._changes += len(edit.changes) + 1
        if self._changes >= CHANGES_AT_ONCE:
            in_bulk = self._begin()
            yield from self._go_on(_READ_AHEAD, _WRITTEN_AHEAD) if in_bulk else self._go_on(0, 0)

    def settle(self) -> Iterator[GroupEditResult]:
        """Completes all edits and yields their results."""
        if self._taken:
            self._begin()
        yield from self._go_on(0, 0)

    def settle_what_was_sent(self) -> Iterator[GroupEditResult]:
        """After an error: yields the results of edits that may have been written, and starts nothing new."""
        while self._written:
            yield from self._finish()

    def _begin(self) -> bool:
        """Starts reading the edits taken so far; returns False if that cannot be done in bulk."""
        in_bulk = self._decimal and self._changes > _FEW and self._session.supports_bulk_reads()
        edits, self._taken, self._changes = self._taken, [], 0
        batch = EditBatch(self._session, self._layout, edits)
        self._read.append(_BulkBatch(self._session, batch, self._nodes if in_bulk else None))
        return in_bulk

    def _go_on(self, read: int, written: int) -> Iterator[GroupEditResult]:
        """Writes until at most ``read`` batches are waiting to be written, and completes writes until at most
        ``written`` are open."""
        while len(self._read) > read or len(self._written) > written:
            if len(self._read) > read:
                bulk = self._read.popleft()
                bulk.write()
                self._written.append(bulk)
            if len(self._written) > written:
                yield from self._finish()

    def _finish(self) -> list[GroupEditResult]:
        bulk = self._written.popleft()
        self._groups.difference_update(edit.group for edit in bulk.batch.edits)
        return bulk.results()


@dataclass(slots=True)
class _Part:
    """Changes that fit one request and one transaction. After the decision it holds only the common ones, with each
    node's content."""

    rows: list[_Row]
    answer: RawResponse | None = None
    """The response if all nodes were as expected; ``found`` is then empty. Also None if the nodes were not read."""
    found: list[NodeData] = field(default_factory=list)
    before: list[Committed] = field(default_factory=list)

    @property
    def paths(self) -> list[bytes]:
        return [row[3] for row in self.rows]

    def read(self) -> BulkVerify:
        expected = _expected([row[2] for row in self.rows])
        return BulkVerify([jute.read_operations(Op.GET, self.paths)], len(self.rows), expected and expected.nodes())

    def says_all(self) -> bool:
        """Whether the changes state the expected content of every node, and are common ones if it matches."""
        return _expected([row[2] for row in self.rows]) is not None

    def nodes(self) -> list[NodeData]:
        """The content of each row's node, as read or as expected."""
        if self.found:
            return self.found
        if self.answer is None:
            return [
                NodeData(b"%d" % held.offset, 0, 0, held.commit_timestamp or 0, held.version or 0, 0)
                for held in self.before
            ]
        found = jute.multi_node_data(*self.answer, len(self.rows))
        return [node for node in found if isinstance(node, NodeData)]

    @property
    def unread(self) -> bool:
        """Whether the nodes were assumed and not read; their creation times are then unknown."""
        return not self.found and self.answer is None


class _Expectation(NamedTuple):
    """The expected content of the nodes of some changes."""

    offsets: tuple[int, ...]
    times: tuple[int, ...]
    versions: tuple[int, ...]

    def nodes(self) -> Expected:
        return list(map(b"%d".__mod__, self.offsets)), self.times, self.versions


def _expected(changes: list[Any]) -> _Expectation | None:
    """Returns the expected content of the nodes, if all of them are expected to exist and each change is a common one.
    Returns None if some change states too little or would not be common."""
    afters, values_before, rewinds = zip(*changes, strict=True)
    if None in values_before:
        return None
    held, metadata, epochs, times, versions = zip(*values_before, strict=True)
    if None in times or None in versions or any(metadata) or epochs.count(None) < len(epochs):
        return None
    wanted = [after[0] for after in afters]
    if not (all(map(gt, wanted, held)) or (all(rewinds) and all(map(ne, wanted, held)))):
        return None
    return _Expectation(held, times, versions)


def _parts(rows: list[_Row]) -> list[_Part]:
    # All paths are shorter than 4 KiB, so a quarter of the operations always fits.
    short = max((len(row[3]) for row in rows), default=0) <= _LONG_PATH
    size = MAX_OPERATIONS_PER_TRANSACTION if short else MAX_OPERATIONS_PER_TRANSACTION // 4
    return [_Part(rows[at : at + size]) for at in range(0, len(rows), size)]


class _BulkBatch:
    """Some edits: the common changes among them in parts, the others left to `EditBatch`. Sends its reads at once: of
    the nodes, or only of their parents if the edits' expectations allow it."""

    def __init__(self, session: ZookeeperSession, batch: EditBatch, nodes: _Nodes | None) -> None:
        """``nodes`` None: no change is common."""
        self.batch = batch
        self._session = session
        self._odd: list[tuple[int, TopicPartition, Change]] = []
        self._sent: list[_Part] = []
        self._outcomes: Callable[[], list[TransactionResult]] = list
        self._answers: Callable[[], list[tuple[RawResponse, list[NodeData | int] | None]]] | None = None
        self._directories: list[tuple[int, bytes]] = []
        """The parents of the nodes, each with the zxid as of which its children are expected."""
        self._zxids: Callable[[], list[list[int | None]]] = list
        rows: list[_Row] = []
        for index, edit in enumerate(batch.edits):
            if nodes is None:
                self._odd += [(index, partition, change) for partition, change in edit.changes.items()]
            else:
                nodes.sort_in(index, edit, rows, self._odd)
        self._parts = _parts(rows)
        if not self._parts:
            return
        as_of = [edit.as_of for edit in batch.edits if edit.as_of is not None]
        if nodes is None or len(as_of) < len(batch.edits) or not all(part.says_all() for part in self._parts):
            self._answers = self._begin_reads()
            return
        for zxid, edit in zip(as_of, batch.edits, strict=True):
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

    def _begin_reads(self) -> Callable[[], list[tuple[RawResponse, list[NodeData | int] | None]]]:
        return self._session.begin_reads([part.read() for part in self._parts])

    def _nobody_came_or_went(self) -> bool:
        """Whether the nodes are still those that the edits' scan read."""
        return all(
            zxid is not None and zxid <= as_of
            for zxid, (as_of, _) in zip(chain.from_iterable(self._zxids()), self._directories, strict=True)
        )

    def write(self) -> None:
        """Decides on what was read, and sends the transactions. Raises if the session fails; then nothing of this batch
        was written."""
        writes: list[BulkWrite] = []
        if self._answers is None and self._parts and not self._nobody_came_or_went():
            self._answers = self._begin_reads()
        answers = self._answers() if self._answers is not None else [(None, None)] * len(self._parts)
        for part, (answer, nodes) in zip(self._parts, answers, strict=True):
            if operations := self._as_expected(part, answer) if nodes is None else self._decide(part, nodes):
                writes.append(BulkWrite(operations, part.paths))
                self._sent.append(part)
        if writes:
            self._outcomes = self._session.begin_transactions(writes)

    def results(self) -> list[GroupEditResult]:
        """Waits for the responses, and leaves the rest to `EditBatch`. Raises if nothing was written."""
        outcomes, new = self.batch.outcomes, tuple.__new__
        again: list[NodeWrite] = []
        for part, outcome in zip(self._sent, self._outcomes(), strict=True):
            if outcome.state is OperationState.COMMITTED:
                indexes, partitions, _, _ = zip(*part.rows, strict=True)
                written = list(
                    map(new, repeat(ChangeOutcome), zip(repeat(EditStatus.WRITTEN), part.before, repeat(None)))
                )
                at = 0
                while at < len(indexes):  # the changes of an edit are adjacent
                    end = bisect_right(indexes, indexes[at], at)
                    outcomes[indexes[at]].update(zip(partitions[at:end], written[at:end], strict=True))
                    at = end
            else:
                again += self.batch.settle(self._one_by_one(part), outcome)
        return self.batch.results([*again, *self.batch.prepared(self._odd)], begun=bool(self._sent))

    def _as_expected(self, part: _Part, answer: RawResponse | None) -> list[bytes]:
        """The operations for nodes that all have the content of `_expected`; without a response, assuming that they
        have."""
        part.answer = answer
        part.before = [row[2][1] for row in part.rows]
        wanted = [b"%d" % row[2][0][0] for row in part.rows]
        return jute.encode_set_data_many(part.paths, wanted, [row[2][1][4] for row in part.rows])

    def _decide(self, part: _Part, nodes: list[NodeData | int]) -> list[bytes]:
        """The operations for the nodes whose content makes their changes common ones; the other changes become odd."""
        new, set_data = tuple.__new__, jute.encode_set_data
        operations: list[bytes] = []
        odd: set[int] = set()
        for at, (node, (index, partition, change, path)) in enumerate(zip(nodes, part.rows, strict=True)):
            if isinstance(node, NodeData):
                data, _, _, mtime, version, _ = node
                if data.isdigit() and len(data) <= SURE_DIGITS:
                    after, expected, allow_rewind = change
                    held, wanted = int(data), after[0]
                    # As in `EditBatch`: the node has its expected content, and the change is neither empty nor a
                    # rewind.
                    if (
                        expected is None or (expected[0] == held and (expected[4] is None or expected[4] == version))
                    ) and (wanted > held or (allow_rewind and wanted < held)):
                        part.found.append(node)
                        part.before.append(new(Committed, (held, "", None, mtime, version)))
                        operations.append(set_data(path, b"%d" % wanted, version))
                        continue
            self._odd.append((index, partition, change))
            odd.add(at)
        if odd:
            part.rows = [row for at, row in enumerate(part.rows) if at not in odd]
        return operations

    def _one_by_one(self, part: _Part) -> Transaction:
        """A transaction that was sent, in the form of `EditBatch`."""
        chroot = len(self._session.chroot)
        operations: list[Operation] = []
        writes: list[NodeWrite | None] = []
        nodes, as_of = part.nodes(), None
        for (index, partition, change, path), node, before in zip(part.rows, nodes, part.before, strict=True):
            edit = self.batch.edits[index]
            if part.unread:
                as_of = edit.as_of
            at, data = jute.decode_ustring(path)[chroot:], b"%d" % change.after.offset
            operations.append(SetData(at, data, node.version))
            writes.append(NodeWrite(index, edit.group, partition, change, at, data, before, node, as_of))
        return Transaction(operations, writes)
