"""Producer ids and their epochs: requests them from the coordinators of transactional ids, and lists those of a
partition. Also finds the open transactions of partitions.

At each request, the coordinator of a transactional id returns the producer id with a new epoch (KIP-98). The leader of
a partition rejects a batch if the partition has a batch with a newer epoch of the same producer id. This check needs no
transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

from offsetmgr.core.batches import by_key
from offsetmgr.core.durations import utc_text
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import TopicPartition
from offsetmgr.kafka.client.client import Client, PartitionLeaders
from offsetmgr.kafka.client.connection import BrokerConnection, remaining
from offsetmgr.kafka.client.fetch import LATEST, list_offsets
from offsetmgr.kafka.protocol.errors import failure_of, kafka_error
from offsetmgr.kafka.protocol.frames import Address, Request
from offsetmgr.kafka.protocol.releases import FENCES_WRITERS, ApiKey
from offsetmgr.kafka.protocol.requests import parts_of
from offsetmgr.kafka.protocol.schema_codec import Message

T = TypeVar("T")

INIT_PRODUCER_ID_VERSION: Final = 3
"""The first version with the producer id and epoch of the caller, which make the request a compare-and-set
(KIP-360)."""
_DESCRIBE_PRODUCERS_VERSION: Final = 0
_TRANSACTION_TIMEOUT_MS: Final = 1_000
"""The request requires a timeout below the brokers' ``transaction.max.timeout.ms``. It has no effect on a producer that
begins no transaction."""


class ProducerEpoch(NamedTuple):
    id: int
    epoch: int


async def init_producer_ids(
    client: Client, current: Mapping[str, ProducerEpoch | None], deadline: float
) -> dict[str, ProducerEpoch | OffsetMgrError]:
    """Requests a new epoch for each transactional id in ``current``, and returns one outcome for each.

    If the value is None, the coordinator increments the epoch unconditionally. If the value is a producer
    id and epoch, the coordinator increments the epoch only if they are the current ones; otherwise the outcome is
    `ProducerFenced`. The coordinator may return another producer id: if it has no state of the transactional id any
    more, or if the epoch has reached its largest value. Retries retriable errors until the deadline.
    """

    async def ask(address: Address, names: list[str]) -> dict[str, ProducerEpoch | OffsetMgrError]:
        async with client.node(address).dedicated_connection(deadline) as own:
            return {name: await _init_producer_id(own.connection, name, current[name], deadline) for name in names}

    return await client.per_group(list(current), ask, deadline, of_transactions=True)


async def _init_producer_id(
    connection: BrokerConnection, name: str, current: ProducerEpoch | None, deadline: float
) -> ProducerEpoch | OffsetMgrError:
    message = {
        "transactional_id": name,
        "transaction_timeout": _TRANSACTION_TIMEOUT_MS,
        "producer_id": -1 if current is None else current.id,
        "producer_epoch": -1 if current is None else current.epoch,
    }
    answer = await connection.call(
        Request(ApiKey.INIT_PRODUCER_ID, INIT_PRODUCER_ID_VERSION, message), remaining(deadline)
    )
    if answer["error_code"]:
        return kafka_error(answer["error_code"], f"transactional id {name}")
    return ProducerEpoch(answer["producer_id"], answer["producer_epoch"])


async def describe_producers(
    connection: BrokerConnection, topic: str, partitions: Sequence[int], timeout_s: float
) -> dict[int, dict[int, int] | OffsetMgrError]:
    """Returns the epoch of each producer id of which the leader of a partition has a state, by partition (KIP-664).
    Raises the errors of `BrokerConnection.call`."""
    tps = [TopicPartition(topic, number) for number in partitions]
    found = await _producers(connection, tps, timeout_s, _epochs)
    return {tp.partition: one for tp, one in found.items()}


def _epochs(producers: Sequence[Message]) -> dict[int, int]:
    return {one["producer_id"]: one["producer_epoch"] for one in producers}


async def _producers(
    connection: BrokerConnection,
    partitions: Iterable[TopicPartition],
    timeout_s: float,
    read: Callable[[Sequence[Message]], T],
) -> dict[TopicPartition, T | OffsetMgrError]:
    """Returns what ``read`` makes of the producers of each partition."""
    topics = [{"name": topic, "partition_indexes": numbers} for topic, numbers in by_key(partitions).items()]
    request = Request(ApiKey.DESCRIBE_PRODUCERS, _DESCRIBE_PRODUCERS_VERSION, {"topics": topics})
    parts = parts_of(await connection.call(request, timeout_s))
    return {tp: failure_of(part, f"producers of {tp}") or read(part["active_producers"]) for tp, part in parts}


# Finds the open transactions of partitions, with the names of their producers (KIP-664).

_TRANSACTIONS_VERSION: Final = 0
"""The version of ListTransactions and of DescribeTransactions."""


class OpenTransaction(NamedTuple):
    """A transaction with records in a partition that is neither committed nor aborted.

    ``transactional_id`` and ``started_ms`` (milliseconds since 1970) are None if no coordinator reports the
    transaction: the principal lacks Describe on the transactional id, or the transaction hangs.
    """

    producer_id: int
    epoch: int
    first_offset: int
    """The offset of the first record of the transaction in the partition."""
    transactional_id: str | None = None
    started_ms: int | None = None

    def __str__(self) -> str:
        producer = f"producer {self.producer_id}, epoch {self.epoch}"
        name = f"transactional id {self.transactional_id} ({producer})" if self.transactional_id else producer
        return name if self.started_ms is None else f"{name}, open since {utc_text(self.started_ms)}"


class OpenTransactions(NamedTuple):
    """The open transactions of a partition. ``transactions`` is empty if none is open, and also if the brokers do not
    name them: before Kafka 2.8, or if the principal may not read the topic."""

    stable_end: int
    """The last stable offset: that of the first record of an open transaction, or the end of the log."""
    end: int
    transactions: tuple[OpenTransaction, ...] = ()

    @property
    def is_open(self) -> bool:
        """Returns whether a transaction was open that has a record before ``end``."""
        return self.stable_end < self.end


async def open_transactions(
    client: Client, partitions: Iterable[TopicPartition], deadline: float
) -> dict[TopicPartition, OpenTransactions | OffsetMgrError]:
    """Returns the open transactions of each partition, or the error of the partition. Raises an error only if no broker
    has ever responded."""
    leaders = PartitionLeaders(client)
    # The ends are read first, so that records of later transactions do not count as open.
    ends = await list_offsets(leaders, dict.fromkeys(partitions, LATEST), deadline)
    end_of = {tp: end for tp, end in ends.items() if isinstance(end, int)}
    stable = await list_offsets(leaders, dict.fromkeys(end_of, LATEST), deadline, read_committed=True)
    found = {
        tp: OpenTransactions(at, end_of[tp]) if isinstance(at, int) else at for tp, at in {**ends, **stable}.items()
    }
    open_ = {tp: one for tp, one in found.items() if isinstance(one, OpenTransactions) and one.is_open}
    named = await leaders.per_partition(dict.fromkeys(open_, LATEST), _ask_producers, deadline) if open_ else {}
    producers = {tp: one for tp, one in named.items() if not isinstance(one, OffsetMgrError)}
    states = await _transactions(client, {one.producer_id for of_tp in producers.values() for one in of_tp}, deadline)
    for tp, of_tp in producers.items():
        known = (one._replace(**states.get(one.producer_id, {})) for one in of_tp)
        found[tp] = open_[tp]._replace(transactions=tuple(known))
    return found


async def _ask_producers(
    connection: BrokerConnection, partitions: Mapping[TopicPartition, int], timeout_s: float
) -> dict[TopicPartition, list[OpenTransaction] | OffsetMgrError]:
    if not FENCES_WRITERS.supported_by(connection.versions):
        return {tp: [] for tp in partitions}
    return await _producers(connection, partitions, timeout_s, _open)


def _open(producers: Sequence[Message]) -> list[OpenTransaction]:
    found = (OpenTransaction(p["producer_id"], p["producer_epoch"], p["current_txn_start_offset"]) for p in producers)
    return [one for one in found if one.first_offset >= 0]


async def _transactions(client: Client, producer_ids: set[int], deadline: float) -> dict[int, Message]:
    """Returns the transactional id and the start of the transaction of each of these producers that a coordinator
    knows."""
    names: dict[str, int] = {}
    filters = {"state_filters": (), "producer_id_filters": sorted(producer_ids)}
    request = Request(ApiKey.LIST_TRANSACTIONS, _TRANSACTIONS_VERSION, filters)
    brokers = list((await client.brokers(deadline)).values()) if producer_ids else ()
    for address, versions in (await client.broker_versions(brokers, deadline)).items():
        if ApiKey.LIST_TRANSACTIONS in (versions or {}):
            with suppress(OffsetMgrError):
                listed = (await client.call(address, request, deadline))["transaction_states"]
                names |= {one["transactional_id"]: one["producer_id"] for one in listed}

    async def ask(address: Address, ids: list[str]) -> dict[str, int | OffsetMgrError]:
        message = {"transactional_ids": ids}
        request = Request(ApiKey.DESCRIBE_TRANSACTIONS, _TRANSACTIONS_VERSION, message)
        states = (await client.call(address, request, deadline))["transaction_states"]
        return {one["transactional_id"]: one["transaction_start_time"] for one in states if not one["error_code"]}

    starts = await client.per_group(list(names), ask, deadline, of_transactions=True)
    return {
        producer: {"transactional_id": name, "started_ms": None if isinstance(at, OffsetMgrError) else at}
        for name, producer in names.items()
        for at in [starts.get(name)]
    }
