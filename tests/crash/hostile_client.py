"""A hostile client: floods a manager or a broker with some kinds of requests and connections.

It is pinned to one processor core, and each kind has an address of its own. When it has printed ``ready``, it waits for
a line on stdin, floods until stdin is closed, and prints the number of requests or connections of each kind.
    python hostile_client.py PORT CERTIFICATE SEED CORE KIND...
"""

from __future__ import annotations

import json
import os
import random
import socket
import ssl
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from junk_frames import corpus, mutated
from memory_listener import DEFAULT_FIELDS, ConnectionClosedByBroker, WireClient, commit_errors, commit_message

from offsetmgr.kafka.protocol.schema_codec import encode_request
from offsetmgr.segments.batch_builder import batch
from offsetmgr.segments.batch_reader import Record

PARTITIONS: Final = 50
METADATA: Final = "m" * 4000
HELD: Final = 200
"""The number of connections that a flood of connections holds open at a time."""
THREADS: Final = 2
"""The number of threads that flood with the same kind."""
HOLD_S: Final = 1.0
HELLO: Final = bytes.fromhex("160301020001") + bytes(40)
"""The first bytes of a TLS handshake."""
PRODUCE, OFFSET_FETCH, DESCRIBE_GROUPS, SASL_HANDSHAKE, SASL_AUTHENTICATE = 0, 9, 15, 17, 36


