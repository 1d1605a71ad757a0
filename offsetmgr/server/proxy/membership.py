"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup: the manager that owns the group forwards them to the group's real
coordinator, and parses them for the `MemberFence`.

They use a connection of the client's own, since a JoinGroup may wait there for a whole rebalance. A manager that is
still loading the group forwards them too: most of these responses have no error for "loading", and members must not
lose their sessions meanwhile. But it returns no generation before the load is complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.kafka.protocol.api_key import ApiKey
from offsetmgr.server.apis.api_context import ApiContext
from offsetmgr.server.network.api import CLOSE_CONNECTION, Answer, Api, ApiRequest, Frame
from offsetmgr.server.proxy.broker_connections import ProxyLinks
from offsetmgr.server.proxy.coordinators import Coordinators
from offsetmgr.server.proxy.fenced_backend import VALID
from offsetmgr.server.proxy.group_requests import (
    FLEXIBLE,
    HIGHEST,
    GroupRequest,
    read_error,
    read_joined,
    read_request,
    refusal,
)
from offsetmgr.server.proxy.member_fence import MemberFence
from offsetmgr.server.security.authorization import Operation

_NAMES: Final = {
    ApiKey.JOIN_GROUP: "JoinGroup",
    ApiKey.HEARTBEAT: "Heartbeat",
    ApiKey.LEAVE_GROUP: "LeaveGroup",
    ApiKey.SYNC_GROUP: "SyncGroup",
}
_FIND_S: Final = 3.0
_OURS: Final = frozenset({ErrorCode.NONE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS})
_ELSEWHERE: Final = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR})


class ProxiedMembership:
    """See the module's docstring."""

    def __init__(
        self,
        context: ApiContext,
        links: ProxyLinks,
        gate: MemberFence,
        coordinators: Coordinators,
        clock: Callable[[], float],
    ) -> None:
        self._context = context
        self._backend = context.backend
        self._links = links
        self._gate = gate
        self._coordinators = coordinators
        self._clock = clock

    def apis(self) -> list[Api]:
        return [Api(key, name, 0, HIGHEST[key], FLEXIBLE[key], self._handle) for key, name in _NAMES.items()]

    async def _handle(self, request: ApiRequest) -> Answer:
        asked = read_request(request)
        group = asked.group
        if not self._context.group_allowed(request, Operation.READ, group):
            return refusal(request, ErrorCode.GROUP_AUTHORIZATION_FAILED, asked.member_id)
        if (code := self._backend.owns(group)) not in _OURS:
            return refusal(request, code, asked.member_id)
        tenure = self._backend.ownership_epoch(group)
        if asked.session_seconds is not None:
            self._gate.session(group, tenure, asked.session_seconds)
        if request.api_key == ApiKey.LEAVE_GROUP:
            self._gate.left(group)
        serial, sent = self._gate.epoch(group, tenure), self._clock()
        try:
            deadline = asyncio.get_running_loop().time() + _FIND_S
            coordinator = await self._coordinators.find(group, deadline)
        except OffsetMgrError:
            return refusal(request, ErrorCode.COORDINATOR_NOT_AVAILABLE, asked.member_id)
        try:
            frame = await self._links.of(request.connection).to(coordinator).ask(request)
        except OffsetMgrError:
            self._coordinators.forget(group)
            return CLOSE_CONNECTION
        code = read_error(request.api_key, request.version, frame)
        if code in _ELSEWHERE:
            self._coordinators.forget(group)
        elif request.api_key == ApiKey.JOIN_GROUP and code == ErrorCode.NONE:
            return await self._joined(request, asked, tenure, frame)
        elif request.api_key == ApiKey.SYNC_GROUP and code == ErrorCode.NONE:
            self._gate.synced(group, tenure, serial, asked.generation, asked.member_id, sent)
        elif request.api_key == ApiKey.HEARTBEAT and code in VALID:
            self._gate.observe(group, tenure, serial, asked.generation, asked.member_id, sent)
        elif request.api_key == ApiKey.LEAVE_GROUP:
            self._gate.left(group)
        return Frame(frame)

    async def _joined(self, request: ApiRequest, asked: GroupRequest, tenure: int, frame: bytes) -> Answer:
        """Holds the response back until no commit of an earlier generation can take effect any more."""
        if not self._still_ours(asked.group, tenure):
            return refusal(request, ErrorCode.NOT_COORDINATOR, asked.member_id)
        generation = read_joined(request.version, frame).generation
        self._gate.joined(asked.group, tenure, generation, static=asked.instance_id is not None)
        try:
            await self._backend.await_commits(asked.group)
        except OffsetMgrError:
            return refusal(request, ErrorCode.COORDINATOR_NOT_AVAILABLE, asked.member_id)
        if not self._still_ours(asked.group, tenure):
            return refusal(request, ErrorCode.NOT_COORDINATOR, asked.member_id)
        return Frame(frame)

    def _still_ours(self, group: str, tenure: int) -> bool:
        """While the shard is loading, it is unknown whether the group is ours at this moment."""
        return self._backend.owns(group) == ErrorCode.NONE and self._backend.ownership_epoch(group) == tenure
