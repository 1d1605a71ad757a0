"""`PartitionRead`: reads one partition from raw bytes of its log, for a load (`log_load`) or at its end
(`log_follower`). Pure, except for `start_of_log`, which sends a request.

Records of batches that the partition's owners did not write (see `batch_audit`) are not applied.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import OffsetMgrError, value_of
from offsetmgr.core.model import TopicPartition
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.fetch import FetchedPartition, log_ranges
from offsetmgr.kafka.client.producers import ProducerEpoch
from offsetmgr.manager.log.base import CorruptRecords, truncated
from offsetmgr.manager.log.kafka.log_history import LogHistory
from offsetmgr.manager.log.topic import UnsuitableTopic
from offsetmgr.records.claim import CLAIM_KEY, FENCE_KEY
from offsetmgr.segments.newest_values import NO_KEY
from offsetmgr.segments.raw_batches import DamagedBatch, RawBatch, raw_batches, records_of

SPECIAL_KEYS: Final = frozenset({CLAIM_KEY, FENCE_KEY})
_SPECIAL_MARK: Final = bytes((2 * len(CLAIM_KEY),)) + CLAIM_KEY[:2]
"""The bytes with which every special key begins in a record: the encoded size of the key and its version."""
assert len(FENCE_KEY) == len(CLAIM_KEY) and FENCE_KEY.startswith(CLAIM_KEY[:2])


class PartitionRead:
    """Reads one partition from an offset on. A subclass applies the batches.

    The caller passes consecutive bytes of the log to `add`, from the batch that contains `fetch_offset` on. If the
    audit returns `Outcome.RECHECK`, the reader reads the owner's claim again, to find out whether the log cleaner has
    removed it. Meanwhile it keeps the batches that it has already received.
    """

    def __init__(self, topic: str, partition: int, start: int, history: LogHistory) -> None:
        self.partition = partition
        self.fetch_offset = start
        self.audit = history.audit(partition, start)
        self._topic = topic
        self._history = history
        self._postponed: tuple[int, bytes, int] | None = None
        """The offset of a claim that is read again, the batches that wait for this, and the position in them."""
        self._empty_at = -1

    def add_fetched(self, fetched: FetchedPartition, *, empty: bool) -> None:
        """Adds the part of a response that belongs to this partition. ``empty`` is whether the whole response contains
        no bytes: then the log cleaner may have removed the records up to the high watermark. An empty response may have
        other reasons, so the reader waits for a second one. Raises as `add` does."""
        self.note_log_start(fetched.log_start_offset)
        self.add(fetched.data)
        if empty and self.fetch_offset < fetched.high_watermark:
            if self._empty_at == self.fetch_offset:
                self.skip_to(fetched.high_watermark)
            else:
                self._empty_at = self.fetch_offset

    def add(self, data: bytes) -> None:
        """Adds the complete batches of ``data``. Raises `CorruptRecords` and `UnsuitableTopic`."""
        try:
            if self._postponed is not None:
                claimed_at, postponed, position = self._postponed
                if not self._rechecks(claimed_at, data):
                    return
                self._postponed, data, self.fetch_offset = None, postponed, position
            for batch in raw_batches(data):
                if batch.last_offset >= self.fetch_offset:
                    self._check_suitable(batch)
                    if not self._add_batch(data, batch):
                        break
                    self.fetch_offset = batch.last_offset + 1
            if self._postponed is None:
                self.audit.end_chunk()
        except DamagedBatch as error:
            raise CorruptRecords(self._topic, self.partition, error.offset, error.why) from error

    def note_log_start(self, offset: int | None) -> None:
        """Notes the first offset of the log; None if it is unknown."""
        self.audit.whole &= not offset

    def skip_to(self, position: int) -> None:
        """Skips offsets at which the log has no records."""
        if position > self.fetch_offset:
            self.fetch_offset = position
            self.audit.note_gap()

    def skip_deleted(self, start: int) -> None:
        """Continues at the start of the log if it is after `fetch_offset`, because the records before it were
        deleted."""
        if start > self.fetch_offset:
            self._history.deleted.note_missing(self.partition, start)
            self.skip_to(start)

    def _add_batch(self, data: bytes, batch: RawBatch) -> bool:
        """Applies a batch. Returns False if the reader continues at another offset, `fetch_offset`."""
        raise NotImplementedError

    def _note_missing(self, batch: RawBatch) -> None:
        """Notes a gap in front of the batch, or that the log cleaner has removed the records of the batch."""
        if batch.base_offset > self.fetch_offset or not batch.record_count:
            self.audit.note_gap()

    def _reject(self, batch: RawBatch, keys: Iterable[bytes]) -> None:
        """Notes and logs a batch that no owner has written."""
        self.audit.note_invalid(keys)
        producer = ProducerEpoch(batch.producer_id, batch.producer_epoch)
        self._history.report(self.partition, batch.base_offset, producer, self.audit.describe())

    def _postpone(self, data: bytes) -> None:
        """Postpones the batches of ``data`` from `fetch_offset` on, until the owner's claim has been read again."""
        claimed_at = self.audit.state.claimed_at
        self._postponed = claimed_at, data, self.fetch_offset
        self.fetch_offset = claimed_at

    def _rechecks(self, claimed_at: int, data: bytes) -> bool:
        """Reports to the audit whether the log still has the claim. Returns False if this needs more bytes."""
        for batch in raw_batches(data):
            if batch.last_offset >= claimed_at:
                self.audit.on_rechecked(present=batch.base_offset == claimed_at and batch.record_count > 0)
                return True
        return False

    def _check_suitable(self, batch: RawBatch) -> None:
        """Raises `UnsuitableTopic` for a batch of a transaction."""
        if batch.transactional:
            raise UnsuitableTopic(
                f"topic {self._topic}",
                f"partition {self.partition} has a batch of a transaction at offset {batch.base_offset}: an earlier "
                "version of offsetmgr, which wrote transactions, or another program has written to it",
                Advice(
                    "export the offsets with the release that wrote them, choose a new {offsets_topic}, and import the"
                    " offsets"
                ),
            )


def special_records(data: bytes, batch: RawBatch, first: int) -> Sequence[tuple[bytes, bytes | None]]:
    """Returns the records of a batch from offset ``first`` on if one of them is a claim or a fence; otherwise nothing.
    Raises `DamagedBatch`."""
    if not batch.codec and data.find(_SPECIAL_MARK, batch.start, batch.end) < 0:
        return ()
    records = [(record.key or NO_KEY, record.value) for record in records_of(data, batch, first)]
    return records if any(key in SPECIAL_KEYS for key, _ in records) else ()


def is_empty(outcomes: Iterable[FetchedPartition | OffsetMgrError]) -> bool:
    """Returns whether a response contains no bytes of any partition. (A partition without bytes in another response may
    have been omitted because the response was full.)"""
    return not any(isinstance(outcome, FetchedPartition) and outcome.data for outcome in outcomes)


async def start_of_log(client: Client, partition: TopicPartition, position: int, deadline: float) -> int:
    """Returns the offset at which a reader continues after the leader has rejected its position: the log's start if the
    start has advanced past the position. Returns the position itself if it is inside the log, because the leader has
    changed meanwhile.

    Raises `ServerError` if the log ends before the position, and the errors of the requests.
    """
    found = value_of((await log_ranges(client, [partition], deadline))[partition])
    if position > found.end:
        raise truncated(str(partition), found.end, position)
    return max(position, found.start)
