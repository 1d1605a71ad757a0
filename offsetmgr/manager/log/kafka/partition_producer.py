"""`PartitionProducer`: the producer state of one partition, and the meaning of every response to its batches. Pure.

At most one batch of a partition is in flight. Its bytes never change until its outcome is certain, because a broker
answers a resent batch without comparing the content. The rules:

- The broker reports success with the offset that the producer expects: the batch is *written*. With another offset,
  another producer has appended, and only a new claim can determine the state of the log.
- The first send is rejected before the append (too few replicas, too large): nothing is written, and the next batch may
  use the same sequence numbers. After a rejection that is temporary, the same batch is sent again.
- No response, or an error that may follow the append: the batch may be written. From then on it is *uncertain*: the
  same bytes are sent again. A rejection of a resend decides nothing about the first send.
- The broker knows a newer epoch: the producer is *fenced* for good.
- The outcome is still unknown at the deadline: a new epoch, a claim and a read of the log up to the claim settle it.

Source: org.apache.kafka.storage.internals.log (ProducerAppendInfo, ProducerStateManager), kafka.server.DelayedProduce.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Final

from offsetmgr.core.clock import BrokersClock, boottime
from offsetmgr.core.errors import ErrorCode, OffsetMgrError, ServerError
from offsetmgr.core.retry import Backoff, Retries
from offsetmgr.kafka.client.connection import attempt_deadline
from offsetmgr.kafka.client.fetch import ProduceResult
from offsetmgr.kafka.client.producers import ProducerEpoch
from offsetmgr.kafka.protocol.errors import reason
from offsetmgr.kafka.protocol.frames import Address
from offsetmgr.manager.log.base import AppendRejected, Fenced, OutcomeUnknown, TooLarge
from offsetmgr.manager.log.kafka.leader_connections import LeaderConnection, LeaderConnections
from offsetmgr.records.base import EncodedRecord
from offsetmgr.segments.append_batch import append_batch
from offsetmgr.segments.batch_builder import Producer

_SEQUENCES: Final = 1 << 31
"""Sequence numbers are positive 32-bit numbers; 0 follows the largest one."""

_FENCED_CODES: Final = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED})
_TOO_LARGE_CODES: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
_LEADER_CODES: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""The broker does not lead the partition. It may have led the partition before: if another broker becomes the leader
while this one waits for its followers, it responds with NOT_LEADER_OR_FOLLOWER or, if it no longer has the partition,
with UNKNOWN_TOPIC_OR_PARTITION. The new leader may have the batch."""
_NOT_APPENDED_CODES: Final = frozenset({ErrorCode.NOT_ENOUGH_REPLICAS})
"""Temporary rejections before the append."""
_AFTER_APPEND_CODES: Final = _LEADER_CODES | frozenset(
    {
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    }
)
"""Errors after which the batch may be in the log."""
_STATE_CODES: Final = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    }
)
"""The broker's state of the producer is not the expected one."""


class Step(Enum):
    """The next step after a response."""

    DONE = auto()
    """The batch is written, or `PartitionProducer.failure` is its error."""
    RESEND = auto()
    """Send the same batch again."""
    RESEND_TO_LEADER = auto()
    """Look up the leader and send the same batch again."""


class PartitionProducer:
    """The producer of one partition. ``what`` names the partition in errors."""

    def __init__(
        self,
        what: str,
        epoch: ProducerEpoch,
        next_offset: int | None = None,
        older_ids: frozenset[int] = frozenset(),
        *,
        listed: bool = False,
    ) -> None:
        """``next_offset`` is the expected offset of the first batch; None if any offset is possible, as for the first
        claim. ``older_ids`` are the other producer ids that the partition had before. ``listed`` is True if the leader
        has a state of the producer id from earlier epochs."""
        self.epoch: Final = epoch
        self.older_ids: Final = older_ids
        self.next_offset = next_offset
        self.batch = b""
        """The batch in flight; empty if there is none."""
        self.failure: OffsetMgrError | None = None
        """The error of the last batch; None if it was written."""
        self.usable = True
        """False after `Fenced` and `OutcomeUnknown`: the producer can send no other batch."""
        self._what = what
        self._listed = listed
        self._sequence = 0
        self._written = False
        """Whether the partition has a batch of this epoch."""
        self._records = 0
        self._uncertain = False
        self._last_refusal = "no broker answered"

    def begin(self, records: Sequence[EncodedRecord]) -> None:
        """Encodes the next batch. Only one batch may be in flight."""
        assert self.usable and not self.batch
        self._records = len(records)
        self.batch = append_batch(records, Producer(self.epoch.id, self.epoch.epoch, self._sequence))
        self.failure, self._uncertain = None, False

    def on_result(self, result: ProduceResult) -> Step:
        """Handles the broker's response to a send or a resend."""
        code = result.error_code
        if code == ErrorCode.NONE:
            return self._on_success(result.first_offset)
        if code in _FENCED_CODES:
            return self._fail(Fenced(self._what, "another manager has claimed it"))
        self._last_refusal = reason(code)
        if code in _NOT_APPENDED_CODES or code in _AFTER_APPEND_CODES:
            self._uncertain |= code in _AFTER_APPEND_CODES
            return Step.RESEND_TO_LEADER if code in _LEADER_CODES else Step.RESEND
        if self._uncertain or code in _STATE_CODES:
            return self._fail(OutcomeUnknown(self._what, self._last_refusal))
        kind = TooLarge if code in _TOO_LARGE_CODES else AppendRejected
        return self._fail(kind(self._what, self._last_refusal))

    def on_no_response(self, error: OffsetMgrError) -> None:
        """Handles a send whose response did not arrive. The same batch is sent again."""
        self._uncertain = True
        self._last_refusal = str(error)

    def on_not_sent(self, error: OffsetMgrError) -> None:
        """Handles an attempt that ended before the batch was sent."""
        self._last_refusal = str(error)

    def on_deadline(self) -> None:
        """Ends the batch in flight without a response."""
        kind = OutcomeUnknown if self._uncertain else AppendRejected
        self._fail(kind(self._what, self._last_refusal))

    def on_owners(self, epochs: dict[int, int]) -> None:
        """Compares the producers of which the leader has a state (producer id to epoch) with this one, before the first
        batch on a connection. Sets `failure` if this producer is not the newest one."""
        own = epochs.get(self.epoch.id)
        newer = epochs.keys() - self.older_ids - {self.epoch.id}
        if newer or (own is not None and own > self.epoch.epoch):
            self._fail(Fenced(self._what, "another manager has claimed it"))
        elif (self._written and own != self.epoch.epoch) or (self._listed and own is None):
            self._fail(OutcomeUnknown(self._what, "the leader has no state of this manager's producer"))

    def _on_success(self, first_offset: int) -> Step:
        if self.next_offset is not None and first_offset != self.next_offset:
            why = f"its batch was written at offset {first_offset}, but {self.next_offset} was the end of the log"
            return self._fail(OutcomeUnknown(self._what, why))
        self.next_offset = first_offset + self._records
        self._written = True
        self._sequence = (self._sequence + self._records) % _SEQUENCES
        self.batch = b""
        return Step.DONE

    def _fail(self, error: OffsetMgrError) -> Step:
        self.failure, self.batch = error, b""
        if isinstance(error, Fenced | OutcomeUnknown):
            self.usable = False
        return Step.DONE


