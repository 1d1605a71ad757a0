"""Translates the ``ssl.*`` settings of Kafka's Java client into librdkafka's, with all stores as PEM.

The only module that translates them: for brokers, and, with the prefix ``zookeeper.``, for ZooKeeper. Source: Kafka's
SslConfigs, DefaultSslEngineFactory and ZKConfig. No error contains a value, because values may be secrets.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from offsetmgr.core.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate


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
        try:
            with Path(location).open("rb") as file:
                return _PEM_BEGIN in file.read(4096)
        except OSError as error:
            raise self._unreadable(which, error) from None

    def _read(self, which: str) -> StoreContent:
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
    return _PEM_TEXT.sub(lambda found: _pem_block(found[1], "".join(found[2].split())), text)


def _pem_block(label: str, content: str) -> str:
    """Returns PEM text of ``content``, which is encoded in Base64."""
    lines = [content[at : at + 64] for at in range(0, len(content), 64)]
    return "\n".join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""])


# Reads Java key stores and trust stores of the types JKS and PKCS12, and returns their contents as PEM text. Both
# Kafka clients and the ZooKeeper client take PEM, so no other module needs to know the formats. The JKS format is
# read here, because its only users are certificates and private keys; the package `pyjks` needs a C compiler. PKCS12
# is read with `cryptography`, which is imported only then. Like Java, `read_store` determines the format by the
# content of the file, so a PKCS12 file with the type JKS is read too. No error contains a password or a key (data
# rule "secrets stay secret"). Source: sun.security.provider.JavaKeyStore and sun.security.provider.KeyProtector of
# OpenJDK 17.

_JKS_MAGIC: Final = b"\xfe\xed\xfe\xed"
_JCEKS_MAGIC: Final = b"\xce\xce\xce\xce"
_DER_SEQUENCE: Final = b"\x30"
_PEM_BEGIN: Final = b"-----BEGIN "
_DIGEST_SALT: Final = b"Mighty Aphrodite"
_SHA1_BYTES: Final = 20
_KEY_ENTRY: Final = 1
_CERTIFICATE_ENTRY: Final = 2
_WRONG_PASSWORD: Final = "its password is wrong, or the file is damaged"


class StoreError(Exception):
    """The text states why a store cannot be read."""


@dataclass(frozen=True, slots=True)
class StoreContent:
    """The certificates and the first private key of a store, as PEM text.

    ``trusted`` has the certificates that Java trusts if the store is a trust store: all certificate entries, and the
    first certificate of each key entry. ``chain`` has the certificates of the private key, the client's own first.
    """

    trusted: str = ""
    chain: str = ""
    private_key: str = field(default="", repr=False)


def read_store(
    path: str, password: str | None, key_password: str | None = None, *, with_key: bool = True
) -> StoreContent:
    """Reads a JKS or PKCS12 file. ``key_password`` is the password of the private key if it differs from ``password``.
    Without ``with_key`` the private keys are not decrypted.

    A JKS file can be read without a password; the certificates are then not checked for changes, as in Java.
    Raises `StoreError` and `OSError`.
    """
    data = Path(path).read_bytes()
    if data.startswith(_JKS_MAGIC):
        try:
            return _read_jks(data, password, (key_password or password) if with_key else None)
        except (IndexError, struct.error, UnicodeDecodeError):
            raise StoreError("the JKS file is damaged") from None
    if data.startswith(_DER_SEQUENCE):
        return _read_pkcs12(data, password)
    if data.startswith(_JCEKS_MAGIC):
        raise StoreError("it is of the type JCEKS: convert it with keytool -importkeystore -deststoretype PKCS12")
    raise StoreError("it is neither a JKS nor a PKCS12 file")


# --- PKCS12 -------------------------------------------------------------------------------------------


def _read_pkcs12(data: bytes, password: str | None) -> StoreContent:
    try:
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, pkcs12
    except ImportError:
        raise StoreError("the package cryptography is missing: install it to read PKCS12 files") from None
    try:
        store = pkcs12.load_pkcs12(data, None if password is None else password.encode())
    except ValueError:
        raise StoreError("a PKCS12 file needs its password" if password is None else _WRONG_PASSWORD) from None
    own = [] if store.cert is None else [store.cert.certificate]
    others = [entry.certificate for entry in store.additional_certs]
    # A store may hold further certificates, so the chain has only those that certify the own one.
    found: list[Certificate] = []
    last = own[0] if own else None
    while last is not None and last.issuer != last.subject:
        issuer = last.issuer
        last = next((c for c in others if c.subject == issuer and c not in found), None)
        if last is not None:
            found.append(last)
    chain = [*own, *found]
    key = b""
    if store.key is not None:
        key = store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return StoreContent(
        trusted="".join(_pem("CERTIFICATE", c.public_bytes(Encoding.DER)) for c in (*own, *others)),
        chain="".join(_pem("CERTIFICATE", c.public_bytes(Encoding.DER)) for c in chain) if key else "",
        private_key=key.decode(),
    )


# --- JKS ----------------------------------------------------------------------------------------------


class _Reader:
    """A cursor over the bytes of a JKS file. Raises `IndexError` or `struct.error` at the end of the file."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def number(self, layout: str) -> int:
        (value,) = struct.unpack_from(layout, self._data, self.at)
        self.at += struct.calcsize(layout)
        return int(value)

    def take(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self._data):
            raise IndexError
        self.at += size
        return self._data[self.at - size : self.at]

    def text(self) -> str:
        return self.take(self.number(">H")).decode("utf-8", "replace")

    def certificate(self, version: int) -> str:
        if version == 2:
            self.text()  # the type, X.509
        return _pem("CERTIFICATE", self.take(self.number(">i")))


