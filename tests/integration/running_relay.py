"""Runs a relay in a thread of this process, in front of real brokers, and keeps its offsets in memory."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Self, TypeVar

from event_loop_thread import EventLoopThread

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.kafka.client.security import Security
from offsetmgr.manager.protocol_values import CommitRequest, CommitResponse, DeleteResponse, FetchRequest, FetchResponse
from offsetmgr.server.apis.api_context import ApiContext
from offsetmgr.server.apis.table import listener_apis
from offsetmgr.server.backend import ManagerAddress
from offsetmgr.server.network.socket_server import ServerListener, SocketServer
from offsetmgr.server.proxy.brokers import ProxyPorts
from offsetmgr.server.proxy.fenced_backend import MemberFencingBackend
from offsetmgr.server.proxy.foreign_commit_monitor import ForeignCommitMonitor
from offsetmgr.server.proxy.proxy import Proxy
from offsetmgr.server.security.authorization import Authorizer, ReservedGroups

T = TypeVar("T")

NODE_ID = 1_000_000_007


class MemoryBackend:
    """A `Backend` that keeps offsets in a dict. Tests can revoke its ownership and delay its commits."""

    def __init__(self) -> None:
        self.offsets: dict[str, dict[tuple[str, int], tuple[int, int, str]]] = {}
        self.requests: list[CommitRequest] = []
        self.code = 0
        self.epoch = 1
        self.resume_commits: asyncio.Event | None = None
        """If set, commits wait for this event."""
        self.node = ManagerAddress(NODE_ID, "127.0.0.1", 0)
        self._under_way: set[asyncio.Future[CommitResponse]] = set()

    def nodes(self) -> Sequence[ManagerAddress]:
        return [self.node]

    def coordinator(self, group: str) -> ManagerAddress | None:
        return self.node

    def ownership_error(self, group: str) -> int:
        return self.code

    def ownership_epoch(self, group: str) -> int:
        return self.epoch

    def commit(self, request: CommitRequest) -> Awaitable[CommitResponse]:
        self.requests.append(request)
        task = asyncio.ensure_future(self._commit(request))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    async def _commit(self, request: CommitRequest) -> CommitResponse:
        if self.resume_commits is not None:
            await self.resume_commits.wait()
        kept = self.offsets.setdefault(request.group, {})
        for topic, parts in request.topics:
            for part in parts:
                kept[topic, part[0]] = (part[1], part[2], part[3])
        return CommitResponse()

    async def fetch(self, request: FetchRequest) -> FetchResponse:
        kept = self.offsets.get(request.group, {})
        requested = request.topics
        if requested is None:
            names = sorted({topic for topic, _ in kept})
            requested = [(name, [n for topic, n in kept if topic == name]) for name in names]
        nothing = (-1, -1, "")
        return FetchResponse(
            topics=[(topic, [(n, *kept.get((topic, n), nothing), 0) for n in numbers]) for topic, numbers in requested]
        )

    async def delete_offsets(self, group: str, topics: Sequence[tuple[str, Sequence[int]]]) -> DeleteResponse:
        for topic, numbers in topics:
            for number in numbers:
                self.offsets.get(group, {}).pop((topic, number), None)
        return DeleteResponse()

    async def delete_group(self, group: str) -> int:
        return 0 if self.offsets.pop(group, None) else ErrorCode.GROUP_ID_NOT_FOUND

    async def list_groups(self) -> tuple[int, Sequence[str]]:
        return 0, sorted(self.offsets)

    async def wait_for_commits(self, group: str) -> None:
        if self._under_way:
            await asyncio.wait(set(self._under_way))

    def backpressure(self) -> asyncio.Future[None] | None:
        return None

    def features(self) -> Mapping[str, int]:
        return {}

    def metrics(self) -> Mapping[str, float]:
        return {}


class RunningRelay(EventLoopThread):
    """A context manager that runs a manager with --relay in a thread."""

    def __init__(
        self, bootstrap: str, reserved: ReservedGroups | None = None, authorizer: Authorizer | None = None
    ) -> None:
        super().__init__()
        self._reserved = reserved or ReservedGroups(
            "offsets-of-managers", "offsets-of-managers.managers", "offsets-of-managers-partition-"
        )
        self._authorizer = authorizer
        self.kept = MemoryBackend()
        self.real = bootstrap
        self.relay: Proxy
        self.guarded: MemberFencingBackend
        self.service: SocketServer

    def call(self, work: Callable[[], T]) -> T:
        """Calls a function in the relay's event loop."""
        done: concurrent.futures.Future[T] = concurrent.futures.Future()
        self.loop.call_soon_threadsafe(lambda: done.set_result(work()))
        return done.result(60)

    def bypassed(self) -> dict[str, Any]:
        """The groups whose commits bypassed the relay, as `ForeignCommitMonitor` reports them."""
        monitor = self.relay._monitor
        assert isinstance(monitor, ForeignCommitMonitor)
        return self.run(monitor.poll())

    async def _start(self) -> None:
        self.relay = Proxy(self.real, Security(), self._authorizer, self._reserved)
        self.guarded = self.relay.guard(self.kept)
        endpoint = ApiContext(self.guarded, NODE_ID, authorizer=self.relay.authorizer)
        apis = self.relay.apis(endpoint, listener_apis(endpoint), "127.0.0.1")
        self.service = SocketServer(apis, fallback=self.relay.fallback, backpressure=self.guarded.backpressure)
        listener = ServerListener(self.service, "127.0.0.1", 0)
        await listener.start()
        self.port = listener.port
        self.kept.node = ManagerAddress(NODE_ID, "127.0.0.1", self.port)
        await self.relay.open_ports(self.service, "127.0.0.1", ProxyPorts(0), None, 30.0)
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
