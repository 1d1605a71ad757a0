"""`LogHistory`: what the writers and readers of one process know about the offsets topic.

A reader that begins within a partition has not seen the claim of the partition's owner. It takes the knowledge from
here, where the reader before it left its own knowledge. A claim lists all producer ids that have ever written to its
partition, because compaction removes older claims while records of their producer ids remain.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from offsetmgr.core.clock import BrokersClock
from offsetmgr.kafka.client.producers import ProducerEpoch
from offsetmgr.manager.log.base import DeletedRecords
from offsetmgr.manager.log.kafka.batch_audit import AuditState, PartitionAudit

_logger: Final = logging.getLogger(__name__)
_MAX_ALARMS: Final = 100_000
"""The number of invalid batches of which the history remembers that they were logged."""


class LogHistory:
    """The knowledge about the partitions of one topic. Any number of threads may use it."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._lock = threading.RLock()
        self.clock = BrokersClock()
        self.deleted = DeletedRecords()
        self.forget()

    def forget(self) -> None:
        """Forgets everything, because the topic was recreated."""
        with self._lock:
            self._ends: defaultdict[int, int] = defaultdict(int)
            self._ids: defaultdict[int, set[int]] = defaultdict(set)
            self._claimed: dict[int, tuple[set[int], int]] = {}
            self.deleted.forget()
            self._known: dict[int, tuple[int, AuditState]] = {}
            self._alarms: set[tuple[int, int]] = set()

    # --- ends ----------------------------------------------------------------------------------------

    def raise_ends(self, confirmed: Mapping[int, int]) -> None:
        """Raises the lower bounds of the partitions' ends, because every in-sync replica confirmed a record at each of
        these offsets."""
        with self._lock:
            for partition, offset in confirmed.items():
                self._ends[partition] = max(self._ends[partition], offset + 1)

    def min_end(self, partition: int) -> int:
        """Returns the lower bound of the partition's end. An end offset below it, which a broker may return, is
        outdated."""
        with self._lock:
            return self._ends[partition]

    # --- producer ids --------------------------------------------------------------------------------

    def add_ids(self, partition: int, producer_ids: Iterable[int]) -> None:
        """Adds producer ids from a claim or from the partition's leader."""
        with self._lock:
            self._ids[partition].update(producer_ids)

    def ids(self, partition: int) -> tuple[int, ...]:
        """Returns the known producer ids of a partition in ascending order."""
        with self._lock:
            return tuple(sorted(self._ids[partition]))

    def on_claimed(self, partition: int) -> None:
        """Records that this process has appended a claim that contains this knowledge."""
        with self._lock:
            self._claimed[partition] = set(self._ids[partition]), self.deleted.complete_from[partition]

    def is_incomplete(self, partition: int) -> bool:
        """Returns whether the last claim of this process lacks producer ids, or has another `Claim.complete_from`."""
        with self._lock:
            return self._claimed.get(partition) != (self._ids[partition], self.deleted.complete_from[partition])

    # --- claims --------------------------------------------------------------------------------------

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
        """Records the knowledge at an offset, unless a reader has already read further. The next claim of this process
        lists the producer ids of the claims."""
        if not state.producer_ids:
            return
        with self._lock:
            self.add_ids(partition, state.producer_ids)
            self.deleted.note_complete(partition, state.complete_from)
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
