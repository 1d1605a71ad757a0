"""Translates requests for brokers that do not support the version in which offsetmgr writes them.

Other modules write each request and read its response in one fixed version. For an older broker, this module translates
the request into one or more requests in versions that the broker supports, and merges their responses into one response
of the original version. Messages are dicts, as in `schema_codec`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from offsetmgr.core.batches import by_key
from offsetmgr.core.errors import ErrorCode, UnsupportedOperation
from offsetmgr.core.model import TopicPartition
from offsetmgr.kafka.protocol import releases
from offsetmgr.kafka.protocol.frames import (
    Address,
    Channel,
    EncodedRequest,
    Request,
    decoded,
    send_and_read,
    send_in_version,
)
from offsetmgr.kafka.protocol.releases import ApiKey, Capability, release
from offsetmgr.kafka.protocol.requests import OFFSETS_TOPIC, parts_of, topics_with
from offsetmgr.kafka.protocol.schema_codec import (
    INT8,
    INT16,
    INT32,
    INT64,
    Cursor,
    Message,
    UnknownSchema,
    encode_request,
    read_response,
    request_string,
)

# The connection to a broker that does not support the versions in which offsetmgr writes its requests.

T = TypeVar("T")

_REQUIRED_CAPABILITIES: Final[Mapping[int, Capability]] = {
    **{capability.api_key: capability for capability in reversed(releases.CAPABILITIES)},
    ApiKey.HEARTBEAT: releases.HOLDS_LOCK,
    ApiKey.LEAVE_GROUP: releases.HOLDS_LOCK,
    ApiKey.SYNC_GROUP: releases.HOLDS_LOCK,
    ApiKey.LIST_GROUPS: releases.DESCRIBES_MEMBERS,
    ApiKey.SHARE_GROUP_DESCRIBE: releases.DESCRIBES_SHARE_GROUPS,
}
"""For each API key, the capability that a broker lacks if it does not have this API."""


class OlderBroker(NamedTuple):
    """The connection to the older broker, and the timeout in seconds of each request."""

    connection: Channel
    timeout_s: float

    def version(self, api_key: int, requested: int) -> int:
        """Returns the highest version up to ``requested`` that the broker supports. Raises `UnsupportedOperation` if
        there is no such version."""
        low, high = self.connection.versions.get(api_key, (0, -1))
        if high < 0 and api_key in _REQUIRED_CAPABILITIES:
            raise self.lacks(_REQUIRED_CAPABILITIES[api_key])
        if not low <= min(requested, high):
            raise UnsupportedOperation(
                f"broker {self.connection.address}",
                f"Kafka {release(self.connection.versions)} or later: it supports versions {low} to {high} of API "
                f"{api_key}, but offsetmgr needs version {requested} or lower",
            )
        return min(requested, high)

    def lacks(self, capability: Capability) -> UnsupportedOperation:
        """Returns the error of an operation that needs the capability."""
        return capability.unsupported_error(str(self.connection.address), self.connection.versions)

    async def send(self, api_key: int, version: int, message: Mapping[str, Any]) -> Message:
        """Sends a request. The codec omits fields that the version lacks."""
        return await send_in_version(self.connection, Request(api_key, version, message), self.timeout_s)

    async def exchange_encoded(self, api_key: int, version: int, body: bytes, read: Callable[[Cursor], T]) -> T:
        """Sends an encoded body, and decodes the response with ``read``."""
        return await send_and_read(self.connection, EncodedRequest(api_key, version, body), self.timeout_s, read)


# DescribeConfigs for brokers of 0.11 and 1.0, in version 0, for which kio has no schema.


async def describe_configs(broker: OlderBroker, api_key: int, version: int, message: Mapping[str, Any]) -> Message:
    """Requests settings. A request in version 0 is one in version 1 without its last byte, ``include_synonyms``."""
    if version:
        return await broker.send(api_key, version, message)
    return await broker.exchange_encoded(api_key, 0, encode_request(api_key, 1, message)[:-1], _read_v0)


def _read_v0(cursor: Cursor) -> Message:
    def config() -> Message:
        setting = {"name": cursor.string(), "value": cursor.nullable_string()}
        cursor.take(3)  # whether it is read-only, a default, and a secret
        return setting

    def result() -> Message:
        return {
            "error_code": cursor.number(INT16),
            "error_message": cursor.nullable_string(),
            "resource_type": cursor.number(INT8),
            "resource_name": cursor.string(),
            "configs": [config() for _ in range(cursor.count(7))],
        }

    return {"throttle_time": cursor.int32(), "results": [result() for _ in range(cursor.count(11))]}


# JoinGroup, LeaveGroup, ListGroups and FindCoordinator for older brokers.


async def join_group(broker: OlderBroker, api_key: int, version: int, message: Mapping[str, Any]) -> Message:
    """Sends version 3 or lower to brokers before 2.3, because version 4 makes a new member join twice (KIP-394)."""
    return await broker.send(api_key, version if version >= 5 else min(version, 3), message)


async def leave_group(broker: OlderBroker, api_key: int, version: int, message: Mapping[str, Any]) -> Message:
    """Sends the single member in the layout of versions before 3, which contain only one member."""
    (member,) = message["members"]
    return await broker.send(api_key, version, {"group_id": message["group_id"], "member_id": member["member_id"]}) | {
        "members": []
    }


async def list_groups(broker: OlderBroker, api_key: int, version: int, message: Mapping[str, Any]) -> Message:
    """Adds empty group states to the response, because responses before version 4 contain no group states."""
    answer = await broker.send(api_key, version, message)
    return {**answer, "groups": [{"group_state": "", **group} for group in answer["groups"]]}


async def find_coordinators(broker: OlderBroker, api_key: int, version: int, message: Mapping[str, Any]) -> Message:
    """Sends one request for each group, because a request before version 4 names only one group."""

    async def find(key: str) -> Message:
        answer = await broker.send(api_key, version, {"key": key, "key_type": message["key_type"]})
        return {"error_message": None, **answer, "key": key}

    return {"coordinators": await asyncio.gather(*map(find, message["coordinator_keys"]))}


# Fetch and ListOffsets for older brokers, in versions for which kio has no schema.


async def list_offsets(broker: OlderBroker, api_key: int, version: int, message: Mapping[str, Any]) -> Message:
    """Requests offsets in version 1 or later if the broker supports such a version, and in version 0 otherwise. In
    version 0 the function can request only the start and the end of a log."""
    if version:
        return await broker.send(api_key, version, {"isolation_level": 0, **message})
    times = {tp: part["timestamp"] for tp, part in parts_of(message)}
    if any(time >= 0 for time in times.values()):
        raise broker.lacks(releases.FINDS_BY_TIME)
    found = await broker.exchange_encoded(api_key, 0, encode_list_offsets_v0(times, 1), read_list_offsets_v0)
    first = ((tp, code, offsets[0] if offsets else -1) for tp, (code, offsets) in found.items())
    return {"topics": topics_with((tp, {"error_code": code, "offset": offset}) for tp, code, offset in first)}


def encode_list_offsets_v0(times: Mapping[TopicPartition, int], max_offsets: int) -> bytes:
    """Encodes the body of ListOffsets version 0, with the special or real time of each partition."""
    topics = by_key(times)
    body = bytearray(INT32.pack(-1) + INT32.pack(len(topics)))  # -1: the client is not a replica
    for topic, numbers in topics.items():
        body += request_string(topic, flexible=False) + INT32.pack(len(numbers))
        for number in numbers:
            body += INT32.pack(number) + INT64.pack(times[TopicPartition(topic, number)]) + INT32.pack(max_offsets)
    return bytes(body)


def read_list_offsets_v0(cursor: Cursor) -> dict[TopicPartition, tuple[int, list[int]]]:
    """Decodes ListOffsets version 0: the error code and the offsets of each partition."""
    found: dict[TopicPartition, tuple[int, list[int]]] = {}
    for _ in range(cursor.count(6)):
        topic = cursor.string()
        for _ in range(cursor.count(10)):
            tp, code = TopicPartition(topic, cursor.int32()), cursor.number(INT16)
            found[tp] = code, [cursor.int64() for _ in range(cursor.count(8))]
    return found


async def fetch(broker: OlderBroker, api_key: int, version: int, message: Mapping[str, Any]) -> Message:
    """Fetches records. kio has no schema for versions before 4, which differ from it in ``max_bytes`` and the isolation
    level."""
    if version >= 4:
        answer = await broker.send(api_key, version, message)
    else:
        body = encode_request(api_key, 4, message)  # of which only version 3 has bytes 12 to 16, and none has byte 16
        body = body[: 16 if version == 3 else 12] + body[17:]
        answer = await broker.exchange_encoded(api_key, version, body, partial(_read_fetched, version))
    return {"error_code": ErrorCode.NONE, **answer}


def _read_fetched(version: int, cursor: Cursor) -> Message:
    def part() -> Message:
        return {
            "partition_index": cursor.int32(),
            "error_code": cursor.number(INT16),
            "high_watermark": cursor.int64(),
            "log_start_offset": -1,
            "records": cursor.nullable_octets(),
        }

    def topic() -> Message:
        return {"topic": cursor.string(), "partitions": [part() for _ in range(cursor.count(18))]}

    if version >= 1:
        cursor.int32()  # throttle time
    return {"responses": [topic() for _ in range(cursor.count(6))]}


# Metadata for older brokers, without creating missing topics.

IMPOSSIBLE_TOPIC: Final = "?"
"""An invalid topic name. A Metadata request that names only this topic neither returns nor creates a topic."""


async def metadata(broker: OlderBroker, api_key: int, version: int, message: Mapping[str, Any]) -> Message:
    """Requests metadata of topics without creating missing topics.

    If a request before version 4 names a missing topic, the broker may create the topic, so the function requests all
    topics instead. In version 0 an empty list of topics is a request for all topics, so the function requests an
    invalid name if ``message`` has an empty list. A broker of 0.8.2 lists no brokers while the cluster has no topics.
    If the response lists no brokers, the result contains the responding broker with the id -1.
    """
    names = None if message["topics"] is None else [topic["name"] for topic in message["topics"]]
    if version >= 4:
        return await broker.send(api_key, version, message)
    wanted: list[Message] | None = None if version else []
    if names == []:
        wanted = [] if version else [{"name": IMPOSSIBLE_TOPIC}]
    answer = await broker.send(api_key, version, {"topics": wanted})
    if not answer["brokers"]:
        host, port = broker.connection.address
        answer["brokers"] = [{"node_id": -1, "host": host, "port": port}]
    if names is not None:
        found = {topic["name"]: topic for topic in answer["topics"]}
        missing: Message = {"error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "partitions": []}
        answer["topics"] = [found.get(name) or {**missing, "name": name} for name in names]
    return answer


# OffsetCommit for older brokers. This module encodes version 1 itself, because kio has no schema for it.

_CHECKS_PARTITIONS_VERSION: Final = 4
"""The OffsetCommit version that Kafka 2.0 introduced. Brokers of Kafka 2.0 and later reject commits for partitions that
do not exist."""
_PARTITION_COUNTS_TTL_S: Final = 5.0
_partition_counts_cache: Final[dict[Address, tuple[float, Mapping[str, int]]]] = {}
"""A cache of the partition counts of all topics, by address of the broker. An entry contains the time of the request,
on the event loop's clock, and the partition counts."""


