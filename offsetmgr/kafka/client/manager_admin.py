"""Requests the status of offset managers, through an API that only offsetmgr defines. Its requests and responses
contain JSON.

The requests use the same port, connection and login as Kafka's requests, so `manager status` needs no second address.
Only managers announce the API in ApiVersions, so the client never sends a request of this API to a broker.
"""

from __future__ import annotations

import json
from typing import Any

from offsetmgr.core.errors import NotAuthorized, OffsetMgrError, ServerError, UnsupportedOperation
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import BrokerConnection, remaining
from offsetmgr.kafka.client.manager_api import FIRST_MANAGER_ID, INSPECT, VERSION
from offsetmgr.kafka.protocol import requests
from offsetmgr.kafka.protocol.channel import Address, EncodedRequest


async def managers(client: Client, deadline: float) -> list[tuple[int, Address]]:
    """Returns the node id and address of every manager that the first responding manager knows.

    Raises `UnsupportedOperation` if the first server that responds is not a manager. Also raises the errors of
    `Client.any_connection`.
    """
    connection = await client.any_connection(deadline)
    _check(connection)
    answer = await connection.call(requests.metadata(), remaining(deadline))
    found = requests.broker_addresses(answer)
    return sorted((node_id, address) for node_id, address in found.items() if node_id >= FIRST_MANAGER_ID)


async def inspect(client: Client, address: Address, question: dict[str, Any], deadline: float) -> dict[str, Any]:
    """Sends ``question`` to one manager and returns its response. Raises `OffsetMgrError`."""
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
            f"{connection.address}",
            "it is not an offset manager",
            "specify the address on which `manager serve` listens",
        )
