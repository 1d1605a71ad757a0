"""The listener's TLS settings."""

from __future__ import annotations

import ssl
from pathlib import Path

from offsetmgr.core.errors import ConfigError


def server_tls(
    certificate: Path | str, key: Path | str | None = None, *, client_ca: Path | str | None = None
) -> ssl.SSLContext:
    """Loads PEM files: the chain (with the key in it, unless ``key`` names another file), and the authorities for
    clients' certificates, if clients must have one. TLS 1.2 or later.

    Raises `ConfigError`.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Without a password argument OpenSSL would prompt on the terminal for that of an encrypted key.
        context.load_cert_chain(str(certificate), str(key) if key else None, password="")
    except (OSError, ssl.SSLError) as error:
        raise ConfigError("TLS certificate and key", *_reason(error, certificate, key)) from None
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(str(client_ca))
        except (OSError, ssl.SSLError) as error:
            raise ConfigError("TLS authorities of clients", *_reason(error, client_ca)) from None
    return context


def _reason(error: OSError, *files: Path | str | None) -> tuple[str, str]:
    """The reason for a failure, and a hint."""
    names = " and ".join(str(file) for file in files if file is not None)
    if not isinstance(error, ssl.SSLError):
        return f"{names}: {error.strerror}", "name files that this user may read"
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"{names}: the key is not that of the certificate", "name the key that the certificate was made for"
    why = "not a valid certificate and key in PEM, or the key has a passphrase"
    return f"{names}: {why}", "convert them with openssl: PEM, the server's certificate first, the key without one"
