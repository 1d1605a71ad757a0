"""Free ports of this machine, and the questions that tell whether a server really answers."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from typing import Final

from offsetmgr.errors import SandboxError

HOST: Final = "127.0.0.1"
# Below the ranges from which systems take ports for outgoing connections (32768 and up on Linux, 49152 elsewhere):
# nobody's client can sit on a server's port while that server is being restarted.
_LOWEST, _HIGHEST = 20_000, 32_000
_random = random.SystemRandom()


def free_port() -> int:
    """A port that nobody listens on now. Another program may take it first: retry with another one then."""
    for _ in range(200):
        port = _random.randrange(_LOWEST, _HIGHEST)
        if is_free(port):
            return port
    raise SandboxError("no free port", f"200 ports between {_LOWEST} and {_HIGHEST} are all taken")


def is_free(port: int) -> bool:
    """Whether a server could listen on this port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def four_letters(address: str, word: str, timeout: float = 2.0) -> str:
    """ZooKeeper's answer to one of its four-letter words; empty where nobody answers."""
    host, _, port = address.partition(":")
    answer = b""
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout) as connection:
        connection.settimeout(timeout)
        connection.sendall(word.encode())
        while chunk := connection.recv(65536):
            answer += chunk
    return answer.decode(errors="replace")


def zookeeper_answers(port: int) -> bool:
    """Whether ZooKeeper serves requests (it accepts connections before that)."""
    return "Mode:" in four_letters(f"{HOST}:{port}", "srvr")


def broker_answers(port: int) -> bool:
    """Whether a Kafka broker answers a Metadata request (v4), knows a controller and lists a broker at this port."""
    body = struct.pack(">hhih", 3, 4, 1, -1) + struct.pack(">ib", 0, 0)  # no topics, no auto creation
    try:
        with socket.create_connection((HOST, port), 2.0) as connection:
            connection.settimeout(5.0)
            connection.sendall(struct.pack(">i", len(body)) + body)
            size = struct.unpack(">i", _exactly(connection, 4))[0]
            return _lists(_exactly(connection, size), port)
    except (OSError, struct.error, EOFError):
        return False


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise EOFError
        data += chunk
    return data


def _lists(answer: bytes, port: int) -> bool:
    _correlation, _throttle, brokers = struct.unpack_from(">iii", answer)
    at, listed = 12, False
    for _ in range(brokers):
        at += 4
        at = _after_string(answer, at)
        listed |= struct.unpack_from(">i", answer, at)[0] == port
        at = _after_string(answer, at + 4)
    at = _after_string(answer, at)  # cluster id
    controller: int = struct.unpack_from(">i", answer, at)[0]
    return listed and controller >= 0


def _after_string(data: bytes, at: int) -> int:
    length: int = struct.unpack_from(">h", data, at)[0]
    return at + 2 + max(length, 0)
