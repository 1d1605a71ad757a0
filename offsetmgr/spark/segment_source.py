"""The Spark data source ``format("offsetmgr-segments")``: reads the offsets topic of a stopped cluster from its log
directories.

The rows have the same columns as the rows of ``offsetmgr-log`` (`log_rows.SCHEMA`). There is one row for each record,
and one task for each segment. The source omits the records of aborted transactions and of transactions without an end.
To find these transactions, the source reads the headers of all entries when Spark plans the query. If a segment is
damaged, a row's ``error`` names the unreadable part. If partitions or segments are missing, a row's ``error`` has the
text that ``log offsets`` prints.
"""

from __future__ import annotations

import mmap
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from operator import itemgetter
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa

from offsetmgr.core.errors import FileFailure, OffsetMgrError, UsageError
from offsetmgr.groups.disk_layout import CONSUMER_OFFSETS, find_topic_directories, missing_directories
from offsetmgr.segments.batch_reader import (
    CRC_FROM,
    LEGACY_MIN_BYTES,
    LOG_HEADER,
    LOG_OVERHEAD,
    MAGIC_AT,
    TRANSACTIONAL,
)
from offsetmgr.segments.batch_reader import RecordBatch as Entries
from offsetmgr.segments.entries import LogEntry
from offsetmgr.segments.partition import segments_in
from offsetmgr.segments.segment import Segment
from offsetmgr.segments.transactions import Transactions
from offsetmgr.spark import source_options
from offsetmgr.spark.data_source_api import InputPartition, TableReader, TableSource
from offsetmgr.spark.log_rows import SCHEMA, LogRecords, decode_rows, row_of_error

NAME: Final = "offsetmgr-segments"


class SkippedTransactions(NamedTuple):
    """The transactions whose records are omitted, by producer id: the first and last offsets of aborted transactions,
    and the first offset of an open transaction."""

    aborted: Mapping[int, Sequence[tuple[int, int]]]
    open: Mapping[int, int]

    def is_visible(self, batch: Entries) -> bool:
        """Returns whether the records of a batch are in the table."""
        if batch.control:
            return False
        if not batch.transactional or batch.producer_id is None:
            return True
        first = self.open.get(batch.producer_id)
        if first is not None and batch.base_offset >= first:
            return False
        aborted = self.aborted.get(batch.producer_id, ())
        at = bisect_right(aborted, batch.base_offset, key=itemgetter(0))
        return not at or aborted[at - 1][1] < batch.base_offset


class SegmentTask(InputPartition):
    """One task: reads a segment, up to the size that it had when the query was planned."""

    def __init__(self, partition: int, log: str, base_offset: int, size: int, skipped: SkippedTransactions) -> None:
        super().__init__(log)
        self.partition = partition
        self.log = log
        self.base_offset = base_offset
        self.size = size
        self.skipped = skipped


class GapTask(InputPartition):
    """One task: returns the error row of a missing part of the log."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class SegmentSourceReader(TableReader):
    """Plans the tasks on the driver and reads on the executors."""

    NAME = NAME
    OPTIONS = ("path", "topic", "group")

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        path = source_options.required(NAME, self._options, "path", "/var/lib/kafka")
        self._directories = source_options.listed(path)
        self._topic = self._options.get("topic", CONSUMER_OFFSETS)
        self._groups = source_options.groups(NAME, self._options)

    def partitions(self) -> Sequence[InputPartition]:
        """Raises `UsageError` if there is no such topic, or if a partition has two directories. Also raises
        `FileFailure`."""
        sources = find_topic_directories([Path(directory) for directory in self._directories], self._topic)
        tasks: list[InputPartition] = [GapTask(str(gap)) for gap in missing_directories(sources)]
        for number, directories in sorted(sources.partitions.items()):
            if len(directories) > 1:
                why = f"{directories[0]} and {directories[1]} are replicas of one partition"
                raise UsageError(
                    f"format({NAME!r})", why, "give only one of them; log offsets shows which replica is longer"
                )
            segments = [(segment, segment.size) for segment in segments_in(directories[0])]
            skipped = _skipped_transactions(segments)
            for segment, size in segments:
                if size:
                    tasks.append(SegmentTask(number, str(segment.log), segment.base_offset, size, skipped))
        return tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raises `FileFailure`."""
        if isinstance(partition, GapTask):
            yield row_of_error(None, partition.why)
        if not isinstance(partition, SegmentTask):  # Spark's placeholder for "nothing to read"
            return
        damage: list[str] = []
        records = (_records_of(partition.partition, batch) for batch in self._batches(partition, damage))
        yield from decode_rows(records, self._groups)
        for why in damage:
            yield row_of_error(partition.partition, why)

    @staticmethod
    def _batches(task: SegmentTask, damage: list[str]) -> Iterator[Entries]:
        """Yields a segment's batches without the skipped transactions. If the segment is damaged, the batches end at
        the damage, and the error is appended to ``damage``."""
        segment = Segment(Path(task.log), task.base_offset)
        with segment.open_reader(end=task.size) as reader:
            try:
                for entry in reader:
                    batch = entry.batch()
                    if task.skipped.is_visible(batch):
                        yield batch
                if reader.incomplete_bytes:
                    damage.append(f"{task.log}: its last {reader.incomplete_bytes} bytes are an incomplete entry")
            except FileFailure:
                raise
            except OSError as error:
                raise FileFailure(f"file {task.log}", error.strerror or str(error)) from error
            except OffsetMgrError as error:
                damage.append(f"{task.log}: the remaining records are not read: {error}")


class SegmentSource(TableSource):
    """The data source ``offsetmgr-segments``.

    The path is a list, separated by commas, of brokers' log directories or partitions' directories. Every executor must
    be able to read these directories. The options are ``topic``, by default ``__consumer_offsets``, and ``group``,
    names separated by commas.
    """

    SCHEMA = SCHEMA
    READER = SegmentSourceReader


def _records_of(partition: int, batch: Entries) -> LogRecords:
    records = batch.records
    return (
        repeat(partition, len(records)),
        [record.offset for record in records],
        [record.timestamp for record in records],
        [record.key for record in records],
        [record.value for record in records],
    )


def _skipped_transactions(segments: Sequence[tuple[Segment, int]]) -> SkippedTransactions:
    """Finds the skipped transactions from the headers of a partition's entries. If a segment is damaged, the search
    stops reading it at the damage, as the segment's task does."""
    found = Transactions()
    for segment, size in segments:
        if size:
            try:
                found.add_all(_transactional_entries(segment, size))
            except OffsetMgrError:
                continue  # the segment's task reports the damage
    aborted: dict[int, list[tuple[int, int]]] = {}
    for one in found.aborted:
        aborted.setdefault(one.producer_id, []).append((one.first_offset, one.last_offset))
    return SkippedTransactions(aborted, found.open)


def _transactional_entries(segment: Segment, size: int) -> Iterator[LogEntry]:
    """Yields the entries that belong to a transaction, including markers."""
    with segment.open() as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as data:
        at = 0
        while at + LOG_OVERHEAD + LEGACY_MIN_BYTES <= size:
            offset, length = LOG_HEADER.unpack_from(data, at)
            end = at + LOG_OVERHEAD + length
            if length < LEGACY_MIN_BYTES or end > size:
                return
            if data[at + MAGIC_AT] == 2 and data[at + CRC_FROM + 1] & TRANSACTIONAL:
                yield LogEntry(at, offset, data[at:end])
            at = end
