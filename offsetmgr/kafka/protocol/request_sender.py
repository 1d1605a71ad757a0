"""Sends a request as a plain dict. If the broker does not support the version of the request, `old_versions` translates
the request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offsetmgr.kafka.protocol.channel import Channel
from offsetmgr.kafka.protocol.old_versions import send_translated
from offsetmgr.kafka.protocol.request_codec import send_in_version
from offsetmgr.kafka.protocol.schema_codec import Message


async def send_request(
    connection: Channel,
    api_key: int,
    version: int,
    message: Mapping[str, Any],
    timeout_s: float,
    *,
    use_codec_thread: bool = False,
) -> Message:
    """Sends the request and returns the broker's response, within ``timeout_s`` seconds.

    ``use_codec_thread``: see `BrokerConnection.call`.

    Raises `TimedOut`, `Unreachable`, `ServerError`, `UnsupportedOperation`.
    """
    if connection.supports(api_key, version):
        return await send_in_version(
            connection, api_key, version, message, timeout_s, use_codec_thread=use_codec_thread
        )
    return await send_translated(connection, api_key, version, message, timeout_s)
