"""`RequestScreen`: protects the managers' own names from clients of the relay, and admin APIs that no rule allows.

The brokers see the manager's principal, which may read and write the offsets topic. So the relay itself rejects
requests for the offsets topic (by name and by id), the managers' group and the shards' transactional ids.

Most requests are not decoded. A topic's name is plain bytes in a request, and the reserved group and transactional ids
begin with the topic's name: a request without these bytes names nothing reserved. A Fetch from version 13 on names
topics by id: its ids are read, and the relay asks a broker once for the name of each id.

Rejected items are removed from the request, and their errors are added to the broker's response. Such a response is
collected whole, not streamed. A large request is read, judged and encoded again in the codec thread; no later request
of its connection overtakes it there, since producers' requests must keep the order of their sequence numbers.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.core.errors import InvalidRequest, OffsetMgrError, Unreachable
from offsetmgr.kafka.protocol.api_key import ApiKey
from offsetmgr.kafka.protocol.codec_thread import LARGE_BYTES, in_codec_thread
from offsetmgr.kafka.protocol.primitives import INT32, NO_TAGS
from offsetmgr.kafka.protocol.schema_codec import (
    Message,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    is_known,
    request_is_flexible,
)
from offsetmgr.server.network.api import (
    CLOSE_CONNECTION,
    Answer,
    ApiRequest,
    CloseConnection,
    DeferredWork,
    Frame,
    HandlerResult,
)
from offsetmgr.server.proxy.access import (
    ACCESS,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    Access,
    listed,
    refusal,
    shown_without,
    without,
)
from offsetmgr.server.proxy.broker_connections import ProxyLinks
from offsetmgr.server.proxy.fetch_sessions import FetchSessions, session_in, session_of
from offsetmgr.server.proxy.topic_ids import TopicIds, fetched_ids
from offsetmgr.server.proxy.upstream import UpstreamConnection
from offsetmgr.server.security.authorization import ADMIN_APIS, AllowAllAuthorizer, Authorizer, ReservedGroups

T = TypeVar("T")

_FETCH_SESSIONS: Final = 7
_FETCH_BY_ID: Final = 13
_DELETE_BY_ID: Final = 6
_LARGE_BYTES: Final = LARGE_BYTES // 4
"""Messages above this size go to the codec thread: judging and encoding again takes three times as long as decoding."""


class _UndecidedRequest(NamedTuple):
    """A decoded request that cannot be judged before the names of its ids are known."""

    message: Message
    unknown: Collection[uuid.UUID]


class _Verdict(NamedTuple):
    """The judgement of a request; all defaults mean no objection."""

    answer: Frame | CloseConnection | None = None
    """The response if the whole request is rejected."""
    rest: ApiRequest | None = None
    """The request to forward if a part is ``refused``."""
    refused: Sequence[Message] = ()
    """Items of the response."""
    undecided: _UndecidedRequest | None = None


_PASSES: Final = _Verdict()


class RequestScreen:
    """Use it in one event loop."""

    def __init__(self, links: ProxyLinks, ids: TopicIds, authorizer: Authorizer, reserved: ReservedGroups) -> None:
        self._links = links
        self._ids = ids
        self._authorizer = authorizer
        self._rules = not isinstance(authorizer, AllowAllAuthorizer)
        self._sessions = FetchSessions()
        self.reserved = reserved
        self._mark = reserved.topic.encode()

    def marks(self, frame: bytes) -> bool:
        """Whether these bytes may name anything reserved."""
        return bool(self._mark) and self._mark in frame

    def screened(self, request: ApiRequest, forward: Callable[[UpstreamConnection], HandlerResult]) -> HandlerResult:
        """The outcome of a request; ``forward`` forwards it unchanged.

        Raises `InvalidRequest` if the relay cannot judge it.
        """
        access = _access(request)
        if not self._suspect(request):
            return self._outcome(request, access, forward, _PASSES)
        if len(request.frame) > _LARGE_BYTES:
            return DeferredWork(partial(self._examined, request), partial(self._outcome, request, access, forward))
        return self._outcome(request, access, forward, self._examined(request))

    def _outcome(
        self,
        request: ApiRequest,
        access: Access,
        forward: Callable[[UpstreamConnection], HandlerResult],
        verdict: _Verdict,
    ) -> HandlerResult:
        session = session_of(request) if request.api_key == ApiKey.FETCH and self._mark else None
        node_id = request.connection.listener.node_id if session is not None else None
        if session is not None and session.id and not self._sessions.given(node_id, session.id):
            return framed(
                request, {"error_code": ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "session_id": 0, "responses": []}
            )
        if verdict.undecided is not None:
            return self._apart(request, access, verdict.undecided)
        if verdict.answer is not None:
            return verdict.answer
        try:
            upstream = self._links.of(request.connection).data()
        except Unreachable:
            return CLOSE_CONNECTION
        looks = bool(self._mark) and (access.shown is not None or (session is not None and session.begins))
        if verdict.rest is None and not looks:
            return forward(upstream)
        return self._answered(request, access, upstream.ask(verdict.rest or request), verdict.refused)

    def _suspect(self, request: ApiRequest) -> bool:
        """Whether the request must be decoded."""
        key, version = request.api_key, request.version
        if self._rules and key in ADMIN_APIS:
            return True
        if not self._mark:
            return False
        by_id = (key == ApiKey.FETCH and version >= _FETCH_BY_ID) or (
            key == ApiKey.DELETE_TOPICS and version >= _DELETE_BY_ID
        )
        return by_id or key == ApiKey.ELECT_LEADERS or self._mark in request.frame

    def _examined(self, request: ApiRequest) -> _Verdict:
        """Called in the codec thread for large requests. Raises `InvalidRequest`."""
        if request.api_key == ApiKey.FETCH and request.version >= _FETCH_BY_ID:
            ids = fetched_ids(request.frame, request.body(flexible=True), request.version)
            if ids is not None and all(map(self._harmless, ids)):
                return _PASSES
        access, message = _access(request), _decoded(request)
        if unknown := self._ids.unknown(_ids(listed(access, message))):
            return _Verdict(undecided=_UndecidedRequest(message, unknown))
        return self._judged(request, access, message)

    def _harmless(self, topic_id: uuid.UUID | None) -> bool:
        name = self._ids.name(topic_id)
        return name is not None and name != self.reserved.topic

    async def _apart(self, request: ApiRequest, access: Access, undecided: _UndecidedRequest) -> Answer:
        """The response after a broker has returned the names of ids. By then later requests of the client may have been
        forwarded."""
        try:
            await self._ids.learn(undecided.unknown)
        except OffsetMgrError:
            return CLOSE_CONNECTION
        judge = partial(self._judged, request, access, undecided.message)
        verdict = await unhurried(judge, len(request.frame))
        if verdict.answer is not None:
            return verdict.answer
        return await self._answered(request, access, self._ask_apart(verdict.rest or request), verdict.refused)

    async def _ask_apart(self, request: ApiRequest) -> bytes:
        """The response, over a separate connection. Raises `Unreachable`."""
        link = self._links.of(request.connection)
        upstream = link.apart()
        try:
            return await upstream.ask(request)
        finally:
            link.end(upstream)

    def _judged(self, request: ApiRequest, access: Access, message: Message) -> _Verdict:
        key, principal = request.api_key, request.connection.principal or ""
        items = listed(access, message)
        own_id = message.get(access.transactional_id) if access.transactional_id else None
        if own_id is not None and self.reserved.has_transactional_id(own_id):
            code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            return _Verdict(self._refused(request, access, message, [code] * len(items or ()), code))
        if not items:
            everything = items is None and access.shown is None and bool(self._mark)
            admin = key in ADMIN_APIS and not self._authorizer.admin(principal, key, None)
            if everything or admin:
                return _Verdict(self._refused(request, access, message, [], ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
        codes = [self._code(key, principal, access, item) for item in items or ()]
        if not any(codes):
            return _PASSES
        kept = [item for item, code in zip(items or (), codes, strict=True) if not code]
        alone = not kept and not message.get("session_id")
        if alone or access.together or access.refused is None or (key == ApiKey.PRODUCE and not message["acks"]):
            return _Verdict(self._refused(request, access, message, codes, ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
        refused = [access.refused(item, code) for item, code in zip(items or (), codes, strict=True) if code]
        return _Verdict(rest=renewed(request, without(access, message, kept)), refused=refused)

    def _code(self, key: int, principal: str, access: Access, item: Any) -> int:
        """The error code for a named item of a request; 0 if there is no objection."""
        name = item if isinstance(item, str) else item.get(access.name, item.get("name"))
        if access.kind == "transaction":
            allowed = not self.reserved.has_transactional_id(name) and self._may(principal, key, None)
            return 0 if allowed else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        kind = item["resource_type"] if access.kind == "resource" else TOPIC_RESOURCE
        if access.kind == "other":
            return 0 if self._may(principal, key, None) else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        if kind == GROUP_RESOURCE:
            allowed = name != self.reserved.group and self._may(principal, key, None)
            return 0 if allowed else ErrorCode.GROUP_AUTHORIZATION_FAILED
        if kind != TOPIC_RESOURCE:
            return 0 if self._may(principal, key, None) else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        if name is None:
            name = self._ids.name(item.get("topic_id"))
            if name is None:
                return ErrorCode.UNKNOWN_TOPIC_ID
        allowed = (not self._mark or name != self.reserved.topic) and self._may(principal, key, name)
        return 0 if allowed else ErrorCode.TOPIC_AUTHORIZATION_FAILED

    def _may(self, principal: str, key: int, topic: str | None) -> bool:
        return key not in ADMIN_APIS or self._authorizer.admin(principal, key, topic)

    def _refused(
        self, request: ApiRequest, access: Access, message: Message, codes: list[int], code: int
    ) -> Frame | CloseConnection:
        if request.api_key == ApiKey.PRODUCE and not message["acks"]:
            return CLOSE_CONNECTION  # a client that asks for no response learns of errors from the closed connection
        return framed(request, refusal(access, message, codes, code))

    async def _answered(
        self, request: ApiRequest, access: Access, asked: Awaitable[bytes], refused: Sequence[Message]
    ) -> Answer:
        """The broker's response to the forwarded part, with the rejected items added and the hidden items removed."""
        try:
            frame = await asked
        except OffsetMgrError:
            return CLOSE_CONNECTION
        if request.api_key == ApiKey.FETCH and request.version >= _FETCH_SESSIONS:
            self._sessions.note(request.connection.listener.node_id, session_in(request.version, frame))
        hides = access.shown is not None and self.marks(frame)
        if not refused and not hides:
            return Frame(frame)

        def changed() -> Frame:
            answer = answer_of(request, frame)
            if hides:
                answer = shown_without(access, answer, self._hidden)
            if refused:
                answer[access.answers] = [*(answer[access.answers] or ()), *refused]
            return framed(request, answer)

        return await unhurried(changed, max(len(frame), len(request.frame)))

    def _hidden(self, kind: str, item: Message) -> bool:
        if kind == "transaction":
            return self.reserved.has_transactional_id(item["transactional_id"])
        if kind == "resource":
            names = {TOPIC_RESOURCE: self.reserved.topic, GROUP_RESOURCE: self.reserved.group}
            return bool(item["resource_name"] == names.get(item["resource_type"]))
        return bool(item["name"] == self.reserved.topic)


