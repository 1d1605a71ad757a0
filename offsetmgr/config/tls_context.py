"""Creates the TLS settings of connections to brokers and to ZooKeeper from the ``ssl.*`` settings of librdkafka."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path

from offsetmgr.core.errors import ConfigError


def tls_context(properties: Mapping[str, str]) -> ssl.SSLContext:
    """Returns the settings of a client. Ignores properties that do not concern TLS. Raises `ConfigError`."""
    try:
        context = ssl.create_default_context(
            cafile=properties.get("ssl.ca.location"), cadata=properties.get("ssl.ca.pem")
        )
    except (OSError, ssl.SSLError) as error:
        raise ConfigError("TLS certificate authorities", f"cannot be loaded: {_reason(error)}") from None
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
