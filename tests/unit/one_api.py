"""`OneApi`: a service with one API that the test defines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from memory_listener import MemoryListener

from offsetmgr.server.network.api import Api, ApiRequest, Concurrency, HandlerResult
from offsetmgr.server.network.socket_server import ServerListener, SocketServer

FORWARDED = 1


class OneApi:
    """A running service with one API. The block gets its event loop and its port."""

    def __init__(
        self, handle: Callable[[ApiRequest], HandlerResult], lane: Concurrency = Concurrency.EXCLUSIVE, **options: Any
    ) -> None:
        self._listening = MemoryListener()
        self._api = Api(FORWARDED, "Test", 0, 9, 99, handle, lane)
        self._options = options

    def __enter__(self) -> tuple[asyncio.AbstractEventLoop, int]:
        self._listening.__enter__()
        self._listening.run(self._start())
        return self._listening.loop, self._port

    async def _start(self) -> None:
        self.service = SocketServer([self._api], **self._options)
        listener = ServerListener(self.service, "127.0.0.1", 0)
        await listener.start()
        self._port = listener.port

    def __exit__(self, *error: object) -> None:
        self._listening.run(self.service.close())
        self._listening.__exit__(*error)
