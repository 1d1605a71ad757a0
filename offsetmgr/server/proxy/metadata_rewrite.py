"""Metadata, DescribeCluster, FindCoordinator and ApiVersions through the relay: the real responses, with our addresses.

Every real broker keeps its node id and gets the address of its port here. The managers are additional nodes, since
clients ask every node for its groups. Topics are unchanged, except that the offsets topic is rejected, or omitted from
a list of all topics.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.core.errors import InvalidRequest, OffsetMgrError
from offsetmgr.kafka.protocol.api_key import ApiKey
from offsetmgr.kafka.protocol.schema_codec import Message, decode_response
from offsetmgr.server.apis import cluster as cluster_apis
from offsetmgr.server.apis import versions as versions_api
from offsetmgr.server.apis.api_context import ApiContext, decoded, encoded, too_many
from offsetmgr.server.network.api import CLOSE_CONNECTION, Answer, Api, ApiRequest, Frame
from offsetmgr.server.proxy import group_requests, response_rewrite
from offsetmgr.server.proxy.broker_connections import ProxyLinks
from offsetmgr.server.proxy.forwarder import common
from offsetmgr.server.proxy.request_screen import RequestScreen, answer_of, framed, renewed, unhurried
from offsetmgr.server.proxy.response_rewrite import NamedBroker

_log = logging.getLogger(__name__)

_FIND_FLEXIBLE: Final = 3
_BROKERS: Final = 1
_TRANSACTION: Final = 1

_PASSED: Final = {
    ApiKey.METADATA: response_rewrite.HIGHEST,
    ApiKey.DESCRIBE_CLUSTER: 2,
    **group_requests.HIGHEST,
}
"""Our APIs whose requests are forwarded unchanged, so that the broker must support their version too."""


class MetadataRewriter:
    """See the module's docstring."""

    def __init__(self, context: ApiContext, links: ProxyLinks, screen: RequestScreen, host: str) -> None:
        """``host`` is the host in the addresses of this manager's ports."""
        self._context = context
        self._links = links
        self._screen = screen
        self._brokers = links.brokers
        self._host = host

    def apis(self) -> list[Api]:
        """The APIs that replace the listener's own."""
        versions = versions_api
        return [
            Api(
                ApiKey.METADATA,
                "Metadata",
                0,
                response_rewrite.HIGHEST,
                response_rewrite.FLEXIBLE,
                _or_close_connection(self._metadata),
                prepare=decoded,
            ),
            Api(ApiKey.DESCRIBE_CLUSTER, "DescribeCluster", 0, 2, 0, _or_close_connection(self._describe_cluster)),
            Api(
                ApiKey.FIND_COORDINATOR,
                "FindCoordinator",
                0,
                6,
                _FIND_FLEXIBLE,
                _or_close_connection(self._find_coordinator),
                prepare=decoded,
            ),
            Api(
                ApiKey.API_VERSIONS,
                "ApiVersions",
                versions.LOWEST,
                versions.HIGHEST,
                versions.FLEXIBLE,
                _or_close_connection(self._api_versions),
                before_login=True,
            ),
        ]

    async def _metadata(self, request: ApiRequest) -> Answer:
        frame = await self._topics_screened(request)
        part = response_rewrite.find_brokers(frame, request.version)
        await self._brokers.seen(part.brokers)
        named = [b._replace(host=self._host, port=self._brokers.port(b.node_id)) for b in part.brokers]
        named += [NamedBroker(*manager) for manager in self._context.backend.nodes()]
        return Frame(response_rewrite.replace_brokers(frame, request.version, part, named))

    async def _topics_screened(self, request: ApiRequest) -> bytes:
        """The real response, in which the offsets topic is rejected if the request named it, and omitted otherwise."""
        upstream = self._links.of(request.connection).data()
        screen = self._screen
        if not screen.marks(request.frame):
            frame = await upstream.ask(request)
            if not screen.marks(frame):
                return frame
            if _asks_for_all(request) and (
                cut := response_rewrite.without_topic(frame, request.version, screen.reserved.topic)
            ):
                return cut
            return await unhurried(lambda: self._with_topics(request, frame, []), len(frame))
        size = len(request.frame)
        passed, named = await unhurried(lambda: self._without_reserved(request), size)
        frame = await upstream.ask(passed)
        return await unhurried(lambda: self._with_topics(request, frame, named), max(len(frame), size))

    def _without_reserved(self, request: ApiRequest) -> tuple[ApiRequest, list[Message]]:
        """The request without the offsets topic, which it would create if it does not exist, and the removed items."""
        message = decoded(request)
        named = [topic for topic in message["topics"] or () if topic["name"] == self._screen.reserved.topic]
        if not named:
            return request, named
        kept = [topic for topic in message["topics"] if topic["name"] != self._screen.reserved.topic]
        if not kept and request.version == 0:
            raise InvalidRequest("Metadata version 0", "it asks for the offsets topic alone")
        return renewed(request, {**message, "topics": kept}), named

    def _with_topics(self, request: ApiRequest, frame: bytes, refused: list[Message]) -> Frame:
        answer = answer_of(request, frame)
        by_id = not _asks_for_all(request)
        topics = []
        for topic in answer["topics"]:
            if topic["name"] != self._screen.reserved.topic:
                topics.append(topic)
            elif by_id:
                topics.append({**_REFUSED, "name": None, "topic_id": topic["topic_id"]})
        topics += [{**_REFUSED, "name": topic["name"], "topic_id": None} for topic in refused]
        return framed(request, {**answer, "topics": topics})

    async def _describe_cluster(self, request: ApiRequest) -> Answer:
        frame = await self._links.of(request.connection).data().ask(request)
        message = decode_response(ApiKey.DESCRIBE_CLUSTER, request.version, frame, 9)
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
            for manager in self._context.backend.nodes()
        ]
        return encoded(request, message)

    async def _find_coordinator(self, request: ApiRequest) -> Answer:
        """For groups the managers, for transactions the real broker, behind our port."""
        asked = decoded(request)
        if asked.get("key_type") != _TRANSACTION or too_many(request, asked.get("coordinator_keys", ())):
            found_here = cluster_apis.find_coordinator(self._context, request)
            return found_here if isinstance(found_here, bytes) else await found_here
        frame = await self._links.of(request.connection).data().ask(request)
        message, brokers = await unhurried(partial(_coordinators, request, frame), len(frame))
        await self._brokers.seen(brokers)
        return await unhurried(partial(self._renamed, request, message), len(frame))

    def _renamed(self, request: ApiRequest, message: Message) -> bytes:
        """A FindCoordinator response with our ports instead of the brokers' own."""
        for found in message.get("coordinators", [message]):
            if found["error_code"] == ErrorCode.NONE:
                found["host"], found["port"] = self._host, self._brokers.port(found["node_id"])
        return encoded(request, message)

    async def _api_versions(self, request: ApiRequest) -> Answer:
        broker = await self._brokers.versions(request.connection.listener.node_id)
        ours = request.connection.service.versions()
        passed = {
            key: (broker[key][0], min(broker[key][1], highest))
            for key, highest in _PASSED.items()
            if key in broker and broker[key][0] <= highest
        }
        kept = {key: span for key, span in ours.items() if key not in _PASSED}
        return versions_api.api_versions(self._context, request, {**common(broker), **passed, **kept})


_REFUSED: Final = {"error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED, "is_internal": False, "partitions": []}


def _coordinators(request: ApiRequest, frame: bytes) -> tuple[Message, Sequence[NamedBroker]]:
    """A FindCoordinator response, and each broker that it names."""
    message = answer_of(request, frame)
    brokers = {
        found["node_id"]: NamedBroker(found["node_id"], found["host"], found["port"])
        for found in message.get("coordinators", [message])
        if found["error_code"] == ErrorCode.NONE
    }
    return message, list(brokers.values())


def _asks_for_all(request: ApiRequest) -> bool:
    topics = decoded(request)["topics"]
    return topics is None or (request.version == 0 and not topics)


def _or_close_connection(
    handle: Callable[[ApiRequest], Awaitable[Answer]],
) -> Callable[[ApiRequest], Awaitable[Answer]]:
    """Closes the client's connection if the cluster cannot answer now, as if the broker were down."""

    async def handled(request: ApiRequest) -> Answer:
        try:
            return await handle(request)
        except InvalidRequest:
            raise
        except OffsetMgrError as error:
            if not request.connection.closed:
                _log.info("closing client connection: %s", error)
            return CLOSE_CONNECTION

    return handled
