"""`MemoryLog`: a `PartitionLog` in memory, for tests and simulations. The caller controls its events.

The log behaves like Kafka as far as a reader can observe: a claim takes an offset, a failed append may leave a gap,
records after an unfinished append are not readable, and the cleaner leaves gaps. The caller triggers the
events that happen by chance in a real log: with `hold` (appends wait for `advance_high_watermark`), `fail_next_append`,
`compact` and `recreate`.

It starts no threads. Only `MemoryWriter.append` and `MemoryReader.poll` wait. Any thread may call any method.
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
from typing import Final

from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.manager.log.base import (
    AppendOutcome,
    AppendRejected,
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
    """The readable records of a partition, and the records of the append in flight (``open``). At most one append is in
    flight, since a partition belongs to one shard group with one writer. Offsets are assigned as Kafka does."""

    start: int = 0
    next: int = 0
    records: list[LogRecord] = field(default_factory=list)
    open: list[LogRecord] = field(default_factory=list)
    old_tombstones: set[int] = field(default_factory=set)

    @property
    def stable(self) -> int:
        """The last stable offset."""
        return self.open[0].offset if self.open else self.next

    def begin(self, partition: int, records: Sequence[EncodedRecord], now: int) -> int:
        """Begins an append at the time ``now`` (ms since 1970). Returns the offset of its last record."""
        for key, value in records:
            self.open.append(LogRecord(partition, self.next, key, value, now))
            self.next += 1
        return self.next - 1

    def end(self, *, written: bool) -> None:
        """Ends the append: its records become readable if ``written`` is True, and are dropped otherwise."""
        if written:
            self.records += self.open
        self.open = []

    def claim(self) -> int:
        """Appends a claim, which readers skip. Returns the offset after the claim."""
        self.next += 1
        return self.next

    def read(self, position: int, max_records: int) -> list[LogRecord]:
        """Returns at most ``max_records`` records from ``position`` on."""
        first = bisect_left(self.records, position, key=attrgetter("offset"))
        return self.records[first : first + max_records]

    def compact(self, below: int | None) -> None:
        """See `offsetmgr.manager.log.memory.MemoryLog.compact`."""
        cleaned = [r for r in self.records if below is None or r.offset < below]
        rest = self.records[len(cleaned) :]
        newest = {record.key: record.offset for record in cleaned}
        kept = [r for r in cleaned if newest[r.key] == r.offset and r.offset not in self.old_tombstones]
        self.old_tombstones = {record.offset for record in kept if record.value is None}
        self.records = kept + rest


class MemoryReader:
    """Implements `offsetmgr.manager.log.base.LogReader`."""

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
        """See `LogReader.load`."""
        reached = dict(starts)
        for partition, end in ends.items():
            if stopped is not None and stopped():
                break
            with self._reading():
                found = self._log._partitions[partition]
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
        with self._log._changed:
            self._positions = dict(starts)

    def poll(self, max_records: int, timeout_s: float) -> Sequence[LogRecord]:
        """See `LogReader.poll`."""
        deadline = time.monotonic() + timeout_s
        while True:
            with self._reading():
                records = self._take(max_records)
                left = deadline - time.monotonic()
                if records or left <= 0:
                    return records
                self._log._changed.wait(left)

    def position(self, partition: int) -> int:
        """See `LogReader.position`."""
        with self._log._changed:
            return self._positions[partition]

    def close(self) -> None:
        """Ends a `poll` of another thread at once, with `LogClosed`."""
        with self._log._changed:
            self._closed = True
            self._log._changed.notify_all()

    def _take(self, max_records: int) -> list[LogRecord]:
        result: list[LogRecord] = []
        for partition, position in list(self._positions.items()):
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


_NO_CLAIM: Final = -1
"""The epoch of a writer that has not claimed its shard group."""
_RECORD_OVERHEAD: Final = 22
"""The approximate size that Kafka's format adds to the key and value of a record, in bytes."""


class Failure(Enum):
    """The kinds of failures of an append."""

    NOT_WRITTEN = "aborted and reported to the writer: AppendRejected"
    UNKNOWN_NOT_WRITTEN = "aborted without a report to the writer: OutcomeUnknown"
    UNKNOWN_WRITTEN = "written without a report to the writer: OutcomeUnknown"
    UNKNOWN_OPEN = "unfinished until the next claim, which aborts it: OutcomeUnknown"
    UNKNOWN_OPEN_WRITTEN = "unfinished until the next claim, which completes it: OutcomeUnknown"
    FENCED = "another manager has claimed the shard group: Fenced"


