"""Producer ids and their epochs: requests them from the coordinators of transactional ids, and lists those of a
partition.

At each request, the coordinator of a transactional id returns the producer id with a new epoch (KIP-98). The leader of
a partition rejects a batch if the partition has a batch with a newer epoch of the same producer id. This check needs no
transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import BrokerConnection, remaining
from offsetmgr.kafka.protocol.errors import kafka_error
from offsetmgr.kafka.protocol.frames import Address, Request
from offsetmgr.kafka.protocol.releases import ApiKey
from offsetmgr.kafka.protocol.requests import parts_of

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
        found: dict[str, ProducerEpoch | OffsetMgrError] = {}
        async with client.node(address).dedicated_connection(deadline) as dedicated:
            for name in names:
                found[name] = await _init_producer_id(dedicated.connection, name, current[name], deadline)
        return found

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
    message = {"topics": [{"name": topic, "partition_indexes": list(partitions)}]}
    answer = await connection.call(Request(ApiKey.DESCRIBE_PRODUCERS, _DESCRIBE_PRODUCERS_VERSION, message), timeout_s)
    found: dict[int, dict[int, int] | OffsetMgrError] = {}
    for tp, part in parts_of(answer):
        if part["error_code"]:
            detail = part["error_message"] or ""
            found[tp.partition] = kafka_error(part["error_code"], f"producers of {tp}", detail=detail)
        else:
            found[tp.partition] = {one["producer_id"]: one["producer_epoch"] for one in part["active_producers"]}
    return found
