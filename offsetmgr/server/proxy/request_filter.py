"""`RequestFilter`: rejects clients' access to the managers' own names, and admin APIs that no rule allows.

The brokers see the manager's principal, which may read and write the offsets topic. So the relay itself rejects
requests for the offsets topic (by name and by id), the managers' group and the shards' transactional ids. These names
are *reserved*.

The filter decodes only few requests. All reserved names begin with the name of the offsets topic, and requests contain
names as plain bytes. So a request that does not contain the bytes of that name contains no reserved name. A Fetch from
version 13 on has topic ids: the filter reads them, and asks a broker once for the name of each id.

If only some items are rejected, the filter removes them from the request, and adds their errors to the broker's
response, which is collected whole instead of streamed. A large request is decoded, checked and encoded again in the
codec thread. During this work, later requests of the same connection wait, because a producer's requests must stay in
the order of their sequence numbers.
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
from offsetmgr.server.proxy.topic_ids import TopicIds, fetched_ids
from offsetmgr.server.proxy.upstream import UpstreamConnection
from offsetmgr.server.security.authorization import ADMIN_APIS, Authorizer, ReservedGroups

T = TypeVar("T")

_FETCH_SESSIONS: Final = 7
_FETCH_BY_ID: Final = 13
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
    """A decoded request that cannot be checked before the names of these topic ids are known."""


_UNCHANGED: Final = _FilterResult()


class RequestFilter:
    """The filter for all requests of one relay. Use it in one event loop."""

    def __init__(
        self, upstreams: UpstreamRegistry, ids: TopicIds, authorizer: Authorizer, reserved: ReservedGroups
    ) -> None:
        self._upstreams = upstreams
        self._ids = ids
        self._authorizer = authorizer
        self._has_rules = authorizer.has_rules
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
        if not self._must_decode(request):
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
        session = session_of(request) if request.api_key == ApiKey.FETCH and self._reserved_bytes else None
        node_id = request.connection.node_id if session is not None else None
        if session is not None and session.id and not self._sessions.is_known(node_id, session.id):
            return response_frame(request, {"error_code": ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "responses": []})
        if result.unresolved is not None:
            return self._resolve_and_forward(request, resources, *result.unresolved)
        if result.answer is not None:
            return result.answer
        try:
            upstream = self._upstreams.of(request.connection).for_port()
        except Unreachable:
            return CLOSE_CONNECTION
        inspects_response = bool(self._reserved_bytes) and (
            resources.visible_items is not None or (session is not None and session.epoch == 0)
        )
        if result.remaining is None and not inspects_response:
            return forward(upstream)
        return self._filtered_response(request, resources, upstream.ask(result.remaining or request), result.rejected)

    def _must_decode(self, request: ApiRequest) -> bool:
        """Whether the request must be decoded."""
        key, version = request.api_key, request.version
        if self._has_rules and key in ADMIN_APIS:
            return True
        if not self._reserved_bytes:
            return False
        by_id = (key == ApiKey.FETCH and version >= _FETCH_BY_ID) or (
            key == ApiKey.DELETE_TOPICS and version >= _DELETE_BY_ID
        )
        return by_id or key == ApiKey.ELECT_LEADERS or self._reserved_bytes in request.frame

    def _check(self, request: ApiRequest) -> _FilterResult:
        """Decodes and checks a request; runs in the codec thread if it is large. Raises `InvalidRequest`."""
        if request.api_key == ApiKey.FETCH and request.version >= _FETCH_BY_ID:
            ids = fetched_ids(request.frame, request.body(flexible=True), request.version)
            if ids is not None and all(map(self._is_allowed, ids)):
                return _UNCHANGED
        resources, message = API_RESOURCES[request.api_key], _decoded(request)
        if unknown := self._ids.unknown(_ids(requested_items(resources, message))):
            return _FilterResult(unresolved=(message, unknown))
        return self._check_items(request, resources, message)

    def _is_allowed(self, topic_id: uuid.UUID | None) -> bool:
        name = self._ids.name(topic_id)
        return name is not None and name != self.reserved.topic

    async def _resolve_and_forward(
        self, request: ApiRequest, resources: ApiResources, message: Message, unknown: Collection[uuid.UUID]
    ) -> Answer:
        """Asks a broker for the names of unknown ids, then checks and forwards the request. Later requests of the
        client may be forwarded before this request."""
        try:
            await self._ids.resolve(unknown)
        except OffsetMgrError:
            return CLOSE_CONNECTION
        check = partial(self._check_items, request, resources, message)
        result = await run_by_message_size(check, len(request.frame))
        if result.answer is not None:
            return result.answer
        response = self._upstreams.of(request.connection).ask_separately(result.remaining or request)
        return await self._filtered_response(request, resources, response, result.rejected)

    def _check_items(self, request: ApiRequest, resources: ApiResources, message: Message) -> _FilterResult:
        key, principal = request.api_key, request.connection.principal or ""
        items = requested_items(resources, message)
        own_id = message.get(resources.transactional_id) if resources.transactional_id else None
        if own_id is not None and self.reserved.has_transactional_id(own_id):
            code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            return self._reject(request, resources, message, [code] * len(items or ()), code)
        if not items:
            everything = items is None and resources.visible_items is None and bool(self._reserved_bytes)
            admin = key in ADMIN_APIS and not self._authorizer.admin(principal, key, None)
            if everything or admin:
                return self._reject(request, resources, message, [], ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        codes = [self._code(key, principal, resources, item) for item in items or ()]
        if not any(codes):
            return _UNCHANGED
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

    def _code(self, key: int, principal: str, resources: ApiResources, item: Any) -> int:
        """Returns the error code for an item of a request; 0 if the item is allowed."""
        name = item if isinstance(item, str) else item.get(resources.name, item.get("name"))
        if resources.kind == "transaction":
            allowed = not self.reserved.has_transactional_id(name) and self._admin_allowed(principal, key, None)
            return 0 if allowed else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        kind = item["resource_type"] if resources.kind == "resource" else TOPIC_RESOURCE
        if kind == GROUP_RESOURCE:
            allowed = name != self.reserved.group and self._admin_allowed(principal, key, None)
            return 0 if allowed else ErrorCode.GROUP_AUTHORIZATION_FAILED
        if kind != TOPIC_RESOURCE or resources.kind == "other":
            return 0 if self._admin_allowed(principal, key, None) else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        if name is None:
            name = self._ids.name(item.get("topic_id"))
            if name is None:
                return ErrorCode.UNKNOWN_TOPIC_ID
        allowed = (not self._reserved_bytes or name != self.reserved.topic) and self._admin_allowed(
            principal, key, name
        )
        return 0 if allowed else ErrorCode.TOPIC_AUTHORIZATION_FAILED

    def _admin_allowed(self, principal: str, key: int, topic: str | None) -> bool:
        return key not in ADMIN_APIS or self._authorizer.admin(principal, key, topic)

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
        if request.api_key == ApiKey.FETCH and request.version >= _FETCH_SESSIONS:
            self._sessions.record(request.connection.node_id, session_in(request.version, frame))
        has_reserved = resources.visible_items is not None and self.may_name_reserved(frame)
        if not rejected and not has_reserved:
            return Frame(frame)

        def rewrite() -> Frame:
            answer = decode_broker_response(request, frame)
            if has_reserved:
                answer = hide_items(resources, answer, self._is_reserved)
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
        raise InvalidRequest(f"API {key} version {version}", "the relay cannot determine which resources are named")
    flexible = request_is_flexible(key, version)
    return decode_request(key, version, request.frame, request.body(flexible=flexible))


def with_body(request: ApiRequest, message: Message) -> ApiRequest:
    """Returns the request with ``message`` as its body."""
    key, version = request.api_key, request.version
    head = request.frame[4 : request.body(flexible=request_is_flexible(key, version))]
    body = encode_request(key, version, message)
    return ApiRequest(request.connection, b"".join((INT32.pack(len(head) + len(body)), head, body)))


def _ids(items: Iterable[Any] | None) -> list[uuid.UUID]:
    """Returns the ids of topics that have an id and no name."""
    return [
        item["topic_id"]
        for item in items or ()
        if not isinstance(item, str) and item.get("topic_id") and not item.get("name")
    ]
