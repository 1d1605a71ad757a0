"""Sends record batches to the leader of partitions (Produce), without a producer's queue and without retries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from offsetmgr.kafka.client.connection import BrokerConnection
from offsetmgr.kafka.protocol.api_key import ApiKey
from offsetmgr.kafka.protocol.channel import EncodedRequest
from offsetmgr.kafka.protocol.frames import send_and_read
from offsetmgr.kafka.protocol.primitives import INT16, INT32, INT64, Cursor, request_string

_VERSION: Final = 7
"""Every broker from 2.1 to 4.x supports this version."""
_NO_TRANSACTION: Final = INT16.pack(-1)
_ALL_IN_SYNC_REPLICAS: Final = INT16.pack(-1)


class ProduceResult(NamedTuple):
    """The broker's response for one partition."""

    error_code: int
    first_offset: int
    """The offset of the batch's first record; -1 after an error."""


async def produce(
    connection: BrokerConnection, topic: str, batches: Mapping[int, bytes], timeout_s: float
) -> dict[int, ProduceResult]:
    """Sends one batch for each partition. The broker responds once every in-sync replica has the batches, at the latest
    after ``timeout_s`` seconds. Raises the errors of `BrokerConnection.call`.

    A request must not have two batches for one partition, because brokers may ignore the second one.
    """
    body = bytearray(_NO_TRANSACTION + _ALL_IN_SYNC_REPLICAS + INT32.pack(round(timeout_s * 1000)))
    body += INT32.pack(1) + request_string(topic, flexible=False) + INT32.pack(len(batches))
    for partition, batch in batches.items():
        body += INT32.pack(partition) + INT32.pack(len(batch))
        body += batch
    return await send_and_read(connection, EncodedRequest(ApiKey.PRODUCE, _VERSION, bytes(body)), timeout_s, _read)


def _read(cursor: Cursor) -> dict[int, ProduceResult]:
    results = {}
    for _ in range(cursor.count(6)):
        cursor.string()
        for _ in range(cursor.count(30)):
            partition, code, first = cursor.int32(), cursor.number(INT16), cursor.number(INT64)
            cursor.take(16)  # the append time and the log start offset
            results[partition] = ProduceResult(code, first)
    return results
