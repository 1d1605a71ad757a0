"""`BrokerConnection`, a connection to one broker: opening, TLS, SASL, and the detection of API versions.

Ordering contract: a broker processes the requests of a connection one at a time and responds in order. Many requests
may be in flight, but a request that waits in the broker (such as a JoinGroup) delays all later requests of the
connection. If a request times out, the client closes the connection, because the broker does not respond to later
requests before it has responded to the request that timed out.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import ssl
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar, cast

from offsetmgr.config.tls_context import own_certificate_text, tls_context, verification_failure
from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import (
    AuthenticationFailed,
    ConfigError,
    ErrorCode,
    InvalidRequest,
    OffsetMgrError,
    ServerError,
    TimedOut,
    Unreachable,
    UnsupportedOperation,
)
from offsetmgr.core.retry import UnusableAddress
from offsetmgr.kafka.protocol import requests
from offsetmgr.kafka.protocol.errors import kafka_error
from offsetmgr.kafka.protocol.frames import (
    Address,
    EncodedRequest,
    FrameSplitter,
    Request,
    send_and_read,
    send_in_version,
)
from offsetmgr.kafka.protocol.releases import (
    ACCEPTS_LOGINS,
    KAFKA_0_8_2,
    KAFKA_0_9,
    ApiKey,
    Versions,
    fallback_versions,
    is_before,
    release,
)
from offsetmgr.kafka.protocol.schema_codec import INT16, INT32, Cursor, Message, encode_response, request_is_flexible

if TYPE_CHECKING:
    from offsetmgr.kafka.client.oauth_tokens import TokenSource
    from offsetmgr.kafka.client.sasl import KerberosLogin, Mechanism


# Reads the TLS and SASL settings of connections from librdkafka properties (`ConnectionConfig.kafka`).

_PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
_UNSUPPORTED = ("ssl.keystore.location", "ssl.engine.location", "ssl.providers")

_LOGIN_TIMEOUT_S: Final = 10.0
_TOKEN_TIMEOUT_FRACTION: Final = 0.8


@dataclass(frozen=True, slots=True)
class Security:
    """TLS and SASL settings of all connections of a client. Its representation shows no secret."""

    tls: ssl.SSLContext | None = field(default=None, repr=False)
    sasl: tuple[str, str, str] | None = field(default=None, repr=False)
    """Mechanism, user name, password."""
    client_id: str = "offsetmgr"
    assumed_versions: Versions | None = None
    """The API versions of brokers before 0.10.0, if ``broker.version.fallback`` names such a release. The client
    requests the API versions from the broker if the broker is of a later release or the connection uses SASL."""
    tokens: TokenSource | None = field(default=None, repr=False)
    """The source of tokens for OAUTHBEARER."""
    kerberos: KerberosLogin | None = None
    certificate: str = field(default="", repr=False)
    """The PEM text or the file of the client's certificate; empty without one."""

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Security:
        """Creates the settings from librdkafka properties. Ignores properties that do not concern the security of
        connections.

        Raises `ConfigError` for invalid values, and `UnsupportedOperation` for features that offsetmgr's client does
        not support.
        """
        protocol = properties.get("security.protocol", "plaintext").lower()
        if protocol not in _PROTOCOLS:
            raise ConfigError("security.protocol", f"must be one of {', '.join(_PROTOCOLS)}, not {protocol}")
        tls = _tls(properties) if protocol.endswith("ssl") else None
        sasl, tokens, kerberos = None, None, None
        if protocol.startswith("sasl"):
            from offsetmgr.kafka.client.sasl import GSSAPI, OAUTHBEARER, mechanism

            name = properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or "GSSAPI"
            sasl = (name, properties.get("sasl.username", ""), properties.get("sasl.password", ""))
            if name.upper() == OAUTHBEARER:
                from offsetmgr.kafka.client.oauth_tokens import token_source  # Few connections use tokens.

                tokens = token_source(properties)
            elif name.upper() == GSSAPI:
                from offsetmgr.kafka.client.sasl import KerberosLogin

                kerberos = KerberosLogin.of(properties)
            else:
                mechanism(*sasl)
        assumed = fallback_versions(properties.get("broker.version.fallback", ""))
        certificate = properties.get("ssl.certificate.pem") or properties.get("ssl.certificate.location", "")
        return cls(tls, sasl, properties.get("client.id", "offsetmgr"), assumed, tokens, kerberos, certificate)

    def login(self, timeout_s: float = _LOGIN_TIMEOUT_S, host: str = "") -> Mechanism | None:
        """Returns a new SASL exchange with the broker at ``host``, or None if the connection has no SASL. With
        OAUTHBEARER, the call may have to wait for a new token."""
        if self.sasl is None:
            return None
        from offsetmgr.kafka.client.sasl import OAuthBearer, mechanism

        if self.kerberos is not None:
            from offsetmgr.kafka.client.sasl import Gssapi

            return Gssapi(self.kerberos, host)
        if self.tokens is not None:
            return OAuthBearer(self.tokens.token(timeout_s).value, self.tokens.extensions)
        return mechanism(*self.sasl)

    async def begin_login(self, host: str, timeout_s: float) -> tuple[Mechanism, bytes]:
        """Returns a new SASL exchange and its first message, and does not block the event loop."""

        def begin() -> tuple[Mechanism, bytes]:
            # The error of a source that does not answer should arrive before the broker's connection times out.
            login = self.login(timeout_s * _TOKEN_TIMEOUT_FRACTION, host)
            assert login is not None
            return login, login.start()

        blocks = self.tokens is not None or self.kerberos is not None
        return await asyncio.to_thread(begin) if blocks else begin()


