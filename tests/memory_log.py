"""`MemoryLog`: a `PartitionLog` in memory. The test controls the events that happen by chance in a real log.

As in Kafka, a claim takes an offset, a failed append may leave a gap, records after an unfinished append are not
readable, and the cleaner leaves gaps. Only `MemoryWriter.append` and `MemoryReader.poll` wait. Any thread may call any
method.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter

from offsetmgr.core.clock import BrokersClock, boottime
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.manager.log.base import (
    AppendOutcome,
    AppendRejected,
    DeletedRecords,
    Fenced,
    LogClosed,
    LogRecord,
    OutcomeUnknown,
    TooLarge,
    partitions_of,
    shard_group_count,
)
from offsetmgr.records.base import EncodedRecord


@dataclass
class StoredPartition:
    """The readable records of a partition, and the records of the append in flight (``open``)."""

    next: int = 0
    records: list[LogRecord] = field(default_factory=list)
    open: list[LogRecord] = field(default_factory=list)
    old_tombstones: set[int] = field(default_factory=set)

    @property
    def stable(self) -> int:
        """The last stable offset."""
        return self.open[0].offset if self.open else self.next

    def begin(self, partition: int, records: Sequence[EncodedRecord]) -> int:
        """Begins an append. Returns the offset of its last record."""
        for key, value in records:
            self.open.append(LogRecord(partition, self.next, key, value))
            self.next += 1
        return self.next - 1

    def read(self, position: int, max_records: int) -> list[LogRecord]:
        first = bisect_left(self.records, position, key=attrgetter("offset"))
        return self.records[first : first + max_records]


class MemoryReader:
    """Implements `offsetmgr.manager.log.base.LogReader`."""

    invalid_keys: Mapping[int, AbstractSet[bytes]] = {}
    """Only owners write to a log in memory."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
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
        reached = dict(starts)
        for partition, end in ends.items():
            if stopped is not None and stopped():
                break
            with self._reading():
                found = self._log._partitions[partition]
                assert found.stable >= end
                for record in found.read(starts[partition], end - starts[partition]):
                    if record.offset >= end:
                        break
                    newest[partition][record.key] = record.value
            reached[partition] = max(end, starts[partition])
            if progress is not None:
                progress(reached[partition] - starts[partition])
        return reached

    def follow(self, starts: Mapping[int, int]) -> None:
        with self._log._changed:
            self._positions = dict(starts)

    def poll(self, max_records: int, timeout_s: float) -> Sequence[LogRecord]:
        deadline = time.monotonic() + timeout_s
        while True:
            with self._reading():
                records = self._take(max_records)
                left = deadline - time.monotonic()
                if records or left <= 0:
                    return records
                self._log._changed.wait(left)

    def position(self, partition: int) -> int:
        with self._log._changed:
            return self._positions[partition]

    def close(self) -> None:
        """Ends a `poll` of another thread at once, with `LogClosed`."""
        with self._log._changed:
            self._closed = True
            self._log._changed.notify_all()

    def _take(self, max_records: int) -> list[LogRecord]:
        result: list[LogRecord] = []
        for partition, position in () if self._log.frozen else list(self._positions.items()):
            if position < self._log._starts[partition]:
                self._log.deleted.note_missing(partition, self._log._starts[partition])
            found = self._log._partitions[partition]
            records = found.read(position, max_records - len(result))
            result += records
            if len(result) < max_records:
                self._positions[partition] = max(position, found.stable)
            elif records:
                self._positions[partition] = records[-1].offset + 1
            if records:  # the partition is read last next time, so that a busy partition does not starve the others
                self._positions[partition] = self._positions.pop(partition)
        return result

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._log._reading():
            if self._closed:
                raise LogClosed("read", "the reader was closed")
            yield


class Failure(Enum):
    """The kinds of failures of an append."""

    NOT_WRITTEN = "aborted and reported to the writer: AppendRejected"
    UNKNOWN_NOT_WRITTEN = "aborted without a report to the writer: OutcomeUnknown"
    UNKNOWN_WRITTEN = "written without a report to the writer: OutcomeUnknown"
    UNKNOWN_OPEN = "unfinished until the next claim, which aborts it: OutcomeUnknown"
    UNKNOWN_OPEN_WRITTEN = "unfinished until the next claim, which completes it: OutcomeUnknown"


