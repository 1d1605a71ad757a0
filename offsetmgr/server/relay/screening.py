"""`Screen`: keeps clients of the relay from what the managers keep for themselves, and from admin APIs without a rule.

The brokers see the manager's principal, which may read and write the offsets topic.  So the relay itself refuses what
clients ask of the offsets topic (by name and by id), of the managers' group and of the shards' transactional ids.

Most requests are not decoded.  A topic's name stands in a request as it is, and the reserved group and transactional
ids begin with the topic's name: a request without these bytes names nothing reserved.  A Fetch from version 13 on names
topics by id: its ids are read, and the relay asks a broker once for the name of each id.

What is refused is taken out of the request, and its answer is added to the broker's.  Such a request is answered whole,
not streamed.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

from offsetmgr.errors import InvalidRequest, OffsetMgrError
from offsetmgr.server.authorization import ADMIN_APIS, Authorizer, EverythingAllowed, Reserved
from offsetmgr.server.dispatch import HANG_UP, Answer, Frame, Request
from offsetmgr.server.relay.access import (
    ACCESS,
    CLUSTER_AUTHORIZATION_FAILED,
    GROUP_AUTHORIZATION_FAILED,
    GROUP_RESOURCE,
    TOPIC_AUTHORIZATION_FAILED,
    TOPIC_RESOURCE,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_ID,
    Access,
    listed,
    refusal,
    shown_without,
    without,
)
from offsetmgr.server.relay.fetchsessions import (
    FETCH_SESSION_ID_NOT_FOUND,
    FetchSessions,
    session_in,
    session_of,
)
from offsetmgr.server.relay.link import Links
from offsetmgr.server.relay.topicids import TopicIds, fetched_ids
from offsetmgr.server.relay.upstream import Upstream
from offsetmgr.wire.codecthread import LARGE_BYTES, in_codec_thread
from offsetmgr.wire.primitives import INT32, NO_TAGS
from offsetmgr.wire.serverside import (
    Message,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    is_known,
    request_is_flexible,
)

_PRODUCE: Final = 0
_FETCH: Final = 1
_DELETE_TOPICS: Final = 20
_ELECT_LEADERS: Final = 43
_FETCH_SESSIONS: Final = 7
_FETCH_BY_ID: Final = 13
_DELETE_BY_ID: Final = 6


class Screen:
    """Use it within one event loop."""

    def __init__(self, links: Links, ids: TopicIds, authorizer: Authorizer, reserved: Reserved) -> None:
        self._links = links
        self._ids = ids
        self._authorizer = authorizer
        self._rules = not isinstance(authorizer, EverythingAllowed)
        self._sessions = FetchSessions()
        self.reserved = reserved
        self._mark = reserved.topic.encode()

    def marks(self, frame: bytes) -> bool:
        """Whether anything reserved may be named in these bytes."""
        return bool(self._mark) and self._mark in frame

    def screened(self, request: Request, upstream: Upstream) -> Answer | Awaitable[Answer]:
        """The answer to a request that must not be passed on as it is; None where it may be.

        Raises `InvalidRequest` where the relay cannot tell.
        """
        access = ACCESS.get(request.api_key)
        if access is None:
            raise InvalidRequest(f"API {request.api_key}", "the relay does not know what it names")
        session = session_of(request) if request.api_key == _FETCH and self._mark else None
        node_id = request.connection.listener.node_id if session is not None else None
        if session is not None and session.id and not self._sessions.given(node_id, session.id):
            return framed(request, {"error_code": FETCH_SESSION_ID_NOT_FOUND, "session_id": 0, "responses": []})
        looks = bool(self._mark) and (access.shown is not None or (session is not None and session.begins))
        if not self._suspect(request):
            return self._answered(request, access, upstream.ask(request), []) if looks else None
        if request.api_key != _PRODUCE and len(request.frame) > LARGE_BYTES:
            # Producers' requests must keep their order, which is the order of their sequence numbers.
            return self._apart(request, access)
        message = _decoded(request)
        if self._ids.unknown(_ids(listed(access, message))):
            return self._apart(request, access, message)
        answer = self._judged(request, access, message, upstream.ask)
        return self._answered(request, access, upstream.ask(request), []) if answer is None and looks else answer

    def _suspect(self, request: Request) -> bool:
        """Whether the request must be decoded."""
        key, version = request.api_key, request.version
        if self._rules and key in ADMIN_APIS:
            return True
        if not self._mark:
            return False
        if key == _FETCH and version >= _FETCH_BY_ID:
            ids = fetched_ids(request.frame, request.body(flexible=True), version)
            return ids is None or not all(map(self._harmless, ids))
        always = key == _ELECT_LEADERS or (key == _DELETE_TOPICS and version >= _DELETE_BY_ID)
        return always or self._mark in request.frame

    def _harmless(self, topic_id: uuid.UUID | None) -> bool:
        name = self._ids.name(topic_id)
        return name is not None and name != self.reserved.topic

    async def _apart(self, request: Request, access: Access, message: Message | None = None) -> Answer:
        """What takes so long that later requests of the client may be passed on before."""
        try:
            if message is None:
                message = await in_codec_thread(_decoded, request)
            await self._ids.learn(self._ids.unknown(_ids(listed(access, message))))
        except InvalidRequest:
            raise
        except OffsetMgrError:
            return HANG_UP
        answer = self._judged(request, access, message, self._ask_apart)
        if answer is None:
            answer = self._answered(request, access, self._ask_apart(request), [])
        return await answer if isinstance(answer, Awaitable) else answer

    async def _ask_apart(self, request: Request) -> bytes:
        """The answer, over a connection of the request's own. Raises `Unreachable`."""
        link = self._links.of(request.connection)
        upstream = link.apart()
        try:
            return await upstream.ask(request)
        finally:
            link.end(upstream)

    def _judged(
        self, request: Request, access: Access, message: Message, ask: Callable[[Request], Awaitable[bytes]]
    ) -> Answer | Awaitable[Answer]:
        """None where nothing is refused."""
        key, principal = request.api_key, request.connection.principal or ""
        items = listed(access, message)
        own_id = message.get(access.transactional_id) if access.transactional_id else None
        if own_id is not None and self.reserved.has_transactional_id(own_id):
            code = TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            return self._refused(request, access, message, [code] * len(items or ()), code)
        if not items:
            everything = items is None and access.shown is None and bool(self._mark)
            admin = key in ADMIN_APIS and not self._authorizer.admin(principal, key, None)
            if everything or admin:
                return self._refused(request, access, message, [], CLUSTER_AUTHORIZATION_FAILED)
        codes = [self._code(key, principal, access, item) for item in items or ()]
        if not any(codes):
            return None
        kept = [item for item, code in zip(items or (), codes, strict=True) if not code]
        alone = not kept and not message.get("session_id")
        if alone or access.together or access.refused is None or (key == _PRODUCE and not message["acks"]):
            return self._refused(request, access, message, codes, CLUSTER_AUTHORIZATION_FAILED)
        refused = [access.refused(item, code) for item, code in zip(items or (), codes, strict=True) if code]
        rest = renewed(request, without(access, message, kept))
        return self._answered(rest, access, ask(rest), refused)

    def _code(self, key: int, principal: str, access: Access, item: Any) -> int:
        """The error code for something that a request names; 0 where nothing is wrong with it."""
        name = item if isinstance(item, str) else item.get(access.name, item.get("name"))
        if access.kind == "transaction":
            allowed = not self.reserved.has_transactional_id(name) and self._may(principal, key, None)
            return 0 if allowed else TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        kind = item["resource_type"] if access.kind == "resource" else TOPIC_RESOURCE
        if access.kind == "other":
            return 0 if self._may(principal, key, None) else CLUSTER_AUTHORIZATION_FAILED
        if kind == GROUP_RESOURCE:
            allowed = name != self.reserved.group and self._may(principal, key, None)
            return 0 if allowed else GROUP_AUTHORIZATION_FAILED
        if kind != TOPIC_RESOURCE:
            return 0 if self._may(principal, key, None) else CLUSTER_AUTHORIZATION_FAILED
        if name is None:
            name = self._ids.name(item.get("topic_id"))
            if name is None:
                return UNKNOWN_TOPIC_ID
        allowed = (not self._mark or name != self.reserved.topic) and self._may(principal, key, name)
        return 0 if allowed else TOPIC_AUTHORIZATION_FAILED

    def _may(self, principal: str, key: int, topic: str | None) -> bool:
        return key not in ADMIN_APIS or self._authorizer.admin(principal, key, topic)

    def _refused(self, request: Request, access: Access, message: Message, codes: list[int], code: int) -> Answer:
        if request.api_key == _PRODUCE and not message["acks"]:
            return HANG_UP  # a client that asks for no answer learns of errors by the closed connection
        return framed(request, refusal(access, message, codes, code))

    async def _answered(
        self, request: Request, access: Access, asked: Awaitable[bytes], refused: Sequence[Message]
    ) -> Answer:
        """The broker's answer, with what is refused in it and what is hidden not."""
        try:
            frame = await asked
        except OffsetMgrError:
            return HANG_UP
        if request.api_key == _FETCH and request.version >= _FETCH_SESSIONS:
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

        return await unhurried(changed, len(frame))

    def _hidden(self, kind: str, item: Message) -> bool:
        if kind == "transaction":
            return self.reserved.has_transactional_id(item["transactional_id"])
        if kind == "resource":
            names = {TOPIC_RESOURCE: self.reserved.topic, GROUP_RESOURCE: self.reserved.group}
            return bool(item["resource_name"] == names.get(item["resource_type"]))
        return bool(item["name"] == self.reserved.topic)


