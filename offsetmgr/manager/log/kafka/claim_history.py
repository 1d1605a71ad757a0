"""`ClaimHistory`: the knowledge about the claims of a topic that the readers of one process share.

A reader that begins within a partition has not seen the claim of the partition's owner. It takes the knowledge from
here, where the reader before it left its own knowledge.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from typing import Final, NamedTuple

from offsetmgr.kafka.client.producers import ProducerEpoch
from offsetmgr.manager.log.kafka.batch_audit import AuditState, PartitionAudit
from offsetmgr.segments.raw_batches import raw_batches

# `ProducerHistory`: the producer ids that have ever written to each partition of the log, as far as they are known.


class ProducerHistory:
    """Collects producer ids from claims in the log and from the leaders. A claim lists all of them, because compaction
    removes older claims while records of their producer ids remain.

    Any number of threads may use it.
    """

    def __init__(self) -> None:
        self._ids: dict[int, set[int]] = {}
        self._claimed: dict[int, frozenset[int]] = {}
        self._lock = threading.Lock()

    def add(self, partition: int, producer_ids: Iterable[int]) -> None:
        """Adds producer ids of a partition."""
        with self._lock:
            self._ids.setdefault(partition, set()).update(producer_ids)

    def ids(self, partition: int) -> tuple[int, ...]:
        """Returns the known producer ids of a partition in ascending order."""
        with self._lock:
            return tuple(sorted(self._ids.get(partition, ())))

    def on_claimed(self, partition: int) -> None:
        """Records that this process has appended a claim that lists the known producer ids."""
        with self._lock:
            self._claimed[partition] = frozenset(self._ids.get(partition, ()))

    def is_incomplete(self, partition: int) -> bool:
        """Returns whether producer ids were added since the last claim of this process."""
        with self._lock:
            return self._claimed.get(partition, frozenset()) != self._ids.get(partition, set())

    def forget(self) -> None:
        """Forgets everything, because the topic was recreated."""
        with self._lock:
            self._ids.clear()
            self._claimed.clear()


_logger: Final = logging.getLogger(__name__)
_MAX_ALARMS: Final = 100_000
"""The number of invalid batches of which the history remembers that they were logged."""


class ClaimHistory:
    """The claims of one topic. Adds the producer ids of the claims to ``producers``, so that the next claim of this
    process lists them. Any number of threads may use it."""

    def __init__(self, topic: str, producers: ProducerHistory | None = None) -> None:
        self._topic = topic
        self._producers = producers or ProducerHistory()
        self._known: dict[int, tuple[int, AuditState]] = {}
        self._alarms: set[tuple[int, int]] = set()
        self._lock = threading.Lock()

    def audit(self, partition: int, start: int) -> PartitionAudit:
        """Returns the audit of a reader that begins at this offset."""
        with self._lock:
            known = self._known.get(partition)
        if known is None:
            return PartitionAudit(whole=start == 0)
        position, state = known
        if start > position:
            return PartitionAudit(state._replace(exact=False))
        if start > state.claimed_at:
            return PartitionAudit(state)
        return PartitionAudit(AuditState(invalid_keys=state.invalid_keys), later=state)

    def record(self, partition: int, position: int, state: AuditState) -> None:
        """Records the knowledge at an offset, unless a reader has already read further."""
        if not state.producer_ids:
            return
        self._producers.add(partition, state.producer_ids)
        with self._lock:
            known = self._known.get(partition)
            if known is None or known[0] <= position:
                self._known[partition] = position, state

    def report(self, partition: int, offset: int, producer: ProducerEpoch, why: str) -> None:
        """Logs an invalid batch, once for all readers."""
        with self._lock:
            if (partition, offset) in self._alarms:
                return
            if len(self._alarms) >= _MAX_ALARMS:
                self._alarms.clear()
            self._alarms.add((partition, offset))
        _logger.error(
            "another program wrote to the offsets topic: the records of this batch are ignored",
            extra={
                "topic": self._topic,
                "partition": partition,
                "offset": offset,
                "producer_id": producer.id,
                "producer_epoch": producer.epoch,
                "why": why,
            },
        )

    def forget(self) -> None:
        """Forgets everything, because the topic was recreated."""
        with self._lock:
            self._known.clear()
            self._alarms.clear()


# `ClaimRecheck`: a second read of a claim, to find out whether the log cleaner has removed it. Pure.


class _PostponedBatches(NamedTuple):
    """Batches of the log that wait for the second read of the claim at offset ``claimed_at``."""

    claimed_at: int
    data: bytes
    position: int


class ClaimRecheck:
    """The second reads of the owner's claim by the reader of one partition.

    If the audit returns `Outcome.RECHECK`, the reader calls `begin`. The reader passes all bytes that it reads through
    `resume`, which reports the result of a second read to the audit.
    """

    def __init__(self, audit: PartitionAudit) -> None:
        self._audit = audit
        self._postponed: _PostponedBatches | None = None

    @property
    def in_progress(self) -> bool:
        """Whether the reader reads the claim again."""
        return self._postponed is not None

    def begin(self, data: bytes, position: int) -> int:
        """Postpones the batches of ``data`` from offset ``position`` on. Returns the offset of the claim, at which the
        reader continues."""
        claimed_at = self._audit.state.claimed_at
        self._postponed = _PostponedBatches(claimed_at, data, position)
        return claimed_at

    def resume(self, data: bytes, position: int) -> tuple[bytes, int] | None:
        """Returns the bytes and the offset at which the reader continues. These are the postponed ones if ``data``
        completes a second read, and the arguments if no second read is in progress. Returns None if the second read
        needs more bytes. Raises `DamagedBatch`."""
        postponed = self._postponed
        if postponed is None:
            return data, position
        for batch in raw_batches(data):
            if batch.last_offset >= postponed.claimed_at:
                present = batch.base_offset == postponed.claimed_at and batch.record_count > 0
                self._audit.on_rechecked(present=present)
                self._postponed = None
                return postponed.data, postponed.position
        return None
