"""`Endpoint`: what the handlers of one manager share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from offsetmgr.server.authentication import Authentication
from offsetmgr.server.authorization import Authorizer, EverythingAllowed, Operation
from offsetmgr.server.backend import Backend
from offsetmgr.server.cluster import RealCluster
from offsetmgr.server.dispatch import Request
from offsetmgr.wire.serverside import decode_request, encode_response

_NAMES_GROUPS: Final = frozenset({10, 15, 42})
"""FindCoordinator, DescribeGroups, DeleteGroups: their only array is one of names."""
TOPIC_AUTHORIZATION_FAILED: Final = 29
GROUP_AUTHORIZATION_FAILED: Final = 30
UNKNOWN_SERVER_ERROR: Final = -1


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One manager, as its clients see it."""

    backend: Backend
    node_id: int
    """This manager's own, as `Backend.nodes` has it."""
    cluster: RealCluster | None = None
    authorizer: Authorizer = field(default_factory=EverythingAllowed)
    authentication: Authentication | None = None
    name: str = "offsetmgr"
    """The cluster id that clients are told where there is no real cluster: some clients cannot bear none."""

    def group_allowed(self, request: Request, operation: Operation, group: str) -> bool:
        return self.authorizer.group(request.connection.principal or "", operation, group)

    def topic_allowed(self, request: Request, operation: Operation, topic: str) -> bool:
        return self.authorizer.topic(request.connection.principal or "", operation, topic)

    @property
    def authorizes(self) -> bool:
        """Whether there are rules at all: hot handlers ask nobody where there are none."""
        return not isinstance(self.authorizer, EverythingAllowed)


def decoded(request: Request) -> dict[str, Any]:
    """A request of one of our APIs, by kio's field names. Raises `InvalidRequest`."""
    api = request.api
    flexible = api is not None and request.version >= api.flexible
    most = request.connection.service.limits.names if request.api_key in _NAMES_GROUPS else None
    return decode_request(request.api_key, request.version, request.frame, request.body(flexible=flexible), most)


def encoded(request: Request, message: Mapping[str, Any]) -> bytes:
    """The response to a request, in its version."""
    return encode_response(request.api_key, request.version, message)


def bits(*operations: int) -> int:
    """A set of Kafka's AclOperation codes, as responses tell authorized operations (KIP-430)."""
    return sum(1 << operation for operation in operations)


ACL_READ: Final = 3
ACL_DELETE: Final = 6
ACL_DESCRIBE: Final = 8
NOT_ASKED: Final = -(2**31)
"""Authorized operations that nobody asked for."""
