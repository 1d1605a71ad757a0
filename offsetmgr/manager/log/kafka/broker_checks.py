"""Checks that the brokers can fence the managers of the offsets topic.

`offsetmgr.manager.log.topic` has the rules.
"""

from __future__ import annotations

import asyncio
from typing import Final

from offsetmgr.config.manager_settings import ManagerSettings
from offsetmgr.core.errors import NotAuthorized, Unreachable
from offsetmgr.kafka.client.client import Client, with_retries
from offsetmgr.kafka.client.topics import reported_settings
from offsetmgr.manager.log.topic import (
    FENCE_SETTINGS,
    BrokerSettings,
    FenceSettings,
    check_apis,
    fence_settings,
)

_BROKER_TIMEOUT_S: Final = 5.0
"""The longest wait for the settings of one broker. The manager then asks all brokers again."""


async def check_brokers(
    client: Client, deadline: float, *, min_expiration_s: float = ManagerSettings.min_expiration_s
) -> FenceSettings:
    """Returns the times that all brokers keep, after it has asked every broker that the cluster lists.

    Asks again until the deadline if a listed broker does not respond. Raises `UnsupportedOperation` if a broker is too
    old, `UnsuitableBroker` if a broker has unsuitable settings, `NotAuthorized` if the brokers do not report their
    settings to this principal, and the errors of `Client.ask_any`.
    """

    async def attempt() -> FenceSettings:
        brokers = sorted((await client.brokers(deadline)).items())
        versions = await client.broker_versions([address for _, address in brokers], deadline)
        # If an old broker is in the cluster, its error is more important than the error of a broker that is down.
        for address, supported in versions.items():
            if supported is not None:
                check_apis(str(address), supported)
        found = []
        for number, address in brokers:
            supported = versions[address]
            if supported is None:
                raise Unreachable(
                    f"broker {address}",
                    "it does not respond, so the manager cannot check its settings",
                    "start the broker; the cluster no longer lists a stopped broker after its session",
                )
            by_then = min(deadline, asyncio.get_running_loop().time() + _BROKER_TIMEOUT_S)
            connection = await client.node(address).connection(by_then)
            try:
                values = await reported_settings(connection, number, FENCE_SETTINGS, by_then)
            except NotAuthorized:
                raise NotAuthorized(
                    f"settings of broker {address}",
                    "not authorized to read them, so the manager cannot check how long the broker rejects earlier "
                    "managers",
                    f"allow it: kafka-acls --bootstrap-server {address} --add --allow-principal User:NAME"
                    " --operation DescribeConfigs --cluster",
                ) from None
            found.append(BrokerSettings(f"{number} ({address})", supported, values))
        return fence_settings(found, min_expiration_s)

    return await with_retries(client, attempt, deadline)
