"""`CuttingProxy`: a proxy between a ZooKeeper client and its server, for lost requests and lost responses."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

TRANSACTION, MULTI_READ = 14, 22


class CuttingProxy:
    """A proxy between client and server that cuts the connection once, at a chosen request."""

    def __init__(self, server: str) -> None:
        host, _, port = server.rpartition(":")
        self._server = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.connect = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._cut_at: int | None = None
        self._deliver = False
        self._between: Callable[[], object] = lambda: None
        self.cuts = 0
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, operation: int, *, deliver: bool, between: Callable[[], object] = lambda: None) -> None:
        """Cuts the connection at the next request of this kind, before the server gets it. With ``deliver`` the proxy
        forwards the request, calls ``between`` after the server's response, and drops the response."""
        self._deliver, self._between, self._cut_at = deliver, between, operation

    def cut_now(self) -> None:
        self._end(*self._open)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            # close alone would let the pending accept take one more connection
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut_now()
        for one in self._open:
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                self._open += [client, server]
                withheld: list[bytes] = []
                """The xids of the requests whose responses are dropped."""
                threading.Thread(target=self._requests, args=(client, server, withheld), daemon=True).start()
                threading.Thread(target=self._responses, args=(client, server, withheld), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket, withheld: list[bytes]) -> None:
        with contextlib.suppress(OSError):
            for frame in self._frames(client):
                if self._cut_at is not None and frame[8:12] == struct.pack("!i", self._cut_at):
                    self._cut_at = None
                    if not self._deliver:
                        self.cuts += 1
                        break
                    withheld.append(frame[4:8])
                server.sendall(frame)
        self._end(client, server)

    def _responses(self, client: socket.socket, server: socket.socket, withheld: list[bytes]) -> None:
        with contextlib.suppress(OSError):
            for frame in self._frames(server):
                if frame[4:8] in withheld:
                    self._between()
                    self.cuts += 1
                    break
                client.sendall(frame)
        self._end(client, server)

    @staticmethod
    def _frames(source: socket.socket) -> Iterator[bytes]:
        """Requests or responses one by one, with their lengths. A received piece may end anywhere in a frame."""
        data = b""
        while received := source.recv(1 << 20):
            data += received
            while len(data) >= 4 and len(data) >= (end := 4 + int.from_bytes(data[:4], "big")):
                yield data[:end]
                data = data[end:]

    @staticmethod
    def _end(*sockets: socket.socket) -> None:
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
