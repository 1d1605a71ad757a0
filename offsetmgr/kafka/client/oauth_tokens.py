"""Tokens for SASL OAUTHBEARER, for both Kafka clients: from an OIDC token endpoint, or from a command.

A `TokenSource` keeps its token, and gets the next one when 80 % of the token's lifetime have passed. All connections
of a process with the same settings share one source. No error contains a token, a client secret or an output of the
command (data rule "secrets stay secret").

Source: RFC 6749, section 4.4 (client credentials); org.apache.kafka.common.security.oauthbearer.
"""

from __future__ import annotations

import base64
import datetime
import functools
import json
import shlex
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from offsetmgr.core.errors import AuthenticationFailed, ConfigError, OffsetMgrError, ServerError, TimedOut, Unreachable
from offsetmgr.kafka.client.sasl import TOKEN_KEYS

_TIMEOUT_S: Final = 10.0
_RENEWAL_FRACTION: Final = 0.8
_UNKNOWN_LIFETIME_S: Final = 300.0
"""The lifetime of a token that contains no expiry and comes without one."""
_MAX_ANSWER_BYTES: Final = 1 << 20
_TOKEN_FIELDS: Final = ("access_token", "accessToken", "token")
_ENDPOINT_HINT: Final = "check sasl.oauthbearer.token.endpoint.url"
_COMMAND_HINT: Final = (
    "sasl.oauthbearer.token.command must print the token alone, or JSON with access_token; run it in a shell to see "
    "its output, which offsetmgr does not print, because it may contain secrets"
)
_LIFETIME_FIELD: Final = "expires_in"
_EXPIRY_FIELDS: Final = ("expires_on", "expiry", "expiration")


@dataclass(frozen=True, slots=True)
class Token:
    """An access token. ``expires_at`` is a time of ``time.time``."""

    value: str = field(repr=False)
    expires_at: float
    renew_at: float


@dataclass(eq=False)
class TokenSource:
    """Gets tokens and keeps the newest one. Thread-safe. ``fetch`` gets a timeout in seconds and returns JSON or a bare
    token; ``name`` describes it in errors, and ``hint`` is the hint of the error for an output without a token."""

    name: str
    fetch: Callable[[float], str] = field(repr=False)
    extensions: Mapping[str, str] = field(repr=False)
    now: Callable[[], float] = field(repr=False)
    hint: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)
    _token: Token | None = field(default=None, init=False, repr=False)

    def token(self, timeout_s: float = _TIMEOUT_S) -> Token:
        """Returns a valid token, and gets a new one first if necessary.

        If a renewal fails while the present token is valid, returns the present token. Raises `AuthenticationFailed`,
        `Unreachable`, `TimedOut` and `ServerError`.
        """
        with self._lock:
            if self._token is None or self.now() >= self._token.renew_at:
                try:
                    output = self.fetch(min(timeout_s, _TIMEOUT_S))
                    self._token = parse_token(output, self.now(), self.name, self.hint)
                except OffsetMgrError:
                    if self._token is None or self.now() >= self._token.expires_at:
                        raise
            return self._token


def token_source(properties: Mapping[str, str]) -> TokenSource:
    """Returns the source that the settings of a client describe. Raises `ConfigError` if they describe none."""
    return _shared_source(tuple(sorted(item for item in properties.items() if item[0].startswith(TOKEN_KEYS))))


@functools.lru_cache(maxsize=64)
def _shared_source(settings: tuple[tuple[str, str], ...]) -> TokenSource:
    properties = dict(settings)
    pairs = (pair.partition("=") for pair in properties.get("sasl.oauthbearer.extensions", "").split(",") if pair)
    extensions = {key.strip(): value.strip() for key, _, value in pairs}
    if command := properties.get("sasl.oauthbearer.token.command"):
        return TokenSource("token command", _command(command), extensions, time.time, _COMMAND_HINT)
    if url := properties.get("sasl.oauthbearer.token.endpoint.url"):
        return TokenSource(_endpoint_name(url), _endpoint(url, properties), extensions, time.time, _ENDPOINT_HINT)
    raise ConfigError(
        "SASL mechanism OAUTHBEARER",
        "no setting names a source of tokens",
        "set sasl.oauthbearer.token.endpoint.url with a client id and secret, or sasl.oauthbearer.token.command",
    )


# --- sources ------------------------------------------------------------------------------------------


def _command(text: str) -> Callable[[float], str]:
    try:
        arguments = shlex.split(text)
    except ValueError:
        arguments = []
    if not arguments:
        raise ConfigError("sasl.oauthbearer.token.command", "is not a command line")
    hint = "run it in a shell to see its own messages; offsetmgr does not print them, because they may contain secrets"

    def run(timeout_s: float) -> str:
        what = f"token command {arguments[0]}"
        try:
            done = subprocess.run(
                arguments, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False
            )
        except OSError as error:
            raise AuthenticationFailed(what, f"cannot be started: {error.strerror}") from None
        except subprocess.TimeoutExpired:
            raise TimedOut(what, f"did not end within {timeout_s:.1f} s", hint) from None
        if done.returncode != 0:
            raise AuthenticationFailed(what, f"failed with exit code {done.returncode}", hint)
        return done.stdout.decode("utf-8", "replace")

    return run


