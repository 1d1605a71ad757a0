"""`KafkaShardGroupWriter`: appends to the partitions of a shard group, in one transaction for each append.

The transactional id identifies the shard group and not the process. A claim calls ``init_transactions`` with this id,
which makes Kafka fence all earlier writers.

Failures map to errors as follows:

- The writer had not sent the commit, and the abort succeeded: `AppendRejected` (or `TooLarge`).
- The writer had not sent the commit, but the abort was not answered in time: `OutcomeUnknown`. The transaction will
  never be committed, but this producer cannot continue, and `OutcomeUnknown` makes the caller claim with a new writer.
- ``commit_transaction`` was called and did not succeed: `OutcomeUnknown`. There is one exception: if librdkafka
  requires an abort and the abort succeeds, the writer raises `AppendRejected`. In this case the coordinator had not
  begun to commit the transaction, because otherwise it would have rejected the abort.
- The producer is fenced at any point: `Fenced`.

``claim`` and ``append`` block, mostly with the interpreter's lock released, so they run on a thread of the shard group
and never on an event loop. Any thread may call the methods, but only one thread at a time.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

import confluent_kafka as ck

from offsetmgr.core.errors import CoordinatorNotAvailable, OffsetMgrError, TimedOut
from offsetmgr.kafka.cluster.librdkafka import error_of
from offsetmgr.manager.log.base import AppendRejected, Fenced, LogClosed, OutcomeUnknown, TooLarge
from offsetmgr.manager.log.kafka.known_log_ends import KnownLogEnds
from offsetmgr.manager.log.kafka.linger import AdaptiveLinger
from offsetmgr.manager.log.kafka.settings import SILENT
from offsetmgr.records.base import EncodedRecord

_FIRST_CLAIM_ATTEMPT_S: Final = 0.05
_CLIENT_RETRY_PAUSE_S: Final = 0.5
"""While the broker ends the transaction of an earlier writer, it rejects the claim. After this rejection, the client
waits for this time before it retries the claim, and no setting can change the time. A new client claims at once."""
_ABORT_SHARE: Final = 0.3
"""The fraction of an append's timeout that is reserved for its abort."""
_MAX_ABORT_S: Final = 2.0

_FENCED_CODES: Final = frozenset(
    {ck.KafkaError._FENCED, ck.KafkaError.PRODUCER_FENCED, ck.KafkaError.INVALID_PRODUCER_EPOCH}
)
_TOO_LARGE_CODES: Final = frozenset({ck.KafkaError.MSG_SIZE_TOO_LARGE, ck.KafkaError.RECORD_LIST_TOO_LARGE})
_PURGED_CODES: Final = frozenset({ck.KafkaError._PURGE_QUEUE, ck.KafkaError._PURGE_INFLIGHT})

CLAIM_KEY: Final = b"\x7f\xffclaim"
"""The key of the record that a claim writes in an aborted transaction. No record format uses this key's version, so
tools that read aborted records skip the record."""

_CLIENT_EXCEPTIONS: Final = (ck.KafkaException, BufferError, SystemError)


