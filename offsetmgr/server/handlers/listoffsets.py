"""ListOffsets: the real cluster is asked, since every partition's leader is, to our clients, a manager."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from offsetmgr.errors import OffsetMgrError
from offsetmgr.server.authorization import Operation
from offsetmgr.server.dispatch import Answer, Request
from offsetmgr.server.handlers.endpoint import TOPIC_AUTHORIZATION_FAILED, Endpoint, decoded, encoded
from offsetmgr.wire.upstream import AskedOffset, FoundOffset

_UNKNOWN_TOPIC: Final = 3
_LEADER_NOT_AVAILABLE: Final = 5
_READ_COMMITTED: Final = 1


async def list_offsets(endpoint: Endpoint, request: Request) -> Answer:
    """The leader epochs that clients send are not passed on: what they know of leaders is what we told them."""
    message = decoded(request)
    asked = {
        topic["name"]: [AskedOffset(part["partition_index"], part["timestamp"]) for part in topic["partitions"]]
        for topic in message["topics"]
    }
    may_see = {name for name in asked if endpoint.topic_allowed(request, Operation.DESCRIBE, name)}
    allowed = {name: parts for name, parts in asked.items() if name in may_see}
    committed = message.get("isolation_level") == _READ_COMMITTED
    found = await _found(endpoint, allowed, read_committed=committed)
    for name, parts in asked.items():
        if name not in may_see:
            found[name] = _failed(parts, TOPIC_AUTHORIZATION_FAILED)
    return encoded(request, {"topics": [_topic(name, found[name]) for name in asked]})


async def _found(
    endpoint: Endpoint, asked: Mapping[str, Sequence[AskedOffset]], *, read_committed: bool
) -> dict[str, Sequence[FoundOffset]]:
    if endpoint.cluster is None:
        return {name: _failed(parts, _UNKNOWN_TOPIC) for name, parts in asked.items()}
    if not asked:
        return {}
    try:
        return dict(await endpoint.cluster.list_offsets(asked, read_committed=read_committed))
    except OffsetMgrError:
        return {name: _failed(parts, _LEADER_NOT_AVAILABLE) for name, parts in asked.items()}


def _failed(parts: Sequence[AskedOffset], error: int) -> list[FoundOffset]:
    return [FoundOffset(part.partition, error) for part in parts]


def _topic(name: str, found: Sequence[FoundOffset]) -> dict[str, Any]:
    return {
        "name": name,
        "partitions": [
            {
                "partition_index": offset.partition,
                "error_code": offset.error,
                "timestamp": offset.timestamp,
                "offset": offset.offset,
                "leader_epoch": offset.leader_epoch,
            }
            for offset in found
        ],
    }
