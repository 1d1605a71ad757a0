"""`ManagerProcess`: starts and stops the backend, the listener, the relay and the metrics of one manager.

Start: the process binds its ports, creates or checks the offsets topic, and only then joins the managers' group, so
that clients can reach the process when it is assigned shard groups. Shutdown: the process completes the commits in
flight and leaves the group, so that its shard groups are reassigned at once. Then the process disconnects its clients.
With ``--store``, the process serves that store instead of an offsets topic, and joins no group.
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

from offsetmgr.config.manager_settings import ManagerSettings
from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import (
    ConfigError,
    NotCoordinator,
    OffsetMgrError,
    OtherCluster,
    UsageError,
)
from offsetmgr.core.offset_store import OffsetStore, PartitionKinds
from offsetmgr.core.retry import Backoff, Retries
from offsetmgr.kafka.client.backing_cluster import BackingClusterClient
from offsetmgr.kafka.client.connection import Security
from offsetmgr.kafka.client.managers import FIRST_MANAGER_ID
from offsetmgr.kafka.protocol.schema_codec import DECODING
from offsetmgr.manager.assignment import NodeAddress
from offsetmgr.manager.group_secret import GroupSecret, load_group_secret
from offsetmgr.manager.log.kafka import transactional_id_prefix
from offsetmgr.manager.node.manager_node import ManagerNode
from offsetmgr.manager.ownership import managers_group
from offsetmgr.server.apis.admin_api import admin_api
from offsetmgr.server.apis.api_context import ApiContext
from offsetmgr.server.apis.table import listener_apis
from offsetmgr.server.backend import Backend
from offsetmgr.server.manager_backend import ManagerBackend
from offsetmgr.server.metrics import CONTENT_TYPE, Metrics
from offsetmgr.server.network.http import HttpEndpoint, Page, text
from offsetmgr.server.network.ports import server_tls
from offsetmgr.server.network.socket_server import SocketServer
from offsetmgr.server.proxy.brokers import ProxyPorts
from offsetmgr.server.proxy.proxy import Proxy
from offsetmgr.server.security.authentication import MECHANISMS, Authentication
from offsetmgr.server.security.authorization import (
    Authorizer,
    ReservedGroups,
    load_rules,
)
from offsetmgr.server.security.credentials import DIGESTS, load_credentials
from offsetmgr.stores.cross_cluster_check import CrossClusterCheck

if TYPE_CHECKING:
    from offsetmgr.server.store_backends.store_backend import StoreBackend

_log = logging.getLogger(__name__)

_CLOSE_GRACE_S: Final = 2.0
"""Maximum time in seconds for which the process waits for running requests after it has handed over its shards."""
_STORE_BACKOFF: Final = Backoff.fixed(1.0)
"""The pauses between attempts to reach a store that was unreachable at the start."""
_OTHER_CLUSTER_HINT: Final = Advice(
    "clients would read other records than those whose offsets were committed; name brokers of the store's cluster, "
    "or, if the topics of both clusters are equal copies (same records at the same offsets), add {translate=none}"
)


def run_manager(settings: ManagerSettings) -> None:
    """Runs a manager until SIGINT or SIGTERM. On SIGHUP, the manager only logs that SIGHUP has no effect.

    Raises `OffsetMgrError` if the manager cannot start.
    """
    before = signal.getsignal(signal.SIGHUP)
    try:
        asyncio.run(_serve_until_signalled(settings))
    finally:
        signal.signal(signal.SIGHUP, before)  # asyncio restores the default handler, which would end the process


async def _serve_until_signalled(settings: ManagerSettings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(
        signal.SIGHUP,
        _log.warning,
        "SIGHUP does nothing: settings are read at the start only",
    )
    process = ManagerProcess(settings)
    starting = asyncio.create_task(process.start())
    stop_requested = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({starting, stop_requested}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            await stop_requested
            what = "handing shards over" if settings.store is None else "finishing requests in flight"
            _log.info("stopping: %s (again to interrupt at once)", what)
        else:
            starting.cancel()
            await asyncio.wait({starting})  # afterwards all opened resources can be closed
            if not starting.cancelled():
                starting.result()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
    finally:
        stop_requested.cancel()
        await process.close()
    _log.info("stopped")


class ManagerProcess:
    """One manager process. Use it in one event loop."""

    def __init__(self, settings: ManagerSettings) -> None:
        self._settings = settings
        self._resources = AsyncExitStack()
        self._started = time.time()
        self._cluster_id: str | None = None
        self._ready = False
        self._secret: GroupSecret
        self._node: ManagerNode | None = None
        self._relay: Proxy | None = None
        self._backend: Backend | None = None
        self._store_backend: StoreBackend | None = None
        self._store_is_relayed_cluster = False
        """Whether the store, or one of the two stores of a dual store, is the Kafka cluster behind the relay. If the
        value is true, the commits of group members are stored by this cluster's own coordinators."""
        self.port = 0
        """The port that the process listens on; 0 before it does."""

    async def start(self) -> None:
        """Starts the process, which then serves each shard as soon as the shard is loaded. Raises `OffsetMgrError`."""
        settings = self._settings
        authentication, authorizer = load_authentication(settings), load_authorizer(settings)
        self._secret = load_group_secret(managers_group(settings.offsets_topic), settings.managers_secret)
        DECODING.tags, DECODING.string_bytes = settings.max_tags, settings.max_name_bytes
        tls = load_tls(settings)
        security = Security.of(settings.connection.kafka)
        upstream = BackingClusterClient(settings.bootstrap, security, timeout_s=settings.connection.timeout_ms / 1000)
        self._resources.push_async_callback(upstream.close)
        self._cluster_id = await upstream.cluster_id()
        relay = self._relay = create_proxy(settings, security, authorizer)
        if relay is not None:
            self._resources.push_async_callback(relay.close)
        # Bind the port first, because the process announces its port number to the other managers.
        metrics = None
        if settings.metrics_listen:
            metrics = Metrics(
                lambda: {
                    **(self._backend.metrics() if self._backend else {}),
                    **service.metrics(),
                    "alarms": len(self._alarms()),
                }
            )
        service = SocketServer(
            [],
            settings=settings,
            requires_login=authentication is not None,
            fallback=relay.fallback if relay else None,
            observe=metrics.observe if metrics else None,
        )
        self.port = await service.listen(*settings.listen, tls=tls)
        self._resources.push_async_callback(service.close, _CLOSE_GRACE_S)
        # Bind all ports before joining, so that a port in use does not cause a rebalance of the managers.
        if metrics is not None:
            await self._start_metrics(metrics)
        if relay is not None:
            await self._open_relay_ports(relay, service, tls)
        host, port = settings.advertise or (settings.listen[0], self.port)
        start_backend = self._start_manager if settings.store is None else self._start_store
        backend, node_id = await start_backend(host, port)
        if relay is not None:
            backend = relay.guard(backend, watch=not self._store_is_relayed_cluster)
        self._backend, service.backpressure = backend, backend.backpressure
        api_authorizer = authorizer if relay is None else relay.authorizer
        context = ApiContext(backend, node_id, upstream, api_authorizer, authentication)
        apis = listener_apis(context)
        if relay is not None:
            apis = relay.apis(context, apis, host)
        apis.append(admin_api(self.status, self.dump, authorizer))
        if relay is not None:
            relay.start()
        service.apis.update({api.key: api for api in apis})
        self._ready = True
        what = {"listen": f"{settings.listen[0]}:{self.port}", "advertised": f"{host}:{port}", "node": node_id}
        _log.info("serving", extra=what)

    async def _open_relay_ports(self, relay: Proxy, service: SocketServer, tls: ssl.SSLContext | None) -> None:
        settings = self._settings
        port_range = settings.relay_ports
        ports = ProxyPorts(self.port + 1) if port_range is None else ProxyPorts(port_range.start, len(port_range))
        await relay.brokers.start(service, settings.listen[0], ports, tls, settings.connection.timeout_ms / 1000)
        _log.info("relaying", extra={"ports": {str(node): port for node, port in relay.brokers.ports().items()}})

    async def close(self) -> None:
        """Hands the shards over and closes everything. May be called at any stage of the start."""
        self._ready = False
        await self._resources.aclose()

    # --- the backend ---------------------------------------------------------------------------------

    async def _start_store(self, host: str, port: int) -> tuple[Backend, int]:
        """Starts the backend of the store; returns the backend and the node id of this process."""
        from offsetmgr.server.store_backends.store_backend import StoreBackend
        from offsetmgr.stores.uri import open_store

        assert self._settings.store is not None
        # No call of the store may take longer than clients wait for the response.
        timeout_ms = min(self._settings.connection.timeout_ms, round(self._settings.commit_timeout_s * 1000))
        store = open_store(self._settings.store, replace(self._settings.connection, timeout_ms=timeout_ms))
        check_servable(store)
        if store.capabilities.partitions is PartitionKinds.OF_BROKERS:
            raise UsageError(
                f"store {store.uri}",
                "holds byte positions of Kafka 0.7, which Kafka clients would use as offsets",
                Advice("migrate them first: migrate plan {partition_map}"),
            )
        if self._relay is not None:
            self._store_is_relayed_cluster = await asyncio.to_thread(_stores_in_cluster, store, self._cluster_id)
        node = NodeAddress(FIRST_MANAGER_ID, host, port)
        store_backend = StoreBackend(store, node, commit_timeout_s=self._settings.commit_timeout_s)
        try:
            await self._check_cluster(store_backend, store)
        except OffsetMgrError as error:
            if not error.retriable:
                raise
            store_backend.unavailable_reason = f"the store {store.uri} fails: {error}"
            _log.warning(
                "the store fails; no client is served until it responds",
                extra={"store": store.uri, "error": str(error)},
            )
            retrying = asyncio.get_running_loop().create_task(self._retry_cluster_check(store_backend, store))
            self._resources.callback(retrying.cancel)
        store_backend.start()
        self._store_backend = store_backend
        self._resources.push_async_callback(store_backend.close)
        return store_backend, node.node_id

    async def _check_cluster(self, store_backend: StoreBackend, store: OffsetStore) -> None:
        """Checks that the store's offsets belong to the Kafka cluster that the clients consume from. Raises
        `OtherCluster`, or the store's error."""
        from offsetmgr.stores.kafka import KafkaStore

        settings = self._settings
        with KafkaStore(settings.bootstrap, settings.connection) as brokers:
            check = await asyncio.to_thread(
                CrossClusterCheck, brokers, store, settings.translate, ("cluster of the topics", "store")
            )
        if check.refused:
            why = check.why("its offsets belong to another Kafka cluster than the topics")
            raise OtherCluster(f"store {store.uri}", why, _OTHER_CLUSTER_HINT)
        store_backend.keeps_epochs = check.comparison.keeps_epochs
        _log.info("compared the clusters of store and topics", extra={"store": store.uri, "relation": check.text()})

    async def _retry_cluster_check(self, store_backend: StoreBackend, store: OffsetStore) -> None:
        """Repeats the check of a store that was unreachable at the start, until the store responds. No client is served
        before the check has succeeded."""
        retries = Retries(backoff=_STORE_BACKOFF)
        while store_backend.unavailable_reason is not None and await retries.pause():
            try:
                await self._check_cluster(store_backend, store)
            except OffsetMgrError as error:
                store_backend.unavailable_reason = f"the store {store.uri} fails: {error}"
                if not error.retriable:
                    _log.error(
                        "the store cannot be served; fix the cause and restart",
                        extra={"store": store.uri, "error": str(error)},
                    )
                    return
            else:
                store_backend.unavailable_reason = None
                _log.info("the store responds; clients are served", extra={"store": store.uri})

    async def _start_manager(self, host: str, port: int) -> tuple[Backend, int]:
        manager_node = self._node = ManagerNode(
            replace(self._settings, own_process=True),
            host,
            port,
            members=None if self._relay is None else self._relay.members,
        )
        self._resources.push_async_callback(manager_node.close)
        await manager_node.open(self._secret)
        if warning := self._secret.warning:
            _log.warning(warning, extra={"group": manager_node.group})
        backend = self._backend = ManagerBackend(manager_node)  # set before the join, so that the metrics show it
        return backend, (await manager_node.join()).node_id

    # --- metrics and status --------------------------------------------------------------------------

    async def _start_metrics(self, metrics: Metrics) -> None:
        assert self._settings.metrics_listen is not None
        pages = {
            "/metrics": lambda: Page(200, CONTENT_TYPE, metrics.text()),
            "/health": lambda: text(200, "alive"),
            "/ready": self._readiness,
        }
        endpoint = HttpEndpoint(*self._settings.metrics_listen, pages)
        port = await endpoint.start()
        self._resources.push_async_callback(endpoint.close)
        _log.info("serving metrics", extra={"listen": f"{self._settings.metrics_listen[0]}:{port}"})

    def _readiness(self) -> Page:
        if not self._ready:
            return text(503, "starting or stopping")
        if self._node is not None and not self._node.ownership.valid():
            why = self._node.ownership.exclusion_reason or "the managers' group cannot be reached"
            return text(503, f"no lease: {why}")
        if self._node is not None and self._node.topic_fault:
            return text(503, self._node.topic_fault)
        if self._store_backend is not None and (failure := self._store_backend.failure()):
            return text(503, failure)
        if self._node is not None and (unsaved := self._node.runtime.restoring | self._node.runtime.too_large.keys()):
            return text(503, f"{len(unsaved)} shards have records only in memory")
        waiting = [s for s in self.status()["shards"] if s["role"] == "owner" and s["state"] != "ACTIVE"]
        if waiting:
            why = next((f"; shard {s['partition']}: {s['last_error']}" for s in waiting if s["last_error"]), "")
            return text(503, f"{len(waiting)} shards are not served yet{why}")
        return text(200, "ready")

    def status(self) -> dict[str, Any]:
        """Returns the data that `manager status` shows for this process, as JSON-compatible types."""
        manager_node = self._node
        shards = [] if manager_node is None else [_shard_json(s._asdict()) for s in manager_node.runtime.status()]
        return {
            "cluster_id": self._cluster_id,
            "store": self._settings.store or f"topic {self._settings.offsets_topic}",
            "record_format": self._settings.record_format,
            "started": int(self._started * 1000),
            "lease": manager_node is None or manager_node.ownership.valid(),
            "relay": self._settings.relay,
            "shards": shards,
            "alarms": self._alarms(),
        }

    def _alarms(self) -> list[str]:
        alarms = [] if self._node is None else self._node.alarms
        if self._store_backend is not None and (failure := self._store_backend.failure()):
            alarms.append(failure)
        if self._relay is not None:
            alarms.extend(self._relay.alarms())
        return alarms

    def dump(self, partition: int, after: Sequence[Any] | None, max_rows: int) -> Sequence[Mapping[str, Any]]:
        """See `offsetmgr.server.apis.admin_api.Dump`."""
        if self._node is None or not 0 <= partition < self._settings.partitions:
            raise NotCoordinator(f"shard {partition}", "this process does not own the shard")
        found = self._node.runtime.dump(partition)
        if after is not None:
            found = [entry for entry in found if tuple(entry[0]) > tuple(after)]
        return [{**key._asdict(), **value._asdict()} for key, value in found[:max_rows]]


