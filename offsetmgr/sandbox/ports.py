"""Free ports of this machine, and requests that check whether a server really responds."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from collections.abc import Collection
from typing import Final

from offsetmgr.core.errors import SandboxError

HOST: Final = "127.0.0.1"
# Below the ranges of ports for outgoing connections (32768 and up on Linux, 49152 elsewhere), so that no client can
# occupy a server's port while that server is being restarted.
_LOWEST, _HIGHEST = 20_000, 32_000
_random = random.SystemRandom()


def free_port() -> int:
    """A port on which no program listens now. Another program may take it first: retry with another one then."""
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
    """ZooKeeper's response to one of its four-letter words; empty without a response."""
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


def broker_answers(port: int, topics: Collection[str] = (), version: int = 4) -> bool:
    """Whether a Kafka broker responds to a Metadata request of this version (4 or 0), knows a controller, lists a
    broker at this port, and can serve these topics. A broker that has just started knows the other brokers before it
    knows the topics."""
    everything = struct.pack(">ib", -1, 0) if version else struct.pack(">i", 0)  # all topics, no auto creation
    body = struct.pack(">hhih", 3, version, 1, -1) + everything
    try:
        with socket.create_connection((HOST, port), 2.0) as connection:
            connection.settimeout(5.0)
            connection.sendall(struct.pack(">i", len(body)) + body)
            size = struct.unpack(">i", _exactly(connection, 4))[0]
            answer = _Reader(_exactly(connection, size))
            return _lists(answer, port, version) and set(topics) <= _served(answer, version)
    except (OSError, struct.error, EOFError):
        return False


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)


class _Reader:
    """Reads Kafka's primitive types in sequence. Raises `struct.error` at the end of the data."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: str) -> int:
        value: int = struct.unpack_from(f">{form}", self._data, self._at)[0]
        self._at += struct.calcsize(form)
        return value

    def string(self) -> str:
        length = max(self.number("h"), 0)
        self._at += length
        return self._data[self._at - length : self._at].decode()

    def numbers(self) -> list[int]:
        return [self.number("i") for _ in range(self.number("i"))]


def _lists(answer: _Reader, port: int, version: int) -> bool:
    answer.number("i")  # correlation id
    if version:
        answer.number("i")  # throttle time
    brokers = answer.number("i")
    listed = version == 0 and not brokers  # 0.8.2 lists no broker while the cluster has no topics
    for _ in range(brokers):
        answer.number("i")  # node id
        answer.string()  # host
        listed |= answer.number("i") == port
        if version:
            answer.string()  # rack
    if not version:
        return listed
    answer.string()  # cluster id
    return answer.number("i") >= 0 and listed  # controller


def _served(answer: _Reader, version: int) -> set[str]:
    """The topics whose partitions all have a leader, or wait for one that is on another broker."""
    names = set()
    for _ in range(answer.number("i")):
        usable = answer.number("h") == 0
        name = answer.string()
        if version:
            answer.number("b")  # internal
        for _ in range(answer.number("i")):
            answer.number("h")  # error
            answer.number("i")  # partition
            leader = answer.number("i")
            replicas = answer.numbers()
            answer.numbers()  # in sync
            usable &= leader >= 0 or len(replicas) > 1
        if usable:
            names.add(name)
    return names
