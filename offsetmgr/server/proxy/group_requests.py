"""Parses JoinGroup, SyncGroup, Heartbeat and LeaveGroup, which the relay forwards, and builds their error responses.
Pure.

Only the beginning of a frame is parsed, not the subscriptions and assignments.

Source: the JSON schemas of these requests and responses, versions 0 to `GroupApi.max_version`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from offsetmgr.kafka.protocol.api_key import ApiKey
from offsetmgr.kafka.protocol.primitives import INT16, Cursor
from offsetmgr.kafka.protocol.schema_codec import encode_response
from offsetmgr.server.network.api import ApiRequest


class GroupApi(NamedTuple):
    """One of the APIs: its highest version, and the first version of each of its features."""

    name: str
    max_version: int
    flexible: int
    throttles: int
    """The first version whose response begins with the throttle time."""
    static: int = 32_767
    """The first version whose request names a static member."""


GROUP_APIS: Final[Mapping[int, GroupApi]] = {
    ApiKey.JOIN_GROUP: GroupApi("JoinGroup", 9, 6, 2, 5),
    ApiKey.HEARTBEAT: GroupApi("Heartbeat", 4, 4, 1, 3),
    ApiKey.LEAVE_GROUP: GroupApi("LeaveGroup", 5, 4, 1),
    ApiKey.SYNC_GROUP: GroupApi("SyncGroup", 5, 4, 1, 3),
}
_NO_GENERATION: Final = -1
_BODY: Final = 8


class GroupRequest(NamedTuple):
    """The group and the member in a request. A LeaveGroup may name many members, so only its group is parsed."""

    group: str
    generation: int = _NO_GENERATION
    member_id: str = ""
    instance_id: str | None = None
    session_seconds: float | None = None
    """The session timeout; only in a JoinGroup."""


def read_request(request: ApiRequest) -> GroupRequest:
    """Parses a request. Raises `InvalidRequest`."""
    key, version = request.api_key, request.version
    flexible = version >= GROUP_APIS[key].flexible
    cursor = Cursor(request.frame, request.body(flexible=flexible), flexible=flexible)
    group = cursor.string()
    if key == ApiKey.LEAVE_GROUP:
        return GroupRequest(group)
    generation, session = _NO_GENERATION, None
    if key == ApiKey.JOIN_GROUP:
        session = cursor.int32() / 1000
        if version >= 1:
            cursor.int32()  # rebalance timeout
    else:
        generation = cursor.int32()
    member_id = cursor.string()
    instance_id = cursor.nullable_string() if version >= GROUP_APIS[key].static else None
    return GroupRequest(group, generation, member_id, instance_id, session)


def read_error(api_key: int, version: int, frame: bytes) -> int:
    """Reads the error code of a whole response (with its length field). Raises `InvalidRequest`."""
    return _after_throttle(api_key, version, frame).number(INT16)


def read_generation(version: int, frame: bytes) -> int:
    """Reads the generation of a whole JoinGroup response. Raises `InvalidRequest`."""
    cursor = _after_throttle(ApiKey.JOIN_GROUP, version, frame)
    cursor.number(INT16)  # the error code
    return cursor.int32()


def error_response(request: ApiRequest, code: int, member_id: str = "") -> bytes:
    """Builds the body of a response with this error code."""
    message = {
        "error_code": code,
        "generation_id": _NO_GENERATION,
        "protocol_name": "",
        "leader": "",
        "member_id": member_id,
        "members": [],
        "assignment": b"",
    }
    return encode_response(request.api_key, request.version, message)


def _after_throttle(api_key: int, version: int, frame: bytes) -> Cursor:
    cursor = Cursor(frame, _BODY, flexible=version >= GROUP_APIS[api_key].flexible)
    cursor.tags()
    if version >= GROUP_APIS[api_key].throttles:
        cursor.int32()
    return cursor
