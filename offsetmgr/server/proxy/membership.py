"""`ProxiedMembership`: forwards JoinGroup, SyncGroup, Heartbeat and LeaveGroup to the group's real coordinator.

Only the manager that owns the group forwards these requests. It parses the requests and responses, and passes the
results to the `MemberFence`. Each client has its own connection to the coordinator, because a JoinGroup may wait at the
coordinator for a whole rebalance.

A manager that is still loading the group also forwards these requests, because most of the APIs have no error code for
"loading", and because the members must not lose their sessions during the loading. But the manager passes a new
generation to a client only after the manager has loaded the group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from offsetmgr.core.errors import ErrorCode, OffsetMgrError
from offsetmgr.kafka.protocol.errors import VALID_MEMBER_CODES
from offsetmgr.kafka.protocol.releases import ApiKey
from offsetmgr.kafka.protocol.requests import LockMembership
from offsetmgr.kafka.protocol.schema_codec import INT16, Cursor, encode_response
from offsetmgr.server.apis.api_context import ApiContext
from offsetmgr.server.network.requests import CLOSE_CONNECTION, Answer, Api, ApiRequest, Frame
from offsetmgr.server.proxy.client_upstreams import UpstreamRegistry
from offsetmgr.server.proxy.coordinators import Coordinators
from offsetmgr.server.proxy.member_fence import MemberFence
from offsetmgr.server.proxy.response_rewrite import response_body
from offsetmgr.server.security.authorization import Operation

# Parses JoinGroup, SyncGroup, Heartbeat and LeaveGroup, which the relay forwards, and builds their error responses.
# Pure. Only the beginning of a frame is parsed, not the subscriptions and assignments. Source: the JSON schemas of
# these requests and responses, versions 0 to `GroupApi.max_version`.


class GroupApi(NamedTuple):
    """One of the APIs: its highest version, and the first version of each of its features."""

    max_version: int
    flexible: int
    throttles: int
    """The first version whose response begins with the throttle time."""
    static: int = 32_767
    """The first version whose request names a static member."""


GROUP_APIS: Final[Mapping[int, GroupApi]] = {
    ApiKey.JOIN_GROUP: GroupApi(9, 6, 2, 5),
    ApiKey.HEARTBEAT: GroupApi(4, 4, 1, 3),
    ApiKey.LEAVE_GROUP: GroupApi(5, 4, 1),
    ApiKey.SYNC_GROUP: GroupApi(5, 4, 1, 3),
}
_NO_GENERATION: Final = -1


def read_request(request: ApiRequest) -> tuple[LockMembership, float | None]:
    """Returns the member in a request, and the session timeout in seconds, which only a JoinGroup has. A LeaveGroup may
    name many members, so only its group is parsed. Raises `InvalidRequest`."""
    key, version = request.api_key, request.version
    cursor = request.cursor(flexible=version >= GROUP_APIS[key].flexible)
    group = cursor.string()
    if key == ApiKey.LEAVE_GROUP:
        return LockMembership(group, "", _NO_GENERATION), None
    generation, session = _NO_GENERATION, None
    if key == ApiKey.JOIN_GROUP:
        session = cursor.int32() / 1000
        if version >= 1:
            cursor.int32()  # rebalance timeout
    else:
        generation = cursor.int32()
    member_id = cursor.string()
    instance_id = cursor.nullable_string() if version >= GROUP_APIS[key].static else None
    return LockMembership(group, member_id, generation, instance_id), session


def read_error(api_key: int, version: int, frame: bytes) -> tuple[int, Cursor]:
    """Reads the error code of a whole response (with its length field). Returns it, and a reader of the rest. Raises
    `InvalidRequest`."""
    cursor = response_body(frame, flexible=version >= GROUP_APIS[api_key].flexible)
    if version >= GROUP_APIS[api_key].throttles:
        cursor.int32()
    return cursor.number(INT16), cursor


def error_response(request: ApiRequest, code: int, member_id: str = "") -> bytes:
    """Builds the body of a response with this error code."""
    message = {
        "error_code": code,
        "protocol_name": "",
        "leader": "",
        "member_id": member_id,
        "members": [],
        "assignment": b"",
    }
    return encode_response(request.api_key, request.version, message)


_FIND_TIMEOUT_S: Final = 3.0
_OWNED_CODES: Final = frozenset({ErrorCode.NONE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS})
_MOVED_CODES: Final = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR})


@dataclass(frozen=True, slots=True)
class ProxiedMembership:
    """The handlers of the four APIs."""

    context: ApiContext
    upstreams: UpstreamRegistry
    fence: MemberFence
    coordinators: Coordinators
    clock: Callable[[], float]

    def apis(self) -> list[Api]:
        return [Api(key, 0, api.max_version, api.flexible, self._handle) for key, api in GROUP_APIS.items()]

    async def _handle(self, request: ApiRequest) -> Answer:
        member, session_seconds = read_request(request)
        group = member.group
        if not self.context.group_allowed(request, Operation.READ, group):
            return error_response(request, ErrorCode.GROUP_AUTHORIZATION_FAILED, member.member_id)
        if (code := self.context.backend.ownership_error(group)) not in _OWNED_CODES:
            return error_response(request, code, member.member_id)
        ownership_epoch = self.context.backend.ownership_epoch(group)
        if session_seconds is not None:
            self.fence.on_join_request(group, ownership_epoch, session_seconds)
        if request.api_key == ApiKey.LEAVE_GROUP:
            self.fence.on_leave(group)
        evidence_epoch, sent = self.fence.evidence_epoch(group, ownership_epoch), self.clock()
        try:
            deadline = asyncio.get_running_loop().time() + _FIND_TIMEOUT_S
            coordinator = await self.coordinators.find(group, deadline)
        except OffsetMgrError:
            return error_response(request, ErrorCode.COORDINATOR_NOT_AVAILABLE, member.member_id)
        try:
            frame = await self.upstreams.of(request.connection).for_broker(coordinator).ask(request)
        except OffsetMgrError:
            self.coordinators.forget(group)
            return CLOSE_CONNECTION
        code, rest = read_error(request.api_key, request.version, frame)
        if code in _MOVED_CODES:
            self.coordinators.forget(group)
        elif request.api_key == ApiKey.JOIN_GROUP and code == ErrorCode.NONE:
            return await self._joined(request, member, ownership_epoch, frame, rest.int32())
        elif request.api_key == ApiKey.SYNC_GROUP and code == ErrorCode.NONE:
            self.fence.on_sync_response(
                group, ownership_epoch, evidence_epoch, member.generation, member.member_id, sent
            )
        elif request.api_key == ApiKey.HEARTBEAT and code in VALID_MEMBER_CODES:
            self.fence.on_heartbeat_response(
                group, ownership_epoch, evidence_epoch, member.generation, member.member_id, sent
            )
        elif request.api_key == ApiKey.LEAVE_GROUP:
            self.fence.on_leave(group)
        return Frame(frame)

    async def _joined(
        self, request: ApiRequest, member: LockMembership, ownership_epoch: int, frame: bytes, generation: int
    ) -> Answer:
        """Delays the JoinGroup response until commits of earlier generations can no longer take effect."""
        if not self._still_owned(member.group, ownership_epoch):
            return error_response(request, ErrorCode.NOT_COORDINATOR, member.member_id)
        self.fence.on_join_response(member.group, ownership_epoch, generation, static=member.instance_id is not None)
        try:
            await self.context.backend.wait_for_commits(member.group)
        except OffsetMgrError:
            return error_response(request, ErrorCode.COORDINATOR_NOT_AVAILABLE, member.member_id)
        if not self._still_owned(member.group, ownership_epoch):
            return error_response(request, ErrorCode.NOT_COORDINATOR, member.member_id)
        return Frame(frame)

    def _still_owned(self, group: str, ownership_epoch: int) -> bool:
        """Whether this manager still owns the group. False while the group's shard is loading, because the ownership is
        not yet certain."""
        return (
            self.context.backend.ownership_error(group) == ErrorCode.NONE
            and self.context.backend.ownership_epoch(group) == ownership_epoch
        )
