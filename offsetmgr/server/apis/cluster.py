"""Handlers of Metadata, DescribeCluster and FindCoordinator for a manager that runs without the relay.

To clients, the managers are the cluster's brokers, and the manager that owns a group is its coordinator. Metadata
responses name this manager as the leader of every partition, because clients send requests such as ListOffsets to a
partition's leader.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Final

from offsetmgr.core.batches import batched
from offsetmgr.core.errors import ErrorCode, InvalidRequest, OffsetMgrError
from offsetmgr.kafka.client.backing_cluster import TopicLayout
from offsetmgr.kafka.protocol.frames import LARGE_BYTES
from offsetmgr.kafka.protocol.schema_codec import EncodedItems, encode_items
from offsetmgr.server.apis.api_context import (
    ACL_DESCRIBE,
    ACL_READ,
    NOT_ASKED,
    ApiContext,
    authorized_operations,
    decoded,
    encoded,
    encoded_by_size,
    in_turns,
    portions,
    run_by_size,
    too_many,
)
from offsetmgr.server.network.requests import CLOSE_CONNECTION, Answer, ApiRequest
from offsetmgr.server.security.authorization import Operation

_GROUP: Final = 0
_BROKERS: Final = 1
_MAX_NAMES: Final = 1_000
"""Maximum number of topics in one request to the backing cluster."""
_BATCH: Final = 20
"""Number of topics processed before the handler yields to other clients."""
_KEYS_BATCH: Final = 200
"""Number of FindCoordinator keys processed before the handler yields to other clients."""
_NAMELESS: Final = 12
"""The first version whose response may omit a topic's name (KIP-516)."""
_NO_CLUSTER: Final = {"cluster_id": "", "brokers": []}
NO_NODE: Final = {"node_id": -1, "host": "", "port": -1}


async def metadata(context: ApiContext, request: ApiRequest) -> Answer:
    """Returns topics of the backing cluster, and the managers as brokers.

    If the backing cluster does not respond, the result depends on the client's request. If the request names topics,
    the response contains LEADER_NOT_AVAILABLE for each of them. If the request is for all topics, the manager closes
    the client's connection, because the response has no field for this error and an empty list would be wrong."""
    message = decoded(request)
    requested = message["topics"]
    if requested is None or (request.version == 0 and not requested):
        names, ids = None, []
    else:
        if request.version < _NAMELESS and any(topic["name"] is None for topic in requested):
            raise InvalidRequest("Metadata", f"a topic without a name is allowed only from version {_NAMELESS} on")
        names = [topic["name"] for topic in requested if topic["name"] is not None]
        ids = [topic["topic_id"] for topic in requested if topic["name"] is None and topic.get("topic_id")]
    if names is not None and too_many(request, names):
        raise InvalidRequest("Metadata", f"it names {len(names)} topics")
    codes = await _errors(context, request, names or ())
    rejected = [
        {"error_code": codes[name], "name": name, "topic_id": None, "partitions": []}
        for name in names or ()
        if codes[name]
    ]
    if names is not None:
        names = [name for name in names if not codes[name]]
    try:
        layouts = await _layouts(context, request, names, ids)
    except OffsetMgrError:
        if names is None:
            return CLOSE_CONNECTION
        layouts = [TopicLayout(name, None, ErrorCode.LEADER_NOT_AVAILABLE) for name in names]
        layouts += [TopicLayout(None, topic_id, ErrorCode.LEADER_NOT_AVAILABLE) for topic_id in ids]
    operations = NOT_ASKED
    if message.get("include_topic_authorized_operations"):
        operations = authorized_operations(ACL_DESCRIBE, ACL_READ)
    if names is None or ids:
        codes = await _errors(context, request, [layout.name for layout in layouts if layout.name is not None])
        layouts = [layout for layout in layouts if not codes.get(layout.name or "")]
    response: dict[str, Any] = {
        "error_code": ErrorCode.NONE,
        "brokers": [node._asdict() for node in context.backend.nodes()],
        "cluster_id": await _cluster_id(context),
        "controller_id": context.node_id,
        "topics": await _encoded_topics(context, request, layouts, operations, rejected),
    }
    if message.get("include_cluster_authorized_operations"):
        response["cluster_authorized_operations"] = authorized_operations(ACL_DESCRIBE)
    return await encoded_by_size(request, response)


async def _errors(context: ApiContext, request: ApiRequest, names: Sequence[str]) -> dict[str, int]:
    """Returns `ApiContext.topic_error` of each name. Yields to other clients between batches of names."""
    codes: dict[str, int] = {}
    async for part in in_turns(request, portions(names, _MAX_NAMES)):
        codes |= {name: context.topic_error(request, Operation.DESCRIBE, name) for name in part}
    return codes


async def describe_cluster(context: ApiContext, request: ApiRequest) -> Answer:
    message = decoded(request)
    if message.get("endpoint_type", _BROKERS) != _BROKERS:
        why = "controllers are not reached through an offset manager"
        return encoded(
            request, {**_NO_CLUSTER, "error_code": ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, "error_message": why}
        )
    cluster_id = await _cluster_id(context)
    if cluster_id is None:
        return encoded(request, {**_NO_CLUSTER, "error_code": ErrorCode.REQUEST_TIMED_OUT})
    operations = authorized_operations(ACL_DESCRIBE) if message["include_cluster_authorized_operations"] else NOT_ASKED
    return encoded(
        request,
        {
            "error_code": ErrorCode.NONE,
            "cluster_id": cluster_id,
            "controller_id": context.node_id,
            "brokers": managers_as_brokers(context),
            "cluster_authorized_operations": operations,
        },
    )


