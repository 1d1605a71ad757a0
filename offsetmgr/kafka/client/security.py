"""Reads the TLS and SASL settings of connections from librdkafka properties (`ConnectionConfig.kafka`)."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from offsetmgr.core.errors import ConfigError, UnsupportedOperation
from offsetmgr.kafka.client.sasl import Mechanism, mechanism
from offsetmgr.kafka.protocol.releases import Versions, fallback_versions

_PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
_UNSUPPORTED = ("ssl.keystore.location", "ssl.engine.location", "ssl.providers")


@dataclass(frozen=True, slots=True)
class Security:
    """TLS and SASL settings of all connections of a client. Its representation shows no secret."""

    tls: ssl.SSLContext | None = field(default=None, repr=False)
    check_hostname: bool = True
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
        check = properties.get("ssl.endpoint.identification.algorithm", "https").lower() not in ("none", "")
        tls = _tls(properties, check) if protocol.endswith("ssl") else None
        sasl = None
        if protocol.startswith("sasl"):
            name = properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or "GSSAPI"
            sasl = (name, properties.get("sasl.username", ""), properties.get("sasl.password", ""))
            mechanism(*sasl)
        assumed = fallback_versions(properties.get("broker.version.fallback", ""))
        return cls(tls, check, sasl, properties.get("client.id", "offsetmgr"), assumed)

    def login(self) -> Mechanism | None:
        """Returns a new SASL exchange, or None if the connection has no SASL."""
        return mechanism(*self.sasl) if self.sasl else None


def _tls(properties: Mapping[str, str], check_hostname: bool) -> ssl.SSLContext:
    for key in _UNSUPPORTED:
        if key in properties:
            raise UnsupportedOperation(
                key, "the group lock does not support it", "use PEM files: ssl.certificate.location"
            )
    try:
        context = ssl.create_default_context(
            cafile=properties.get("ssl.ca.location"), cadata=properties.get("ssl.ca.pem")
        )
    except (OSError, ssl.SSLError) as error:
        raise ConfigError("TLS certificate authorities", f"cannot be loaded: {_reason(error)}") from None
    context.check_hostname = check_hostname
    if properties.get("enable.ssl.certificate.verification", "true").lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    password = properties.get("ssl.key.password")
    try:
        if "ssl.certificate.location" in properties:
            context.load_cert_chain(
                properties["ssl.certificate.location"], properties.get("ssl.key.location"), password
            )
        elif "ssl.certificate.pem" in properties:
            _load_pem(context, properties["ssl.certificate.pem"] + "\n" + properties.get("ssl.key.pem", ""), password)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError("TLS client certificate", f"cannot be loaded: {_reason(error)}") from None
    return context


def _reason(error: OSError) -> str:
    return "it is not valid PEM" if isinstance(error, ssl.SSLError) else error.strerror or str(error)


def _load_pem(context: ssl.SSLContext, pem: str, password: str | None) -> None:
    # Python's ssl module loads a certificate chain only from a file. Only the user that runs this process can read the
    # temporary file.
    handle, name = tempfile.mkstemp(suffix=".pem")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(pem)
        context.load_cert_chain(name, password=password)
    finally:
        Path(name).unlink()
