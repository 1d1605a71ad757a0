"""A TCP gate in front of a server: while it is shut nothing passes, and no connection is told so."""

from __future__ import annotations

import contextlib
import socket
import threading


class Gate:
    """Listens on a port of its own and passes everything to ``address`` (``HOST:PORT``) while it is open.

    Shut, it keeps all connections and takes new ones, but carries no byte: the network of a host that was cut off.
    Opened again, it drops the connections that it kept.
    """

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._upstream = host, int(port)
        self._server = socket.create_server(("127.0.0.1", 0))
        self._kept: list[socket.socket] = []
        self._open = threading.Event()
        self._open.set()
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.getsockname()[1]}"

    def shut(self) -> None:
        self._open.clear()

    def open(self) -> None:
        kept, self._kept = self._kept, []
        for one in kept:
            _drop(one)
        self._open.set()

    def close(self) -> None:
        self._closed = True
        self._server.close()
        self.open()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        self._kept.append(client)
        self._open.wait()
        with contextlib.suppress(OSError):
            upstream = socket.create_connection(self._upstream)
            self._kept.append(upstream)
            threading.Thread(target=self._carry, args=(client, upstream), daemon=True).start()
            self._carry(upstream, client)

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._open.wait()
                target.sendall(data)
        _drop(source)
        _drop(target)


def _drop(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
