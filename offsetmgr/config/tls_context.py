"""Creates the TLS settings of connections to brokers and to ZooKeeper from the ``ssl.*`` settings of librdkafka."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from offsetmgr.core.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

_EXPIRED: Final = 10
_INVALID_TIMES: Final = (9, _EXPIRED)
_OTHER_NAMES: Final = (62, 64)
"""OpenSSL's codes for a certificate that is not valid at present, and for one of another host name or IP address."""
_PROBE_TIMEOUT_S: Final = 2.0


def tls_context(properties: Mapping[str, str]) -> ssl.SSLContext:
    """Returns the settings of a client. Ignores properties that do not concern TLS. Raises `ConfigError`."""
    authorities = properties.get("ssl.ca.location")
    try:
        context = ssl.create_default_context(cafile=authorities, cadata=properties.get("ssl.ca.pem"))
    except (OSError, ssl.SSLError) as error:
        where = "" if authorities is None else f" of ssl.ca.location {authorities}"
        raise ConfigError(f"TLS certificate authorities{where}", f"cannot be loaded: {_reason(error)}") from None
    algorithm = properties.get("ssl.endpoint.identification.algorithm", "https").lower()
    context.check_hostname = algorithm not in ("none", "")
    if properties.get("enable.ssl.certificate.verification", "true").lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    # Without a password, Python would ask for one on the terminal.
    password = properties.get("ssl.key.password", "")
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
    if not isinstance(error, ssl.SSLError):
        return error.strerror or str(error)
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the private key does not belong to the certificate"
    return "it is not valid PEM, or ssl.key.password is wrong"


def _load_pem(context: ssl.SSLContext, pem: str, password: str) -> None:
    # Python's ssl module loads a certificate chain only from a file. On Linux the file exists only in memory. Elsewhere
    # only the user that runs this process can read the temporary file.
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("offsetmgr", os.MFD_CLOEXEC)
        with os.fdopen(handle, "w") as file:
            file.write(pem)
            file.flush()
            context.load_cert_chain(f"/proc/self/fd/{handle}", password=password)
        return
    handle, name = tempfile.mkstemp(suffix=".pem")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(pem)
        context.load_cert_chain(name, password=password)
    finally:
        Path(name).unlink()


def verification_failure(error: ssl.SSLCertVerificationError, host: str, port: int) -> tuple[str, str]:
    """Returns the reason, with the subject and the dates of the server's certificate, and a hint. Connects to the
    server once more, because the error does not contain the certificate."""
    why = f"certificate verification failed: {error.verify_message}"
    try:
        found = _certificate(ssl.get_server_certificate((host, port), timeout=_PROBE_TIMEOUT_S))
    except (OSError, ValueError):
        found = None
    if found is not None:
        why += f" ({_text(found)})"
        if error.verify_code == _EXPIRED and found.not_valid_after_utc > datetime.now(UTC):
            why += "; the certificate of one of its authorities has expired"
    if error.verify_code in _INVALID_TIMES:
        return why, "renew the certificate, or correct the clock of this machine"
    if error.verify_code in _OTHER_NAMES:
        return why, "connect to a name that the certificate contains; brokers announce theirs in advertised.listeners"
    return why, "name the authority that issued the certificate with ssl.truststore.location"


def own_certificate_text(pem_or_path: str) -> str:
    """Returns the subject and the dates of the client's certificate; empty if it cannot be read."""
    try:
        pem = pem_or_path if pem_or_path.lstrip().startswith("-") else Path(pem_or_path).read_text("ascii")
        return _text(_certificate(pem))
    except (OSError, ValueError):
        return ""


def _certificate(pem: str) -> Certificate:
    from cryptography.x509 import load_pem_x509_certificate  # only after a failure

    return load_pem_x509_certificate(pem.encode())


def _text(found: Certificate) -> str:
    first, last = (f"{one:%Y-%m-%d %H:%M:%S}" for one in (found.not_valid_before_utc, found.not_valid_after_utc))
    return f"{found.subject.rfc4514_string()}, valid from {first} to {last} UTC"
