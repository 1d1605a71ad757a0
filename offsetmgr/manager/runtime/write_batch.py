"""`WriteBatch`: requests that are appended in the same transaction. `AppendResult`: the outcome of the append for some
of these requests.

The batches implement a group commit. All requests for a shard group in one iteration of the event loop form one batch.
While the thread of the shard group writes one transaction, further batches arrive, and the thread appends all of them
in its next transaction. Therefore a single commit does not wait for others, and under load a transaction with thousands
of records costs no more than a transaction with a single record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.manager.log.base import AppendRejected
from offsetmgr.manager.results import CoordinatorResult
from offsetmgr.manager.shard import Shard
from offsetmgr.records.base import EncodedRecord

Records: TypeAlias = dict[int, list[EncodedRecord]]
"""Records by partition of the log."""


class PendingRequest(NamedTuple):
    """A request whose records wait for the append."""

    shard: Shard
    result: CoordinatorResult[Any]
    future: asyncio.Future[Any]
    error_response: Callable[[int], Any]
    """Creates the response for an error code."""
    record_index: int
    """The index of the request's first record among the records of the same shard in the batch."""


class WriteBatch:
    """A batch of requests. The loop fills the batch and then passes it to the thread of the shard group. After this the
    batch does not change."""

    __slots__ = ("bytes", "count", "deadline", "entries", "records")

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        """The time (seconds of `time.monotonic`) until which the oldest request of the batch must be answered."""
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
        """Adds the records of a request after those of earlier requests."""
        records = self.records.get(shard.partition)
        if records is None:
            records = self.records[shard.partition] = []
        self.entries.append(PendingRequest(shard, result, future, error_response, len(records)))
        records += result.records
        self.count += len(result.records)
        self.bytes += sum([len(key) + len(value or b"") for key, value in result.records])

    def split(self) -> tuple[WriteBatch, WriteBatch]:
        """Returns two batches: the first half of the requests, and the rest."""
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
    """The offset of the first record of the batch in each partition; empty after an error."""
    error: OffsetMgrError | None = None
    certain: bool = True
    """Only used after an error: True if certainly nothing was written, False if the outcome is unknown."""


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
    """Returns the results of a successful append of ``records``, which are the merged records of the batches. ``last``
    is the offset of the last record of each partition."""
    next_first = {partition: offset - len(records[partition]) + 1 for partition, offset in last.items()}
    outcomes = []
    for batch in batches:
        outcomes.append(AppendResult(batch.entries, {partition: next_first[partition] for partition in batch.records}))
        for partition, part in batch.records.items():
            next_first[partition] += len(part)
    return outcomes


def failed_results(batches: Sequence[WriteBatch], error: OffsetMgrError, *, certain: bool = True) -> list[AppendResult]:
    """Returns one result for each batch, all with the same error."""
    return [AppendResult(batch.entries, {}, error, certain) for batch in batches]


def deadline_passed() -> AppendRejected:
    """Returns the error for requests whose deadline passed before the append."""
    return AppendRejected(
        "commit", "it waited for earlier commits until its timeout", "check that enough brokers are up"
    )
