"""`BackingClusterClient` sends the listener's requests to the Kafka cluster behind the listener. It requests the
cluster id, the topics, and offsets by time.

The listener passes the results on to its clients, so the error of a topic or partition is a Kafka error code. This
class never retries, because the listener's clients do.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from offsetmgr.core.errors import ErrorCode, OffsetMgrError
from offsetmgr.core.model import TopicPartition
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import BrokerConnection, Security
from offsetmgr.kafka.protocol.frames import Address, Request
from offsetmgr.kafka.protocol.releases import ApiKey
from offsetmgr.kafka.protocol.requests import METADATA_OPTIONS, broker_addresses, parts_of, topics_with
from offsetmgr.kafka.protocol.schema_codec import Message

_METADATA_RANGE: Final = (8, 12)
_BY_TOPIC_ID: Final = 12
_LIST_OFFSETS_RANGE: Final = (4, 10)


_MIN_VERSION: Final[Mapping[int, int]] = {-3: 7, -4: 8, -5: 9}
"""The ListOffsets version that introduced each special timestamp: maximum timestamp (KIP-734), earliest local offset
(KIP-405), latest tiered offset (KIP-1005)."""


class PartitionLayout(NamedTuple):
    """A partition with its leader and error code (0 means no error)."""

    partition: int
    error: int
    leader_epoch: int
    leader: Address | None = None


class TopicLayout(NamedTuple):
    """A topic with its partitions and error code (0 means no error)."""

    name: str | None
    topic_id: uuid.UUID | None
    error: int
    internal: bool = False
    partitions: Sequence[PartitionLayout] = ()


class OffsetQuery(NamedTuple):
    """A partition and a timestamp: milliseconds since 1970, or a special value of ListOffsets."""

    partition: int
    timestamp: int


class FoundOffset(NamedTuple):
    """The result of an `OffsetQuery`. ``offset`` is -1 if the leader found no offset."""

    partition: int
    error: int
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1


class BackingClusterClient:
    """A client of the cluster at ``bootstrap``. Use it within one event loop. The constructor performs no I/O."""

    def __init__(self, bootstrap: str, security: Security, *, timeout_s: float = 10.0) -> None:
        """``timeout_s`` limits each call, in seconds."""
        self._client = Client(bootstrap, security)
        self._timeout_s = timeout_s
        self._cluster_id: str | None = None

    async def cluster_id(self) -> str | None:
        """Returns the cluster id; None for clusters without one. Raises `OffsetMgrError`."""
        if self._cluster_id is None:
            _, answer = await self._metadata([])
            self._cluster_id = answer.get("cluster_id")
        return self._cluster_id

    async def topics(self, names: Sequence[str] | None, ids: Sequence[uuid.UUID] = ()) -> Sequence[TopicLayout]:
        """Returns the topics with these names and the topics with these ids, each with its error code. If ``names`` is
        None, returns all topics. The request creates no topics.

        Raises `OffsetMgrError` if the cluster cannot be reached.
        """
        requested: list[dict[str, Any]] | None = None
        if names is not None:
            requested = [{"name": name, "topic_id": None} for name in names]
            requested += [{"name": None, "topic_id": topic_id} for topic_id in ids]
            if not requested:
                return []
        version, answer = await self._metadata(requested)
        brokers = broker_addresses(answer)
        layouts = []
        for number, topic in enumerate(answer["topics"], 1):
            layouts.append(_layout(topic, brokers))
            if number % 100 == 0:
                await asyncio.sleep(0)
        if version < _BY_TOPIC_ID:
            layouts += [TopicLayout(None, topic_id, ErrorCode.UNKNOWN_TOPIC_ID) for topic_id in ids]
        return layouts

    async def list_offsets(
        self, requested: Mapping[str, Sequence[OffsetQuery]], *, read_committed: bool
    ) -> Mapping[str, Sequence[FoundOffset]]:
        """Returns the results of the queries, by topic, from the leaders of the partitions.

        If a leader cannot be reached, its partitions have the error LEADER_NOT_AVAILABLE. Raises `OffsetMgrError` if
        the cluster cannot be reached.
        """
        layouts = {topic.name: topic for topic in await self.topics(list(requested))}
        found: dict[str, list[FoundOffset]] = {name: [] for name in requested}
        by_leader: dict[Address, dict[str, list[OffsetQuery]]] = {}
        for name, partitions in requested.items():
            layout = layouts.get(name)
            known = {part.partition: part for part in layout.partitions} if layout and not layout.error else {}
            missing_code = layout.error if layout and layout.error else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            for query in partitions:
                part = known.get(query.partition)
                if part is None:
                    found[name].append(FoundOffset(query.partition, missing_code))
                elif part.leader is None:
                    found[name].append(FoundOffset(query.partition, part.error or ErrorCode.LEADER_NOT_AVAILABLE))
                else:
                    by_leader.setdefault(part.leader, {}).setdefault(name, []).append(query)
        answers = await asyncio.gather(
            *(self._ask_leader(leader, queries, read_committed) for leader, queries in by_leader.items())
        )
        for name, offset in itertools.chain.from_iterable(answers):
            found[name].append(offset)
        return found

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()

    async def _ask_leader(
        self, leader: Address, requested: Mapping[str, Sequence[OffsetQuery]], read_committed: bool
    ) -> list[tuple[str, FoundOffset]]:
        sent: dict[str, list[OffsetQuery]] = {}
        rejected: list[tuple[str, FoundOffset]] = []
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        try:
            connection = await self._client.node(leader).connection(deadline)
            version = _version(connection, ApiKey.LIST_OFFSETS, _LIST_OFFSETS_RANGE)
            # A broker would treat a special timestamp that this version does not support as a time.
            for name, parts in requested.items():
                for query in parts:
                    if query.timestamp < -5 or _MIN_VERSION.get(query.timestamp, 0) > version:
                        rejected.append((name, FoundOffset(query.partition, ErrorCode.UNSUPPORTED_VERSION)))
                    else:
                        sent.setdefault(name, []).append(query)
            asked = ((TopicPartition(name, p), time) for name, parts in sent.items() for p, time in parts)
            message = {
                "replica_id": -1,
                "isolation_level": int(read_committed),
                "timeout": round(self._timeout_s * 1000),
                "topics": topics_with((tp, {"current_leader_epoch": -1, "timestamp": time}) for tp, time in asked),
            }
            request = Request(ApiKey.LIST_OFFSETS, version, message)
            answer = await connection.call(request, self._timeout_s, use_codec_thread=True)
        except OffsetMgrError:
            failed = ErrorCode.LEADER_NOT_AVAILABLE
            return [(name, FoundOffset(p, failed)) for name, parts in requested.items() for p, _ in parts]
        found = (
            (tp, FoundOffset(tp.partition, p["error_code"], p["timestamp"], p["offset"], p["leader_epoch"]))
            for tp, p in parts_of(answer)
        )
        return rejected + [(tp.topic, offset) for tp, offset in found]

    async def _metadata(self, topics: list[dict[str, Any]] | None) -> tuple[int, Message]:
        """Returns the version of the request and the response."""
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        connection = await self._client.any_connection(deadline)
        version = _version(connection, ApiKey.METADATA, _METADATA_RANGE)
        if topics is not None and version < _BY_TOPIC_ID:
            topics = [topic for topic in topics if topic["name"] is not None]
        request = Request(ApiKey.METADATA, version, {"topics": topics, **METADATA_OPTIONS})
        return version, await connection.call(request, self._timeout_s, use_codec_thread=True)


def _layout(topic: Message, brokers: Mapping[int, Address]) -> TopicLayout:
    partitions = [
        PartitionLayout(p["partition_index"], p["error_code"], p.get("leader_epoch", -1), brokers.get(p["leader_id"]))
        for p in topic["partitions"]
    ]
    internal = topic.get("is_internal", False)
    return TopicLayout(topic["name"], topic.get("topic_id"), topic["error_code"], internal, partitions)


def _version(connection: BrokerConnection, api_key: int, supported: tuple[int, int]) -> int:
    """Returns the latest version that both the broker and this class support. If there is no such version, returns the
    oldest version that this class supports. The broker rejects a request in that version."""
    return max(supported[0], min(supported[1], connection.versions.get(api_key, supported)[1]))
