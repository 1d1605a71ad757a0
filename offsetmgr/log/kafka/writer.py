"""`KafkaSlotWriter`: appends to the partitions of one slot, each append a transaction.

The transactional id names the slot, never the process: whoever claims calls ``init_transactions`` on the same id, and
Kafka fences everybody who did so before (facts and alternatives: the ADR on fencing).

Which failure is which error:

* nothing had asked the coordinator to commit, and an abort was answered: `NotWritten` (or `TooLarge`);
* nothing had asked the coordinator to commit, but the abort had no answer in time: nothing will ever commit it, yet
  this producer cannot go on, so it is `OutcomeUnknown` too, the error after which a new writer claims;
* ``commit_transaction`` was called and has not answered, or with anything but success: `OutcomeUnknown`, except where
  the error asks for an abort and the abort succeeds, which the coordinator refuses for a transaction that it has
  begun to commit;
* the producer is fenced, wherever that shows: `Fenced`.

Threads: ``claim``, ``append`` and ``close`` block without holding the interpreter's lock, and may be called from any
thread, but from one at a time.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

import confluent_kafka as ck

from offsetmgr.cluster.kafka import error_of
from offsetmgr.errors import OffsetMgrError, TimedOut
from offsetmgr.log.base import Fenced, LogClosed, NotWritten, OutcomeUnknown, TooLarge
from offsetmgr.log.kafka.settings import SILENT
from offsetmgr.records.base import Record

_CLAIM_SLICE: Final = 1.0
_CLAIM_PAUSE: Final = 0.05
_ABORT_SHARE: Final = 0.3
"""The part of an append's time-out that is kept for aborting it."""
_LONGEST_ABORT: Final = 2.0

_FENCED_CODES: Final = frozenset(
    {ck.KafkaError._FENCED, ck.KafkaError.PRODUCER_FENCED, ck.KafkaError.INVALID_PRODUCER_EPOCH}
)
_TOO_LARGE_CODES: Final = frozenset({ck.KafkaError.MSG_SIZE_TOO_LARGE, ck.KafkaError.RECORD_LIST_TOO_LARGE})
_PURGED_CODES: Final = frozenset({ck.KafkaError._PURGE_QUEUE, ck.KafkaError._PURGE_INFLIGHT})

_RAISED: Final = (ck.KafkaException, BufferError, SystemError)