def _endpoint_name(url: str) -> str:
    """The URL without a query and without credentials."""
    parts = urllib.parse.urlsplit(url)
    return f"token endpoint {parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _endpoint(url: str, properties: Mapping[str, str]) -> Callable[[float], str]:
    key = "sasl.oauthbearer.token.endpoint.url"
    name = _endpoint_name(url)
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise ConfigError(key, "must begin with https:// or http://")
    client, secret = properties.get("sasl.oauthbearer.client.id"), properties.get("sasl.oauthbearer.client.secret")
    if not client or not secret:
        raise ConfigError(key, "needs sasl.oauthbearer.client.id and sasl.oauthbearer.client.secret")
    form = {"grant_type": "client_credentials"}
    if scope := properties.get("sasl.oauthbearer.scope"):
        form["scope"] = scope
    headers = {
        "Authorization": f"Basic {base64.b64encode(f'{client}:{secret}'.encode()).decode()}",
        "Content-Type": "application/x-www-form-urlencoded",
        "Accept": "application/json",
    }
    tls = None
    if url.startswith("https:"):
        authorities = {"ssl.ca.location": "https.ca.location", "ssl.ca.pem": "https.ca.pem"}
        from offsetmgr.config.tls_context import tls_context

        tls = tls_context({new: properties[old] for new, old in authorities.items() if old in properties})

    def request(timeout_s: float) -> str:
        body = urllib.parse.urlencode(form).encode()
        post = urllib.request.Request(url, data=body, headers=headers, method="POST")
        try:
            with urllib.request.urlopen(post, timeout=timeout_s, context=tls) as response:
                return str(response.read(_MAX_ANSWER_BYTES).decode("utf-8", "replace"))
        except urllib.error.HTTPError as error:
            raise _rejected(name, error) from None
        except (OSError, ValueError) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise _unreachable(name, reason, url) from None

    return request


def _rejected(name: str, error: urllib.error.HTTPError) -> OffsetMgrError:
    try:
        code = json.loads(error.read(_MAX_ANSWER_BYTES))["error"]
        why = f"HTTP {error.code}, {code}" if str(code).replace("_", "").isalnum() else f"HTTP {error.code}"
    except (ValueError, KeyError, TypeError, OSError):
        why = f"HTTP {error.code}"
    if error.code >= 500:
        return Unreachable(name, f"it failed ({why})")
    hint = "check the client id, the client secret and the scope"
    return AuthenticationFailed(name, f"it rejected the client ({why})", hint)


def _unreachable(name: str, reason: object, url: str) -> OffsetMgrError:
    if isinstance(reason, ssl.SSLCertVerificationError):
        from offsetmgr.config.tls_context import verification_failure

        parts = urllib.parse.urlsplit(url)
        why, hint = verification_failure(reason, parts.hostname or "", parts.port or 443)
        return AuthenticationFailed(name, why, hint.replace("ssl.truststore.location", "https.ca.location"))
    if isinstance(reason, TimeoutError):
        return TimedOut(name, "it did not answer in time")
    why = getattr(reason, "strerror", None) or (str(reason) if isinstance(reason, OSError) else "no valid HTTP answer")
    return Unreachable(name, why, _ENDPOINT_HINT)


# --- tokens -------------------------------------------------------------------------------------------


def parse_token(text: str, now: float, name: str, hint: str = "") -> Token:
    """Reads a token and its expiry from JSON, or from a bare token; a JWT contains its expiry. Raises `ServerError`
    with ``hint`` if there is no token, and `AuthenticationFailed` if the token has expired."""
    fields: Mapping[str, Any] = {}
    value: object = text.strip()
    if text.lstrip().startswith("{"):
        try:
            fields = json.loads(text)
        except ValueError:
            raise ServerError(name, "its output is not valid JSON", hint) from None
        value = next((fields[key] for key in _TOKEN_FIELDS if fields.get(key)), None)
    # A token with a control character could add fields to the SASL message.
    if not isinstance(value, str) or not value or any(not "!" <= character <= "~" for character in value):
        why = f"its output contains no token: no {_TOKEN_FIELDS[0]} in JSON, and no single word"
        raise ServerError(name, why, hint)
    claims = _claims(value)
    expiries = [_seconds(claims.get("exp")), *(_seconds(fields.get(key)) for key in _EXPIRY_FIELDS)]
    if (lifetime := _seconds(fields.get(_LIFETIME_FIELD))) is not None:
        expiries.append(now + lifetime)
    expires_at = min((expiry for expiry in expiries if expiry is not None), default=now + _UNKNOWN_LIFETIME_S)
    if expires_at <= now:
        hint = "compare the clocks of this machine and of the issuer"
        raise AuthenticationFailed(name, f"its token expired {now - expires_at:.0f} s ago", hint)
    return Token(value, expires_at, now + (expires_at - now) * _RENEWAL_FRACTION)


def _claims(token: str) -> Mapping[str, Any]:
    """The claims of a JWT, without a check of its signature, which is the broker's task; empty for other tokens."""
    parts = token.split(".")
    if len(parts) not in (2, 3):
        return {}
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except ValueError:
        return {}
    return claims if isinstance(claims, dict) else {}


def _seconds(value: object) -> float | None:
    """A number, a number as text, or an ISO 8601 time, in seconds; None for anything else."""
    if isinstance(value, bool) or value is None:
        return None
    with suppress(ValueError):
        return float(str(value))
    with suppress(ValueError):
        return datetime.datetime.fromisoformat(str(value)).timestamp()
    return None
