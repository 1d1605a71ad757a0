"""Metadata for older brokers, without creating missing topics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from offsetmgr.core.error_code import ErrorCode
from offsetmgr.kafka.protocol.metadata_reader import metadata_reader
from offsetmgr.kafka.protocol.older_broker import OlderBroker
from offsetmgr.kafka.protocol.primitives import INT32, request_string
from offsetmgr.kafka.protocol.schema_codec import Message

IMPOSSIBLE_TOPIC: Final = "?"
"""An invalid topic name. A Metadata request that names only this topic neither returns nor creates a topic."""


async def metadata(broker: OlderBroker, api_key: int, requested: int, message: Mapping[str, Any]) -> Message:
    """Requests metadata of topics without creating missing topics.

    If a request before version 4 names a missing topic, the broker may create the topic, so the function requests all
    topics instead. In version 0 an empty list of topics is a request for all topics, so the function requests an
    invalid name if ``message`` has an empty list. A broker of 0.8.2 lists no brokers while the cluster has no topics.
    If the response lists no brokers, the result contains the responding broker with the id -1.
    """
    version = broker.version(api_key, requested)
    names = None if message["topics"] is None else [topic["name"] for topic in message["topics"]]
    if version >= 4:
        return await broker.send(api_key, version, message)
    everything = b"\xff\xff\xff\xff" if version else INT32.pack(0)
    nothing = INT32.pack(0) if version else INT32.pack(1) + request_string(IMPOSSIBLE_TOPIC, flexible=False)
    topics = None if names is None else frozenset(names)
    body = nothing if names == [] else everything
    answer = await broker.exchange_encoded(api_key, version, body, metadata_reader(version, topics))
    if not answer["brokers"]:
        host, port = broker.connection.address
        answer["brokers"] = [{"node_id": -1, "host": host, "port": port}]
    if names is not None:
        found = {topic["name"]: topic for topic in answer["topics"]}
        missing: Message = {"error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "partitions": []}
        answer["topics"] = [found.get(name) or {**missing, "name": name} for name in names]
    return answer
