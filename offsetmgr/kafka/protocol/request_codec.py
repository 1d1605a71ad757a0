"""Asking a broker in any version of any API, with plain dicts (see `serverside`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offsetmgr.core.errors import InvalidRequest, ServerError
from offsetmgr.kafka.client.codec_thread import LARGE_BYTES, in_codec_thread
from offsetmgr.kafka.client.connection import Connection, Encoded
from offsetmgr.kafka.protocol.primitives import NO_TAGS
from offsetmgr.kafka.protocol.schema_codec import Message, decode_response, encode_request, request_is_flexible


async def ask(
    connection: Connection,
    api_key: int,
    version: int,
    message: Mapping[str, Any],
    timeout: float,
    *,
    yielding: bool = False,
) -> Message:
    """The broker's answer, within ``timeout`` seconds; of a broker that does not speak the version, see `older`.
    ``yielding``: see `Connection.call`.

    Raises `TimedOut`, `Unreachable`, `ServerError`, `UnsupportedOperation`.
    """
    if connection.speaks(api_key, version):
        return await ask_exactly(connection, api_key, version, message, timeout, yielding=yielding)
    from offsetmgr.kafka.protocol.old_versions import ask_older

    return await ask_older(connection, api_key, version, message, timeout)


async def ask_exactly(
    connection: Connection,
    api_key: int,
    version: int,
    message: Mapping[str, Any],
    timeout: float,
    *,
    yielding: bool = False,
) -> Message:
    """The broker's answer in this very version. Raises `TimedOut`, `Unreachable`, `ServerError`."""
    flexible = request_is_flexible(api_key, version)
    body = encode_request(api_key, version, message)
    frame = await connection.exchange(Encoded(api_key, version, NO_TAGS + body if flexible else body), timeout)
    start = 5 if flexible else 4
    try:
        if yielding and len(frame) > LARGE_BYTES:
            return await in_codec_thread(decode_response, api_key, version, frame, start)
        return decode_response(api_key, version, frame, start)
    except InvalidRequest as error:
        raise ServerError(f"broker {connection.address}", f"its answer is not Kafka's: {error.why}") from error
