"""Translates requests for brokers that do not support the version in which offsetmgr writes them.

Other modules write each request and read its response in one fixed version. For an older broker, this module translates
the request into one or more requests in versions that the broker supports, and merges their responses into one response
of the original version. Messages are dicts, as in `schema_codec`. The module itself encodes versions for which kio has
no schema.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final, NamedTuple

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.core.errors import InvalidRequest, ServerError, UnsupportedOperation
from offsetmgr.kafka.protocol import releases
from offsetmgr.kafka.protocol.api_key import ApiKey
from offsetmgr.kafka.protocol.channel import Address, Channel, EncodedRequest
from offsetmgr.kafka.protocol.primitives import INT16, INT32, INT64, Cursor, string
from offsetmgr.kafka.protocol.releases import Capability, release
from offsetmgr.kafka.protocol.request_codec import send_in_version
from offsetmgr.kafka.protocol.requests import OFFSETS_TOPIC
from offsetmgr.kafka.protocol.schema_codec import Message

IMPOSSIBLE_TOPIC: Final = "?"
"""An invalid topic name. A request for it neither returns nor creates a topic."""

_CHECKS_PARTITIONS_VERSION: Final = 4
"""The OffsetCommit version that Kafka 2.0 introduced. Brokers from 2.0 on reject commits for partitions that do not
exist."""
_PARTITION_COUNTS_TTL_S: Final = 5.0
_partition_counts_cache: Final[dict[Address, tuple[float, Mapping[str, int]]]] = {}
"""A cache of the partition counts of all topics. For each broker, the cache contains the time of the request (by the
event loop's clock) and the partition counts."""
_PARTITION: Final = struct.Struct(">hiii")
"""The start of a partition in Metadata 0 to 3: error code, partition number, leader, and the number of replica ids that
follow."""
_NO_REPLICAS: Final[Mapping[str, Any]] = {"replica_nodes": (), "isr_nodes": ()}
_GROUP_ERRORS: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
    }
)
"""Error codes that concern a whole group. OffsetFetch before version 2 returns them for each partition."""

_REQUIRED_CAPABILITIES: Final[Mapping[int, Capability]] = {
    **{capability.api_key: capability for capability in reversed(releases.CAPABILITIES)},
    ApiKey.HEARTBEAT: releases.HOLDS_LOCK,
    ApiKey.LEAVE_GROUP: releases.HOLDS_LOCK,
    ApiKey.SYNC_GROUP: releases.HOLDS_LOCK,
    ApiKey.LIST_GROUPS: releases.DESCRIBES_MEMBERS,
}
"""The capability that a broker without the API lacks, by API key."""


class _Broker(NamedTuple):
    """The connection to the older broker, and the timeout of each request in seconds."""

    connection: Channel
    timeout: float

    def version(self, api_key: int, requested: int) -> int:
        """Returns the highest version up to ``requested`` that the broker supports. Raises `UnsupportedOperation` if
        there is none."""
        low, high = self.connection.versions.get(api_key, (0, -1))
        if high < 0 and api_key in _REQUIRED_CAPABILITIES:
            raise _REQUIRED_CAPABILITIES[api_key].unsupported_error(
                str(self.connection.address), self.connection.versions
            )
        if not low <= min(requested, high):
            raise UnsupportedOperation(
                f"broker {self.connection.address}",
                f"Kafka {release(self.connection.versions)} supports versions {low} to {high} of API {api_key}, "
                f"but offsetmgr needs version {requested} or lower",
            )
        return min(requested, high)

    async def send(self, api_key: int, version: int, message: Mapping[str, Any]) -> Message:
        return await send_in_version(self.connection, api_key, version, message, self.timeout)

    async def exchange_encoded(
        self, api_key: int, version: int, body: bytes, read: Callable[[Cursor], Message]
    ) -> Message:
        """Sends an encoded body, and decodes the response with ``read``."""
        frame = await self.connection.exchange(EncodedRequest(api_key, version, body), self.timeout)
        try:
            return read(Cursor(frame, 4, flexible=False, is_response=True))
        except InvalidRequest as error:
            why = f"its response is not valid: {error.why}"
            raise ServerError(f"broker {self.connection.address}", why) from error