class KafkaShardGroupWriter:
    """Implements `offsetmgr.manager.log.base.ShardGroupWriter`. The constructor starts to connect."""

    def __init__(
        self, topic: str, shard_group: int, partitions: Sequence[int], settings: Mapping[str, Any], ends: KnownLogEnds
    ) -> None:
        self._topic = topic
        self._partitions = partitions
        self._known_ends = ends
        self._what = f"shard group {shard_group} of {topic}"
        self._settings = settings
        self._connection_error: ck.KafkaError | None = None
        self._producer: ck.Producer | None = self._connect()
        self._claimed = False
        self._linger = AdaptiveLinger()
        self._last_append_ended_at = 0.0
        self._terminal_error: OffsetMgrError | None = None

    def claim(self, timeout_s: float) -> None:
        """Works as `ShardGroupWriter.claim`. Raises `TimedOut`, `Fenced`, `AppendRejected` (too few replicas) and
        errors of the broker. After an error the writer cannot be used any more."""
        self._check_usable()
        deadline = time.monotonic() + timeout_s
        try:
            self._fence_others(deadline)
            self._confirm_ends(deadline)
        except OffsetMgrError as error:
            self._fail(error)
        self._claimed = True

    def append(self, batches: Mapping[int, Sequence[EncodedRecord]], timeout_s: float) -> Mapping[int, int]:
        """See `ShardGroupWriter.append`."""
        self._check_usable()
        if not self._claimed:
            raise ValueError("append before claim")
        deadline = time.monotonic() + timeout_s
        started_at = time.monotonic()
        offsets = self._send(batches, deadline, min(timeout_s * _ABORT_SHARE, _MAX_ABORT_S))
        self._linger.on_confirmed(time.monotonic() - started_at)
        self._commit(deadline)
        self._last_append_ended_at = time.monotonic()
        if len(offsets) != len(batches):
            # The records were written, but the broker treated a retry as a duplicate and did not report their offsets.
            self._fail(
                OutcomeUnknown(self._what, "the records were written, but the broker did not report their offsets")
            )
        self._known_ends.raise_to(offsets)
        return offsets

    @property
    def ready_at(self) -> float:
        """Works as `ShardGroupWriter.ready_at`, with `AdaptiveLinger`."""
        return self._last_append_ended_at + self._linger.wait_s

    def close(self) -> None:
        """Works as `ShardGroupWriter.close`. An unfinished transaction stays open until the next claim ends it."""
        if self._terminal_error is None:
            self._terminal_error = LogClosed(self._what, "the writer was closed")
        self._producer = None

    @property
    def _open_producer(self) -> ck.Producer:
        """The producer. ``self._producer`` must be the only reference to the producer, so that the producer is
        destroyed when ``self._producer`` is set to None. A failed producer keeps sending its requests until the
        producer is destroyed, and its late claim could fence a newer writer. A local variable would keep the producer
        alive for as long as an exception refers to the stack frame. (`Producer.close` is no alternative, because it
        would wait for all records.)"""
        if self._producer is None:
            raise self._terminal_error or LogClosed(self._what, "the writer was closed")
        return self._producer

    def _connect(self) -> ck.Producer:
        return ck.Producer({**self._settings, "error_cb": self._on_client_error}, logger=SILENT)

    def _on_client_error(self, error: ck.KafkaError) -> None:
        if not error.fatal():
            self._connection_error = error

    def _check_usable(self) -> None:
        if self._terminal_error is not None:
            raise self._terminal_error

    def _fence_others(self, deadline: float) -> None:
        attempt_s = _FIRST_CLAIM_ATTEMPT_S
        while True:
            left = deadline - time.monotonic()
            try:
                self._open_producer.init_transactions(min(max(left, 0.001), attempt_s))
            except _CLIENT_EXCEPTIONS as raised:
                error = _error_in(raised)
                with contextlib.suppress(*_CLIENT_EXCEPTIONS):
                    self._open_producer.poll(0)  # calls the error callback with the reason
                if not error.retriable() or time.monotonic() >= deadline:
                    raise self._claim_failure(error) from None
                if error.code() == ck.KafkaError.CONCURRENT_TRANSACTIONS and attempt_s < _CLIENT_RETRY_PAUSE_S:
                    self._producer = self._connect()
                    attempt_s *= 2
            else:
                return

    def _confirm_ends(self, deadline: float) -> None:
        """Determines an offset in each partition that is above every acknowledged record: writes a record, waits until
        the in-sync replicas confirm it, and aborts the transaction. A request for the end offset is not enough: if a
        broker was frozen and has not noticed that it is no longer the leader, it returns an outdated end offset.
        """
        batches = {partition: [(CLAIM_KEY, None)] for partition in self._partitions}
        offsets = self._send(batches, deadline, (deadline - time.monotonic()) * _ABORT_SHARE)
        try:
            self._open_producer.abort_transaction(max(deadline - time.monotonic(), 0.001))
        except _CLIENT_EXCEPTIONS as raised:
            raise self._claim_failure(_error_in(raised)) from None
        self._known_ends.raise_to(offsets)

    def _send(self, batches: Mapping[int, Sequence[EncodedRecord]], deadline: float, reserve: float) -> dict[int, int]:
        """Begins a transaction, sends the records and waits until they are confirmed. Returns the last offset of each
        partition for which the broker reported an offset. ``reserve`` is the time (seconds) before the deadline that is
        reserved for an abort."""
        reports: dict[int, tuple[ck.KafkaError | None, int]] = {}
        try:
            self._open_producer.begin_transaction()
            self._produce(batches, reports)
            unconfirmed = self._open_producer.flush(max(deadline - reserve - time.monotonic(), 0.001))
        except _CLIENT_EXCEPTIONS as raised:
            self._abort_and_raise(_error_in(raised), deadline)
        if failed := [error for error, _ in reports.values() if error is not None]:
            self._abort_and_raise(_first_cause(failed), deadline)
        if unconfirmed:
            self._abort_and_raise(ck.KafkaError(ck.KafkaError._TIMED_OUT), deadline)
        return {partition: offset for partition, (_, offset) in reports.items() if offset >= 0}

    def _produce(
        self,
        batches: Mapping[int, Sequence[EncodedRecord]],
        reports: dict[int, tuple[ck.KafkaError | None, int]],
    ) -> None:
        def delivered(error: ck.KafkaError | None, message: Any) -> None:
            offset = message.offset()
            reports[message.partition()] = error, -1 if offset is None else offset

        topic, produce = (
            self._topic,
            self._open_producer.produce,
        )  # a loop is faster than `produce_batch`, which needs a dict for each record
        try:
            for partition, records in batches.items():
                for key, value in records[:-1]:
                    produce(topic, value, key, partition)
                key, value = records[-1]
                produce(topic, value, key, partition, delivered)
        finally:
            del produce

    def _commit(self, deadline: float) -> None:
        try:
            self._open_producer.commit_transaction(max(deadline - time.monotonic(), 0.001))
        except _CLIENT_EXCEPTIONS as raised:
            error = _error_in(raised)
            if error.txn_requires_abort():
                self._abort_and_raise(error, deadline)
            self._fail(self._commit_error(error))

    def _abort_and_raise(self, cause: ck.KafkaError, deadline: float) -> NoReturn:
        """Aborts the transaction and raises the error of the append."""
        if cause.fatal():
            self._fail(self._commit_error(cause))
        try:
            self._open_producer.abort_transaction(max(deadline - time.monotonic(), 0.001))
        except _CLIENT_EXCEPTIONS as raised:
            error = _error_in(raised)
            self._fail(self._commit_error(error if _is_fenced(error) else cause))
        if cause.code() in _TOO_LARGE_CODES:
            raise TooLarge(self._what, cause.str()) from None
        raise AppendRejected(self._what, _reason(cause)) from None

    def _commit_error(self, error: ck.KafkaError) -> OffsetMgrError:
        """Returns the error of an append that may have been committed."""
        if _is_fenced(error):
            return Fenced(self._what, "another writer has claimed it")
        return OutcomeUnknown(self._what, _reason(error))

    def _claim_failure(self, error: ck.KafkaError) -> OffsetMgrError:
        if _is_fenced(error):
            return Fenced(self._what, "another writer has claimed it")
        if error.code() == ck.KafkaError._TIMED_OUT:
            if self._connection_error is not None:
                return error_of(self._connection_error, self._what)
            return TimedOut(self._what, "the brokers did not answer the claim within the timeout")
        if error.retriable():
            hint = "check that the topic __transaction_state has enough replicas, and that they are up"
            return CoordinatorNotAvailable(self._what, _reason(error), hint)
        return error_of(error, self._what)

    def _fail(self, error: OffsetMgrError) -> NoReturn:
        self._terminal_error = error
        self._producer = None
        raise error from None


def _error_in(raised: Exception) -> ck.KafkaError:
    """Returns librdkafka's error of an exception. confluent-kafka raises a fatal error inside the next callback, so
    that it arrives as the cause of a SystemError."""
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
    """Returns the root error, which is the first one that is not a purge error: the client purges records after other
    records have failed."""
    return next((error for error in errors if error.code() not in _PURGED_CODES), errors[0])


def _reason(error: ck.KafkaError) -> str:
    return f"{error.str()} ({error.name()})"