class MemoryLog:
    """A log in memory.

    While ``hold`` is True, appends become readable and are acknowledged only when `advance_high_watermark` is called.
    While ``frozen`` is True, no reader follows the log.
    ``max_batch_bytes`` limits the size of an append to one partition.
    """

    def __init__(self, partitions: int, *, max_batch_bytes: int = 1 << 20) -> None:
        self.partitions = partitions
        self.hold = False
        self.frozen = False
        self.max_batch_bytes = max_batch_bytes
        self._partitions = [StoredPartition() for _ in range(partitions)]
        self._shard_groups = [_ShardGroup() for _ in range(shard_group_count(partitions))]
        self._read_failures: deque[OffsetMgrError] = deque()
        self._generation = 1
        self._changed = threading.Condition(threading.Lock())
        self._starts = [0] * partitions
        self.clock = BrokersClock()
        self.deleted = DeletedRecords()

    # --- PartitionLog -------------------------------------------------------------------------------

    def writer(self, shard_group: int) -> MemoryWriter:
        return MemoryWriter(self, shard_group)

    def reader(self) -> MemoryReader:
        return MemoryReader(self)

    def generation(self, timeout_s: float) -> str:
        with self._changed:
            return str(self._generation)

    def start_offsets(self, partitions: Sequence[int], timeout_s: float) -> Mapping[int, int]:
        with self._reading():
            return {partition: self._starts[partition] for partition in partitions}

    def end_offsets(self, partitions: Sequence[int], timeout_s: float) -> Mapping[int, int]:
        with self._reading():
            return {partition: self._partitions[partition].stable for partition in partitions}

    def close(self) -> None:
        """Does nothing, so that the log can be used again."""

    # --- controls ------------------------------------------------------------------------------------

    def advance_high_watermark(self) -> int:
        """Completes the waiting appends. Returns their number."""
        with self._changed:
            waiting = [one for one in self._shard_groups if one.unfinished is not None and one.unfinished.waiting]
            for shard_group in waiting:
                self._end(shard_group, written=True)
            return len(waiting)

    def fail_next_append(self, shard_group: int, failure: Failure) -> None:
        """Makes the next append of the shard group fail. After several calls, the failures apply to the next appends
        in the order of the calls."""
        with self._changed:
            self._shard_groups[shard_group].failures.append(failure)

    def fail_next_claim(self, shard_group: int, error: OffsetMgrError) -> None:
        """Makes the next claim of the shard group raise ``error`` and claim nothing."""
        with self._changed:
            self._shard_groups[shard_group].claim_failures.append(error)

    def fail_next_read(self, error: OffsetMgrError) -> None:
        """Makes the next request for offsets, `load` or `poll` raise ``error``."""
        with self._changed:
            self._read_failures.append(error)
            self._changed.notify_all()

    def compact(self, partition: int) -> None:
        """Runs Kafka's log cleaner once. The newest record of each key stays; a tombstone stays only until the next
        run."""
        with self._changed:
            found = self._partitions[partition]
            newest = {record.key: record.offset for record in found.records}
            kept = [r for r in found.records if newest[r.key] == r.offset and r.offset not in found.old_tombstones]
            found.old_tombstones = {record.offset for record in kept if record.value is None}
            found.records = kept

    def delete_records(self, partition: int) -> None:
        """Deletes all records of a partition, as retention does."""
        with self._changed:
            found = self._partitions[partition]
            found.records, self._starts[partition] = [], found.next

    def recreate(self) -> None:
        """Deletes the topic and recreates it empty. Writers can continue; an unfinished append has an unknown
        outcome."""
        with self._changed:
            self._generation += 1
            self._partitions[:] = [StoredPartition() for _ in self._partitions]
            for shard_group in self._shard_groups:
                if shard_group.unfinished is not None:
                    shard_group.unfinished.error = OutcomeUnknown("append", "the topic was deleted")
                    self._end(shard_group, written=False)
            self._changed.notify_all()

    def records(self, partition: int) -> list[LogRecord]:
        """Returns all readable records of a partition."""
        with self._changed:
            return list(self._partitions[partition].records)

    def unfinished(self, shard_group: int) -> bool:
        """Returns whether an append of the shard group is in flight."""
        with self._changed:
            return self._shard_groups[shard_group].unfinished is not None

    # --- for writers and readers, under the lock -----------------------------------------------------

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self._changed:
            if self._read_failures:
                raise self._read_failures.popleft()
            yield

    def _end(self, shard_group: _ShardGroup, *, written: bool) -> None:
        """Ends the unfinished append: its records become readable, or are dropped."""
        append, shard_group.unfinished = shard_group.unfinished, None
        assert append is not None
        for partition in append.offsets:
            found = self._partitions[partition]
            if written:
                found.records += found.open
            found.open = []
        append.ended.set_result(None)
        self._changed.notify_all()


@dataclass(eq=False)
class _Append:
    """An append in flight. ``offsets`` are the offsets of its last records."""

    offsets: Mapping[int, int]
    error: OffsetMgrError | None = None
    ended: concurrent.futures.Future[None] = field(default_factory=concurrent.futures.Future)
    completed_by_claim: bool = False

    @property
    def waiting(self) -> bool:
        """Whether the append waits for `MemoryLog.advance_high_watermark`."""
        return self.error is None and not self.ended.done()


@dataclass(eq=False)
class _ShardGroup:
    epoch: int = 0
    unfinished: _Append | None = None
    failures: deque[Failure] = field(default_factory=deque)
    claim_failures: deque[OffsetMgrError] = field(default_factory=deque)


