"""`TopicIds`: finds the names of topic ids. `fetched_topics` and `produced_topics` read the topics of a Fetch or a
Produce request without decoding the request, since clients send these requests often."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final
from weakref import WeakValueDictionary

from offsetmgr.core.batches import batched
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import remaining
from offsetmgr.kafka.protocol.frames import Request
from offsetmgr.kafka.protocol.releases import ApiKey
from offsetmgr.kafka.protocol.requests import METADATA_OPTIONS
from offsetmgr.kafka.protocol.schema_codec import Message
from offsetmgr.server.network.requests import ApiRequest

_FIRST_BY_ID: Final = 12
"""The first version of Metadata in which a request can name topics by id (KIP-516)."""
_REQUEST_TIMEOUT_S: Final = 10.0
_MAX_NAMES: Final = 100_000
_MISSING_S: Final = 1.0
_IDS_PER_REQUEST: Final = 1_000
_FETCH_FLEXIBLE: Final = 12
_FETCH_BY_ID: Final = 13
_FETCH_REPLICA_TAG: Final = 15
"""The first version in which the replica id is a tagged field."""
_PRODUCE_FLEXIBLE: Final = 9
_OLD_LAYOUTS: Final[Mapping[tuple[int, int], tuple[int, int]]] = {
    (ApiKey.LIST_OFFSETS, 0): (4, 16),
    (ApiKey.OFFSET_FOR_LEADER_EPOCH, 0): (0, 8),
    (ApiKey.OFFSET_FOR_LEADER_EPOCH, 1): (0, 8),
}
"""Requests in versions that Kafka 4 has removed: size of the fields in front of the topics, and size of a partition."""
_MAX_PRODUCED: Final = 1_000
"""Maximum number of topics and partitions that `produced_topics` reads."""


class TopicIds:
    """Caches the name of each topic id. The name of an id never changes, because a recreated topic has another id. Use
    it in one event loop.

    Only one lookup of a principal runs at a time, so that its other lookups wait, and not those of other principals.
    """

    def __init__(self, client: Client) -> None:
        """``client``: its connections carry only lookups, so that commits do not wait for them."""
        self._client = client
        self._names: dict[uuid.UUID, str] = {}
        self._missing: dict[uuid.UUID, float] = {}
        """Ids that a broker did not know, and until when they count as unknown without another lookup."""
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def name(self, topic_id: uuid.UUID | None) -> str | None:
        """Returns the topic's name from the cache; None if the cache does not contain it."""
        return None if topic_id is None else self._names.get(topic_id)

    def unknown(self, ids: Iterable[uuid.UUID]) -> Collection[uuid.UUID]:
        now = time.monotonic()
        return {one for one in ids if one not in self._names and self._missing.get(one, 0.0) < now}

    async def all_topics(self, principal: str) -> list[str]:
        """Asks a broker for the names of all topics. Raises `OffsetMgrError`."""
        async with self._turns.setdefault(principal, asyncio.Lock()):
            return [topic["name"] for topic in await self._ask(None)]

    async def resolve(self, principal: str, ids: Collection[uuid.UUID]) -> None:
        """Asks a broker for the names of these ids and caches them. Ids that the broker does not know stay unknown.
        Raises `OffsetMgrError`."""
        async with self._turns.setdefault(principal, asyncio.Lock()):
            for part in batched(self.unknown(ids), _IDS_PER_REQUEST):
                found = await self._ask([{"topic_id": topic_id, "name": None} for topic_id in part])
                if len(self._names) > _MAX_NAMES:
                    self._names.clear()
                if len(self._missing) > _MAX_NAMES:
                    self._missing.clear()
                self._names |= {topic["topic_id"]: topic["name"] for topic in found if topic["name"]}
                self._missing |= dict.fromkeys(set(part) - self._names.keys(), time.monotonic() + _MISSING_S)

    async def _ask(self, topics: Sequence[Message] | None) -> Sequence[Message]:
        deadline = asyncio.get_running_loop().time() + _REQUEST_TIMEOUT_S
        connection = await self._client.any_connection(deadline)
        if topics is not None and connection.versions.get(ApiKey.METADATA, (0, 0))[1] < _FIRST_BY_ID:
            return ()
        request = Request(ApiKey.METADATA, _FIRST_BY_ID, {"topics": topics, **METADATA_OPTIONS})
        answer = await connection.call(request, remaining(deadline), use_codec_thread=True)
        found: Sequence[Message] = answer["topics"]
        return found


def fetched_topics(request: ApiRequest) -> list[Any] | None:
    """Reads the topics of a Fetch request, by name or (from version 13 on) by id. Returns None if the caller must
    decode the request, because it is a replica's request, or because a structure has tagged fields. Raises
    `InvalidRequest`."""
    frame, version = request.frame, request.version
    cursor = request.cursor(flexible=version >= _FETCH_FLEXIBLE)
    is_replica = version < _FETCH_REPLICA_TAG and cursor.int32() >= 0
    cursor.take(8 + 4 * (version >= 3) + (version >= 4) + 8 * (version >= 7))  # wait, bytes, isolation, session
    size = 16 + 8 * (version >= 5) + 4 * (version >= 9) + 5 * cursor.flexible  # a partition without tagged fields
    name = cursor.uuid if version >= _FETCH_BY_ID else cursor.string
    topics: list[Any] = []
    for _ in range(cursor.count(6)):
        topics.append(name())
        at = cursor.take(cursor.count(size) * size)
        if cursor.flexible and any(frame[at + size - 1 : cursor.at : size]):
            return None
        cursor.tags()
    if version >= _FETCH_REPLICA_TAG:
        for _ in range(cursor.count(18)):  # the topics that the client removes from its session
            cursor.take(16)
            cursor.take(4 * cursor.count(4))
            cursor.tags()
        cursor.string()  # the client's rack
        is_replica = cursor.varint() > 0
    return None if is_replica else topics


def produced_topics(request: ApiRequest) -> tuple[str | None, list[str]] | None:
    """Reads the transactional id and the topics of a Produce request, and skips the records. Returns None if the
    request has too many partitions for the event loop. Raises `InvalidRequest`."""
    cursor = request.cursor(flexible=request.version >= _PRODUCE_FLEXIBLE)
    transactional_id = cursor.nullable_string() if request.version >= 3 else None
    cursor.take(6)  # acks, timeout
    topics: list[str] = []
    left = _MAX_PRODUCED
    for _ in range(cursor.count(6)):
        topics.append(cursor.string())
        count = cursor.count(6 if cursor.flexible else 8)
        left -= 1 + count
        if left < 0:
            return None
        for _ in range(count):
            cursor.int32()
            cursor.skip_octets()
            cursor.tags()
        cursor.tags()
    return transactional_id, topics


def old_topics(request: ApiRequest) -> list[str] | None:
    """Reads the topics of a request in a version of `_OLD_LAYOUTS`. Returns None for other versions. Raises
    `InvalidRequest`."""
    layout = _OLD_LAYOUTS.get((request.api_key, request.version))
    if layout is None:
        return None
    cursor = request.cursor(flexible=False)
    cursor.take(layout[0])
    topics = []
    for _ in range(cursor.count(6)):
        topics.append(cursor.string())
        cursor.take(cursor.count(layout[1]) * layout[1])
    return topics
