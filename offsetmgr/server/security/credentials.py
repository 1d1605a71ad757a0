"""Users and what proves them, from a file; pure.  Nothing in here is ever shown (data rule "secrets stay secret").

A file, which only the manager's user should be able to read::

    [users.alice]
    password = "..."

    [users.bob]                                   # what Kafka keeps of a SCRAM user; not the password itself
    scram-sha-256 = "iterations:salt:stored key:server key"     # the last three in base64
    scram-sha-512 = "..."

`scram_verifier` makes such an entry from a password.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from offsetmgr.config import toml_table
from offsetmgr.config.toml_table import TomlTable
from offsetmgr.core.errors import UsageError

DIGESTS: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_FOR_PLAIN: Final = "SCRAM-SHA-256"
"""The verifiers with which PLAIN logins are checked if the file has no password to compare."""

LEAST_ITERATIONS: Final = 4096
MOST_ITERATIONS: Final = 65_536
"""Computed on the event loop when such a user logs in with PLAIN: about 20 ms at this number."""
_SALT_BYTES: Final = 18


class CredentialVerifier(NamedTuple):
    """The data that a SCRAM server stores for a user (RFC 5802)."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return "Verifier(...)"


def derive(mechanism: str, password: bytes, salt: bytes, iterations: int) -> CredentialVerifier:
    """Computes the verifier of a password. Takes milliseconds, on purpose."""
    digest = DIGESTS[mechanism]
    salted = hashlib.pbkdf2_hmac(digest, password, salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", digest)
    return CredentialVerifier(
        iterations, salt, hashlib.new(digest, client_key).digest(), hmac.digest(salted, b"Server Key", digest)
    )


def scram_verifier(mechanism: str, password: str, iterations: int = LEAST_ITERATIONS) -> str:
    """An entry for the file. Raises `UsageError`."""
    if mechanism not in DIGESTS:
        raise UsageError(f"mechanism {mechanism}", f"is not one of {', '.join(DIGESTS)}")
    if not LEAST_ITERATIONS <= iterations <= MOST_ITERATIONS:
        raise UsageError("iterations", f"must be between {LEAST_ITERATIONS} and {MOST_ITERATIONS}")
    made = derive(mechanism, password.encode(), secrets.token_bytes(_SALT_BYTES), iterations)
    return ":".join([str(iterations), *(base64.b64encode(part).decode() for part in made[1:])])


class Credentials:
    """All users. Neither results nor timing reveal whether a user exists."""

    def __init__(
        self,
        passwords: Mapping[str, bytes],
        verifiers: Mapping[str, Mapping[str, CredentialVerifier]],
        secret: bytes,
        mechanisms: Collection[str],
    ) -> None:
        """``verifiers`` by mechanism and user. ``secret`` generates the salts of unknown users; it is the same in all
        processes that use the same file, since different salts would reveal that a user is unknown.

        Derives the verifiers that ``mechanisms`` need and ``verifiers`` lack, which takes some milliseconds per user.
        """
        self._passwords = passwords
        self._secret = secret
        # Users without a password in the file can only be checked the slow way; then all are.
        self._derive = any(user not in passwords for known in verifiers.values() for user in known)
        needed = {*mechanisms, _FOR_PLAIN} if self._derive else set(mechanisms)
        self._usual = {mechanism: _usual(known.values()) for mechanism, known in verifiers.items()}
        self._verifiers = {
            mechanism: {**({u: self._derived(mechanism, u) for u in passwords} if mechanism in needed else {}), **known}
            for mechanism, known in verifiers.items()
        }

    def verifier(self, mechanism: str, user: str) -> CredentialVerifier:
        """The verifier for a SCRAM login; for unknown users one that no password matches."""
        known = self._verifiers[mechanism].get(user)
        if known is not None:
            return known
        iterations, salt_bytes = self._usual[mechanism]
        key = self._made_up(b"key", user)[: hashlib.new(DIGESTS[mechanism]).digest_size]
        return CredentialVerifier(iterations, self._made_up(b"salt", user)[:salt_bytes], key, key)

    def _derived(self, mechanism: str, user: str) -> CredentialVerifier:
        iterations, salt_bytes = self._usual[mechanism]
        return derive(mechanism, self._passwords[user], self._made_up(b"salt", user)[:salt_bytes], iterations)

    def password_fits(self, user: str, password: str) -> bool:
        """Compares in constant time."""
        given = password.encode()
        if not self._derive:
            known = self._passwords.get(user)
            wanted = self._made_up(b"password", user) if known is None else self._made_up(b"check", known)
            return hmac.compare_digest(self._made_up(b"check", given), wanted)
        mechanism = next((name for name, known in self._verifiers.items() if user in known), _FOR_PLAIN)
        verifier = self.verifier(mechanism, user)
        made = derive(mechanism, given, verifier.salt, verifier.iterations)
        return hmac.compare_digest(made.stored_key, verifier.stored_key)

    def _made_up(self, what: bytes, text: str | bytes) -> bytes:
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        return hmac.digest(self._secret, what + b"\0" + data, "sha512")


def load_credentials(path: Path | str, mechanisms: Collection[str] = tuple(DIGESTS)) -> Credentials:
    """Loads the users of a file, for these SCRAM mechanisms (and PLAIN).

    Raises `ConfigError` naming the file and the invalid line or field, never its value.
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
    return Credentials(passwords, verifiers, secret, mechanisms)


def _verifier(entry: TomlTable, mechanism: str) -> CredentialVerifier:
    field = mechanism.lower()
    parts = entry.text(field).split(":")
    try:
        iterations, (salt, stored, server) = int(parts[0]), (base64.b64decode(p, validate=True) for p in parts[1:])
    except (ValueError, binascii.Error):
        raise entry.error("must be iterations:salt:stored key:server key, the last three in base64", field) from None
    if not LEAST_ITERATIONS <= iterations <= MOST_ITERATIONS:
        raise entry.error(f"its iterations must be between {LEAST_ITERATIONS} and {MOST_ITERATIONS}", field)
    size = hashlib.new(DIGESTS[mechanism]).digest_size
    if len(stored) != size or len(server) != size or not 8 <= len(salt) <= 64:
        raise entry.error(f"its keys must have {size} bytes each, and its salt 8 to 64", field)
    return CredentialVerifier(iterations, salt, stored, server)


def _usual(known: Iterable[CredentialVerifier]) -> tuple[int, int]:
    """The most frequent iteration count and salt length: unknown users must look like other users."""
    shapes = Counter((v.iterations, len(v.salt)) for v in known)
    return shapes.most_common(1)[0][0] if shapes else (LEAST_ITERATIONS, _SALT_BYTES)