async def offset_commit(broker: OlderBroker, api_key: int, version: int, message: Mapping[str, Any]) -> Message:
    """Commits in version 1 or later, because version 0 would commit to ZooKeeper. Brokers of 0.8.2 support only
    versions 0 and 1.

    Brokers of Kafka 1.1 and earlier accept commits for partitions that do not exist. The function does not send such
    commits to these brokers, and returns UNKNOWN_TOPIC_OR_PARTITION for the partitions.
    """
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
        answer = await _commit_in_version_1(broker, {**message, "topics": topics}, timestamp=-1)
    return {**answer, "topics": [*answer["topics"], *rejected]}


async def _partition_counts(broker: OlderBroker, commit: Mapping[str, Any]) -> Mapping[str, int]:
    """Returns the partition counts of the cluster's topics, cached for some seconds. Requests the counts again if
    ``commit`` contains a partition that is not in the cache."""
    now = asyncio.get_running_loop().time()
    at, counts = _partition_counts_cache.get(broker.connection.address, (0.0, {}))
    committed = {
        topic["name"]: max(part["partition_index"] for part in topic["partitions"]) for topic in commit["topics"]
    }
    if now - at > _PARTITION_COUNTS_TTL_S or any(counts.get(name, 0) <= highest for name, highest in committed.items()):
        counts = await _all_partition_counts(broker)
        _partition_counts_cache[broker.connection.address] = (now, counts)
    return counts