def framed(request: ApiRequest, message: Message) -> Frame:
    """A whole response."""
    body = encode_response(request.api_key, request.version, message)
    head = INT32.pack(request.correlation)
    if request_is_flexible(request.api_key, request.version):
        head += NO_TAGS
    return Frame(b"".join((INT32.pack(len(head) + len(body)), head, body)))


def answer_of(request: ApiRequest, frame: bytes) -> Message:
    """Decodes a broker's whole response to the request. Raises `InvalidRequest`."""
    flexible = request_is_flexible(request.api_key, request.version)
    return decode_response(request.api_key, request.version, frame, 9 if flexible else 8)


async def unhurried(work: Callable[[], T], size: int) -> T:
    """Calls ``work`` on a message of ``size`` bytes, in the codec thread if it is large."""
    return await in_codec_thread(work) if size > _LARGE_BYTES else work()


def _access(request: ApiRequest) -> Access:
    access = ACCESS.get(request.api_key)
    if access is None:
        raise InvalidRequest(f"API {request.api_key}", "the relay cannot determine the names in it")
    return access


def _decoded(request: ApiRequest) -> Message:
    key, version = request.api_key, request.version
    if not is_known(key, version):
        raise InvalidRequest(f"API {key} version {version}", "the relay cannot determine the names in it")
    flexible = request_is_flexible(key, version)
    return decode_request(key, version, request.frame, request.body(flexible=flexible))


def renewed(request: ApiRequest, message: Message) -> ApiRequest:
    """The same request with another body."""
    key, version = request.api_key, request.version
    head = request.frame[4 : request.body(flexible=request_is_flexible(key, version))]
    body = encode_request(key, version, message)
    return ApiRequest(request.connection, b"".join((INT32.pack(len(head) + len(body)), head, body)))


def _ids(items: Iterable[Any] | None) -> list[uuid.UUID]:
    """The ids of topics that have only an id."""
    return [
        item["topic_id"]
        for item in items or ()
        if not isinstance(item, str) and item.get("topic_id") and not item.get("name")
    ]
