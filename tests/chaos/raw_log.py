"""The batches of a topic as its leaders store them, and the rules that every partition with claims keeps.

`RawLogReader` follows the partitions from their first offset on, while the test runs, so it reads every record before
the log cleaner removes it. It does not use the writer or the reader of the manager's log.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import struct
import threading
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Final, NamedTuple, Self

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import TopicPartition
from offsetmgr.kafka.client.background_loop import EventLoopThread
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.deadline import remaining
from offsetmgr.kafka.client.fetch import LATEST, FetchedPartition, FetchLimits, fetch_log, list_offsets
from offsetmgr.kafka.client.leader_router import PartitionLeaders
from offsetmgr.kafka.client.security import Security
from offsetmgr.kafka.protocol.channel import Address
from offsetmgr.records.claim import CLAIM_KEY, FENCE_KEY, decode_claim
from offsetmgr.segments.batch_reader import Record, batches

LARGEST_EPOCH: Final = 32_767
_BATCH: Final = struct.Struct(">qiibIhiqqqhii")
"""The header of a batch: base offset, size, leader epoch, magic, CRC, attributes, last offset's delta, base and largest
timestamp, producer id, producer epoch, base sequence, number of records."""
_SIZE_FIELDS: Final = 12
"""The bytes of a batch that its size does not include."""
_LONG_POLL_MS: Final = 100
_ATTEMPT_S: Final = 0.5
_TIMEOUT_S: Final = 60.0


class RawBatch(NamedTuple):
    """A record batch with its producer."""

    partition: int
    first_offset: int
    last_offset: int
    producer_id: int
    epoch: int
    first_sequence: int
    in_transaction: bool
    """Whether the batch belongs to a transaction or is the marker of one."""
    time_ms: int
    records: list[Record]


def raw_batches(partition: int, data: bytes, first: int) -> Iterator[RawBatch]:
    """The complete batches of ``data`` that end at or after offset ``first``."""
    at = 0
    for batch in batches(data, controls=True):
        header = _BATCH.unpack_from(data, at)
        at += _SIZE_FIELDS + header[1]
        if batch.last_offset >= first:
            yield RawBatch(
                partition, batch.base_offset, batch.last_offset, header[9], header[10], header[11],
                batch.transactional or batch.control, header[8], batch.records,
            )  # fmt: skip


class SeenClaim(NamedTuple):
    """A claim in the log."""

    offset: int
    producer_id: int
    epoch: int
    producer_ids: frozenset[int]


class PartitionHistory:
    """Every record of a partition, with the violations of these rules:

    - Each offset is read, so compaction has removed nothing before the reader saw it.
    - After a claim only its producer appends, until the next claim. Only batches that fence an older producer id for
      good may come from other producers.
    - A claim has a larger epoch than the one before, or a producer id that the partition has never had.
    - The claim before a record lists every producer id that the partition had.
    - The sequence numbers of each producer and epoch start at 0 and have no gaps and no repetitions.
    """

    def __init__(self, partition: int) -> None:
        self.keys: list[bytes | None] = []
        """The key of the record at each offset."""
        self.values: list[bytes | None] = []
        self.times_ms = array("q")
        """The time at which the leader appended the record at each offset."""
        self.claims: list[SeenClaim] = []
        self.violations: list[str] = []
        self._partition = partition
        self._claim_offsets: list[int] = []
        self._sequences: dict[tuple[int, int], int] = {}
        self._ids: set[int] = set()
        self._ended_ids: set[int] = set()
        self._tokens: set[str] = set()

    @property
    def end(self) -> int:
        """The next offset."""
        return len(self.keys)

    def claim_at(self, offset: int) -> SeenClaim | None:
        """The newest claim at or before an offset."""
        number = bisect_right(self._claim_offsets, offset)
        return self.claims[number - 1] if number else None

    def add(self, batch: RawBatch) -> None:
        """Adds the next batch."""
        if batch.first_offset != self.end or batch.last_offset - batch.first_offset + 1 != len(batch.records):
            self._report(batch, f"the reader missed records from offset {self.end} on")
            missing = batch.last_offset + 1 - self.end
            self.keys += [None] * missing
            self.values += [None] * missing
            self.times_ms.extend([0] * missing)
        else:
            self.keys += [record.key for record in batch.records]
            self.values += [record.value for record in batch.records]
            self.times_ms.extend([batch.time_ms] * len(batch.records))
        if batch.in_transaction:
            self._report(batch, "it belongs to a transaction")
        self._check_sequence(batch)
        keys = {record.key for record in batch.records}
        if CLAIM_KEY in keys:
            self._on_claim(batch)
        elif keys == {FENCE_KEY} and batch.epoch == LARGEST_EPOCH:
            self._ended_ids.add(batch.producer_id)
        else:
            self._check_owner(batch)
        self._ids.add(batch.producer_id)

    def _check_sequence(self, batch: RawBatch) -> None:
        producer = batch.producer_id, batch.epoch
        expected = self._sequences.get(producer, 0)
        if batch.first_sequence != expected:
            self._report(batch, f"its first sequence number is {batch.first_sequence}, not {expected}")
        self._sequences[producer] = batch.first_sequence + len(batch.records)

    def _on_claim(self, batch: RawBatch) -> None:
        if len(batch.records) != 1:
            self._report(batch, "it has other records than a claim")
        claim = decode_claim(batch.records[0].value or b"")
        last = self.claims[-1] if self.claims else None
        if last is not None and (batch.producer_id, batch.epoch) != (last.producer_id, last.epoch):
            newer = batch.epoch > last.epoch if batch.producer_id == last.producer_id else self._is_new(batch)
            if not newer:
                self._report(batch, f"it is a claim by an older producer than the claim at offset {last.offset}")
        if claim.token in self._tokens:
            self._report(batch, "another claim has its token")
        self._tokens.add(claim.token)
        self._claim_offsets.append(batch.first_offset)
        ids = frozenset(claim.producer_ids)
        self.claims.append(SeenClaim(batch.first_offset, batch.producer_id, batch.epoch, ids))

    def _is_new(self, batch: RawBatch) -> bool:
        return batch.producer_id not in self._ids

    def _check_owner(self, batch: RawBatch) -> None:
        if not self.claims:
            self._report(batch, "no claim precedes it")
            return
        claim = self.claims[-1]
        if (batch.producer_id, batch.epoch) != (claim.producer_id, claim.epoch):
            self._report(
                batch,
                f"it follows the claim at offset {claim.offset} by producer {claim.producer_id}, epoch {claim.epoch}",
            )
        elif batch.producer_id in self._ended_ids:
            self._report(batch, "an earlier batch has ended this producer id")
        elif not self._ids <= claim.producer_ids:
            self._report(batch, f"the claim at offset {claim.offset} does not list {self._ids - claim.producer_ids}")

    def _report(self, batch: RawBatch, why: str) -> None:
        self.violations.append(
            f"partition {self._partition}, batch at offset {batch.first_offset} by producer {batch.producer_id}, epoch "
            f"{batch.epoch}: {why}"
        )


class RawLogReader:
    """Reads partitions of a topic from offset 0 on, in its own thread, and passes each batch to ``on_batch``.

    A context manager. At the end of a block without an error it reads to the end of the log.
    """

    def __init__(
        self, bootstrap: str, topic: str, partitions: Iterable[int], on_batch: Callable[[RawBatch], None]
    ) -> None:
        self._bootstrap = bootstrap
        self._positions = {TopicPartition(topic, number): 0 for number in partitions}
        self._on_batch = on_batch
        self._runner = EventLoopThread()
        self._stopped = threading.Event()
        self._done: concurrent.futures.Future[None] | None = None

    def __enter__(self) -> Self:
        self._done = self._runner.submit(self._follow())
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        assert self._done is not None
        try:
            if exc_type is None:
                self.read_to_end()
            self._stopped.set()
            self._done.result(_TIMEOUT_S)
        finally:
            self._stopped.set()
            self._runner.close()

    def read_to_end(self) -> None:
        """Waits until every record that consumers can read at this moment was passed to ``on_batch``."""
        ends = self._runner.run(self._ends())
        waiting = threading.Event()
        for _ in range(int(_TIMEOUT_S / 0.02)):
            assert self._done is not None
            if self._done.done():
                self._done.result()
            if all(self._positions[tp] >= end for tp, end in ends.items()):
                return
            waiting.wait(0.02)
        raise AssertionError(f"the reader is at {self._positions}, and the ends are {ends}")

    async def _follow(self) -> None:
        client = Client(self._bootstrap, Security.of({}))
        leaders = PartitionLeaders(client)
        limits = FetchLimits(max_bytes=1 << 20, min_bytes=1, max_wait_ms=_LONG_POLL_MS)

        async def fetch(
            leader: Address, partitions: list[TopicPartition], deadline: float
        ) -> Mapping[TopicPartition, FetchedPartition | OffsetMgrError]:
            connection = await client.node(leader).connection(deadline)
            return await fetch_log(
                connection, {tp: self._positions[tp] for tp in partitions}, limits, remaining(deadline)
            )

        now = asyncio.get_running_loop().time
        answered = dict.fromkeys(self._positions, now())
        try:
            while not self._stopped.is_set():
                # A partition without a leader must not delay the others for long.
                found: dict[TopicPartition, FetchedPartition | OffsetMgrError]
                try:
                    deadline = now() + _ATTEMPT_S
                    found = await leaders.per_partition(self._positions, fetch, deadline, _LONG_POLL_MS / 1000)
                except OffsetMgrError as error:  # no broker has responded yet
                    found = dict.fromkeys(self._positions, error)
                for tp, answer in found.items():
                    if not isinstance(answer, OffsetMgrError):
                        answered[tp] = now()
                        for batch in raw_batches(tp.partition, answer.data, self._positions[tp]):
                            self._on_batch(batch)
                            self._positions[tp] = batch.last_offset + 1
                    elif not answer.retriable or now() > answered[tp] + _TIMEOUT_S:
                        raise answer
        finally:
            await client.close()

    async def _ends(self) -> Mapping[TopicPartition, int]:
        client = Client(self._bootstrap, Security.of({}))

        async def ask(
            leader: Address, partitions: list[TopicPartition], deadline: float
        ) -> Mapping[TopicPartition, int | OffsetMgrError]:
            connection = await client.node(leader).connection(deadline)
            return await list_offsets(connection, dict.fromkeys(partitions, LATEST), remaining(deadline))

        try:
            deadline = asyncio.get_running_loop().time() + _TIMEOUT_S
            found = await PartitionLeaders(client).per_partition(self._positions, ask, deadline)
        finally:
            await client.close()
        ends: dict[TopicPartition, int] = {}
        for tp, end in found.items():
            if isinstance(end, OffsetMgrError):
                raise end
            ends[tp] = end
        return ends
