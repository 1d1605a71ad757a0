"""`OffsetReader`: decodes values of a shard's table for fetches, dumps and single reads. It changes nothing.

The reader decodes a value only when a caller needs it. The reader adds an unreadable value to the table's problems, and
never reports an unreadable value as absent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Final

from offsetmgr.core.errors import CorruptData, ErrorCode, UnknownVersion
from offsetmgr.manager.offset_table import OffsetTable
from offsetmgr.manager.packed_values import PackedValues
from offsetmgr.manager.results import FetchRequest, FetchResponse, PartitionOffset
from offsetmgr.records.base import OffsetKey, OffsetValue, RecordFormat

_NO_VALUES: Final = PackedValues()


class OffsetReader:
    """Reads one table."""

    def __init__(self, table: OffsetTable, format: RecordFormat) -> None:
        self._table = table
        self._format = format

    def fetch(self, request: FetchRequest) -> FetchResponse:
        """See `Shard.fetch`."""
        by_topic = self._table.topics(request.group)
        if request.topics is None:
            return FetchResponse(
                ErrorCode.NONE,
                [
                    self._topic(request.group, topic, values, list(values))
                    for topic, values in sorted(by_topic.items(), key=itemgetter(0))
                ],
            )
        return FetchResponse(
            ErrorCode.NONE,
            [
                self._topic(request.group, topic, by_topic.get(topic, _NO_VALUES), partitions)
                for topic, partitions in request.topics
            ],
        )

    def _topic(
        self, group: str, topic: str, values: PackedValues, partitions: Sequence[int]
    ) -> tuple[str, Sequence[PartitionOffset]]:
        read = self._format.read_offset
        results: list[PartitionOffset] = []
        for partition, raw in zip(partitions, values.get_many(partitions), strict=True):
            if raw is None:
                results.append((partition, -1, -1, "", ErrorCode.NONE))
                continue
            try:
                offset, epoch, metadata = read(raw)
                results.append((partition, offset, epoch, metadata, ErrorCode.NONE))
            except (CorruptData, UnknownVersion) as error:
                self._record_problem(group, topic, partition, error)
                results.append((partition, -1, -1, "", ErrorCode.UNKNOWN_SERVER_ERROR))
        return topic, results

    def check_versions(self) -> None:
        """Finds values of unknown versions without decoding every value. The first two bytes of a value are its version
        in every format, so one readable value proves that the version is known."""
        known: set[bytes] = set()
        for group in self._table.groups():
            for topic, values in self._table.topics(group).items():
                if known.issuperset({raw[:2] for _, raw in values.items()}):
                    continue
                for partition, raw in values.items():
                    if raw[:2] not in known and self.value(group, topic, partition, raw) is not None:
                        known.add(raw[:2])

    def offset(self, group: str, topic: str, partition: int) -> int:
        """Returns the committed offset of a partition, -1 if no offset is committed. Raises `CorruptData` or
        `UnknownVersion` if the value is unreadable."""
        raw = self._table.topics(group).get(topic, _NO_VALUES).get(partition)
        return -1 if raw is None else self._format.read_offset(raw)[0]

    def entries(self) -> Iterator[tuple[OffsetKey, OffsetValue]]:
        """Yields every readable offset, sorted by group, topic and partition. The iteration may miss a change that is
        made during the iteration."""
        for group in sorted(self._table.groups()):
            for topic, values in sorted(self._table.topics(group).items(), key=itemgetter(0)):
                for partition, raw in values.items():
                    value = self.value(group, topic, partition, raw)
                    if value is not None:
                        yield OffsetKey(group, topic, partition), value

    def value(self, group: str, topic: str, partition: int, raw: bytes) -> OffsetValue | None:
        """Returns a decoded value; None if it is unreadable."""
        try:
            return self._format.decode_value(raw)
        except (CorruptData, UnknownVersion) as error:
            self._record_problem(group, topic, partition, error)
            return None

    def _record_problem(self, group: str, topic: str, partition: int, error: Exception) -> None:
        self._table.add_problem(self._table.key(group, topic, partition), f"{group}/{topic}-{partition}", error)
