"""Translates the ``ssl.*`` settings of Kafka's Java client into librdkafka's, with all stores as PEM.

The only module that translates them: for brokers, and, with the prefix ``zookeeper.``, for ZooKeeper. Source: Kafka's
SslConfigs, DefaultSslEngineFactory and ZKConfig. No error contains a value, because values may be secrets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from offsetmgr.core.errors import ConfigError

if TYPE_CHECKING:
    from offsetmgr.config.key_stores import StoreContent

TLS_KEYS: Final = frozenset(
    {
        "ssl.truststore.location",
        "ssl.truststore.type",
        "ssl.truststore.password",
        "ssl.truststore.certificates",
        "ssl.keystore.location",
        "ssl.keystore.type",
        "ssl.keystore.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
    }
)
"""The keys that `translate_tls` translates."""

_ZOOKEEPER: Final = "zookeeper."
_ZOOKEEPER_ENABLE: Final = "zookeeper.ssl.client.enable"
_ZOOKEEPER_SOCKET: Final = "zookeeper.clientCnxnSocket"
_ZOOKEEPER_SWITCHES: Final = (_ZOOKEEPER_ENABLE, _ZOOKEEPER_SOCKET)
_NETTY: Final = "ClientCnxnSocketNetty"
_ZOOKEEPER_TLS_KEYS: Final = TLS_KEYS - {
    "ssl.truststore.certificates",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
}

_PEM_TEXT: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----([^-:]*)-----END \1-----")
_JAVA_STORES: Final = ("JKS", "PKCS12")


def translate_tls(properties: Mapping[str, str], source: str, prefix: str = "") -> dict[str, str]:
    """Returns librdkafka's settings for those keys of ``properties`` that are in `TLS_KEYS`.

    ``prefix`` is what the keys have in front of these names in the file ``source``; errors contain it. Reads the
    stores of the types JKS and PKCS12. Raises `ConfigError`.
    """
    tls = _TlsProperties(properties, source, prefix)
    found = {**tls.trust(), **tls.client_certificate()}
    algorithm = properties.get("ssl.endpoint.identification.algorithm")
    if algorithm is not None:
        found["ssl.endpoint.identification.algorithm"] = algorithm.lower() or "none"
    return found


def is_zookeeper_tls(key: str) -> bool:
    """Returns whether `translate_zookeeper_tls` translates this key."""
    return key in _ZOOKEEPER_SWITCHES or (
        key.startswith(_ZOOKEEPER) and _kafka_name(key.removeprefix(_ZOOKEEPER)) in _ZOOKEEPER_TLS_KEYS
    )


def translate_zookeeper_tls(properties: Mapping[str, str], source: str) -> dict[str, str] | None:
    """Returns the TLS settings towards ZooKeeper, under librdkafka's names; None without TLS. Raises `ConfigError`."""
    enabled = {"true": True, "false": False}.get(properties.get(_ZOOKEEPER_ENABLE, "false").lower())
    if enabled is None:
        raise ConfigError(f"{source}: {_ZOOKEEPER_ENABLE}", "must be true or false")
    if not properties.get(_ZOOKEEPER_SOCKET, _NETTY).endswith(_NETTY):
        raise ConfigError(f"{source}: {_ZOOKEEPER_SOCKET}", f"the only supported class is {_NETTY}", "remove it")
    found = {key: value for key, value in properties.items() if key.startswith(_ZOOKEEPER) and is_zookeeper_tls(key)}
    found = {key: value for key, value in found.items() if key not in _ZOOKEEPER_SWITCHES}
    if enabled:
        given = {_kafka_name(key.removeprefix(_ZOOKEEPER)): value for key, value in found.items()}
        return translate_tls(given, source, _ZOOKEEPER)
    if found:
        raise ConfigError(
            f"{source}: {next(iter(found))}",
            f"has no effect without {_ZOOKEEPER_ENABLE}=true",
            "add it, or remove this",
        )
    return None


def _kafka_name(key: str) -> str:
    """Kafka's name of a key; ZooKeeper's own tools write keyStore and trustStore."""
    return key.replace("ssl.keyStore.", "ssl.keystore.").replace("ssl.trustStore.", "ssl.truststore.")


