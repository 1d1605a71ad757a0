"""The control batch with which a broker ends a producer's transaction."""

from __future__ import annotations

from offsetmgr.segments.batch_builder import Producer, batch
from offsetmgr.segments.batch_reader import MARKER_KEY, MARKER_VALUE, Record


def end_of_transaction(
    offset: int, producer: Producer, *, commit: bool, timestamp: int, coordinator_epoch: int = 0
) -> bytes:
    """Encodes the control batch with which a broker ends a producer's transaction."""
    key = MARKER_KEY.pack(0, 1 if commit else 0)
    value = MARKER_VALUE.pack(0, coordinator_epoch)
    writer = Producer(producer.id, producer.epoch, -1, transactional=True)
    return batch([Record(offset, timestamp, key, value)], producer=writer, control=True)
