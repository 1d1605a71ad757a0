"""`MemoryReader`: reads the stable records of a log in memory, and waits for new ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager

from offsetmgr.manager.log.base import LogClosed, LogRecord
from offsetmgr.manager.log.memory_partition import StoredPartition


class MemoryReader:
    """Implements `offsetmgr.manager.log.base.LogReader`. ``changed`` guards the partitions. ``reading`` acquires
    ``changed`` for a read, or raises the error that a test has injected."""

    def __init__(
        self,
        partitions: Sequence[StoredPartition],
        changed: threading.Condition,
        reading: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._partitions = partitions
        self._changed = changed
        self._reading = reading
        self._positions: dict[int, int] = {}
        self._closed = False

    def load(
        self,
        starts: Mapping[int, int],
        ends: Mapping[int, int],
        newest: Mapping[int, MutableMapping[bytes, bytes | None]],
        *,
        progress: Callable[[int], None] | None = None,
        stopped: Callable[[], bool] | None = None,
    ) -> Mapping[int, int]:
        """See `LogReader.load`."""
        reached = dict(starts)
        for partition, end in ends.items():
            if stopped is not None and stopped():
                break
            with self._reading():
                self._check_open()
                found = self._partitions[partition]
                if found.stable < end:
                    raise ValueError(f"partition {partition} ends at {found.stable}, before {end}")
                for record in found.read(starts[partition], end - starts[partition]):
                    if record.offset >= end:
                        break
                    newest[partition][record.key] = record.value
            reached[partition] = max(end, starts[partition])
            if progress is not None:
                progress(reached[partition] - starts[partition])
        return reached

    @property
    def invalid_keys(self) -> Mapping[int, AbstractSet[bytes]]:
        """See `LogReader.invalid_keys`. Only owners write to a log in memory."""
        return {}

    def follow(self, starts: Mapping[int, int]) -> None:
        """See `LogReader.follow`."""
        with self._changed:
            self._positions = dict(starts)

    def poll(self, max_records: int, timeout_s: float) -> Sequence[LogRecord]:
        """See `LogReader.poll`."""
        deadline = time.monotonic() + timeout_s
        while True:
            with self._reading():
                self._check_open()
                records = self._take(max_records)
                left = deadline - time.monotonic()
                if records or left <= 0:
                    return records
                self._changed.wait(left)

    def position(self, partition: int) -> int:
        """See `LogReader.position`."""
        with self._changed:
            return self._positions[partition]

    def close(self) -> None:
        """Ends a `poll` of another thread at once, with `LogClosed`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _take(self, max_records: int) -> list[LogRecord]:
        result: list[LogRecord] = []
        for partition, position in list(self._positions.items()):
            found = self._partitions[partition]
            records = found.read(position, max_records - len(result))
            result += records
            if len(result) < max_records:
                self._positions[partition] = max(position, found.stable)
            elif records:
                self._positions[partition] = records[-1].offset + 1
            if records:  # the partition is read last next time, so that a busy partition does not starve the others
                self._positions[partition] = self._positions.pop(partition)
        return result

    def _check_open(self) -> None:
        if self._closed:
            raise LogClosed("read", "the reader was closed")
