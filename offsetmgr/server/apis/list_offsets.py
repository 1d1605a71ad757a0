"""Handler of ListOffsets for a manager that runs without the relay. Clients send ListOffsets to this manager, because
Metadata responses name the manager as the leader of every partition. The handler requests the offsets from the backing
cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from offsetmgr.core.batches import batched_by_size
from offsetmgr.core.errors import ErrorCode, OffsetMgrError
from offsetmgr.kafka.client.backing_cluster import FoundOffset, OffsetQuery
from offsetmgr.server.apis.api_context import ApiContext, decoded, encoded, in_turns, result_by_size
from offsetmgr.server.network.requests import Answer, ApiRequest
from offsetmgr.server.security.authorization import Operation

_READ_COMMITTED: Final = 1
_BATCH: Final = 1_000
"""Maximum number of partitions in one request to the brokers."""


def prepare(request: ApiRequest) -> tuple[dict[str, list[OffsetQuery]], bool]:
    """Decodes a ListOffsets request; returns the partitions by topic, and whether the isolation level is
    READ_COMMITTED. Raises `InvalidRequest`."""
    message = decoded(request)
    requested = {
        topic["name"]: [OffsetQuery(part["partition_index"], part["timestamp"]) for part in topic["partitions"]]
        for topic in message["topics"]
    }
    return requested, message.get("isolation_level") == _READ_COMMITTED


async def list_offsets(context: ApiContext, request: ApiRequest) -> Answer:
    """Returns the backing cluster's offsets. The handler does not forward the leader epochs that the client's request
    contains, because clients got these epochs from this manager's own Metadata responses."""
    requested, read_committed = request.prepared or prepare(request)
    codes = {name: context.topic_error(request, Operation.DESCRIBE, name) for name in requested}
    allowed = {name: parts for name, parts in requested.items() if not codes[name]}
    found: dict[str, list[FoundOffset]] = {}
    pieces = (
        (name, parts[at : at + _BATCH])
        for name, parts in allowed.items()
        for at in range(0, max(len(parts), 1), _BATCH)
    )
    async for batch in in_turns(request, batched_by_size(pieces, lambda piece: 1 + len(piece[1]), _BATCH)):
        for name, offsets in (await _found(context, dict(batch), read_committed=read_committed)).items():
            found.setdefault(name, []).extend(offsets)
    found |= {name: _failed(parts, codes[name]) for name, parts in requested.items() if codes[name]}
    return await result_by_size(
        request, lambda: encoded(request, {"topics": [_topic(name, found[name]) for name in requested]})
    )


async def _found(
    context: ApiContext, requested: Mapping[str, Sequence[OffsetQuery]], *, read_committed: bool
) -> dict[str, Sequence[FoundOffset]]:
    if not requested:
        return {}
    try:
        return dict(await context.cluster.list_offsets(requested, read_committed=read_committed))
    except OffsetMgrError:
        return {name: _failed(parts, ErrorCode.LEADER_NOT_AVAILABLE) for name, parts in requested.items()}


def _failed(parts: Sequence[OffsetQuery], error: int) -> list[FoundOffset]:
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