def _tls(properties: Mapping[str, str]) -> ssl.SSLContext:
    for key in _UNSUPPORTED:
        if key in properties:
            raise UnsupportedOperation(
                key,
                "offsetmgr's client does not support it",
                Advice(
                    "use PEM (ssl.certificate.location), or a {command_config} file, which can name JKS and PKCS12"
                    " stores"
                ),
            )
    return tls_context(properties)


# The time that is left until the deadline of a request, and for one of its attempts. Deadlines are times of the event
# loop's clock.

_ATTEMPT_SHARE: Final = 3
MIN_ATTEMPT_S: Final = 1.0


def remaining(deadline: float, what: str = "Kafka") -> float:
    """Returns the seconds until the deadline. Raises `TimedOut` for ``what`` after it."""
    left = deadline - asyncio.get_running_loop().time()
    if left <= 0:
        raise TimedOut(what, "the timeout has expired")
    return left


def attempt_deadline(deadline: float, wait_s: float = 0.0) -> float:
    """Returns the deadline of an attempt that begins now. Each attempt gets a third of the remaining time, at least
    `MIN_ATTEMPT_S`. Therefore time remains for other attempts if a broker does not respond. ``wait_s`` is the time for
    which the broker may delay its response on purpose."""
    now = asyncio.get_running_loop().time()
    return min(deadline, now + wait_s + max((deadline - now) / _ATTEMPT_SHARE, MIN_ATTEMPT_S))


# Exchanges requests and responses as frames on an open connection to a broker.

T = TypeVar("T")

_MAX_FRAME_BYTES: Final = 256 * 1024 * 1024
_MIN_FRAME_BYTES: Final = 4
"""The size of a correlation id."""

_MAX_IN_FLIGHT: Final = 200

_LOGIN_REQUESTS: Final = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})

TIMEOUT_HINT: Final = Advice(
    "check that this is a broker's port; if the broker is only slow, use a longer {timeout_ms:timeout}"
)

_HEADER: Final = struct.Struct(">hhi")

_VERSIONS_TIMEOUT_S: Final = 2.0
"""The time without a response to ApiVersions after which a login checks whether the broker is too old for that
request."""

_LIFETIME_FRACTION: Final = 0.85
"""The part of a session's lifetime after which the client logs in again; the Java client waits for 85 to 95 %."""


class ConnectionClosedByBroker(Exception):
    """The broker closed the connection. The caller retries on another connection, because a closed connection is not
    always a failure."""

    def __init__(self, versions: Versions | None = None) -> None:
        super().__init__()
        self.versions = versions
        """The API versions of the broker if they are known; None if the next connection has to send ApiVersions."""


def format_seconds(seconds: float) -> str:
    """Rounds a duration for messages, so that 2.999 becomes 3."""
    return f"{round(seconds, 1 if seconds >= 1 else 3):g}"


class _Exchange(NamedTuple):
    """A request that waits for its response."""

    correlation: int
    answer: asyncio.Future[bytes]
    timeout_s: float
    deadline: float
    """A time of the loop's clock."""


