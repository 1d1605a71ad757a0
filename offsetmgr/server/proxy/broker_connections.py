"""`ProxyLink`: the connections to real brokers that belong to one client's connection, each opened on first use."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from offsetmgr.core.errors import Unreachable
from offsetmgr.kafka.client.security import Security
from offsetmgr.kafka.protocol.channel import Address
from offsetmgr.server.proxy.brokers import Brokers
from offsetmgr.server.proxy.upstream import ReadBuffer, UpstreamConnection

if TYPE_CHECKING:
    from offsetmgr.server.network.api import ClientConnection

_STATE: Final = "relay"


class ProxyLinks:
    """Gives every client's connection its `ProxyLink`."""

    def __init__(self, brokers: Brokers, security: Security) -> None:
        self.brokers = brokers
        self.security = security
        self.buffer = ReadBuffer()

    def of(self, client: ClientConnection) -> ProxyLink:
        link: ProxyLink | None = client.state.get(_STATE)
        if link is None:
            link = client.state[_STATE] = ProxyLink(self, client)
            client.on_lost.append(link.close)
        return link


class ProxyLink:
    """See the module's docstring."""

    def __init__(self, links: ProxyLinks, client: ClientConnection) -> None:
        self._links = links
        self._client = client
        self._upstreams: dict[Address, UpstreamConnection] = {}
        self._apart: set[UpstreamConnection] = set()
        self._any: Address | None = None
        self._closed = False

    def data(self) -> UpstreamConnection:
        """The connection for the client's requests: to the broker of this port; at the manager's own port always to the
        same one of those that were alive. Raises `Unreachable` if none is known."""
        node_id = self._client.listener.node_id
        if node_id is not None:
            address = self._links.brokers.address(node_id)
            if address is None:
                raise Unreachable(f"broker {node_id}", "its address is unknown")
            return self.to(address)
        if self._any is None or self._any not in self._upstreams or self._upstreams[self._any].closed:
            alive = self._links.brokers.alive()
            if not alive:
                raise Unreachable("Kafka", "no broker answers")
            self._any = random.choice(alive)
        return self.to(self._any)

    def to(self, address: Address) -> UpstreamConnection:
        """This client's connection to the broker at ``address``. Raises `Unreachable` after the client has
        disconnected."""
        if self._closed:
            raise Unreachable(f"broker {address}", "the client is gone")
        upstream = self._upstreams.get(address)
        if upstream is None or upstream.closed:
            upstream = UpstreamConnection(self._client, address, self._links.security, self._links.buffer)
            self._upstreams[address] = upstream
        return upstream

    def apart(self) -> UpstreamConnection:
        """A separate connection to the broker of `data`, for one request whose turn on that one has passed. The caller
        passes it to `end`. Raises `Unreachable`."""
        if self._closed:
            raise Unreachable("Kafka", "the client is gone")
        upstream = UpstreamConnection(self._client, self.data().address, self._links.security, self._links.buffer)
        self._apart.add(upstream)
        return upstream

    def end(self, upstream: UpstreamConnection) -> None:
        """Closes a connection from `apart`."""
        self._apart.discard(upstream)
        upstream.close()

    def close(self) -> None:
        self._closed = True
        for upstream in (*self._upstreams.values(), *self._apart):
            upstream.release()
