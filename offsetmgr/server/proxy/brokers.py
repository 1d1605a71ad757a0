"""`Brokers`: the real brokers with their addresses and API versions, and the manager's port for each broker.

A broker gets a port when it first appears, and keeps it while this process lives, even if the broker's address changes.
The port number is derived from the broker's node id, so that it is the same after a restart of this process. If the
derived port is in use, another port is chosen.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import OffsetMgrError, Unreachable
from offsetmgr.core.retry import cancel_tasks
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import BrokerConnection, Security
from offsetmgr.kafka.protocol.frames import Address
from offsetmgr.kafka.protocol.releases import Versions
from offsetmgr.server.network.socket_server import SocketServer
from offsetmgr.server.proxy.response_rewrite import NamedBroker

_log = logging.getLogger(__name__)

_REFRESH_S: Final = 5.0
_REQUEST_TIMEOUT_S: Final = 5.0


class ProxyPorts(NamedTuple):
    """The range of ports for brokers: ``size`` ports from ``first`` on. If ``first`` is 0, the system selects free
    ports."""

    first: int
    size: int = 100

    def candidates(self, node_id: int) -> Iterable[int]:
        """Returns the possible ports for a broker, the preferred one first."""
        if self.first == 0:
            return [0]
        return [self.first + (node_id + n) % self.size for n in range(self.size)]


class Brokers:
    """The known brokers, refreshed every 5 seconds. Use it in one event loop."""

    def __init__(self, client: Client, security: Security) -> None:
        """``client`` connects to the real cluster."""
        self._client = client
        self._security = security
        self._ports: tuple[SocketServer, str, ProxyPorts, ssl.SSLContext | None] | None = None
        """The server that opens the ports for brokers, their address and range, and their settings of TLS."""
        self._addresses: dict[int, Address] = {}
        self._open_ports: dict[int, int] = {}
        """The manager's port for each broker, by node id."""
        self._probes: dict[int, BrokerConnection] = {}
        self._versions: dict[int, Versions] = {}
        self._listening = asyncio.Lock()
        self._refresher: asyncio.Task[None] | None = None

    async def start(
        self, service: SocketServer, host: str, ports: ProxyPorts, tls: ssl.SSLContext | None, timeout_s: float
    ) -> None:
        """Opens a listener for every current broker. Raises `OffsetMgrError`."""
        self._ports = service, host, ports, tls
        await self._refresh(asyncio.get_running_loop().time() + timeout_s)
        self._refresher = asyncio.create_task(self._refresh_loop())

    async def close(self) -> None:
        """Stops refreshing the brokers. The server closes the ports."""
        await cancel_tasks(self._refresher)
        for probe in self._probes.values():
            await probe.close()

    # --- addresses -----------------------------------------------------------------------------------

    async def record(self, brokers: Iterable[NamedBroker]) -> None:
        """Records the brokers that a response names, and opens a port for each new broker. Raises `Unreachable` if no
        port is free."""
        for broker in brokers:
            self._addresses[broker.node_id] = Address(broker.host, broker.port)
            if broker.node_id not in self._open_ports:
                await self._listen(broker.node_id)

    def address(self, node_id: int) -> Address:
        """Returns the real address of a broker. Raises `Unreachable` if it is unknown."""
        if node_id not in self._addresses:
            raise Unreachable(f"broker {node_id}", "its address is unknown")
        return self._addresses[node_id]

    def addresses(self) -> list[Address]:
        """Returns the real addresses of all brokers, including dead ones."""
        return list(self._addresses.values())

    def alive(self) -> list[Address]:
        """Returns the addresses of brokers to which a connection is open. If no connection is open (brokers close idle
        connections), returns the addresses of all brokers that have responded before."""
        known = [node_id for node_id, probe in self._probes.items() if not probe.closed] or list(self._versions)
        return [self._addresses[node_id] for node_id in known]

    def port(self, node_id: int) -> int:
        """Returns the manager's port for a known broker."""
        return self._open_ports[node_id]

    def ports(self) -> Mapping[int, int]:
        """The manager's ports, by the broker's node id."""
        return dict(sorted(self._open_ports.items()))

    async def _listen(self, node_id: int) -> None:
        async with self._listening:
            if node_id in self._open_ports or self._ports is None:
                return
            used = set(self._open_ports.values())
            service, host, range_, tls = self._ports
            for port in range_.candidates(node_id):
                if port in used:
                    continue
                with contextlib.suppress(Unreachable):
                    self._open_ports[node_id] = await service.listen(host, port, tls=tls, node_id=node_id)
                    return
            last = range_.first + range_.size - 1
            raise Unreachable(
                f"a port for broker {node_id}",
                f"none of {range_.first} to {last} is free",
                Advice("choose another range with {relay_ports}"),
            )

    # --- versions ------------------------------------------------------------------------------------

    async def versions(self, node_id: int | None) -> Versions:
        """Returns the API versions that a broker supports now. If ``node_id`` is None, returns the versions that all
        known brokers support.

        Raises `OffsetMgrError` if the broker cannot be reached.
        """
        if node_id is not None:
            return await self._probe(node_id)
        known = list(self._versions.values())
        if not known:
            raise Unreachable("Kafka", "no broker has reported its API versions yet")
        common: dict[int, tuple[int, int]] = {}
        for key in set.intersection(*(set(versions) for versions in known)):
            low, high = max(v[key][0] for v in known), min(v[key][1] for v in known)
            if low <= high:
                common[key] = (low, high)
        return common

    async def _probe(self, node_id: int) -> Versions:
        address = self.address(node_id)
        probe = self._probes.get(node_id)
        if probe is None or probe.closed or probe.address != address:
            # A new connection requests the API versions again, since the broker may have been upgraded.
            probe = await BrokerConnection.open(address, self._security, _REQUEST_TIMEOUT_S)
            old, self._probes[node_id] = self._probes.get(node_id), probe
            self._versions[node_id] = probe.versions
            if old is not None:
                await old.close()
        return probe.versions

    # --- refresh -------------------------------------------------------------------------------------

    async def _refresh_loop(self) -> None:
        while True:
            await asyncio.sleep(_REFRESH_S)
            try:
                await self._refresh(asyncio.get_running_loop().time() + _REQUEST_TIMEOUT_S)
            except OffsetMgrError as error:
                _log.info("could not refresh the list of brokers, trying again: %s", error)
            except Exception:
                _log.exception("refreshing the list of brokers raised an unexpected exception (a defect); trying again")

    async def _refresh(self, deadline: float) -> None:
        brokers = await self._client.brokers(deadline)
        await self.record(NamedBroker(node_id, *address) for node_id, address in brokers.items())
        for node_id in self._versions.keys() - brokers.keys():
            del self._versions[node_id]
        await asyncio.gather(*map(self._probe, brokers), return_exceptions=True)