# `BatchSender`: sends the batches of partition producers to the leaders, until every outcome is certain or the
# deadline passes. `PartitionProducer` decides what each response means.

_RESEND_BACKOFF: Final = Backoff(0.01, 0.25)


class BatchSender:
    """Sends batches over ``connections``. ``clock`` receives the times of the appends."""

    def __init__(self, connections: LeaderConnections, clock: BrokersClock) -> None:
        self._connections = connections
        self._clock = clock

    async def send(self, producers: Mapping[int, PartitionProducer], deadline: float, *, check: bool = True) -> None:
        """Sends the batch that each producer has begun. If ``check`` is False, a batch may go over a connection on
        which the producers of its partition were not checked; only batches that fence an older producer id may do so.
        Raises `LogClosed`."""
        left = dict(producers)
        retries = Retries(deadline, _RESEND_BACKOFF)
        while left:
            self._connections.check_open()
            try:
                leaders, errors = await self._connections.by_leader(left, attempt_deadline(deadline))
            except OffsetMgrError as error:
                leaders, errors = {}, dict.fromkeys(left, error)
            for number, failure in errors.items():
                left[number].on_not_sent(failure)
            sends = [
                self._send_to(leader, {number: left[number] for number in numbers}, deadline, check=check)
                for leader, numbers in leaders.items()
            ]
            if len(sends) == 1:
                await sends[0]
            else:
                await asyncio.gather(*sends)
            left = {number: producer for number, producer in left.items() if producer.batch}
            if left and not await retries.pause():
                for producer in left.values():
                    producer.on_deadline()
                return

    async def _send_to(
        self, leader: Address, producers: Mapping[int, PartitionProducer], deadline: float, *, check: bool
    ) -> None:
        """Makes one attempt to send the batches to a leader."""
        attempt = attempt_deadline(deadline)
        try:
            connection = await self._connections.connection(leader, attempt)
            if check and not connection.checked.issuperset(producers):
                await self._check_owners(connection, producers, attempt)
        except OffsetMgrError as error:
            for number, producer in producers.items():
                if producer.batch:
                    producer.on_not_sent(error)
                    self._connections.forget_leader(number)
            return
        sent = {number: producer for number, producer in producers.items() if producer.batch}
        if not sent:
            return
        sent_at = boottime()
        try:
            results = await connection.produce({number: producer.batch for number, producer in sent.items()}, attempt)
        except OffsetMgrError as error:
            for number, producer in sent.items():
                producer.on_no_response(error)
                self._connections.forget_leader(number)
            return
        for number, producer in sent.items():
            result = results.get(number)
            if result is not None and not producer._uncertain:
                self._clock.measure(leader, result.append_time_ms, sent_at)
            if result is None:
                producer.on_no_response(_incomplete(leader))
            elif producer.on_result(result) is Step.RESEND_TO_LEADER:
                self._connections.forget_leader(number)

    async def _check_owners(
        self, connection: LeaderConnection, producers: Mapping[int, PartitionProducer], deadline: float
    ) -> None:
        """Checks on a new connection that no other manager has claimed a partition. Ends the batch of a producer that
        is not the newest one any more."""
        numbers = [number for number in producers if number not in connection.checked]
        described = await connection.describe_producers(numbers, deadline)
        for number in numbers:
            epochs = described.get(number)
            if epochs is None or isinstance(epochs, OffsetMgrError):
                raise epochs or _incomplete(f"{number}")
            producers[number].on_owners(epochs)
            if producers[number].usable:
                connection.checked.add(number)


def _incomplete(where: object) -> ServerError:
    return ServerError(f"offsets topic at {where}", "the broker's response is incomplete")
