"""`Credentials`: the users and their passwords or SCRAM verifiers, from a file.

No part of the file's content is ever shown (data rule "secrets stay secret"). Only the manager's user should be able to
read the file. For example::

    [users.alice]
    password = "..."

    [users.bob]                                   # SCRAM verifiers, as Kafka stores them, instead of the password
    scram-sha-256 = "iterations:salt:stored key:server key"     # the last three in base64
    scram-sha-512 = "..."

`scram_verifier` computes such an entry from a password.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from offsetmgr.config import toml_table
from offsetmgr.config.toml_table import TomlTable
from offsetmgr.core.errors import UsageError

DIGESTS: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_PLAIN_MECHANISM: Final = "SCRAM-SHA-256"
"""If the file does not contain the passwords of all users, PLAIN logins are checked against SCRAM verifiers. A verifier
of this mechanism is used if the user has one."""

MIN_ITERATIONS: Final = 4096
MAX_ITERATIONS: Final = 65_536
"""With this number of iterations, the check of a PLAIN login against a verifier blocks the event loop for about 20
ms."""
_SALT_BYTES: Final = 18


class CredentialVerifier(NamedTuple):
    """The data that a SCRAM server stores for a user (RFC 5802)."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return "CredentialVerifier(...)"


def derive(mechanism: str, password: bytes, salt: bytes, iterations: int) -> CredentialVerifier:
    """Computes the verifier of a password. The computation is deliberately slow (milliseconds)."""
    digest = DIGESTS[mechanism]
    salted = hashlib.pbkdf2_hmac(digest, password, salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", digest)
    return CredentialVerifier(
        iterations, salt, hashlib.new(digest, client_key).digest(), hmac.digest(salted, b"Server Key", digest)
    )


def scram_verifier(mechanism: str, password: str, iterations: int = MIN_ITERATIONS) -> str:
    """Computes an entry for the manager's credentials file from a password, with a new random salt. ``mechanism`` is
    ``SCRAM-SHA-256`` or ``SCRAM-SHA-512``. Raises `UsageError` for another mechanism, and for ``iterations`` outside
    4,096 to 65,536.

    >>> scram_verifier("SCRAM-SHA-256", "secret of bob").split(":")[0]
    '4096'
    """
    if mechanism not in DIGESTS:
        raise UsageError(f"mechanism {mechanism}", f"is not one of {', '.join(DIGESTS)}")
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise UsageError("iterations", f"must be between {MIN_ITERATIONS} and {MAX_ITERATIONS}")
    derived = derive(mechanism, password.encode(), secrets.token_bytes(_SALT_BYTES), iterations)
    return ":".join([str(iterations), *(base64.b64encode(part).decode() for part in derived[1:])])


class Credentials:
    """All users. Neither results nor timing reveal whether a user exists."""

    def __init__(
        self,
        passwords: Mapping[str, bytes],
        verifiers: Mapping[str, Mapping[str, CredentialVerifier]],
        secret: bytes,
    ) -> None:
        """``verifiers``: by mechanism and user. ``secret``: the key for the salts of unknown users. The secret must be
        the same in all processes that use the file. Otherwise two processes would return different salts for an unknown
        user, and so reveal that the user is unknown.

        Computes the verifiers that are missing in ``verifiers``. This takes some milliseconds for each user.
        """
        self._passwords = passwords
        self._secret = secret
        # If one user has no password in the file, the passwords of all users are checked against verifiers, so that the
        # time of a check does not depend on the user.
        self._uses_verifiers = any(user not in passwords for known in verifiers.values() for user in known)
        self._typical = {mechanism: _typical(known.values()) for mechanism, known in verifiers.items()}
        self._verifiers = {
            mechanism: {**{user: self._derived(mechanism, user) for user in passwords}, **known}
            for mechanism, known in verifiers.items()
        }

    def verifier(self, mechanism: str, user: str) -> CredentialVerifier:
        """Returns the verifier for a SCRAM login. For an unknown user, returns a verifier that no password matches."""
        known = self._verifiers[mechanism].get(user)
        if known is not None:
            return known
        iterations, salt_bytes = self._typical[mechanism]
        key = self._derived_secret(b"key", user)[: hashlib.new(DIGESTS[mechanism]).digest_size]
        return CredentialVerifier(iterations, self._derived_secret(b"salt", user)[:salt_bytes], key, key)

    def _derived(self, mechanism: str, user: str) -> CredentialVerifier:
        iterations, salt_bytes = self._typical[mechanism]
        return derive(mechanism, self._passwords[user], self._derived_secret(b"salt", user)[:salt_bytes], iterations)

    def password_matches(self, user: str, password: str) -> bool:
        """Whether the password of a PLAIN login is correct. The time that the check takes reveals nothing about the
        user."""
        encoded = password.encode()
        if not self._uses_verifiers:
            known = self._passwords.get(user)
            expected = (
                self._derived_secret(b"password", user) if known is None else self._derived_secret(b"check", known)
            )
            return hmac.compare_digest(self._derived_secret(b"check", encoded), expected)
        mechanism = next((name for name, known in self._verifiers.items() if user in known), _PLAIN_MECHANISM)
        verifier = self.verifier(mechanism, user)
        derived = derive(mechanism, encoded, verifier.salt, verifier.iterations)
        return hmac.compare_digest(derived.stored_key, verifier.stored_key)

    def _derived_secret(self, what: bytes, text: str | bytes) -> bytes:
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        return hmac.digest(self._secret, what + b"\0" + data, "sha512")


def load_credentials(path: Path | str) -> Credentials:
    """Loads the users of a file, for all SCRAM mechanisms and PLAIN.

    Raises `ConfigError`. The message names the file and the invalid line or field, but never contains the field's
    value.
    """
    table = toml_table.load(path)
    table.reject_unknown(["users"])
    users = table.table("users")
    passwords: dict[str, bytes] = {}
    verifiers: dict[str, dict[str, CredentialVerifier]] = {mechanism: {} for mechanism in DIGESTS}
    for name in users.values:
        entry = users.table(name)
        fields = ["password", *(mechanism.lower() for mechanism in DIGESTS)]
        entry.reject_unknown(fields)
        if not entry.values:
            raise entry.error(f"has none of {', '.join(fields)}")
        if "password" in entry.values:
            passwords[name] = entry.text("password").encode()
        for mechanism in DIGESTS:
            if mechanism.lower() in entry.values:
                verifiers[mechanism][name] = _verifier(entry, mechanism)
    if not users.values:
        raise table.error("contains no [users.NAME], so no client could log in")
    secret = hashlib.sha512(b"offsetmgr credentials\0" + Path(path).read_bytes()).digest()
    return Credentials(passwords, verifiers, secret)


def _verifier(entry: TomlTable, mechanism: str) -> CredentialVerifier:
    field = mechanism.lower()
    parts = entry.text(field).split(":")
    try:
        iterations, (salt, stored, server) = int(parts[0]), (base64.b64decode(p, validate=True) for p in parts[1:])
    except (ValueError, binascii.Error):
        raise entry.error("must be iterations:salt:stored key:server key, the last three in base64", field) from None
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise entry.error(f"its iterations must be between {MIN_ITERATIONS} and {MAX_ITERATIONS}", field)
    size = hashlib.new(DIGESTS[mechanism]).digest_size
    if len(stored) != size or len(server) != size or not 8 <= len(salt) <= 64:
        raise entry.error(f"its keys must have {size} bytes each, and its salt 8 to 64", field)
    return CredentialVerifier(iterations, salt, stored, server)


def _typical(known: Iterable[CredentialVerifier]) -> tuple[int, int]:
    """Returns the most frequent iteration count and salt length. The verifiers of unknown users get the same two
    values, so that they look like the verifiers of known users."""
    shapes = Counter((v.iterations, len(v.salt)) for v in known)
    return shapes.most_common(1)[0][0] if shapes else (MIN_ITERATIONS, _SALT_BYTES)
