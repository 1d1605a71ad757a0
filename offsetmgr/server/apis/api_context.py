"""`ApiContext`: the objects that all handlers of one manager use, and helpers for decoding and encoding."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final, ParamSpec, TypeVar

from offsetmgr.core.batches import batched_by_size
from offsetmgr.core.errors import ErrorCode
from offsetmgr.kafka.client.backing_cluster import BackingClusterClient
from offsetmgr.kafka.protocol.frames import LARGE_BYTES, in_codec_thread
from offsetmgr.kafka.protocol.schema_codec import decode_request, encode_response
from offsetmgr.server.backend import Backend
from offsetmgr.server.network.requests import ApiRequest
from offsetmgr.server.security.authentication import Authentication
from offsetmgr.server.security.authorization import Authorizer, Operation

P = ParamSpec("P")
T = TypeVar("T")

_MAX_CHARACTERS: Final = 32_767


@dataclass(frozen=True, slots=True)
class ApiContext:
    """The backend, the backing cluster and the security settings that the handlers of one manager use."""

    backend: Backend
    node_id: int
    """This manager's node id, as in `Backend.nodes`."""
    cluster: BackingClusterClient
    authorizer: Authorizer = field(default_factory=Authorizer)
    """The handlers of frequent requests skip the permission checks if the authorizer has no rules."""
    authentication: Authentication | None = None

    def group_allowed(self, request: ApiRequest, operation: Operation, group: str) -> bool:
        return self.authorizer.allows(request.connection.principal or "", operation, group, "groups")

    def topic_allowed(self, request: ApiRequest, operation: Operation, topic: str) -> bool:
        return self.authorizer.allows(request.connection.principal or "", operation, topic, "topics")

    def transactional_id_allowed(self, request: ApiRequest, operation: Operation, name: str) -> bool:
        return self.authorizer.allows(request.connection.principal or "", operation, name, "transactional_ids")

    def group_operations(self, request: ApiRequest, group: str) -> int:
        """Returns the authorized operations of a group's description."""
        operations = {ACL_DESCRIBE: Operation.DESCRIBE, ACL_READ: Operation.READ, ACL_DELETE: Operation.DELETE}
        return authorized_operations(
            *(code for code, operation in operations.items() if self.group_allowed(request, operation, group))
        )

    def topic_error(self, request: ApiRequest, operation: Operation, topic: str) -> int:
        """Returns the error code for a topic that a request names; 0 if the name is not too long and the client may use
        the topic."""
        if too_long(request, topic):
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        return 0 if self.topic_allowed(request, operation, topic) else ErrorCode.TOPIC_AUTHORIZATION_FAILED


def decoded(request: ApiRequest) -> dict[str, Any]:
    """Decodes a request of an API in the table; returns its fields under kio's field names. Raises `InvalidRequest`."""
    if request.prepared is not None:
        message: dict[str, Any] = request.prepared
        return message
    api = request.api
    flexible = api is not None and request.version >= api.flexible
    return decode_request(request.api_key, request.version, request.frame, request.cursor(flexible=flexible).at)


def encoded(request: ApiRequest, message: Mapping[str, Any]) -> bytes:
    """Encodes the body of the response, in the request's version."""
    return encode_response(request.api_key, request.version, message)


def run_by_size(
    request: ApiRequest, encode: Callable[P, bytes], *args: P.args, **kwargs: P.kwargs
) -> bytes | asyncio.Future[bytes]:
    """If the request is small, calls ``encode`` and returns the result. If the request is large, calls ``encode`` in
    the codec thread and returns a future."""
    if len(request.frame) <= LARGE_BYTES:
        return encode(*args, **kwargs)
    return in_codec_thread(encode, *args, **kwargs)


async def result_by_size(request: ApiRequest, encode: Callable[P, bytes], *args: P.args, **kwargs: P.kwargs) -> bytes:
    """Works as `run_by_size`, and waits for the result."""
    body = run_by_size(request, encode, *args, **kwargs)
    return body if isinstance(body, bytes) else await body


async def encoded_by_size(request: ApiRequest, message: Mapping[str, Any]) -> bytes:
    """Works as `encoded`. A large request has a large response, which the codec thread encodes."""
    return await result_by_size(request, encoded, request, message)


def too_many(request: ApiRequest, names: Sequence[Any]) -> bool:
    """Whether a request has more names than `ManagerSettings.max_names`."""
    return len(names) > request.connection.service.settings.max_names


def too_long(request: ApiRequest, topic: str) -> bool:
    """Whether a topic's name is longer than `ManagerSettings.max_topic_bytes`."""
    return len(topic.encode()) > request.connection.service.settings.max_topic_bytes


def portions(names: Iterable[str], max_items: int) -> Iterator[list[str]]:
    """Splits a long list into parts of at most ``max_items`` names, of fewer names if these are long, so that a part
    has at most `_MAX_CHARACTERS` characters, or a single name.

    Handlers yield to other clients between two parts. The limit on characters bounds the time that one part takes:
    hashing a name of 32,767 characters takes 4 ms.
    """
    return batched_by_size(names, lambda name: 1 + len(name) * max_items // _MAX_CHARACTERS, max_items)


async def in_turns(request: ApiRequest, parts: Iterable[T]) -> AsyncIterator[T]:
    """Yields the parts of the work for one request in turns of the event loop; see `offsetmgr.server.network.turns`.
    Before each part, it waits for the next turn if this one is over. Raises `asyncio.CancelledError` if the client has
    disconnected meanwhile, so that the work ends."""
    client = request.connection
    turns = client.service.turns
    ends_at = turns.ends_at(monotonic())
    for part in parts:
        if monotonic() >= ends_at:
            ends_at = await turns.next(client)
            if client.closed:
                raise asyncio.CancelledError
        yield part


def authorized_operations(*operations: int) -> int:
    """Returns the bit set of AclOperation codes for a response's authorized operations (KIP-430)."""
    return sum(1 << operation for operation in operations)


ACL_READ: Final = 3
ACL_DELETE: Final = 6
ACL_DESCRIBE: Final = 8
NOT_ASKED: Final = -(2**31)
"""The value of an authorized-operations field if the request did not ask for authorized operations."""
