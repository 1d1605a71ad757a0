"""`PartitionFollow`: reads the end of one partition from raw bytes of its log. Pure.

Records of batches that the partition's owners did not write (see `batch_audit`) are not returned. If the decision about
a batch depends on a claim that follows, the reader reads ahead to the next claim and then reads the batch again.
Meanwhile it returns no records, because records have to stay in order.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from offsetmgr.kafka.client.producers import ProducerEpoch
from offsetmgr.manager.log.base import CorruptRecords, LogRecord
from offsetmgr.manager.log.kafka.batch_audit import AuditState, Outcome, PartitionAudit
from offsetmgr.manager.log.kafka.claim_history import ClaimHistory
from offsetmgr.manager.log.kafka.claim_recheck import ClaimRecheck
from offsetmgr.manager.log.kafka.partition_load import SPECIAL_KEYS, check_suitable, special_records
from offsetmgr.segments.batch_reader import Record
from offsetmgr.segments.newest_values import NO_KEY
from offsetmgr.segments.raw_batches import DamagedBatch, RawBatch, raw_batches, records_of

_NO_TIME = -1


class _Run(NamedTuple):
    """Records of one batch, the offset after the batch, and the state of the audit there."""

    records: list[LogRecord]
    end: int
    state: AuditState


class PartitionFollow:
    """Follows one partition from an offset on.

    The caller passes consecutive bytes of the log to `add`, from the batch that contains `fetch_offset` on, and gets
    the records from `take`.
    """

    def __init__(self, topic: str, partition: int, start: int, history: ClaimHistory) -> None:
        self.partition = partition
        self.position = start
        """The offset after the last record that `take` has returned, or after a gap that follows this record."""
        self.fetch_offset = start
        self.buffered = 0
        """The number of records that `take` has not returned yet."""
        self._topic = topic
        self._history = history
        self._audit = history.audit(partition, start)
        self._ahead: PartitionAudit | None = None
        """The audit that searches the next claim; None if every batch so far is decided."""
        self._undecided_at = 0
        self._recheck = ClaimRecheck(self._audit)
        self._runs: deque[_Run] = deque()

    def add(self, data: bytes) -> None:
        """Adds the complete batches of ``data``. Raises `CorruptRecords` and `UnsuitableTopic`."""
        try:
            resumed = self._recheck.resume(data, self.fetch_offset)
            if resumed is not None:
                data, self.fetch_offset = resumed
                self._add_batches(data)
        except DamagedBatch as error:
            raise CorruptRecords(self._topic, self.partition, error.offset, error.why) from error

    def _add_batches(self, data: bytes) -> None:
        for batch in raw_batches(data):
            if batch.last_offset < self.fetch_offset:
                continue
            check_suitable(self._topic, self.partition, batch)
            if self._ahead is not None:
                if self._finds_claim(self._ahead, data, batch):
                    break
            else:
                if batch.base_offset > self.fetch_offset or not batch.record_count:
                    self._audit.note_gap()
                outcome = self._add(data, batch)
                if outcome is Outcome.RECHECK:
                    self.fetch_offset = self._recheck.begin(data, self.fetch_offset)
                    return
                if outcome is Outcome.UNDECIDED:
                    self._ahead, self._undecided_at = PartitionAudit(self._audit.state), self.fetch_offset
            self.fetch_offset = batch.last_offset + 1
        self._audit.end_chunk()

    def note_log_start(self, offset: int | None) -> None:
        """Notes the first offset of the log; None if it is unknown."""
        self._audit.whole &= not offset

    def skip_to(self, position: int) -> None:
        """Skips offsets at which the log has no records."""
        if position > self.fetch_offset:
            self.fetch_offset = position
            if self._ahead is None and not self._recheck.in_progress:
                self._audit.note_gap()
                self._append([], position)

    def take(self, max_records: int) -> list[LogRecord]:
        """Returns up to ``max_records`` records."""
        taken: list[LogRecord] = []
        while self._runs and (len(taken) < max_records or not self._runs[0].records):
            records, end, state = self._runs.popleft()
            free = max_records - len(taken)
            taken += records[:free]
            if len(records) > free:
                self._runs.appendleft(_Run(records[free:], end, state))
                self.position = records[free].offset
            else:
                self.position = end
                self._history.record(self.partition, end, state)
        self.buffered -= len(taken)
        return taken

    def _add(self, data: bytes, batch: RawBatch) -> Outcome:
        """Adds the records of a batch, unless the outcome is `UNDECIDED` or `RECHECK`."""
        records: list[Record] = []
        outcome = Outcome.VALID
        if batch.record_count:
            producer = ProducerEpoch(batch.producer_id, batch.producer_epoch)
            records = records_of(data, batch, self.fetch_offset)
            pairs = [(record.key or NO_KEY, record.value) for record in records]
            special = pairs if any(key in SPECIAL_KEYS for key, _ in pairs) else ()
            owned = not special and self._audit.is_owner(*producer)
            outcome = Outcome.VALID if owned else self._audit.check(batch.base_offset, producer, special)
            if outcome is Outcome.UNDECIDED and not self._audit.decidable:
                outcome = Outcome.VALID
            if outcome in (Outcome.UNDECIDED, Outcome.RECHECK):
                return outcome
            if outcome is Outcome.INVALID:
                self._audit.note_invalid(key for key, _ in pairs)
                self._history.report(self.partition, batch.base_offset, producer, self._audit.describe())
                records = []
            else:
                self._audit.note_valid(key for key, _ in pairs)
        found = [
            LogRecord(self.partition, offset, key or NO_KEY, value, _NO_TIME if time is None else time)
            for offset, time, key, value, *_ in records
            if key not in SPECIAL_KEYS
        ]
        self._append(found, batch.last_offset + 1)
        return outcome

    def _append(self, records: list[LogRecord], end: int) -> None:
        self.buffered += len(records)
        self._runs.append(_Run(records, end, self._audit.state))

    def _finds_claim(self, ahead: PartitionAudit, data: bytes, batch: RawBatch) -> bool:
        """Searches a batch for a valid claim. After the claim is found, goes back to the undecided batch."""
        special = special_records(data, batch, self.fetch_offset) if batch.record_count else ()
        if special:
            ahead.check(batch.base_offset, ProducerEpoch(batch.producer_id, batch.producer_epoch), special)
        if ahead.state.claimed_at != batch.base_offset:
            return False
        self._audit.decide_with(ahead.state.producer_ids)
        self.fetch_offset = self._undecided_at
        self._ahead = None
        return True
