"""Lists the brokers of a cluster with their addresses and API versions."""

from __future__ import annotations

from typing import NamedTuple

from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import remaining
from offsetmgr.kafka.protocol import requests
from offsetmgr.kafka.protocol.channel import Address
from offsetmgr.kafka.protocol.releases import CAPABILITIES, Capability, Versions, release


class ClusterBroker(NamedTuple):
    """One broker. ``id`` is -1 if the cluster does not report the id (Kafka 0.8.2 without topics)."""

    id: int
    address: Address
    versions: Versions | None
    """The API versions of the broker; None if the broker does not respond."""
    release: str | None
    """The oldest release with these API versions; None if the broker does not respond."""
    capabilities: tuple[Capability, ...]
    """All capabilities that offsetmgr knows. `Capability.supported_by` returns whether the broker has a capability."""


async def describe_brokers(client: Client, deadline: float) -> list[ClusterBroker]:
    """Returns every broker of the cluster, sorted by id. Raises the errors of `Client.any_connection`."""
    connection = await client.any_connection(deadline)
    answer = await connection.call(requests.metadata(), remaining(deadline))
    addresses = requests.broker_addresses(answer)
    broker_versions = await client.broker_versions(list(addresses.values()), deadline)
    found = (
        ClusterBroker(
            number,
            at,
            broker_versions[at],
            None if (known := broker_versions[at]) is None else release(known),
            CAPABILITIES,
        )
        for number, at in addresses.items()
    )
    return sorted(found, key=lambda broker: broker.id)
