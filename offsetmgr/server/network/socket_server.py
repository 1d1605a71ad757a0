"""`SocketServer`: the table of APIs, the limits, the connections and the counters of all ports of one manager.

`ServerListener` is one port. A port represents either the manager itself (node id None) or, with the relay, a real
broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import ssl
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from offsetmgr.config.manager_settings import ManagerSettings
from offsetmgr.core.errors import InvalidRequest, Unreachable
from offsetmgr.kafka.protocol.releases import ApiKey
from offsetmgr.server.network.api import Api, ApiRequest, Concurrency, Handler
from offsetmgr.server.network.connection import ServerConnection

_log = logging.getLogger(__name__)

_NEVER_FLEXIBLE: Final = 32767
_OTHER_FILES: Final = 500
"""Open files that are not clients' connections: connections to brokers, files of libraries."""
_SWEEP_S: Final = 0.5
_CLOSE_POLL_S: Final = 0.01
"""While the server closes, it checks at this interval (in seconds) whether the running requests have ended."""
_FAILED_LOGINS_EVERY_S: Final = 10.0
"""Minimum time in seconds between two warnings about failed logins. The limit is necessary because any client can cause
failed logins."""
_METRIC_LABELS: Final = {Concurrency.COMMITS: "commit", Concurrency.FETCHES: "fetch", Concurrency.FORWARDED: "relayed"}


