"""Asking offset managers about themselves: a request of our own beside Kafka's, with JSON both ways.

It travels on the same port, connection and login as everything else, so `manager status` needs no second address.  The
API's number is announced in ApiVersions by managers only: a broker is never sent it.
"""

from __future__ import annotations

import json
from typing import Any

from kio.schema.metadata.v8.response import MetadataResponse

from offsetmgr.core.errors import NotAuthorized, OffsetMgrError, ServerError, UnsupportedOperation
from offsetmgr.kafka.client.client import Client, remaining
from offsetmgr.kafka.client.connection import BrokerConnection
from offsetmgr.kafka.client.run_manager_admin import FIRST_MANAGER, INSPECT, VERSION
from offsetmgr.kafka.protocol import requests
from offsetmgr.kafka.protocol.channel import Address, EncodedRequest


async def managers(client: Client, deadline: float) -> list[tuple[int, Address]]:
    """Node id and address of every manager that the first one reached knows.

    Raises `UnsupportedOperation` where a broker answers that is no manager; else as `Client.any_connection`.
    """
    connection = await client.any_connection(deadline)
    _check(connection)
    answer = await connection.call(requests.metadata(), MetadataResponse, remaining(deadline))
    return sorted(
        (int(b.node_id), Address(b.host, int(b.port))) for b in answer.brokers if int(b.node_id) >= FIRST_MANAGER
    )


async def inspect(client: Client, address: Address, question: dict[str, Any], deadline: float) -> dict[str, Any]:
    """One manager's answer. Raises `OffsetMgrError`."""
    connection = await client.node(address).connection(deadline)
    _check(connection)
    request = EncodedRequest(INSPECT, VERSION, json.dumps(question).encode())
    answer = await connection.call_raw(request, remaining(deadline))
    try:
        found = json.loads(answer)
    except ValueError:
        raise ServerError(f"manager {address}", "its answer is not JSON") from None
    if not isinstance(found, dict):
        raise ServerError(f"manager {address}", "its answer is not an object")
    if "error" in found:
        raise _error(address, found)
    return found


def _error(address: Address, found: dict[str, Any]) -> OffsetMgrError:
    kind = NotAuthorized if found.get("kind") == "not-authorized" else ServerError
    return kind(f"manager {address}", str(found["error"]))


def _check(connection: BrokerConnection) -> None:
    if INSPECT not in connection.versions:
        raise UnsupportedOperation(
            f"{connection.address}", "it is not an offset manager", "name the address that `manager serve` listens on"
        )
