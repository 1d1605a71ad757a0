"""`GroupLists`: ListGroups and DescribeGroups through the relay.

A manager lists only the groups that it owns, with the members that the real coordinator reports. Ports that represent
brokers list no groups, because otherwise a client that sends ListGroups to every node would see each group twice.
"""

from __future__ import annotations

import asyncio
from typing import Final

from offsetmgr.core.errors import ErrorCode, OffsetMgrError
from offsetmgr.kafka.protocol.releases import ApiKey
from offsetmgr.kafka.protocol.schema_codec import EncodedItems, Message, encode_items
from offsetmgr.server.apis.api_context import (
    ApiContext,
    decoded,
    encoded,
    encoded_by_size,
    in_turns,
    portions,
    too_many,
)
from offsetmgr.server.apis.groups import (
    CLASSIC,
    DEAD,
    EMPTY,
    EMPTY_DESCRIPTION,
    described_without_members,
    listed_states,
    too_many_described,
)
from offsetmgr.server.network.requests import Answer, ApiRequest, Handler
from offsetmgr.server.proxy.coordinators import Coordinators
from offsetmgr.server.security.authorization import Operation

_REQUEST_TIMEOUT_S: Final = 4.0
_DESCRIBE_BATCH: Final = 100
_LIST_BATCH: Final = 50
"""Number of groups that a handler describes or lists before it yields, so that requests of other clients can run."""


class GroupLists:
    """The handlers of both APIs."""

    def __init__(self, context: ApiContext, coordinators: Coordinators) -> None:
        self._context = context
        self._coordinators = coordinators

    def handlers(self) -> dict[int, Handler]:
        """Returns the handlers by API."""
        return {ApiKey.LIST_GROUPS: self._list, ApiKey.DESCRIBE_GROUPS: self._describe}

    async def _list(self, request: ApiRequest) -> Answer:
        message = decoded(request)
        if request.connection.node_id is not None:
            return encoded(request, {"error_code": ErrorCode.NONE, "groups": []})
        error, own_groups = await self._context.backend.list_groups()
        if error:
            return encoded(request, {"error_code": error, "groups": []})
        try:
            real = await self._coordinators.groups(self._deadline())
        except OffsetMgrError:
            return encoded(request, {"error_code": ErrorCode.COORDINATOR_NOT_AVAILABLE, "groups": []})
        is_listed = listed_states(message)
        empty_group: Message = {"protocol_type": "", "group_state": EMPTY}
        number, data = 0, bytearray()

        def append(group: str, about: Message) -> None:
            nonlocal number, data
            if is_listed(about["group_state"]) and self._context.group_allowed(request, Operation.DESCRIBE, group):
                item = {**about, "group_id": group, "group_type": CLASSIC}
                data += encode_items(request.api_key, request.version, "groups", [item])
                number += 1

        async for part in in_turns(request, portions(own_groups, _LIST_BATCH)):
            for group in part:
                append(group, real.pop(group, empty_group))
        async for part in in_turns(request, portions(list(real), _LIST_BATCH)):
            for group in part:
                if self._context.backend.ownership_error(group) == ErrorCode.NONE:
                    append(group, real[group])
        return encoded(request, {"error_code": ErrorCode.NONE, "groups": EncodedItems(number, data)})

    async def _describe(self, request: ApiRequest) -> Answer:
        message = decoded(request)
        groups = list(dict.fromkeys(message["groups"]))  # a group with many members has a large description
        if too_many(request, groups):
            return await too_many_described(request, groups)
        operations = bool(message.get("include_authorized_operations"))

        data = bytearray()
        async for part in in_turns(request, portions(groups, _DESCRIBE_BATCH)):
            asked = [group for group in part if not self._error(request, group)]
            found = await self._coordinators.describe(asked, self._deadline())
            async for group in in_turns(request, part):
                description = await self._described(request, group, found.get(group))
                if operations and not description["error_code"]:
                    description["authorized_operations"] = self._context.group_operations(request, group)
                data += encode_items(request.api_key, request.version, "groups", [description])
        return await encoded_by_size(request, {"groups": EncodedItems(len(groups), data)})

    def _error(self, request: ApiRequest, group: str) -> int:
        """Returns the error code of a group about which the real coordinator is not asked, otherwise 0."""
        if not self._context.group_allowed(request, Operation.DESCRIBE, group):
            return ErrorCode.GROUP_AUTHORIZATION_FAILED
        return self._context.backend.ownership_error(group)

    async def _described(self, request: ApiRequest, group: str, found: Message | None) -> Message:
        """Completes the real coordinator's description; None if the coordinator did not return one."""
        failed = {**EMPTY_DESCRIPTION, "group_id": group}
        if code := self._error(request, group):
            return {**failed, "error_code": code}
        if found is None:
            return {**failed, "error_code": ErrorCode.COORDINATOR_NOT_AVAILABLE}
        if found["group_state"] != DEAD:
            return found
        # The real coordinator does not know this group, but the group exists if the manager holds its offsets.
        return await described_without_members(self._context, request, found)

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + _REQUEST_TIMEOUT_S