@dataclass(frozen=True, slots=True)
class _TlsProperties:
    properties: Mapping[str, str]
    source: str
    prefix: str

    def trust(self) -> dict[str, str]:
        """Returns the trusted certificates: ``ssl.ca.location`` or ``ssl.ca.pem``; empty for those of the system."""
        location = self.properties.get("ssl.truststore.location")
        certificates = self.properties.get("ssl.truststore.certificates")
        if location is None:
            self._check_inline_type("truststore")
            return {} if certificates is None else {"ssl.ca.pem": _with_line_breaks(certificates)}
        if certificates is not None:
            raise self._error("ssl.truststore.certificates", "cannot be set together with ssl.truststore.location")
        if self._is_pem("truststore"):
            return {"ssl.ca.location": location}
        content = self._read("truststore")
        if not content.trusted:
            raise self._error("ssl.truststore.location", f"{location} contains no certificate")
        return {"ssl.ca.pem": content.trusted}

    def client_certificate(self) -> dict[str, str]:
        """Returns the client's certificate and private key; empty if the client has none."""
        location = self.properties.get("ssl.keystore.location")
        key_password = {k: v for k, v in self.properties.items() if k == "ssl.key.password"}
        inline = {"ssl.keystore.certificate.chain": "ssl.certificate.pem", "ssl.keystore.key": "ssl.key.pem"}
        given = {new: _with_line_breaks(self.properties[old]) for old, new in inline.items() if old in self.properties}
        if location is None:
            if "ssl.keystore.password" in self.properties:
                raise self._error("ssl.keystore.password", "has no effect without ssl.keystore.location", "remove it")
            self._check_inline_type("keystore")
            return given | key_password
        if given:
            raise self._error("ssl.keystore.location", "cannot be set together with ssl.keystore.key")
        if self._is_pem("keystore"):
            return {"ssl.certificate.location": location, "ssl.key.location": location} | key_password
        content = self._read("keystore")
        if not content.private_key:
            password = "ssl.keystore.password"
            hint = f"set {self.prefix}{password}" if password not in self.properties else ""
            raise self._error("ssl.keystore.location", f"{location} has no private key that can be read", hint)
        if not content.chain:
            raise self._error("ssl.keystore.location", f"{location} contains no certificate of the private key")
        return {"ssl.certificate.pem": content.chain, "ssl.key.pem": content.private_key}

    def _is_pem(self, which: str) -> bool:
        """Returns whether a store is PEM: by its type, else by the suffix of the file, else by its content."""
        location, kind = self.properties[f"ssl.{which}.location"], self.properties.get(f"ssl.{which}.type", "").upper()
        if kind:
            if kind != "PEM" and kind not in _JAVA_STORES:
                hint = "convert it with keytool -importkeystore -deststoretype PKCS12"
                raise self._error(f"ssl.{which}.type", f"a store of the type {kind} cannot be read", hint)
            return kind == "PEM"
        if location.lower().endswith((".pem", ".crt")):
            return True
        from offsetmgr.config.key_stores import is_pem

        try:
            return is_pem(location)
        except OSError as error:
            raise self._unreadable(which, error) from None

    def _read(self, which: str) -> StoreContent:
        from offsetmgr.config.key_stores import StoreError, read_store  # Most commands read no Java store.

        location, password = self.properties[f"ssl.{which}.location"], self.properties.get(f"ssl.{which}.password")
        key_password = self.properties.get("ssl.key.password") if which == "keystore" else None
        try:
            return read_store(location, password, key_password, with_key=which == "keystore")
        except StoreError as error:
            hint = "keytool -list -keystore FILE shows whether Java can read it"
            raise self._error(f"ssl.{which}.location", f"{location} cannot be read: {error}", hint) from None
        except OSError as error:
            raise self._unreadable(which, error) from None

    def _unreadable(self, which: str, error: OSError) -> ConfigError:
        location = self.properties[f"ssl.{which}.location"]
        return self._error(f"ssl.{which}.location", f"{location} cannot be read: {error.strerror or 'I/O error'}")

    def _check_inline_type(self, which: str) -> None:
        if self.properties.get(f"ssl.{which}.type", "PEM").upper() != "PEM":
            raise self._error(f"ssl.{which}.type", f"only PEM can be given without ssl.{which}.location")

    def _error(self, key: str, why: str, hint: str = "") -> ConfigError:
        return ConfigError(f"{self.source}: {self.prefix}{key}", why, hint)


def _with_line_breaks(text: str) -> str:
    """Returns PEM text with the line breaks that OpenSSL needs. Kafka accepts PEM on a single line, with spaces."""

    def block(match: re.Match[str]) -> str:
        content = "".join(match[2].split())
        lines = [content[at : at + 64] for at in range(0, len(content), 64)]
        return "\n".join([f"-----BEGIN {match[1]}-----", *lines, f"-----END {match[1]}-----", ""])

    return _PEM_TEXT.sub(block, text)
