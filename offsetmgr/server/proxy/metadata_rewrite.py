"""`MetadataRewriter`: Metadata, DescribeCluster, FindCoordinator and ApiVersions through the relay.

The handlers return the brokers' responses with other addresses: every broker keeps its node id, and its address is
replaced with the address of the manager's port for this broker. The managers are listed as additional nodes, since
clients ask every node for its groups. The handlers return unchanged all topics that the client may describe; no client
may describe the offsets topic. If a request names another topic, the handlers return an error for that topic. If a
request asks for all topics, they omit the others.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from offsetmgr.core.errors import ErrorCode, InvalidRequest, OffsetMgrError
from offsetmgr.kafka.protocol.releases import ApiKey
from offsetmgr.kafka.protocol.schema_codec import Message, decode_response, is_known
from offsetmgr.server.apis import cluster as cluster_apis
from offsetmgr.server.apis import versions as versions_api
from offsetmgr.server.apis.api_context import ApiContext, decoded, encoded, encoded_by_size, too_many
from offsetmgr.server.network.requests import CLOSE_CONNECTION, Answer, ApiRequest, Frame, Handler
from offsetmgr.server.proxy import response_rewrite
from offsetmgr.server.proxy.api_resources import API_RESOURCES
from offsetmgr.server.proxy.client_upstreams import UpstreamRegistry
from offsetmgr.server.proxy.membership import GROUP_APIS
from offsetmgr.server.proxy.request_filter import (
    RequestFilter,
    decode_broker_response,
    response_frame,
    run_by_message_size,
    with_body,
)
from offsetmgr.server.proxy.response_rewrite import NamedBroker
from offsetmgr.server.security.authorization import ADMIN_APIS, Operation

_log = logging.getLogger(__name__)

_BROKERS: Final = 1
_TRANSACTION: Final = 1
_CREATION_OPTION: Final = 4
"""The first version of Metadata in which a request can ask for no creation of topics."""

_FORWARDED_VERSIONS: Final = {
    **{key: api.highest for key, api in API_RESOURCES.items()},
    ApiKey.METADATA: response_rewrite.MAX_VERSION,
    ApiKey.DESCRIBE_CLUSTER: 2,
    **{key: api.max_version for key, api in GROUP_APIS.items()},
}
"""The APIs whose requests the relay forwards to a broker, each with the highest version that the relay supports. For
these APIs, the ApiVersions response lists only versions that the broker supports too."""


class MetadataRewriter:
    """The handlers of the four APIs."""

    def __init__(
        self, context: ApiContext, upstreams: UpstreamRegistry, request_filter: RequestFilter, host: str
    ) -> None:
        """``host``: the host name in the addresses of the manager's ports."""
        self._context = context
        self._upstreams = upstreams
        self._filter = request_filter
        self._brokers = upstreams.brokers
        self._host = host

    def handlers(self) -> dict[int, Handler]:
        """Returns the handlers by API."""
        handlers = {
            ApiKey.METADATA: self._metadata,
            ApiKey.DESCRIBE_CLUSTER: self._describe_cluster,
            ApiKey.FIND_COORDINATOR: self._find_coordinator,
            ApiKey.API_VERSIONS: self._api_versions,
        }
        return {key: _or_close_connection(handle) for key, handle in handlers.items()}

    async def _metadata(self, request: ApiRequest) -> Answer:
        frame = await self._filtered_metadata(request)
        part = response_rewrite.find_brokers(frame, request.version)
        await self._brokers.record(part.brokers)
        named = [b._replace(host=self._host, port=self._brokers.port(b.node_id)) for b in part.brokers]
        named += [NamedBroker(*manager) for manager in self._context.backend.nodes()]
        return Frame(response_rewrite.replace_brokers(frame, request.version, part, named))

    async def _filtered_metadata(self, request: ApiRequest) -> bytes:
        """Returns the broker's response. If the request names a topic that the client may not describe, the response
        contains an error for that topic; otherwise the response omits the topic."""
        upstream = self._upstreams.of(request.connection).for_port()
        request_filter = self._filter
        if not request_filter.has_rules and not request_filter.may_name_reserved(request.frame):
            frame = await upstream.ask(request)
            if not request_filter.may_name_reserved(frame):
                return frame
            if _asks_for_all(request) and (
                cut := response_rewrite.without_topic(frame, request.version, request_filter.reserved.topic)
            ):
                return cut
            return await run_by_message_size(lambda: self._with_topics(request, request, frame, []), len(frame))
        size = len(request.frame)
        passed, named = await run_by_message_size(lambda: self._without_denied(request), size)
        frame = await upstream.ask(passed)
        size = max(len(frame), size)
        return await run_by_message_size(lambda: self._with_topics(request, passed, frame, named), size)

    def _without_denied(self, request: ApiRequest) -> tuple[ApiRequest, list[Message]]:
        """Returns the request without the topics that the client may not describe, and the removed items.

        The topics are removed, because a broker could create a topic that the forwarded request names. For the same
        reason, the request asks for no creation of topics unless the client may create all of them. A request can ask
        for this from `_CREATION_OPTION` on, so earlier requests are forwarded in that version.
        """
        message, principal = decoded(request), request.connection.principal or ""
        authorizer = self._context.authorizer
        if _asks_for_all(request):
            may_describe = authorizer.any_topic(principal, Operation.DESCRIBE)
            return with_body(
                request, {**message, **_NO_OPERATIONS, "topics": None if may_describe else []}, _CREATION_OPTION
            ), []
        denied = [topic for topic in message["topics"] if not self._may_describe(request, topic["name"])]
        kept = [topic for topic in message["topics"] if self._may_describe(request, topic["name"])]
        creates = message.get("allow_auto_topic_creation", True) and all(
            authorizer.admin(principal, ApiKey.CREATE_TOPICS, topic["name"]) for topic in kept
        )
        passed = {**message, **_NO_OPERATIONS, "topics": kept, "allow_auto_topic_creation": creates}
        return with_body(request, passed, _CREATION_OPTION), denied

    def _may_describe(self, request: ApiRequest, name: str | None) -> bool:
        return name is None or self._context.topic_allowed(request, Operation.DESCRIBE, name)

    def _with_topics(self, request: ApiRequest, passed: ApiRequest, frame: bytes, rejected: list[Message]) -> Frame:
        """Returns the broker's response to ``passed`` as the response to the client's request."""
        answer = decode_broker_response(passed, frame)
        named = not _asks_for_all(request)
        topics = []
        for topic in answer["topics"]:
            if self._may_describe(request, topic["name"]):
                topics.append(topic)
            elif named:
                topics.append({**_REJECTED, "name": None, "topic_id": topic["topic_id"]})
        topics += [{**_REJECTED, "name": topic["name"], "topic_id": None} for topic in rejected]
        return response_frame(request, {**answer, "topics": topics})

    async def _describe_cluster(self, request: ApiRequest) -> Answer:
        passed = request
        if self._filter.has_rules:
            passed = with_body(request, {**decoded(request), **_NO_OPERATIONS})
        frame = await self._upstreams.of(request.connection).for_port().ask(passed)
        message = decode_response(ApiKey.DESCRIBE_CLUSTER, request.version, frame, 9)
        if message["error_code"] or message.get("endpoint_type", _BROKERS) != _BROKERS:
            return Frame(frame)
        brokers = message["brokers"]
        await self._brokers.record(
            NamedBroker(b["broker_id"], b["host"], b["port"]) for b in brokers if not b.get("is_fenced")
        )
        for broker in brokers:
            port = self._brokers.ports().get(broker["broker_id"])
            broker["host"], broker["port"] = (self._host, port) if port is not None else ("", -1)
        message["brokers"] = brokers + cluster_apis.managers_as_brokers(self._context)
        return encoded(request, message)

    async def _find_coordinator(self, request: ApiRequest) -> Answer:
        """For a group, returns the manager that owns the group. For a transaction, returns this manager's port for the
        broker that coordinates the transaction."""
        requested = decoded(request)
        keys = requested.get("coordinator_keys", [requested.get("key")])
        if requested.get("key_type") != _TRANSACTION or too_many(request, keys):
            found_here = cluster_apis.find_coordinator(self._context, request)
            return found_here if isinstance(found_here, bytes) else await found_here
        denied = {key for key in keys if not self._context.transactional_id_allowed(request, Operation.DESCRIBE, key)}
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        failed = {**cluster_apis.NO_NODE, "error_code": code, "error_message": None}
        rejected = [{**failed, "key": key} for key in keys if key in denied]
        if len(rejected) == len(keys):
            return await encoded_by_size(request, {**failed, "coordinators": rejected})
        if rejected:
            request = with_body(request, {**requested, "coordinator_keys": [key for key in keys if key not in denied]})
        frame = await self._upstreams.of(request.connection).for_port().ask(request)
        message, brokers = await run_by_message_size(partial(_coordinators, request, frame), len(frame))
        await self._brokers.record(brokers)
        message["coordinators"] = [*message.get("coordinators", ()), *rejected]
        return await run_by_message_size(partial(self._with_our_addresses, request, message), len(frame))

    def _with_our_addresses(self, request: ApiRequest, message: Message) -> bytes:
        """Replaces the brokers' addresses in a FindCoordinator response with the addresses of this manager's ports.
        Returns the body of the response."""
        for found in message["coordinators"] or [message]:
            if found["error_code"] == ErrorCode.NONE:
                found["host"], found["port"] = self._host, self._brokers.port(found["node_id"])
        return encoded(request, message)

    async def _api_versions(self, request: ApiRequest) -> Answer:
        broker = await self._brokers.versions(request.connection.node_id)
        own_versions = request.connection.service.versions()
        passed = {}
        for key, highest in _FORWARDED_VERSIONS.items():
            low, high = broker.get(key, (0, -1))
            if versions := [v for v in range(low, min(high, highest) + 1) if self._can_check(key, v)]:
                passed[key] = (versions[0], versions[-1])
        kept = {key: span for key, span in own_versions.items() if key not in _FORWARDED_VERSIONS}
        return versions_api.api_versions(self._context, request, {**passed, **kept})

    def _can_check(self, key: int, version: int) -> bool:
        """Whether the relay can check a version that the rules may allow. With rules, it decodes all admin requests."""
        return not self._filter.has_rules or key not in ADMIN_APIS or is_known(key, version)


_NO_OPERATIONS: Final = dict.fromkeys(
    ("include_cluster_authorized_operations", "include_topic_authorized_operations"), False
)
"""A broker would return the rights of the manager, and not of the client."""
_REJECTED: Final = {"error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED, "is_internal": False, "partitions": []}


def _coordinators(request: ApiRequest, frame: bytes) -> tuple[Message, Sequence[NamedBroker]]:
    """Decodes a FindCoordinator response; returns the message, and the brokers that it names."""
    message = decode_broker_response(request, frame)
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
    """Wraps a handler: if the cluster cannot be reached, the client's connection is closed, as if the broker were
    down."""

    async def handled(request: ApiRequest) -> Answer:
        try:
            return await handle(request)
        except InvalidRequest:
            raise
        except OffsetMgrError as error:
            if not request.connection.closed:
                _log.info("closing a client's connection, because the cluster did not respond: %s", error)
            return CLOSE_CONNECTION

    return handled
