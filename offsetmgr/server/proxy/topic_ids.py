"""`TopicIds`: finds the names of topic ids; `fetched_ids` reads the ids in a Fetch request."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Collection, Iterable
from typing import Final

from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import remaining
from offsetmgr.kafka.protocol.frames import Request
from offsetmgr.kafka.protocol.releases import ApiKey
from offsetmgr.kafka.protocol.requests import METADATA_OPTIONS
from offsetmgr.kafka.protocol.schema_codec import Cursor

_FIRST_BY_ID: Final = 12
"""The first version of Metadata in which a request can name topics by id (KIP-516)."""
_REQUEST_TIMEOUT_S: Final = 10.0
_MAX_NAMES: Final = 100_000
_IDS_PER_REQUEST: Final = 1_000
_FETCH_HEAD: Final = {13: 25, 14: 25, 15: 21}
"""Size of the fields in front of the array of topics in a Fetch, by version: replica (before 15), wait, bytes,
isolation, session."""
_FETCH_PARTITION: Final = 33
"""Size of a partition without tagged fields in a Fetch. Its last byte is the number of tagged fields (0)."""


class TopicIds:
    """Caches the name of each topic id. The name of an id never changes, because a recreated topic has another id. Use
    it in one event loop."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._names: dict[uuid.UUID, str] = {}

    def name(self, topic_id: uuid.UUID | None) -> str | None:
        """Returns the topic's name from the cache; None if the cache does not contain it."""
        return None if topic_id is None else self._names.get(topic_id)

    def unknown(self, ids: Iterable[uuid.UUID]) -> Collection[uuid.UUID]:
        return {topic_id for topic_id in ids if topic_id not in self._names}

    async def resolve(self, ids: Collection[uuid.UUID]) -> None:
        """Asks a broker for the names of these ids and caches them. Ids that the broker does not know stay unknown.
        Raises `OffsetMgrError`."""
        if not ids:
            return
        deadline = asyncio.get_running_loop().time() + _REQUEST_TIMEOUT_S
        connection = await self._client.any_connection(deadline)
        if connection.versions.get(ApiKey.METADATA, (0, 0))[1] < _FIRST_BY_ID:
            return
        unresolved = list(ids)
        for at in range(0, len(unresolved), _IDS_PER_REQUEST):
            topics = [{"topic_id": topic_id, "name": None} for topic_id in unresolved[at : at + _IDS_PER_REQUEST]]
            request = Request(ApiKey.METADATA, _FIRST_BY_ID, {"topics": topics, **METADATA_OPTIONS})
            answer = await connection.call(request, remaining(deadline), use_codec_thread=True)
            if len(self._names) > _MAX_NAMES:
                self._names.clear()
            for topic in answer["topics"]:
                if topic["name"] and topic["topic_id"]:
                    self._names[topic["topic_id"]] = topic["name"]


def fetched_ids(frame: bytes, body: int, version: int) -> list[uuid.UUID | None] | None:
    """Reads the topic ids of a Fetch request of version 13 to 15 without decoding the request, since clients send this
    request often. Returns None if a partition has tagged fields. In this case, the caller must decode the request.
    Raises `InvalidRequest`."""
    cursor = Cursor(frame, body, flexible=True)
    cursor.take(_FETCH_HEAD[version])
    ids: list[uuid.UUID | None] = []
    for _ in range(cursor.count(18)):
        ids.append(cursor.uuid())
        count = cursor.count(_FETCH_PARTITION)
        at = cursor.take(count * _FETCH_PARTITION)
        if any(frame[at + _FETCH_PARTITION - 1 : cursor.at : _FETCH_PARTITION]):
            return None
        cursor.tags()
    return ids