async def send_translated(
    connection: Channel, api_key: int, version: int, message: Mapping[str, Any], timeout: float
) -> Message:
    """Sends a request to a broker that does not support this version of the API. Returns a response in ``version``."""
    translate = _TRANSLATIONS.get(api_key, _nearest_version)
    return await translate(_Broker(connection, timeout), api_key, version, message)


async def _nearest_version(broker: _Broker, api_key: int, requested: int, message: Mapping[str, Any]) -> Message:
    """Sends the request in the highest supported version. The codec omits fields that this version lacks."""
    return await broker.send(api_key, broker.version(api_key, requested), message)


async def _join_group(broker: _Broker, api_key: int, requested: int, message: Mapping[str, Any]) -> Message:
    """Sends version 3 or lower to brokers before 2.3, because version 4 makes a new member join twice (KIP-394)."""
    version = broker.version(api_key, requested)
    return await broker.send(api_key, version if version >= 5 else min(version, 3), message)


async def _leave_group(broker: _Broker, api_key: int, requested: int, message: Mapping[str, Any]) -> Message:
    """Sends the single member in the layout before version 3, which has room for only one."""
    (member,) = message["members"]
    version = broker.version(api_key, requested)
    return await broker.send(api_key, version, {"group_id": message["group_id"], "member_id": member["member_id"]}) | {
        "members": []
    }


async def _list_groups(broker: _Broker, api_key: int, requested: int, message: Mapping[str, Any]) -> Message:
    """Adds empty group states to the response, which has none before version 4."""
    answer = await _nearest_version(broker, api_key, requested, message)
    return {**answer, "groups": [{"group_state": "", **group} for group in answer["groups"]]}


async def _find_coordinators(broker: _Broker, api_key: int, requested: int, message: Mapping[str, Any]) -> Message:
    """Sends one request for each group, since a request before version 4 names only one."""
    version = broker.version(api_key, requested)

    async def find(key: str) -> Message:
        answer = await broker.send(api_key, version, {"key": key, "key_type": message["key_type"]})
        return {"error_message": None, **answer, "key": key}

    return {"coordinators": await asyncio.gather(*map(find, message["coordinator_keys"]))}


