"""ListGroups and DescribeGroups through the relay: who has offsets here, and who has members at the real coordinator.

The managers list the groups that they own; the ports that stand for brokers list none, since clients that ask every
node would else hear of each group twice, in two states.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from offsetmgr.errors import OffsetMgrError
from offsetmgr.manager.requests import (
    COORDINATOR_NOT_AVAILABLE,
    GROUP_AUTHORIZATION_FAILED,
    GROUP_ID_NOT_FOUND,
    NONE,
    FetchRequest,
)
from offsetmgr.server.authorization import Operation
from offsetmgr.server.dispatch import Answer, Api, Request
from offsetmgr.server.handlers.endpoint import NOT_ASKED, Endpoint, decoded, encoded
from offsetmgr.server.handlers.groups import CLASSIC, DEAD, EMPTY, LIST_FLEXIBLE
from offsetmgr.server.relay.coordinators import Coordinators
from offsetmgr.wire.serverside import Message

_LIST: Final = 16
_DESCRIBE: Final = 15
_DESCRIBE_FLEXIBLE: Final = 5
_ERRORS_FOR_UNKNOWN: Final = 6
_ASK_SECONDS: Final = 4.0
_AT_ONCE: Final = 100


class GroupListing:
    """See the module's docstring."""

    def __init__(self, endpoint: Endpoint, coordinators: Coordinators) -> None:
        self._endpoint = endpoint
        self._backend = endpoint.backend
        self._coordinators = coordinators

    def apis(self) -> list[Api]:
        """What replaces the endpoint's."""
        return [
            Api(_LIST, "ListGroups", 0, 5, LIST_FLEXIBLE, self._list, prepare=decoded),
            Api(_DESCRIBE, "DescribeGroups", 0, 6, _DESCRIBE_FLEXIBLE, self._describe, prepare=decoded),
        ]

    async def _list(self, request: Request) -> Answer:
        message = decoded(request)
        if request.connection.listener.node_id is not None:
            return encoded(request, {"error_code": NONE, "groups": []})
        error, ours = await self._backend.list_groups()
        if error:
            return encoded(request, {"error_code": error, "groups": []})
        try:
            real = await self._coordinators.groups(self._deadline())
        except OffsetMgrError:
            return encoded(request, {"error_code": COORDINATOR_NOT_AVAILABLE, "groups": []})
        states = {state.lower() for state in message.get("states_filter", ())}
        types = {kind.lower() for kind in message.get("types_filter", ())}
        nobody: Message = {"protocol_type": "", "group_state": EMPTY}
        found: list[Message] = [{**real.get(group, nobody), "group_id": group} for group in ours]
        known = set(ours)
        found += [group for name, group in real.items() if name not in known and self._backend.owns(name) == NONE]
        told = [
            {**group, "group_type": CLASSIC}
            for group in found
            if (not states or group["group_state"].lower() in states)
            and (not types or CLASSIC in types)
            and self._endpoint.group_allowed(request, Operation.DESCRIBE, group["group_id"])
        ]
        return encoded(request, {"error_code": NONE, "groups": told})

    async def _describe(self, request: Request) -> Answer:
        message = decoded(request)
        operations = bool(message.get("include_authorized_operations"))
        asking = asyncio.Semaphore(_AT_ONCE)

        async def described(group: str) -> Message:
            async with asking:
                return await self._described(request, group, operations)

        groups = await asyncio.gather(*map(described, message["groups"]))
        return encoded(request, {"groups": groups})

    async def _described(self, request: Request, group: str, operations: bool) -> Message:
        failed = {**_NOBODY, "group_id": group}
        if not self._endpoint.group_allowed(request, Operation.DESCRIBE, group):
            return {**failed, "error_code": GROUP_AUTHORIZATION_FAILED}
        if code := self._backend.owns(group):
            return {**failed, "error_code": code}
        try:
            found = await self._coordinators.describe(group, operations, self._deadline())
        except OffsetMgrError:
            return {**failed, "error_code": COORDINATOR_NOT_AVAILABLE}
        if found["error_code"]:
            self._coordinators.forget(group)
            return {**failed, "error_code": COORDINATOR_NOT_AVAILABLE}
        if found["group_state"] != DEAD:
            return found
        # The real coordinator knows no such group; it is one all the same where it has offsets here.
        offsets = await self._backend.fetch(FetchRequest(group))
        if offsets.error and offsets.error != GROUP_ID_NOT_FOUND:
            return {**failed, "error_code": offsets.error}
        if offsets.topics:
            return {**found, "group_state": EMPTY}
        if request.version >= _ERRORS_FOR_UNKNOWN:
            return {**found, "error_code": GROUP_ID_NOT_FOUND, "error_message": f"Group {group} not found."}
        return found

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + _ASK_SECONDS


_NOBODY: Final[dict[str, Any]] = {
    "error_code": NONE,
    "error_message": None,
    "group_state": "",
    "protocol_type": "",
    "protocol_data": "",
    "members": [],
    "authorized_operations": NOT_ASKED,
}
