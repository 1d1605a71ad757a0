"""`ApiContext`: the state that all handlers of one manager share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, ParamSpec, TypeVar

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.kafka.protocol.codec_thread import LARGE_BYTES, in_codec_thread
from offsetmgr.kafka.protocol.schema_codec import decode_request, encode_response
from offsetmgr.server.backend import Backend
from offsetmgr.server.backing_cluster import BackingCluster
from offsetmgr.server.network.api import ApiRequest
from offsetmgr.server.security.authentication import Authentication
from offsetmgr.server.security.authorization import AllowAllAuthorizer, Authorizer, Operation

P = ParamSpec("P")
T = TypeVar("T")

_CHARACTERS: Final = 32_767


@dataclass(frozen=True, slots=True)
class ApiContext:
    """One manager, from its clients' point of view."""

    backend: Backend
    node_id: int
    """This manager's node id, as in `Backend.nodes`."""
    cluster: BackingCluster | None = None
    authorizer: Authorizer = field(default_factory=AllowAllAuthorizer)
    authentication: Authentication | None = None
    name: str = "offsetmgr"
    """The cluster id in responses if there is no real cluster; some clients fail without one."""

    def group_allowed(self, request: ApiRequest, operation: Operation, group: str) -> bool:
        return self.authorizer.group(request.connection.principal or "", operation, group)

    def topic_allowed(self, request: ApiRequest, operation: Operation, topic: str) -> bool:
        return self.authorizer.topic(request.connection.principal or "", operation, topic)

    def topic_error(self, request: ApiRequest, operation: Operation, topic: str) -> int:
        """The error code for a topic in a request; 0 if there is no error."""
        if too_long(request, topic):
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        return 0 if self.topic_allowed(request, operation, topic) else ErrorCode.TOPIC_AUTHORIZATION_FAILED

    @property
    def authorizes(self) -> bool:
        """Whether authorization rules exist; hot handlers skip all checks without them."""
        return not isinstance(self.authorizer, AllowAllAuthorizer)


def decoded(request: ApiRequest) -> dict[str, Any]:
    """Decodes a request of one of our APIs, by kio's field names. Raises `InvalidRequest`."""
    if request.prepared is not None:
        message: dict[str, Any] = request.prepared
        return message
    api = request.api
    flexible = api is not None and request.version >= api.flexible
    return decode_request(request.api_key, request.version, request.frame, request.body(flexible=flexible))


def encoded(request: ApiRequest, message: Mapping[str, Any]) -> bytes:
    """Encodes the response to a request, in the request's version."""
    return encode_response(request.api_key, request.version, message)


def run_by_size(
    request: ApiRequest, encode: Callable[P, bytes], *args: P.args, **kwargs: P.kwargs
) -> bytes | asyncio.Future[bytes]:
    """The result of ``encode``: at once for a small request, from the codec thread for a large one."""
    if len(request.frame) <= LARGE_BYTES:
        return encode(*args, **kwargs)
    return in_codec_thread(encode, *args, **kwargs)


async def encoded_by_size(request: ApiRequest, message: Mapping[str, Any]) -> bytes:
    """Like `encoded`, but in the codec thread if the request is large, because the response is as large."""
    made = run_by_size(request, encoded, request, message)
    return made if isinstance(made, bytes) else await made


def too_many(request: ApiRequest, names: Sequence[Any]) -> bool:
    """Whether a request has more names than allowed; each then gets the error `INVALID_REQUEST`."""
    return len(names) > request.connection.service.limits.names


def too_long(request: ApiRequest, topic: str) -> bool:
    """Whether a topic's name is longer than allowed; the topic then gets the error `INVALID_TOPIC`."""
    return len(topic.encode()) > request.connection.service.limits.topic_bytes


def portions(names: Sequence[T], most: int, name: Callable[[T], str] = str) -> Iterator[Sequence[T]]:
    """Splits a long list into parts of at most ``most`` items and, except for single items, `_CHARACTERS` in their
    names.

    A handler yields to other clients between two parts: hashing a name of 32,767 characters takes 4 ms.
    """
    begun = characters = 0
    for at, item in enumerate(names):
        length = len(name(item))
        if at > begun and (at - begun >= most or characters + length > _CHARACTERS):
            yield names[begun:at]
            begun, characters = at, 0
        characters += length
    if begun < len(names):
        yield names[begun:]


def authorized_operations(*operations: int) -> int:
    """A bit set of Kafka's AclOperation codes, as in the authorized operations of responses (KIP-430)."""
    return sum(1 << operation for operation in operations)


ACL_READ: Final = 3
ACL_DELETE: Final = 6
ACL_DESCRIBE: Final = 8
NOT_ASKED: Final = -(2**31)
"""Authorized operations if the request did not ask for them."""
