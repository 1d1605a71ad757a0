"""`PartitionLogReader`: reads partitions in the event loop of a client.

It returns slices of logs without decoding them. The caller's thread decodes the slices, so that decoding does not block
the event loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

from offsetmgr.core.errors import OffsetMgrError, OffsetOutOfRange
from offsetmgr.core.model import LogRange, TopicPartition
from offsetmgr.core.retry import Retries
from offsetmgr.kafka.client import fetch
from offsetmgr.kafka.client.client import Client, PartitionLeaders
from offsetmgr.kafka.client.fetch import FetchedPartition, FetchLimits, log_ranges
from offsetmgr.segments.batch_reader import starts_with_complete_batch

OutOfRange: TypeAlias = Literal["raise", "earliest", "latest"]
"""The policy for an offset outside the log: raise an error, or read from the log's start or end."""


class ReadResult(NamedTuple):
    """A slice of a log. ``offset`` is the offset that was requested from the leader: the caller's offset or, if the
    caller's offset was out of range, the start or the end of the log."""

    offset: int
    slice: FetchedPartition


class PartitionLogReader:
    """Reads partitions from their leaders. All methods must run in the client's event loop."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._leaders = PartitionLeaders(client)

    async def fetch(
        self, offsets: Mapping[TopicPartition, int], limits: FetchLimits, out_of_range: OutOfRange, deadline: float
    ) -> dict[TopicPartition, ReadResult | OffsetMgrError]:
        """Returns one outcome for each partition. Raises only if no broker was ever reached."""
        found = await self._in_range(offsets, limits, out_of_range, deadline)
        # If the first batches of several partitions are larger than the limit, a broker returns the first batch in full
        # for only one of these partitions, and no complete batch for the others. The loop requests the other partitions
        # again. The loop ends when every partition has a complete batch, or when an iteration adds no complete batch.
        while incomplete := {
            tp: read.offset for tp, read in found.items() if isinstance(read, ReadResult) and _lacks_whole_batch(read)
        }:
            found |= await self._in_range(incomplete, limits._replace(max_wait_ms=0), out_of_range, deadline)
            if all(isinstance(read := found[tp], ReadResult) and _lacks_whole_batch(read) for tp in incomplete):
                break
        return found

    async def _in_range(
        self, offsets: Mapping[TopicPartition, int], limits: FetchLimits, out_of_range: OutOfRange, deadline: float
    ) -> dict[TopicPartition, ReadResult | OffsetMgrError]:
        """Sends one request to each leader. If an offset is out of range and ``out_of_range`` is not ``raise``,
        requests the log's start or end instead."""
        found: dict[TopicPartition, ReadResult | OffsetMgrError] = {}
        requests = dict(offsets)
        retries = Retries(deadline)
        ask = partial(fetch.fetch_log, limits=limits)
        while True:
            slices = await self._leaders.per_partition(requests, ask, deadline, wait_s=limits.max_wait_ms / 1000)
            for tp, outcome in slices.items():
                found[tp] = ReadResult(requests[tp], outcome) if isinstance(outcome, FetchedPartition) else outcome
            out_of_range_partitions = [tp for tp in requests if isinstance(found[tp], OffsetOutOfRange)]
            if not out_of_range_partitions:
                break
            ranges = await log_ranges(self._client, out_of_range_partitions, deadline, self._leaders)
            for tp in out_of_range_partitions:
                found[tp] = _out_of_range_error(tp, requests[tp], ranges[tp])
            if out_of_range == "raise":
                break
            requests = {
                tp: log.start if out_of_range == "earliest" else log.end
                for tp in out_of_range_partitions
                if isinstance(log := ranges[tp], LogRange)
            }
            if not requests or not await retries.pause():
                break
        return found

    async def offsets_before(
        self, times: Mapping[TopicPartition, int], max_offsets: int, deadline: float
    ) -> dict[TopicPartition, list[int] | OffsetMgrError]:
        """Returns a list of offsets or an error for each partition (see `fetch.offsets_before`). Raises only if no
        broker was reached."""
        ask = partial(fetch.offsets_before, max_offsets=max_offsets)
        return await self._leaders.per_partition(times, ask, deadline)


def _lacks_whole_batch(read: ReadResult) -> bool:
    return read.slice.high_watermark > read.offset and not starts_with_complete_batch(read.slice.data)


def _out_of_range_error(tp: TopicPartition, offset: int, log: LogRange | OffsetMgrError) -> OffsetOutOfRange:
    what = f"fetch of {tp} at offset {offset}"
    hint = 'use out_of_range="earliest" or "latest" to read from the log\'s start or end instead'
    if isinstance(log, OffsetMgrError):
        return OffsetOutOfRange(what, f"the offset is outside the log, whose range is unknown: {log}", hint)
    why = f"the log begins at {log.start} and ends at {log.end} (OFFSET_OUT_OF_RANGE)"
    return OffsetOutOfRange(what, why, hint, log_range=log)
