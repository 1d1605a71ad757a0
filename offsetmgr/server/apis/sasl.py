"""SaslHandshake and SaslAuthenticate: a login, or a re-authentication (KIP-368)."""

from __future__ import annotations

import asyncio
from typing import Final

from offsetmgr.core.errors import AuthenticationFailed, ErrorCode
from offsetmgr.server.apis.api_context import decoded, encoded
from offsetmgr.server.network.requests import Answer, ApiRequest, FinalResponse
from offsetmgr.server.security.authentication import MECHANISMS, Authentication, Exchange

_EXCHANGE: Final = "sasl exchange"
_MECHANISM: Final = "sasl mechanism"

_REJECTION_S: Final = 0.1
"""Delay before the response to a failed login (connection.failed.authentication.delay.ms)."""


def sasl_handshake(authentication: Authentication, request: ApiRequest) -> Answer:
    mechanism = decoded(request)["mechanism"]
    state = request.connection.state
    exchange = authentication.exchange(mechanism)
    if exchange is None:
        request.connection.service.login_failed(request.connection, "unsupported")
        offered = list(MECHANISMS)
        return FinalResponse(
            encoded(request, {"error_code": ErrorCode.UNSUPPORTED_SASL_MECHANISM, "mechanisms": offered})
        )
    if state.get(_MECHANISM, mechanism) != mechanism:
        return FinalResponse(encoded(request, {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "mechanisms": []}))
    state[_EXCHANGE] = exchange
    return encoded(request, {"error_code": ErrorCode.NONE, "mechanisms": list(MECHANISMS)})


async def sasl_authenticate(authentication: Authentication, request: ApiRequest) -> Answer:
    connection = request.connection
    message = decoded(request)["auth_bytes"]
    exchange: Exchange | None = connection.state.get(_EXCHANGE)
    if exchange is None:
        return _failure(request, ErrorCode.ILLEGAL_SASL_STATE, "SaslAuthenticate was not expected")
    try:
        reply, principal = exchange.step(message)
        if principal is not None and connection.principal not in (None, principal):
            raise AuthenticationFailed("login", "another user cannot take over a connection")
    except AuthenticationFailed:
        del connection.state[_EXCHANGE]
        connection.service.login_failed(connection, exchange.mechanism)
        await asyncio.sleep(_REJECTION_S)
        return _failure(request, ErrorCode.SASL_AUTHENTICATION_FAILED, "Authentication failed")
    lifetime = 0
    if principal is not None:
        del connection.state[_EXCHANGE]
        connection.state[_MECHANISM] = exchange.mechanism
        session = authentication.session_seconds
        connection.logged_in(principal, session)
        lifetime = round(session * 1000) if session else 0
    return encoded(
        request,
        {"error_code": ErrorCode.NONE, "error_message": None, "auth_bytes": reply, "session_lifetime": lifetime},
    )


def _failure(request: ApiRequest, error: int, why: str) -> FinalResponse:
    return FinalResponse(
        encoded(request, {"error_code": error, "error_message": why, "auth_bytes": b"", "session_lifetime": 0})
    )
