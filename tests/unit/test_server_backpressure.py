"""Backpressure: requests in flight, commits that the backend delays, and clients that do not read."""

from __future__ import annotations

import asyncio
import struct
import time

import pytest
from listener_requests import API_VERSIONS, COMMIT, FETCH, block_commits, fetch_message, wait_until
from memory_listener import MemoryBackend, MemoryListener, WireClient, commit_message

from offsetmgr.server.network.limits import ServerLimits

pytest_plugins = ["memory_listener_fixtures"]

pytestmark = pytest.mark.usefixtures("quick_sweeps")


def test_the_connection_reads_no_more_requests_than_may_be_in_flight(backend: MemoryBackend) -> None:
    with MemoryListener(backend, limits=ServerLimits(in_flight=5)) as listening, WireClient(listening.port) as client:
        release_commits = block_commits(listening)
        for number in range(20):
            client.send(COMMIT, 7, commit_message("g", {("t", 0): number}))
        assert wait_until(lambda: [len(one._pipeline) for one in listening.service.connections] == [5])
        (connection,) = listening.service.connections
        time.sleep(0.1)
        assert len(connection._pipeline) == 5
        release_commits()
        for _ in range(20):
            client.receive()
    assert backend.offsets["g"]["t"][0][0] == 19


def test_a_backend_with_backpressure_receives_no_more_commits(
    listening: MemoryListener, backend: MemoryBackend
) -> None:
    async def make() -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()

    full = backend.full = listening.run(make())
    with WireClient(listening.port) as client, WireClient(listening.port) as other:
        for number in range(3):
            client.send(COMMIT, 7, commit_message("g", {("t", 0): number}))
        client.receive()
        other.ask(API_VERSIONS, 0, {})
        assert backend.commits == 1
        backend.full = None
        listening.loop.call_soon_threadsafe(full.set_result, None)
        client.receive()
        client.receive()
    assert backend.commits == 3


def test_a_client_that_reads_no_responses_is_paused_and_finally_closed(backend: MemoryBackend) -> None:
    backend.offsets["g"] = {"t": {p: (p, -1, "x" * 4000) for p in range(200)}}
    limits = ServerLimits(idle_seconds=0.5)
    with MemoryListener(backend, limits=limits) as listening, WireClient(listening.port) as client:
        client.socket.settimeout(0.2)
        with pytest.raises((TimeoutError, ConnectionError)):
            for _ in range(100_000):
                client.send(FETCH, 5, fetch_message("g"))
        (connection,) = listening.service.connections or [None]
        assert connection is None or connection.unsent < 4 << 20
        assert wait_until(lambda: not listening.service.connections)
        assert listening.service.metrics()['connections_cut_total{why="answers not taken"}'] == 1


def test_a_client_that_reads_slowly_is_not_closed(backend: MemoryBackend) -> None:
    backend.offsets["g"] = {"t": {p: (p, -1, "x" * 4000) for p in range(8_000)}}
    with (
        MemoryListener(backend, limits=ServerLimits(idle_seconds=10), manual_clock=True) as listening,
        WireClient(listening.port, receive_buffer=64 * 1024) as client,
    ):
        client.send(FETCH, 5, fetch_message("g"))
        assert wait_until(lambda: any(connection.stalled_since for connection in listening.service.connections))
        (connection,) = listening.service.connections
        (length,) = struct.unpack(">i", client._exactly(4))
        taken, waits = 0, 0
        while unsent := connection.unsent:
            # The client may receive the last bytes before the transport has counted them as sent.
            while connection.unsent == unsent and taken < length:
                taken += len(client.socket.recv(160_000))
            listening.advance_time(9)
            waits += 1
        client._exactly(length - taken)
        assert waits >= 2, "longer in total than the idle timeout"
        assert listening.service.connections == {connection}
