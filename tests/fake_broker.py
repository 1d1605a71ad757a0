"""`FakeBroker`: a server on a socket that answers Kafka's requests with the dicts that a test gives."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import struct
import threading
from collections.abc import Callable, Mapping
from typing import Any, Self

from offsetmgr.kafka.protocol.releases import ApiKey
from offsetmgr.kafka.protocol.schema_codec import decode_request, encode_response, request_is_flexible

Handler = Callable[[Mapping[str, Any]], Mapping[str, Any] | None]
"""Returns the response to a request. If it returns None, the broker does not respond."""

VERSIONS = {
    ApiKey.LIST_OFFSETS: (1, 10),
    ApiKey.METADATA: (0, 13),
    ApiKey.API_VERSIONS: (0, 4),
    ApiKey.CREATE_TOPICS: (2, 7),
    ApiKey.DESCRIBE_CONFIGS: (1, 4),
}


class FakeBroker:
    """The only broker of a cluster, with the id 1. ``handlers`` maps API keys to handlers; the response to
    Metadata contains ``topics``."""

    def __init__(
        self, handlers: Mapping[int, Handler] | None = None, versions: Mapping[Any, tuple[int, int]] = VERSIONS
    ) -> None:
        self.handlers: dict[int, Handler] = {ApiKey.METADATA: self._metadata, **(handlers or {})}
        self.versions = versions
        self.topics: dict[str, dict[str, Any]] = {}
        self.knows_brokers = True
        """Whether the response to Metadata lists the broker. A broker that has just started lists none."""
        self.sent: list[tuple[int, int, Mapping[str, Any]]] = []
        """The API key, the version and the message of each request, without those of the connection's opening."""
        self._connections: list[socket.socket] = []
        broker = self

        class Connection(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                broker._connections.append(self.connection)
                while (size := self.rfile.read(4)) and (frame := self.rfile.read(struct.unpack(">i", size)[0])):
                    answer = broker._answer(frame)
                    if answer is not None:
                        self.wfile.write(struct.pack(">i", len(answer)) + answer)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Connection)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Refuses connections from now on, and breaks the open ones."""
        self._server.shutdown()
        self._server.server_close()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def requests(self, api_key: int) -> list[Mapping[str, Any]]:
        """The messages of the requests of this API."""
        return [message for key, _, message in self.sent if key == api_key]

    def add_topic(self, name: str, partitions: int, replicas: tuple[int, ...] = (1,), leader: int = 1) -> None:
        part = {"error_code": 0, "leader_id": leader, "replica_nodes": replicas, "isr_nodes": replicas}
        parts = [{**part, "partition_index": number} for number in range(partitions)]
        self.topics[name] = {"error_code": 0, "name": name, "topic_id": None, "partitions": parts}

    def _answer(self, frame: bytes) -> bytes | None:
        api_key, version, correlation, client_id = struct.unpack_from(">hhih", frame)
        flexible = request_is_flexible(api_key, version)
        message = decode_request(api_key, version, frame, 10 + client_id + flexible)
        if api_key == ApiKey.API_VERSIONS:
            ranges = self.versions.items()
            keys = [{"api_key": key, "min_version": low, "max_version": high} for key, (low, high) in ranges]
            found: Mapping[str, Any] | None = {"error_code": 0, "api_keys": keys}
        else:
            if version != 1 or api_key != ApiKey.METADATA:  # Metadata 1 looks for brokers before 0.10
                self.sent.append((api_key, version, message))
            found = self.handlers[api_key](message)
        if found is None:
            return None
        tags = b"\0" if flexible and api_key != ApiKey.API_VERSIONS else b""
        return struct.pack(">i", correlation) + tags + encode_response(api_key, version, found)

    def _metadata(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        missing = {"error_code": 3, "topic_id": None, "partitions": []}
        names = [topic["name"] for topic in message["topics"] or ()]
        return {
            "brokers": [{"node_id": 1, "host": "127.0.0.1", "port": self.port}] if self.knows_brokers else [],
            "controller_id": 1,
            "topics": [self.topics.get(name, {**missing, "name": name}) for name in names],
        }
