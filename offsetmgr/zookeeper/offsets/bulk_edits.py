"""Executes streams of edits in batches. The nodes of a batch are read while those of the batch before it are written.

Ordering contract: as in `edits`, every write requires that its node still has the version that was read before the
write. The nodes of an edit are read only after all earlier edits of the same group are complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from offsetmgr.core.offset_store import GroupEdit, GroupEditResult
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.transactions import MAX_OPERATIONS_PER_TRANSACTION
from offsetmgr.zookeeper.offsets.edits import EditBatch
from offsetmgr.zookeeper.offsets.group_nodes import locate_directories
from offsetmgr.zookeeper.offsets.layouts import Layout

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
