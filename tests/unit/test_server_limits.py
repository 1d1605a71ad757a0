"""Limits of a listener: request size, idle time, duration of a request, connections and memory."""

from __future__ import annotations

import struct
import time

import pytest
from listener_requests import API_VERSIONS, COMMIT, block_commits, wait_until
from memory_listener import MemoryBackend, MemoryListener, WireClient, commit_message

from offsetmgr.server.network.limits import ServerLimits

pytest_plugins = ["memory_listener_fixtures"]

pytestmark = pytest.mark.usefixtures("quick_sweeps")


def test_a_request_of_a_hundred_megabytes_is_rejected_by_its_length_field(listening: MemoryListener) -> None:
    with WireClient(listening.port) as client, WireClient(listening.port) as other:
        client.socket.sendall(struct.pack(">i", 100 * 1024 * 1024))
        assert client.is_disconnected()
        other.ask(API_VERSIONS, 0, {})


def test_idle_connections_are_closed_and_busy_ones_are_not(backend: MemoryBackend) -> None:
    with (
        MemoryListener(backend, limits=ServerLimits(idle_seconds=10), manual_clock=True) as listening,
        WireClient(listening.port) as idle,
        WireClient(listening.port) as waiting,
    ):
        release_commits = block_commits(listening)
        idle.ask(API_VERSIONS, 0, {})
        waiting.send(COMMIT, 7, commit_message("g", {("t", 0): 1}))
        assert wait_until(lambda: any(connection.busy for connection in listening.service.connections))
        listening.advance_time(9)
        assert len(listening.service.connections) == 2
        listening.advance_time(2)
        assert idle.is_disconnected()
        listening.advance_time(20)
        release_commits()
        waiting.receive()
        assert listening.service.metrics()['connections_cut_total{why="idle"}'] == 1


def test_a_request_that_does_not_end_closes_the_connection_and_a_long_pipeline_does_not(backend: MemoryBackend) -> None:
    with (
        MemoryListener(backend, limits=ServerLimits(request_seconds=10), manual_clock=True) as listening,
        WireClient(listening.port) as slow,
        WireClient(listening.port) as steady,
    ):
        frame = steady.frame(API_VERSIONS, 0, b"", 1)
        slow.socket.sendall(frame[:5])
        # Every piece ends in the middle of a request. Together they take longer than one request may take.
        steady.socket.sendall(frame[:7])
        assert wait_until(lambda: [c.partial_since is None for c in listening.service.connections] == [False, False])
        for turn in range(5):
            steady.socket.sendall(frame[7:] + frame[:7])
            steady.receive()
            assert wait_until(lambda: all(c.partial_since is not None for c in listening.service.connections))
            listening.advance_time(4)
            assert len(listening.service.connections) == (2 if turn < 2 else 1)
        assert slow.is_disconnected()
        assert listening.service.metrics()['connections_cut_total{why="slow request"}'] == 1


def test_connections_over_the_limit_are_closed_and_ended_connections_make_room(backend: MemoryBackend) -> None:
    with MemoryListener(backend, limits=ServerLimits(connections=3)) as listening:
        clients = [WireClient(listening.port) for _ in range(3)]
        for client in clients:
            client.ask(API_VERSIONS, 0, {})
        with WireClient(listening.port) as fourth:
            assert fourth.is_disconnected()
        clients[0].socket.close()
        assert wait_until(lambda: len(listening.service.connections) == 2)
        with WireClient(listening.port) as again:
            again.ask(API_VERSIONS, 0, {})
        for client in clients:
            client.socket.close()


def test_the_connections_of_one_address_are_limited(backend: MemoryBackend) -> None:
    with (
        MemoryListener(backend, limits=ServerLimits(connections_per_address=1)) as listening,
        WireClient(listening.port) as first,
        WireClient(listening.port) as second,
    ):
        first.ask(API_VERSIONS, 0, {})
        assert second.is_disconnected()


def test_the_memory_of_all_requests_together_is_limited(backend: MemoryBackend) -> None:
    """The service closes connections that send only parts of large requests, and serves the others."""
    limits = ServerLimits(held_bytes=4 << 20, request_bytes=4 << 20)
    with MemoryListener(backend, limits=limits) as listening, WireClient(listening.port) as good:
        greedy = [WireClient(listening.port) for _ in range(8)]
        for client in greedy:
            client.socket.setblocking(False)
            left = memoryview(struct.pack(">i", 4 << 20) + bytes(2 << 20))
            end = time.monotonic() + 120
            while left and time.monotonic() < end:
                try:
                    left = left[client.socket.send(left) :]
                except BlockingIOError:
                    time.sleep(0.002)
                except ConnectionError:
                    break
            good.commit("g", {("t", 0): 1})
            assert listening.service.held_bytes <= (4 << 20) + (256 << 10) * 9
        # Sent bytes may still be on their way. Two of the eight requests fit, and the kernel buffers some of the rest.
        assert wait_until(lambda: listening.service.metrics().get('connections_cut_total{why="memory"}', 0) >= 4)
        for client in greedy:
            client.socket.close()
        assert wait_until(lambda: listening.service.held_bytes == 0)
