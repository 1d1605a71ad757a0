"""OffsetFetch for older brokers. This module sends one request for each group, and converts the errors in the responses
to the form of current versions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.kafka.protocol import releases
from offsetmgr.kafka.protocol.api_key import ApiKey
from offsetmgr.kafka.protocol.old_metadata import metadata
from offsetmgr.kafka.protocol.older_broker import OlderBroker
from offsetmgr.kafka.protocol.requests import OFFSETS_TOPIC
from offsetmgr.kafka.protocol.schema_codec import Message

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


async def offset_fetch(broker: OlderBroker, api_key: int, requested: int, message: Mapping[str, Any]) -> Message:
    """Sends one request for each group, since a request before version 8 names only one group."""
    version = broker.version(api_key, min(requested, 7))

    async def fetch(group: Mapping[str, Any]) -> Message:
        topics = group["topics"]
        if topics is None and version < 2:
            if not releases.READS_ALL_OFFSETS.supported_by(broker.connection.versions):
                where = str(broker.connection.address)
                raise releases.READS_ALL_OFFSETS.unsupported_error(where, broker.connection.versions)
            return await _all_offsets(broker, version, group["group_id"])
        if topics is not None and not topics:
            return {"group_id": group["group_id"], "topics": [], "error_code": ErrorCode.NONE}
        request = {"group_id": group["group_id"], "topics": topics, "require_stable": message["require_stable"]}
        answer = await broker.send(api_key, version, request)
        error = answer.get("error_code", ErrorCode.NONE)
        if version < 2:
            parts = [(topic["name"], part) for topic in answer["topics"] for part in topic["partitions"]]
            error = next(
                (part["error_code"] for _, part in parts if part["error_code"] in _GROUP_ERRORS), ErrorCode.NONE
            )
            unknown = [
                (name, part) for name, part in parts if part["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            ]
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


async def _check_unknown_partitions(broker: OlderBroker, unknown: list[tuple[str, Message]]) -> int:
    """Clears the error of partitions that do not exist, because they have no committed offset.

    Brokers of 0.8.2 return UNKNOWN_TOPIC_OR_PARTITION for every partition that they do not know, whether it has a
    committed offset or not. For a short time after its start, a broker knows no partitions at all. Therefore the
    function returns a retriable error code for the whole response if the broker's metadata does not contain the offsets
    topic, or contains one of the unknown partitions. Otherwise it returns 0.
    """
    answer = await metadata(broker, ApiKey.METADATA, 8, {"topics": None, "allow_auto_topic_creation": False})
    known = {topic["name"]: len(topic["partitions"]) for topic in answer["topics"]}
    if OFFSETS_TOPIC not in known or any(part["partition_index"] < known.get(name, 0) for name, part in unknown):
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    for _, part in unknown:
        part["error_code"] = ErrorCode.NONE
    return ErrorCode.NONE
