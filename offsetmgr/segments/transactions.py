"""Decides which messages of a log are received by a consumer with ``isolation.level=read_committed`` (KIP-98).

Such a consumer skips the messages of aborted transactions, and stops at the first message of an open transaction (the
last stable offset). The outcome of a transaction is known only from its marker, which comes after its messages.
Therefore a caller passes the entries of the whole log to `Transactions` before it reads messages.

If a transaction begins before the first entry that is passed to `Transactions`, the transaction's first message among
the passed entries counts as its beginning.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import Final, NamedTuple

from offsetmgr.core.errors import CorruptData
from offsetmgr.segments.batch_reader import MARKER_KEY, MARKER_VALUE, Record, RecordBatch
from offsetmgr.segments.entries import LogEntry

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
"""Names of the types of control records. The index of a name is the number in the record's key. All types but abort and
commit occur only in KRaft's metadata log."""


class Marker(NamedTuple):
    """A control record. ``kind`` is an index of `MARKER_NAMES`, or a larger number that a later version of Kafka
    defines. Only commit and abort markers have a ``coordinator_epoch``."""

    kind: int
    coordinator_epoch: int | None

    @property
    def name(self) -> str:
        return MARKER_NAMES[self.kind] if self.kind < len(MARKER_NAMES) else f"control-{self.kind}"


class _AbortedTransaction(NamedTuple):
    """The offsets of a producer's first message in the transaction, and of the abort marker."""

    first_offset: int
    last_offset: int


class Transactions:
    """Collects the open and aborted transactions of a log from its entries, which are added in order."""

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        self._aborted: dict[int, list[_AbortedTransaction]] = {}

    def add(self, entry: LogEntry) -> None:
        """Adds the next entry. Raises `CorruptData` or `UnknownVersion` for a damaged marker. Entries other than
        markers are not decoded."""
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
                self._aborted.setdefault(producer, []).append(_AbortedTransaction(first, record.offset))

    def committed(self, batch: RecordBatch) -> bool:
        """Returns whether a ``read_committed`` consumer receives this batch's messages."""
        # Such consumers stop at the smallest of the first offsets of all open transactions.
        stable = min(self._open.values(), default=None)
        if batch.control or (stable is not None and batch.base_offset >= stable):
            return False
        if not batch.transactional or batch.producer_id is None:
            return True
        aborted = self._aborted.get(batch.producer_id, [])
        at = bisect_right(aborted, batch.base_offset, key=lambda transaction: transaction.first_offset)
        return not at or aborted[at - 1].last_offset < batch.base_offset


def marker_of(record: Record) -> Marker:
    """Decodes a control record. Raises `CorruptData`."""
    what = f"control record at offset {record.offset}"
    try:
        _, kind = MARKER_KEY.unpack_from(record.key or b"")
        epoch = MARKER_VALUE.unpack_from(record.value or b"")[1] if kind in (ABORT, COMMIT) else None
    except struct.error as error:
        raise CorruptData(what, f"it does not have Kafka's format: {error}") from error
    if kind < 0:
        raise CorruptData(what, f"its type is {kind}, which is negative")
    return Marker(kind, epoch)