def framed(request: Request, message: Message) -> Frame:
    """A whole response."""
    body = encode_response(request.api_key, request.version, message)
    head = INT32.pack(request.correlation)
    if request_is_flexible(request.api_key, request.version):
        head += NO_TAGS
    return Frame(b"".join((INT32.pack(len(head) + len(body)), head, body)))


def answer_of(request: Request, frame: bytes) -> Message:
    """A broker's whole response to the request, decoded. Raises `InvalidRequest`."""
    flexible = request_is_flexible(request.api_key, request.version)
    return decode_response(request.api_key, request.version, frame, 9 if flexible else 8)


async def unhurried(work: Callable[[], Frame], size: int) -> Frame:
    """What ``work`` makes of a message of so many bytes."""
    return await in_codec_thread(work) if size > LARGE_BYTES else work()


def _decoded(request: Request) -> Message:
    key, version = request.api_key, request.version
    if not is_known(key, version):
        raise InvalidRequest(f"API {key} version {version}", "the relay does not know what it names")
    flexible = request_is_flexible(key, version)
    return decode_request(key, version, request.frame, request.body(flexible=flexible))


def renewed(request: Request, message: Message) -> Request:
    """The same request with another body."""
    key, version = request.api_key, request.version
    head = request.frame[4 : request.body(flexible=request_is_flexible(key, version))]
    body = encode_request(key, version, message)
    return Request(request.connection, b"".join((INT32.pack(len(head) + len(body)), head, body)))


def _ids(items: Iterable[Any] | None) -> list[uuid.UUID]:
    """The ids of topics that are named by nothing else."""
    return [
        item["topic_id"]
        for item in items or ()
        if not isinstance(item, str) and item.get("topic_id") and not item.get("name")
    ]
