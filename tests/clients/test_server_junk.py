"""Junk at the listener: mutated and truncated requests, half-open and slow connections, huge length fields.

The listener runs in its own process, so that the test detects a crash. Meanwhile a witness commits and fetches. It must
never wait long or get a wrong response.
"""

import contextlib
import json
import os
import random
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from junk_frames import corpus, mutated
from memory_listener import ConnectionClosedByBroker, WireClient, commit_errors, wait_until

REQUESTS = 200_000 if os.environ.get("OFFSETMGR_SOAK") else 10_000
SEED = int(os.environ.get("OFFSETMGR_SEED", "20261121"))
TIMEOUT_S = 30.0
"""Seconds after which a connection counts as hanging: the machine may be busy with other tests."""


class ListenerProcess:
    """A listener in another process, which runs `listener_process`."""

    def __init__(self, directory: Path) -> None:
        credentials = directory / "users.toml"
        credentials.write_text('[users.alice]\npassword = "secret"\n')
        self.log = directory / "listener.log"
        script = Path(__file__).parent.parent / "listener_process.py"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(script), str(credentials)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        self.open_port, self.secured_port = map(int, self._process.stdout.readline().split())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(90)
        finally:
            self._process.kill()

    def metrics(self) -> dict[str, Any]:
        """The metrics that the listener reports. Fails if the listener has died."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the listener died ({self._process.wait(90)}): {self.log.read_text()[-2000:]}"
        metrics: dict[str, Any] = json.loads(line)
        return metrics


class Witness(threading.Thread):
    """A well-behaved client, which records its longest wait for a response and all wrong responses."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._port = port
        self._ended = threading.Event()
        self.rounds = 0
        self.longest = 0.0
        self.wrong: list[object] = []

    def run(self) -> None:
        try:
            with WireClient(self._port) as client:
                while not self._ended.is_set():
                    self._round(client)
                    time.sleep(0.002)
        except (ConnectionClosedByBroker, OSError, AssertionError) as error:
            self.wrong.append(error)

    def _round(self, client: WireClient) -> None:
        began = time.monotonic()
        self.rounds += 1
        errors = commit_errors(client.commit("witness", {("orders", p): self.rounds for p in range(5)}))
        fetch = {"group_id": "witness", "topics": [{"name": "orders", "partition_indexes": [0, 4]}]}
        (topic,) = client.ask(9, 5, fetch)["topics"]
        found = {p["committed_offset"] for p in topic["partitions"]}
        self.longest = max(self.longest, time.monotonic() - began)
        if set(errors.values()) != {0} or found != {self.rounds}:
            self.wrong.append((self.rounds, errors, found))

    def end(self) -> None:
        """Ends the thread after a few rounds at least, however short the test was."""
        wait_until(lambda: self.rounds > 3 or not self.is_alive(), TIMEOUT_S)
        self._ended.set()
        self.join(TIMEOUT_S)


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[ListenerProcess]:
    with ListenerProcess(tmp_path) as listener:
        yield listener


@pytest.fixture
def witness(listener: ListenerProcess) -> Iterator[Witness]:
    """Fails the test if the witness got a wrong response."""
    witness = Witness(listener.open_port)
    witness.start()
    yield witness
    witness.end()
    assert witness.wrong == []
    assert witness.rounds > 3


def send_junk(rng: random.Random, frames: list[bytes], ports: tuple[int, int], requests: int) -> None:
    """Sends junk over many connections, a few requests each, and waits until the listener has closed each of them."""
    while requests > 0:
        several = [mutated(rng, rng.choice(frames), rng.choice(frames)) for _ in range(rng.randint(1, 3))]
        requests -= len(several)
        with (
            socket.create_connection(("127.0.0.1", rng.choice(ports)), timeout=TIMEOUT_S) as connection,
            contextlib.suppress(ConnectionError),
        ):
            connection.sendall(b"".join(several))
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass


@pytest.mark.slow
def test_mutated_and_truncated_requests(listener: ListenerProcess, witness: Witness) -> None:
    frames = corpus()
    ports = listener.open_port, listener.secured_port
    rng = random.Random(SEED)
    send_junk(rng, frames, ports, REQUESTS // 5)
    before = listener.metrics()["resident"]

    for _ in range(4):
        send_junk(rng, frames, ports, REQUESTS // 5)
        listener.metrics()

    after = listener.metrics()
    assert after["resident"] < before + 16 * 1024 * 1024
    assert after["services"][0]["connections"] <= 2
    assert after["services"][1]["connections"] <= 1
    log = listener.log.read_text()
    assert "defect" not in log, log[:4000]
    assert "Traceback" not in log, log[:4000]
    assert witness.longest < TIMEOUT_S


def test_half_open_and_slow_connections_and_huge_length_fields(listener: ListenerProcess, witness: Witness) -> None:
    frames = corpus()
    rng = random.Random(SEED)
    before = listener.metrics()["resident"]
    half_open = [socket.create_connection(("127.0.0.1", listener.open_port), timeout=TIMEOUT_S) for _ in range(300)]
    for connection in half_open:
        frame = rng.choice(frames)
        connection.sendall(frame[: rng.randrange(1, len(frame))])

    for length in (100 * 1024 * 1024, 2**31 - 1, 8 * 1024 * 1024 + 1):
        with (
            socket.create_connection(("127.0.0.1", listener.open_port), timeout=TIMEOUT_S) as huge,
            contextlib.suppress(ConnectionError),
        ):
            huge.sendall(struct.pack(">i", length))
            huge.sendall(bytes(1 << 20))
            assert huge.recv(1) == b""

    # Bytes arrive one by one, on many connections in turn. Each request gets a response in the end.
    slow = [socket.create_connection(("127.0.0.1", listener.open_port), timeout=TIMEOUT_S) for _ in range(20)]
    versions = WireClient(listener.open_port)
    frame = versions.frame(18, 0, b"", 5)
    for at in range(len(frame)):
        for connection in slow:
            connection.sendall(frame[at : at + 1])
    for connection in slow:
        assert connection.recv(4) != b""

    metrics = listener.metrics()
    assert metrics["services"][0]["connections"] >= 320
    assert metrics["resident"] < before + 16 * 1024 * 1024
    for connection in [*half_open, *slow, versions.socket]:
        connection.close()
    assert wait_until(lambda: listener.metrics()["services"][0]["connections"] <= 1, TIMEOUT_S)
    assert witness.longest < TIMEOUT_S


def test_connections_that_end_within_a_request_leave_no_memory(listener: ListenerProcess, witness: Witness) -> None:
    """The garbage collector of a manager counts objects, so it would not run for a few objects of many megabytes."""
    before = listener.metrics()["resident"]
    for _ in range(30):
        with socket.create_connection(("127.0.0.1", listener.open_port), timeout=TIMEOUT_S) as connection:
            connection.sendall(struct.pack(">i", 7 * 1024 * 1024) + bytes(6 * 1024 * 1024))
    assert wait_until(lambda: listener.metrics()["services"][0]["connections"] <= 1, TIMEOUT_S)
    assert listener.metrics()["resident"] < before + 48 * 1024 * 1024
