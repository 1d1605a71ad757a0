"""`WriteBatch`: commits on their way into one transaction, and `AppendResult`: what became of some of them.

Group commit: all that one turn of the event loop brings for a shard group is one batch; the shard group's thread puts
all batches that came in during its last transaction into the next. So a lone commit waits for nobody, and under load a
transaction, which costs the same for one record as for thousands, carries thousands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.manager.log.base import AppendRejected
from offsetmgr.manager.results import CoordinatorResult
from offsetmgr.manager.shard import Shard
from offsetmgr.records.base import Record

Records: TypeAlias = dict[int, list[Record]]
"""By partition of the log."""


class PendingRequest(NamedTuple):
    """A request whose records wait to be appended. Not one a partition: one a request."""

    shard: Shard
    prepared: CoordinatorResult[Any]
    answer: asyncio.Future[Any]
    refuse: Callable[[int], Any]
    """Makes the response of an error code."""
    at: int
    """Where its records begin among those of its shard in the batch."""


class WriteBatch:
    """Filled on the loop, then handed to the shard group's thread and left alone."""

    __slots__ = ("bytes", "count", "deadline", "entries", "records")

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        """Monotonic seconds: when its oldest entry must be answered."""
        self.entries: list[PendingRequest] = []
        self.records: Records = {}
        self.count = 0
        self.bytes = 0

    def add(
        self, shard: Shard, prepared: CoordinatorResult[Any], answer: asyncio.Future[Any], refuse: Callable[[int], Any]
    ) -> None:
        """Adds a request's records, in the order of the calls."""
        records = self.records.get(shard.partition)
        if records is None:
            records = self.records[shard.partition] = []
        self.entries.append(PendingRequest(shard, prepared, answer, refuse, len(records)))
        records += prepared.records
        self.count += len(prepared.records)
        self.bytes += sum([len(key) + len(value or b"") for key, value in prepared.records])

    def halves(self) -> tuple[WriteBatch, WriteBatch]:
        """The first half of the entries and the rest."""
        middle = len(self.entries) // 2
        parts = WriteBatch(self.deadline), WriteBatch(self.deadline)
        for part, entries in zip(parts, (self.entries[:middle], self.entries[middle:]), strict=True):
            for entry in entries:
                part.add(entry.shard, entry.prepared, entry.answer, entry.refuse)
        return parts


class AppendResult(NamedTuple):
    """What became of an append of ``entries``."""

    entries: Sequence[PendingRequest]
    firsts: Mapping[int, int]
    """The offset of the first record of each partition, where it was written."""
    error: OffsetMgrError | None = None
    certain: bool = True
    """Whether an error means that nothing was written."""


def merged(batches: Sequence[WriteBatch]) -> Records:
    """The records of all batches, in order."""
    if len(batches) == 1:
        return batches[0].records
    records: Records = {}
    for batch in batches:
        for partition, part in batch.records.items():
            records.setdefault(partition, []).extend(part)
    return records


def written(batches: Sequence[WriteBatch], last: Mapping[int, int], records: Records) -> list[AppendResult]:
    """The outcomes of an append of ``records`` (`merged` of the batches) whose last offsets are given."""
    next_first = {partition: offset - len(records[partition]) + 1 for partition, offset in last.items()}
    outcomes = []
    for batch in batches:
        outcomes.append(AppendResult(batch.entries, {partition: next_first[partition] for partition in batch.records}))
        for partition, part in batch.records.items():
            next_first[partition] += len(part)
    return outcomes


def failed(batches: Sequence[WriteBatch], error: OffsetMgrError, *, certain: bool = True) -> list[AppendResult]:
    """The same outcome for all."""
    return [AppendResult(batch.entries, {}, error, certain) for batch in batches]


def split_expired() -> AppendRejected:
    """The error of what waited so long that it was not tried any more."""
    return AppendRejected("commit", "it waited for earlier ones until its time was up", "are enough brokers up?")