async def _offset_fetch(broker: _Broker, api_key: int, requested: int, message: Mapping[str, Any]) -> Message:
    """Sends one request for each group, since a request before version 8 names only one."""
    version = broker.version(api_key, min(requested, 7))

    async def fetch(group: Mapping[str, Any]) -> Message:
        topics = group["topics"]
        if topics is None and version < 2:
            if not releases.READS_ALL_OFFSETS.supported_by(broker.connection.versions):
                where = str(broker.connection.address)
                raise releases.READS_ALL_OFFSETS.unsupported_error(where, broker.connection.versions)
            return await _all_offsets(broker, version, group["group_id"])
        if topics is not None and not topics:
            return {"group_id": group["group_id"], "topics": [], "error_code": 0}
        request = {"group_id": group["group_id"], "topics": topics, "require_stable": message["require_stable"]}
        answer = await broker.send(api_key, version, request)
        error = answer.get("error_code", 0)
        if version < 2:
            parts = [(topic["name"], part) for topic in answer["topics"] for part in topic["partitions"]]
            error = next((part["error_code"] for _, part in parts if part["error_code"] in _GROUP_ERRORS), 0)
            unknown = [
                (name, part) for name, part in parts if part["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            ]
            if unknown and not error:
                error = await _clear_errors_of_missing(broker, unknown)
        return {"group_id": group["group_id"], "topics": [] if error else answer["topics"], "error_code": error}

    return {"groups": await asyncio.gather(*map(fetch, message["groups"]))}


async def _all_offsets(broker: _Broker, version: int, group: str) -> Message:
    """Returns all offsets of a group from a broker of 0.9 to 0.10.1, to which a request without topics means all
    topics.

    While such a broker loads the group, or if it is not the group's coordinator, it returns an empty response without
    an error. So the function accepts an empty response only if DescribeGroups shows, both before and after the request,
    that the broker has loaded the group.
    """
    request = {"group_id": group, "topics": []}
    answer = await broker.send(ApiKey.OFFSET_FETCH, version, request)
    error = 0
    for again in (True, False):
        if answer["topics"] or error:
            break
        (described,) = (await broker.send(ApiKey.DESCRIBE_GROUPS, 0, {"groups": [group]}))["groups"]
        error = described["error_code"]
        if again and not error:
            answer = await broker.send(ApiKey.OFFSET_FETCH, version, request)
    return {"group_id": group, "topics": [] if error else answer["topics"], "error_code": error}


async def _clear_errors_of_missing(broker: _Broker, unknown: list[tuple[str, Message]]) -> int:
    """Clears the error of partitions that do not exist, because nothing is committed for them.

    Brokers of 0.8.2 return UNKNOWN_TOPIC_OR_PARTITION for every partition that they do not know, whether the partition
    has a committed offset or not. A broker that has just started knows no partitions for a moment, although they exist.
    If the metadata shows such a broker, the function clears no error and returns a retriable error code for the whole
    response; otherwise it returns 0.
    """
    answer = await _metadata(broker, ApiKey.METADATA, 8, {"topics": None, "allow_auto_topic_creation": False})
    known = {topic["name"]: len(topic["partitions"]) for topic in answer["topics"]}
    if OFFSETS_TOPIC not in known or any(part["partition_index"] < known.get(name, 0) for name, part in unknown):
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    for _, part in unknown:
        part["error_code"] = 0
    return 0


async def _offset_commit(broker: _Broker, api_key: int, requested: int, message: Mapping[str, Any]) -> Message:
    """Commits in version 1 or later, because a commit in version 0 goes to ZooKeeper. Brokers of 0.8.2 support versions
    0 and 1 only.

    Brokers up to 1.1 accept commits for partitions that do not exist, so this function rejects them.
    """
    version = broker.version(api_key, requested)
    if version >= _CHECKS_PARTITIONS_VERSION:
        return await broker.send(api_key, version, {"retention_time": -1, **message})
    counts = await _partition_counts(broker, message)
    topics: list[Message] = []
    rejected: list[Message] = []
    for topic in message["topics"]:
        known = [part for part in topic["partitions"] if part["partition_index"] < counts.get(topic["name"], 0)]
        unknown = [part["partition_index"] for part in topic["partitions"] if part not in known]
        if known:
            topics.append({"name": topic["name"], "partitions": known})
        if unknown:
            codes = [
                {"partition_index": number, "error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION} for number in unknown
            ]
            rejected.append({"name": topic["name"], "partitions": codes})
    answer: Message = {"topics": []}
    if topics and version >= 2:
        answer = await broker.send(api_key, version, {"retention_time": -1, **message, "topics": topics})
    elif topics:
        body = encode_offset_commit_v1({**message, "topics": topics}, timestamp=-1)
        answer = await broker.exchange_encoded(api_key, 1, body, _read_offset_commit_v1)
    return {**answer, "topics": [*answer["topics"], *rejected]}


async def _partition_counts(broker: _Broker, commit: Mapping[str, Any]) -> Mapping[str, int]:
    """Returns the partition counts of the cluster's topics, cached for some seconds. Requests them again if ``commit``
    contains a partition that is not in the cache."""
    now = asyncio.get_running_loop().time()
    at, counts = _partition_counts_cache.get(broker.connection.address, (0.0, {}))
    committed = {
        topic["name"]: max(part["partition_index"] for part in topic["partitions"]) for topic in commit["topics"]
    }
    if now - at > _PARTITION_COUNTS_TTL_S or any(counts.get(name, 0) <= highest for name, highest in committed.items()):
        answer = await _metadata(broker, ApiKey.METADATA, 8, {"topics": None, "allow_auto_topic_creation": False})
        counts = {topic["name"]: len(topic["partitions"]) for topic in answer["topics"]}
        _partition_counts_cache[broker.connection.address] = (now, counts)
    return counts


def encode_offset_commit_v1(message: Mapping[str, Any], timestamp: int) -> bytes:
    """Encodes the body of OffsetCommit version 1. The retention of the offsets starts at ``timestamp`` (milliseconds
    since 1970), or at the broker's present time if it is -1."""
    body = bytearray(_text(message["group_id"]))
    body += INT32.pack(message["generation_id_or_member_epoch"]) + _text(message["member_id"])
    body += INT32.pack(len(message["topics"]))
    for topic in message["topics"]:
        body += _text(topic["name"]) + INT32.pack(len(topic["partitions"]))
        for part in topic["partitions"]:
            body += INT32.pack(part["partition_index"]) + INT64.pack(part["committed_offset"]) + INT64.pack(timestamp)
            body += _text(part["committed_metadata"] or "")
    return bytes(body)


async def expire_offsets(connection: Channel, commit: Mapping[str, Any], timeout: float) -> Message:
    """Deletes offsets on a broker that cannot delete single offsets: commits them with a retention that has expired.

    The broker removes them at its next check for expired offsets (every 10 minutes by default). ``commit`` is an
    OffsetCommit request of version 7; the result is a response of that version.
    """
    broker = _Broker(connection, timeout)
    if broker.version(ApiKey.OFFSET_COMMIT, 2) == 2:
        return await broker.send(ApiKey.OFFSET_COMMIT, 2, {**commit, "retention_time": 1})
    return await broker.exchange_encoded(
        ApiKey.OFFSET_COMMIT, 1, encode_offset_commit_v1(commit, timestamp=0), _read_offset_commit_v1
    )


def _read_offset_commit_v1(cursor: Cursor) -> Message:
    def part() -> Message:
        return {"partition_index": cursor.int32(), "error_code": cursor.number(INT16)}

    def topic() -> Message:
        return {"name": cursor.string(), "partitions": [part() for _ in range(cursor.count(6))]}

    return {"topics": [topic() for _ in range(cursor.count(6))]}


async def _list_offsets(broker: _Broker, api_key: int, requested: int, message: Mapping[str, Any]) -> Message:
    """Requests offsets in version 1 or later, or else in version 0, which supports only the start and the end of a
    log."""
    version = broker.version(api_key, requested)
    if version:
        return await broker.send(api_key, version, {**message, "isolation_level": 0})
    for topic in message["topics"]:
        if any(part["timestamp"] >= 0 for part in topic["partitions"]):
            where = str(broker.connection.address)
            raise releases.FINDS_BY_TIME.unsupported_error(where, broker.connection.versions)
    body = bytearray(INT32.pack(message["replica_id"]) + INT32.pack(len(message["topics"])))
    for topic in message["topics"]:
        body += _text(topic["name"]) + INT32.pack(len(topic["partitions"]))
        for part in topic["partitions"]:
            body += INT32.pack(part["partition_index"]) + INT64.pack(part["timestamp"]) + INT32.pack(1)
    return await broker.exchange_encoded(api_key, 0, bytes(body), _read_list_offsets_v0)


def _read_list_offsets_v0(cursor: Cursor) -> Message:
    def part() -> Message:
        found: Message = {"partition_index": cursor.int32(), "error_code": cursor.number(INT16)}
        offsets = [cursor.int64() for _ in range(cursor.count(8))]
        return found | {"offset": offsets[0] if offsets else -1}

    def topic() -> Message:
        return {"name": cursor.string(), "partitions": [part() for _ in range(cursor.count(10))]}

    return {"topics": [topic() for _ in range(cursor.count(6))]}


async def _fetch(broker: _Broker, api_key: int, requested: int, message: Mapping[str, Any]) -> Message:
    """Fetches records. kio has no schema for versions before 4, so this function encodes them."""
    version = broker.version(api_key, requested)
    if version >= 4:
        answer = await broker.send(api_key, version, message)
    else:
        body = bytearray(INT32.pack(message["replica_id"]) + INT32.pack(message["max_wait"]))
        body += INT32.pack(message["min_bytes"])
        if version >= 3:
            body += INT32.pack(message["max_bytes"])
        body += INT32.pack(len(message["topics"]))
        for topic in message["topics"]:
            body += _text(topic["topic"]) + INT32.pack(len(topic["partitions"]))
            for part in topic["partitions"]:
                body += INT32.pack(part["partition"]) + INT64.pack(part["fetch_offset"])
                body += INT32.pack(part["partition_max_bytes"])
        answer = await broker.exchange_encoded(api_key, version, bytes(body), _fetch_reader(version))
    return {"error_code": 0, **answer}


def _fetch_reader(version: int) -> Callable[[Cursor], Message]:
    def read(cursor: Cursor) -> Message:
        def part() -> Message:
            return {
                "partition_index": cursor.int32(),
                "error_code": cursor.number(INT16),
                "high_watermark": cursor.int64(),
                "aborted_transactions": None,
                "log_start_offset": -1,
                "records": cursor.nullable_octets(),
            }

        def topic() -> Message:
            return {"topic": cursor.string(), "partitions": [part() for _ in range(cursor.count(18))]}

        if version >= 1:
            cursor.int32()  # throttle time
        return {"responses": [topic() for _ in range(cursor.count(6))]}

    return read


async def _metadata(broker: _Broker, api_key: int, requested: int, message: Mapping[str, Any]) -> Message:
    """Requests metadata of topics without creating missing ones.

    Before version 4 a request that names a missing topic may create it, so the function requests all topics instead.
    Version 0 cannot express "no topic", so the function requests an invalid name instead. While the cluster has no
    topic, the response of a broker of 0.8.2 lists no brokers; the result then contains only the responding broker, with
    the id -1.
    """
    version = broker.version(api_key, requested)
    names = None if message["topics"] is None else [topic["name"] for topic in message["topics"]]
    if version >= 4:
        return await broker.send(api_key, version, message)
    everything = b"\xff\xff\xff\xff" if version else INT32.pack(0)
    nothing = INT32.pack(0) if version else INT32.pack(1) + _text(IMPOSSIBLE_TOPIC)
    topics = None if names is None else frozenset(names)
    body = nothing if names == [] else everything
    answer = await broker.exchange_encoded(api_key, version, body, _metadata_reader(version, topics))
    if not answer["brokers"]:
        host, port = broker.connection.address
        answer["brokers"] = [{"node_id": -1, "host": host, "port": port}]
    if names is not None:
        found = {topic["name"]: topic for topic in answer["topics"]}
        missing: Message = {"error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "partitions": []}
        answer["topics"] = [found.get(name) or {**missing, "name": name} for name in names]
    return answer


def _metadata_reader(version: int, topics: Collection[str] | None) -> Callable[[Cursor], Message]:
    """Returns a decoder of Metadata 0 to 3.

    The decoder skips the replica ids, which no caller needs and which make up most of a large response. It also skips
    the partitions of topics that are not in ``topics``; None includes all topics.
    """

    def read(cursor: Cursor) -> Message:
        def broker() -> Message:
            found = {"node_id": cursor.int32(), "host": cursor.string(), "port": cursor.int32()}
            return found | ({"rack": cursor.nullable_string()} if version >= 1 else {})

        def topic() -> Message:
            found: Message = {"error_code": cursor.number(INT16), "name": cursor.string()}
            if version >= 1:
                found["is_internal"] = cursor.boolean()
            found["partitions"] = partitions = []
            included = topics is None or found["name"] in topics
            for _ in range(cursor.count(_PARTITION.size + INT32.size)):
                error, index, leader, replicas = _PARTITION.unpack_from(cursor.data, cursor.take(_PARTITION.size))
                skip(replicas)
                skip(cursor.int32())  # replicas in sync
                if included:
                    partitions.append(
                        {**_NO_REPLICAS, "error_code": error, "partition_index": index, "leader_id": leader}
                    )
            return found

        def skip(ids: int) -> None:
            if ids < 0:
                raise InvalidRequest("message", f"an array of {ids} items")
            cursor.take(ids * INT32.size)

        answer: Message = {}
        if version >= 3:
            cursor.int32()  # throttle time
        answer["brokers"] = [broker() for _ in range(cursor.count(10))]
        if version >= 2:
            answer["cluster_id"] = cursor.nullable_string()
        if version >= 1:
            answer["controller_id"] = cursor.int32()
        answer["topics"] = [topic() for _ in range(cursor.count(8))]
        return answer

    return read


def _text(text: str) -> bytes:
    return string(text, flexible=False)


_TRANSLATIONS: Final[Mapping[int, Callable[[_Broker, int, int, Mapping[str, Any]], Awaitable[Message]]]] = {
    ApiKey.FETCH: _fetch,
    ApiKey.LIST_OFFSETS: _list_offsets,
    ApiKey.METADATA: _metadata,
    ApiKey.OFFSET_COMMIT: _offset_commit,
    ApiKey.OFFSET_FETCH: _offset_fetch,
    ApiKey.FIND_COORDINATOR: _find_coordinators,
    ApiKey.JOIN_GROUP: _join_group,
    ApiKey.LEAVE_GROUP: _leave_group,
    ApiKey.LIST_GROUPS: _list_groups,
}
