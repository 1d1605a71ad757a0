"""`LogLoad`: reads whole partitions from their leaders, on the event loop of a reader.

Several requests are in flight. While the loop decodes one response, the brokers send the next ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Final

from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import OffsetMgrError, OffsetOutOfRange, TimedOut
from offsetmgr.core.model import TopicPartition
from offsetmgr.kafka.client import fetch
from offsetmgr.kafka.client.client import Client, PartitionLeaders
from offsetmgr.kafka.client.connection import remaining
from offsetmgr.kafka.client.fetch import FetchedPartition, FetchLimits
from offsetmgr.kafka.client.producers import ProducerEpoch
from offsetmgr.kafka.protocol.frames import Address
from offsetmgr.manager.log.base import CorruptRecords
from offsetmgr.manager.log.kafka.batch_audit import Outcome
from offsetmgr.manager.log.kafka.claim_history import ClaimHistory, ClaimRecheck
from offsetmgr.manager.log.kafka.log_position import GapDetector, is_empty, start_of_log
from offsetmgr.manager.log.topic import UnsuitableTopic
from offsetmgr.records.claim import CLAIM_KEY, FENCE_KEY
from offsetmgr.segments.newest_values import NO_KEY, collect_newest
from offsetmgr.segments.raw_batches import DamagedBatch, RawBatch, raw_batches, records_of

# `PartitionLoad`: the load of one partition from raw bytes of its log. Pure. The load keeps the newest value of each
# key and decodes no value. Batches that the partition's owners did not write (see `batch_audit`) do not change the
# values.

SPECIAL_KEYS: Final = frozenset({CLAIM_KEY, FENCE_KEY})
_SPECIAL_MARK: Final = bytes((2 * len(CLAIM_KEY),)) + CLAIM_KEY[:2]
"""The bytes with which every special key begins in a record: the encoded size of the key and its version."""
assert len(FENCE_KEY) == len(CLAIM_KEY) and FENCE_KEY.startswith(CLAIM_KEY[:2])


class PartitionLoad:
    """Loads one partition from offset ``start`` on into ``newest``.

    The caller passes consecutive bytes of the log to `add`, from the batch that contains `position` on. At the end the
    caller calls `finish`.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        start: int,
        newest: MutableMapping[bytes, bytes | None],
        history: ClaimHistory,
    ) -> None:
        self.partition = partition
        self.position = start
        self.audit = history.audit(partition, start)
        self._topic = topic
        self._start = start
        self._result = newest
        self._newest: MutableMapping[bytes, bytes | None] = {} if newest else newest
        """The values of this load. They are in the result at once if the result was empty before, because a second pass
        must not lose the values from before."""
        self._history = history
        self._recheck = ClaimRecheck(self.audit)

    def add(self, data: bytes) -> None:
        """Loads the complete batches of ``data``. Raises `CorruptRecords` and `UnsuitableTopic`."""
        try:
            resumed = self._recheck.resume(data, self.position)
            if resumed is not None:
                data, self.position = resumed
                self._add_batches(data)
        except DamagedBatch as error:
            raise CorruptRecords(self._topic, self.partition, error.offset, error.why) from error

    def _add_batches(self, data: bytes) -> None:
        for batch in raw_batches(data):
            if batch.last_offset < self.position:
                continue
            check_suitable(self._topic, self.partition, batch)
            if batch.base_offset > self.position or not batch.record_count:
                self.audit.note_gap()
            if batch.record_count and not self._add(data, batch):
                self.position = self._recheck.begin(data, self.position)
                return
            self.position = batch.last_offset + 1
        self.audit.end_chunk()

    def note_log_start(self, offset: int | None) -> None:
        """Notes the first offset of the log; None if it is unknown."""
        self.audit.whole &= not offset

    def skip_to(self, position: int) -> None:
        """Skips offsets at which the log has no records."""
        if position > self.position:
            self.position = position
            self.audit.note_gap()

    def finish(self) -> bool:
        """Ends the load, and records the claims in the history. Returns False if the caller has to read the log again
        from `position` on, because the load applied a batch that turned out to be invalid."""
        for key in SPECIAL_KEYS:
            self._newest.pop(key, None)
        if self.audit.conclude():
            self._newest.clear()
            self.position = self._start
            return False
        if self._newest is not self._result:
            self._result.update(self._newest)
        self._history.record(self.partition, self.position, self.audit.state)
        return True

    def _add(self, data: bytes, batch: RawBatch) -> bool:
        """Loads a batch. Returns False if the owner's claim has to be read again first."""
        audit = self.audit
        # A claim is the only record of its batch, so a batch of several records that the owner wrote contains no claim.
        if batch.record_count != 1 and audit.is_owner(batch.producer_id, batch.producer_epoch):
            self._apply(data, batch)
            return True
        producer = ProducerEpoch(batch.producer_id, batch.producer_epoch)
        special = special_records(data, batch, self.position)
        outcome = audit.check(batch.base_offset, producer, special)
        if outcome is Outcome.RECHECK:
            return False
        if outcome is Outcome.INVALID:
            audit.note_invalid(record.key or NO_KEY for record in records_of(data, batch, self.position))
            self._history.report(self.partition, batch.base_offset, producer, audit.describe())
        elif special:
            audit.note_valid(key for key, _ in special)
            self._newest.update(without_special(special))
        else:
            self._apply(data, batch)
        return True

    def _apply(self, data: bytes, batch: RawBatch) -> None:
        if not self.audit.state.invalid_keys:
            collect_newest(self._newest, data, batch, self.position)
            return
        values: dict[bytes, bytes | None] = {}
        collect_newest(values, data, batch, self.position)
        self.audit.note_valid(values)
        self._newest.update(values)


def check_suitable(topic: str, partition: int, batch: RawBatch) -> None:
    """Raises `UnsuitableTopic` for a batch of a transaction."""
    if batch.transactional:
        raise UnsuitableTopic(
            f"topic {topic}",
            f"partition {partition} has a batch of a transaction at offset {batch.base_offset}: an earlier version of "
            "offsetmgr, which wrote transactions, or another program has written to it",
            Advice(
                "export the offsets with the release that wrote them, choose a new {offsets_topic}, and import the"
                " offsets"
            ),
        )


def special_records(data: bytes, batch: RawBatch, first: int) -> Sequence[tuple[bytes, bytes | None]]:
    """Returns the records of a batch from offset ``first`` on if one of them is a claim or a fence; otherwise nothing.
    Raises `DamagedBatch`."""
    if not batch.codec and data.find(_SPECIAL_MARK, batch.start, batch.end) < 0:
        return ()
    records = [(record.key or NO_KEY, record.value) for record in records_of(data, batch, first)]
    return records if any(key in SPECIAL_KEYS for key, _ in records) else ()


def without_special(records: Iterable[tuple[bytes, bytes | None]]) -> Iterable[tuple[bytes, bytes | None]]:
    """Returns the records that are neither claims nor fences."""
    return [(key, value) for key, value in records if key not in SPECIAL_KEYS]


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
