"""`Proxy`: creates and connects the parts of the relay."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import Security
from offsetmgr.kafka.protocol.releases import ApiKey
from offsetmgr.manager.lease import boottime
from offsetmgr.server.apis.api_context import ApiContext
from offsetmgr.server.apis.groups import describe_groups, list_groups
from offsetmgr.server.backend import Backend
from offsetmgr.server.network.requests import Api, Concurrency, Handler
from offsetmgr.server.proxy.api_resources import API_RESOURCES
from offsetmgr.server.proxy.brokers import Brokers
from offsetmgr.server.proxy.client_upstreams import UpstreamRegistry
from offsetmgr.server.proxy.coordinators import Coordinators
from offsetmgr.server.proxy.fenced_backend import MemberFencingBackend
from offsetmgr.server.proxy.foreign_commit_monitor import ForeignCommitMonitor
from offsetmgr.server.proxy.forwarder import forward
from offsetmgr.server.proxy.member_fence import MemberFence
from offsetmgr.server.proxy.membership import ProxiedMembership
from offsetmgr.server.proxy.metadata_rewrite import MetadataRewriter
from offsetmgr.server.proxy.request_filter import RequestFilter
from offsetmgr.server.proxy.topic_ids import TopicIds
from offsetmgr.server.security.authorization import Authorizer, ReservedGroups

_REQUEST_TIMEOUT_S: Final = 10.0


class Proxy:
    """The relay of one manager. Use its members in this order: pass `fallback` to the `SocketServer`; start
    `brokers`; call `guard`, `apis` and `start`; finally call `close`."""

    def __init__(self, bootstrap: str, security: Security, authorizer: Authorizer, reserved: ReservedGroups) -> None:
        """``bootstrap`` and ``security``: how the relay connects to the real cluster. The brokers see only the
        principal of this connection. ``authorizer``: decides what clients may do. ``reserved``: names that no client
        may use, see `RequestFilter`.
        """
        self._client = Client(bootstrap, security)
        self.brokers = Brokers(self._client, security)
        """The brokers; `Brokers.start` opens a port for each of them."""
        self._coordinators = Coordinators(self._client, self.brokers)
        self._fence = MemberFence()
        self._upstreams = UpstreamRegistry(self.brokers, security)
        self._fenced_backend: MemberFencingBackend | None = None
        self._monitor: ForeignCommitMonitor | None = None
        self._lookups = Client(bootstrap, security)
        self._filter = RequestFilter(self._upstreams, TopicIds(self._lookups), authorizer, reserved)
        self.authorizer = self._filter.authorizer
        """The authorizer for the listener's handlers."""
        self.fallback: Handler = partial(forward, self._filter)
        """Handles the requests for APIs that are not in the table, and for versions that the table does not support."""

    def guard(self, backend: Backend, *, watch: bool = True) -> MemberFencingBackend:
        """Returns a backend that wraps ``backend`` and rejects the commits and deletions that the group's membership
        does not allow.

        ``watch``: whether offsets at the real coordinators raise an alarm. ``watch`` must be False if the backend
        itself stores offsets at these coordinators.
        """
        self._fenced_backend = MemberFencingBackend(backend, self._fence, self._coordinators, boottime)
        self._monitor = ForeignCommitMonitor(backend, self._coordinators) if watch else None
        return self._fenced_backend

    def apis(self, context: ApiContext, listener_apis: Sequence[Api], advertised_host: str) -> list[Api]:
        """Returns the table of APIs: the relay's own entries, and the entries of ``listener_apis`` for all APIs that
        the relay neither handles itself nor forwards. The backend of ``context`` must be the backend that `guard`
        returned."""
        handlers: dict[int, Handler] = {
            **MetadataRewriter(context, self._upstreams, self._filter, advertised_host).handlers(),
            ApiKey.LIST_GROUPS: partial(list_groups, context, with_members=self._coordinators.groups),
            ApiKey.DESCRIBE_GROUPS: partial(describe_groups, context, with_members=self._coordinators.describe),
        }
        return [
            api
            if api.key not in handlers
            else api._replace(handle=handlers[api.key], concurrency=Concurrency.EXCLUSIVE)
            for api in listener_apis
            if api.key not in API_RESOURCES
        ] + ProxiedMembership(context, self._upstreams, self._fence, self._coordinators, boottime).apis()

    def start(self) -> None:
        """Starts to watch for clients that bypass the relay."""
        if self._monitor is not None:
            self._monitor.start()

    async def close(self) -> None:
        """Closes the connections to the brokers. Call it after the server has been closed."""
        if self._monitor is not None:
            await self._monitor.close()
        if self._fenced_backend is not None:
            await self._fenced_backend.close()
        await self.brokers.close()
        await self._client.close()
        await self._lookups.close()

    def alarms(self) -> Sequence[str]:
        """The alarms of `ForeignCommitMonitor`, for `manager status`."""
        return () if self._monitor is None else self._monitor.alarms

    async def members(self, groups: Sequence[str]) -> Mapping[str, bool]:
        """Returns for each group whether it has members. Omits a group if this is unknown.

        The result is valid until the caller yields control, because the relay has passed no new generation to a client
        since it asked the real coordinator. A member that joins later waits for running commits and deletions
        (`Backend.wait_for_commits`).
        """
        if (backend := self._fenced_backend) is None:
            return {}
        before = {group: self._fence.evidence_epoch(group, backend.ownership_epoch(group)) for group in groups}
        try:
            idle = await self._coordinators.prove_idle(groups, asyncio.get_running_loop().time() + _REQUEST_TIMEOUT_S)
        except OffsetMgrError:
            return {}
        return {
            group: not is_idle
            for group, is_idle in idle.items()
            if self._fence.evidence_epoch(group, backend.ownership_epoch(group)) == before[group]
        }
