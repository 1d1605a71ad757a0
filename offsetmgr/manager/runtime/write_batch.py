"""`WriteBatch`: requests that are appended together. `AppendResult`: the outcome of the append for some of these
requests.

The batches implement a group commit. All requests for a shard group in one iteration of the event loop form one batch.
While the writer of the shard group waits for an append, further batches arrive, and the writer sends all of them in its
next append. Therefore a single commit does not wait for others, and under load an append with thousands of records
costs little more than an append with a single record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, NamedTuple, TypeAlias

from offsetmgr.core.errors import OffsetMgrError, ServerError
from offsetmgr.manager.log.base import AppendOutcome, AppendRejected
from offsetmgr.manager.results import CoordinatorResult
from offsetmgr.manager.shard import Shard
from offsetmgr.records.base import EncodedRecord

_DIVERGENCE_HINT: Final = "if the offsets topic was truncated or recreated, restart the managers"

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


@dataclass(slots=True, eq=False)
class WriteBatch:
    """A batch of requests. The shard group fills the batch and then passes it to its writer. After this the batch does
    not change."""

    deadline: float
    """The time (seconds of `time.monotonic`) until which the oldest request of the batch must be answered."""
    entries: dict[int, list[PendingRequest]] = field(default_factory=dict)
    """The requests by partition of the log."""
    records: Records = field(default_factory=dict)
    count: int = 0
    bytes: int = 0

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
            self.entries[shard.partition] = []
        self.entries[shard.partition].append(PendingRequest(shard, result, future, error_response, len(records)))
        records += result.records
        self.count += len(result.records)
        self.bytes += sum([len(key) + len(value or b"") for key, value in result.records])

    def requests(self) -> list[PendingRequest]:
        """Returns all requests. Those of one partition are in order."""
        return list(chain.from_iterable(self.entries.values()))


class AppendResult(NamedTuple):
    """The outcome of an append for ``entries``, which belong to one partition."""

    entries: Sequence[PendingRequest]
    first_offset: int = -1
    """The offset of the first record of the batch in the partition; -1 after an error."""
    error: OffsetMgrError | None = None


def merge_records(batches: Sequence[WriteBatch]) -> Records:
    """Returns the records of all batches, in order."""
    if len(batches) == 1:
        return batches[0].records
    records: Records = {}
    for batch in batches:
        for partition, part in batch.records.items():
            records.setdefault(partition, []).extend(part)
    return records


def append_results(
    batches: Sequence[WriteBatch], records: Records, outcomes: Mapping[int, AppendOutcome]
) -> list[AppendResult]:
    """Returns the results of an append of ``records``, which are the merged records of the batches."""
    results = []
    for partition, outcome in outcomes.items():
        parts = [batch for batch in batches if partition in batch.records]
        if isinstance(outcome, OffsetMgrError):
            results += [AppendResult(batch.entries[partition], error=outcome) for batch in parts]
            continue
        first = outcome - len(records[partition]) + 1
        for batch in parts:
            results.append(AppendResult(batch.entries[partition], first))
            first += len(batch.records[partition])
    return results


def failed_results(batches: Sequence[WriteBatch], error: OffsetMgrError) -> list[AppendResult]:
    """Returns results for all requests of the batches, with the same error."""
    return [AppendResult(entries, error=error) for batch in batches for entries in batch.entries.values()]


def halves(batches: Sequence[WriteBatch], partition: int) -> list[WriteBatch]:
    """Returns two batches with the requests of one partition: the first half of them, and the rest. Returns an empty
    list if there is only one request."""
    entries = [entry for batch in batches for entry in batch.entries.get(partition, ())]
    middle = len(entries) // 2
    if not middle:
        return []
    parts = []
    for part in (entries[:middle], entries[middle:]):
        parts.append(WriteBatch(batches[0].deadline))
        for entry in part:
            parts[-1].add(entry.shard, entry.result, entry.future, entry.error_response)
    return parts


def deadline_passed() -> AppendRejected:
    """Returns the error for requests whose deadline passed before the append."""
    return AppendRejected(
        "commit", "it waited for earlier commits until its timeout", "check that enough brokers are up"
    )


def acknowledge(result: AppendResult) -> None:
    """Replays the records of a successful append in the shards, and answers the requests. Raises `ServerError` if a
    shard has already read the log beyond the append."""
    for shard, coordinator_result, future, _, record_index in result.entries:
        first = result.first_offset + record_index
        if first < shard.position:  # replay would skip the record, and no fetch would return it
            raise ServerError(
                f"partition {shard.partition}",
                f"appended at {first}, but already read up to {shard.position}",
                _DIVERGENCE_HINT,
            )
        shard.acknowledged(coordinator_result, first)
        if not future.done():
            future.set_result(coordinator_result.response)


def answer_with_error(entries: Sequence[PendingRequest], code: int) -> int:
    """Answers the requests that have no response yet with an error. Returns their number."""
    waiting = [entry for entry in entries if not entry.future.done()]
    for entry in waiting:
        entry.future.set_result(entry.error_response(code))
    return len(waiting)
