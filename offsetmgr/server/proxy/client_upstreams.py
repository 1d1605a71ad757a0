"""`ClientUpstreams`: the connections to real brokers that belong to one client's connection, each opened on first
use."""

from __future__ import annotations

import random
from typing import Final

from offsetmgr.core.errors import Unreachable
from offsetmgr.kafka.client.connection import Security
from offsetmgr.kafka.protocol.frames import Address
from offsetmgr.server.network.requests import ClientSession
from offsetmgr.server.proxy.brokers import Brokers
from offsetmgr.server.proxy.upstream import ReadBuffer, UpstreamConnection

_STATE: Final = "relay"


class UpstreamRegistry:
    """Creates and finds the `ClientUpstreams` of each client's connection."""

    def __init__(self, brokers: Brokers, security: Security) -> None:
        self.brokers = brokers
        self.security = security
        self.buffer = ReadBuffer()

    def of(self, client: ClientSession) -> ClientUpstreams:
        upstreams: ClientUpstreams | None = client.state.get(_STATE)
        if upstreams is None:
            upstreams = client.state[_STATE] = ClientUpstreams(self, client)
            client.on_lost.append(upstreams.close)
        return upstreams


class ClientUpstreams:
    """The upstream connections of one client's connection."""

    def __init__(self, registry: UpstreamRegistry, client: ClientSession) -> None:
        self._registry = registry
        self._client = client
        self._upstreams: dict[Address, UpstreamConnection] = {}
        self._chosen: Address | None = None
        self._closed = False

    def for_port(self) -> UpstreamConnection:
        """Returns the upstream connection for the client's requests. If the client's port represents a broker, the
        connection goes to that broker. If the client's port is the manager's own port, the connection goes to a random
        live broker, and later requests reuse the connection until it closes. Raises `Unreachable`."""
        if self._client.node_id is not None:
            return self.for_broker(self._registry.brokers.address(self._client.node_id))
        if self._chosen is None or self._chosen not in self._upstreams or self._upstreams[self._chosen].closed:
            alive = self._registry.brokers.alive()
            if not alive:
                raise Unreachable("Kafka", "no broker responds")
            self._chosen = random.choice(alive)
        return self.for_broker(self._chosen)

    def for_broker(self, address: Address) -> UpstreamConnection:
        """Returns this client's connection to the broker at ``address``. Raises `Unreachable` if the client has
        disconnected."""
        if self._closed:
            raise Unreachable(f"broker {address}", "the client has disconnected")
        upstream = self._upstreams.get(address)
        if upstream is None or upstream.closed:
            registry = self._registry
            upstream = UpstreamConnection(self._client, address, registry.security, registry.buffer)
            self._upstreams[address] = upstream
        return upstream

    def close(self) -> None:
        self._closed = True
        for upstream in self._upstreams.values():
            upstream.release()
