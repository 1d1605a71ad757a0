"""`PartitionLoad`: the load of one partition from raw bytes of its log. Pure.

The load keeps the newest value of each key and decodes no value. Batches that the partition's owners did not write (see
`batch_audit`) do not change the values.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping, Sequence
from typing import Final

from offsetmgr.core.advice import Advice
from offsetmgr.kafka.client.producers import ProducerEpoch
from offsetmgr.manager.log.base import CorruptRecords
from offsetmgr.manager.log.kafka.batch_audit import Outcome
from offsetmgr.manager.log.kafka.claim_history import ClaimHistory
from offsetmgr.manager.log.kafka.claim_recheck import ClaimRecheck
from offsetmgr.manager.log.topic import UnsuitableTopic
from offsetmgr.records.claim import CLAIM_KEY, FENCE_KEY
from offsetmgr.segments.newest_values import NO_KEY, collect_newest
from offsetmgr.segments.raw_batches import DamagedBatch, RawBatch, raw_batches, records_of

SPECIAL_KEYS: Final = frozenset({CLAIM_KEY, FENCE_KEY})
_SPECIAL_MARK: Final = bytes((2 * len(CLAIM_KEY),)) + CLAIM_KEY[:2]
"""The bytes with which every special key begins in a record: the encoded size of the key and its version."""
assert len(FENCE_KEY) == len(CLAIM_KEY) and FENCE_KEY.startswith(CLAIM_KEY[:2])


class PartitionLoad:
    """Loads one partition from offset ``start`` on into ``newest``.

    The caller passes consecutive bytes of the log to `add`, from the batch that contains `position` on. At the end the
    caller calls `finish`.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        start: int,
        newest: MutableMapping[bytes, bytes | None],
        history: ClaimHistory,
    ) -> None:
        self.partition = partition
        self.position = start
        self.audit = history.audit(partition, start)
        self._topic = topic
        self._start = start
        self._result = newest
        self._newest: MutableMapping[bytes, bytes | None] = {} if newest else newest
        """The values of this load. They are in the result at once if the result was empty before, because a second pass
        must not lose the values from before."""
        self._history = history
        self._recheck = ClaimRecheck(self.audit)

    def add(self, data: bytes) -> None:
        """Loads the complete batches of ``data``. Raises `CorruptRecords` and `UnsuitableTopic`."""
        try:
            resumed = self._recheck.resume(data, self.position)
            if resumed is not None:
                data, self.position = resumed
                self._add_batches(data)
        except DamagedBatch as error:
            raise CorruptRecords(self._topic, self.partition, error.offset, error.why) from error

    def _add_batches(self, data: bytes) -> None:
        for batch in raw_batches(data):
            if batch.last_offset < self.position:
                continue
            check_suitable(self._topic, self.partition, batch)
            if batch.base_offset > self.position or not batch.record_count:
                self.audit.note_gap()
            if batch.record_count and not self._add(data, batch):
                self.position = self._recheck.begin(data, self.position)
                return
            self.position = batch.last_offset + 1
        self.audit.end_chunk()

    def note_log_start(self, offset: int | None) -> None:
        """Notes the first offset of the log; None if it is unknown."""
        self.audit.whole &= not offset

    def skip_to(self, position: int) -> None:
        """Skips offsets at which the log has no records."""
        if position > self.position:
            self.position = position
            self.audit.note_gap()

    def finish(self) -> bool:
        """Ends the load, and records the claims in the history. Returns False if the caller has to read the log again
        from `position` on, because the load applied a batch that turned out to be invalid."""
        for key in SPECIAL_KEYS:
            self._newest.pop(key, None)
        if self.audit.conclude():
            self._newest.clear()
            self.position = self._start
            return False
        if self._newest is not self._result:
            self._result.update(self._newest)
        self._history.record(self.partition, self.position, self.audit.state)
        return True

    def _add(self, data: bytes, batch: RawBatch) -> bool:
        """Loads a batch. Returns False if the owner's claim has to be read again first."""
        audit = self.audit
        # A claim is the only record of its batch, so a batch of several records that the owner wrote contains no claim.
        if batch.record_count != 1 and audit.is_owner(batch.producer_id, batch.producer_epoch):
            self._apply(data, batch)
            return True
        producer = ProducerEpoch(batch.producer_id, batch.producer_epoch)
        special = special_records(data, batch, self.position)
        outcome = audit.check(batch.base_offset, producer, special)
        if outcome is Outcome.RECHECK:
            return False
        if outcome is Outcome.INVALID:
            audit.note_invalid(record.key or NO_KEY for record in records_of(data, batch, self.position))
            self._history.report(self.partition, batch.base_offset, producer, audit.describe())
        elif special:
            audit.note_valid(key for key, _ in special)
            self._newest.update(without_special(special))
        else:
            self._apply(data, batch)
        return True

    def _apply(self, data: bytes, batch: RawBatch) -> None:
        if not self.audit.state.invalid_keys:
            collect_newest(self._newest, data, batch, self.position)
            return
        values: dict[bytes, bytes | None] = {}
        collect_newest(values, data, batch, self.position)
        self.audit.note_valid(values)
        self._newest.update(values)


def check_suitable(topic: str, partition: int, batch: RawBatch) -> None:
    """Raises `UnsuitableTopic` for a batch of a transaction."""
    if batch.transactional:
        raise UnsuitableTopic(
            f"topic {topic}",
            f"partition {partition} has a batch of a transaction at offset {batch.base_offset}: an earlier version of "
            "offsetmgr, which wrote transactions, or another program has written to it",
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


def without_special(records: Iterable[tuple[bytes, bytes | None]]) -> Iterable[tuple[bytes, bytes | None]]:
    """Returns the records that are neither claims nor fences."""
    return [(key, value) for key, value in records if key not in SPECIAL_KEYS]
