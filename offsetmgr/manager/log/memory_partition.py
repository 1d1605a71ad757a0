"""`StoredPartition`: one partition of a log in memory. It assigns offsets as Kafka does. Instances are not
thread-safe."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from offsetmgr.manager.log.base import LogRecord
from offsetmgr.records.base import EncodedRecord


@dataclass
class StoredPartition:
    """The readable records of a partition, and the records of the append in flight (``open``). At most one append is in
    flight, since a partition belongs to one shard group with one writer."""

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
