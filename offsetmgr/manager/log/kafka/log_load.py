"""`LogLoad`: reads whole partitions from their leaders, on the event loop of a reader.

Several requests are in flight. While the loop decodes one response, the brokers send the next ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, MutableMapping
from typing import Final

from offsetmgr.core.errors import OffsetMgrError, OffsetOutOfRange, TimedOut
from offsetmgr.core.model import TopicPartition
from offsetmgr.kafka.client.client import Client, PartitionLeaders
from offsetmgr.kafka.client.connection import BrokerConnection
from offsetmgr.kafka.client.fetch import FetchedPartition, FetchLimits, fetch_log
from offsetmgr.kafka.client.producers import ProducerEpoch
from offsetmgr.manager.log.kafka.batch_audit import Outcome
from offsetmgr.manager.log.kafka.log_history import LogHistory
from offsetmgr.manager.log.kafka.partition_read import (
    SPECIAL_KEYS,
    PartitionRead,
    is_empty,
    special_records,
    start_of_log,
)
from offsetmgr.segments.newest_values import NO_KEY, collect_newest
from offsetmgr.segments.raw_batches import RawBatch, records_of


class PartitionLoad(PartitionRead):
    """Loads one partition from offset ``start`` on into ``newest``. The load keeps the newest value of each key and
    decodes no value. At the end the caller calls `finish`. Pure."""

    def __init__(
        self,
        topic: str,
        partition: int,
        start: int,
        newest: MutableMapping[bytes, bytes | None],
        history: LogHistory,
    ) -> None:
        super().__init__(topic, partition, start, history)
        self._start = start
        self._result = newest
        self._newest: MutableMapping[bytes, bytes | None] = {} if newest else newest
        """The values of this load. They are in the result at once if the result was empty before, because a second pass
        must not lose the values from before."""

    def finish(self) -> bool:
        """Ends the load, and records the claims in the history. Returns False if the caller has to read the log again
        from `fetch_offset` on, because the load applied a batch that turned out to be invalid."""
        for key in SPECIAL_KEYS:
            self._newest.pop(key, None)
        if self.audit.conclude():
            self._newest.clear()
            self.fetch_offset = self._start
            return False
        if self._newest is not self._result:
            self._result.update(self._newest)
        self._history.record(self.partition, self.fetch_offset, self.audit.state)
        return True

    def _add_batch(self, data: bytes, batch: RawBatch) -> bool:
        audit = self.audit
        self._note_missing(batch)
        # A claim is the only record of its batch, so a batch of several records that the owner wrote contains no claim.
        if not batch.record_count:
            return True
        if batch.record_count != 1 and audit.is_owner(batch.producer_id, batch.producer_epoch):
            self._apply(data, batch)
            return True
        producer = ProducerEpoch(batch.producer_id, batch.producer_epoch)
        special = special_records(data, batch, self.fetch_offset)
        outcome = audit.check(batch.base_offset, producer, special)
        if outcome is Outcome.RECHECK:
            self._postpone(data)
            return False
        if outcome is Outcome.INVALID:
            self._reject(batch, (record.key or NO_KEY for record in records_of(data, batch, self.fetch_offset)))
        elif special:
            audit.note_valid(key for key, _ in special)
            self._newest.update((key, value) for key, value in special if key not in SPECIAL_KEYS)
        else:
            self._apply(data, batch)
        return True

    def _apply(self, data: bytes, batch: RawBatch) -> None:
        if not self.audit.state.invalid_keys:
            collect_newest(self._newest, data, batch, self.fetch_offset)
            return
        values: dict[bytes, bytes | None] = {}
        collect_newest(values, data, batch, self.fetch_offset)
        self.audit.note_valid(values)
        self._newest.update(values)


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
            before = {partition: self._loads[partition].fetch_offset for partition in unread}
            request_deadline = max(deadline, now() + _MIN_REQUEST_TIMEOUT_S)
            await self._add(await self._fetch(before, request_deadline), request_deadline)
            moved = [partition for partition in unread if self._loads[partition].fetch_offset != before[partition]]
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
        return load.fetch_offset >= self._ends[partition] and load.finish()

    async def _fetch(
        self, positions: Mapping[int, int], deadline: float
    ) -> Mapping[TopicPartition, FetchedPartition | OffsetMgrError]:
        offsets = {TopicPartition(self._topic, partition): position for partition, position in positions.items()}

        async def send(
            connection: BrokerConnection, theirs: Mapping[TopicPartition, int], timeout_s: float
        ) -> Mapping[TopicPartition, FetchedPartition | OffsetMgrError]:
            found = await fetch_log(connection, theirs, timeout_s, _LIMITS)
            return {tp: found.get(tp, _OMITTED) for tp in theirs}

        return await self._leaders.per_partition(offsets, send, deadline, wait_s=_MAX_WAIT_MS / 1000)

    async def _add(self, found: Mapping[TopicPartition, FetchedPartition | OffsetMgrError], deadline: float) -> None:
        empty = is_empty(found.values())
        for tp, outcome in found.items():
            load = self._loads[int(tp.partition)]
            if isinstance(outcome, FetchedPartition):
                load.add_fetched(outcome, empty=empty)
            elif isinstance(outcome, OffsetOutOfRange):
                load.skip_deleted(await start_of_log(self._client, tp, load.fetch_offset, deadline))
            else:
                raise outcome
