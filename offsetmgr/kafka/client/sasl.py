"""The client side of SASL PLAIN (RFC 4616), SCRAM (RFC 5802, RFC 7677) and OAUTHBEARER (RFC 7628), without I/O.

A mechanism produces the client's messages. `start` returns the first message. `answer` receives a message of the server
and returns the client's next message; None at the end. No message or error text contains the password (data rule
"secrets stay secret").
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import importlib.util
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from offsetmgr.core.errors import AuthenticationFailed, UnsupportedOperation, install_hint

OAUTHBEARER: Final = "OAUTHBEARER"
TOKEN_KEYS: Final = ("sasl.oauthbearer.", "https.")
"""The beginnings of the settings of OAUTHBEARER."""
GSSAPI: Final = "GSSAPI"
_CHECK_PASSWORD: Final = "check the user name and password"


class Mechanism(Protocol):
    """One authentication exchange."""

    name: str
    hint: str
    """The hint of the error if the broker rejects the login."""

    def start(self) -> bytes: ...

    def answer(self, server: bytes) -> bytes | None: ...


class Plain:
    """SASL PLAIN: user name and password in clear text, so use it only over TLS."""

    name = "PLAIN"
    hint = _CHECK_PASSWORD

    def __init__(self, username: str, password: str) -> None:
        self._message = f"\0{username}\0{password}".encode()

    def start(self) -> bytes:
        return self._message

    def answer(self, server: bytes) -> bytes | None:  # noqa: ARG002 - the server's message is empty
        return None


class Scram:
    """SCRAM-SHA-256 and SCRAM-SHA-512. The server also proves that it knows the password."""

    hint = _CHECK_PASSWORD

    def __init__(self, name: str, username: str, password: str, *, nonce: str | None = None) -> None:
        self.name = name
        self._digest = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}[name]
        self._username = username.replace("=", "=3D").replace(",", "=2C")
        self._password = password.encode()
        self._nonce = nonce or secrets.token_urlsafe(24)
        self._server_signature: bytes | None = None

    def start(self) -> bytes:
        return f"n,,{self._first_bare()}".encode()

    def answer(self, server: bytes) -> bytes | None:
        fields = dict(part.split("=", 1) for part in server.decode().split(",") if "=" in part)
        if "e" in fields:
            raise AuthenticationFailed("SASL login", f"the broker rejected the credentials ({fields['e']})")
        if self._server_signature is None:
            return self._final(server.decode(), fields)
        if not hmac.compare_digest(_decode(fields.get("v", "")), self._server_signature):
            raise AuthenticationFailed("SASL login", "the server did not prove that it knows the password")
        return None

    def _first_bare(self) -> str:
        return f"n={self._username},r={self._nonce}"

    def _final(self, server_first: str, fields: dict[str, str]) -> bytes:
        nonce, iterations = fields.get("r", ""), fields.get("i", "")
        if not nonce.startswith(self._nonce) or not iterations.isdigit() or int(iterations) < 1:
            raise AuthenticationFailed(
                "SASL login", "the server's SCRAM challenge does not belong to our first message"
            )
        salted = hashlib.pbkdf2_hmac(self._digest, self._password, _decode(fields.get("s", "")), int(iterations))
        client_key = self._mac(salted, b"Client Key")
        without_proof = f"c=biws,r={nonce}"
        transcript = f"{self._first_bare()},{server_first},{without_proof}".encode()
        signature = self._mac(hashlib.new(self._digest, client_key).digest(), transcript)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._server_signature = self._mac(self._mac(salted, b"Server Key"), transcript)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def _mac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._digest)


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise AuthenticationFailed("SASL login", "the server's SCRAM challenge is malformed") from None


class OAuthBearer:
    """SASL OAUTHBEARER: an access token, so use it only over TLS."""

    name = OAUTHBEARER
    hint = "check that the broker accepts the issuer, the audience and the scope of the token"

    def __init__(self, token: str, extensions: Mapping[str, str]) -> None:
        pairs = "".join(f"{key}={value}\x01" for key, value in extensions.items())
        self._message = f"n,,\x01auth=Bearer {token}\x01{pairs}\x01".encode()

    def start(self) -> bytes:
        return self._message

    def answer(self, server: bytes) -> bytes | None:
        if not server:
            return None
        # The broker rejects the token with a JSON object, and expects an empty message before it ends the login.
        raise AuthenticationFailed("SASL login", f"the broker rejected the token ({_status(server)})", self.hint)


def _status(server: bytes) -> str:
    try:
        status = str(json.loads(server)["status"])
    except (ValueError, KeyError, TypeError):
        status = ""
    return status if status.replace("_", "").isalnum() else "without a reason"


def mechanism(name: str, username: str, password: str) -> Mechanism:
    """Starts a new exchange with the mechanism ``name``. Raises `UnsupportedOperation` for unknown mechanisms."""
    upper = name.upper()
    if upper == "PLAIN":
        return Plain(username, password)
    if upper in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        return Scram(upper, username, password)
    raise UnsupportedOperation(
        f"SASL mechanism {name}",
        "it is not supported",
        "use PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or GSSAPI, or TLS client certificates",
    )


# SASL GSSAPI (Kerberos) for offsetmgr's own client, RFC 4752, through the package `gssapi`. The credentials come from
# a keytab, or from the ticket cache that ``kinit`` fills. The package `gssapi` is an extra, because it needs the
# Kerberos library of the system.

_DEFAULT_SERVICE: Final = "kafka"
_NO_SECURITY_LAYER: Final = b"\x01\x00\x00\x00"
"""The answer to the broker's offer of security layers: none, and no further messages of this layer."""


