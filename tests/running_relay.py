"""Runs a relay in a thread of this process, in front of brokers, and keeps its offsets in memory."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable
from typing import Any, Self, TypeVar

from backend_listeners import NoTopics, serve_options
from event_loop_thread import EventLoopThread
from memory_listener import MemoryBackend

from offsetmgr.kafka.client.connection import Security
from offsetmgr.manager.assignment import NodeAddress
from offsetmgr.manager.results import CommitRequest, CommitResponse
from offsetmgr.server.apis.api_context import ApiContext
from offsetmgr.server.apis.table import listener_apis
from offsetmgr.server.manager_process import create_proxy
from offsetmgr.server.network.socket_server import SocketServer
from offsetmgr.server.proxy.brokers import ProxyPorts
from offsetmgr.server.security.authorization import Authorizer

T = TypeVar("T")

NODE_ID = 1_000_000_007
FORWARDED = {
    0: 9, 1: 15, 2: 11, 19: 7, 20: 6, 21: 2, 22: 5, 23: 4, 24: 3, 26: 4, 32: 4, 33: 2, 34: 2, 35: 4, 37: 3, 43: 2,
    44: 1, 45: 1, 46: 0, 48: 1, 49: 1, 55: 1, 61: 0, 65: 0, 66: 2, 71: 0, 72: 0, 74: 1, 75: 0,
}  # fmt: skip
"""The highest version of each API that the relay forwards unread."""


class RelayBackend(MemoryBackend):
    """Tests can revoke its ownership (``code`` is its error) and delay its commits until ``resume_commits`` is set."""

    kept_requests = 1_000_000

    def __init__(self) -> None:
        super().__init__()
        self.code = 0
        self.epoch = 1
        self.resume_commits: asyncio.Event | None = None
        self._under_way: set[asyncio.Future[CommitResponse]] = set()

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """The offsets of a group."""
        topics = self.offsets.get(group, {})
        return {(topic, partition): row[0] for topic, rows in topics.items() for partition, row in rows.items()}

    def ownership_error(self, group: str) -> int:
        return self.code

    def ownership_epoch(self, group: str) -> int:
        return self.epoch

    def commit(self, request: CommitRequest) -> Awaitable[CommitResponse]:
        self.note(request)
        task = asyncio.ensure_future(self._commit_later(request))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    async def _commit_later(self, request: CommitRequest) -> CommitResponse:
        if self.resume_commits is not None:
            await self.resume_commits.wait()
        return self._commit(request)

    async def wait_for_commits(self, group: str) -> None:
        if self._under_way:
            await asyncio.wait(set(self._under_way))


class RunningRelay(EventLoopThread):
    """A context manager that runs a manager with --relay in a thread."""

    def __init__(self, bootstrap: str, *, topic: str = "offsets-of-managers", authorizer: Any = None) -> None:
        super().__init__()
        self._options = serve_options(bootstrap, "--relay", "--offsets-topic", topic)
        self._authorizer = authorizer or Authorizer()
        self.kept = RelayBackend()
        self.real = bootstrap
        self.relay: Any
        self.guarded: Any
        self.service: SocketServer

    def call(self, work: Callable[[], T]) -> T:
        """Calls a function in the relay's event loop."""
        done: concurrent.futures.Future[T] = concurrent.futures.Future()
        self.loop.call_soon_threadsafe(lambda: done.set_result(work()))
        return done.result(60)

    def bypassed(self) -> dict[str, Any]:
        """The groups whose commits bypassed the relay."""
        found: dict[str, Any] = self.run(self.relay._monitor.poll())
        return found

    async def _start(self) -> None:
        self.relay = create_proxy(self._options, Security(), self._authorizer)
        self.guarded = self.relay.guard(self.kept)
        endpoint = ApiContext(self.guarded, NODE_ID, NoTopics(), authorizer=self.relay.authorizer)
        apis = self.relay.apis(endpoint, listener_apis(endpoint), "127.0.0.1")
        self.service = SocketServer(apis, fallback=self.relay.fallback, backpressure=self.guarded.backpressure)
        self.port = await self.service.listen("127.0.0.1", 0)
        self.kept.node = NodeAddress(NODE_ID, "127.0.0.1", self.port)
        await self.relay.brokers.start(self.service, "127.0.0.1", ProxyPorts(0), None, 30.0)
        self.relay.start()
        # A new cluster creates its offsets topic at the first request for a coordinator.
        deadline = asyncio.get_running_loop().time() + 120
        await self.relay._client.coordinator("any-group", deadline)

    async def _stop(self) -> None:
        await self.service.close()
        await self.relay.close()

    def __enter__(self) -> Self:
        try:
            return super().__enter__()
        except BaseException:  # a test of a failed start continues in this process
            self.__exit__()
            raise
