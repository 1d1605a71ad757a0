"""The server side of SASL PLAIN (RFC 4616) and SCRAM (RFC 5802, RFC 7677), without I/O.

An exchange processes the client's messages one by one with `step`. All failures raise the same `AuthenticationFailed`,
after the same amount of work, so that a client cannot find out whether a user exists. No error contains data from a
client (data rule "secrets stay secret").
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from offsetmgr.core.errors import AuthenticationFailed
from offsetmgr.server.security.credentials import DIGESTS, Credentials, CredentialVerifier
from offsetmgr.server.security.login_limits import LoginLimits

PLAIN: Final = "PLAIN"
MECHANISMS: Final = (PLAIN, *DIGESTS)
MAX_MESSAGE_BYTES: Final = 8_192
"""Maximum size of the message that `Exchange.step` gets."""


class AuthenticationStep(NamedTuple):
    """The server's message, and the client's principal. The principal is None until the login has succeeded."""

    reply: bytes
    principal: str | None


def login_failure() -> AuthenticationFailed:
    """Creates the error for a failed login. The error is the same for all causes."""
    return AuthenticationFailed("login", "the credentials are not valid")


class PlainExchange:
    """PLAIN: user name and password in clear text. Use it only with TLS."""

    mechanism = PLAIN
    checks_password = True
    """Whether the next step checks a password. This may take tens of milliseconds."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def step(self, message: bytes) -> AuthenticationStep:
        try:
            authzid, user, password = message.decode().split("\0")
        except ValueError:
            raise login_failure() from None
        matches = self._credentials.password_matches(user, password)
        if not matches or not user or authzid not in ("", user):
            raise login_failure()
        return AuthenticationStep(b"", user)


class ScramExchange:
    """SCRAM: two messages in each direction. The server also proves to the client that the server has the user's
    verifier."""

    def __init__(self, mechanism: str, credentials: Credentials) -> None:
        self.mechanism = mechanism
        self._digest = DIGESTS[mechanism]
        self._credentials = credentials
        self._own_nonce = secrets.token_urlsafe(24)
        self._user: str | None = None
        self._verifier: CredentialVerifier | None = None
        self._nonce = ""
        self._transcript = ""
        self._header = ""

    @property
    def checks_password(self) -> bool:
        """See `PlainExchange.checks_password`."""
        return self._verifier is not None

    def step(self, message: bytes) -> AuthenticationStep:
        try:
            text = message.decode()
        except UnicodeDecodeError:
            raise login_failure() from None
        return self._first(text) if self._verifier is None else self._final(text, self._verifier)

    def _first(self, text: str) -> AuthenticationStep:
        """Processes the first message: ``n,[a=authzid],n=user,r=nonce[,extensions]``. Channel binding is not
        supported."""
        parts = text.split(",", 2)
        if len(parts) != 3 or parts[0] not in ("n", "y"):
            raise login_failure()
        authzid, bare = parts[1], parts[2]
        fields = bare.split(",")
        if len(fields) < 2 or not fields[0].startswith("n=") or not fields[1].startswith("r=") or len(fields[1]) < 3:
            raise login_failure()
        user = _unescape(fields[0][2:])
        if authzid and (not authzid.startswith("a=") or _unescape(authzid[2:]) != user):
            raise login_failure()
        # Extensions may follow; they are ignored. (Kafka's extension tokenauth=true is for delegation tokens, which the
        # manager does not support.)
        self._user = user
        self._verifier = self._credentials.verifier(self.mechanism, user)
        self._nonce = fields[1][2:] + self._own_nonce
        salt = base64.b64encode(self._verifier.salt).decode()
        challenge = f"r={self._nonce},s={salt},i={self._verifier.iterations}"
        self._transcript = f"{bare},{challenge}"
        self._header = f"{parts[0]},{parts[1]},"
        return AuthenticationStep(challenge.encode(), None)

    def _final(self, text: str, verifier: CredentialVerifier) -> AuthenticationStep:
        """Processes the last message: ``c=binding,r=nonce,p=proof``."""
        without_proof, comma, proof_field = text.rpartition(",p=")
        binding = base64.b64encode(self._header.encode()).decode()
        if not comma or without_proof != f"c={binding},r={self._nonce}":
            raise login_failure()
        transcript = f"{self._transcript},{without_proof}".encode()
        signature = hmac.digest(verifier.stored_key, transcript, self._digest)
        try:
            proof = base64.b64decode(proof_field, validate=True)
            client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        except ValueError:  # it is not base64, or has another length
            raise login_failure() from None
        stored = hashlib.new(self._digest, client_key).digest()
        if not hmac.compare_digest(stored, verifier.stored_key) or not self._user:
            raise login_failure()
        server = hmac.digest(verifier.server_key, transcript, self._digest)
        return AuthenticationStep(b"v=" + base64.b64encode(server), self._user)


Exchange: TypeAlias = PlainExchange | ScramExchange
"""One login. ``step`` processes the client's next message. It raises `AuthenticationFailed`, which ends the login."""


@dataclass(frozen=True, slots=True)
class Authentication:
    """The configuration of the login."""

    credentials: Credentials
    mechanisms: Sequence[str] = MECHANISMS
    limits: LoginLimits = field(default_factory=LoginLimits)

    def exchange(self, mechanism: str) -> Exchange | None:
        """Starts an exchange; returns None if the mechanism is not one of `mechanisms`."""
        if mechanism not in self.mechanisms:
            return None
        return PlainExchange(self.credentials) if mechanism == PLAIN else ScramExchange(mechanism, self.credentials)


def _unescape(name: str) -> str:
    """Decodes a name as encoded in SCRAM (RFC 5802, saslname)."""
    if "=" in name.replace("=2C", "").replace("=3D", ""):
        raise login_failure()
    return name.replace("=2C", ",").replace("=3D", "=")
