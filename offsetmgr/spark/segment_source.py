"""``format("offsetmgr-segments")``: the offsets topic of a stopped cluster, from its log dirs, as a table.

The rows are those of ``offsetmgr-log`` (`log_rows.SCHEMA`): one per record, one task per segment. Records of aborted
transactions and of transactions without an end are left out; for that the headers of all entries are read when the
query is planned. Damage is a row with its ``error``, which names the unreadable part of the segment; so are missing
parts, as in ``log offsets``.
"""

from __future__ import annotations

import mmap
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql.types import StructType

from offsetmgr.core.errors import FileFailure, OffsetMgrError, UsageError
from offsetmgr.groups.disk_layout import CONSUMER_OFFSETS, find_topic_directories, missing_directories
from offsetmgr.segments.batch_reader import CRC_FROM, LEGACY_SMALLEST, LOG_HEADER, LOG_OVERHEAD, MAGIC_AT, TRANSACTIONAL
from offsetmgr.segments.batch_reader import RecordBatch as Entries
from offsetmgr.segments.entries import LogEntry
from offsetmgr.segments.partition import segments_in
from offsetmgr.segments.segment import Segment
from offsetmgr.segments.transactions import Transactions
from offsetmgr.spark import source_options
from offsetmgr.spark.data_source_api import DataSource, DataSourceReader, InputPartition
from offsetmgr.spark.log_rows import SCHEMA, RowDecoder, of_groups, row_of_error

NAME: Final = "offsetmgr-segments"
_KNOWN: Final = ("path", "topic", "group")
_A_BATCH: Final = 20_000


class UnsplittableError(NamedTuple):
    """Transactions whose records do not count, by producer: aborted ones (first and last offset), and the start of one
    without an end."""

    aborted: Mapping[int, Sequence[tuple[int, int]]]
    open: Mapping[int, int]

    def counts(self, batch: Entries) -> bool:
        """Whether its records do."""
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
    """One task: a segment, up to its size when the query was planned."""

    def __init__(self, partition: int, log: str, base_offset: int, size: int, uncounted: UnsplittableError) -> None:
        super().__init__(log)
        self.partition = partition
        self.log = log
        self.base_offset = base_offset
        self.size = size
        self.uncounted = uncounted


class GapTask(InputPartition):
    """One task: reports missing parts."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class SegmentSource(DataSource):
    """Options: the path, brokers' log dirs or partitions' directories, separated by commas, available on every machine;
    ``topic`` (``__consumer_offsets``); ``group``, names separated by commas."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        del schema
        return SegmentSourceReader(dict(self.options))


class SegmentSourceReader(DataSourceReader):
    """Plans on the driver, reads on the executors."""

    def __init__(self, options: Mapping[str, str]) -> None:
        given = source_options.checked(NAME, options, _KNOWN)
        self._directories = source_options.listed(source_options.required(NAME, given, "path", "/var/lib/kafka"))
        self._topic = given.get("topic", CONSUMER_OFFSETS)
        self._groups = source_options.groups(NAME, given)

    def partitions(self) -> Sequence[InputPartition]:
        """Raises `UsageError` if there is no such topic, or if a partition has two directories; `FileFailure`."""
        sources = find_topic_directories([Path(directory) for directory in self._directories], self._topic)
        tasks: list[InputPartition] = [GapTask(str(gap)) for gap in missing_directories(sources)]
        for number, directories in sorted(sources.partitions.items()):
            if len(directories) > 1:
                why = f"{directories[0]} and {directories[1]} are replicas of one partition"
                raise UsageError(f"format({NAME!r})", why, "name the one to read; log offsets shows which goes farther")
            segments = [(segment, segment.size) for segment in segments_in(directories[0])]
            uncounted = _uncounted(segments)
            for segment, size in segments:
                if size:
                    tasks.append(SegmentTask(number, str(segment.log), segment.base_offset, size, uncounted))
        return tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raises `FileFailure`."""
        if isinstance(partition, GapTask):
            yield row_of_error(None, partition.why)
        if not isinstance(partition, SegmentTask):  # Spark's placeholder for "nothing to read"
            return
        decoder, waiting = RowDecoder(), _Rows(partition.partition)
        for batch in self._batches(partition, waiting):
            for record in batch.records:
                waiting.add(record.offset, record.timestamp, record.key, record.value)
            if len(waiting.offsets) >= _A_BATCH:
                yield of_groups(waiting.decoded(decoder), self._groups)
                waiting.clear()
        if waiting.offsets:
            yield of_groups(waiting.decoded(decoder), self._groups)
        if waiting.damage is not None:
            yield row_of_error(partition.partition, waiting.damage)

    @staticmethod
    def _batches(task: SegmentTask, rows: _Rows) -> Iterator[Entries]:
        """The valid batches of a segment; ``rows`` receives the error that ends it early."""
        segment = Segment(Path(task.log), task.base_offset)
        with segment.walk(end=task.size) as walk:
            try:
                for entry in walk:
                    batch = entry.batch()
                    if task.uncounted.counts(batch):
                        yield batch
                if walk.left:
                    rows.damage = f"{task.log}: its last {walk.left} bytes are the beginning of an entry"
            except FileFailure:
                raise
            except OSError as error:
                raise FileFailure(f"file {task.log}", error.strerror or str(error)) from error
            except OffsetMgrError as error:
                rows.damage = f"{task.log}: read up to {error}"


class _Rows:
    """Collects records, column by column, and the error that ended the reading early."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.damage: str | None = None
        self.offsets: list[int] = []
        self.timestamps: list[int | None] = []
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []

    def add(self, offset: int, timestamp: int | None, key: bytes | None, value: bytes | None) -> None:
        self.offsets.append(offset)
        self.timestamps.append(timestamp)
        self.keys.append(key)
        self.values.append(value)

    def clear(self) -> None:
        for column in (self.offsets, self.timestamps, self.keys, self.values):
            column.clear()

    def decoded(self, decoder: RowDecoder) -> pa.RecordBatch:
        partitions = [self.partition] * len(self.offsets)
        return decoder.batch(partitions, self.offsets, self.timestamps, self.keys, self.values)


def _uncounted(segments: Sequence[tuple[Segment, int]]) -> UnsplittableError:
    """Reads the headers of a partition's entries. Damage ends a segment here, as it does when the segment is read."""
    found = Transactions()
    for segment, size in segments:
        if size:
            try:
                found.add_all(_of_transactions(segment, size))
            except OffsetMgrError:
                continue  # the read reports the damage
    aborted: dict[int, list[tuple[int, int]]] = {}
    for one in found.aborted:
        aborted.setdefault(one.producer_id, []).append((one.first_offset, one.last_offset))
    return UnsplittableError(aborted, found.open)


def _of_transactions(segment: Segment, size: int) -> Iterator[LogEntry]:
    """The entries that belong to transactions, or end one."""
    with segment.open() as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as data:
        at = 0
        while at + LOG_OVERHEAD + LEGACY_SMALLEST <= size:
            offset, length = LOG_HEADER.unpack_from(data, at)
            end = at + LOG_OVERHEAD + length
            if length < LEGACY_SMALLEST or end > size:
                return
            if data[at + MAGIC_AT] == 2 and data[at + CRC_FROM + 1] & TRANSACTIONAL:
                yield LogEntry(at, offset, data[at:end])
            at = end