class MemoryWriter:
    """Implements `offsetmgr.manager.log.base.ShardGroupWriter`."""

    def __init__(self, log: MemoryLog, shard_group: int) -> None:
        self._log = log
        self._shard_group = log._shard_groups[shard_group]
        self._partitions = partitions_of(shard_group, log.partitions)
        self._epoch: int | None = None
        self._needs_claim = True
        self._terminal_error: OffsetMgrError | None = None

    async def claim(self, timeout_s: float) -> Mapping[int, int]:
        if self._terminal_error is not None:
            raise self._terminal_error
        log, shard_group = self._log, self._shard_group
        with log._changed:
            if shard_group.claim_failures:
                raise shard_group.claim_failures.popleft()
            self._check_epoch("claim")
            self._epoch = shard_group.epoch = shard_group.epoch + 1
            self._needs_claim = False
            if (append := shard_group.unfinished) is not None:
                append.error = Fenced("append", "another writer has claimed the shard group")
                log._end(shard_group, written=append.completed_by_claim)
            for partition in self._partitions:
                log._partitions[partition].next += 1
                log.clock.measure("memory", time.time_ns() // 1_000_000, boottime())
            log._changed.notify_all()
            return {partition: log._partitions[partition].next for partition in self._partitions}

    @property
    def claimed(self) -> bool:
        return not self._needs_claim and self._terminal_error is None

    async def complete_claim(self, timeout_s: float) -> Mapping[int, AppendOutcome]:
        return {}

    async def append(
        self, batches: Mapping[int, Sequence[EncodedRecord]], timeout_s: float
    ) -> Mapping[int, AppendOutcome]:
        """After the timeout the append is aborted, and its error is `AppendRejected`."""
        if self._terminal_error is not None:
            raise self._terminal_error
        assert self._epoch is not None, "append before claim"
        if self._needs_claim:
            return dict.fromkeys(batches, OutcomeUnknown("append", "the outcome of an earlier append is unknown"))
        too_large = self._too_large(batches)
        if len(too_large) == len(batches):
            return too_large
        try:
            append = self._begin({p: records for p, records in batches.items() if p not in too_large})
        except Fenced as error:
            return dict.fromkeys(batches, error)
        if append.waiting:
            await asyncio.wait([asyncio.wrap_future(append.ended)], timeout=timeout_s)
        with self._log._changed:
            if append.waiting:
                append.error = AppendRejected("append", "the replicas did not confirm it within the timeout")
                self._log._end(self._shard_group, written=False)
        if isinstance(append.error, Fenced):
            self._terminal_error = append.error
        self._needs_claim = isinstance(append.error, OutcomeUnknown)
        outcomes = append.offsets if append.error is None else dict.fromkeys(append.offsets, append.error)
        return {**too_large, **outcomes}

    def close(self) -> None:
        """An unfinished append stays unfinished until the next claim."""
        self._terminal_error = self._terminal_error or LogClosed("append", "the writer was closed")

    def _begin(self, batches: Mapping[int, Sequence[EncodedRecord]]) -> _Append:
        """Begins an append, and ends it at once or leaves it unfinished, according to the next failure and
        `MemoryLog.hold`. Raises `Fenced`."""
        log, shard_group = self._log, self._shard_group
        with log._changed:
            assert all(partition in self._partitions and records for partition, records in batches.items())
            failure = shard_group.failures.popleft() if shard_group.failures else None
            self._check_epoch("append")
            assert shard_group.unfinished is None, "the writer's previous append has not ended"
            append = shard_group.unfinished = _Append(
                {
                    partition: log._partitions[partition].begin(partition, records)
                    for partition, records in batches.items()
                }
            )
            if failure is not None:
                kind = AppendRejected if failure is Failure.NOT_WRITTEN else OutcomeUnknown
                append.error = kind("append", "failure injected by the test")
            if failure in (Failure.UNKNOWN_OPEN, Failure.UNKNOWN_OPEN_WRITTEN):
                append.completed_by_claim = failure is Failure.UNKNOWN_OPEN_WRITTEN
            elif failure is not None or not log.hold:
                log._end(shard_group, written=failure in (None, Failure.UNKNOWN_WRITTEN))
            return append

    def _too_large(self, batches: Mapping[int, Sequence[EncodedRecord]]) -> dict[int, AppendOutcome]:
        """Returns an error for each batch over the size limit."""
        limit, errors = self._log.max_batch_bytes, dict[int, AppendOutcome]()
        for partition, records in batches.items():
            if (size := sum(len(key) + len(value or b"") for key, value in records)) > limit:
                errors[partition] = TooLarge(f"partition {partition}", f"{size} bytes, over {limit}")
        return errors

    def _check_epoch(self, what: str) -> None:
        """Raises `Fenced` and makes the writer unusable if another writer has claimed the shard group since."""
        if self._epoch not in (None, self._shard_group.epoch):
            self._terminal_error = Fenced(what, "another writer has claimed the shard group")
            raise self._terminal_error
