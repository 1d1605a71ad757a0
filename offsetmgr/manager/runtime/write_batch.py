"""`WriteBatch`: commits for one transaction, and `AppendResult`: the outcome for some of them.

Group commit: everything that one iteration of the event loop brings for a shard group is one batch; the shard group's
thread puts all batches that arrived during its last transaction into the next one. So a single commit does not wait,
and under load a transaction carries thousands of records for the cost of one.
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
"""Records by partition of the log."""


class PendingRequest(NamedTuple):
    """A request whose records wait for the append; one for each request and not for each partition."""

    shard: Shard
    result: CoordinatorResult[Any]
    future: asyncio.Future[Any]
    error_response: Callable[[int], Any]
    """Returns the response for an error code."""
    record_index: int
    """The position of its records among those of its shard in the batch."""


class WriteBatch:
    """Filled on the loop, then handed to the shard group's thread and not changed any more."""

    __slots__ = ("bytes", "count", "deadline", "entries", "records")

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        """Monotonic seconds at which its oldest request must be answered."""
        self.entries: list[PendingRequest] = []
        self.records: Records = {}
        self.count = 0
        self.bytes = 0

    def add(
        self,
        shard: Shard,
        result: CoordinatorResult[Any],
        future: asyncio.Future[Any],
        error_response: Callable[[int], Any],
    ) -> None:
        """Adds the records of a request, in the order of the calls."""
        records = self.records.get(shard.partition)
        if records is None:
            records = self.records[shard.partition] = []
        self.entries.append(PendingRequest(shard, result, future, error_response, len(records)))
        records += result.records
        self.count += len(result.records)
        self.bytes += sum([len(key) + len(value or b"") for key, value in result.records])

    def split(self) -> tuple[WriteBatch, WriteBatch]:
        """Returns the first half of the requests and the rest."""
        middle = len(self.entries) // 2
        parts = WriteBatch(self.deadline), WriteBatch(self.deadline)
        for part, entries in zip(parts, (self.entries[:middle], self.entries[middle:]), strict=True):
            for entry in entries:
                part.add(entry.shard, entry.result, entry.future, entry.error_response)
        return parts


class AppendResult(NamedTuple):
    """The outcome of an append of ``entries``."""

    entries: Sequence[PendingRequest]
    first_offsets: Mapping[int, int]
    """The offset of the first record of each partition, if it was written."""
    error: OffsetMgrError | None = None
    certain: bool = True
    """Whether an error means that nothing was written."""


def merge_records(batches: Sequence[WriteBatch]) -> Records:
    """Returns the records of all batches, in order."""
    if len(batches) == 1:
        return batches[0].records
    records: Records = {}
    for batch in batches:
        for partition, part in batch.records.items():
            records.setdefault(partition, []).extend(part)
    return records


def written_results(batches: Sequence[WriteBatch], last: Mapping[int, int], records: Records) -> list[AppendResult]:
    """Returns the outcomes of an append of ``records`` (`merged` of the batches) with these last offsets."""
    next_first = {partition: offset - len(records[partition]) + 1 for partition, offset in last.items()}
    outcomes = []
    for batch in batches:
        outcomes.append(AppendResult(batch.entries, {partition: next_first[partition] for partition in batch.records}))
        for partition, part in batch.records.items():
            next_first[partition] += len(part)
    return outcomes


def failed_results(batches: Sequence[WriteBatch], error: OffsetMgrError, *, certain: bool = True) -> list[AppendResult]:
    """Returns the same outcome for all."""
    return [AppendResult(batch.entries, {}, error, certain) for batch in batches]


def deadline_passed() -> AppendRejected:
    """Returns the error of requests whose time was over before the append."""
    return AppendRejected("commit", "it waited for earlier ones until its timeout", "are enough brokers up?")
