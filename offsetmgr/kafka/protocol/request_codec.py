"""Sends a request in a version that the broker supports, and decodes the response."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from offsetmgr.core.errors import InvalidRequest, ServerError
from offsetmgr.kafka.protocol.api_key import ApiKey
from offsetmgr.kafka.protocol.channel import Channel, EncodedRequest, Request
from offsetmgr.kafka.protocol.codec_thread import LARGE_BYTES, in_codec_thread
from offsetmgr.kafka.protocol.primitives import NO_TAGS, Cursor
from offsetmgr.kafka.protocol.schema_codec import (
    Message,
    decode_request,
    encode_request,
    is_known,
    read_response,
    request_is_flexible,
)

T = TypeVar("T")


async def send_in_version(
    connection: Channel, request: Request | EncodedRequest, timeout_s: float, *, use_codec_thread: bool = False
) -> Message:
    """Sends the request in its version and returns the broker's response. ``use_codec_thread``: see
    `FrameConnection.call`. Raises `TimedOut`, `Unreachable`, `ServerError`."""
    own = request.read if isinstance(request, Request) else None
    read = own or partial(read_response, request.api_key, request.version)
    return await send_and_read(connection, request, timeout_s, read, use_codec_thread=use_codec_thread)


async def send_and_read(
    connection: Channel,
    request: Request | EncodedRequest,
    timeout_s: float,
    read: Callable[[Cursor], T],
    *,
    use_codec_thread: bool = False,
) -> T:
    """Like `send_in_version`, but ``read`` decodes the response."""
    api_key, version = request.api_key, request.version
    flexible = is_known(api_key, version) and request_is_flexible(api_key, version)  # kio lacks only old versions
    frame = await connection.exchange(_encoded(request, flexible), timeout_s)
    # The correlation id, and an empty set of tagged fields if the header is flexible.
    start = 5 if flexible and api_key != ApiKey.API_VERSIONS else 4
    cursor = Cursor(frame, start, flexible=flexible, is_response=True)
    try:
        if use_codec_thread and len(frame) > LARGE_BYTES:
            return await in_codec_thread(read, cursor)
        return read(cursor)
    except InvalidRequest as error:
        raise ServerError(f"broker {connection.address}", f"its response is not valid: {error.why}") from error


def _encoded(request: Request | EncodedRequest, flexible: bool) -> EncodedRequest:
    if isinstance(request, EncodedRequest):
        return request
    body = encode_request(request.api_key, request.version, request.message)
    return EncodedRequest(request.api_key, request.version, NO_TAGS + body if flexible else body)


def decoded(request: Request | EncodedRequest) -> Request:
    """Returns the request as a plain dict."""
    if isinstance(request, Request):
        return request
    start = 1 if request_is_flexible(request.api_key, request.version) else 0
    return Request(
        request.api_key, request.version, decode_request(request.api_key, request.version, request.body, start)
    )
