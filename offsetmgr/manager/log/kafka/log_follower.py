"""`LogFollower`: keeps requests for new records in flight at the leaders of the followed partitions.

The event loop of a reader runs `LogFollower.run`. A *worker* is a task that sends the requests for some partitions to
their leader. If a request fails, the worker releases its partitions, and the follower looks up their leaders again.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from offsetmgr.core.errors import OffsetMgrError, OffsetOutOfRange, UnknownTopicOrPartition
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.retry import Backoff, Retries, is_retriable
from offsetmgr.kafka.client import fetch
from offsetmgr.kafka.client.client import UNKNOWN_TOPIC_TIMEOUT_S, Client, find_leaders
from offsetmgr.kafka.client.connection import remaining
from offsetmgr.kafka.client.fetch import FetchedPartition, FetchLimits
from offsetmgr.kafka.client.producers import ProducerEpoch
from offsetmgr.kafka.protocol.frames import Address
from offsetmgr.manager.log.base import LogClosed, LogRecord
from offsetmgr.manager.log.kafka.batch_audit import AuditState, Outcome, PartitionAudit
from offsetmgr.manager.log.kafka.log_history import LogHistory
from offsetmgr.manager.log.kafka.partition_read import (
    SPECIAL_KEYS,
    PartitionRead,
    is_empty,
    special_records,
    start_of_log,
)
from offsetmgr.segments.batch_reader import Record
from offsetmgr.segments.newest_values import NO_KEY
from offsetmgr.segments.raw_batches import RawBatch, records_of


class _Run(NamedTuple):
    """Records of one batch, the offset after the batch, and the state of the audit there."""

    records: list[LogRecord]
    end: int
    state: AuditState


class PartitionFollow(PartitionRead):
    """Follows one partition from an offset on, and returns its records from `take`. If the decision about a batch
    depends on a claim that follows, the reader reads ahead to the next claim and then reads the batch again. Meanwhile
    it returns no records, because records have to stay in order. Pure."""

    def __init__(self, topic: str, partition: int, start: int, history: LogHistory) -> None:
        super().__init__(topic, partition, start, history)
        self.position = start
        """The offset after the last record that `take` has returned, or after a gap that follows this record."""
        self.buffered = 0
        """The number of records that `take` has not returned yet."""
        self._ahead: PartitionAudit | None = None
        """The audit that searches the next claim; None if every batch so far is decided."""
        self._undecided_at = 0
        self._runs: deque[_Run] = deque()

    def _add_batch(self, data: bytes, batch: RawBatch) -> bool:
        if self._ahead is not None:
            return not self._finds_claim(self._ahead, data, batch)
        self._note_missing(batch)
        outcome = self._add(data, batch)
        if outcome is Outcome.RECHECK:
            self._postpone(data)
        elif outcome is Outcome.UNDECIDED:
            self._ahead, self._undecided_at = PartitionAudit(self.audit.state), self.fetch_offset
        return outcome is not Outcome.RECHECK

    def skip_to(self, position: int) -> None:
        """See `PartitionRead.skip_to`."""
        if position > self.fetch_offset:
            self.fetch_offset = position
            if self._ahead is None and self._postponed is None:
                self.audit.note_gap()
                self._append([], position)

    def take(self, max_records: int) -> list[LogRecord]:
        """Returns up to ``max_records`` records."""
        taken: list[LogRecord] = []
        while self._runs and (len(taken) < max_records or not self._runs[0].records):
            records, end, state = self._runs.popleft()
            free = max_records - len(taken)
            taken += records[:free]
            if len(records) > free:
                self._runs.appendleft(_Run(records[free:], end, state))
                self.position = records[free].offset
            else:
                self.position = end
                self._history.record(self.partition, end, state)
        self.buffered -= len(taken)
        return taken

    def _add(self, data: bytes, batch: RawBatch) -> Outcome:
        """Adds the records of a batch, unless the outcome is `UNDECIDED` or `RECHECK`."""
        records: list[Record] = []
        outcome = Outcome.VALID
        if batch.record_count:
            producer = ProducerEpoch(batch.producer_id, batch.producer_epoch)
            records = records_of(data, batch, self.fetch_offset)
            pairs = [(record.key or NO_KEY, record.value) for record in records]
            special = pairs if any(key in SPECIAL_KEYS for key, _ in pairs) else ()
            owned = not special and self.audit.is_owner(*producer)
            outcome = Outcome.VALID if owned else self.audit.check(batch.base_offset, producer, special)
            if outcome is Outcome.UNDECIDED and not self.audit.decidable:
                outcome = Outcome.VALID
            if outcome in (Outcome.UNDECIDED, Outcome.RECHECK):
                return outcome
            if outcome is Outcome.INVALID:
                self._reject(batch, (key for key, _ in pairs))
                records = []
            else:
                self.audit.note_valid(key for key, _ in pairs)
        found = [
            LogRecord(self.partition, offset, key or NO_KEY, value)
            for offset, _, key, value, *_ in records
            if key not in SPECIAL_KEYS
        ]
        self._append(found, batch.last_offset + 1)
        return outcome

    def _append(self, records: list[LogRecord], end: int) -> None:
        self.buffered += len(records)
        self._runs.append(_Run(records, end, self.audit.state))

    def _finds_claim(self, ahead: PartitionAudit, data: bytes, batch: RawBatch) -> bool:
        """Searches a batch for a valid claim. After the claim is found, goes back to the undecided batch."""
        special = special_records(data, batch, self.fetch_offset) if batch.record_count else ()
        if special:
            ahead.check(batch.base_offset, ProducerEpoch(batch.producer_id, batch.producer_epoch), special)
        if ahead.state.claimed_at != batch.base_offset:
            return False
        self.audit.decide_with(ahead.state.producer_ids)
        self.fetch_offset = self._undecided_at
        self._ahead = None
        return True


_MAX_WAIT_MS: Final = 250
_LIMITS: Final = FetchLimits(max_bytes=1 << 20, min_bytes=1, max_wait_ms=_MAX_WAIT_MS, response_bytes=8 << 20)
_REQUEST_TIMEOUT_S: Final = 3.0
"""The time without a response after which the follower looks up the leaders again."""
_BACKOFF: Final = Backoff(0.05, 0.5)
_MAX_BUFFERED_RECORDS: Final = 20_000
"""The follower requests no more records while the reader has not taken this number of records."""


class LogFollower:
    """Follows partitions of one topic. Only one thread at a time may use `follow`, `poll` and `position`; any thread
    may call `close`."""

    def __init__(self, client: Client, topic: str, history: LogHistory) -> None:
        self._client = client
        self._topic = topic
        self._history = history
        self._changed = threading.Condition()
        """Guards the partitions and the errors. Notified when there are records, new positions or errors."""
        self._partitions: dict[int, PartitionFollow] = {}
        self._served: set[PartitionFollow] = set()
        """The partitions that have a worker, and those that cannot be read any more."""
        self._error: OffsetMgrError | None = None
        self._final_error: Exception | None = None
        self._unknown_since: float | None = None
        """The time since which the brokers do not know the topic."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        """Set when partitions may need a worker."""
        self._drained = asyncio.Event()
        """Set when the reader may have taken records."""
        self._workers: set[asyncio.Task[None]] = set()
        self._closed = False

    # --- the thread of the reader --------------------------------------------------------------------

    def follow(self, starts: Mapping[int, int]) -> None:
        """See `LogReader.follow`."""
        with self._changed:
            known = self._partitions
            self._partitions = {
                partition: known[partition]
                if partition in known and known[partition].position == start
                else PartitionFollow(self._topic, partition, start, self._history)
                for partition, start in starts.items()
            }
        self._notify_loop(self._wake)

    def poll(self, max_records: int, timeout_s: float) -> Sequence[LogRecord]:
        """See `LogReader.poll`."""
        deadline = time.monotonic() + timeout_s
        try:
            with self._changed:
                while True:
                    records, moved = self._take(max_records)
                    remaining = deadline - time.monotonic()
                    if records or moved or remaining <= 0:
                        return records
                    self._changed.wait(remaining)
        finally:
            self._notify_loop(self._drained)

    def position(self, partition: int) -> int:
        """See `LogReader.position`. Raises `KeyError` for a partition that is not followed."""
        with self._changed:
            return self._partitions[partition].position

    def close(self) -> None:
        """Ends a `poll` of another thread with `LogClosed`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _take(self, max_records: int) -> tuple[list[LogRecord], bool]:
        """Returns the next records, and whether any position has advanced. Raises the errors of the event loop after
        the records that precede them."""
        if self._closed:
            raise LogClosed(f"reader of {self._topic}", "it was closed")
        records: list[LogRecord] = []
        moved = False
        for number, partition in list(self._partitions.items()):
            before = partition.position
            taken = partition.take(max_records - len(records))
            records += taken
            moved |= partition.position != before
            if taken:  # the partition comes last next time, so that a busy partition does not delay the others
                self._partitions[number] = self._partitions.pop(number)
        if not records and self._final_error is not None:
            raise self._final_error
        if not records and self._error is not None:
            error, self._error = self._error, None
            raise error
        return records, moved

    def _notify_loop(self, event: asyncio.Event) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(event.set)

    # --- the event loop ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Reads the followed partitions until the task is cancelled."""
        self._loop = asyncio.get_running_loop()
        retries = Retries(backoff=_BACKOFF)
        try:
            while True:
                self._wake.clear()
                with self._changed:
                    followed = set(self._partitions.values())
                self._served &= followed
                unserved = list(followed - self._served)
                if not unserved:
                    retries = Retries(backoff=_BACKOFF)
                    await self._wake.wait()
                elif not await self._start_workers(unserved):
                    await retries.pause()
        except Exception as error:
            self._fail(error)
            raise
        finally:
            for worker in self._workers:
                worker.cancel()
            await asyncio.gather(*self._workers, return_exceptions=True)

    async def _start_workers(self, unserved: Sequence[PartitionFollow]) -> bool:
        """Starts a worker for each leader of these partitions. Returns whether all of them have a leader."""
        by_name = {TopicPartition(self._topic, one.partition): one for one in unserved}
        deadline = asyncio.get_running_loop().time() + _REQUEST_TIMEOUT_S
        try:
            found = await find_leaders(self._client, list(by_name), deadline)
        except OffsetMgrError as error:
            self._note(error)
            return False
        by_leader: dict[Address, set[PartitionFollow]] = {}
        for tp, leader in found.items():
            if isinstance(leader, OffsetMgrError):
                self._note(leader)
            else:
                by_leader.setdefault(leader, set()).add(by_name[tp])
        for leader, partitions in by_leader.items():
            self._unknown_since = None
            self._served |= partitions
            worker = asyncio.create_task(self._work(leader, partitions))
            self._workers.add(worker)
            worker.add_done_callback(self._on_worker_ended)
        return all(one in self._served for one in unserved)

    def _on_worker_ended(self, worker: asyncio.Task[None]) -> None:
        self._workers.discard(worker)
        if not worker.cancelled() and isinstance(error := worker.exception(), Exception):
            self._fail(error)

    async def _work(self, leader: Address, partitions: set[PartitionFollow]) -> None:
        """Requests the records of these partitions from their leader until the worker has released all of them."""
        while partitions:
            with self._changed:
                followed = [one for one in self._partitions.values() if one in partitions]
                buffered = sum(one.buffered for one in self._partitions.values())
            if buffered >= _MAX_BUFFERED_RECORDS:
                self._drained.clear()
                await self._drained.wait()
                continue
            partitions = set(followed)
            found = await self._request(leader, followed) if followed else {}
            failed = await self._add(found)
            partitions -= failed.keys()
            retriable = [one for one, error in failed.items() if _is_transient(error)]
            if retriable:
                asyncio.get_running_loop().call_later(_BACKOFF.first_s, self._release, retriable)

    def _release(self, partitions: Iterable[PartitionFollow]) -> None:
        self._served.difference_update(partitions)
        self._wake.set()

    async def _request(
        self, leader: Address, partitions: Sequence[PartitionFollow]
    ) -> dict[PartitionFollow, FetchedPartition | OffsetMgrError]:
        """Requests the next bytes of these partitions. Returns no entry for a partition that the response omits."""
        by_name = {TopicPartition(self._topic, one.partition): one for one in partitions}
        offsets = {tp: one.fetch_offset for tp, one in by_name.items()}
        deadline = asyncio.get_running_loop().time() + _REQUEST_TIMEOUT_S
        try:
            # A separate connection, because a broker delays the response at the end of the log, and would delay later
            # requests of the same connection, too.
            async with self._client.node(leader).dedicated_connection(deadline) as dedicated:
                dedicated.mark_waiting()
                found = await fetch.fetch_log(dedicated.connection, offsets, remaining(deadline), _LIMITS)
        except OffsetMgrError as error:
            return dict.fromkeys(partitions, error)
        return {by_name[tp]: outcome for tp, outcome in found.items()}

    async def _add(
        self, found: Mapping[PartitionFollow, FetchedPartition | OffsetMgrError]
    ) -> dict[PartitionFollow, OffsetMgrError]:
        """Adds the bytes of a response. Returns the partitions that the worker cannot read any more."""
        failed: dict[PartitionFollow, OffsetMgrError] = {}
        empty = is_empty(found.values())
        for one, outcome in found.items():
            try:
                if isinstance(outcome, FetchedPartition):
                    self._add_data(one, outcome, empty)
                elif isinstance(outcome, OffsetOutOfRange):
                    deadline = asyncio.get_running_loop().time() + _REQUEST_TIMEOUT_S
                    partition = TopicPartition(self._topic, one.partition)
                    start = await start_of_log(self._client, partition, one.fetch_offset, deadline)
                    with self._changed:
                        one.skip_deleted(start)
                else:
                    raise outcome
            except OffsetMgrError as error:
                failed[one] = error
                self._note(error)
        with self._changed:
            self._changed.notify_all()
        return failed

    def _add_data(self, one: PartitionFollow, fetched: FetchedPartition, empty: bool) -> None:
        with self._changed:
            try:
                one.add_fetched(fetched, empty=empty)
            except OffsetMgrError as error:
                self._final_error = self._final_error or error
                raise

    def _note(self, error: OffsetMgrError) -> None:
        """Keeps an error for the next `poll`, unless it is transient. An unknown topic is transient for a moment,
        because a broker that has just started knows no topics."""
        now = time.monotonic()
        if isinstance(error, UnknownTopicOrPartition):
            if self._unknown_since is None:
                self._unknown_since = now
            if now < self._unknown_since + UNKNOWN_TOPIC_TIMEOUT_S:
                return
        elif is_retriable(error):
            return
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._final_error = self._final_error or error
            self._changed.notify_all()


def _is_transient(error: OffsetMgrError) -> bool:
    return is_retriable(error) or isinstance(error, UnknownTopicOrPartition)
