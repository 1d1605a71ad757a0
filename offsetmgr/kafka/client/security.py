"""Reads the TLS and SASL settings of connections from librdkafka properties (`ConnectionConfig.kafka`)."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

from offsetmgr.config.tls_context import tls_context
from offsetmgr.core.errors import ConfigError, UnsupportedOperation
from offsetmgr.kafka.client.sasl import Mechanism, mechanism
from offsetmgr.kafka.protocol.releases import Versions, fallback_versions

_PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
_UNSUPPORTED = ("ssl.keystore.location", "ssl.engine.location", "ssl.providers")


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

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Security:
        """Creates the settings from librdkafka properties. Ignores properties that do not concern the security of
        connections.

        Raises `ConfigError` for invalid values, and `UnsupportedOperation` for features that only librdkafka supports.
        """
        protocol = properties.get("security.protocol", "plaintext").lower()
        if protocol not in _PROTOCOLS:
            raise ConfigError("security.protocol", f"must be one of {', '.join(_PROTOCOLS)}, not {protocol}")
        tls = _tls(properties) if protocol.endswith("ssl") else None
        sasl = None
        if protocol.startswith("sasl"):
            name = properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or "GSSAPI"
            sasl = (name, properties.get("sasl.username", ""), properties.get("sasl.password", ""))
            mechanism(*sasl)
        assumed = fallback_versions(properties.get("broker.version.fallback", ""))
        return cls(tls, sasl, properties.get("client.id", "offsetmgr"), assumed)

    def login(self) -> Mechanism | None:
        """Returns a new SASL exchange, or None if the connection has no SASL."""
        return mechanism(*self.sasl) if self.sasl else None


def _tls(properties: Mapping[str, str]) -> ssl.SSLContext:
    for key in _UNSUPPORTED:
        if key in properties:
            raise UnsupportedOperation(
                key,
                "only librdkafka supports it",
                "use PEM (ssl.certificate.location), or a --command-config file, which can name JKS and PKCS12 stores",
            )
    return tls_context(properties)
