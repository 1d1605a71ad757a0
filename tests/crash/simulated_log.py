"""A replica of a partition in memory: its batches, the state of its producers, and compaction.

Source: org.apache.kafka.storage.internals.log (UnifiedLog, ProducerAppendInfo, ProducerStateEntry, LogCleaner).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from offsetmgr.core.errors import ErrorCode
from offsetmgr.records.base import EncodedRecord
from offsetmgr.segments.batch_builder import Producer
from offsetmgr.segments.batch_builder import batch as encode_batch
from offsetmgr.segments.batch_reader import BATCH_HEADER, LOG_HEADER, LOG_OVERHEAD, Record
from offsetmgr.segments.batch_reader import batches as read_batches

_SEQUENCES: Final = 1 << 31
_REMEMBERED_BATCHES: Final = 5
_FETCHED_BATCHES: Final = 2


class Batch(NamedTuple):
    """A batch in a log. Replicas share the object, so they compare batches by identity."""

    base: int
    producer: Producer | None
    records: tuple[EncodedRecord, ...]
    time: float
    """The broker's time of the append (LogAppendTime)."""

    @property
    def last(self) -> int:
        return self.base + len(self.records) - 1


class SentBatch(NamedTuple):
    producer: Producer | None
    records: tuple[EncodedRecord, ...]
    size: int


def parse_batch(data: bytes) -> SentBatch:
    """Decodes a batch as a broker does, including its checksum."""
    (found,) = read_batches(data)
    assert found.base_offset == 0 and found.last_offset == len(found.records) - 1
    *_, producer_id, epoch, sequence, _ = BATCH_HEADER.unpack_from(data, LOG_OVERHEAD)
    assert LOG_HEADER.unpack_from(data)[1] + LOG_OVERHEAD == len(data)
    records = tuple((record.key or b"", record.value) for record in found.records)
    return SentBatch(Producer(producer_id, epoch, sequence), records, len(data))


class _KnownBatch(NamedTuple):
    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int


@dataclass
class _ProducerState:
    epoch: int
    time: float
    batches: deque[_KnownBatch] = field(default_factory=lambda: deque(maxlen=_REMEMBERED_BATCHES))


class Appended(NamedTuple):
    """The outcome of an append at the leader. After an error, the offsets are -1."""

    code: int
    first_offset: int = -1
    last_offset: int = -1


