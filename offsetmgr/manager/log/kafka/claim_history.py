"""`ClaimHistory`: the knowledge about the claims of a topic that the readers of one process share.

A reader that begins within a partition has not seen the claim of the partition's owner. It takes the knowledge from
here, where the reader before it left its own knowledge.
"""

from __future__ import annotations

import logging
import threading
from typing import Final

from offsetmgr.kafka.client.producers import ProducerEpoch
from offsetmgr.manager.log.kafka.batch_audit import AuditState, PartitionAudit
from offsetmgr.manager.log.kafka.producer_history import ProducerHistory

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
