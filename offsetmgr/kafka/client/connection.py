"""`BrokerConnection`, a connection to one broker: opening, TLS, SASL, and the detection of API versions.

Ordering contract: a broker processes the requests of a connection one at a time and responds in order. Many requests
may be in flight, but a request that waits in the broker (such as a JoinGroup) delays all later requests of the
connection. If a request times out, the client closes the connection, because the broker does not respond to later
requests before it has responded to the request that timed out.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from typing import TYPE_CHECKING, Final

from offsetmgr.config.tls_context import verification_failure
from offsetmgr.core.error_code import ErrorCode
from offsetmgr.core.errors import (
    AuthenticationFailed,
    InvalidRequest,
    OffsetMgrError,
    ServerError,
    TimedOut,
    Unreachable,
)
from offsetmgr.kafka.client.frame_connection import (
    TIMEOUT_HINT,
    ConnectionClosedByBroker,
    FrameConnection,
    format_seconds,
)
from offsetmgr.kafka.client.security import Security
from offsetmgr.kafka.protocol.api_key import ApiKey
from offsetmgr.kafka.protocol.channel import Address, EncodedRequest, Request
from offsetmgr.kafka.protocol.errors import kafka_error
from offsetmgr.kafka.protocol.primitives import INT16, Cursor
from offsetmgr.kafka.protocol.releases import ACCEPTS_LOGINS, KAFKA_0_8_2, KAFKA_0_9, Versions, is_before, release

if TYPE_CHECKING:
    from offsetmgr.kafka.client.sasl import Mechanism

_VERSIONS_TIMEOUT_S: Final = 2.0
"""The time without a response to ApiVersions after which a login checks whether the broker is too old for that
request."""

_LIFETIME_FRACTION: Final = 0.85
"""The part of a session's lifetime after which the client logs in again; the Java client waits for 85 to 95 %."""


class BrokerConnection(FrameConnection):
    """An open connection, returned by `open`. Many tasks may use `call` at once."""

    def __init__(self, address: Address, client_id: str) -> None:
        super().__init__(address, client_id)
        self._login_lock = asyncio.Lock()
        self._security: Security | None = None
        """The settings of the last login; None without one."""

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
        known, login = versions, security.requires_login
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
        except TimeoutError:
            raise TimedOut(
                f"broker {address}", f"no answer within {format_seconds(timeout_s)} s", TIMEOUT_HINT
            ) from None

    @classmethod
    async def _connect(cls, address: Address, security: Security) -> BrokerConnection:
        name = address.host if security.tls else None
        connection = cls(address, security.client_id)
        connection.certificate = security.certificate
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: connection,
                address.host,
                address.port,
                ssl=security.tls,
                server_hostname=name,
            )
            return connection
        except ssl.SSLCertVerificationError as error:
            why, hint = await asyncio.to_thread(verification_failure, error, *address)
            raise AuthenticationFailed(f"broker {address}", why, hint) from None
        except ssl.SSLError as error:
            if "CERTIFICATE" in (error.reason or "").upper():
                raise connection.rejected_by_tls(error) from None
            raise ServerError(
                f"broker {address}",
                f"no TLS connection ({error.reason})",
                "check that this is the port of a TLS listener",
            ) from None
        except OSError as error:
            # If the server refuses the connection, asyncio replaces the error text of the operating system, so the code
            # looks up the text by the error number. Errors of the resolver have negative numbers, for which the
            # operating system has no text.
            number = error.errno or 0
            why = os.strerror(number) if number > 0 else error.strerror or str(error)
            hint = "check that it is running, and that host and port are right"
            if not why:  # asyncio gives no reason if the server closes the connection during the TLS handshake
                why = (
                    "it closed the connection during the TLS handshake" if security.tls else "it closed the connection"
                )
                hint = "check that this is the port of a TLS listener" if security.tls else hint
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
        login = security.requires_login
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
                self._login_unproven = True
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
            offered = (
                "" if handshake["error_code"] == ErrorCode.ILLEGAL_SASL_STATE else ", ".join(handshake["mechanisms"])
            )
            hint = (
                f"it offers {offered}"
                if offered
                else "this port accepts no SASL logins: use the port of a SASL listener"
            )
            raise AuthenticationFailed(what, f"the broker does not offer {login.name}", hint)
        message: bytes | None = first_message
        if is_before("1.0", self.versions):
            await self._login_with_tokens(login, message, timeout_s, last_attempt=last_attempt)
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

    async def _login_with_tokens(
        self, login: Mechanism, token: bytes | None, timeout_s: float, *, last_attempt: bool
    ) -> None:
        """Logs in to a broker of Kafka 0.10 or 0.11 (KIP-43), which expects each token as a frame without a header.

        If the credentials are wrong, a broker of these releases closes the connection without giving a reason. A broker
        that is shutting down also closes the connection, so the client makes a second attempt. Raises
        `ConnectionClosedByBroker` on the first attempt and `AuthenticationFailed` on the ``last_attempt``.
        """
        self._raw_tokens = True
        try:
            while token is not None:
                answer = await self._exchange(token, timeout_s)
                token = login.answer(answer)
        except Unreachable:
            if not last_attempt:
                raise ConnectionClosedByBroker(self.versions) from None
            raise AuthenticationFailed(
                f"login to broker {self.address}",
                "the broker closed the connection during the login",
                "check the user name and password;"
                f" Kafka {release(self.versions)} gives no reason when it rejects a login",
            ) from None
        finally:
            self._raw_tokens = False

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
