"""`RequestFilter`: rejects clients' access to the managers' own names, and requests that no rule allows.

The brokers see the manager's principal, which may read and write the offsets topic and all relayed topics. So the relay
itself rejects requests for the offsets topic (by name and by id), the managers' group and the shards' transactional
ids. These names are *reserved*. If there are rules, the filter checks the operation that `ApiResources` has for the
request's topics and transactional id, as a broker's authorizer does.

Without rules, the filter decodes only few requests. All reserved names begin with the name of the offsets topic, and
requests contain names as plain bytes. So a request that does not contain the bytes of that name contains no reserved
name. With rules, the filter reads the topics of a Produce or Fetch without decoding the request, and decodes requests
of other APIs. A Fetch from version 13 on has topic ids: the filter asks a broker once for the name of each id.

If only some items are rejected, the filter removes them from the request, and adds their errors to the broker's
response, which is collected whole instead of streamed. A large request is decoded, checked and encoded again in the
codec thread. During this work, and during a lookup, later requests of the same connection wait, because a producer's
requests must stay in the order of their sequence numbers.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from offsetmgr.core.errors import ErrorCode, InvalidRequest, OffsetMgrError, Unreachable
from offsetmgr.kafka.protocol.frames import LARGE_BYTES, in_codec_thread
from offsetmgr.kafka.protocol.releases import ApiKey
from offsetmgr.kafka.protocol.schema_codec import (
    INT16,
    INT32,
    NO_TAGS,
    Message,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    is_known,
    request_is_flexible,
)
from offsetmgr.server.apis.api_context import NOT_ASKED
from offsetmgr.server.network.requests import (
    CLOSE_CONNECTION,
    Answer,
    ApiRequest,
    CloseConnection,
    DeferredWork,
    Frame,
    HandlerResult,
)
from offsetmgr.server.proxy.api_resources import (
    API_RESOURCES,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    ApiResources,
    error_response,
    hide_items,
    requested_items,
    with_items,
)
from offsetmgr.server.proxy.client_upstreams import UpstreamRegistry
from offsetmgr.server.proxy.fetch_sessions import FetchSessions, session_in, session_of
from offsetmgr.server.proxy.topic_ids import TopicIds, fetched_topics, old_topics, produced_topics
from offsetmgr.server.proxy.upstream import UpstreamConnection
from offsetmgr.server.security.authorization import (
    ADMIN_APIS,
    Authorizer,
    Operation,
    ReservedGroups,
    ReservedGroupsAuthorizer,
)

T = TypeVar("T")

_FETCH_BY_ID: Final = 13
_FINAL_EPOCH: Final = -1
"""The session epoch of a Fetch that belongs to no session."""
_DELETE_BY_ID: Final = 6
_LARGE_BYTES: Final = LARGE_BYTES // 4
"""Size above which the codec thread checks a message. It is smaller than `LARGE_BYTES`, because checking and encoding a
message takes three times as long as decoding it."""


class _FilterResult(NamedTuple):
    """The result of a check. If all fields have their defaults, the request is forwarded unchanged."""

    answer: Frame | CloseConnection | None = None
    """The response that rejects the whole request."""
    remaining: ApiRequest | None = None
    """The request to forward instead of the original request. It does not contain the rejected items."""
    rejected: Sequence[Message] = ()
    """The items to add to the response, with the errors of the rejected items."""
    unresolved: tuple[Message, Collection[uuid.UUID]] | None = None
    """A decoded request that cannot be checked before the names of these topic ids are known. If there are no ids, the
    request stands for all topics."""


_UNCHANGED: Final = _FilterResult()


class RequestFilter:
    """The filter for all requests of one relay. Use it in one event loop."""

    def __init__(
        self, upstreams: UpstreamRegistry, ids: TopicIds, authorizer: Authorizer, reserved: ReservedGroups
    ) -> None:
        self._upstreams = upstreams
        self._ids = ids
        self.authorizer = ReservedGroupsAuthorizer(authorizer, reserved) if reserved.topic else authorizer
        """Denies the reserved names, and what the rules do not allow."""
        self.has_rules = authorizer.has_rules
        self._sessions = FetchSessions()
        self.reserved = reserved
        self._reserved_bytes = reserved.topic.encode()

    def may_name_reserved(self, frame: bytes) -> bool:
        """Whether a request or response may contain a reserved name."""
        return bool(self._reserved_bytes) and self._reserved_bytes in frame

    def filter(self, request: ApiRequest, forward: Callable[[UpstreamConnection], HandlerResult]) -> HandlerResult:
        """Rejects a request, forwards it in part, or calls ``forward`` to forward it unchanged.

        The API is one of `API_RESOURCES`. Raises `InvalidRequest`.
        """
        resources = API_RESOURCES[request.api_key]
        if not self._must_decode(request) or (request.api_key == ApiKey.PRODUCE and self._may_produce(request)):
            return self._outcome(request, resources, forward, _UNCHANGED)
        if len(request.frame) > _LARGE_BYTES:
            return DeferredWork(partial(self._check, request), partial(self._outcome, request, resources, forward))
        return self._outcome(request, resources, forward, self._check(request))

    def _outcome(
        self,
        request: ApiRequest,
        resources: ApiResources,
        forward: Callable[[UpstreamConnection], HandlerResult],
        result: _FilterResult,
    ) -> HandlerResult:
        is_checked = self.has_rules or bool(self._reserved_bytes)
        session = session_of(request) if request.api_key == ApiKey.FETCH and is_checked else None
        if session is not None and session.id and not self._sessions.is_known(request.connection, session.id):
            return session_unknown(request)
        if result.unresolved is not None:
            work = self._resolve(request, resources, *result.unresolved)
            return DeferredWork(work, partial(self._outcome, request, resources, forward))
        if result.answer is not None:
            return result.answer
        try:
            upstream = self._upstreams.of(request.connection).for_port()
        except Unreachable:
            return CLOSE_CONNECTION
        if result.remaining is not None or (self._reserved_bytes and resources.visible_items is not None):
            response = upstream.ask(result.remaining or request)
            return self._filtered_response(request, resources, response, result.rejected)
        if session is not None and session.epoch == 0:
            return upstream.forward(request, partial(self._record_session, request))
        return forward(upstream)

    def _record_session(self, request: ApiRequest, head: bytes) -> None:
        self._sessions.record(request.connection, session_in(request.version, head))

    def _must_decode(self, request: ApiRequest) -> bool:
        """Whether the request must be decoded."""
        key, version = request.api_key, request.version
        resources = API_RESOURCES[key]
        if self.has_rules and (key in ADMIN_APIS or resources.items or resources.transactional_id):
            return True
        if not self._reserved_bytes:
            return False
        by_id = (key == ApiKey.FETCH and version >= _FETCH_BY_ID) or (
            key == ApiKey.DELETE_TOPICS and version >= _DELETE_BY_ID
        )
        return by_id or key == ApiKey.ELECT_LEADERS or self._reserved_bytes in request.frame

    def _check(self, request: ApiRequest) -> _FilterResult:
        """Decodes and checks a request; runs in the codec thread if it is large. Raises `InvalidRequest`."""
        resources = API_RESOURCES[request.api_key]
        if request.api_key == ApiKey.FETCH and self._may_fetch(request):
            return _UNCHANGED
        named = old_topics(request)
        if named is not None and self._topics_allowed(request, resources.operation, named):
            return _UNCHANGED
        message = _decoded(request)
        items = requested_items(resources, message)
        key, unknown = request.api_key, self._ids.unknown(_ids(items))
        if unknown or (self.has_rules and items is None and key == ApiKey.DESCRIBE_TOPIC_PARTITIONS):
            right = key if key in ADMIN_APIS else resources.operation
            if self.authorizer.any_topic(request.connection.principal or "", right):
                return _FilterResult(unresolved=(message, unknown))
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return self._reject(request, resources, message, [code] * len(items or ()), code)
        return self._check_items(request, resources, message)

    def _may_fetch(self, request: ApiRequest) -> bool:
        topics = fetched_topics(request)
        if topics is not None and request.version >= _FETCH_BY_ID:
            topics = list(map(self._ids.name, topics))
        return topics is not None and None not in topics and self._topics_allowed(request, Operation.CONSUME, topics)

    def _may_produce(self, request: ApiRequest) -> bool:
        if (produced := produced_topics(request)) is None:
            return False
        transactional_id, topics = produced
        is_id_allowed = transactional_id is None or self._id_allowed(request, transactional_id)
        return is_id_allowed and self._topics_allowed(request, Operation.PRODUCE, topics)

    def _topics_allowed(self, request: ApiRequest, operation: Operation, topics: Iterable[str]) -> bool:
        principal = request.connection.principal or ""
        return all(self.authorizer.allows(principal, operation, topic, "topics") for topic in topics)

    def _id_allowed(self, request: ApiRequest, transactional_id: str) -> bool:
        principal = request.connection.principal or ""
        return self.authorizer.allows(principal, Operation.PRODUCE, transactional_id, "transactional_ids")

    async def _resolve(
        self, request: ApiRequest, resources: ApiResources, message: Message, unknown: Collection[uuid.UUID]
    ) -> _FilterResult:
        """Asks a broker for the names of unknown ids, or of all topics, then checks the request."""
        try:
            if not unknown:
                message = await self._with_visible_topics(request, message)
                if not message["topics"]:
                    return _FilterResult(response_frame(request, message))
                return _FilterResult(remaining=with_body(request, message))
            await self._ids.resolve(request.connection.principal or "", unknown)
        except OffsetMgrError:
            return _FilterResult(CLOSE_CONNECTION)
        check = partial(self._check_items, request, resources, message)
        return await run_by_message_size(check, len(request.frame))

    async def _with_visible_topics(self, request: ApiRequest, message: Message) -> Message:
        """Replaces "all topics" in a DescribeTopicPartitions request by the topics that the client may describe, so
        that the broker's next cursor names one of these."""
        cursor = message["cursor"]
        start = cursor["topic_name"] if cursor else ""
        known = await self._ids.all_topics(request.connection.principal or "")
        found = sorted(name for name in known if name >= start)
        names = [name for name in found if self._topics_allowed(request, Operation.DESCRIBE, [name])]
        if cursor and names and names[0] != start:  # a broker rejects a cursor whose topic the request does not name
            cursor = {"topic_name": names[0], "partition_index": 0}
        return {**message, "topics": [{"name": name} for name in names], "cursor": cursor}

    def _check_items(self, request: ApiRequest, resources: ApiResources, message: Message) -> _FilterResult:
        key, principal = request.api_key, request.connection.principal or ""
        items = requested_items(resources, message)
        own_id = message.get(resources.transactional_id) if resources.transactional_id else None
        if own_id is not None and not self._id_allowed(request, own_id):
            code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            return self._reject(request, resources, message, [code] * len(items or ()), code)
        if not items:
            everything = items is None and resources.visible_items is None and bool(self._reserved_bytes)
            admin = key in ADMIN_APIS and not self.authorizer.admin(principal, key, None)
            idempotent = key == ApiKey.INIT_PRODUCER_ID and own_id is None
            if everything or admin or (idempotent and not self.authorizer.any_topic(principal, Operation.PRODUCE)):
                return self._reject(request, resources, message, [], ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        if key == ApiKey.FETCH and self.has_rules and _is_of_replica(message):
            codes: list[int] = [ErrorCode.TOPIC_AUTHORIZATION_FAILED] * len(items or ())
        else:
            codes = [self._code(request, resources, item) for item in items or ()]
        if not any(codes):
            return _UNCHANGED
        if key == ApiKey.FETCH:
            if message.get("session_epoch", _FINAL_EPOCH) > 0:
                return _FilterResult(session_unknown(request))
            # Without a session, the client names the rejected topics, and gets their errors, in every request.
            message = {**message, "session_epoch": _FINAL_EPOCH}
        kept = [item for item, code in zip(items or (), codes, strict=True) if not code]
        nothing_left = not kept and not message.get("session_id")
        if (
            nothing_left
            or resources.all_or_nothing
            or resources.error_item is None
            or (key == ApiKey.PRODUCE and not message["acks"])
        ):
            return self._reject(request, resources, message, codes, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        rejected = [resources.error_item(item, code) for item, code in zip(items or (), codes, strict=True) if code]
        return _FilterResult(remaining=with_body(request, with_items(resources, message, kept)), rejected=rejected)

    def _code(self, request: ApiRequest, resources: ApiResources, item: Any) -> int:
        """Returns the error code for an item of a request; 0 if the item is allowed."""
        key, principal = request.api_key, request.connection.principal or ""
        name = item if isinstance(item, str) else item.get(resources.name, item.get("name"))
        if resources.kind == "transaction":
            allowed = not self.reserved.has_transactional_id(name) and self._admin_allowed(principal, key)
            return 0 if allowed else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        kind = item["resource_type"] if resources.kind == "resource" else TOPIC_RESOURCE
        if kind == GROUP_RESOURCE:
            allowed = name != self.reserved.group and self._admin_allowed(principal, key)
            return 0 if allowed else ErrorCode.GROUP_AUTHORIZATION_FAILED
        if kind != TOPIC_RESOURCE or resources.kind == "other":
            return 0 if self._admin_allowed(principal, key) else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        if name is None:
            name = self._ids.name(item.get("topic_id"))
            if name is None:
                return ErrorCode.UNKNOWN_TOPIC_ID
        if key in ADMIN_APIS:
            allowed = self.authorizer.admin(principal, key, name)
        else:
            allowed = self.authorizer.allows(principal, resources.operation, name, "topics")
        return 0 if allowed else ErrorCode.TOPIC_AUTHORIZATION_FAILED

    def _admin_allowed(self, principal: str, key: int) -> bool:
        return key not in ADMIN_APIS or self.authorizer.admin(principal, key, None)

    def _reject(
        self, request: ApiRequest, resources: ApiResources, message: Message, codes: list[int], code: int
    ) -> _FilterResult:
        if request.api_key == ApiKey.PRODUCE and not message["acks"]:
            # The client expects no response, so only a closed connection can report the error.
            return _FilterResult(CLOSE_CONNECTION)
        return _FilterResult(response_frame(request, error_response(resources, message, codes, code)))

    async def _filtered_response(
        self, request: ApiRequest, resources: ApiResources, response: Awaitable[bytes], rejected: Sequence[Message]
    ) -> Answer:
        """Adds the errors of rejected items to the broker's response, removes the reserved names, and returns the
        result."""
        try:
            frame = await response
        except OffsetMgrError:
            return CLOSE_CONNECTION
        has_reserved = resources.visible_items is not None and self.may_name_reserved(frame)
        has_operations = self.has_rules and request.api_key == ApiKey.DESCRIBE_TOPIC_PARTITIONS
        if not rejected and not has_reserved and not has_operations:
            return Frame(frame)

        def rewrite() -> Frame:
            answer = decode_broker_response(request, frame)
            if has_reserved:
                answer = hide_items(resources, answer, self._is_reserved)
            if has_operations:  # of the manager, not of the client
                answer["topics"] = [{**one, "topic_authorized_operations": NOT_ASKED} for one in answer["topics"]]
            if rejected:
                answer[resources.response_items] = [*(answer[resources.response_items] or ()), *rejected]
            return response_frame(request, answer)

        return await run_by_message_size(rewrite, max(len(frame), len(request.frame)))

    def _is_reserved(self, kind: str, item: Message) -> bool:
        if kind == "transaction":
            return self.reserved.has_transactional_id(item["transactional_id"])
        if kind == "resource":
            names = {TOPIC_RESOURCE: self.reserved.topic, GROUP_RESOURCE: self.reserved.group}
            return bool(item["resource_name"] == names.get(item["resource_type"]))
        return bool(item["name"] == self.reserved.topic)


def session_unknown(request: ApiRequest) -> Frame:
    """Returns a response to a Fetch that makes the client begin a new session."""
    return response_frame(request, {"error_code": ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "responses": []})


def _is_of_replica(message: Message) -> bool:
    """Whether a Fetch claims to be a replica's request. A broker accepts it only from other brokers."""
    state: Message = message.get("replica_state") or message
    return bool(state.get("replica_id", -1) >= 0)


def response_frame(request: ApiRequest, message: Message) -> Frame:
    """Encodes a whole response to the request."""
    body = encode_response(request.api_key, request.version, message)
    head = INT32.pack(request.correlation)
    if request_is_flexible(request.api_key, request.version):
        head += NO_TAGS
    return Frame(b"".join((INT32.pack(len(head) + len(body)), head, body)))


def decode_broker_response(request: ApiRequest, frame: bytes) -> Message:
    """Decodes a broker's whole response to the request. Raises `InvalidRequest`."""
    flexible = request_is_flexible(request.api_key, request.version)
    return decode_response(request.api_key, request.version, frame, 9 if flexible else 8)


async def run_by_message_size(work: Callable[[], T], size: int) -> T:
    """Calls ``work``, which processes a message of ``size`` bytes. If the message is large, the call runs in the codec
    thread."""
    return await in_codec_thread(work) if size > _LARGE_BYTES else work()


def _decoded(request: ApiRequest) -> Message:
    key, version = request.api_key, request.version
    if not is_known(key, version):
        raise InvalidRequest(f"API {key} version {version}", "the relay cannot reject a part of a request this old")
    flexible = request_is_flexible(key, version)
    return decode_request(key, version, request.frame, request.cursor(flexible=flexible).at)


def with_body(request: ApiRequest, message: Message, min_version: int = 0) -> ApiRequest:
    """Returns the request with ``message`` as its body, and at least in ``min_version``, whose header must be equal."""
    key, version = request.api_key, max(request.version, min_version)
    head = request.frame[4 : request.cursor(flexible=request_is_flexible(key, version)).at]
    head = head[:2] + INT16.pack(version) + head[4:]
    body = encode_request(key, version, message)
    return ApiRequest(request.connection, b"".join((INT32.pack(len(head) + len(body)), head, body)))


def _ids(items: Iterable[Any] | None) -> list[uuid.UUID]:
    """Returns the ids of topics that have an id and no name."""
    return [
        item["topic_id"]
        for item in items or ()
        if not isinstance(item, str) and item.get("topic_id") and not item.get("name")
    ]
