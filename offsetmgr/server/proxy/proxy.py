"""`Proxy`: assembles the relay."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from typing import Final

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.security import Security
from offsetmgr.manager.lease import boottime
from offsetmgr.server.apis.api_context import ApiContext
from offsetmgr.server.backend import Backend
from offsetmgr.server.network.api import Api
from offsetmgr.server.network.socket_server import SocketServer
from offsetmgr.server.proxy.broker_connections import ProxyLinks
from offsetmgr.server.proxy.brokers import Brokers, ProxyPorts
from offsetmgr.server.proxy.coordinators import Coordinators
from offsetmgr.server.proxy.fenced_backend import MemberFencingBackend
from offsetmgr.server.proxy.foreign_commit_monitor import BrokerCommitMonitor
from offsetmgr.server.proxy.forwarder import FORWARDED, Forwarder
from offsetmgr.server.proxy.group_lists import GroupLists
from offsetmgr.server.proxy.member_fence import MemberFence
from offsetmgr.server.proxy.membership import ProxiedMembership
from offsetmgr.server.proxy.metadata_rewrite import MetadataRewriter
from offsetmgr.server.proxy.request_screen import RequestScreen
from offsetmgr.server.proxy.topic_ids import TopicIds
from offsetmgr.server.security.authorization import (
    AllowAllAuthorizer,
    Authorizer,
    ReservedGroups,
    ReservedGroupsAuthorizer,
)

_ASK_S: Final = 10.0
_NOTHING: Final = ReservedGroups()


class Proxy:
    """In the order of a start: `fallback` for the `SocketServer`, `open_ports`, `guard` for the backend of its
    handlers, `apis`, `start`."""

    def __init__(
        self,
        bootstrap: str,
        security: Security,
        authorizer: Authorizer | None = None,
        reserved: ReservedGroups = _NOTHING,
    ) -> None:
        """``bootstrap`` and ``security`` connect to the real cluster; the brokers see this principal.

        ``authorizer`` decides about admin APIs; no client may touch ``reserved`` names, see `RequestScreen`.
        """
        allowed = authorizer or AllowAllAuthorizer()
        self.authorizer: Authorizer = ReservedGroupsAuthorizer(allowed, reserved) if reserved.topic else allowed
        """The authorizer for the listener's handlers."""
        self._client = Client(bootstrap, security)
        self._brokers = Brokers(self._client, security)
        self._coordinators = Coordinators(self._client, self._brokers)
        self._gate = MemberFence()
        self._links = ProxyLinks(self._brokers, security)
        self._backend: Backend | None = None
        self._guarded: MemberFencingBackend | None = None
        self._watch: BrokerCommitMonitor | None = None
        self._screen = RequestScreen(self._links, TopicIds(self._client), allowed, reserved)
        self.fallback = Forwarder(self._screen)

    def guard(self, backend: Backend, *, watch: bool = True) -> MemberFencingBackend:
        """The manager's backend, which rejects all clients that may not commit or delete.

        ``watch``: whether offsets at the real coordinators raise an alarm. False if the backend stores its own there.
        """
        self._backend = backend
        self._guarded = MemberFencingBackend(backend, self._gate, self._coordinators, boottime)
        self._watch = BrokerCommitMonitor(backend, self._coordinators) if watch else None
        return self._guarded

    def apis(self, context: ApiContext, listener_apis_: Sequence[Api], advertised_host: str) -> list[Api]:
        """The listener's table with the relay's replacements; ``context`` must use the guarded backend."""
        ours = [
            *MetadataRewriter(context, self._links, self._screen, advertised_host).apis(),
            *GroupLists(context, self._coordinators).apis(),
            *ProxiedMembership(context, self._links, self._gate, self._coordinators, boottime).apis(),
        ]
        replaced = {api.key for api in ours} | FORWARDED.keys()
        return [api for api in listener_apis_ if api.key not in replaced] + ours

    async def open_ports(
        self, service: SocketServer, host: str, ports: ProxyPorts, tls: ssl.SSLContext | None, timeout: float
    ) -> None:
        """Opens a port for each broker, on the manager's own ``host`` and with its ``tls``; it serves as soon as the
        server does. Raises `OffsetMgrError`."""
        await self._brokers.start(service, host, ports, tls, timeout)

    def start(self) -> None:
        """Starts the background tasks."""
        if self._watch is not None:
            self._watch.start()

    async def close(self) -> None:
        """Call it after the server has been closed."""
        if self._watch is not None:
            await self._watch.close()
        if self._guarded is not None:
            await self._guarded.close()
        await self._brokers.close()
        await self._client.close()

    def ports(self) -> Mapping[int, int]:
        """Our ports by the node id of the broker that each represents."""
        return self._brokers.ports()

    def alarms(self) -> Sequence[str]:
        """Alarms for `manager status`: see `BrokerCommitMonitor`."""
        return () if self._watch is None else self._watch.alarms

    async def members(self, groups: Sequence[str]) -> Mapping[str, bool]:
        """Whether groups have members; groups for which that is unknown are omitted.

        The result stays valid until the caller yields control: no generation has been returned since the real
        coordinator was asked, and a joining member waits for everything that has begun by then (`Backend.await_commits`).
        """
        backend = self._backend
        if backend is None:
            return {}
        before = {group: self._gate.epoch(group, backend.ownership_epoch(group)) for group in groups}
        try:
            idle = await self._coordinators.prove_idle(groups, asyncio.get_running_loop().time() + _ASK_S)
        except OffsetMgrError:
            return {}
        return {
            group: not is_idle
            for group, is_idle in idle.items()
            if self._gate.epoch(group, backend.ownership_epoch(group)) == before[group]
        }
