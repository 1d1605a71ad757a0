"""ListGroups, DescribeGroups and DeleteGroups, for groups with offsets in this manager. These handlers return no
members. The relay replaces ListGroups and DescribeGroups with handlers that add the members from the real coordinator.

As in Kafka, a group that was created by commits has the state Empty, the type classic and no protocol type.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from offsetmgr.core.batches import batched
from offsetmgr.core.errors import ErrorCode
from offsetmgr.kafka.protocol.schema_codec import EncodedItems, encode_items, string
from offsetmgr.manager.results import FetchRequest
from offsetmgr.server.apis.api_context import (
    ApiContext,
    decoded,
    encoded,
    encoded_by_size,
    in_turns,
    portions,
    result_by_size,
    too_many,
)
from offsetmgr.server.network.requests import Answer, ApiRequest
from offsetmgr.server.security.authorization import Operation

LIST_FLEXIBLE: Final = 3

EMPTY: Final = "Empty"
DEAD: Final = "Dead"
CLASSIC: Final = "classic"
_ERRORS_FOR_UNKNOWN: Final = 6
"""The first version of DescribeGroups that returns an error code for an unknown group; earlier versions only report the
state Dead."""
_BATCH: Final = 50
"""Number of groups processed before the handler may yield to other clients."""


async def list_groups(context: ApiContext, request: ApiRequest) -> Answer:
    """Lists the groups that the client may see, a few at a time, since there may be a million groups. The fields after
    a group's name are the same for all groups, so they are encoded once."""
    matches_filters = listed_states(decoded(request))(EMPTY)
    error, groups = await context.backend.list_groups()
    flexible = request.version >= LIST_FLEXIBLE
    nameless = {"group_id": "", "protocol_type": "", "group_state": EMPTY, "group_type": CLASSIC}
    encoded_nameless = encode_items(request.api_key, request.version, "groups", [nameless])
    behind = encoded_nameless[len(string("", flexible=flexible)) :]
    number, parts = 0, bytearray()
    async for part in in_turns(request, batched(groups if matches_filters and not error else (), _BATCH)):
        for group in part:
            if context.group_allowed(request, Operation.DESCRIBE, group):
                parts += string(group, flexible=flexible)
                parts += behind
                number += 1
    return encoded(request, {"error_code": error, "groups": EncodedItems(number, parts)})


def listed_states(message: Mapping[str, Any]) -> Callable[[str], bool]:
    """Returns a function that tells whether a ListGroups request asks for classic groups in a state."""
    states = {state.lower() for state in message.get("states_filter", ())}
    types = {kind.lower() for kind in message.get("types_filter", ())}
    return lambda state: (not states or state.lower() in states) and (not types or CLASSIC in types)


async def describe_groups(context: ApiContext, request: ApiRequest) -> Answer:
    message = decoded(request)
    requested = bool(message.get("include_authorized_operations"))
    groups = list(dict.fromkeys(message["groups"]))
    if too_many(request, groups):
        return await too_many_described(request, groups)
    data = bytearray()
    async for group in in_turns(request, groups):
        description: dict[str, Any] = {**EMPTY_DESCRIPTION, "group_id": group}
        if not context.group_allowed(request, Operation.DESCRIBE, group):
            description["error_code"] = ErrorCode.GROUP_AUTHORIZATION_FAILED
        else:
            if requested:
                description["authorized_operations"] = context.group_operations(request, group)
            description = await described_without_members(context, request, description)
        data += encode_items(request.api_key, request.version, "groups", [description])
    return await encoded_by_size(request, {"groups": EncodedItems(len(groups), data)})


async def too_many_described(request: ApiRequest, groups: Sequence[str]) -> bytes:
    """Returns the response to a DescribeGroups request that names more groups than allowed."""

    def rejected() -> bytes:
        return encoded(
            request,
            {"groups": [{**EMPTY_DESCRIPTION, "group_id": g, "error_code": ErrorCode.INVALID_REQUEST} for g in groups]},
        )

    return await result_by_size(request, rejected)


EMPTY_DESCRIPTION: Final[dict[str, Any]] = {
    "error_code": ErrorCode.NONE,
    "group_state": "",
    "protocol_type": "",
    "protocol_data": "",
    "members": [],
}
"""The fields of a group's description, without the group's name."""


async def described_without_members(
    context: ApiContext, request: ApiRequest, description: Mapping[str, Any]
) -> dict[str, Any]:
    """Completes the description of a group that has no members. Its state is Empty if this manager has offsets of the
    group. Otherwise the group is unknown: its state is Dead, with an error in versions that have this error."""
    group = description["group_id"]
    found = await context.backend.fetch(FetchRequest(group, topics_only=True))
    if found.error and found.error != ErrorCode.GROUP_ID_NOT_FOUND:
        return {**EMPTY_DESCRIPTION, "group_id": group, "error_code": found.error}
    if found.topics:
        return {**description, "group_state": EMPTY}
    if request.version < _ERRORS_FOR_UNKNOWN:
        return {**description, "group_state": DEAD}
    why = f"Group {group} not found."
    error = {"error_code": ErrorCode.GROUP_ID_NOT_FOUND, "error_message": why}
    return {**description, "group_state": DEAD, **error}


async def delete_groups(context: ApiContext, request: ApiRequest) -> Answer:
    async def deleted(group: str) -> dict[str, Any]:
        allowed = context.group_allowed(request, Operation.DELETE, group)
        error = await context.backend.delete_group(group) if allowed else ErrorCode.GROUP_AUTHORIZATION_FAILED
        return {"group_id": group, "error_code": error}

    # Without duplicates, because the second deletion of a group would return an error.
    groups = list(dict.fromkeys(decoded(request)["groups_names"]))
    if too_many(request, groups):
        results = [{"group_id": group, "error_code": ErrorCode.INVALID_REQUEST} for group in groups]
        return await encoded_by_size(request, {"results": results})
    results = []
    async for part in in_turns(request, portions(groups, _BATCH)):
        results += await asyncio.gather(*map(deleted, part))
    return await encoded_by_size(request, {"results": results})