@dataclass(frozen=True, slots=True)
class KerberosLogin:
    """The settings of a login. Without ``keytab``, the login uses the ticket cache."""

    service: str
    principal: str | None
    keytab: str | None

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> KerberosLogin:
        """Reads librdkafka's names. Raises `UnsupportedOperation` if the package `gssapi` is missing."""
        if importlib.util.find_spec("gssapi") is None:
            raise UnsupportedOperation(
                "Kerberos (SASL mechanism GSSAPI)", "the package gssapi is missing", install_hint("kerberos")
            )
        return cls(
            properties.get("sasl.kerberos.service.name") or _DEFAULT_SERVICE,
            properties.get("sasl.kerberos.principal"),
            properties.get("sasl.kerberos.keytab"),
        )


class Gssapi:
    """One exchange with the broker at ``host``. Its methods may wait for the KDC."""

    name = GSSAPI
    hint = "check the principal, its ticket (klist), and the broker's service name and host name"

    def __init__(self, login: KerberosLogin, host: str) -> None:
        self._login = login
        self._host = host
        self._context: Any = None
        self._answered = False

    def start(self) -> bytes:
        import gssapi  # An extra, and slow to import.

        try:
            target = gssapi.Name(f"{self._login.service}@{self._host}", gssapi.NameType.hostbased_service)
            self._context = gssapi.SecurityContext(name=target, creds=self._credentials(gssapi), usage="initiate")
            return bytes(self._context.step() or b"")
        except gssapi.exceptions.GSSError as error:
            raise self._failed(error) from None

    def _credentials(self, gssapi: Any) -> Any:
        """Returns None for the ticket cache. Tickets from a keytab stay in memory."""
        principal, keytab = self._login.principal, self._login.keytab
        name = None if principal is None else gssapi.Name(principal, gssapi.NameType.kerberos_principal)
        if keytab is None:
            return None if name is None else gssapi.Credentials(name=name, usage="initiate")
        store = {"client_keytab": keytab, "ccache": f"MEMORY:offsetmgr-{id(self)}"}
        return gssapi.Credentials(name=name, usage="initiate", store=store)

    def answer(self, server: bytes) -> bytes | None:
        import gssapi

        try:
            if not self._context.complete:
                return bytes(self._context.step(server) or b"")
            if self._answered:
                return None
            self._context.unwrap(server)  # the layers that the broker offers, and its signature
            self._answered = True
            return bytes(self._context.wrap(_NO_SECURITY_LAYER, False).message)
        except gssapi.exceptions.GSSError as error:
            raise self._failed(error) from None

    def _failed(self, error: Any) -> AuthenticationFailed:
        details = error.get_all_statuses(error.min_code, False) if error.min_code else []
        why = "; ".join(str(detail) for detail in details) or str(error.gen_message()).splitlines()[0]
        target = f"{self._login.service}/{self._host}"
        return AuthenticationFailed(f"Kerberos login to {target}", why, self.hint)
