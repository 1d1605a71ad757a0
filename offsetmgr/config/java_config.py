"""Translates the settings of Kafka's Java client, from ``--command-config`` files, into settings of librdkafka.

Each key is kept, translated, or rejected with a hint that names its replacement. No key is ignored. Sources: Kafka's
AdminClientConfig, SslConfigs and SaslConfigs; librdkafka's CONFIGURATION.md. Values may be secrets, so no error
contains a value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from offsetmgr.config.client_properties import ClientProperties
from offsetmgr.config.sasl_properties import SASL_KEYS, translate_sasl
from offsetmgr.config.tls_properties import TLS_KEYS, is_zookeeper_tls, translate_tls, translate_zookeeper_tls
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
    "request.timeout.ms": "socket.timeout.ms",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
}

_SPECIAL: Final = (
    TLS_KEYS
    | SASL_KEYS
    | {
        "default.api.timeout.ms",
        "zookeeper.auth",
        "zookeeper.acl",
    }
)
"""Keys whose translation is more than a change of the name."""

_UNSUPPORTED: Final = {
    "ssl.protocol": "OpenSSL negotiates the TLS version by itself: remove it",
    "ssl.enabled.protocols": "OpenSSL negotiates the TLS version by itself: remove it",
    "ssl.provider": "offsetmgr uses OpenSSL: remove it",
    "ssl.keymanager.algorithm": "offsetmgr uses OpenSSL: remove it",
    "ssl.trustmanager.algorithm": "offsetmgr uses OpenSSL: remove it",
    "ssl.secure.random.implementation": "offsetmgr uses OpenSSL: remove it",
    "ssl.engine.factory.class": "a Java class cannot be loaded here: give PEM files (ssl.ca.location, ...)",
    "security.providers": "a Java class cannot be loaded here: remove it",
    "sasl.login.class": "a Java class cannot be loaded here: use sasl.username and sasl.password",
    "sasl.oauthbearer.config": "unsigned tokens are not supported: set sasl.oauthbearer.token.endpoint.url or "
    "sasl.oauthbearer.token.command",
    "metric.reporters": "a Java class cannot be loaded here: remove it",
    "interceptor.classes": "a Java class cannot be loaded here: remove it",
    "group.id": "groups are chosen with --group: remove it",
    "retries": "limit the wait with --timeout instead",
}


def translate_properties(properties: Mapping[str, str], source: str) -> ClientProperties:
    """Translates ``properties`` of the Java client into librdkafka settings. ``source`` is the name of their file in
    errors.

    Raises `ConfigError` for an unsupported key, with a hint at its replacement.
    """
    kafka: dict[str, str] = {}
    for key, value in properties.items():
        if "${" in value and re.search(r"\$\{[^}]*:[^}]*\}", value):
            raise _unsupported(
                source, key, "configuration providers (${...:...}) work only in Java: write the value itself"
            )
        if key in _UNCHANGED:
            kafka[key] = value
        elif key in _RENAMED:
            kafka[_RENAMED[key]] = value
        elif key not in _SPECIAL and not is_zookeeper_tls(key):
            raise _unsupported(source, key, _UNSUPPORTED.get(key) or _hint_for_unknown(key))
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


def _unsupported(source: str, key: str, instead: str) -> ConfigError:
    return ConfigError(f"{source}: {key}", "this setting is not supported", instead)


def _hint_for_unknown(key: str) -> str:
    if key.startswith(("key.", "value.", "enable.auto", "auto.", "max.poll", "fetch.", "isolation.")):
        return "it is a setting for consumers of records, and offsetmgr consumes none: remove it"
    if key.startswith(("acks", "batch.", "linger.", "compression.", "transactional.", "enable.idempotence")):
        return "it is a setting for producers of records, and offsetmgr produces none: remove it"
    if key.startswith(("sasl.login.refresh.", "sasl.login.retry.", "sasl.login.connect.", "sasl.login.read.")):
        return "offsetmgr renews a token when 80 % of its lifetime have passed: remove it"
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
