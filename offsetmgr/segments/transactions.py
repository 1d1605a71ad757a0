"""The messages of a log that a reader of committed messages sees (``isolation.level=read_committed``, KIP-98).

A log has markers: a producer's messages up to an abort are skipped, and reading stops at the first message of an open
transaction (the last stable offset). Both are known only after the whole log, so its headers are read once before its
messages.

If a transaction begins before the part that is read, it counts from the first message seen. Brokers store the same next
to each segment (``.txnindex``): see `Segment.aborted_index`.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable
from typing import Final, NamedTuple

from offsetmgr.core.errors import CorruptData
from offsetmgr.segments.batch_reader import Record, RecordBatch
from offsetmgr.segments.entries import LogEntry
from offsetmgr.segments.indexes import AbortedTransaction

ABORT: Final = 0
COMMIT: Final = 1
MARKER_NAMES: Final = (
    "abort",
    "commit",
    "leader-change",
    "snapshot-header",
    "snapshot-footer",
    "kraft-version",
    "kraft-voters",
)
"""The kinds of control records, by the number in their key; from the third on they occur only in KRaft's metadata
log."""
_KEY: Final = struct.Struct(">hh")
_VALUE: Final = struct.Struct(">hi")


class Marker(NamedTuple):
    """A control record. ``kind`` is an index of `MARKER_NAMES`, or a later one; ``coordinator_epoch`` is known only of
    ends of transactions."""

    kind: int
    coordinator_epoch: int | None

    @property
    def name(self) -> str:
        return MARKER_NAMES[self.kind] if self.kind < len(MARKER_NAMES) else f"control-{self.kind}"


class Transactions:
    """The transactions of a log, from its entries in order."""

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        self._aborted: dict[int, list[AbortedTransaction]] = {}

    def add(self, entry: LogEntry) -> None:
        """Records the next entry. Raises `CorruptData` and `UnknownVersion` for a damaged marker; other entries are not
        decoded."""
        if entry.magic < 2:
            return
        header = entry.header()
        producer = header.producer_id
        if not header.transactional or producer is None:
            return
        if not header.control:
            self._open.setdefault(producer, entry.offset)
            return
        for record in entry.batch(controls=True).records:
            first = self._open.pop(producer, None)
            if first is not None and marker_of(record).kind == ABORT:
                self._aborted.setdefault(producer, []).append(AbortedTransaction(producer, first, record.offset))

    def add_all(self, entries: Iterable[LogEntry]) -> None:
        """Records entries in their order. Raises the errors of `add`."""
        for entry in entries:
            self.add(entry)

    @property
    def open(self) -> dict[int, int]:
        """Returns producer id -> the first offset of its open transaction."""
        return dict(self._open)

    @property
    def aborted(self) -> list[AbortedTransaction]:
        """Returns aborted transactions by the offsets of their markers, as brokers list them."""
        found = [one for several in self._aborted.values() for one in several]
        return sorted(found, key=lambda one: one.last_offset)

    @property
    def last_stable_offset(self) -> int | None:
        """Returns where readers of committed messages stop: the first offset of an open transaction; None without
        one."""
        return min(self._open.values(), default=None)

    def committed(self, batch: RecordBatch) -> bool:
        """Returns whether a reader of committed messages sees this batch's messages."""
        stable = self.last_stable_offset
        if batch.control or (stable is not None and batch.base_offset >= stable):
            return False
        if not batch.transactional or batch.producer_id is None:
            return True
        aborted = self._aborted.get(batch.producer_id, [])
        at = bisect_right(aborted, batch.base_offset, key=lambda one: one.first_offset)
        return not at or aborted[at - 1].last_offset < batch.base_offset


def marker_of(record: Record) -> Marker:
    """Decodes a control record. Raises `CorruptData`."""
    what = f"control record at offset {record.offset}"
    try:
        _, kind = _KEY.unpack_from(record.key or b"")
        epoch = _VALUE.unpack_from(record.value or b"")[1] if kind in (ABORT, COMMIT) else None
    except struct.error as error:
        raise CorruptData(what, f"it breaks Kafka's format: {error}") from error
    if kind < 0:
        raise CorruptData(what, f"it is of kind {kind}")
    return Marker(kind, epoch)
