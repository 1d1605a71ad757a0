"""`BlockingWriter`: calls the coroutines of a `ShardGroupWriter` from a test without an event loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from offsetmgr.core.errors import value_of
from offsetmgr.kafka.client.client import EventLoopThread
from offsetmgr.manager.log.base import AppendOutcome, PartitionLog, ShardGroupWriter
from offsetmgr.records.base import EncodedRecord

LOOP: Final = EventLoopThread()
"""The loop on which the writers of tests run."""


class BlockingWriter:
    """Each method runs the coroutine of the same name on `LOOP` and waits for its end."""

    def __init__(self, writer: ShardGroupWriter) -> None:
        self._writer = writer

    def claim(self, timeout_s: float) -> Mapping[int, int]:
        return LOOP.run(self._writer.claim(timeout_s))

    def outcomes(self, batches: Mapping[int, Sequence[EncodedRecord]], timeout_s: float) -> Mapping[int, AppendOutcome]:
        """See `ShardGroupWriter.append`."""
        return LOOP.run(self._writer.append(batches, timeout_s))

    def append(self, batches: Mapping[int, Sequence[EncodedRecord]], timeout_s: float) -> Mapping[int, int]:
        """Returns the offset of the last record of each partition, or raises the first error of a partition."""
        return {partition: value_of(outcome) for partition, outcome in self.outcomes(batches, timeout_s).items()}

    def close(self) -> None:
        async def close() -> None:
            self._writer.close()

        LOOP.run(close())


def claimed(log: PartitionLog, shard_group: int, timeout_s: float = 60.0) -> BlockingWriter:
    """Returns a writer that has claimed the shard group."""
    writer = BlockingWriter(log.writer(shard_group))
    writer.claim(timeout_s)
    return writer