def managers_as_brokers(context: ApiContext) -> list[dict[str, Any]]:
    """Returns all managers as brokers of a DescribeCluster response."""
    nodes = context.backend.nodes()
    return [{"broker_id": one.node_id, "host": one.host, "port": one.port, "is_fenced": False} for one in nodes]


def find_coordinator(context: ApiContext, request: ApiRequest) -> bytes | Awaitable[bytes]:
    """Returns the manager that owns each group. From version 4 on, a request may have many keys (KIP-699).

    Unlike a broker, the manager does not check permissions here. This is safe, because the response depends only on the
    hash of the group's name. The handlers of the other requests for a group check the permissions. If this response
    contained an authorization error, librdkafka would retry until its timeout.
    """
    message = decoded(request)
    kind = message.get("key_type", _GROUP)
    if "coordinator_keys" not in message:
        return encoded(request, _coordinator(context, kind, message["key"]))
    keys = list(dict.fromkeys(message["coordinator_keys"]))
    if too_many(request, keys):
        rejected = {**NO_NODE, "error_code": ErrorCode.INVALID_REQUEST, "error_message": None}
        return run_by_size(
            request, lambda: encoded(request, {"coordinators": [{"key": key, **rejected} for key in keys]})
        )
    if len(keys) <= _KEYS_BATCH and len(request.frame) <= LARGE_BYTES:
        return encoded(request, {"coordinators": _coordinators(context, kind, keys)})
    return _many_coordinators(context, request, kind, keys)


async def _many_coordinators(context: ApiContext, request: ApiRequest, kind: int, keys: Sequence[str]) -> bytes:
    """Encodes the response, a few keys at a time. Yields to other clients after each batch of keys."""
    data = bytearray()
    async for part in in_turns(request, portions(keys, _KEYS_BATCH)):
        some = _coordinators(context, kind, part)
        data += encode_items(request.api_key, request.version, "coordinators", some)
    return await encoded_by_size(request, {"coordinators": EncodedItems(len(keys), data)})


def _coordinators(context: ApiContext, kind: int, keys: Sequence[str]) -> list[dict[str, Any]]:
    return [{"key": key, **_coordinator(context, kind, key)} for key in keys]


def _coordinator(context: ApiContext, kind: int, key: str) -> dict[str, Any]:
    if kind != _GROUP:
        why = "an offset manager coordinates only consumer groups, not transactions or share groups"
        return {**NO_NODE, "error_code": ErrorCode.INVALID_REQUEST, "error_message": why}
    node = context.backend.coordinator(key)
    if node is None:
        return {**NO_NODE, "error_code": ErrorCode.COORDINATOR_NOT_AVAILABLE, "error_message": None}
    return {**node._asdict(), "error_code": ErrorCode.NONE, "error_message": None}


async def _layouts(
    context: ApiContext, request: ApiRequest, names: Sequence[str] | None, ids: Sequence[Any]
) -> Sequence[TopicLayout]:
    """Returns the topics. Yields to other clients between batches of names."""
    topics = context.cluster.topics
    if names is None or len(names) <= _MAX_NAMES:
        return await topics(names, ids)
    layouts = list(await topics([], ids)) if ids else []
    async for part in in_turns(request, batched(names, _MAX_NAMES)):
        layouts += await topics(part, ())
    return layouts


async def _encoded_topics(
    context: ApiContext,
    request: ApiRequest,
    layouts: Sequence[TopicLayout],
    operations: int,
    rejected: Sequence[Mapping[str, Any]],
) -> EncodedItems:
    """Encodes a few topics at a time, since there may be hundreds of thousands of partitions."""
    data = bytearray(encode_items(request.api_key, request.version, "topics", rejected))
    async for part in in_turns(request, batched(layouts, _BATCH)):
        some = [{**_topic(context, layout), "topic_authorized_operations": operations} for layout in part]
        data += encode_items(request.api_key, request.version, "topics", some)
    return EncodedItems(len(rejected) + len(layouts), data)


async def _cluster_id(context: ApiContext) -> str | None:
    """Returns the cluster's id; None while it is unknown. A client that gets None receives the id with a later Metadata
    response."""
    try:
        return await context.cluster.cluster_id()
    except OffsetMgrError:
        return None


def _topic(context: ApiContext, layout: TopicLayout) -> dict[str, Any]:
    own_node = [context.node_id]
    return {
        "error_code": layout.error,
        "name": layout.name,
        "topic_id": layout.topic_id,
        "is_internal": layout.internal,
        "partitions": [
            {
                "error_code": part.error,
                "partition_index": part.partition,
                "leader_id": -1 if part.leader is None else context.node_id,
                "leader_epoch": part.leader_epoch,
                "replica_nodes": own_node,
                "isr_nodes": own_node,
            }
            for part in layout.partitions
        ],
    }
