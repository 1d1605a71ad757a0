"""Reads the TLS and SASL settings of connections from librdkafka properties (`ConnectionConfig.kafka`)."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from offsetmgr.config.tls_context import tls_context
from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import ConfigError, UnsupportedOperation
from offsetmgr.kafka.protocol.releases import Versions, fallback_versions

if TYPE_CHECKING:
    from offsetmgr.kafka.client.kerberos import KerberosLogin
    from offsetmgr.kafka.client.oauth_tokens import TokenSource
    from offsetmgr.kafka.client.sasl import Mechanism

_PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
_UNSUPPORTED = ("ssl.keystore.location", "ssl.engine.location", "ssl.providers")

_LOGIN_TIMEOUT_S: Final = 10.0
_TOKEN_TIMEOUT_FRACTION: Final = 0.8


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
    tokens: TokenSource | None = field(default=None, repr=False)
    """The source of tokens for OAUTHBEARER."""
    kerberos: KerberosLogin | None = None
    certificate: str = field(default="", repr=False)
    """The PEM text or the file of the client's certificate; empty without one."""

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Security:
        """Creates the settings from librdkafka properties. Ignores properties that do not concern the security of
        connections.

        Raises `ConfigError` for invalid values, and `UnsupportedOperation` for features that offsetmgr's client does
        not support.
        """
        protocol = properties.get("security.protocol", "plaintext").lower()
        if protocol not in _PROTOCOLS:
            raise ConfigError("security.protocol", f"must be one of {', '.join(_PROTOCOLS)}, not {protocol}")
        tls = _tls(properties) if protocol.endswith("ssl") else None
        sasl, tokens, kerberos = None, None, None
        if protocol.startswith("sasl"):
            from offsetmgr.kafka.client.sasl import GSSAPI, OAUTHBEARER, mechanism

            name = properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or "GSSAPI"
            sasl = (name, properties.get("sasl.username", ""), properties.get("sasl.password", ""))
            if name.upper() == OAUTHBEARER:
                from offsetmgr.kafka.client.oauth_tokens import token_source  # Few connections use tokens.

                tokens = token_source(properties)
            elif name.upper() == GSSAPI:
                from offsetmgr.kafka.client.kerberos import KerberosLogin

                kerberos = KerberosLogin.of(properties)
            else:
                mechanism(*sasl)
        assumed = fallback_versions(properties.get("broker.version.fallback", ""))
        certificate = properties.get("ssl.certificate.pem") or properties.get("ssl.certificate.location", "")
        return cls(tls, sasl, properties.get("client.id", "offsetmgr"), assumed, tokens, kerberos, certificate)

    @property
    def requires_login(self) -> bool:
        return self.sasl is not None

    def login(self, timeout_s: float = _LOGIN_TIMEOUT_S, host: str = "") -> Mechanism | None:
        """Returns a new SASL exchange with the broker at ``host``, or None if the connection has no SASL. With
        OAUTHBEARER, the call may have to wait for a new token."""
        if self.sasl is None:
            return None
        from offsetmgr.kafka.client.sasl import OAuthBearer, mechanism

        if self.kerberos is not None:
            from offsetmgr.kafka.client.kerberos import Gssapi

            return Gssapi(self.kerberos, host)
        if self.tokens is not None:
            return OAuthBearer(self.tokens.token(timeout_s).value, self.tokens.extensions)
        return mechanism(*self.sasl)

    async def begin_login(self, host: str, timeout_s: float) -> tuple[Mechanism, bytes]:
        """Returns a new SASL exchange and its first message, and does not block the event loop."""

        def begin() -> tuple[Mechanism, bytes]:
            # The error of a source that does not answer should arrive before the broker's connection times out.
            login = self.login(timeout_s * _TOKEN_TIMEOUT_FRACTION, host)
            assert login is not None
            return login, login.start()

        blocks = self.tokens is not None or self.kerberos is not None
        return await asyncio.to_thread(begin) if blocks else begin()


def _tls(properties: Mapping[str, str]) -> ssl.SSLContext:
    for key in _UNSUPPORTED:
        if key in properties:
            raise UnsupportedOperation(
                key,
                "offsetmgr's client does not support it",
                Advice(
                    "use PEM (ssl.certificate.location), or a {command_config} file, which can name JKS and PKCS12"
                    " stores"
                ),
            )
    return tls_context(properties)
