#!/usr/bin/env python
"""A server that only answers: it commits nothing and returns no real offset.

The server runs in a process of its own. A benchmark compares real servers with it, because no server is faster for the
benchmark's client. For each request that it has not seen before, the server encodes a response and stores it. Later
requests of the same bytes get the stored response. Commits differ in their offsets, so all commits of the same version
and length get the same response: the clients of one server must commit the same partitions with groups' names of the
same length.

    scripts/bench/null_server.py HOST:PORT
"""

from __future__ import annotations

import asyncio
import struct
import sys
from collections.abc import Callable, Mapping
from typing import Any

from offsetmgr.kafka.protocol.frames import Address, FrameSplitter
from offsetmgr.kafka.protocol.releases import ApiKey
from offsetmgr.kafka.protocol.schema_codec import decode_request, encode_response, request_is_flexible

VERSIONS: Mapping[int, tuple[int, int]] = {
    ApiKey.API_VERSIONS: (0, 3),
    ApiKey.METADATA: (0, 12),
    ApiKey.FIND_COORDINATOR: (0, 4),
    ApiKey.OFFSET_COMMIT: (2, 8),
    ApiKey.OFFSET_FETCH: (1, 8),
}
NODE_ID = 1
PARTITIONS = 50
MAX_FRAME_BYTES = 1 << 20
_REQUEST = struct.Struct(">hhih")
"""API key, version, correlation id, length of the client id."""
_RESPONSE = struct.Struct(">ii")


class Responses:
    """Encodes and stores the responses of one server."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._stored: dict[object, bytes] = {}

    def to(self, frame: bytes) -> bytes:
        """Returns the response to a request; both have their length field."""
        api_key, version, correlation, _ = _REQUEST.unpack_from(frame, 4)
        key = (version, len(frame)) if api_key == ApiKey.OFFSET_COMMIT else (frame[4:8], frame[12:])
        body = self._stored.get(key)
        if body is None:
            body = self._stored[key] = self._encode(api_key, version, frame)
        return _RESPONSE.pack(4 + len(body), correlation) + body

    def _encode(self, api_key: int, version: int, frame: bytes) -> bytes:
        """Encodes the response's body and the tagged fields in front of it."""
        messages: dict[int, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            ApiKey.API_VERSIONS: _versions,
            ApiKey.METADATA: self._metadata,
            ApiKey.FIND_COORDINATOR: self._coordinators,
            ApiKey.OFFSET_COMMIT: _committed,
            ApiKey.OFFSET_FETCH: _fetched,
        }
        low, high = VERSIONS[api_key]
        if not low <= version <= high:  # a client's first ApiVersions may have a newer version
            return encode_response(api_key, 0, {"error_code": 35, "api_keys": _ranges()})
        flexible = request_is_flexible(api_key, version)
        length = max(_REQUEST.unpack_from(frame, 4)[3], 0)
        request = decode_request(api_key, version, frame, 4 + _REQUEST.size + length + flexible)
        body = encode_response(api_key, version, messages[api_key](request))
        return b"\0" + body if flexible and api_key != ApiKey.API_VERSIONS else body

    def _metadata(self, request: Mapping[str, Any]) -> dict[str, Any]:
        brokers = [{"node_id": NODE_ID, "host": self._address.host, "port": self._address.port, "rack": None}]
        topics = [_topic(topic["name"]) for topic in request["topics"] or ()]
        return {"brokers": brokers, "cluster_id": "null", "controller_id": NODE_ID, "topics": topics}

    def _coordinators(self, request: Mapping[str, Any]) -> dict[str, Any]:
        node = {"node_id": NODE_ID, "host": self._address.host, "port": self._address.port, "error_code": 0}
        found = [{"key": key, "error_message": None, **node} for key in request.get("coordinator_keys", ())]
        return {"error_message": None, **node, "coordinators": found}


class _Connection(asyncio.Protocol):
    def __init__(self, responses: Responses) -> None:
        self._responses = responses
        self._frames = FrameSplitter(MAX_FRAME_BYTES)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._frames.feed(data)
        responses = []
        while (frame := self._frames.next()) is not None:
            responses.append(self._responses.to(frame))
        if responses:
            self._transport.write(b"".join(responses))


def _ranges() -> list[dict[str, int]]:
    return [{"api_key": key, "min_version": low, "max_version": high} for key, (low, high) in VERSIONS.items()]


def _versions(_request: Mapping[str, Any]) -> dict[str, Any]:
    return {"error_code": 0, "api_keys": _ranges()}


def _topic(name: str) -> dict[str, Any]:
    partitions = [
        {
            "error_code": 0, "partition_index": number, "leader_id": NODE_ID, "leader_epoch": 0,
            "replica_nodes": [NODE_ID], "isr_nodes": [NODE_ID], "offline_replicas": [],
        }
        for number in range(PARTITIONS)
    ]  # fmt: skip
    return {"error_code": 0, "name": name, "topic_id": None, "is_internal": False, "partitions": partitions}


def _committed(request: Mapping[str, Any]) -> dict[str, Any]:
    topics = [
        {
            "name": topic["name"],
            "partitions": [{"partition_index": p["partition_index"], "error_code": 0} for p in topic["partitions"]],
        }
        for topic in request["topics"]
    ]
    return {"topics": topics}


def _fetched(request: Mapping[str, Any]) -> dict[str, Any]:
    groups = request.get("groups", [request])
    found = [
        {
            "group_id": group["group_id"],
            "topics": [
                {"name": topic["name"], "partitions": [_offset(p) for p in topic["partition_indexes"]]}
                for topic in group["topics"]
            ],
            "error_code": 0,
        }
        for group in groups
    ]
    return {**found[0], "groups": found}


def _offset(partition: int) -> dict[str, Any]:
    offset = {"committed_offset": 1, "committed_leader_epoch": -1, "metadata": "", "error_code": 0}
    return {"partition_index": partition, **offset}


async def serve(address: Address) -> None:
    responses = Responses(address)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(responses), address.host, address.port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(Address.parse(sys.argv[1])))
