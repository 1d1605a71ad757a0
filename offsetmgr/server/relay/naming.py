"""Metadata, DescribeCluster, FindCoordinator and ApiVersions through the relay: the real answers, with our addresses.

Every real broker keeps its node id and gets the address of the port that stands for it; the managers are nodes beside
them, since clients ask every node for its groups.  Topics are left as they are, our own offsets topic among them.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from offsetmgr.errors import InvalidRequest, OffsetMgrError
from offsetmgr.server.dispatch import HANG_UP, Answer, Api, Frame, Request
from offsetmgr.server.handlers import cluster as endpoint_cluster
from offsetmgr.server.handlers import versions as endpoint_versions
from offsetmgr.server.handlers.endpoint import Endpoint, decoded, encoded
from offsetmgr.server.relay import groupframes, rewriting
from offsetmgr.server.relay.forwarding import common
from offsetmgr.server.relay.link import Links
from offsetmgr.server.relay.rewriting import NamedBroker
from offsetmgr.wire.serverside import decode_response

_log = logging.getLogger(__name__)

_DESCRIBE_CLUSTER: Final = 60
_FIND_COORDINATOR: Final = 10
_FIND_FLEXIBLE: Final = 3
_BROKERS: Final = 1
_TRANSACTION: Final = 1

_PASSED: Final = {
    rewriting.API_KEY: rewriting.HIGHEST,
    _DESCRIBE_CLUSTER: 2,
    **groupframes.HIGHEST,
}
"""APIs of ours whose requests are passed on as they are, so that the broker must speak their version too."""


class Naming:
    """See the module's docstring."""

    def __init__(self, endpoint: Endpoint, links: Links, host: str) -> None:
        """``host`` is where clients reach this manager's ports."""
        self._endpoint = endpoint
        self._links = links
        self._brokers = links.brokers
        self._host = host

    def apis(self) -> list[Api]:
        """What replaces the endpoint's."""
        versions = endpoint_versions
        return [
            Api(rewriting.API_KEY, "Metadata", 0, rewriting.HIGHEST, rewriting.FLEXIBLE, _or_hang_up(self._metadata)),
            Api(_DESCRIBE_CLUSTER, "DescribeCluster", 0, 2, 0, _or_hang_up(self._describe_cluster)),
            Api(_FIND_COORDINATOR, "FindCoordinator", 0, 6, _FIND_FLEXIBLE, _or_hang_up(self._find_coordinator)),
            Api(
                versions.API_KEY,
                "ApiVersions",
                versions.LOWEST,
                versions.HIGHEST,
                versions.FLEXIBLE,
                _or_hang_up(self._api_versions),
                before_login=True,
            ),
        ]

    async def _metadata(self, request: Request) -> Answer:
        frame = await self._links.of(request.connection).data().ask(request)
        part = rewriting.find_brokers(frame, request.version)
        await self._brokers.seen(part.brokers)
        named = [b._replace(host=self._host, port=self._brokers.port(b.node_id)) for b in part.brokers]
        named += [NamedBroker(*manager) for manager in self._endpoint.backend.nodes()]
        return Frame(rewriting.replace_brokers(frame, request.version, part, named))

    async def _describe_cluster(self, request: Request) -> Answer:
        frame = await self._links.of(request.connection).data().ask(request)
        message = decode_response(_DESCRIBE_CLUSTER, request.version, frame, 9)
        if message["error_code"] or message.get("endpoint_type", _BROKERS) != _BROKERS:
            return Frame(frame)
        brokers = message["brokers"]
        await self._brokers.seen(
            NamedBroker(b["broker_id"], b["host"], b["port"]) for b in brokers if not b.get("is_fenced")
        )
        for broker in brokers:
            port = self._brokers.ports().get(broker["broker_id"])
            broker["host"], broker["port"] = (self._host, port) if port is not None else ("", -1)
        message["brokers"] = brokers + [
            {"broker_id": manager.node_id, "host": manager.host, "port": manager.port, "is_fenced": False}
            for manager in self._endpoint.backend.nodes()
        ]
        return encoded(request, message)

    async def _find_coordinator(self, request: Request) -> Answer:
        """Of groups the managers, of transactions the real broker, behind our port."""
        if decoded(request).get("key_type") != _TRANSACTION:
            return endpoint_cluster.find_coordinator(self._endpoint, request)
        frame = await self._links.of(request.connection).data().ask(request)
        message = decode_response(
            _FIND_COORDINATOR, request.version, frame, 9 if request.version >= _FIND_FLEXIBLE else 8
        )
        for found in message.get("coordinators", [message]):
            if found["error_code"] == 0:
                await self._brokers.seen([NamedBroker(found["node_id"], found["host"], found["port"])])
                found["host"], found["port"] = self._host, self._brokers.port(found["node_id"])
        return encoded(request, message)

    async def _api_versions(self, request: Request) -> Answer:
        broker = await self._brokers.versions(request.connection.listener.node_id)
        ours = request.connection.service.versions()
        passed = {
            key: (broker[key][0], min(broker[key][1], highest))
            for key, highest in _PASSED.items()
            if key in broker and broker[key][0] <= highest
        }
        kept = {key: span for key, span in ours.items() if key not in _PASSED}
        return endpoint_versions.api_versions(self._endpoint, request, {**common(broker), **passed, **kept})


def _or_hang_up(handle: Callable[[Request], Awaitable[Answer]]) -> Callable[[Request], Awaitable[Answer]]:
    """A client whose question the cluster cannot answer now is treated as by a broker that is down."""

    async def handled(request: Request) -> Answer:
        try:
            return await handle(request)
        except InvalidRequest:
            raise
        except OffsetMgrError as error:
            if not request.connection.closed:
                _log.info("a client is hung up on: %s", error)
            return HANG_UP

    return handled
