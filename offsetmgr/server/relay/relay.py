"""`Relay`: puts its parts together, and answers what others ask about the real groups."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping, Sequence

from offsetmgr.errors import OffsetMgrError
from offsetmgr.manager.lease import boottime
from offsetmgr.model import GroupDescription
from offsetmgr.server.backend import Backend
from offsetmgr.server.dispatch import Api, Fallback
from offsetmgr.server.handlers.endpoint import Endpoint
from offsetmgr.server.relay.brokers import Brokers, RelayPorts
from offsetmgr.server.relay.commits import GatedBackend
from offsetmgr.server.relay.coordinators import Coordinators
from offsetmgr.server.relay.forwarding import FORWARDED, Forwarder
from offsetmgr.server.relay.link import Links
from offsetmgr.server.relay.listing import GroupListing
from offsetmgr.server.relay.membergate import MemberGate
from offsetmgr.server.relay.membership import Membership
from offsetmgr.server.relay.naming import Naming
from offsetmgr.server.service import Service
from offsetmgr.wire.client import Client
from offsetmgr.wire.security import Security

_ASK_SECONDS = 10.0


class Relay:
    """Made first, since the endpoint's handlers must ask `backend`, which judges commits; then `apis` and `fallback`
    make the `Service`, and `start` opens the ports."""

    def __init__(self, backend: Backend, bootstrap: str, security: Security) -> None:
        """``bootstrap`` and ``security`` reach the real cluster: what the brokers see is this principal."""
        self._client = Client(bootstrap, security)
        self._brokers = Brokers(self._client, security)
        self._coordinators = Coordinators(self._client, self._brokers)
        self._gate = MemberGate()
        self._links = Links(self._brokers, security)
        self._inner = backend
        self._gated = GatedBackend(backend, self._gate, self._coordinators, boottime)

    @property
    def backend(self) -> Backend:
        """The manager's backend, with everybody who may not commit or delete refused."""
        return self._gated

    @property
    def fallback(self) -> Fallback:
        return Forwarder(self._links)

    def apis(self, endpoint: Endpoint, of_endpoint: Sequence[Api], advertised_host: str) -> list[Api]:
        """The endpoint's table with what the relay answers otherwise; ``endpoint`` must ask `backend`."""
        ours = [
            *Naming(endpoint, self._links, advertised_host).apis(),
            *GroupListing(endpoint, self._coordinators).apis(),
            *Membership(endpoint, self._links, self._gate, self._coordinators, boottime).apis(),
        ]
        replaced = {api.key for api in ours} | FORWARDED.keys()
        return [api for api in of_endpoint if api.key not in replaced] + ours

    async def start(
        self, service: Service, host: str, ports: RelayPorts, tls: ssl.SSLContext | None, timeout: float
    ) -> None:
        """Opens a port for each broker, on the manager's own ``host`` and with its ``tls``. Raises `OffsetMgrError`."""
        await self._brokers.start(service, host, ports, tls, timeout)

    async def close(self) -> None:
        """After the service has been closed."""
        await self._gated.close()
        await self._brokers.close()
        await self._client.close()

    def ports(self) -> Mapping[int, int]:
        """Our ports by the node id of the broker that each stands for."""
        return self._brokers.ports()

    # --- about the real groups ----------------------------------------------------------------------

    async def group_members(self, groups: Sequence[str]) -> Mapping[str, GroupDescription | OffsetMgrError]:
        """What the real coordinators say about groups: offsets of those with members do not expire. An error means that
        nobody knows, never that there are none."""
        if not groups:
            return {}
        deadline = asyncio.get_running_loop().time() + _ASK_SECONDS
        try:
            return await self._client.describe(groups, deadline)
        except OffsetMgrError as error:
            return dict.fromkeys(groups, error)

    async def bypassed(self) -> Mapping[str, int | OffsetMgrError]:
        """Groups that this manager owns and has offsets of, and for which the real coordinator holds offsets too: how
        many partitions. Somebody commits there past us; or an error: nobody knows."""
        code, ours = await self._inner.list_groups()
        if code or not ours:
            return {}
        deadline = asyncio.get_running_loop().time() + _ASK_SECONDS
        try:
            found = await self._client.fetch(dict.fromkeys(ours, None), deadline)
        except OffsetMgrError as error:
            return dict.fromkeys(ours, error)
        held: dict[str, int | OffsetMgrError] = {}
        for group, answer in found.items():
            if isinstance(answer, OffsetMgrError):
                held[group] = answer
            elif answer.offsets or answer.errors:
                held[group] = len(answer.offsets) + len(answer.errors)
        return held
