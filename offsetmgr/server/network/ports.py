"""The parts of a listening port that do not depend on its protocol: TLS settings, limit of open files, addresses of
clients."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import resource
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from offsetmgr.core.errors import ConfigError, Unreachable

_log = logging.getLogger(__name__)

_ACCEPTS_PER_TURN: Final = 16
"""Maximum number of connections that one turn of the event loop accepts, so that other connections get their turn.
asyncio accepts as many as the backlog with which it opens the port."""
_BACKLOG: Final = 512
_OTHER_FILES: Final = 500
"""Open files that are not clients' connections: connections to brokers, files of libraries."""


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


def client_network(peer: str) -> str:
    """Returns the address by which limits count a client: for IPv6 the network with 64 bits, all of whose addresses one
    host may have."""
    if ":" not in peer:
        return peer
    address = ipaddress.IPv6Address(peer.partition("%")[0])
    return str(address.ipv4_mapped or ipaddress.IPv6Address(int(address) >> 64 << 64))


async def open_port(
    create: Callable[..., Awaitable[asyncio.Server]], what: str, host: str, port: int, hint: str
) -> asyncio.Server:
    """Opens a port with ``create``, a function of asyncio. Raises `Unreachable`."""
    try:
        server = await create(host=host, port=port, backlog=_ACCEPTS_PER_TURN)
    except OSError as error:
        # Negative error numbers come from the name resolver. For others, asyncio's text would repeat the address.
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
        raise Unreachable(f"{what} {host}:{port}", why, hint) from None
    for listening in server.sockets:
        with listening.dup() as same:
            same.listen(_BACKLOG)
    return server


def raise_file_limit(connections: int) -> None:
    """Raises this process's soft limit of open files (often 1024) if necessary and allowed. Without free file
    descriptors, the process could not connect to the cluster."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + _OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if allowed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < needed:
        _log.warning(
            "the limit of open files is below the number of allowed connections; raise it (ulimit -n)",
            extra={"open files": allowed, "needed": needed},
        )
