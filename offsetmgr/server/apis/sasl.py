"""SaslHandshake and SaslAuthenticate: a login, or a re-authentication (KIP-368)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final

from offsetmgr.core.errors import AuthenticationFailed, ErrorCode, InvalidRequest
from offsetmgr.server.apis.api_context import decoded, encoded
from offsetmgr.server.network.requests import Answer, ApiRequest, FinalResponse
from offsetmgr.server.security.authentication import MAX_MESSAGE_BYTES, Authentication, AuthenticationStep, Exchange

_EXCHANGE: Final = "sasl exchange"
_MECHANISM: Final = "sasl mechanism"


def sasl_handshake(authentication: Authentication, request: ApiRequest) -> Answer:
    mechanism = decoded(request)["mechanism"]
    state = request.connection.state
    exchange = authentication.exchange(mechanism)
    if exchange is None:
        request.connection.service.login_failed(request.connection, "unsupported")
        offered = list(authentication.mechanisms)
        return FinalResponse(
            encoded(request, {"error_code": ErrorCode.UNSUPPORTED_SASL_MECHANISM, "mechanisms": offered})
        )
    if state.get(_MECHANISM, mechanism) != mechanism:
        return FinalResponse(encoded(request, {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "mechanisms": []}))
    state[_EXCHANGE] = exchange
    return encoded(request, {"error_code": ErrorCode.NONE, "mechanisms": list(authentication.mechanisms)})


def sasl_authenticate(authentication: Authentication, request: ApiRequest) -> Awaitable[Answer]:
    """Starts the step of a login. The step is cancelled when the client disconnects, so that the manager neither holds
    its request nor checks its password."""
    task = asyncio.ensure_future(_authenticate(authentication, request))
    on_lost = request.connection.on_lost
    on_lost.append(task.cancel)
    task.add_done_callback(lambda _: on_lost.remove(task.cancel))
    return task


async def _authenticate(authentication: Authentication, request: ApiRequest) -> Answer:
    connection = request.connection
    message = decoded(request)["auth_bytes"]
    exchange: Exchange | None = connection.state.get(_EXCHANGE)
    if exchange is None:
        return FinalResponse(_response(request, ErrorCode.ILLEGAL_SASL_STATE, "SaslAuthenticate was not expected"))
    if len(message) > MAX_MESSAGE_BYTES:
        raise InvalidRequest("SaslAuthenticate", f"a message of {len(message)} bytes")

    def check() -> AuthenticationStep:
        step = exchange.step(message)
        if step.principal is not None and connection.principal not in (None, step.principal):
            raise AuthenticationFailed("login", "another user cannot take over a connection")
        return step

    network = connection.network if exchange.checks_password else None
    connection.waits_for_check = network is not None
    try:
        reply, principal = check() if network is None else await authentication.limits.check(network, check)
    except AuthenticationFailed:
        del connection.state[_EXCHANGE]
        connection.service.login_failed(connection, exchange.mechanism)
        if network is not None:
            await authentication.limits.delay(network)
        return FinalResponse(_response(request, ErrorCode.SASL_AUTHENTICATION_FAILED, "Authentication failed"))
    if principal is None:
        return _response(request, reply=reply)
    del connection.state[_EXCHANGE]
    connection.state[_MECHANISM] = exchange.mechanism
    connection.logged_in(principal)
    return _response(request, reply=reply)


def _response(request: ApiRequest, error: int = 0, why: str = "", reply: bytes = b"") -> bytes:
    fields = {"error_code": error, "error_message": why or None, "auth_bytes": reply, "session_lifetime": 0}
    return encoded(request, fields)
