"""`Credentials`: the users and their passwords or SCRAM verifiers, from a file.

No part of the file's content is ever shown (data rule "secrets stay secret"). Only the manager's user should be able to
read the file. For example::

    [users.alice]
    password = "..."

    [users.bob]                                   # SCRAM verifiers, as Kafka stores them, instead of the password
    scram-sha-256 = "iterations:salt:stored key:server key"     # the last three in base64
    scram-sha-512 = "..."

The optional key ``secret`` before the users keeps the answers to unknown users the same when the file changes.
`scram_verifier` computes such an entry from a password.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from offsetmgr.config import toml_table
from offsetmgr.config.toml_table import TomlTable
from offsetmgr.core.errors import UsageError

DIGESTS: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}

MIN_ITERATIONS: Final = 4096
MAX_ITERATIONS: Final = 65_536
"""With this number of iterations, the check of a PLAIN login against a verifier takes about 30 ms."""
_SALT_BYTES: Final = 18


class _Shape(NamedTuple):
    """The properties of a verifier that a client can observe without knowing the password."""

    mechanism: str
    iterations: int
    salt_bytes: int


_DEFAULT_PROFILE: Final = (_Shape("SCRAM-SHA-256", MIN_ITERATIONS, _SALT_BYTES),)


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
    """All users. Neither results nor timing reveal whether a user exists.

    The profile of a user consists of the shapes of the user's verifiers. A name without verifiers, such as that of an
    unknown user, gets the profile of a user with verifiers. It is always the same one, and the names are distributed
    over the profiles as the users are. So a profile is equally likely for known and for unknown users.
    """

    def __init__(
        self,
        passwords: Mapping[str, bytes],
        verifiers: Mapping[str, Mapping[str, CredentialVerifier]],
        secret: bytes,
    ) -> None:
        """``verifiers``: by mechanism and user. ``secret``: the key for the salts and profiles of unknown users. The
        secret must be the same in all processes that serve the users, also after a restart. Otherwise unknown users
        would get different salts, which would reveal that they are unknown.

        Computes the verifiers that are missing in ``verifiers``. This takes some milliseconds for each user.
        """
        self._secret = secret
        self._checks = {user: self._derived_secret(b"check", password) for user, password in passwords.items()}
        self._profiles: dict[str, tuple[_Shape, ...]] = {}
        for mechanism in DIGESTS:
            for user, known in verifiers[mechanism].items():
                shape = _Shape(mechanism, known.iterations, len(known.salt))
                self._profiles[user] = (*self._profiles.get(user, ()), shape)
        self._weights = Counter(self._profiles.values()) or Counter([_DEFAULT_PROFILE])
        # If one user has no password in the file, all PLAIN logins do the work of a check against a verifier, so that
        # the time of a check does not depend on the user.
        self._uses_verifiers = any(user not in passwords for user in self._profiles)
        self._verifiers: dict[str, dict[str, CredentialVerifier]] = {mechanism: {} for mechanism in DIGESTS}
        for mechanism, known_verifiers in self._verifiers.items():
            for user, password in passwords.items():
                decoy = self.verifier(mechanism, user)
                known_verifiers[user] = derive(mechanism, password, decoy.salt, decoy.iterations)
            known_verifiers.update(verifiers[mechanism])

    def verifier(self, mechanism: str, user: str) -> CredentialVerifier:
        """Returns the verifier for a SCRAM login. For an unknown user, returns a verifier that no password matches."""
        profile = self._profile(user)
        _, iterations, salt_bytes = next((shape for shape in profile if shape.mechanism == mechanism), profile[0])
        salt = self._derived_secret(b"salt", f"{mechanism}\0{user}")[:salt_bytes]
        key = self._derived_secret(b"key", user)[: hashlib.new(DIGESTS[mechanism]).digest_size]
        return self._verifiers[mechanism].get(user, CredentialVerifier(iterations, salt, key, key))

    def _profile(self, user: str) -> tuple[_Shape, ...]:
        """Returns the user's profile. Another name gets the profile with the highest score, a pseudo-random number to
        the power of 1/weight, so that changes of the file change the profiles of few names (rendezvous hashing)."""

        def score(profile: tuple[_Shape, ...]) -> float:
            number = int.from_bytes(self._derived_secret(b"profile", f"{profile}\0{user}")[:8])
            return float((number / 2**64) ** (1 / self._weights[profile]))

        drawn = max(self._weights, key=score)
        return self._profiles.get(user, drawn)

    def password_matches(self, user: str, password: str) -> bool:
        """Whether the password of a PLAIN login is correct. The time that the check takes reveals nothing about the
        user. It may be some tens of milliseconds."""
        encoded = password.encode()
        expected = self._checks.get(user, self._derived_secret(b"password", user))
        matches = hmac.compare_digest(self._derived_secret(b"check", encoded), expected)
        if self._uses_verifiers:
            mechanism = self._profile(user)[0].mechanism
            verifier = self.verifier(mechanism, user)
            derived = derive(mechanism, encoded, verifier.salt, verifier.iterations)
            of_verifier = hmac.compare_digest(derived.stored_key, verifier.stored_key)
            matches = matches if user in self._checks else of_verifier
        return matches

    def _derived_secret(self, what: bytes, text: str | bytes) -> bytes:
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        return hmac.digest(self._secret, what + b"\0" + data, "sha512")


def load_credentials(path: Path | str) -> Credentials:
    """Loads the users of a file, for all SCRAM mechanisms and PLAIN.

    Raises `ConfigError`. The message names the file and the invalid line or field, but never contains the field's
    value.
    """
    table = toml_table.load(path, secret=True)
    table.reject_unknown(["users", "secret"])
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
    secret = table.text("secret").encode() if "secret" in table.values else Path(path).read_bytes()
    return Credentials(passwords, verifiers, hashlib.sha512(b"offsetmgr credentials\0" + secret).digest())


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
