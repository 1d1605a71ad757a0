"""`RecordPeeker`: reads the record at an offset of each partition. It joins no group and commits nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.closeable import Closeable
from offsetmgr.core.errors import CorruptData, LimitExceeded, OffsetMgrError, OffsetOutOfRange, UnknownVersion
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.plurals import count_of
from offsetmgr.kafka.client.client import Client, ClientThread
from offsetmgr.kafka.client.connection import Security
from offsetmgr.kafka.client.fetch import FetchLimits
from offsetmgr.kafka.client.log_reader import PartitionLogReader, ReadResult
from offsetmgr.segments.batch_reader import Record, batches

_FETCH_BYTES: Final = 64 * 1024
_MAX_FETCH_BYTES: Final = 64 * 1024 * 1024
"""Brokers before 0.10.1 return no complete batch if the first batch is larger than the limit of the request."""


@dataclass(frozen=True, slots=True)
class PeekedRecord:
    """The first record at or after an offset. ``record`` is None if there is no such record before ``log_end``.

    ``markers`` is the number of transaction markers between the offset and the record. ``transactional`` is True if the
    record belongs to a transaction, which may be open or aborted. ``log_end`` is the high watermark: consumers get only
    records before it, and the log may have records after it that are not replicated yet.
    """

    record: Record | None
    log_end: int
    markers: int = 0
    transactional: bool = False

    def note(self, offset: int) -> str | None:
        """Returns a text about the gap between ``offset`` and the record, or the reason why there is no record; None if
        there is nothing to say."""
        return "; ".join(self._notes(offset)) or None

    def _notes(self, offset: int) -> Iterator[str]:
        record, end = self.record, self.log_end
        if record is None and offset < end:
            yield f"no record from {offset} up to {end} (high watermark)"
        elif record is None:
            reason = "no record yet" if offset == end else "not readable yet"
            yield f"{reason}: consumers may read up to {end} (high watermark)"
        if self.markers:
            yield f"{count_of(self.markers, 'transaction marker')} skipped"
        if record is None:
            return
        if gap := record.offset - offset - self.markers:
            yield f"{count_of(gap, 'offset')} without a record before {record.offset}"
        elif self.markers:
            yield f"record {record.offset}"
        if self.transactional:
            yield "part of a transaction, which may be open or aborted"
        if record.value is None:
            yield "tombstone"


class NextRecord(NamedTuple):
    """A committed offset, and the record that a consumer gets there next; ``record`` is None if there is none.
    ``note`` describes a gap between the offset and the record, or gives the reason why there is no record. ``error`` is
    set if the log could not be read; an offset outside its log is no error."""

    group: str
    partition: TopicPartition
    offset: int
    record: Record | None
    note: str | None
    error: OffsetMgrError | None = None


class _Position(NamedTuple):
    """The next offset to read, and the markers that were skipped so far."""

    offset: int
    markers: int = 0


class RecordPeeker(Closeable):
    """Reads records of the cluster at ``bootstrap``. Construction performs no I/O. Works with brokers from 0.8.2 on."""

    def __init__(self, bootstrap: str, config: ConnectionConfig) -> None:
        """Raises `UnsupportedOperation` for logins that offsetmgr's client does not support, and `ConfigError`."""
        client = Client(bootstrap, Security.of(config.kafka))
        self._logs = PartitionLogReader(client)
        self._thread = ClientThread(client, config.timeout_ms / 1000)

    def peek(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, PeekedRecord | OffsetMgrError]:
        """Returns the first record at or after the offset of each partition, or the error of the partition. The error
        of an offset outside the log is `OffsetOutOfRange` with the range of the log."""
        found: dict[TopicPartition, PeekedRecord | OffsetMgrError] = {}
        pending = {tp: _Position(offset) for tp, offset in offsets.items()}
        limit = _FETCH_BYTES
        while pending:
            asked, limits = {tp: position.offset for tp, position in pending.items()}, FetchLimits(limit)
            fetch = partial(self._logs.fetch, asked, limits, "raise")
            reads = self._thread.run(fetch)
            following: dict[TopicPartition, _Position] = {}
            for tp, position in pending.items():
                outcome = _first_record(reads[tp], position)
                if isinstance(outcome, _Position):
                    following[tp] = outcome
                else:
                    found[tp] = outcome
            stuck = [tp for tp, position in following.items() if position.offset == pending[tp].offset]
            if stuck and limit >= _MAX_FETCH_BYTES:
                for tp in stuck:
                    del following[tp]
                    found[tp] = LimitExceeded(str(tp), f"its batch is larger than {_MAX_FETCH_BYTES:,} bytes")
            limit = min(limit * 8, _MAX_FETCH_BYTES) if stuck else limit
            pending = following
        return found

    def next_records(self, group: str, offsets: Mapping[TopicPartition, int]) -> Iterator[NextRecord]:
        """Yields the next record of the group for each of its offsets, sorted by partition."""
        outcomes = self.peek(offsets)
        for tp, offset in sorted(offsets.items()):
            outcome = outcomes[tp]
            if isinstance(outcome, PeekedRecord):
                yield NextRecord(group, tp, offset, outcome.record, outcome.note(offset))
            elif isinstance(outcome, OffsetOutOfRange) and (log := outcome.log_range) is not None:
                below = offset < log.start
                note = (
                    f"removed: the log begins at {log.start}" if below else f"beyond the log, which ends at {log.end}"
                )
                yield NextRecord(group, tp, offset, None, note)
            else:
                error = None if isinstance(outcome, OffsetOutOfRange) else outcome
                yield NextRecord(group, tp, offset, None, outcome.why or str(outcome), error)

    def close(self) -> None:
        """Closes the connections."""
        self._thread.close()


def _first_record(read: ReadResult | OffsetMgrError, position: _Position) -> PeekedRecord | OffsetMgrError | _Position:
    """Returns the first record of a slice from the position on, or the position at which the next slice begins."""
    if isinstance(read, OffsetMgrError):
        return read
    at, markers = position
    end = read.slice.high_watermark
    try:
        for batch in batches(read.slice.data, at):
            markers += batch.control
            if batch.records:
                return PeekedRecord(batch.records[0], end, markers, batch.transactional)
            at = max(at, batch.last_offset + 1)
    except (CorruptData, UnknownVersion, LimitExceeded) as error:
        return error
    return PeekedRecord(None, end, markers) if at >= end else _Position(at, markers)