def _read_jks(data: bytes, password: str | None, key_password: str | None) -> StoreContent:
    body, digest = data[:-_SHA1_BYTES], data[-_SHA1_BYTES:]
    if password is not None:
        expected = hashlib.sha1(password.encode("utf-16-be") + _DIGEST_SALT + body).digest()
        if not hmac.compare_digest(expected, digest):
            raise StoreError(_WRONG_PASSWORD)
    reader = _Reader(body)
    reader.take(len(_JKS_MAGIC))
    version = reader.number(">i")
    trusted: list[str] = []
    chain: list[str] = []
    private_key = b""
    for _ in range(reader.number(">i")):
        tag = reader.number(">i")
        reader.text()  # the alias
        reader.number(">q")  # the date
        if tag == _CERTIFICATE_ENTRY:
            trusted.append(reader.certificate(version))
        elif tag == _KEY_ENTRY:
            protected = reader.take(reader.number(">i"))
            certificates = [reader.certificate(version) for _ in range(reader.number(">i"))]
            trusted += certificates[:1]
            if not private_key and key_password is not None:
                private_key, chain = _decrypt(protected, key_password), certificates
        else:
            raise IndexError
    return StoreContent("".join(trusted), "".join(chain), _pem("PRIVATE KEY", private_key) if private_key else "")


def _decrypt(protected: bytes, password: str) -> bytes:
    """Decrypts a private key, which is an EncryptedPrivateKeyInfo whose content is a salt, the encrypted key and a
    checksum."""
    secret = password.encode("utf-16-be")
    algorithm_end = _der_value(protected, _der_value(protected, 0)[0])[1]
    start, end = _der_value(protected, algorithm_end)
    content = protected[start:end]
    salt, encrypted, checksum = content[:_SHA1_BYTES], content[_SHA1_BYTES:-_SHA1_BYTES], content[-_SHA1_BYTES:]
    stream, block = b"", salt
    while len(stream) < len(encrypted):
        block = hashlib.sha1(secret + block).digest()
        stream += block
    key = bytes(a ^ b for a, b in zip(encrypted, stream, strict=False))
    if not hmac.compare_digest(hashlib.sha1(secret + key).digest(), checksum):
        raise StoreError("the password of its private key is wrong: set ssl.key.password")
    return key


def _der_value(data: bytes, at: int) -> tuple[int, int]:
    """Returns the start and the end of the value of the DER element at ``at``."""
    size, start = data[at + 1], at + 2
    if size >= 0x80:
        start += size - 0x80
        size = int.from_bytes(data[at + 2 : start], "big")
    return start, start + size


def _pem(label: str, der: bytes) -> str:
    return _pem_block(label, base64.b64encode(der).decode())
