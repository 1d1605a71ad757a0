"""SaslHandshake and SaslAuthenticate: a login, or a re-authentication (KIP-368)."""

from __future__ import annotations

from functools import partial
from typing import Final

from offsetmgr.core.errors import AuthenticationFailed, ErrorCode
from offsetmgr.server.apis.api_context import decoded, encoded
from offsetmgr.server.network.requests import CLOSE_CONNECTION, Answer, ApiRequest, FinalResponse
from offsetmgr.server.security.authentication import Authentication, AuthenticationStep, Exchange
from offsetmgr.server.security.login_limits import TooManyLogins

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


async def sasl_authenticate(authentication: Authentication, request: ApiRequest) -> Answer:
    connection = request.connection
    message = decoded(request)["auth_bytes"]
    exchange: Exchange | None = connection.state.get(_EXCHANGE)
    if exchange is None:
        return _failure(request, ErrorCode.ILLEGAL_SASL_STATE, "SaslAuthenticate was not expected")

    def check() -> AuthenticationStep:
        step = exchange.step(message)
        if step.principal is not None and connection.principal not in (None, step.principal):
            raise AuthenticationFailed("login", "another user cannot take over a connection")
        return step

    failed = partial(connection.service.login_failed, connection, exchange.mechanism)
    user = exchange.user_of(message)
    try:
        if user is None:  # no password is checked
            reply, principal = check()
        else:
            reply, principal = await authentication.limits.attempt(connection.network, user, check, failed)
    except AuthenticationFailed:
        if user is None:
            failed()
        del connection.state[_EXCHANGE]
        return _failure(request, ErrorCode.SASL_AUTHENTICATION_FAILED, "Authentication failed")
    except TooManyLogins:  # no response, because clients do not repeat a login that was refused
        connection.service.cut(connection, "too many logins")
        return CLOSE_CONNECTION
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