def log_in(client: WireClient, user: str, password: str) -> int:
    """Returns the error code of a login with PLAIN."""
    client.ask(SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
    return int(client.ask(SASL_AUTHENTICATE, 2, {"auth_bytes": f"\0{user}\0{password}".encode()})["error_code"])


def logged_in(port: int, certificate: Path, user: str, address: str | None = None) -> WireClient:
    """A client of the user, whose password is the name and ``-secret``."""
    client = WireClient(port, tls=ssl.create_default_context(cafile=certificate), address=address)
    if error := log_in(client, user, f"{user}-secret"):
        raise PermissionError(f"login: error {error}")
    return client


class Attacks:
    """Each public method is one kind of attack. It ends by itself or by an error, and is called again."""

    def __init__(self, port: int, certificate: Path, seed: int, address: str = "127.0.0.2") -> None:
        self._port, self._certificate, self._address = port, certificate, address
        self._tls = ssl.create_default_context(cafile=certificate)
        self._random = random.Random(seed)
        self._frames: list[bytes] = []
        self.count = 0

    def repeated_names(self) -> None:
        """A request of about 2 kB names one group 300 times, whose offsets and metadata have 200 kB."""
        body = self._body(OFFSET_FETCH, 8, groups=[{"group_id": "mallory", "topics": None}] * 300)
        self._requests(OFFSET_FETCH, 8, body, 20)

    def many_names(self) -> None:
        self._requests(DESCRIBE_GROUPS, 5, self._body(DESCRIBE_GROUPS, 5, groups=[f"g{n}" for n in range(20_000)]), 20)

    def unread_responses(self) -> None:
        """Five connections with 500 requests each, which ask for 200 kB each."""
        body = self._body(OFFSET_FETCH, 5, group_id="mallory", topics=None)
        with ExitStack() as stack:
            for _ in range(5):
                client = stack.enter_context(self._client())
                frame = client.frame(OFFSET_FETCH, 5, body, 1)
                client.socket.sendall(frame * 500)
                self.count += 500
            time.sleep(HOLD_S)

    def wrong_passwords(self) -> None:
        user = self._random.choice(("mallory", "operator", f"nobody{self._random.random()}"))
        with self._client(user="") as client:
            self.count += 1
            log_in(client, user, "guess")

    def half_handshakes(self) -> None:
        with ExitStack() as stack:
            for _ in range(HELD):
                plain = stack.enter_context(self._socket())
                plain.sendall(HELLO[: self._random.randint(0, len(HELLO))])
                self.count += 1
            time.sleep(HOLD_S)

    def silent_connections(self) -> None:
        """Half of the connections send one byte a second, before and after the login; the others send nothing."""
        with ExitStack() as stack:
            held = []
            for number in range(HELD):
                held.append(stack.enter_context(self._client(user="mallory" * (number % 2))))
                self.count += 1
            for byte in struct.pack(">ihh", 1000, OFFSET_FETCH, 5):
                for client in held[HELD // 2 :]:
                    client.socket.sendall(bytes([byte]))
                time.sleep(HOLD_S)

    def huge_frames(self) -> None:
        """Twenty incomplete requests of 7 MiB after a login, and length fields above the limits."""
        with ExitStack() as stack:
            for _ in range(20):
                client = stack.enter_context(self._client())
                client.socket.sendall(struct.pack(">i", 8 * 1024 * 1024 - 64) + bytes(7 * 1024 * 1024))
                with self._client(user="") as other:
                    other.socket.sendall(struct.pack(">i", self._random.choice((2**31 - 1, 100_000_000, -5))))
                self.count += 2
            time.sleep(HOLD_S)

    def mutated_frames(self) -> None:
        self._frames = self._frames or corpus()
        junk = [mutated(self._random, *self._random.sample(self._frames, 2)) for _ in range(20)]
        with self._client() as client:
            client.socket.settimeout(1)
            client.socket.sendall(b"".join(junk))
            self.count += len(junk)
            while client.socket.recv(1 << 16):
                pass

    def unacknowledged_records(self) -> None:
        """Produce requests with acks=0, of 500 kB each, over a new connection after every 50."""
        records = batch([Record(0, 1, None, bytes(500_000), ())])
        topics = [{"name": "mallory", "partitions": [{"index": 0, "records": records}]}]
        topics[0]["partition_data"] = topics[0].pop("partitions")
        body = self._body(PRODUCE, 8, transactional_id=None, acks=0, timeout=1000, topic_data=topics)
        with self._client() as client:
            brokers = client.ask(3, 5, {"topics": [{"name": "mallory"}], "allow_auto_topic_creation": False})["brokers"]
        port = next(one["port"] for one in brokers if one["node_id"] == 1)
        with logged_in(port, self._certificate, "mallory", self._address) as client:
            for _ in range(50):
                client.send(PRODUCE, 8, body)
                self.count += 1

    def prepare(self) -> None:
        """Commits the group that later requests fetch."""
        with self._client() as client:
            message = commit_message("mallory", {("mallory", p): p for p in range(PARTITIONS)})
            for part in message["topics"][0]["partitions"]:
                part["committed_metadata"] = METADATA
            errors = commit_errors(client.ask(8, 7, message))
        if any(errors.values()):
            raise PermissionError(str(errors))

    def _requests(self, api_key: int, version: int, body: bytes, number: int) -> None:
        with self._client() as client:
            for _ in range(number):
                client.send(api_key, version, body)
                self.count += 1
                client.receive()

    def _body(self, api_key: int, version: int, **message: Any) -> bytes:
        return encode_request(api_key, version, {**DEFAULT_FIELDS, **message})

    def _client(self, user: str = "mallory") -> WireClient:
        if user:
            return logged_in(self._port, self._certificate, user, self._address)
        return WireClient(self._port, tls=self._tls, address=self._address)

    def _socket(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self._port), 20, (self._address, 0))


KINDS: Final = tuple(name for name in vars(Attacks) if not name.startswith("_") and name != "prepare")


def repeat(attack: Callable[[], None], ended: threading.Event) -> None:
    while not ended.is_set():
        try:
            attack()
        except (ConnectionClosedByBroker, OSError):
            time.sleep(0.01)


def main(port: int, certificate: Path, seed: int, core: int, kinds: Sequence[str]) -> None:
    os.sched_setaffinity(0, {core})
    Attacks(port, certificate, seed).prepare()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    ended = threading.Event()
    running = [
        (kind, Attacks(port, certificate, seed + thread, f"127.0.0.{number}"))
        for thread in range(THREADS)
        for number, kind in enumerate(kinds, 2)
    ]
    for kind, attacks in running:
        threading.Thread(target=repeat, args=(getattr(attacks, kind), ended), daemon=True).start()
    sys.stdin.read()
    ended.set()
    counts = Counter(dict.fromkeys(kinds, 0))
    for kind, attacks in running:
        counts[kind] += attacks.count
    sys.stdout.write(json.dumps(counts))
    sys.stdout.flush()
    os._exit(0)  # without waiting for connections that the server does not close


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:])
