"""ListGroups, DescribeGroups and DeleteGroups, for groups with offsets in this manager. The relay gives ListGroups and
DescribeGroups the groups of the real coordinators, which have the members.

As in Kafka, a group that was created by commits has the state Empty, the type classic and no protocol type.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any, Final

from offsetmgr.core.errors import ErrorCode, OffsetMgrError
from offsetmgr.kafka.protocol.schema_codec import EncodedItems, Message, encode_items, string
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

_EMPTY: Final = "Empty"
_DEAD: Final = "Dead"
_CLASSIC: Final = "classic"
_WITHOUT_MEMBERS: Final[Message] = {"protocol_type": "", "group_state": _EMPTY}
_NOT_DESCRIBED: Final[Message] = {
    "error_code": ErrorCode.NONE,
    "group_state": "",
    "protocol_type": "",
    "protocol_data": "",
    "members": [],
}
_DEAD_GROUP: Final[Message] = {**_NOT_DESCRIBED, "group_state": _DEAD}
_ERRORS_FOR_UNKNOWN: Final = 6
"""The first version of DescribeGroups that returns an error code for an unknown group; earlier versions only report the
state Dead."""
_DESCRIBE_BATCH: Final = 100
_BATCH: Final = 50
"""Number of groups processed before the handler may yield to other clients."""


async def list_groups(
    context: ApiContext, request: ApiRequest, with_members: Callable[[], Awaitable[dict[str, Message]]] | None = None
) -> Answer:
    """Lists the groups that the client may see, a few at a time, since there may be a million groups. ``with_members``
    returns the groups of the real coordinators, as in a ListGroups response. Ports that represent brokers list no
    groups, because otherwise a client that sends ListGroups to every node would see each group twice."""
    is_listed, flexible = _listed_states(decoded(request)), request.version >= LIST_FLEXIBLE
    if request.connection.node_id is not None:
        return encoded(request, {"error_code": ErrorCode.NONE, "groups": []})
    error, groups = await context.backend.list_groups()
    live: dict[str, Message] = {}
    try:
        if with_members is not None and not error:
            live = await with_members()
    except OffsetMgrError:
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    if error:
        return encoded(request, {"error_code": error, "groups": []})

    @cache
    def fields_after_name(protocol_type: str, state: str) -> bytes:
        nameless = {"group_id": "", "protocol_type": protocol_type, "group_state": state, "group_type": _CLASSIC}
        item = encode_items(request.api_key, request.version, "groups", [nameless])
        return item[len(string("", flexible=flexible)) :]

    def groups_without_offsets() -> Iterator[str]:
        yield from (group for group in list(live) if context.backend.ownership_error(group) == ErrorCode.NONE)

    number, data = 0, bytearray()
    parts = chain(portions(groups, _BATCH), portions(groups_without_offsets(), _BATCH))
    async for part in in_turns(request, parts):
        for group in part:
            about = live.pop(group, _WITHOUT_MEMBERS)
            if is_listed(about["group_state"]) and context.group_allowed(request, Operation.DESCRIBE, group):
                data += string(group, flexible=flexible)
                data += fields_after_name(about["protocol_type"], about["group_state"])
                number += 1
    return encoded(request, {"error_code": ErrorCode.NONE, "groups": EncodedItems(number, data)})


def _listed_states(message: Mapping[str, Any]) -> Callable[[str], bool]:
    """Returns a function that tells whether a ListGroups request asks for classic groups in a state."""
    states = {state.lower() for state in message.get("states_filter", ())}
    types = {kind.lower() for kind in message.get("types_filter", ())}
    return lambda state: (not states or state.lower() in states) and (not types or _CLASSIC in types)


async def describe_groups(
    context: ApiContext,
    request: ApiRequest,
    with_members: Callable[[Sequence[str]], Awaitable[Mapping[str, Message]]] | None = None,
) -> Answer:
    """Describes groups. ``with_members`` returns the descriptions of the real coordinators, as in a DescribeGroups
    response."""
    message = decoded(request)
    operations = bool(message.get("include_authorized_operations"))
    groups = list(dict.fromkeys(message["groups"]))  # a group with many members has a large description
    if too_many(request, groups):
        rejected = {**_NOT_DESCRIBED, "error_code": ErrorCode.INVALID_REQUEST}
        return await result_by_size(
            request, lambda: encoded(request, {"groups": [{**rejected, "group_id": group} for group in groups]})
        )
    data = bytearray()
    async for part in in_turns(request, portions(groups, _DESCRIBE_BATCH)):
        asked = [group for group in part if not _error(context, request, group)]
        found = dict.fromkeys(asked, _DEAD_GROUP) if with_members is None else await with_members(asked)
        async for group in in_turns(request, part):
            description = await _described(context, request, group, found.get(group))
            if operations and not description["error_code"]:
                description["authorized_operations"] = context.group_operations(request, group)
            data += encode_items(request.api_key, request.version, "groups", [description])
    return await encoded_by_size(request, {"groups": EncodedItems(len(groups), data)})


def _error(context: ApiContext, request: ApiRequest, group: str) -> int:
    """Returns the error code of a group that is not described, otherwise 0."""
    if not context.group_allowed(request, Operation.DESCRIBE, group):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    return context.backend.ownership_error(group)


async def _described(context: ApiContext, request: ApiRequest, group: str, found: Message | None) -> Message:
    """Completes the real coordinator's description of a group; None if the coordinator did not return one. The state of
    a group that the coordinator does not know is Empty if this manager has offsets of the group. Otherwise the group is
    unknown: its state is Dead, with an error in versions that have this error."""
    failed = {**_NOT_DESCRIBED, "group_id": group}
    if code := _error(context, request, group):
        return {**failed, "error_code": code}
    if found is None:
        return {**failed, "error_code": ErrorCode.COORDINATOR_NOT_AVAILABLE}
    if found["group_state"] != _DEAD:
        return found
    own = await context.backend.fetch(FetchRequest(group, topics_only=True))
    if own.error and own.error != ErrorCode.GROUP_ID_NOT_FOUND:
        return {**failed, "error_code": own.error}
    if own.topics:
        return {**found, "group_id": group, "group_state": _EMPTY}
    if request.version < _ERRORS_FOR_UNKNOWN:
        return {**found, "group_id": group}
    error = {"error_code": ErrorCode.GROUP_ID_NOT_FOUND, "error_message": f"Group {group} not found."}
    return {**found, "group_id": group, **error}


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
