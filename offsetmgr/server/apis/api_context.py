"""`ApiContext`: what the handlers of one manager share."""

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
    """One manager, as its clients see it."""

    backend: Backend
    node_id: int
    """This manager's own, as `Backend.nodes` has it."""
    cluster: BackingCluster | None = None
    authorizer: Authorizer = field(default_factory=AllowAllAuthorizer)
    authentication: Authentication | None = None
    name: str = "offsetmgr"
    """The cluster id that clients are told where there is no real cluster: some clients cannot bear none."""

    def group_allowed(self, request: ApiRequest, operation: Operation, group: str) -> bool:
        return self.authorizer.group(request.connection.principal or "", operation, group)

    def topic_allowed(self, request: ApiRequest, operation: Operation, topic: str) -> bool:
        return self.authorizer.topic(request.connection.principal or "", operation, topic)

    def topic_error(self, request: ApiRequest, operation: Operation, topic: str) -> int:
        """The error code for a topic that a client names; 0 where nothing is wrong with it."""
        if too_long(request, topic):
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        return 0 if self.topic_allowed(request, operation, topic) else ErrorCode.TOPIC_AUTHORIZATION_FAILED

    @property
    def authorizes(self) -> bool:
        """Whether there are rules at all: hot handlers ask nobody where there are none."""
        return not isinstance(self.authorizer, AllowAllAuthorizer)


def decoded(request: ApiRequest) -> dict[str, Any]:
    """A request of one of our APIs, by kio's field names. Raises `InvalidRequest`."""
    if request.prepared is not None:
        message: dict[str, Any] = request.prepared
        return message
    api = request.api
    flexible = api is not None and request.version >= api.flexible
    return decode_request(request.api_key, request.version, request.frame, request.body(flexible=flexible))


def encoded(request: ApiRequest, message: Mapping[str, Any]) -> bytes:
    """The response to a request, in its version."""
    return encode_response(request.api_key, request.version, message)


def by_size(
    request: ApiRequest, encode: Callable[P, bytes], *args: P.args, **kwargs: P.kwargs
) -> bytes | asyncio.Future[bytes]:
    """The result of ``encode``: at once for a small request, from the codec thread for a large one."""
    if len(request.frame) <= LARGE_BYTES:
        return encode(*args, **kwargs)
    return in_codec_thread(encode, *args, **kwargs)


async def encoded_by_size(request: ApiRequest, message: Mapping[str, Any]) -> bytes:
    """The same, in the codec thread where the request is large: the response is as large."""
    made = by_size(request, encoded, request, message)
    return made if isinstance(made, bytes) else await made


def too_many(request: ApiRequest, names: Sequence[Any]) -> bool:
    """Whether a request has more names than one may; each is answered with `INVALID_REQUEST` then."""
    return len(names) > request.connection.service.limits.names


def too_long(request: ApiRequest, topic: str) -> bool:
    """Whether a topic's name is longer than one may be; the topic is answered with `INVALID_TOPIC` then."""
    return len(topic.encode()) > request.connection.service.limits.topic_bytes


def portions(names: Sequence[T], most: int, name: Callable[[T], str] = str) -> Iterator[Sequence[T]]:
    """Cuts a long list into parts of at most ``most`` items and, but for single items, `_CHARACTERS` in their names.

    A handler gives other clients their turn between two parts: hashing a name of 32,767 characters takes 4 ms.
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
    """A set of Kafka's AclOperation codes, as responses tell authorized operations (KIP-430)."""
    return sum(1 << operation for operation in operations)


ACL_READ: Final = 3
ACL_DELETE: Final = 6
ACL_DESCRIBE: Final = 8
NOT_ASKED: Final = -(2**31)
"""Authorized operations that nobody asked for."""