def load_authentication(settings: ManagerSettings) -> Authentication | None:
    if settings.credentials is None:
        if not settings.sasl_plain:
            why = "forbids a kind of login, but clients do not log in"
            raise ConfigError(Advice("{no_sasl_plain}"), why, Advice("add {credentials} FILE"))
        return None
    if settings.sasl_plain and settings.tls_certificate is None:
        _log.warning("clients may send their passwords in the clear; use TLS, or allow only SCRAM")
    mechanisms = MECHANISMS if settings.sasl_plain else tuple(DIGESTS)
    return Authentication(load_credentials(settings.credentials), mechanisms=mechanisms)


def load_authorizer(settings: ManagerSettings) -> Authorizer:
    if settings.rules is None:
        return Authorizer()
    if settings.credentials is None:
        why = "contain rules for users, but clients do not log in"
        raise ConfigError(Advice("{rules}"), why, Advice("add {credentials} FILE"))
    rules = load_rules(settings.rules)
    if settings.relay and (users := rules.users_without_records()):
        _log.warning(
            "the relay rejects all records of users whose rules have neither produce nor consume",
            extra={"rules": settings.rules, "users": ", ".join(users)},
        )
    return rules


def create_proxy(settings: ManagerSettings, security: Security, authorizer: Authorizer) -> Proxy | None:
    if not settings.relay:
        return None
    reserved, topic = ReservedGroups(), settings.offsets_topic
    if settings.store is None:
        reserved = ReservedGroups(topic, managers_group(topic), transactional_id_prefix(topic))
    return Proxy(settings.bootstrap, security, authorizer, reserved)


def load_tls(settings: ManagerSettings) -> ssl.SSLContext | None:
    return None if settings.tls_certificate is None else server_tls(settings.tls_certificate, settings.tls_key)


def check_servable(store: OffsetStore) -> None:
    """Raises `UsageError` for a file store, because a file is read and written as a whole and so cannot serve
    commits."""
    if store.capabilities.conditional == "file":
        hint = "serve zookeeper://, kafka:// or dual:, and copy the file's offsets there with offsets import"
        raise UsageError(f"store {store.uri}", "is a file, which cannot serve commits of clients", hint)


def _stores_in_cluster(store: OffsetStore, cluster_id: str | None) -> bool:
    """Whether the store, or one of the two stores of a dual store, is the Kafka cluster with this id. Raises
    `OffsetMgrError`."""
    return any(part.uri.startswith("kafka:") and part.identity().id == cluster_id for part in store.parts)


def _shard_json(status: dict[str, Any]) -> dict[str, Any]:
    return status | {
        "role": status["role"].value,
        "state": status["state"].upper(),
        "since": int(status["since"] * 1000),
    }
