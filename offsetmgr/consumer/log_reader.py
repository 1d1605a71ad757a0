"""The log reads of `SimpleConsumer`: asyncio, in the thread of its connection.

It returns slices of logs undecoded, because decoding is work for the caller's thread and not for the loop's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

from offsetmgr.core.errors import OffsetMgrError, OffsetOutOfRange
from offsetmgr.core.model import LogRange, TopicPartition
from offsetmgr.kafka.client import fetch
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.fetch import EARLIEST, LATEST, FetchedPartition, FetchLimits
from offsetmgr.kafka.client.leader_router import PartitionLeaders
from offsetmgr.kafka.client.retries import backoff, remaining
from offsetmgr.kafka.protocol.channel import Address
from offsetmgr.segments.batch_reader import starts_with_complete_batch

OutOfRange: TypeAlias = Literal["raise", "earliest", "latest"]
"""The handling of an offset outside the log: an error, or the log's start or end."""


class ReadResult(NamedTuple):
    """A slice, and the offset of the request: not the caller's if that was out of range."""

    offset: int
    slice: FetchedPartition


class PartitionLogReader:
    """Reads partitions from their leaders. Use it within the client's event loop."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._leaders = PartitionLeaders(client)

    async def fetch(
        self, offsets: Mapping[TopicPartition, int], limits: FetchLimits, out_of_range: OutOfRange, deadline: float
    ) -> dict[TopicPartition, ReadResult | OffsetMgrError]:
        """Returns one outcome for each partition. Raises only if no broker was ever reached."""
        found = await self._in_range(offsets, limits, out_of_range, deadline)
        # A broker returns a first batch over the limit in full for only one partition of a request, and nothing for
        # others with such a batch: those are requested again, until a response brings nothing new.
        while starved := {
            tp: read.offset for tp, read in found.items() if isinstance(read, ReadResult) and _starved(read)
        }:
            found |= await self._in_range(starved, limits._replace(max_wait_ms=0), out_of_range, deadline)
            if all(isinstance(read := found[tp], ReadResult) and _starved(read) for tp in starved):
                break
        return found

    async def _in_range(
        self, offsets: Mapping[TopicPartition, int], limits: FetchLimits, out_of_range: OutOfRange, deadline: float
    ) -> dict[TopicPartition, ReadResult | OffsetMgrError]:
        """Makes one request to each leader, repeated from the log's end or start if that is configured."""
        found: dict[TopicPartition, ReadResult | OffsetMgrError] = {}
        asked = dict(offsets)
        for pause in backoff():
            found |= await self._once(asked, limits, deadline)
            outside = [tp for tp in asked if isinstance(found[tp], OffsetOutOfRange)]
            if not outside:
                break
            ranges = await self._ranges(outside, deadline)
            for tp in outside:
                found[tp] = _outside(tp, asked[tp], ranges[tp])
            if out_of_range == "raise" or asyncio.get_running_loop().time() + pause >= deadline:
                break
            asked = {
                tp: log.start if out_of_range == "earliest" else log.end
                for tp in outside
                if isinstance(log := ranges[tp], LogRange)
            }
            if not asked:
                break
            await asyncio.sleep(pause)
        return found

    async def _once(
        self, offsets: Mapping[TopicPartition, int], limits: FetchLimits, deadline: float
    ) -> dict[TopicPartition, ReadResult | OffsetMgrError]:
        async def ask(
            leader: Address, partitions: list[TopicPartition], attempt: float
        ) -> dict[TopicPartition, FetchedPartition | OffsetMgrError]:
            # A fetch may wait in the broker and delay later requests of its connection.
            async with self._client.node(leader).lane(attempt) as lane:
                lane.park()
                mine = {tp: offsets[tp] for tp in partitions}
                return await fetch.fetch(lane.connection, mine, limits, remaining(attempt))

        slices = await self._leaders.per_partition(offsets, ask, deadline, limits.max_wait_ms / 1000)
        return {
            tp: ReadResult(offsets[tp], got) if isinstance(got, FetchedPartition) else got for tp, got in slices.items()
        }

    async def offsets_before(
        self, times: Mapping[TopicPartition, int], most: int, deadline: float
    ) -> dict[TopicPartition, list[int] | OffsetMgrError]:
        """Returns one outcome for each partition (see `fetch.offsets_before`). Raises only if no broker was ever
        reached."""

        async def ask(
            leader: Address, partitions: list[TopicPartition], attempt: float
        ) -> dict[TopicPartition, list[int] | OffsetMgrError]:
            connection = await self._client.node(leader).connection(attempt)
            return await fetch.offsets_before(
                connection, {tp: times[tp] for tp in partitions}, most, remaining(attempt)
            )

        return await self._leaders.per_partition(times, ask, deadline)

    async def _ranges(
        self, partitions: list[TopicPartition], deadline: float
    ) -> dict[TopicPartition, LogRange | OffsetMgrError]:
        starts = await self.offsets_before(dict.fromkeys(partitions, EARLIEST), 1, deadline)
        ends = await self.offsets_before(dict.fromkeys(partitions, LATEST), 1, deadline)
        ranges: dict[TopicPartition, LogRange | OffsetMgrError] = {}
        for tp in partitions:
            start, end = starts[tp], ends[tp]
            if isinstance(start, OffsetMgrError):
                ranges[tp] = start
            elif isinstance(end, OffsetMgrError):
                ranges[tp] = end
            else:
                ranges[tp] = LogRange(start[0], end[0])
        return ranges


def _starved(read: ReadResult) -> bool:
    return read.slice.high_watermark > read.offset and not starts_with_complete_batch(read.slice.data)


def _outside(tp: TopicPartition, offset: int, log: LogRange | OffsetMgrError) -> OffsetOutOfRange:
    what = f"fetch of {tp} at offset {offset}"
    hint = 'out_of_range="earliest" or "latest" reads on from there'
    if isinstance(log, OffsetMgrError):
        return OffsetOutOfRange(what, f"it is outside the log, whose range could not be asked: {log}", hint)
    why = f"the log begins at {log.start} and ends at {log.end} (OFFSET_OUT_OF_RANGE)"
    return OffsetOutOfRange(what, why, hint, log_range=log)
