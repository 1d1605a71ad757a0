"""One manager process: the backend, the listener, the metrics, and their shutdown.

Order of the start: the ports are bound, the topic exists and is suitable, then the process joins the managers' group,
so a process with assigned shard groups is reachable. Order of the shutdown: the process leaves the group (so that
others get the shard groups at once), commits in flight end, then clients are disconnected.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import ssl
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from offsetmgr.core.errors import MalformedData, NotCoordinator, OffsetMgrError, OtherCluster, UsageError
from offsetmgr.core.offset_store import OffsetStore, PartitionKinds
from offsetmgr.kafka.client.backing_cluster import BackingClusterClient
from offsetmgr.kafka.client.manager_api import FIRST_MANAGER_ID
from offsetmgr.kafka.client.security import Security
from offsetmgr.kafka.protocol.primitives import DECODING
from offsetmgr.kafka.protocol.releases import FENCES_WRITERS
from offsetmgr.manager.node.manager_node import ManagerNode
from offsetmgr.server.apis.admin_api import inspection_api
from offsetmgr.server.apis.api_context import ApiContext
from offsetmgr.server.apis.table import endpoint_apis
from offsetmgr.server.backend import Backend, ManagerAddress
from offsetmgr.server.manager_backend import ManagerBackend
from offsetmgr.server.metrics import CONTENT_TYPE, Metrics
from offsetmgr.server.network.http import HttpEndpoint, Page, text
from offsetmgr.server.network.socket_server import ServerListener, SocketServer
from offsetmgr.server.process.config import ServeOptions
from offsetmgr.server.process.option_objects import _authorizer, _login, _relay, _settings, _tls
from offsetmgr.server.proxy.brokers import ProxyPorts
from offsetmgr.server.proxy.proxy import Proxy
from offsetmgr.server.security.authorization import (
    Operation,
)
from offsetmgr.stores.cross_cluster_check import CrossClusterCheck

if TYPE_CHECKING:
    from offsetmgr.server.storefront.store_backend import StoreBackend

_log = logging.getLogger(__name__)

_GRACE_S: Final = 2.0
"""Seconds that running requests have after the shards were handed over."""
_LOOK_AGAIN_S: Final = 1.0
"""Seconds between attempts to reach a store that could not be reached at the start."""
_OTHER_CLUSTER: Final = (
    "clients would take a number of one log for a record of another; name brokers of the store's cluster, or, if the "
    "topics of both clusters are equal copies (same records at the same offsets), add --translate none"
)


def run_manager(options: ServeOptions) -> None:
    """Runs a manager until SIGINT or SIGTERM; SIGHUP only logs a line.

    Raises `OffsetMgrError` if it cannot start.
    """
    before = signal.getsignal(signal.SIGHUP)
    try:
        asyncio.run(_serve_until_told(options))
    finally:
        signal.signal(signal.SIGHUP, before)  # the loop restores the default handler, which ends the process


async def _serve_until_told(options: ServeOptions) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, _log.warning, "SIGHUP does nothing: settings are read at the start only")
    process = ManagerProcess(options)
    starting = asyncio.create_task(process.start())
    told = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({starting, told}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            await told
            what = "shards are handed over" if options.store is None else "requests under way are finished"
            _log.info("stopping: %s (again to interrupt at once)", what)
        else:
            await _interrupted(starting)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
    finally:
        told.cancel()
        await process.close()
    _log.info("stopped")


async def _interrupted(starting: asyncio.Task[None]) -> None:
    """Cancels a start that was interrupted; afterwards the opened resources are known and can be closed."""
    starting.cancel()
    await asyncio.wait({starting})
    if not starting.cancelled():
        starting.result()


class ManagerProcess:
    """Use it in one event loop."""

    def __init__(self, options: ServeOptions) -> None:
        self._options = options
        self._open = AsyncExitStack()
        self._started = time.time()
        self._cluster_id: str | None = None
        self._ready = False
        self._managing: ManagerNode | None = None
        self._relay: Proxy | None = None
        self._front: StoreBackend | None = None
        self._own_offsets_there = False
        """Whether the store is the relayed brokers' own groups; members' commits are then forwarded to them."""
        self.listener: ServerListener | None = None

    async def start(self) -> None:
        """Returns when clients are served, or will be as soon as the shards are loaded. Raises `OffsetMgrError`."""
        options = self._options
        authentication, authorizer = _login(options), _authorizer(options)
        DECODING.tags, DECODING.string_bytes = options.limits.tags, options.limits.name_bytes
        tls = _tls(options)
        security = Security.of(options.connection.kafka)
        upstream = BackingClusterClient(options.bootstrap, security, timeout=options.connection.timeout_ms / 1000)
        self._open.push_async_callback(upstream.close)
        if options.store is None:
            await upstream.require(FENCES_WRITERS)
        self._cluster_id = await upstream.cluster_id()
        relay = self._relay = _relay(options, security, authorizer)
        if relay is not None:
            self._open.push_async_callback(relay.close)
        # The port first: the other managers learn its number.
        backend = _LateBound()
        metrics = Metrics(lambda: {**backend.metrics(), **service.metrics()}) if options.metrics_listen else None
        service = SocketServer(
            [],
            limits=options.limits,
            requires_login=authentication is not None,
            backpressure=backend.backpressure,
            fallback=relay.fallback if relay else None,
            observe=metrics.observe if metrics else None,
        )
        listener = ServerListener(service, *options.listen, tls=tls)
        await listener.start()
        self.listener = listener
        self._open.push_async_callback(service.close, _GRACE_S)
        # All ports before the other managers rebalance for this one, so that a port in use is detected first.
        if metrics is not None:
            await self._start_figures(metrics)
        if relay is not None:
            await self._open_relay_ports(relay, service, listener, tls)
        host, port = options.advertise or (options.listen[0], listener.port)
        node_id = await self._start_backend(backend, host, port)
        if relay is not None:
            backend.now = relay.guard(backend.now, watch=not self._own_offsets_there)
        asked = authorizer if relay is None else relay.authorizer
        endpoint = ApiContext(backend.now, node_id, upstream, asked, authentication)
        apis = endpoint_apis(endpoint)
        if relay is not None:
            apis = relay.apis(endpoint, apis, host)

        def may_look(principal: str | None, operation: Operation) -> bool:
            return authorizer.group(principal or "", operation, "*")

        apis.append(inspection_api(self, may_look))
        if relay is not None:
            relay.start()
        service.apis.update({api.key: api for api in apis})
        self._ready = True
        what = {"listen": f"{options.listen[0]}:{listener.port}", "advertised": f"{host}:{port}", "node": node_id}
        _log.info("serving", extra=what)

    async def _open_relay_ports(
        self, relay: Proxy, service: SocketServer, listener: ServerListener, tls: ssl.SSLContext | None
    ) -> None:
        options = self._options
        asked = options.relay_ports
        ports = ProxyPorts(listener.port + 1) if asked is None else ProxyPorts(asked.start, len(asked))
        await relay.open_ports(service, options.listen[0], ports, tls, options.connection.timeout_ms / 1000)
        _log.info("relaying", extra={"ports": {str(node): port for node, port in relay.ports().items()}})

    async def close(self) -> None:
        """Hands the shards over and ends. May be called in any state of the start."""
        self._ready = False
        await self._open.aclose()

    # --- the backend ---------------------------------------------------------------------------------

    async def _start_backend(self, backend: _LateBound, host: str, port: int) -> int:
        """Starts the backend; returns the node id of this process."""
        if self._options.store is not None:
            node = ManagerAddress(FIRST_MANAGER_ID, host, port)
            await self._start_store(backend, node)
            return node.node_id
        return await self._start_manager(backend, host, port)

    async def _start_store(self, backend: _LateBound, node: ManagerAddress) -> None:
        from offsetmgr.server.storefront.store_backend import StoreBackend
        from offsetmgr.stores.uri import open_store

        assert self._options.store is not None
        # No call may take longer than the clients that wait for it.
        timeout_ms = min(self._options.connection.timeout_ms, round(self._options.commit_timeout * 1000))
        store = open_store(self._options.store, replace(self._options.connection, timeout_ms=timeout_ms))
        check_servable(store)
        if store.capabilities.partitions is PartitionKinds.OF_BROKERS:
            raise UsageError(
                f"store {store.uri}",
                "holds byte positions of Kafka 0.7, which Kafka's clients would take for offsets",
                "migrate them first: migrate plan --partition-map",
            )
        if self._relay is not None:
            self._own_offsets_there = await asyncio.to_thread(_is_in, store, self._cluster_id)
        front = StoreBackend(store, node, commit_timeout=self._options.commit_timeout)
        try:
            await self._compare(front, store)
        except OffsetMgrError as error:
            if not error.retriable:
                raise
            front.refusal = f"the store {store.uri} fails: {error}"
            _log.warning("the store fails", extra={"store": store.uri, "error": str(error)})
            comparing = asyncio.get_running_loop().create_task(self._compare_later(front, store))
            self._open.callback(comparing.cancel)
        front.start()
        self._front = front
        self._open.push_async_callback(front.close)
        backend.now = front

    async def _compare(self, front: StoreBackend, store: OffsetStore) -> None:
        """Checks whether the store's offsets belong to the logs whose offsets the clients commit. Raises
        `OtherCluster`, and what the store raises."""
        from offsetmgr.stores.kafka import KafkaStore

        options = self._options
        with KafkaStore(options.bootstrap, options.connection) as brokers:
            crossing = await asyncio.to_thread(
                CrossClusterCheck, brokers, store, options.translate, ("cluster of the topics", "store")
            )
        if crossing.other_cluster and options.translate is None:
            why = f"its offsets belong to another Kafka cluster than the topics: {crossing.comparison.how}"
            raise OtherCluster(f"store {store.uri}", why, _OTHER_CLUSTER)
        front.keeps_epochs = crossing.comparison.keeps_epochs
        _log.info("numbers", extra={"store": store.uri, "relation": crossing.text()})

    async def _compare_later(self, front: StoreBackend, store: OffsetStore) -> None:
        """For a store that could not be reached at the start: no client is served until its cluster is known."""
        while front.refusal is not None:
            await asyncio.sleep(_LOOK_AGAIN_S)
            try:
                await self._compare(front, store)
            except OffsetMgrError as error:
                front.refusal = f"the store {store.uri} fails: {error}"
                if not error.retriable:
                    _log.error("no client is served", extra={"store": store.uri, "error": str(error)})
                    return
            else:
                front.refusal = None
                _log.info("the store answers; clients are served", extra={"store": store.uri})

    async def _start_manager(self, backend: _LateBound, host: str, port: int) -> int:
        managing = self._managing = ManagerNode(_settings(self._options, self._relay), host, port)
        self._open.push_async_callback(managing.close)
        await managing.open()
        backend.now = ManagerBackend(
            managing.runtime, managing.ownership, managing.topic.partitions, managing.topic.name
        )
        return (await managing.join()).node_id

    # --- metrics and status --------------------------------------------------------------------------

    async def _start_figures(self, metrics: Metrics) -> None:
        assert self._options.metrics_listen is not None
        pages = {
            "/metrics": lambda: Page(200, CONTENT_TYPE, metrics.text()),
            "/health": lambda: text(200, "alive"),
            "/ready": self._readiness,
        }
        endpoint = HttpEndpoint(*self._options.metrics_listen, pages)
        port = await endpoint.start()
        self._open.push_async_callback(endpoint.close)
        _log.info("figures", extra={"listen": f"{self._options.metrics_listen[0]}:{port}"})

    def _readiness(self) -> Page:
        if not self._ready:
            return text(503, "starting or stopping")
        if self._managing is not None and not self._managing.ownership.valid():
            return text(503, "no lease: the managers' group cannot be reached")
        if self._managing is not None and self._managing.topic_fault:
            return text(503, self._managing.topic_fault)
        if self._front is not None and (trouble := self._front.trouble()):
            return text(503, trouble)
        waiting = [s for s in self.status()["shards"] if s["role"] == "owner" and s["state"] != "ACTIVE"]
        if waiting:
            why = next((f"; shard {s['partition']}: {s['last_error']}" for s in waiting if s["last_error"]), "")
            return text(503, f"{len(waiting)} shards are not served yet{why}")
        return text(200, "ready")

    def status(self) -> dict[str, Any]:
        """See `AdminBackend.status`."""
        managing = self._managing
        shards = [] if managing is None else [_shard_json(s._asdict()) for s in managing.runtime.status()]
        alarms = [] if managing is None else managing.alarms
        if self._front is not None and (trouble := self._front.trouble()):
            alarms.append(trouble)
        if self._relay is not None:
            alarms.extend(self._relay.alarms())
        return {
            "cluster_id": self._cluster_id,
            "store": self._options.store or f"topic {self._options.topic}",
            "record_format": self._options.record_format,
            "started": int(self._started * 1000),
            "lease": managing is None or managing.ownership.valid(),
            "relay": self._options.relay,
            "shards": shards,
            "alarms": alarms,
        }

    def dump(self, partition: int, after: Sequence[Any] | None, most: int) -> Sequence[Mapping[str, Any]]:
        """See `AdminBackend.dump`."""
        if self._managing is None or not 0 <= partition < self._options.partitions:
            raise NotCoordinator(f"shard {partition}", "no shard of this number is here")
        found = self._managing.runtime.dump(partition)
        if after is not None:
            try:
                behind = (str(after[0]), str(after[1]), int(after[2]))
            except (IndexError, ValueError, TypeError):
                raise MalformedData("dump", "after is [group, topic, partition]") from None
            found = [entry for entry in found if tuple(entry[0]) > behind]
        return [{**key._asdict(), **value._asdict()} for key, value in found[:most]]


class _LateBound:
    """A backend that is created after the objects that use it."""

    now: Backend

    def backpressure(self) -> asyncio.Future[None] | None:
        return self.now.backpressure()

    def metrics(self) -> Mapping[str, float]:
        return self.now.metrics() if hasattr(self, "now") else {}


def check_servable(store: OffsetStore) -> None:
    """Raises `UsageError` for a file, which is read and written as a whole and cannot serve commits."""
    if store.capabilities.conditional == "file":
        raise UsageError(
            f"store {store.uri}",
            "is a file: commits of clients cannot be kept in one",
            "serve zookeeper://, kafka:// or dual:; bring a file's offsets there with offsets import",
        )


def _is_in(store: OffsetStore, cluster_id: str | None) -> bool:
    """Whether the store, or a part of it, is the native groups of this cluster. Raises `OffsetMgrError`."""
    from offsetmgr.stores.dual import DualStore

    parts = (store.primary, store.secondary) if isinstance(store, DualStore) else (store,)
    return any(part.uri.startswith("kafka:") and part.identity().id == cluster_id for part in parts)


def _shard_json(status: dict[str, Any]) -> dict[str, Any]:
    return status | {
        "role": status["role"].value,
        "state": status["state"].upper(),
        "since": int(status["since"] * 1000),
    }
