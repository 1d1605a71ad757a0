"""Decodes the transactions in ``__transaction_state`` that were already decided when the cluster stopped. Pure.

The transaction coordinator first writes its decision (PrepareCommit or PrepareAbort) to this topic, and then the
markers to the partitions. After a restart the coordinator writes the missing markers, so a decided transaction counts
as committed or aborted even without its markers.

Source: Kafka's schemas TransactionLogKey and TransactionLogValue; org.apache.kafka.coordinator.transaction.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import TopicPartition
from offsetmgr.records import base as version_prefix
from offsetmgr.records.kafka import KafkaFieldReader
from offsetmgr.segments.offsets import Newest

TOPIC: Final = "__transaction_state"
_PREPARE_COMMIT, _PREPARE_ABORT = 2, 3
_KEY: Final = 0
_VALUES: Final = range(2)


class TransactionDecision(NamedTuple):
    """The outcome of a decided transaction for one of its partitions. The transaction coordinator may not have written
    the marker to this partition yet."""

    producer: int
    partition: TopicPartition
    committed: bool


def decisions(newest: Newest) -> tuple[list[TransactionDecision], list[OffsetMgrError]]:
    """Decodes the newest record of each transactional id. Returns the decisions, one for each partition of a decided
    transaction, and the errors of unreadable records."""
    found: list[TransactionDecision] = []
    errors: list[OffsetMgrError] = []
    for key, (_, value) in newest.items():
        if value is None or int.from_bytes(key[:2], "big", signed=True) != _KEY:
            continue
        try:
            found.extend(_decisions(value))
        except OffsetMgrError as error:
            errors.append(error)
    return found, errors


def _decisions(value: bytes) -> list[TransactionDecision]:
    """Decodes one record. Returns an empty list for an undecided transaction. Raises `UnknownVersion`,
    `CorruptData`."""
    version = version_prefix.value_version(value, "transaction's state", _VALUES)
    reader = KafkaFieldReader(value, "transaction's state", flexible=version >= 1)
    producer = reader.int64("producerId")
    reader.int16("producerEpoch")
    reader.int32("transactionTimeoutMs")
    status = reader.int8("transactionStatus")
    if status not in (_PREPARE_COMMIT, _PREPARE_ABORT):
        return []
    partitions = []
    for _ in range(reader.count("transactionPartitions")):
        topic = reader.string("topic")
        numbers = [reader.int32("partitionIds") for _ in range(reader.count("partitionIds"))]
        partitions += [TopicPartition(topic, number) for number in numbers]
        reader.tagged()
    return [TransactionDecision(producer, tp, status == _PREPARE_COMMIT) for tp in partitions]