async def _all_partition_counts(broker: OlderBroker) -> dict[str, int]:
    version = broker.version(ApiKey.METADATA, 8)
    answer = await metadata(broker, ApiKey.METADATA, version, {"topics": None, "allow_auto_topic_creation": False})
    return {topic["name"]: len(topic["partitions"]) for topic in answer["topics"]}


async def _commit_in_version_1(broker: OlderBroker, message: Mapping[str, Any], timestamp: int) -> Message:
    """Commits in version 1. The retention of the offsets starts at ``timestamp`` (milliseconds since 1970), or at the
    broker's present time if ``timestamp`` is -1. The response is as in version 2."""
    body = bytearray(request_string(message["group_id"], flexible=False))
    body += INT32.pack(message["generation_id_or_member_epoch"]) + request_string(message["member_id"], flexible=False)
    body += INT32.pack(len(message["topics"]))
    for topic in message["topics"]:
        body += request_string(topic["name"], flexible=False) + INT32.pack(len(topic["partitions"]))
        for part in topic["partitions"]:
            body += INT32.pack(part["partition_index"]) + INT64.pack(part["committed_offset"]) + INT64.pack(timestamp)
            body += request_string(part["committed_metadata"] or "", flexible=False)
    read = partial(read_response, ApiKey.OFFSET_COMMIT, 2)
    return await broker.exchange_encoded(ApiKey.OFFSET_COMMIT, 1, bytes(body), read)


