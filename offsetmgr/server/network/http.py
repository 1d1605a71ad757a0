"""The manager's HTTP port: ``/metrics`` for Prometheus, ``/health`` and ``/ready`` for process supervisors.

The server accepts only GET, and one request per connection. To limit the cost of a request, the request line must
arrive within a few seconds and must not be longer than 2 KiB, and a connection above the limit closes the oldest one.
Like other Prometheus endpoints, the port has no authentication. The metrics contain no group names, and the server
listens only on the configured address.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from offsetmgr.core.advice import Advice
from offsetmgr.server.network.ports import open_port

_TIMEOUT_S: Final = 5.0
_MAX_LINE_BYTES: Final = 2048
_MAX_CONNECTIONS: Final = 64
_REASONS: Final = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Unavailable"}


class Page(NamedTuple):
    """A response: HTTP status, content type, body."""

    status: int
    content_type: str
    body: bytes


def text(status: int, line: str) -> Page:
    """A page of one line."""
    return Page(status, "text/plain; charset=utf-8", f"{line}\n".encode())


class HttpEndpoint:
    """An HTTP server with one function for each path. The function creates the page for each request."""

    def __init__(self, host: str, port: int, pages: dict[str, Callable[[], Page]]) -> None:
        self._host = host
        self._port = port
        self._pages = pages
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, None] = {}
        """The connections, the oldest first."""

    async def start(self) -> int:
        """Starts to listen; returns the port, which the system selects if the configured port is 0. Raises
        `Unreachable` if the port is in use."""
        create = partial(asyncio.start_server, self._serve, limit=_MAX_LINE_BYTES)
        hint = Advice("choose another address with {metrics_listen}")
        self._server = await open_port(create, "metrics port", self._host, self._port, hint)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open[writer] = None
        if len(self._open) > _MAX_CONNECTIONS:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.transport.abort()
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                page = self._answer(await reader.readline())
                head = (
                    f"HTTP/1.1 {page.status} {_REASONS[page.status]}\r\nContent-Type: {page.content_type}\r\n"
                    f"Content-Length: {len(page.body)}\r\nConnection: close\r\n\r\n"
                )
                writer.write(head.encode() + page.body)
                await writer.drain()
        except (TimeoutError, OSError, ValueError):  # the client is slow or gone, or its request line is too long
            pass
        finally:
            self._open.pop(writer, None)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _answer(self, line: bytes) -> Page:
        parts = line.split()
        if len(parts) != 3 or not parts[2].startswith(b"HTTP/"):
            return text(400, "not an HTTP request")
        if parts[0] != b"GET":
            return text(405, "only GET")
        page = self._pages.get(parts[1].split(b"?")[0].decode("latin-1"))
        return text(404, f"not found; available: {', '.join(sorted(self._pages))}") if page is None else page()
