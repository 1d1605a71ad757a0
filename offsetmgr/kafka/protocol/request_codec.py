"""Sends a request in a fixed version. Messages are plain dicts (see `offsetmgr.kafka.protocol.schema_codec`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offsetmgr.core.errors import InvalidRequest, ServerError
from offsetmgr.kafka.protocol.channel import Channel, EncodedRequest
from offsetmgr.kafka.protocol.codec_thread import LARGE_BYTES, in_codec_thread
from offsetmgr.kafka.protocol.primitives import NO_TAGS
from offsetmgr.kafka.protocol.schema_codec import Message, decode_response, encode_request, request_is_flexible


async def send_in_version(
    connection: Channel,
    api_key: int,
    version: int,
    message: Mapping[str, Any],
    timeout_s: float,
    *,
    use_codec_thread: bool = False,
) -> Message:
    """Sends the request in this version and returns the broker's response. ``use_codec_thread``: see
    `BrokerConnection.call`. Raises `TimedOut`, `Unreachable`, `ServerError`."""
    flexible = request_is_flexible(api_key, version)
    body = encode_request(api_key, version, message)
    frame = await connection.exchange(EncodedRequest(api_key, version, NO_TAGS + body if flexible else body), timeout_s)
    start = 5 if flexible else 4
    try:
        if use_codec_thread and len(frame) > LARGE_BYTES:
            return await in_codec_thread(decode_response, api_key, version, frame, start)
        return decode_response(api_key, version, frame, start)
    except InvalidRequest as error:
        raise ServerError(f"broker {connection.address}", f"its response is not valid: {error.why}") from error
