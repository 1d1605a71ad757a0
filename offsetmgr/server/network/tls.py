"""The listener's TLS settings."""

from __future__ import annotations

import ssl
from pathlib import Path

from offsetmgr.core.errors import ConfigError


def server_tls(certificate: Path | str, key: Path | str | None = None) -> ssl.SSLContext:
    """Creates a server's TLS context (TLS 1.2 or later) from PEM files. ``certificate`` holds the certificate chain,
    and the private key unless ``key`` names another file. Raises `ConfigError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Without a password argument, OpenSSL would prompt on the terminal for the password of an encrypted key.
        context.load_cert_chain(str(certificate), str(key) if key else None, password="")
    except (OSError, ssl.SSLError) as error:
        raise ConfigError("TLS certificate and key", *_reason(error, certificate, key)) from None
    return context


def _reason(error: OSError, *files: Path | str | None) -> tuple[str, str]:
    """The reason for a failure, and a hint."""
    names = " and ".join(str(file) for file in files if file is not None)
    if not isinstance(error, ssl.SSLError):
        return f"{names}: {error.strerror}", "choose files that this user may read"
    if error.reason == "KEY_VALUES_MISMATCH":
        return (
            f"{names}: the key does not belong to the certificate",
            "choose the key from which the certificate was created",
        )
    why = "not a valid certificate and key in PEM, or the key has a passphrase"
    return f"{names}: {why}", "convert the files with openssl: PEM, server certificate first, key without passphrase"