class SocketServer:
    """The state that all ports of one manager share. Use it in one event loop. `close` closes all ports and
    connections."""

    def __init__(
        self,
        apis: Sequence[Api],
        *,
        settings: ManagerSettings | None = None,
        requires_login: bool = False,
        fallback: Handler | None = None,
        backpressure: Callable[[], asyncio.Future[None] | None] = lambda: None,
        observe: Callable[[str, float], None] | None = None,
    ) -> None:
        """``apis``: if several APIs have the same key, the last one is used. ``backpressure``: see
        `Backend.backpressure`. ``observe``: receives the kind (``commit``, ``fetch``, ``relayed`` or ``other``) and the
        duration in seconds of every request."""
        self.apis: dict[int, Api] = {api.key: api for api in apis}
        self.settings = settings or ManagerSettings()
        self.requires_login = requires_login
        self.backpressure = backpressure
        self.connections: set[ServerConnection] = set()
        self.listeners: list[ServerListener] = []
        self._fallback: Api | None = None
        if fallback is not None:
            self._fallback = Api(-1, "Forwarded", 0, 0, _NEVER_FLEXIBLE, fallback, Concurrency.FORWARDED)
        self.held_bytes = 0
        """Size of the unanswered requests of all connections, in bytes."""
        self._observe = observe
        self._by_address: Counter[str] = Counter()
        self._counters: Counter[str] = Counter()
        self._unlogged_failures = 0
        """Failed logins since the last warning."""
        self._logged_at = -float("inf")
        self._sweeper: asyncio.TimerHandle | None = None

    def versions(self) -> Mapping[int, tuple[int, int]]:
        """Returns the lowest and the highest version of each API, as in ApiVersions."""
        return {api.key: (api.min_version, api.max_version) for api in self.apis.values()}

    def route(self, request: ApiRequest) -> Api:
        """Returns the API that serves the request. Raises `InvalidRequest` if none does."""
        api = self.apis.get(request.api_key)
        # ApiVersions is handled in every version (KIP-511).
        known = api is not None and (
            api.min_version <= request.version <= api.max_version or api.key == ApiKey.API_VERSIONS
        )
        if api is not None and known:
            return api
        if self._fallback is not None:
            return self._fallback
        what = api.name if api is not None else f"API {request.api_key}"
        raise InvalidRequest(f"{what} version {request.version}", "is not supported")

    # --- called by connections -----------------------------------------------------------------------

    def accept(self, connection: ServerConnection) -> bool:
        """Registers a new connection; returns whether the limits allow it."""
        self._counters["connections_total"] += 1
        self.connections.add(connection)
        self._by_address[connection.peer] += 1
        if (
            len(self.connections) > self.settings.max_connections
            or self._by_address[connection.peer] > self.settings.max_connections_per_address
        ):
            self._counters['connections_cut_total{why="too many"}'] += 1
            return False
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)
        return True

    def on_closed(self, connection: ServerConnection) -> None:
        """Removes a connection that has ended."""
        if connection in self.connections:
            self.connections.discard(connection)
            self._by_address[connection.peer] -= 1
            if not self._by_address[connection.peer]:
                del self._by_address[connection.peer]

    def on_rejected(self, connection: ServerConnection, error: InvalidRequest) -> None:
        """Counts a connection that is closed because of invalid input."""
        self._counters['connections_cut_total{why="invalid request"}'] += 1
        _log.debug("connection of %s closed: %s", connection.peer, error)

    def login_failed(self, connection: ServerConnection, mechanism: str) -> None:
        """Counts a failed login, and logs at most one warning in 10 seconds. The warning contains no user name, because
        users sometimes type the password instead of the user name."""
        self._counters[f'logins_failed_total{{mechanism="{mechanism}"}}'] += 1
        self._unlogged_failures += 1
        now = asyncio.get_running_loop().time()
        if now - self._logged_at >= _FAILED_LOGINS_EVERY_S:
            what = {"peer": connection.peer, "mechanism": mechanism, "failed": self._unlogged_failures}
            self._logged_at, self._unlogged_failures = now, 0
            _log.warning("logins failed", extra=what)

    def close_for_memory(self, connection: ServerConnection) -> None:
        """Closes a connection because requests use too much memory."""
        self._counters['connections_cut_total{why="memory"}'] += 1
        connection.abort()

    @property
    def memory_exhausted(self) -> bool:
        return self.held_bytes > self.settings.max_held_bytes

    def answered(self, request: ApiRequest) -> None:
        """Records the latency of a request whose response is being sent."""
        if self._observe is not None and request.api is not None:
            self._observe(
                _METRIC_LABELS.get(request.api.concurrency, "other"), asyncio.get_running_loop().time() - request.since
            )

    def metrics(self) -> Mapping[str, float]:
        """Values for the metrics endpoint; see `Backend.metrics`."""
        return {**self._counters, "connections": len(self.connections), "request_bytes_held": self.held_bytes}

    # --- closing connections -------------------------------------------------------------------------

    def _sweep(self) -> None:
        """Closes connections that have been idle, slow or not logged in for too long."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connection in list(self.connections):
            why = self._overdue(connection, now)
            if why is not None:
                self._counters[f'connections_cut_total{{why="{why}"}}'] += 1
                connection.abort()
        self._sweeper = loop.call_later(_SWEEP_S, self._sweep) if self.connections else None

    def _overdue(self, connection: ServerConnection, now: float) -> str | None:
        settings = self.settings
        if connection.principal is None and now - connection.opened_at > settings.login_timeout_s:
            return "no login"
        if (
            connection.partial_since is not None
            and now - connection.partial_since > settings.request_timeout_s + connection.transfer_allowance_s
        ):
            return "slow request"
        if connection.closed and now - connection.last_received > settings.request_timeout_s:
            return "answers not taken"
        if now - max(connection.last_received, connection.last_progress(now)) > settings.idle_timeout_s:
            if connection.stalled_since is not None:
                return "answers not taken"
            if connection.idle:
                return "idle"
        return None

    async def close(self, grace_s: float = 0.0) -> None:
        """Stops accepting connections, waits at most ``grace_s`` seconds for running requests, and closes all
        connections."""
        for listener in self.listeners:
            listener.stop()
        loop = asyncio.get_running_loop()
        end = loop.time() + grace_s
        while any(connection.busy for connection in self.connections) and loop.time() < end:
            await asyncio.sleep(_CLOSE_POLL_S)
        for connection in list(self.connections):
            connection.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for listener in self.listeners:
            await listener.wait_closed()


class ServerListener:
    """One listening port of a server."""

    def __init__(
        self,
        service: SocketServer,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        node_id: int | None = None,
    ) -> None:
        """If ``port`` is 0, the system selects a free port. After the start, the attribute `port` contains the selected
        port. ``node_id``: the broker that this port represents."""
        self.service = service
        self.host = host
        self.port = port
        self.node_id = node_id
        self._tls = tls
        self._server: asyncio.Server | None = None
        service.listeners.append(self)

    async def start(self) -> None:
        """Starts to listen. Raises `Unreachable` if the address cannot be bound."""
        _raise_file_limit(self.service.settings.max_connections)
        try:
            self._server = await asyncio.get_running_loop().create_server(
                lambda: ServerConnection(self.service, self),
                self.host,
                self.port,
                ssl=self._tls,
                ssl_handshake_timeout=self.service.settings.login_timeout_s if self._tls else None,
                ssl_shutdown_timeout=1.0 if self._tls else None,
                backlog=512,
            )
        except OSError as error:
            why, hint = listen_error(error), "choose another address, or stop the process that listens there"
            raise Unreachable(f"listener {self.host}:{self.port}", why, hint) from None
        self.port = self._server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def wait_closed(self) -> None:
        if self._server is not None:
            with contextlib.suppress(OSError):
                await self._server.wait_closed()


def listen_error(error: OSError) -> str:
    """The system's error text. asyncio's own text repeats the address."""
    # Negative error numbers come from the name resolver, not from the operating system.
    return os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)


def _raise_file_limit(connections: int) -> None:
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