class KafkaSlotWriter:
    """See `offsetmgr.log.base.SlotWriter`. Constructing it begins to connect."""

    def __init__(self, topic: str, slot: int, settings: Mapping[str, Any]) -> None:
        self._topic = topic
        self._what = f"slot {slot} of {topic}"
        self._connection_error: ck.KafkaError | None = None
        self._producer: ck.Producer | None = ck.Producer({**settings, "error_cb": self._remember}, logger=SILENT)
        self._claimed = False
        self._used_up: OffsetMgrError | None = None

    def claim(self, timeout: float) -> None:
        """See `SlotWriter.claim`. One that runs into its time-out may still happen until the writer is closed."""
        producer, deadline = self._usable(), time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            try:
                producer.init_transactions(min(max(left, 0.001), _CLAIM_SLICE))
            except _RAISED as raised:
                error = _error_in(raised)
                with contextlib.suppress(*_RAISED):
                    producer.poll(0)  # lets it tell why
                if not error.retriable() or time.monotonic() >= deadline:
                    self._used_up = self._claim_failure(error)
                    raise self._used_up from None
                if error.code() != ck.KafkaError._TIMED_OUT:
                    time.sleep(_CLAIM_PAUSE)
            else:
                self._claimed = True
                return

    def append(self, batches: Mapping[int, Sequence[Record]], timeout: float) -> Mapping[int, int]:
        """See `SlotWriter.append`."""
        producer, deadline = self._usable(), time.monotonic() + timeout
        if not self._claimed:
            raise ValueError("append before claim")
        reserve = min(timeout * _ABORT_SHARE, _LONGEST_ABORT)
        reports: dict[int, tuple[ck.KafkaError | None, int]] = {}
        try:
            producer.begin_transaction()
            self._produce(producer, batches, reports)
            unsent = producer.flush(max(deadline - reserve - time.monotonic(), 0.001))
        except _RAISED as raised:
            self._abandon(producer, _error_in(raised), deadline)
        if failed := [error for error, _ in reports.values() if error is not None]:
            self._abandon(producer, _first_cause(failed), deadline)
        if unsent:
            self._abandon(producer, ck.KafkaError(ck.KafkaError._TIMED_OUT), deadline)
        self._commit(producer, deadline)
        if len(reports) != len(batches) or any(offset < 0 for _, offset in reports.values()):
            # Written, but the broker recognised a repetition of what it had already and did not say where that is.
            self._give_up(OutcomeUnknown(self._what, "written, at offsets that the broker did not tell"))
        return {partition: offset for partition, (_, offset) in reports.items()}

    def close(self) -> None:
        """See `SlotWriter.close`. An unfinished transaction is left to the next claim."""
        producer, self._producer = self._producer, None
        if self._used_up is None:
            self._used_up = LogClosed(self._what, "the writer was closed")
        if producer is not None:
            with contextlib.suppress(ck.KafkaException, RuntimeError):
                # Producer.close would wait for records to be delivered; this lets them go.
                producer.purge(in_queue=True, in_flight=True, blocking=False)

    def _remember(self, error: ck.KafkaError) -> None:
        if not error.fatal():
            self._connection_error = error

    def _usable(self) -> ck.Producer:
        if self._used_up is not None:
            raise self._used_up
        assert self._producer is not None
        return self._producer

    def _produce(
        self,
        producer: ck.Producer,
        batches: Mapping[int, Sequence[Record]],
        reports: dict[int, tuple[ck.KafkaError | None, int]],
    ) -> None:
        topic, produce = self._topic, producer.produce  # in a loop it is quicker than produce_batch, which takes dicts
        for partition, records in batches.items():
            last_key, last_value = records[-1]

            def delivered(error: ck.KafkaError | None, message: ck.Message, partition: int = partition) -> None:
                offset = message.offset()
                reports[partition] = error, -1 if offset is None else offset

            for key, value in records[:-1]:
                produce(topic, value, key, partition)
            produce(topic, last_value, last_key, partition, delivered)

    def _commit(self, producer: ck.Producer, deadline: float) -> None:
        try:
            producer.commit_transaction(max(deadline - time.monotonic(), 0.001))
        except _RAISED as raised:
            error = _error_in(raised)
            if error.txn_requires_abort():
                self._abandon(producer, error, deadline)
            self._give_up(self._lost(error))

    def _abandon(self, producer: ck.Producer, cause: ck.KafkaError, deadline: float) -> NoReturn:
        """Aborts the transaction, and raises what that makes of the append."""
        if cause.fatal():
            self._give_up(self._lost(cause))
        try:
            producer.abort_transaction(max(deadline - time.monotonic(), 0.001))
        except _RAISED as raised:
            error = _error_in(raised)
            self._give_up(self._lost(error if _is_fenced(error) else cause))
        if cause.code() in _TOO_LARGE_CODES:
            raise TooLarge(self._what, cause.str()) from None
        raise NotWritten(self._what, _reason(cause)) from None

    def _lost(self, error: ck.KafkaError) -> OffsetMgrError:
        """What an error means for an append whose end is not known to have been prevented."""
        if _is_fenced(error):
            return Fenced(self._what, "another writer has claimed it")
        return OutcomeUnknown(self._what, _reason(error))

    def _claim_failure(self, error: ck.KafkaError) -> OffsetMgrError:
        if _is_fenced(error):
            return Fenced(self._what, "another writer has claimed it")
        if error.code() != ck.KafkaError._TIMED_OUT:
            return error_of(error, self._what)
        if self._connection_error is not None:
            return error_of(self._connection_error, self._what)
        return TimedOut(self._what, "the claim was not answered within the time-out")

    def _give_up(self, error: OffsetMgrError) -> NoReturn:
        self._used_up = error
        raise error from None


def _error_in(raised: Exception) -> ck.KafkaError:
    """What librdkafka meant. confluent-kafka raises a fatal error from inside whatever callback is next, which turns
    it into a SystemError."""
    source = raised.__cause__ if isinstance(raised, SystemError) else raised
    if isinstance(source, ck.KafkaException):
        found: ck.KafkaError = source.args[0]
        return found
    if isinstance(raised, BufferError):
        return ck.KafkaError(ck.KafkaError._QUEUE_FULL)
    return ck.KafkaError(ck.KafkaError._FATAL, str(raised), fatal=True)


def _is_fenced(error: ck.KafkaError) -> bool:
    return error.code() in _FENCED_CODES


def _first_cause(errors: Sequence[ck.KafkaError]) -> ck.KafkaError:
    """The error that made the others: records that are thrown away because others failed say nothing."""
    return next((error for error in errors if error.code() not in _PURGED_CODES), errors[0])


def _reason(error: ck.KafkaError) -> str:
    return f"{error.str()} ({error.name()})"
