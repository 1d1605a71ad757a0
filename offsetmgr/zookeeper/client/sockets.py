"""Sockets to ZooKeeper servers: TLS for kazoo, and test connections that explain why no server can be reached."""

from __future__ import annotations

import socket
import ssl
from typing import Any, Final

from kazoo.handlers.threading import SequentialThreadingHandler

_PROBE_TIMEOUT_S: Final = 0.3
_TLS_PROBE_TIMEOUT_S: Final = 2.0
_DEFAULT_PORT: Final = "2181"


class TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """Connects with TLS settings that kazoo's own parameters, paths of files, cannot express."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        super().__init__()
        self._tls = tls

    def create_connection(self, address: tuple[str, int], hostname: str, timeout: float, **_: Any) -> ssl.SSLSocket:
        connection = socket.create_connection(address, timeout)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return self._tls.wrap_socket(connection, server_hostname=hostname.strip("[]"))
        except BaseException:
            connection.close()
            raise

    def select(self, readers: list[Any], writers: list[Any], errors: list[Any], timeout: float | None = None) -> Any:
        """Reports bytes that are already decrypted, which the operating system does not know. kazoo would otherwise
        wait for further bytes if one TLS record contains several responses."""
        ready = [reader for reader in readers if isinstance(reader, ssl.SSLSocket) and reader.pending()]
        return (ready, [], []) if ready else super().select(readers, writers, errors, timeout)


def describe_servers(hosts: str, tls: ssl.SSLContext | None) -> str:
    """Connects to each address and describes the result. The test connections are necessary because kazoo does not
    distinguish a closed port from a port on which another service listens."""
    return "; ".join(_describe_server(address, tls) for address in _addresses(hosts))


def are_unusable(hosts: str) -> bool:
    """Returns whether every address refuses connections or does not resolve."""
    return not any(map(_may_accept, _addresses(hosts)))


def _addresses(hosts: str) -> list[str]:
    return [address.strip() for address in hosts.split(",") if address.strip()]


def _may_accept(address: str) -> bool:
    host, port = _host_and_port(address)
    try:
        socket.create_connection((host, int(port)), _PROBE_TIMEOUT_S).close()
    except (ConnectionRefusedError, socket.gaierror):
        return False
    except (OSError, ValueError):
        return True
    return True


def _host_and_port(address: str) -> tuple[str, str]:
    host, colon, port = address.rpartition(":")
    if not colon:
        host, port = address, _DEFAULT_PORT
    return host.strip("[]"), port


def admin_command(address: str, tls: ssl.SSLContext | None, command: str) -> str:
    """Sends an administrative command of four letters to a server, and returns the answer, which is empty if the server
    does not allow the command. Raises `OSError`."""
    host, port = _host_and_port(address)
    parts = []
    with socket.create_connection((host, int(port)), _TLS_PROBE_TIMEOUT_S) as plain:
        connection = plain if tls is None else tls.wrap_socket(plain, server_hostname=host)
        with connection:
            connection.sendall(command.encode())
            while part := connection.recv(65_536):
                parts.append(part)
    answer = b"".join(parts).decode(errors="replace")
    return "" if f"{command} is not executed" in answer else answer


def _describe_server(address: str, tls: ssl.SSLContext | None) -> str:
    host, port = _host_and_port(address)
    try:
        with socket.create_connection((host, int(port)), _PROBE_TIMEOUT_S) as connection:
            if tls is None:
                return (
                    f"{address} accepts connections, but is not a ZooKeeper server that serves requests; "
                    "a port for TLS needs zookeeper.ssl.client.enable=true"
                )
            connection.settimeout(_TLS_PROBE_TIMEOUT_S)
            # With TLS 1.3 the server rejects a client's certificate only after the handshake.
            with tls.wrap_socket(connection, server_hostname=host) as encrypted:
                encrypted.settimeout(_PROBE_TIMEOUT_S)
                encrypted.recv(1)
            return f"{address} accepts TLS connections, but is not a ZooKeeper server that serves requests"
    except ssl.SSLCertVerificationError as error:
        from offsetmgr.config.tls_context import verification_failure

        return f"{address}: {'; '.join(verification_failure(error, host, int(port)))}"
    except ssl.SSLError as error:
        return f"{address}: no TLS connection ({error.reason})"
    except TimeoutError:
        return f"{address} does not respond"
    except (OSError, ValueError) as error:
        return f"{address}: {getattr(error, 'strerror', None) or error}"
