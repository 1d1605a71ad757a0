"""Listeners for tests, each on an event loop in its own thread: one in front of a store, and a whole offset manager."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from event_loop_thread import EventLoopThread

from offsetmgr.cli.app import run
from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.kafka.client.backing_cluster import BackingClusterClient, TopicLayout
from offsetmgr.kafka.client.connection import Security
from offsetmgr.manager.assignment import NodeAddress
from offsetmgr.server import manager_process
from offsetmgr.server.apis.api_context import ApiContext
from offsetmgr.server.apis.table import listener_apis
from offsetmgr.server.manager_process import ManagerProcess
from offsetmgr.server.network.socket_server import SocketServer
from offsetmgr.server.store_backends.store_backend import StoreBackend

NODE_ID = 1_000_000_001


@contextmanager
def unchanged_logging() -> Iterator[None]:
    """Restores the log's handlers, and the hooks of warnings and threads, which ``manager serve`` replaces."""
    root, logger = logging.getLogger(), logging.getLogger("offsetmgr")
    before = (root.handlers[:], logger.level, threading.excepthook)
    try:
        yield
    finally:
        root.handlers[:], logger.level, threading.excepthook = before
        logging.captureWarnings(False)


def serve_options(bootstrap: str, *arguments: str, timeout_ms: int = 20_000, **fields: Any) -> Any:
    """The options with which ``manager serve`` starts a manager on a free port. ``fields`` replaces some of them."""
    started: list[Any] = []
    where = ["--bootstrap-server", bootstrap, "--listen", "127.0.0.1:0", "--timeout", str(timeout_ms)]
    with unchanged_logging(), patch.object(manager_process, "run_manager", started.append):
        assert run(["manager", "serve", *where, *arguments]) == 0
    return replace(started[0], **fields)


class NoTopics(BackingClusterClient):
    """A cluster without topics: a name gets error 3, an id error 100."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1:1", Security(), timeout_s=0.01)

    async def cluster_id(self) -> str:
        return "offsetmgr"

    async def topics(self, names: Sequence[str] | None, ids: Sequence[Any] = ()) -> Sequence[TopicLayout]:
        return [TopicLayout(name, None, 3) for name in names or ()] + [TopicLayout(None, one, 100) for one in ids]


class StoreListener(EventLoopThread):
    """A listener in front of ``store``. It serves Metadata and ListOffsets from the brokers at ``cluster``, if given.

    With ``announce`` False, ApiVersions does not list the features beyond Kafka's protocol, like an older listener.
    """

    def __init__(
        self, store: OffsetStore, *, cluster: str | None = None, announce: bool = True, port: int = 0, **options: Any
    ) -> None:
        super().__init__()
        self.port = port
        self._store = store
        self._cluster = cluster
        self._announce = announce
        self._options = options
        self.backend: StoreBackend

    async def _start(self) -> None:
        self._upstream = BackingClusterClient(self._cluster, Security(), timeout_s=90) if self._cluster else NoTopics()
        self._service = SocketServer([])
        self.port = await self._service.listen("127.0.0.1", self.port)
        self.backend = StoreBackend(self._store, NodeAddress(NODE_ID, "127.0.0.1", self.port), **self._options)
        if not self._announce:
            self.backend.features = dict  # type: ignore[method-assign]
        await self.backend.start()
        apis = listener_apis(ApiContext(self.backend, NODE_ID, self._upstream))
        self._service.backpressure = self.backend.backpressure
        self._service.apis.update({api.key: api for api in apis})

    async def _stop(self) -> None:
        await self._service.close(1.0)
        await self.backend.close(grace_s=2.0)
        await self._upstream.close()


class ManagerListener(EventLoopThread):
    """An offset manager whose offsets topic is on the brokers at ``cluster``."""

    def __init__(self, cluster: str, topic: str, **options: Any) -> None:
        super().__init__()
        self.process = ManagerProcess(serve_options(cluster, offsets_topic=topic, **{"partitions": 8, **options}))

    async def _start(self) -> None:
        await self.process.start()
        self.port = self.process.port

    async def _stop(self) -> None:
        await self.process.close()
