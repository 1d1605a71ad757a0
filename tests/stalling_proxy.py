"""A TCP proxy that can stall: it then forwards no byte, and closes no connection."""

from __future__ import annotations

import contextlib
import socket
import threading


class StallingProxy:
    """Listens on its own port and forwards everything to ``address`` (``HOST:PORT``).

    While it is stalled, it keeps all connections and accepts new ones but forwards nothing, like the network of a host
    that was cut off. `resume` closes the connections that it kept; `release` keeps them.
    """

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._upstream = host, int(port)
        self._server = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []
        self._flowing = threading.Event()
        self._flowing.set()
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.getsockname()[1]}"

    def stall(self) -> None:
        self._flowing.clear()

    def resume(self) -> None:
        connections, self._connections = self._connections, []
        for connection in connections:
            _close(connection)
        self._flowing.set()

    def release(self) -> None:
        """Ends the stall and forwards everything that was sent during it, even if its sender has closed the
        connection."""
        self._flowing.set()

    def close(self) -> None:
        self._closed = True
        self._server.close()
        self.resume()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        self._connections.append(client)
        self._flowing.wait()
        with contextlib.suppress(OSError):
            upstream = socket.create_connection(self._upstream)
            self._connections.append(upstream)
            threading.Thread(target=self._forward, args=(client, upstream), daemon=True).start()
            self._forward(upstream, client)

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._flowing.wait()
                target.sendall(data)
        _close(source)
        _close(target)


def _close(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
