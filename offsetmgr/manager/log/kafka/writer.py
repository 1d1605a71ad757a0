"""`KafkaShardGroupWriter`: appends to the partitions of a shard group with plain idempotent batches. No append is a
transaction.

Each partition has a transactional id, only to receive producer ids and epochs. A takeover requests a new epoch and
appends a *claim* (`offsetmgr.records.claim`) as the first batch of the epoch. From then on the leader of the partition
rejects every batch of an earlier epoch, so the claim fences the former owner in this partition. `PartitionProducer`
decides about responses, `LeaderConnections` about connections.

A claim takes these steps, in this order:

1. The coordinator of the transactional id increments the epoch. A first claim does so unconditionally. A later claim of
   the same writer presents its producer id and epoch, so it succeeds only if no other manager has made a claim since.
2. The leader lists the producers of the partition (DescribeProducers). An epoch above the new one means that another
   manager has claimed the partition meanwhile.
3. If the leader lists other producer ids, the coordinator has forgotten an earlier producer id, and the new epoch does
   not fence it. The writer increments the epoch again, conditionally. If the producer id is still the same, every
   listed id is older than this claim, and the writer appends a batch with the largest epoch for each of them.
4. The writer appends the claim, and reads it back to compare its token.
5. If the leader did not list the claim's own producer id in step 2, its state cannot prove that the claim is the newest
   one: the brokers may have dropped the state of another manager's claim, or another manager may have claimed with
   another producer id at the same time. The writer increments the epoch again, conditionally. If that succeeds, no
   other manager has received an epoch since step 1.

Source: KIP-98, KIP-360, KIP-664.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from offsetmgr.core.errors import CoordinatorNotAvailable, OffsetMgrError
from offsetmgr.core.retry import Retries
from offsetmgr.kafka.client.connection import attempt_deadline
from offsetmgr.kafka.client.producers import ProducerEpoch
from offsetmgr.kafka.protocol.errors import ProducerFenced
from offsetmgr.manager.log.base import AppendOutcome, Fenced, LogClosed, OutcomeUnknown, TooLarge
from offsetmgr.manager.log.kafka.leader_connections import LeaderConnection, LeaderConnections
from offsetmgr.manager.log.kafka.log_history import LogHistory
from offsetmgr.manager.log.kafka.partition_producer import BatchSender, PartitionProducer
from offsetmgr.records.base import EncodedRecord
from offsetmgr.records.claim import CLAIM_KEY, FENCE_KEY, Claim, decode_claim, encode_claim
from offsetmgr.segments.batch_reader import batches as read_batches

T = TypeVar("T")

LARGEST_EPOCH: Final = 32_767
"""No producer can have a larger epoch. A batch with this epoch fences its producer id for good."""


class WriterOptions(NamedTuple):
    """The settings of a writer that do not depend on its shard group. ``manager`` names this process in claims."""

    topic: str
    manager: str
    max_message_bytes: int


class KafkaShardGroupWriter:
    """Implements `offsetmgr.manager.log.base.ShardGroupWriter`. The constructor performs no I/O. Use the writer on the
    event loop of ``connections``."""

    def __init__(
        self,
        shard_group: int,
        partitions: Sequence[int],
        connections: LeaderConnections,
        options: WriterOptions,
        history: LogHistory,
    ) -> None:
        self._what = f"shard group {shard_group} of {options.topic}"
        self._partitions = list(partitions)
        self._options = options
        self._topic = options.topic
        self._history = history
        self._connections = connections
        self._sender = BatchSender(connections, history.clock)
        self._producers: dict[int, PartitionProducer] = {}
        self._epochs: dict[int, ProducerEpoch] = {}
        """The producer ids and epochs that the coordinator returned to this writer. No other process may present
        them."""
        self._unlisted: set[int] = set()
        """The partitions whose leader has listed no state of the claim's own producer id."""
        self._terminal_error: OffsetMgrError | None = None

    # --- claims --------------------------------------------------------------------------------------

    async def claim(self, timeout_s: float) -> Mapping[int, int]:
        """See `ShardGroupWriter.claim`."""
        self._check_usable()
        deadline = asyncio.get_running_loop().time() + timeout_s
        try:
            await self._new_epochs(self._partitions, deadline)
            await self._fence_other_ids(deadline)
            producers = await self._append_claims(deadline)
            await self._new_epochs(self._unlisted, deadline)
        except Fenced as error:
            self._terminal_error = error
            self._connections.close()
            raise
        ends = _ends(producers)
        self._history.raise_ends({number: end - 1 for number, end in ends.items()})
        self._producers = producers
        return ends

    @property
    def claimed(self) -> bool:
        """See `ShardGroupWriter.claimed`."""
        return bool(self._producers) and self._terminal_error is None

    async def complete_claim(self, timeout_s: float) -> Mapping[int, AppendOutcome]:
        """See `ShardGroupWriter.complete_claim`."""
        incomplete = [number for number in self._partitions if self._history.is_incomplete(number)]
        if not incomplete:
            return {}
        claims = {number: [self._claim_record(number)[1]] for number in incomplete}
        outcomes = await self.append(claims, timeout_s)
        for number, outcome in outcomes.items():
            if isinstance(outcome, int):
                self._history.on_claimed(number)
        return outcomes

    async def _new_epochs(self, partitions: Iterable[int], deadline: float) -> None:
        current = {number: self._epochs.get(number) for number in partitions}
        failure: OffsetMgrError | None = None
        for number, found in (await self._connections.new_epochs(current, deadline)).items():
            before = current[number]
            if isinstance(found, ProducerFenced) or (
                isinstance(found, ProducerEpoch) and before is not None and found.id != before.id
            ):
                raise Fenced(self._what, "another manager has claimed it")
            if isinstance(found, OffsetMgrError):
                failure = found
            else:
                self._epochs[number] = found
        if failure is not None:
            raise failure

    async def _fence_other_ids(self, deadline: float) -> None:
        others = await self._other_ids(deadline)
        if not others:
            return
        await self._new_epochs(others, deadline)
        for number, ids in others.items():
            for producer_id in sorted(ids):
                producer = PartitionProducer(f"{self._topic}-{number}", ProducerEpoch(producer_id, LARGEST_EPOCH))
                producer.begin([(FENCE_KEY, None)])
                await self._sender.send({number: producer}, deadline, check=False)
                if producer.failure is not None:
                    raise producer.failure

    async def _other_ids(self, deadline: float) -> dict[int, set[int]]:
        """Returns the other producer ids of each partition that can still append. Marks the partitions as checked on
        their connections. Raises `Fenced` if another manager has a newer epoch."""
        found: dict[int, set[int]] = {}
        retries = Retries(deadline)
        missing = set(self._partitions)
        while missing:
            answers, failure = await self._ask_leaders(missing, LeaderConnection.describe_producers, deadline)
            for number, (connection, epochs) in answers.items():
                own = self._epochs[number]
                if epochs.get(own.id, -1) > own.epoch:
                    raise Fenced(f"{self._topic}-{number}", "another manager has claimed it")
                self._history.add_ids(number, epochs)
                (self._unlisted.discard if own.id in epochs else self._unlisted.add)(number)
                found[number] = {one for one, epoch in epochs.items() if one != own.id and epoch != LARGEST_EPOCH}
                connection.checked.add(number)
                missing.discard(number)
            if missing and not await retries.pause():
                raise failure or CoordinatorNotAvailable(self._what, "its partitions have no leader")
        return {number: ids for number, ids in found.items() if ids}

    async def _append_claims(self, deadline: float) -> dict[int, PartitionProducer]:
        """Appends and confirms one claim in each partition. Returns the producers of the claims."""
        # The offsets at which claims by the current owner must be written.
        expected = {number: producer.next_offset for number, producer in self._producers.items() if producer.usable}
        self._producers = {}  # from now on the brokers may reject the earlier epochs
        tokens: dict[int, str] = {}
        producers: dict[int, PartitionProducer] = {}
        for number in self._partitions:
            epoch, older_ids = self._epochs[number], frozenset(self._history.ids(number))
            self._history.add_ids(number, (epoch.id,))
            producer = PartitionProducer(
                f"{self._topic}-{number}", epoch, expected.get(number), older_ids, listed=number not in self._unlisted
            )
            tokens[number], record = self._claim_record(number)
            producer.begin([record])
            producers[number] = producer
        await self._sender.send(producers, deadline)
        for number, producer in producers.items():
            if producer.failure is not None:
                raise producer.failure
            self._history.on_claimed(number)
        await self._compare_tokens(tokens, _ends(producers), deadline)
        return producers

    def _claim_record(self, partition: int) -> tuple[str, EncodedRecord]:
        token = uuid.uuid4().hex
        known, now_ms = self._history, self._history.clock.now_ms()
        complete_from = known.deleted.complete_from[partition]
        claim = Claim(token, self._options.manager, now_ms, known.ids(partition), complete_from)
        return token, encode_claim(claim)

    async def _compare_tokens(self, tokens: Mapping[int, str], ends: Mapping[int, int], deadline: float) -> None:
        """Reads the claims back. Raises `OutcomeUnknown` if a partition has another record at its claim's offset."""
        retries = Retries(deadline)
        left = dict(tokens)

        async def read(
            connection: LeaderConnection, numbers: Sequence[int], attempt: float
        ) -> Mapping[int, bytes | OffsetMgrError]:
            return await connection.read({number: ends[number] - 1 for number in numbers}, attempt)

        while left:
            answers, failure = await self._ask_leaders(left, read, deadline)
            for number, (_, found) in answers.items():
                if _token_at(found, ends[number] - 1) == left[number]:
                    del left[number]
                elif found:
                    why = "the record at the offset of the claim is not the claim"
                    raise OutcomeUnknown(f"{self._topic}-{number}", why)
            if left and not await retries.pause():
                raise failure or OutcomeUnknown(self._what, "its claims cannot be read back")

    async def _ask_leaders(
        self,
        partitions: Iterable[int],
        ask: Callable[[LeaderConnection, Sequence[int], float], Awaitable[Mapping[int, T | OffsetMgrError]]],
        deadline: float,
    ) -> tuple[dict[int, tuple[LeaderConnection, T]], OffsetMgrError | None]:
        """Makes one attempt to send a request to the leader of each partition. Returns the answers with their
        connections, and an error of another partition. The next attempt looks up the leaders of such partitions again.
        Raises an error of the lookup that is not retriable."""
        try:
            leaders, errors = await self._connections.by_leader(sorted(partitions), attempt_deadline(deadline))
        except OffsetMgrError as error:
            if not error.retriable:
                raise
            return {}, error
        failure = next(iter(errors.values()), None)
        found: dict[int, tuple[LeaderConnection, T]] = {}
        for leader, numbers in leaders.items():
            attempt = attempt_deadline(deadline)
            try:
                connection = await self._connections.connection(leader, attempt)
                answers = await ask(connection, numbers, attempt)
            except OffsetMgrError as error:
                answers = dict.fromkeys(numbers, error)
            for number, answer in answers.items():
                if isinstance(answer, OffsetMgrError):
                    failure = answer
                    self._connections.forget_leader(number)
                else:
                    found[number] = connection, answer
        return found, failure

    # --- appends -------------------------------------------------------------------------------------

    async def append(
        self, batches: Mapping[int, Sequence[EncodedRecord]], timeout_s: float
    ) -> Mapping[int, AppendOutcome]:
        """See `ShardGroupWriter.append`."""
        self._check_usable()
        if not self._producers:
            raise ValueError("append before claim")
        deadline = asyncio.get_running_loop().time() + timeout_s
        outcomes: dict[int, AppendOutcome] = {}
        producers: dict[int, PartitionProducer] = {}
        for number, records in batches.items():
            producer = self._producers[number]
            if not producer.usable and producer.failure is not None:
                outcomes[number] = producer.failure
                continue
            producer.begin(records)
            if len(producer.batch) > self._options.max_message_bytes:
                size, producer.batch = len(producer.batch), b""
                limit = self._options.max_message_bytes
                outcomes[number] = TooLarge(f"{self._topic}-{number}", f"a batch of {size} bytes, allowed are {limit}")
                continue
            producers[number] = producer
        await self._sender.send(producers, deadline)
        written: dict[int, int] = {}
        for number, producer in producers.items():
            if producer.failure is None:
                assert producer.next_offset is not None
                written[number] = producer.next_offset - 1
            else:
                outcomes[number] = producer.failure
        self._history.raise_ends(written)
        return {**outcomes, **written}

    # --- end -----------------------------------------------------------------------------------------

    def close(self) -> None:
        """See `ShardGroupWriter.close`."""
        if self._terminal_error is None:
            self._terminal_error = LogClosed(self._what, "the writer was closed")
        self._connections.close()

    def _check_usable(self) -> None:
        if self._terminal_error is not None:
            raise self._terminal_error


def _ends(producers: Mapping[int, PartitionProducer]) -> dict[int, int]:
    """Returns the offset after the last batch of each producer."""
    return {number: producer.next_offset or 0 for number, producer in producers.items()}


def _token_at(data: bytes, offset: int) -> str | None:
    """Returns the token of the claim at ``offset``; None if there is no claim."""
    for batch in read_batches(data, offset):
        for record in batch.records:
            if record.offset == offset and record.key == CLAIM_KEY and record.value is not None:
                return decode_claim(record.value).token
    return None
