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
from collections.abc import Callable
from typing import Final

from offsetmgr.core.errors import ErrorCode, OffsetMgrError
from offsetmgr.kafka.protocol.api_key import ApiKey
from offsetmgr.kafka.protocol.errors import VALID_MEMBER_CODES
from offsetmgr.server.apis.api_context import ApiContext
from offsetmgr.server.network.api import CLOSE_CONNECTION, Answer, Api, ApiRequest, Frame
from offsetmgr.server.proxy.client_upstreams import UpstreamRegistry
from offsetmgr.server.proxy.coordinators import Coordinators
from offsetmgr.server.proxy.group_requests import (
    GROUP_APIS,
    GroupRequest,
    error_response,
    read_error,
    read_generation,
    read_request,
)
from offsetmgr.server.proxy.member_fence import MemberFence
from offsetmgr.server.security.authorization import Operation

_FIND_TIMEOUT_S: Final = 3.0
_OWNED_CODES: Final = frozenset({ErrorCode.NONE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS})
_MOVED_CODES: Final = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR})


class ProxiedMembership:
    """The handlers of the four APIs."""

    def __init__(
        self,
        context: ApiContext,
        upstreams: UpstreamRegistry,
        fence: MemberFence,
        coordinators: Coordinators,
        clock: Callable[[], float],
    ) -> None:
        self._context = context
        self._backend = context.backend
        self._upstreams = upstreams
        self._fence = fence
        self._coordinators = coordinators
        self._clock = clock

    def apis(self) -> list[Api]:
        return [Api(key, api.name, 0, api.max_version, api.flexible, self._handle) for key, api in GROUP_APIS.items()]

    async def _handle(self, request: ApiRequest) -> Answer:
        member = read_request(request)
        group = member.group
        if not self._context.group_allowed(request, Operation.READ, group):
            return error_response(request, ErrorCode.GROUP_AUTHORIZATION_FAILED, member.member_id)
        if (code := self._backend.ownership_error(group)) not in _OWNED_CODES:
            return error_response(request, code, member.member_id)
        ownership_epoch = self._backend.ownership_epoch(group)
        if member.session_seconds is not None:
            self._fence.on_join_request(group, ownership_epoch, member.session_seconds)
        if request.api_key == ApiKey.LEAVE_GROUP:
            self._fence.on_leave(group)
        evidence_epoch, sent = self._fence.evidence_epoch(group, ownership_epoch), self._clock()
        try:
            deadline = asyncio.get_running_loop().time() + _FIND_TIMEOUT_S
            coordinator = await self._coordinators.find(group, deadline)
        except OffsetMgrError:
            return error_response(request, ErrorCode.COORDINATOR_NOT_AVAILABLE, member.member_id)
        try:
            frame = await self._upstreams.of(request.connection).for_broker(coordinator).ask(request)
        except OffsetMgrError:
            self._coordinators.forget(group)
            return CLOSE_CONNECTION
        code = read_error(request.api_key, request.version, frame)
        if code in _MOVED_CODES:
            self._coordinators.forget(group)
        elif request.api_key == ApiKey.JOIN_GROUP and code == ErrorCode.NONE:
            return await self._joined(request, member, ownership_epoch, frame)
        elif request.api_key == ApiKey.SYNC_GROUP and code == ErrorCode.NONE:
            self._fence.on_sync_response(
                group, ownership_epoch, evidence_epoch, member.generation, member.member_id, sent
            )
        elif request.api_key == ApiKey.HEARTBEAT and code in VALID_MEMBER_CODES:
            self._fence.on_heartbeat_response(
                group, ownership_epoch, evidence_epoch, member.generation, member.member_id, sent
            )
        elif request.api_key == ApiKey.LEAVE_GROUP:
            self._fence.on_leave(group)
        return Frame(frame)

    async def _joined(self, request: ApiRequest, member: GroupRequest, ownership_epoch: int, frame: bytes) -> Answer:
        """Delays the JoinGroup response until commits of earlier generations can no longer take effect."""
        if not self._still_owned(member.group, ownership_epoch):
            return error_response(request, ErrorCode.NOT_COORDINATOR, member.member_id)
        generation = read_generation(request.version, frame)
        self._fence.on_join_response(member.group, ownership_epoch, generation, static=member.instance_id is not None)
        try:
            await self._backend.wait_for_commits(member.group)
        except OffsetMgrError:
            return error_response(request, ErrorCode.COORDINATOR_NOT_AVAILABLE, member.member_id)
        if not self._still_owned(member.group, ownership_epoch):
            return error_response(request, ErrorCode.NOT_COORDINATOR, member.member_id)
        return Frame(frame)

    def _still_owned(self, group: str, ownership_epoch: int) -> bool:
        """Whether this manager still owns the group. False while the group's shard is loading, because the ownership is
        not yet certain."""
        return (
            self._backend.ownership_error(group) == ErrorCode.NONE
            and self._backend.ownership_epoch(group) == ownership_epoch
        )
