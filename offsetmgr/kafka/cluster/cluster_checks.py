"""Runs the checks of `offsetmgr.kafka.client.broker_checks` for synchronous callers."""

from __future__ import annotations

from collections.abc import Sequence

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.check_result import CheckResult
from offsetmgr.core.clock import Clock
from offsetmgr.kafka.client.background_loop import ClientThread
from offsetmgr.kafka.client.broker_checks import check_brokers, check_managers
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.security import Security


def check_cluster(
    bootstrap: str, config: ConnectionConfig, groups: Sequence[str], clock: Clock, *, manager: bool
) -> list[CheckResult]:
    """Checks the brokers at ``bootstrap``, or offset managers. Raises `UnsupportedOperation` for logins that
    offsetmgr's client does not support."""
    security = Security.of(config.kafka)
    protocol = config.kafka.get("security.protocol", "plaintext").upper()
    user = "" if security.sasl is None or not security.sasl[1] else f" as {security.sasl[1]}"
    login = f"{protocol} {security.sasl[0]}{user}" if security.sasl else f"{protocol} without SASL"
    thread = ClientThread(Client(bootstrap, security), config.timeout_ms / 1000)
    try:
        if manager:
            return thread.run(lambda deadline: check_managers(thread.client, bootstrap, login, deadline))
        return thread.run(lambda deadline: check_brokers(thread.client, bootstrap, login, groups, clock, deadline))
    finally:
        thread.close()