async def expire_offsets(connection: Channel, commit: Mapping[str, Any], timeout_s: float) -> Message:
    """Deletes offsets on a broker that cannot delete single offsets: commits them with a retention that has expired.

    The broker removes them at its next check for expired offsets (every 10 minutes by default). ``commit`` is an
    OffsetCommit request of version 7; the result is a response of that version.
    """
    broker = OlderBroker(connection, timeout_s)
    if broker.version(ApiKey.OFFSET_COMMIT, 2) == 2:
        return await broker.send(ApiKey.OFFSET_COMMIT, 2, {**commit, "retention_time": 1})
    return await _commit_in_version_1(broker, commit, timestamp=0)


# OffsetFetch for older brokers. This module sends one request for each group, and converts the errors in the
# responses to the form of current versions.

_GROUP_ERRORS: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
    }
)
"""Error codes that concern a whole group. OffsetFetch responses before version 2 contain these error codes in the
partitions."""


async def offset_fetch(broker: OlderBroker, api_key: int, version: int, message: Mapping[str, Any]) -> Message:
    """Sends one request for each group, since a request before version 8 names only one group."""

    async def fetch(group: Mapping[str, Any]) -> Message:
        topics = group["topics"]
        if topics is None and version < 2:
            if not releases.READS_ALL_OFFSETS.supported_by(broker.connection.versions):
                raise broker.lacks(releases.READS_ALL_OFFSETS)
            return await _all_offsets(broker, version, group["group_id"])
        if topics is not None and not topics:
            return {"group_id": group["group_id"], "topics": [], "error_code": ErrorCode.NONE}
        request = {"group_id": group["group_id"], "topics": topics, "require_stable": message["require_stable"]}
        answer = await broker.send(api_key, version, request)
        error = answer.get("error_code", ErrorCode.NONE)
        if version < 2:
            parts = dict(parts_of(answer))
            codes = (part["error_code"] for part in parts.values())
            error = next((code for code in codes if code in _GROUP_ERRORS), ErrorCode.NONE)
            unknown = {
                tp: part for tp, part in parts.items() if part["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            }
            if unknown and not error:
                error = await _check_unknown_partitions(broker, unknown)
        return {"group_id": group["group_id"], "topics": [] if error else answer["topics"], "error_code": error}

    return {"groups": await asyncio.gather(*map(fetch, message["groups"]))}


async def _all_offsets(broker: OlderBroker, version: int, group: str) -> Message:
    """Returns all offsets of a group from a broker of 0.9 to 0.10.1. These brokers treat a request without topics as a
    request for all topics.

    The broker returns neither offsets nor an error in two cases: it is still loading the group, or it is not the
    coordinator of the group. Therefore the function accepts an empty response only if DescribeGroups shows, both before
    and after the request, that the broker has loaded the group.
    """
    request = {"group_id": group, "topics": []}
    answer = await broker.send(ApiKey.OFFSET_FETCH, version, request)
    error: int = ErrorCode.NONE
    for again in (True, False):
        if answer["topics"] or error:
            break
        (described,) = (await broker.send(ApiKey.DESCRIBE_GROUPS, 0, {"groups": [group]}))["groups"]
        error = described["error_code"]
        if again and not error:
            answer = await broker.send(ApiKey.OFFSET_FETCH, version, request)
    return {"group_id": group, "topics": [] if error else answer["topics"], "error_code": error}


async def _check_unknown_partitions(broker: OlderBroker, unknown: Mapping[TopicPartition, Message]) -> int:
    """Clears the error of partitions that do not exist, because they have no committed offset.

    Brokers of 0.8.2 return UNKNOWN_TOPIC_OR_PARTITION for every partition that they do not know, whether it has a
    committed offset or not. For a short time after its start, a broker knows no partitions at all. Therefore the
    function returns a retriable error code for the whole response if the broker's metadata does not contain the offsets
    topic, or contains one of the unknown partitions. Otherwise it returns 0.
    """
    known = await _all_partition_counts(broker)
    if OFFSETS_TOPIC not in known or any(tp.partition < known.get(tp.topic, 0) for tp in unknown):
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    for part in unknown.values():
        part["error_code"] = ErrorCode.NONE
    return ErrorCode.NONE


async def send_translated(connection: Channel, request: Request | EncodedRequest, timeout_s: float) -> Message:
    """Sends a request to a broker that does not support this version of the API. Returns a response in the version of
    the request; fields that the broker's version lacks may be missing. Raises `UnsupportedOperation` if offsetmgr
    cannot write the request in a version that the broker supports."""
    request = decoded(request)
    broker, translate = OlderBroker(connection, timeout_s), _TRANSLATIONS.get(request.api_key, OlderBroker.send)
    try:
        version = broker.version(request.api_key, request.version)
        return await translate(broker, request.api_key, version, request.message)
    except UnknownSchema as missing:
        where, why = f"broker {connection.address}", f"it is too old: offsetmgr does not know {missing}"
        raise UnsupportedOperation(where, why) from None


_TRANSLATIONS: Final[Mapping[int, Callable[[OlderBroker, int, int, Mapping[str, Any]], Awaitable[Message]]]] = {
    ApiKey.DESCRIBE_CONFIGS: describe_configs,
    ApiKey.FETCH: fetch,
    ApiKey.LIST_OFFSETS: list_offsets,
    ApiKey.METADATA: metadata,
    ApiKey.OFFSET_COMMIT: offset_commit,
    ApiKey.OFFSET_FETCH: offset_fetch,
    ApiKey.FIND_COORDINATOR: find_coordinators,
    ApiKey.JOIN_GROUP: join_group,
    ApiKey.LEAVE_GROUP: leave_group,
    ApiKey.LIST_GROUPS: list_groups,
}
