"""Replays one partition of an offsets topic, with its transactions, and keeps the newest record of each key. Pure.

The rule is the same as in compaction and in Kafka's coordinator: among the valid records of a key, the record with the
largest offset counts, and a null value deletes the key. A record outside a transaction is valid at once. A record in a
transaction becomes valid when the commit marker is read, and never becomes valid if the transaction is aborted
(`GroupMetadataManager.doLoadGroupsAndOffsets`, `OffsetMetadataManager.replay`). A transaction without a marker in the
log stays *pending*.

A key may be deleted while a transaction that contains an older record of the key is still open. In this case the key
stays deleted after the transaction commits. Kafka 4.x brokers do the same, and so does a Kafka 3.x broker until it is
restarted. A Kafka 3.x broker that loads such a log after a restart restores the older offset instead.

This module does not decode keys and values. `committed_offsets` decodes the newest record of each key.
"""

from __future__ import annotations

from typing import TypeAlias

from offsetmgr.core.errors import CorruptData
from offsetmgr.segments.batch_reader import RecordBatch, batches
from offsetmgr.segments.transactions import ABORT, COMMIT, marker_of

Newest: TypeAlias = dict[bytes, tuple[int, bytes | None]]
"""Maps each key to the log offset and the value of its newest record. The value of a tombstone is `None`."""


class OffsetsReplay:
    """Replays the log of one partition in order and keeps the newest record of each key.

    ``end`` is the offset after the last replayed entry; None if no entry has been replayed. ``leader_epoch`` is the
    leader epoch of the last replayed entry; None if the entry has no leader epoch. ``keyless`` is the number of records
    without a key.
    """

    def __init__(self) -> None:
        self.newest: Newest = {}
        self.pending: dict[int | None, Newest] = {}
        """The newest records in transactions whose marker has not been read, by producer id."""
        self.end: int | None = None
        self.leader_epoch: int | None = None
        self.keyless = 0
        self.replayed_bytes = 0
        """Number of bytes that the last call of `replay` has processed."""

    def replay(self, data: bytes) -> None:
        """Replays the next entries of the log. An incomplete entry at the end is left out.

        Raises `CorruptData` for an entry with a wrong checksum, an invalid structure, or a decreasing offset. Also
        raises `LimitExceeded` and `UnknownVersion`. After an error, all entries before the invalid entry have been
        replayed, and ``replayed_bytes`` is the position of the invalid entry in ``data``.
        """
        self.replayed_bytes = 0
        for batch in batches(data, controls=True):
            expected = self.end or 0
            if batch.base_offset < expected or batch.last_offset < batch.base_offset:
                why = f"entries before it go up to offset {expected - 1}, so one of them was altered"
                raise CorruptData(f"entry at offset {batch.base_offset}", why)
            if batch.control:
                self._end_transactions(batch)
            else:
                self._store(batch)
            self.end, self.leader_epoch, self.replayed_bytes = batch.last_offset + 1, batch.leader_epoch, batch.end

    def end_transaction(self, producer: int | None, *, committed: bool) -> None:
        """Commits or aborts the open transaction of a producer, like a marker in the log."""
        found = self.pending.pop(producer, {})
        for key, record in found.items() if committed else ():
            known = self.newest.get(key)
            if known is None or known[0] < record[0]:
                self.newest[key] = record

    def _end_transactions(self, batch: RecordBatch) -> None:
        """Replays a control batch. Only commit and abort markers end a transaction; other control records are
        ignored."""
        for record in batch.records:
            if (kind := marker_of(record).kind) in (ABORT, COMMIT):
                self.end_transaction(batch.producer_id, committed=kind == COMMIT)

    def _store(self, batch: RecordBatch) -> None:
        into = self.pending.setdefault(batch.producer_id, {}) if batch.transactional else self.newest
        for record in batch.records:
            if record.key is None:
                self.keyless += 1
            else:
                into[record.key] = (record.offset, record.value)
