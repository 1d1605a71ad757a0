"""`LogLoad`: reads whole partitions from their leaders, on the event loop of a reader.

Several requests are in flight. While the loop decodes one response, the brokers send the next ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from offsetmgr.core.errors import OffsetMgrError, OffsetOutOfRange, TimedOut
from offsetmgr.core.model import TopicPartition
from offsetmgr.kafka.client import fetch
from offsetmgr.kafka.client.client import Client, PartitionLeaders
from offsetmgr.kafka.client.connection import remaining
from offsetmgr.kafka.client.fetch import FetchedPartition, FetchLimits
from offsetmgr.kafka.protocol.channel import Address
from offsetmgr.manager.log.kafka.log_position import GapDetector, is_empty, start_of_log
from offsetmgr.manager.log.kafka.partition_load import PartitionLoad

STALL_TIMEOUT_S: Final = 30.0
"""A load fails if it makes no progress for this time, so that the operator sees the reason."""
_MIN_REQUEST_TIMEOUT_S: Final = 1.0
_REQUESTS_IN_FLIGHT: Final = 2
_MAX_WAIT_MS: Final = 100
_LIMITS: Final = FetchLimits(max_bytes=4 << 20, min_bytes=1, max_wait_ms=_MAX_WAIT_MS, response_bytes=8 << 20)
"""The responses are large, so that the time for a request hardly counts. The requests in flight together limit the
memory that the raw bytes need."""
_OMITTED: Final = FetchedPartition(-1, None, b"")
"""Replaces a partition that the response omits. A broker that throttles the client omits all partitions."""


class LogLoad:
    """Reads the partitions in ``loads`` up to their offsets in ``ends``. Use it within the client's event loop."""

    def __init__(self, client: Client, topic: str, loads: Mapping[int, PartitionLoad], ends: Mapping[int, int]) -> None:
        self._client = client
        self._topic = topic
        self._loads = loads
        self._ends = ends
        self._leaders = PartitionLeaders(client)
        self._gaps = GapDetector()

    async def run(self) -> None:
        """Reads all partitions to their ends. Raises `OffsetMgrError`, and `TimedOut` after 30 seconds without
        progress."""
        partitions = sorted(self._loads)
        shares = [partitions[first::_REQUESTS_IN_FLIGHT] for first in range(_REQUESTS_IN_FLIGHT)]
        tasks = [asyncio.create_task(self._read(share)) for share in shares if share]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, unread: list[int]) -> None:
        now = asyncio.get_running_loop().time
        deadline = now() + STALL_TIMEOUT_S
        while unread:
            before = {partition: self._loads[partition].position for partition in unread}
            request_deadline = max(deadline, now() + _MIN_REQUEST_TIMEOUT_S)
            await self._add(await self._fetch(before, request_deadline), request_deadline)
            moved = [partition for partition in unread if self._loads[partition].position != before[partition]]
            if moved:
                deadline = now() + STALL_TIMEOUT_S
            elif now() >= deadline:
                raise TimedOut(f"load of {self._topic}", f"no records arrived for {STALL_TIMEOUT_S:g} s")
            # A broker fills its response in the order of the request, so the partitions without records come first in
            # the next request.
            unread = [partition for partition in unread if partition not in moved] + [
                partition for partition in moved if not self._is_loaded(partition)
            ]

    def _is_loaded(self, partition: int) -> bool:
        load = self._loads[partition]
        return load.position >= self._ends[partition] and load.finish()

    async def _fetch(
        self, positions: Mapping[int, int], deadline: float
    ) -> Mapping[TopicPartition, FetchedPartition | OffsetMgrError]:
        offsets = {TopicPartition(self._topic, partition): position for partition, position in positions.items()}

        async def send(
            leader: Address, partitions: list[TopicPartition], attempt: float
        ) -> Mapping[TopicPartition, FetchedPartition | OffsetMgrError]:
            # A broker delays the response at the end of the log, and would delay later requests of the connection too.
            async with self._client.node(leader).dedicated_connection(attempt) as dedicated:
                dedicated.mark_waiting()
                its_offsets = {tp: offsets[tp] for tp in partitions}
                found = await fetch.fetch_log(dedicated.connection, its_offsets, _LIMITS, remaining(attempt))
            return {tp: found.get(tp, _OMITTED) for tp in partitions}

        return await self._leaders.per_partition(offsets, send, deadline, _MAX_WAIT_MS / 1000)

    async def _add(self, found: Mapping[TopicPartition, FetchedPartition | OffsetMgrError], deadline: float) -> None:
        empty = is_empty(found.values())
        for tp, outcome in found.items():
            load = self._loads[int(tp.partition)]
            if isinstance(outcome, FetchedPartition):
                load.note_log_start(outcome.log_start_offset)
                load.add(outcome.data)
                if empty:
                    load.skip_to(self._gaps.end_of_gap(load.partition, load.position, outcome.high_watermark))
            elif isinstance(outcome, OffsetOutOfRange):
                load.skip_to(await start_of_log(self._client, tp, load.position, deadline))
            else:
                raise outcome