class Replica:
    """The log of one partition on one broker."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.high_watermark = 0
        self._producers: dict[int, _ProducerState] = {}
        self._removed: set[int] = set()
        """The offsets of the records that compaction has removed."""
        self._dropped: set[int] = set()
        """The base offsets of the batches that compaction has removed as a whole."""

    @property
    def end(self) -> int:
        return self.batches[-1].last + 1 if self.batches else 0

    def epochs(self) -> dict[int, int]:
        return {producer_id: state.epoch for producer_id, state in self._producers.items()}

    # --- appends --------------------------------------------------------------------------------------

    def append(self, sent: SentBatch, now: float) -> Appended:
        """Appends as the leader. Checks the epoch and the sequence number."""
        if sent.producer is not None:
            checked = self._check(sent.producer, len(sent.records))
            if checked is not None:
                return checked
        batch = Batch(self.end, sent.producer, sent.records, now)
        self._add(batch)
        return Appended(ErrorCode.NONE, batch.base, batch.last)

    def _check(self, producer: Producer, count: int) -> Appended | None:
        """Returns the outcome of a batch that is not appended: a duplicate or an error."""
        state = self._producers.get(producer.id)
        if state is None:
            return None
        last_sequence = (producer.sequence + count - 1) % _SEQUENCES
        if state.epoch == producer.epoch:
            for known in state.batches:
                if (known.first_sequence, known.last_sequence) == (producer.sequence, last_sequence):
                    return Appended(ErrorCode.NONE, known.first_offset, known.last_offset)
        if producer.epoch < state.epoch:
            return Appended(ErrorCode.INVALID_PRODUCER_EPOCH)
        expected = 0 if producer.epoch != state.epoch else (state.batches[-1].last_sequence + 1) % _SEQUENCES
        return None if producer.sequence == expected else Appended(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)

    def _add(self, batch: Batch) -> None:
        self.batches.append(batch)
        self._update_producer(batch)

    def _update_producer(self, batch: Batch) -> None:
        if batch.producer is None:
            return
        producer_id, epoch, sequence, _ = batch.producer
        state = self._producers.get(producer_id)
        if state is None or state.epoch != epoch:
            state = self._producers[producer_id] = _ProducerState(epoch, batch.time)
        state.time = batch.time
        last = (sequence + len(batch.records) - 1) % _SEQUENCES
        state.batches.append(_KnownBatch(sequence, last, batch.base, batch.last))

    # --- replication ----------------------------------------------------------------------------------

    def follow(self, leader: Replica) -> None:
        """Truncates the log to the part that the leader has, too, and copies the rest of the leader's log."""
        shared = len(self.batches)
        while shared and (shared > len(leader.batches) or self.batches[shared - 1] is not leader.batches[shared - 1]):
            shared -= 1
        if shared < len(self.batches):
            assert self.batches[shared].base >= self.high_watermark, "a broker loses a replicated batch"
            del self.batches[shared:]
            self.reload(only_newest=False)
        for batch in leader.batches[shared:]:
            self._add(batch)
        self.high_watermark = min(leader.high_watermark, self.end)

    # --- producer state -------------------------------------------------------------------------------

    def reload(self, *, only_newest: bool) -> None:
        """Builds the state of the producers from the log. If ``only_newest`` is True, the broker reads a snapshot,
        which contains only the newest batch of each producer."""
        self._producers = {}
        for batch in self.batches:
            if batch.base not in self._dropped:
                self._update_producer(batch)
        if only_newest:
            for state in self._producers.values():
                while len(state.batches) > 1:
                    state.batches.popleft()

    def expire_producers(self, now: float, expiration_s: float) -> None:
        """Removes the state of each producer whose newest batch is older than ``expiration_s`` seconds."""
        self._producers = {
            producer_id: state for producer_id, state in self._producers.items() if now - state.time < expiration_s
        }

    # --- compaction -----------------------------------------------------------------------------------

    def compact(self, end: int, oldest_tombstone: float) -> None:
        """Removes the records before ``end`` that have a newer record of the same key, and tombstones from before
        ``oldest_tombstone``. The newest batch of each producer stays, if necessary without records."""
        dirty = [batch for batch in self.batches if batch.last < min(end, self.high_watermark)]
        newest = {key: batch.base + delta for batch in dirty for delta, (key, _) in enumerate(batch.records)}
        for batch in dirty:
            for delta, (key, value) in enumerate(batch.records):
                if newest[key] > batch.base + delta or (value is None and batch.time < oldest_tombstone):
                    self._removed.add(batch.base + delta)
            state = self._producers.get(batch.producer.id) if batch.producer is not None else None
            is_last = state is not None and state.batches[-1].last_offset == batch.last
            if not is_last and self._removed.issuperset(range(batch.base, batch.last + 1)):
                self._dropped.add(batch.base)

    # --- reads ----------------------------------------------------------------------------------------

    def records(self, start: int, end: int) -> list[tuple[int, bytes, bytes | None]]:
        """Returns the offsets, keys and values of the replicated records in a range, without those that compaction has
        removed."""
        return [
            (batch.base + delta, key, value)
            for batch in self.batches
            if batch.last >= start and batch.last < self.high_watermark
            for delta, (key, value) in enumerate(batch.records)
            if start <= batch.base + delta < end and batch.base + delta not in self._removed
        ]

    def fetch(self, offset: int) -> bytes | None:
        """Returns the bytes of the first replicated batches from an offset on; None if the offset is outside the
        log."""
        if offset > self.end:
            return None
        found = [
            batch
            for batch in self.batches
            if offset <= batch.last < self.high_watermark and batch.base not in self._dropped
        ]
        return b"".join(self._encode(batch) for batch in found[:_FETCHED_BATCHES])

    def _encode(self, batch: Batch) -> bytes:
        records = [
            Record(batch.base + delta, None, key, value)
            for delta, (key, value) in enumerate(batch.records)
            if batch.base + delta not in self._removed
        ]
        return encode_batch(records, base_offset=batch.base, last_offset=batch.last, producer=batch.producer)
