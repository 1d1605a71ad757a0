"""Executes streams of edits in batches. The nodes of a batch are read while those of the batch before it are written.

Ordering contract: as in `edits`, every write requires that its node still has the version that was read before the
write. The nodes of an edit are read only after all earlier edits of the same group are complete.
"""

from __future__ import annotations

from collections import deque
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

_MAX_BATCHES_READING: Final = 1
_MAX_BATCHES_WRITING: Final = 1


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
        self._edits: list[GroupEdit] = []
        self._changes = 0
        self._reading: deque[EditBatch] = deque()
        self._writing: deque[EditBatch] = deque()
        self._groups: set[str] = set()

    def includes(self, group: str) -> bool:
        return group in self._groups

    def add(self, edit: GroupEdit) -> Iterator[GroupEditResult]:
        """Adds an edit to the present batch. Yields the results of earlier edits that are now complete."""
        self._edits.append(edit)
        self._groups.add(edit.group)
        self._changes += len(edit.changes) + 1
        if self._changes >= CHANGES_PER_BATCH:
            self._start_batch()
            yield from self._advance(_MAX_BATCHES_READING, _MAX_BATCHES_WRITING)

    def finish(self) -> Iterator[GroupEditResult]:
        """Completes all edits and yields their results."""
        if self._edits:
            self._start_batch()
        yield from self._advance(0, 0)

    def finish_sent(self) -> Iterator[GroupEditResult]:
        """After an error, yields the results of edits that may have been written. Starts no new reads or writes."""
        while self._writing:
            yield from self._finish_oldest()

    def _start_batch(self) -> None:
        """Starts reading the nodes of the collected edits."""
        edits, self._edits, self._changes = self._edits, [], 0
        locate_directories(self._session, self._layout, [edit.group for edit in edits])
        self._reading.append(EditBatch(self._session, self._layout, edits))

    def _advance(self, max_reading: int, max_writing: int) -> Iterator[GroupEditResult]:
        """Sends the writes of batches until at most ``max_reading`` batches are still being read, and completes batches
        until at most ``max_writing`` are still being written."""
        while len(self._reading) > max_reading or len(self._writing) > max_writing:
            if len(self._reading) > max_reading:
                batch = self._reading.popleft()
                batch.write()
                self._writing.append(batch)
            if len(self._writing) > max_writing:
                yield from self._finish_oldest()

    def _finish_oldest(self) -> list[GroupEditResult]:
        batch = self._writing.popleft()
        self._groups.difference_update(edit.group for edit in batch.edits)
        return batch.results()
