"""The batches of a topic as its leaders store them, and the rules that every partition with claims keeps.

`RawLogReader` follows the partitions from their first offset on, while the test runs, so it reads every record before
the log cleaner removes it. It does not use the writer or the reader of the manager's log.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
import time
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Final, NamedTuple, Self

from confluent_kafka import Consumer, KafkaException, TopicPartition
from partition_leaders import leaders

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import Security
from offsetmgr.kafka.protocol.frames import Address, Request
from offsetmgr.records.claim import CLAIM_KEY, FENCE_KEY, decode_claim
from offsetmgr.segments.batch_reader import Record, batches

LARGEST_EPOCH: Final = 32_767
_BATCH: Final = struct.Struct(">qiibIhiqqqhii")
"""The header of a batch: base offset, size, leader epoch, magic, CRC, attributes, last offset's delta, base and largest
timestamp, producer id, producer epoch, base sequence, number of records."""
_SIZE_FIELDS: Final = 12
"""The bytes of a batch that its size does not include."""
_FETCH: Final = 1
_NO_LEADER: Final = (3, 5, 6, 9, 74, 76)
"""Error codes of a broker that does not serve the partition at the moment."""
_LONG_POLL_MS: Final = 100
_ATTEMPT_S: Final = 0.5
_TIMEOUT_S: Final = 60.0


class RawBatch(NamedTuple):
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
        return len(self.keys)

    def claim_at(self, offset: int) -> SeenClaim | None:
        """The newest claim at or before an offset."""
        number = bisect_right(self._claim_offsets, offset)
        return self.claims[number - 1] if number else None

    def add(self, batch: RawBatch) -> None:
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
        self._topic = topic
        self._positions = dict.fromkeys(partitions, 0)
        self._on_batch = on_batch
        self._stopped = threading.Event()
        self._thread = ThreadPoolExecutor(1)
        self._done: Future[None]

    def __enter__(self) -> Self:
        self._done = self._thread.submit(lambda: asyncio.run(self._follow()))
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        try:
            if exc_type is None:
                self.read_to_end()
        finally:
            self._stopped.set()
            self._thread.shutdown()
        self._done.result()

    def read_to_end(self) -> None:
        """Waits until every record that consumers can read at this moment was passed to ``on_batch``."""
        ends = self._ends()
        deadline = time.monotonic() + _TIMEOUT_S
        while any(self._positions[partition] < end for partition, end in ends.items()):
            if self._done.done():
                self._done.result()
            assert time.monotonic() < deadline, f"the reader is at {self._positions}, and the ends are {ends}"
            time.sleep(0.02)  # the pause between two looks

    async def _follow(self) -> None:
        client = Client(self._bootstrap, Security.of({}))
        now = asyncio.get_running_loop().time
        answered = dict.fromkeys(self._positions, now())
        try:
            while not self._stopped.is_set():
                # A partition without a leader must not delay the others for long.
                with contextlib.suppress(OffsetMgrError):
                    for partition in await self._fetch(client, now() + _ATTEMPT_S):
                        answered[partition] = now()
                silent = [partition for partition, at in answered.items() if now() > at + _TIMEOUT_S]
                assert not silent, f"no answer about the partitions {silent} for {_TIMEOUT_S} s"
        finally:
            await client.close()

    async def _fetch(self, client: Client, deadline: float) -> set[int]:
        """Fetches from every leader. Returns the partitions that a leader has answered."""
        led: defaultdict[Address, list[int]] = defaultdict(list)
        for partition, leader in (await leaders(client, self._topic, deadline)).items():
            if partition in self._positions:
                led[leader].append(partition)
        found = await asyncio.gather(
            *(self._fetch_from(client, leader, partitions, deadline) for leader, partitions in led.items())
        )
        return set().union(*found)

    async def _fetch_from(self, client: Client, leader: Address, partitions: list[int], deadline: float) -> set[int]:
        parts = [
            {"partition": one, "fetch_offset": self._positions[one], "partition_max_bytes": 1 << 20}
            for one in partitions
        ]
        message = {
            "replica_id": -1, "max_wait": _LONG_POLL_MS, "min_bytes": 1, "max_bytes": 1 << 30,
            "topics": [{"topic": self._topic, "partitions": parts}], "forgotten_topics_data": [], "rack_id": "",
        }  # fmt: skip
        try:
            connection = await client.node(leader).connection(deadline)
            left = deadline - asyncio.get_running_loop().time()
            answer = await connection.call(Request(_FETCH, 11, message), left)
        except OffsetMgrError:
            return set()
        answered = set()
        for part in answer["responses"][0]["partitions"] if answer["responses"] else ():
            partition = part["partition_index"]
            if part["error_code"]:
                assert part["error_code"] in _NO_LEADER, part
                continue
            answered.add(partition)
            for batch in raw_batches(partition, part["records"] or b"", self._positions[partition]):
                self._on_batch(batch)
                self._positions[partition] = batch.last_offset + 1
        return answered

    def _ends(self) -> dict[int, int]:
        """The offset after the last replicated record of each partition."""
        reader = Consumer({"bootstrap.servers": self._bootstrap, "group.id": "raw-log"})
        ends: dict[int, int] = {}
        deadline = time.monotonic() + _TIMEOUT_S
        while missing := self._positions.keys() - ends.keys():
            for partition in missing:
                with contextlib.suppress(KafkaException):
                    ends[partition] = reader.get_watermark_offsets(TopicPartition(self._topic, partition), 10)[1]
            assert time.monotonic() < deadline, f"the ends of {missing} are unknown"
        reader.close()
        return ends