class BrokerConnection(asyncio.Protocol):
    """An open connection, returned by `open`. Many tasks may use `call` at once. It exchanges frames, matches responses
    to requests, and handles timeouts and the end of the connection as the protocol of its transport."""

    def __init__(self, address: Address, client_id: str) -> None:
        self.address = address
        self.versions: Versions = {}
        """The API versions of the broker; empty until they are known."""
        self.certificate = ""
        """The PEM text or the file of the client's certificate; empty without one."""
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._frames = FrameSplitter(_MAX_FRAME_BYTES, _MIN_FRAME_BYTES)
        name = client_id.encode()
        self._client_id = struct.pack(">h", len(name)) + name
        self._correlation = itertools.count(1)
        self._waiting: deque[_Exchange] = deque()
        self._in_flight = asyncio.Semaphore(_MAX_IN_FLIGHT)
        self._timer: asyncio.TimerHandle | None = None
        """Calls `_check_deadlines` at the earliest deadline, or earlier."""
        self._failure: OffsetMgrError | None = None
        self._answered = False
        self.login_unproven = False
        """Whether the listener may still require a login. This is the case if the client has not logged in and the
        broker has responded only to ApiVersions."""
        self._login_due_at: float | None = None
        """When the client has to log in again, as a time of the loop's clock; None if the broker does not require
        it. From then on, the connection sends only requests of the login until the login has succeeded."""
        self._raw_tokens = False
        """Whether the connection currently exchanges SASL tokens, which have no headers, instead of requests."""
        self._login_lock = asyncio.Lock()
        self._security: Security | None = None
        """The settings of the last login; None without one."""
        self.features: Mapping[str, int] | None = None
        """The features that the server announces (see `features` of the client); None until they are requested."""

    @property
    def closed(self) -> bool:
        return self._failure is not None

    async def call(
        self, request: Request | EncodedRequest, timeout_s: float, *, use_codec_thread: bool = False
    ) -> Message:
        """Sends a request and waits for its response, at most ``timeout_s`` seconds. If the broker does not support the
        version of the request, `old_versions` translates the request to a version that the broker supports. In this
        case, fields that the older version lacks may be missing in the response.

        If ``use_codec_thread`` is True, the codec thread decodes a large response, so that the event loop can do other
        work meanwhile. Decoding in the codec thread takes longer than decoding on the event loop.

        Raises `TimedOut`, `Unreachable` (the connection broke), `ServerError` (the response is not valid).
        """
        if self.supports(request.api_key, request.version):
            return await send_in_version(self, request, timeout_s, use_codec_thread=use_codec_thread)
        return await self._call_translated(request, timeout_s)

    async def call_and_read(self, request: Request, timeout_s: float, read: Callable[[Cursor], T]) -> T:
        """Like `call`, but ``read`` decodes the response. For responses that are so large that they need their own
        codec."""
        if self.supports(request.api_key, request.version):
            return await send_and_read(self, request, timeout_s, read)
        answer = await self._call_translated(request, timeout_s)
        body = encode_response(request.api_key, request.version, answer)
        return read(Cursor(body, 0, flexible=request_is_flexible(request.api_key, request.version), is_response=True))

    async def _call_translated(self, request: Request | EncodedRequest, timeout_s: float) -> Message:
        from offsetmgr.kafka.protocol.old_versions import send_translated  # Most brokers need no translation.

        return await send_translated(self, request, timeout_s)

    def supports(self, api_key: int, version: int) -> bool:
        """Returns whether the broker supports this version of an API. Returns True while the versions are unknown."""
        low, high = self.versions.get(api_key, (0, -1))
        return low <= version <= high or not self.versions

    async def exchange(self, request: EncodedRequest | bytes, timeout_s: float) -> bytes:
        """Sends an encoded request and returns the whole response, which starts with the correlation id. If ``request``
        is a bytes object, it is a SASL token. A SASL token and the response to it have no header.

        Raises `TimedOut`, `Unreachable` (the connection broke).
        """
        belongs_to_login = isinstance(request, bytes) or request.api_key in _LOGIN_REQUESTS
        while True:
            if not belongs_to_login and self._login_is_due():
                await self._log_in_again(timeout_s)
            async with self._in_flight:
                if self._failure is not None:
                    raise self._failure
                if not belongs_to_login and self._login_is_due():  # it became due during the wait for the semaphore
                    continue
                assert self._transport is not None
                correlation = 0 if isinstance(request, bytes) else next(self._correlation)
                answer: asyncio.Future[bytes] = self._loop.create_future()
                deadline = self._loop.time() + timeout_s
                self._waiting.append(_Exchange(correlation, answer, timeout_s, deadline))
                if self._timer is None or deadline < self._timer.when():
                    self._check_deadlines_at(deadline)
                self._transport.write(self._frame(request, correlation))
                return await answer

    def _login_is_due(self) -> bool:
        return self._login_due_at is not None and self._loop.time() >= self._login_due_at

    def _check_deadlines_at(self, time: float | None) -> None:
        """Sets the timer. One timer serves all requests of the connection, because most requests are answered long
        before their deadline."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if time is None else self._loop.call_at(time, self._check_deadlines)

    def _check_deadlines(self) -> None:
        """Ends the connection if the deadline of a request has passed."""
        self._timer = None
        waiting = [exchange for exchange in self._waiting if not exchange.answer.done()]
        if not waiting:
            return
        first = min(waiting, key=lambda exchange: exchange.deadline)
        if first.deadline <= self._loop.time():
            self._fail(TimedOut(f"broker {self.address}", f"no answer within {format_seconds(first.timeout_s)} s"))
        else:
            self._check_deadlines_at(first.deadline)

    def _frame(self, request: EncodedRequest | bytes, correlation: int) -> bytes:
        if isinstance(request, bytes):
            return INT32.pack(len(request)) + request
        head = _HEADER.pack(request.api_key, request.version, correlation) + self._client_id
        return INT32.pack(len(head) + len(request.body)) + head + request.body

    # --- called by the transport ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._frames.min_bytes = 0 if self._raw_tokens else _MIN_FRAME_BYTES
        self._frames.feed(data)
        try:
            while self._failure is None and (frame := self._frames.next()) is not None:
                self._received(frame[4:])
        except InvalidRequest:
            self._fail(self._not_kafka())

    def eof_received(self) -> bool:
        """Closes the connection when the broker closes its sending side."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, ssl.SSLError):
            self._fail(self.rejected_by_tls(exc))
        else:
            self._fail(self._connection_lost() if self._answered else self._not_kafka())

    def _received(self, frame: bytes) -> None:
        correlation = 0 if self._raw_tokens else INT32.unpack_from(frame)[0]
        # Kafka 0.8.2 sends the correlation id 0 with some failed requests.
        if not self._waiting or correlation not in (self._waiting[0].correlation, 0):
            self._fail(self._not_kafka())
            return
        self._answered, self.login_unproven = True, False
        answer = self._waiting.popleft().answer
        if not answer.done():
            answer.set_result(frame)

    def _connection_lost(self) -> Unreachable:
        hint = Advice(
            "the listener may require a login: set security.protocol in the client properties ({command_config} FILE)"
        )
        return Unreachable(f"broker {self.address}", "the connection broke", hint if self.login_unproven else "")

    def rejected_by_tls(self, error: ssl.SSLError) -> AuthenticationFailed:
        """The error if the broker ends the TLS connection with an alert. With TLS 1.3 the broker checks the client's
        certificate only after the handshake has succeeded for the client."""
        hint = "the listener may require a client certificate: set ssl.keystore.location in the client properties"
        if own := own_certificate_text(self.certificate):
            hint = f"check that the broker trusts the client's certificate, and that it has not expired: {own}"
        return AuthenticationFailed(
            f"broker {self.address}", f"the broker ended the TLS connection ({error.reason})", hint
        )

    def _not_kafka(self) -> ServerError:
        return ServerError(
            f"broker {self.address}",
            "the server at this address does not respond like a Kafka broker",
            "check the port, and security.protocol (a TLS listener closes plain-text connections)",
        )

    def _fail(self, error: OffsetMgrError) -> None:
        if self._failure is not None:
            return
        self._failure = error
        self._check_deadlines_at(None)
        while self._waiting:
            answer = self._waiting.popleft().answer
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # Otherwise asyncio would log an error that a cancelled caller does not retrieve.
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Closes the connection and does not wait. Requests in flight fail with `Unreachable`."""
        self._fail(Unreachable(f"broker {self.address}", "the connection was closed"))

    def abort_if_abandoned(self) -> None:
        """Closes the connection if the broker has not responded to a cancelled request and no caller waits."""
        if self._waiting and all(exchange.answer.done() for exchange in self._waiting):
            self.abort()

    async def close(self) -> None:
        """Closes the connection. Requests in flight fail with `Unreachable`."""
        self.abort()
        await asyncio.sleep(0)  # The transport closes its socket in the next iteration of the loop.

    # --- opening and login ---------------------------------------------------------------------------

    @classmethod
    async def open(
        cls,
        address: Address,
        security: Security,
        timeout_s: float,
        versions: Versions | None = None,
    ) -> BrokerConnection:
        """Connects, requests the API versions (unless ``versions`` are given) and logs in, within ``timeout_s``.

        Raises `Unreachable`, `TimedOut`, `AuthenticationFailed`, `ServerError` (the server is not a Kafka broker).
        """
        known, login = versions, security.sasl is not None
        probe, suspected, last_attempt = known is None and not login, None, False
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    connection = await cls._connect(address, security)
                    try:
                        await connection._prepare(security, known, timeout_s, probe=probe, last_attempt=last_attempt)
                        return connection
                    except ConnectionClosedByBroker as closed:
                        await connection.close()
                        last_attempt = login
                        # A stopping broker closes connections, too. Therefore the client assumes that the broker is of
                        # an old release only after the broker has closed two connections.
                        probe = not login and closed.versions is not None and closed.versions is not suspected
                        suspected = closed.versions
                        known = None if probe else suspected
                    except BaseException:
                        await connection.close()
                        raise
        except OffsetMgrError:
            raise
        except TimeoutError:
            raise TimedOut(
                f"broker {address}", f"no answer within {format_seconds(timeout_s)} s", TIMEOUT_HINT
            ) from None

    @classmethod
    async def _connect(cls, address: Address, security: Security) -> BrokerConnection:
        loop, name = asyncio.get_running_loop(), address.host if security.tls else None
        connection = cls(address, security.client_id)
        connection.certificate = security.certificate
        try:
            await loop.create_connection(lambda: connection, *address, ssl=security.tls, server_hostname=name)
            return connection
        except ssl.SSLCertVerificationError as error:
            why, hint = await asyncio.to_thread(verification_failure, error, *address)
            raise AuthenticationFailed(f"broker {address}", why, hint) from None
        except ssl.SSLError as error:
            if "CERTIFICATE" in (error.reason or "").upper():
                raise connection.rejected_by_tls(error) from None
            why, hint = f"no TLS connection ({error.reason})", "check that this is the port of a TLS listener"
            raise ServerError(f"broker {address}", why, hint) from None
        except OSError as error:
            # If the server refuses the connection, asyncio replaces the error text of the operating system, so the code
            # looks up the text by the error number. Errors of the resolver have negative numbers, for which the
            # operating system has no text.
            number = error.errno or 0
            why = os.strerror(number) if number > 0 else error.strerror or str(error)
            hint = "check that it is running, and that host and port are right"
            if not why:  # asyncio gives no reason if the server closes the connection during the TLS handshake
                why = "it closed the connection"
                if security.tls:
                    why, hint = f"{why} during the TLS handshake", "check that this is the port of a TLS listener"
            raise Unreachable(f"broker {address}", why, hint) from None

    async def _prepare(
        self, security: Security, versions: Versions | None, timeout_s: float, *, probe: bool, last_attempt: bool
    ) -> None:
        """Determines the API versions and logs in.

        If ``probe`` is True, the broker may be too old for ApiVersions, so the method uses `probe_old_versions`. If the
        broker closes the connection during `probe_old_versions` or during the login, the method raises
        `ConnectionClosedByBroker`. After this error the caller opens another connection. If ``last_attempt`` is True
        and the broker closes the connection during the login, the method raises `AuthenticationFailed` instead of
        `ConnectionClosedByBroker`.
        """
        login = security.sasl is not None
        if versions is None and probe:
            versions = await probe_old_versions(self, timeout_s, security.assumed_versions)
        if versions is None or (login and not versions):  # the login depends on the API versions
            if login:
                pending_versions = asyncio.ensure_future(self._request_versions(timeout_s))
                try:
                    await self._reject_old_broker(pending_versions, security, timeout_s)
                    self.versions = await pending_versions
                finally:
                    pending_versions.cancel()
            else:
                self.versions = await self._request_versions(timeout_s)
                self.login_unproven = True
        else:
            self.versions = versions
            self._answered = True  # An earlier connection has shown that this is a Kafka broker.
        if login:
            await self._login(security, timeout_s, last_attempt=last_attempt)

    async def _request_versions(self, timeout_s: float) -> Versions:
        try:
            answer = await self.call(Request(ApiKey.API_VERSIONS, 0, {}), timeout_s)
        except ServerError as error:
            raise self._not_kafka() from error
        return {k["api_key"]: (k["min_version"], k["max_version"]) for k in answer["api_keys"]}

    async def _reject_old_broker(
        self, pending_versions: asyncio.Future[Versions], security: Security, timeout_s: float
    ) -> None:
        """Raises `UnsupportedOperation` if the broker does not respond to ApiVersions because it is too old.

        If the response to ApiVersions is late, the method checks on a second connection whether the broker is too old.
        The method waits before it makes this check, because a listener that requires a login counts the check as a
        failed login.
        """
        done, _ = await asyncio.wait([pending_versions], timeout=min(_VERSIONS_TIMEOUT_S, timeout_s / 2))
        if done and pending_versions.exception() is None:
            return
        try:
            other = await self._connect(self.address, security)
        except OffsetMgrError:
            return
        try:
            versions = await probe_old_versions(other, timeout_s)
        except ConnectionClosedByBroker as closed:
            versions = closed.versions
        except OffsetMgrError:
            return
        finally:
            await other.close()
        if versions is not None and not ACCEPTS_LOGINS.supported_by(versions):
            raise ACCEPTS_LOGINS.unsupported_error(str(self.address), versions)

    async def _login(self, security: Security, timeout_s: float, *, last_attempt: bool) -> None:
        what = f"login to broker {self.address}"
        if not ACCEPTS_LOGINS.supported_by(self.versions):
            raise ACCEPTS_LOGINS.unsupported_error(str(self.address), self.versions)
        login, first_message = await security.begin_login(self.address.host, timeout_s)
        request = Request(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": login.name})
        handshake = await self.call(request, timeout_s)
        if handshake["error_code"]:
            # Kafka 0.10 lists mechanisms even on ports that accept no SASL.
            hint = "this port accepts no SASL logins: use the port of a SASL listener"
            if handshake["mechanisms"] and handshake["error_code"] != ErrorCode.ILLEGAL_SASL_STATE:
                hint = f"it offers {', '.join(handshake['mechanisms'])}"
            raise AuthenticationFailed(what, f"the broker does not offer {login.name}", hint)
        message: bytes | None = first_message
        if is_before("1.0", self.versions):
            # These brokers expect each token as a frame without a header (KIP-43). If the credentials are wrong, they
            # close the connection without giving a reason. A broker that is shutting down also closes the connection,
            # so the client makes a second attempt.
            self._raw_tokens = True
            try:
                while message is not None:
                    message = login.answer(await self.exchange(message, timeout_s))
            except Unreachable:
                if not last_attempt:
                    raise ConnectionClosedByBroker(self.versions) from None
                why = f"Kafka {release(self.versions)} gives no reason when it rejects a login"
                hint = f"check the user name and password; {why}"
                raise AuthenticationFailed(what, "the broker closed the connection during the login", hint) from None
            finally:
                self._raw_tokens = False
            return
        lifetime_ms = 0
        while message is not None:
            request = Request(ApiKey.SASL_AUTHENTICATE, 1, {"auth_bytes": message})
            answer = await self.call(request, timeout_s)
            if answer["error_code"]:
                raise kafka_error(answer["error_code"], what, hint=login.hint)
            lifetime_ms = answer.get("session_lifetime", 0)
            message = login.answer(answer["auth_bytes"])
        self._security = security
        due_s = lifetime_ms / 1000 * _LIFETIME_FRACTION
        self._login_due_at = self._loop.time() + due_s if lifetime_ms > 0 else None

    async def _log_in_again(self, timeout_s: float) -> None:
        """Logs in once more on this connection, because the broker closes it when the lifetime of the session has
        passed. Requests in flight are answered first. The connection fails if the login fails."""
        async with self._login_lock:
            if self._failure is not None:
                raise self._failure
            if not self._login_is_due():
                return
            assert self._security is not None
            try:
                await self._login(self._security, timeout_s, last_attempt=True)
            except OffsetMgrError as error:
                self._fail(error)
                raise

    async def hand_over(self, protocol: asyncio.BaseProtocol) -> asyncio.Transport:
        """Transfers the open, authenticated connection to ``protocol``, which sends raw frames from then on.

        No request may be in flight. Raises `Unreachable` if the connection is broken.
        """
        if self._failure is not None:
            raise self._failure
        assert self._transport is not None
        self._check_deadlines_at(None)
        self._failure = Unreachable(f"broker {self.address}", "the connection was handed over")
        self._transport.set_protocol(protocol)
        if self._transport.is_closing():
            raise Unreachable(f"broker {self.address}", "the connection broke")
        return self._transport


async def probe_old_versions(
    connection: BrokerConnection, timeout_s: float, assumed: Versions | None = None
) -> Versions | None:
    """Returns the API versions of a broker before 0.10.0; None for a later broker, which supports ApiVersions.

    The client cannot simply send ApiVersions, because a broker of Kafka 0.9 never responds to ApiVersions and
    afterwards loses requests of other clients. Instead, the client first sends Metadata version 1 with an invalid topic
    name. Brokers before 0.10.0 respond in the layout of version 0. After such a response the client sends ListGroups: a
    broker of Kafka 0.9 responds to ListGroups, and a broker of Kafka 0.8.2 closes the connection. If ``assumed`` is
    given, the client skips ListGroups and returns ``assumed`` for a broker before 0.10.0.

    Raises `ConnectionClosedByBroker` if the broker closed the connection. Also raises the errors of
    `BrokerConnection.exchange`.
    """
    one_impossible_topic = b"\0\0\0\1\0\1?"
    try:
        frame = await connection.exchange(EncodedRequest(ApiKey.METADATA, 1, one_impossible_topic), timeout_s)
    except (Unreachable, ServerError):
        # A broker of Kafka 0.9 would have responded to Metadata. This broker did not respond, for example because its
        # listener requires a login and responds only to ApiVersions. Therefore the client can safely send ApiVersions
        # on the next connection.
        raise ConnectionClosedByBroker from None
    if not _is_metadata_0(frame):
        return None
    if assumed is not None:
        return assumed
    try:
        await connection.exchange(EncodedRequest(ApiKey.LIST_GROUPS, 0, b""), timeout_s)
    except (Unreachable, ServerError):
        raise ConnectionClosedByBroker(KAFKA_0_8_2) from None
    return KAFKA_0_9


def _is_metadata_0(frame: bytes) -> bool:
    """Returns whether a response has exactly the layout of Metadata version 0."""
    cursor = Cursor(frame, 4, flexible=False, is_response=True)
    try:
        for _ in range(cursor.count(10)):
            cursor.int32()  # node id
            cursor.string()  # host
            cursor.int32()  # port
        for _ in range(cursor.count(8)):
            cursor.number(INT16)  # error
            cursor.string()  # name
            for _ in range(cursor.count(18)):
                cursor.number(INT16)  # error
                cursor.int32()  # partition
                cursor.int32()  # leader
                for _ in range(2):  # replicas and in-sync replicas
                    cursor.take(4 * cursor.count(4))
    except InvalidRequest:
        return False
    return cursor.at == len(frame)


# `BrokerNode`: a shared connection to a broker for quick requests, and a pool of dedicated connections. A broker
# processes the requests of a connection one at a time. While a JoinGroup waits in the broker, later requests on the
# same connection wait, too. Only one task at a time uses a dedicated connection, so a waiting JoinGroup delays no
# other task. If the commits of many groups use several dedicated connections, the broker can process the commits in
# parallel.

MAX_ACTIVE_CONNECTIONS: Final = 32
"""The maximum number of dedicated connections in use. A connection does not count while its request waits in the broker
(see `DedicatedConnection.mark_waiting`)."""
_PROBE_S: Final = 1.0
"""The time limit of each request that finds out whether another address is usable."""


class DedicatedConnection:
    """A connection from the pool of a `BrokerNode`, for one user."""

    def __init__(self, connection: BrokerConnection, admission: asyncio.Semaphore) -> None:
        self.connection = connection
        self._admission = admission
        self._counted = True

    def mark_waiting(self) -> None:
        """Marks the request on this connection as waiting in the broker (for a rebalance). From then on the connection
        does not count towards `MAX_ACTIVE_CONNECTIONS`."""
        if self._counted:
            self._counted = False
            self._admission.release()


class BrokerNode:
    """The connections to one broker. ``advertiser`` is the broker that named the address of this one; None for a
    bootstrap address."""

    def __init__(self, address: Address, security: Security, advertiser: BrokerNode | None = None) -> None:
        self.address = address
        self._security = security
        self._advertiser = advertiser
        self._shared: BrokerConnection | None = None
        self._accepted = False
        self._versions: Versions | None = None
        self._opening = asyncio.Lock()
        self._idle: list[BrokerConnection] = []
        self._busy: set[BrokerConnection] = set()
        self._admission = asyncio.Semaphore(MAX_ACTIVE_CONNECTIONS)

    @property
    def connected(self) -> bool:
        """Whether the shared connection is open."""
        return self._shared is not None and not self._shared.closed

    @property
    def accepted(self) -> bool:
        """Whether the broker has accepted a login, or has responded to a request without one."""
        return self._accepted or (self._shared is not None and not self._shared.login_unproven)

    async def connection(self, deadline: float) -> BrokerConnection:
        """Returns the shared connection. Raises the errors of `BrokerConnection.open`."""
        if self._shared is not None and not self._shared.closed:
            return self._shared
        try:
            async with asyncio.timeout_at(deadline):  # another task may be opening the connection with more time
                await self._opening.acquire()
        except TimeoutError:
            raise TimedOut(f"broker {self.address}", "it has not responded yet", TIMEOUT_HINT) from None
        try:
            if self._shared is not None and self._shared.closed:
                self._accepted = self.accepted
                self._shared = self._versions = None  # After a restart the broker may have another release.
            if self._shared is None:
                self._shared = await self.open(deadline)
            return self._shared
        finally:
            self._opening.release()

    async def open(self, deadline: float, client_id: str = "") -> BrokerConnection:
        """Opens a new connection. The caller closes it. ``client_id`` replaces the client id of the settings."""
        left = remaining(deadline, f"broker {self.address}")
        security = replace(self._security, client_id=client_id) if client_id else self._security
        try:
            connection = await BrokerConnection.open(self.address, security, left, self._versions)
        except (Unreachable, TimedOut) as error:
            raise error if self._advertiser is None else await self._advertised_error(self._advertiser, error) from None
        self._versions, self._advertiser = connection.versions, None
        return connection

    async def _advertised_error(self, advertiser: BrokerNode, error: OffsetMgrError) -> OffsetMgrError:
        """Returns the error of an address to which no connection was possible so far. It names the broker that
        advertises the address, and is `UnusableAddress` if no address of the cluster can be used."""
        unusable = isinstance(error, Unreachable) and not await advertiser.advertises_usable()
        why = f"{error.why} (advertised by {advertiser.address}{', which names no usable address' if unusable else ''})"
        hint = "correct advertised.listeners of the broker, or make this address reachable from this machine"
        return (UnusableAddress if unusable else type(error))(error.what, why, hint)

    async def advertises_usable(self) -> bool:
        """Returns False if this broker answers, and every address in its Metadata response refuses connections or does
        not resolve."""
        if self._shared is None or self._shared.closed:
            return True
        try:
            answer = await self._shared.call(requests.metadata(), _PROBE_S)
        except OffsetMgrError:
            return True
        advertised = requests.broker_addresses(answer).values()
        return not advertised or any(await asyncio.gather(*map(_may_accept, advertised)))

    @asynccontextmanager
    async def dedicated_connection(self, deadline: float) -> AsyncIterator[DedicatedConnection]:
        """Provides a connection that no other task uses at the same time."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._admission.acquire()
        except TimeoutError:
            why = f"it has not responded to the {MAX_ACTIVE_CONNECTIONS} requests before this one"
            hint = "check that its process runs and is not stopped, then run the command again"
            raise TimedOut(f"broker {self.address}", why, hint) from None
        dedicated: DedicatedConnection | None = None
        try:
            while self._idle and self._idle[-1].closed:
                self._idle.pop()
            connection = self._idle.pop() if self._idle else await self.open(deadline)
            self._busy.add(connection)
            dedicated = DedicatedConnection(connection, self._admission)
            yield dedicated
        finally:
            if dedicated is None:
                self._admission.release()
            else:
                dedicated.mark_waiting()
                self._busy.discard(dedicated.connection)
                if not dedicated.connection.closed:
                    self._idle.append(dedicated.connection)

    async def close(self) -> None:
        """Closes all connections."""
        shared = [self._shared] if self._shared else []
        for connection in [*shared, *self._idle, *self._busy]:
            await connection.close()


async def _may_accept(address: Address) -> bool:
    try:
        async with asyncio.timeout(_PROBE_S):
            _, writer = await asyncio.open_connection(*address)
    except TimeoutError:
        return True
    except OSError:
        return False
    writer.close()
    return True
