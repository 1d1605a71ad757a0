"""Translates the settings of Kafka's Java client, from ``--command-config`` files, into settings of librdkafka.

Each key is kept, translated, or rejected with a hint that names its replacement. Keys of Kafka's clients that do not
concern the connection are ignored. Sources: Kafka's ConsumerConfig and ProducerConfig (new and old), AdminClientConfig,
SslConfigs and SaslConfigs; librdkafka's CONFIGURATION.md. Values may be secrets, so no error contains a value.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from offsetmgr.config.client_properties import ClientProperties
from offsetmgr.config.sasl_properties import SASL_KEYS, translate_sasl
from offsetmgr.config.tls_properties import TLS_KEYS, is_zookeeper_tls, translate_tls, translate_zookeeper_tls
from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import ConfigError

_UNCHANGED: Final = frozenset(
    """
    bootstrap.servers client.id client.rack client.dns.lookup security.protocol
    sasl.mechanism sasl.mechanisms sasl.username sasl.password
    ssl.ca.location ssl.ca.pem ssl.certificate.location ssl.certificate.pem ssl.key.location ssl.key.pem
    ssl.cipher.suites ssl.curves.list ssl.sigalgs.list ssl.crl.location
    enable.ssl.certificate.verification
    metadata.max.age.ms reconnect.backoff.ms reconnect.backoff.max.ms retry.backoff.ms retry.backoff.max.ms
    connections.max.idle.ms socket.connection.setup.timeout.ms socket.timeout.ms socket.keepalive.enable
    socket.nagle.disable socket.send.buffer.bytes socket.receive.buffer.bytes
    broker.address.family api.version.request broker.version.fallback debug
    """.split()  # noqa: SIM905 - fifty lines as a list
)
"""Keys that have the same name and meaning in Kafka's Java client and in librdkafka."""

_RENAMED: Final = {
    "metadata.broker.list": "bootstrap.servers",
    "request.timeout.ms": "socket.timeout.ms",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
}

_SPECIAL: Final = TLS_KEYS | SASL_KEYS | {"default.api.timeout.ms", "zookeeper.auth", "zookeeper.acl"}
"""Keys whose translation is more than a change of the name."""

_IGNORED: Final = Path(__file__).with_name("ignored_java_keys.txt")
"""A file with the keys of consumers, of producers, of all clients, of Java's TLS, of logins, and of old clients that do
not concern the connection, or only how Java makes it."""
_PROTOCOLS: Final = "ssl.enabled.protocols"

_SIMILAR: Final = 0.9
"""The least similarity of an unknown key and a key that a hint proposes."""

_UNSUPPORTED: Final = {
    _PROTOCOLS: "OpenSSL negotiates TLSv1.2 or TLSv1.3 by itself: allow TLSv1.2, or remove it",
    "ssl.engine.factory.class": "a Java class cannot be loaded here: give PEM files (ssl.ca.location, ...)",
    "sasl.login.class": "a Java class cannot be loaded here: use sasl.username and sasl.password",
    "config.providers": "configuration providers work only in Java: write the values themselves",
    "bootstrap.controllers": "offsetmgr connects to brokers: set bootstrap.servers",
    "zookeeper.connect": Advice("name the ZooKeeper with {zookeeper} HOST:PORT/CHROOT, and remove it"),
    "sasl.oauthbearer.config": "unsigned tokens are not supported: set sasl.oauthbearer.token.endpoint.url or "
    "sasl.oauthbearer.token.command",
}


def translate_properties(properties: Mapping[str, str], source: str) -> ClientProperties:
    """Translates ``properties`` of the Java client into librdkafka settings. ``source`` is the name of their file in
    errors.

    Raises `ConfigError` with all unsupported keys, and with a hint at the replacement of each.
    """
    kafka: dict[str, str] = {}
    unsupported: dict[str, str] = {}
    properties = {key: value.strip() for key, value in properties.items()}  # as Kafka's ConfigDef does
    for key, value in properties.items():
        if _is_ignored(key, value):
            continue
        if "${" in value and re.search(r"\$\{[^}]*:[^}]*\}", value):
            unsupported[key] = "configuration providers (${...:...}) work only in Java: write the value itself"
        elif key in _UNCHANGED:
            kafka[key] = value
        elif key in _RENAMED:
            kafka[_RENAMED[key]] = value
        elif key not in _SPECIAL and not is_zookeeper_tls(key):
            unsupported[key] = _UNSUPPORTED.get(key) or _hint_for_unknown(key)
    if len(unsupported) == 1:
        ((key, hint),) = unsupported.items()
        raise ConfigError(f"{source}: {key}", "this setting is not supported", hint)
    if unsupported:
        hint = Advice(
            "; ".join("{}: {}" for _ in unsupported), *(text for pair in unsupported.items() for text in pair)
        )
        raise ConfigError(source, f"these settings are not supported: {', '.join(unsupported)}", hint)
    kafka.update(translate_sasl(properties, source))
    kafka.update(translate_tls(properties, source))
    auth = properties.get("zookeeper.auth")
    return ClientProperties(
        kafka={k: v for k, v in kafka.items() if k != "bootstrap.servers"},
        zookeeper_auth=(parse_zookeeper_auth(auth, f"{source}: zookeeper.auth"),) if auth else (),
        zookeeper_acl=properties.get("zookeeper.acl", ""),
        zookeeper_tls=translate_zookeeper_tls(properties, source),
        bootstrap_servers=kafka.get("bootstrap.servers"),
        timeout_ms=_milliseconds(properties, "default.api.timeout.ms", source),
    )


def parse_zookeeper_auth(text: str, source: str) -> tuple[str, str]:
    """Splits ``digest:user:password`` (or ``sasl:user:password``, for SASL with DIGEST-MD5; or ``kerberos:service``)
    into scheme and credential. Raises `ConfigError`, which does not contain ``text``."""
    scheme, colon, credential = text.partition(":")
    user, second, _ = credential.partition(":")
    if not colon or not scheme or (scheme in ("digest", "sasl") and not (user and second)):
        raise ConfigError(source, "not of the form digest:USER:PASSWORD, sasl:USER:PASSWORD or kerberos:SERVICE")
    return scheme, credential


def ignored_keys(properties: Mapping[str, str]) -> list[str]:
    """Returns the keys that `translate_properties` ignores, sorted."""
    return sorted(key for key, value in properties.items() if _is_ignored(key, value))


@cache
def _ignored() -> frozenset[str]:
    return frozenset(_IGNORED.read_text("utf-8").split())


def _is_ignored(key: str, value: str) -> bool:
    return key in _ignored() or (key == _PROTOCOLS and "TLSv1.2" in value)


def _hint_for_unknown(key: str) -> str:
    known = [*_UNCHANGED, *_RENAMED, *_SPECIAL, *_ignored()]
    if similar := difflib.get_close_matches(key, known, 1, _SIMILAR):
        return f"is it {similar[0]}?"
    if key.startswith("zookeeper."):
        return "the ZooKeeper settings are zookeeper.auth, zookeeper.acl and those of TLS (zookeeper.ssl...): remove it"
    return "it is not a setting that offsetmgr knows: remove it, or use librdkafka's name for it"


def _milliseconds(properties: Mapping[str, str], key: str, source: str) -> int | None:
    if key not in properties:
        return None
    try:
        value = int(properties[key])
    except ValueError:
        value = 0
    if value <= 0:
        raise ConfigError(f"{source}: {key}", "not a positive number of milliseconds")
    return value