class MemoryLog:
    """A log in memory.

    If ``hold`` is True, appends become readable and are acknowledged only when `advance_high_watermark` is called.
    Otherwise they become readable and are acknowledged at once. A test may change ``hold`` at any time.
    ``max_batch_bytes`` limits the size of an append to one partition.
    """

    def __init__(self, partitions: int, *, max_batch_bytes: int = 1 << 20) -> None:
        self.hold = False
        self.max_batch_bytes = max_batch_bytes
        self._clock = SystemClock()
        self._partitions = [StoredPartition() for _ in range(partitions)]
        self._shard_groups = [_ShardGroup() for _ in range(shard_group_count(partitions))]
        self._read_failures: deque[OffsetMgrError] = deque()
        self._generation = 1
        self._changed = threading.Condition(threading.Lock())

    # --- PartitionLog -------------------------------------------------------------------------------

    @property
    def partitions(self) -> int:
        return len(self._partitions)

    def writer(self, shard_group: int) -> MemoryWriter:
        """See `PartitionLog.writer`."""
        if shard_group not in range(len(self._shard_groups)):
            raise ValueError(f"no shard group {shard_group}")
        return MemoryWriter(self, shard_group)

    def reader(self) -> MemoryReader:
        """See `PartitionLog.reader`."""
        return MemoryReader(self)

    def generation(self, timeout_s: float) -> str:  # noqa: ARG002 - at once
        """See `PartitionLog.generation`."""
        with self._changed:
            return str(self._generation)

    def start_offsets(self, partitions: Sequence[int], timeout_s: float) -> Mapping[int, int]:  # noqa: ARG002 - at once
        """See `PartitionLog.start_offsets`."""
        with self._reading():
            return {partition: self._partitions[partition].start for partition in partitions}

    def end_offsets(self, partitions: Sequence[int], timeout_s: float) -> Mapping[int, int]:  # noqa: ARG002 - at once
        """See `PartitionLog.end_offsets`."""
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
        """Makes the next append of the shard group fail with ``failure``. After several calls, the failures apply to
        the next appends in the order of the calls."""
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

    def compact(self, partition: int, below: int | None = None) -> None:
        """Runs Kafka's log cleaner once over the stable records below an offset, as if the rest were the active
        segment. The newest record of each key stays; a tombstone stays only until the next run. The offsets of the
        records do not change."""
        with self._changed:
            self._partitions[partition].compact(below)

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

    def _fence(self, shard_group: _ShardGroup) -> None:
        shard_group.epoch += 1
        if shard_group.unfinished is not None:
            shard_group.unfinished.error = Fenced("append", "another writer has claimed the shard group")
            self._end(shard_group, written=shard_group.unfinished.completed_by_claim)

    def _end(self, shard_group: _ShardGroup, *, written: bool) -> None:
        """Ends the unfinished append."""
        append, shard_group.unfinished = shard_group.unfinished, None
        assert append is not None
        for partition in append.offsets:
            self._partitions[partition].end(written=written)
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
    """The `ShardGroupWriter` of a `MemoryLog`."""

    def __init__(self, log: MemoryLog, shard_group: int) -> None:
        self._log = log
        self._shard_group = log._shard_groups[shard_group]
        self._partitions = partitions_of(shard_group, log.partitions)
        self._epoch = _NO_CLAIM
        self._needs_claim = True
        self._terminal_error: OffsetMgrError | None = None

    async def claim(self, timeout_s: float) -> Mapping[int, int]:  # noqa: ARG002 - at once
        """See `ShardGroupWriter.claim`."""
        if self._terminal_error is not None:
            raise self._terminal_error
        with self._log._changed:
            if self._shard_group.claim_failures:
                raise self._shard_group.claim_failures.popleft()
            if self._epoch not in (_NO_CLAIM, self._shard_group.epoch):
                raise self._fenced("claim")
            self._log._fence(self._shard_group)
            self._epoch, self._needs_claim = self._shard_group.epoch, False
            self._log._changed.notify_all()
            return {partition: self._log._partitions[partition].claim() for partition in self._partitions}

    @property
    def claimed(self) -> bool:
        """See `ShardGroupWriter.claimed`."""
        return not self._needs_claim and self._terminal_error is None

    async def complete_claim(self, timeout_s: float) -> Mapping[int, AppendOutcome]:  # noqa: ARG002 - at once
        """See `ShardGroupWriter.complete_claim`."""
        return {}

    async def append(
        self, batches: Mapping[int, Sequence[EncodedRecord]], timeout_s: float
    ) -> Mapping[int, AppendOutcome]:
        """See `ShardGroupWriter.append`. After the timeout the append is aborted, and its error is
        `AppendRejected`."""
        if self._terminal_error is not None:
            raise self._terminal_error
        if self._epoch == _NO_CLAIM:
            raise ValueError("append before claim")
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
        return {
            **too_large,
            **(append.offsets if append.error is None else dict.fromkeys(append.offsets, append.error)),
        }

    def close(self) -> None:
        """Works as `ShardGroupWriter.close`. An unfinished append stays unfinished until the next claim."""
        self._terminal_error = self._terminal_error or LogClosed("append", "the writer was closed")

    def _begin(self, batches: Mapping[int, Sequence[EncodedRecord]]) -> _Append:
        """Begins an append, and ends it at once or leaves it unfinished, according to the next failure and
        `MemoryLog.hold`. Raises `Fenced`."""
        log, shard_group = self._log, self._shard_group
        with log._changed:
            for partition, records in batches.items():
                if partition not in self._partitions or not records:
                    raise ValueError(f"partition {partition}: not of the shard group, or nothing to append")
            failure = shard_group.failures.popleft() if shard_group.failures else None
            if failure is Failure.FENCED:
                log._fence(shard_group)
            if self._epoch != shard_group.epoch:
                raise self._fenced("append")
            if shard_group.unfinished is not None:
                raise ValueError("the writer's previous append has not ended")
            now = log._clock.now_ms()
            append = shard_group.unfinished = _Append(
                {p: log._partitions[p].begin(p, records, now) for p, records in batches.items()}
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
            size = sum(len(key) + len(value or b"") + _RECORD_OVERHEAD for key, value in records)
            if size > limit:
                errors[partition] = TooLarge(f"partition {partition}", f"{size} bytes, over {limit}")
        return errors

    def _fenced(self, what: str) -> Fenced:
        """Makes the writer unusable."""
        self._terminal_error = error = Fenced(what, "another writer has claimed the shard group")
        return error
