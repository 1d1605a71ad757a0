"""Free ports of this machine, and checks whether the server at a port responds."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from collections.abc import Collection, Mapping
from typing import Any, Final

from offsetmgr.core.errors import InvalidRequest, SandboxError
from offsetmgr.kafka.protocol.releases import ApiKey

HOST: Final = "127.0.0.1"
# These ports are below the ranges for outgoing connections (32768 and up on Linux, 49152 elsewhere), so that no client
# can occupy the port of a server while the server restarts.
_MIN_PORT, _MAX_PORT = 20_000, 32_000
_random = random.SystemRandom()
_returned: Final[set[int]] = set()


def free_port() -> int:
    """Returns a port on which no program listens now, and which this function has not returned to this process before.
    If another program takes the port before the caller does, the caller must retry with another port. Raises
    `SandboxError`."""
    for _ in range(200):
        port = _random.randrange(_MIN_PORT, _MAX_PORT)
        if port not in _returned and is_free(port):
            _returned.add(port)
            return port
    raise SandboxError("no free port", f"all of 200 ports tried between {_MIN_PORT} and {_MAX_PORT} are taken")


def is_free(port: int) -> bool:
    """Returns whether a server could listen on this port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def four_letter_word(address: str, word: str, timeout_s: float = 2.0) -> str:
    """Returns ZooKeeper's response to one of its four-letter words; empty if it does not respond."""
    host, _, port = address.partition(":")
    response = b""
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout_s) as connection:
        connection.settimeout(timeout_s)
        connection.sendall(word.encode())
        while chunk := connection.recv(65536):
            response += chunk
    return response.decode(errors="replace")


def zookeeper_responds(port: int) -> bool:
    """Returns whether ZooKeeper serves requests. (It accepts connections before that.)"""
    return "Mode:" in four_letter_word(f"{HOST}:{port}", "srvr")


def broker_responds(port: int, topics: Collection[str] = (), version: int = 4) -> bool:
    """Returns whether a Kafka broker responds to a Metadata request of this version (4 or 0), knows a controller, lists
    a broker at this port, and can serve these topics: every partition has a leader or a replica on another broker. The
    topics are checked as well, because a broker that has just started learns of the other brokers before it learns of
    the topics."""
    from offsetmgr.kafka.protocol.schema_codec import decode_response  # `sandbox status` does not need it

    everything = struct.pack(">ib", -1, 0) if version else struct.pack(">i", 0)  # all topics, no auto creation
    body = struct.pack(">hhih", ApiKey.METADATA, version, 1, -1) + everything
    try:
        with socket.create_connection((HOST, port), 2.0) as connection:
            connection.settimeout(5.0)
            connection.sendall(struct.pack(">i", len(body)) + body)
            with connection.makefile("rb") as received:
                size = struct.unpack(">i", received.read(4))[0]
                answer = decode_response(ApiKey.METADATA, version, received.read(size), 4)
    except (OSError, struct.error, InvalidRequest):
        return False
    ports = [broker["port"] for broker in answer["brokers"]]
    if port not in ports and (version or ports):  # 0.8.2 lists no broker while the cluster has no topics
        return False
    usable = (
        topic for topic in answer["topics"] if not topic["error_code"] and all(map(_is_usable, topic["partitions"]))
    )
    return answer.get("controller_id", 0) >= 0 and set(topics) <= {topic["name"] for topic in usable}


def _is_usable(partition: Mapping[str, Any]) -> bool:
    return partition["leader_id"] >= 0 or len(partition["replica_nodes"]) > 1
