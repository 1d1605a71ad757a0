"""Sends one request as a plain dict; `old_versions` translates it for a broker without support for its version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offsetmgr.kafka.protocol.channel import Channel
from offsetmgr.kafka.protocol.old_versions import ask_older
from offsetmgr.kafka.protocol.request_codec import ask_exactly
from offsetmgr.kafka.protocol.schema_codec import Message


async def ask(
    connection: Channel,
    api_key: int,
    version: int,
    message: Mapping[str, Any],
    timeout: float,
    *,
    yielding: bool = False,
) -> Message:
    """Returns the broker's response within ``timeout`` seconds. ``yielding``: see `BrokerConnection.call`.

    Raises `TimedOut`, `Unreachable`, `ServerError`, `UnsupportedOperation`.
    """
    if connection.speaks(api_key, version):
        return await ask_exactly(connection, api_key, version, message, timeout, yielding=yielding)
    return await ask_older(connection, api_key, version, message, timeout)
