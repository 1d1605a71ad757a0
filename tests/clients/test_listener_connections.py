"""A connection of a client: the order of requests and responses, frames in pieces, kinds of responses, limits of
requests, connections and memory, backpressure, and the end of the connection."""

import asyncio
import gc
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from memory_listener import (
    API_VERSIONS,
    COMMIT,
    FETCH,
    FIND_COORDINATOR,
    MemoryBackend,
    MemoryListener,
    WireClient,
    commit_errors,
    commit_message,
    fetch_message,
    limits,
    read_response,
    wait_until,
)
from processes import fails

from offsetmgr.core.errors import InvalidRequest, Unreachable
from offsetmgr.server.network.requests import Api, ApiRequest, ClientSession, Concurrency, Frame, HandlerResult
from offsetmgr.server.network.socket_server import SocketServer

pytestmark = pytest.mark.usefixtures("quick_sweeps")

FORWARDED = 1


@contextmanager
def one_api(
    handle: Callable[[ApiRequest], HandlerResult], lane: Concurrency = Concurrency.EXCLUSIVE
) -> Iterator[tuple[asyncio.AbstractEventLoop, int]]:
    """A running service with one API. The block gets its event loop and its port."""
    service = SocketServer([Api(FORWARDED, 0, 9, 99, handle, lane)])
    with MemoryListener() as running:
        yield running.loop, running.run(service.listen("127.0.0.1", 0))
        running.run(service.close())


def test_commits_of_one_connection_run_concurrently_and_a_later_fetch_sees_them(listening, backend, monkeypatch):
    release_commits = listening.block_commits()
    begun: list[str] = []
    commit, fetch = backend._commit_when_allowed, backend.fetch
    monkeypatch.setattr(backend, "_commit_when_allowed", lambda r: begun.append(f"commit {r.group}") or commit(r))
    monkeypatch.setattr(backend, "fetch", lambda r: begun.append(f"fetch {r.group}") or fetch(r))
    with WireClient(listening.port) as client, WireClient(listening.port) as other:
        sent = [client.send(COMMIT, 7, commit_message("a", {("t", 0): 5}))]
        sent.append(client.send(FIND_COORDINATOR, 2, {"key": "b", "key_type": 0}))  # delays no commit behind it
        sent.append(client.send(COMMIT, 7, commit_message("b", {("t", 0): 5})))
        sent.append(client.send(FETCH, 5, fetch_message("b")))
        sent.append(client.send(COMMIT, 7, commit_message("c", {("t", 0): 6})))

        assert wait_until(lambda: begun == ["commit a", "commit b"])
        assert other.ask(FETCH, 5, fetch_message("b"))["topics"] == [], "another connection does not wait"
        release_commits()

        frames = [client.receive() for _ in sent]
        assert [struct.unpack_from(">i", frame)[0] for frame in frames] == sent
        (topic,) = read_response(FETCH, 5, frames[3])["topics"]
        assert topic["partitions"][0]["committed_offset"] == 5
    assert begun == ["commit a", "commit b", "fetch b", "fetch b", "commit c"]


def test_answers_keep_the_order_of_requests_when_the_later_one_is_ready_first() -> None:
    release: dict[int, asyncio.Future[bytes]] = {}

    def handle(request: ApiRequest) -> HandlerResult:
        release[request.correlation] = asyncio.get_running_loop().create_future()
        return release[request.correlation]

    with one_api(handle, Concurrency.COMMITS) as (loop, port), WireClient(port) as client:
        for _ in range(3):
            client.send(FORWARDED, 0, b"")
        assert wait_until(lambda: len(release) == 3)
        for correlation in (3, 2, 1):
            loop.call_soon_threadsafe(release[correlation].set_result, b"answer %d" % correlation)
        assert [client.receive()[4:] for _ in range(3)] == [b"answer 1", b"answer 2", b"answer 3"]


@pytest.mark.parametrize("step", [1, 2, 3, 7, 64, 1000, 10_000])
def test_requests_may_arrive_in_any_pieces(step: int) -> None:
    with one_api(lambda request: Frame(request.frame), Concurrency.FORWARDED) as (_, port), WireClient(port) as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sizes = (0, 1, 100, 5000, 0)
        frames = [client.frame(FORWARDED, 0, bytes([n]) * size, n) for n, size in enumerate(sizes)]
        data = b"".join(frames)
        for at in range(0, len(data), step):
            client.socket.sendall(data[at : at + step])
        assert [client.receive() for _ in frames] == [frame[4:] for frame in frames]


@pytest.mark.parametrize("length", [-1, 0, 7, 10_001, 100 * 1024 * 1024, 2**31 - 1, -(2**31)])
def test_an_invalid_length_is_rejected_immediately(length: int) -> None:
    with (
        MemoryListener(limits=limits(max_request_bytes=10_000)) as listening,
        WireClient(listening.port) as client,
        WireClient(listening.port) as other,
    ):
        client.socket.sendall(struct.pack(">i", length))
        assert client.is_disconnected()
        other.ask(API_VERSIONS, 0, {})


def test_many_requests_may_arrive_in_one_piece(listening: MemoryListener) -> None:
    with WireClient(listening.port) as client:
        frame = client.frame(API_VERSIONS, 0, b"", 1)
        writer = threading.Thread(target=client.socket.sendall, args=(frame * 5_000,))
        writer.start()
        assert len({client.receive() for _ in range(5_000)}) == 1
        writer.join()


def test_a_client_that_stops_sending_is_closed(listening: MemoryListener) -> None:
    with WireClient(listening.port) as client:
        client.ask(API_VERSIONS, 0, {})
        client.socket.shutdown(socket.SHUT_WR)
        assert client.is_disconnected()
    assert wait_until(lambda: not listening.service.connections)


def test_clients_that_disconnect_during_requests_leave_nothing_behind(listening, backend) -> None:
    release_commits = listening.block_commits()
    for _ in range(20):
        with WireClient(listening.port) as client:
            client.send(COMMIT, 7, commit_message("g", {("t", 0): 1}))
            client.send(FETCH, 5, fetch_message("g"))
    assert wait_until(lambda: not listening.service.connections)
    release_commits()
    assert wait_until(lambda: backend.commits == 20), "a commit that has begun is finished"
    with WireClient(listening.port) as client:
        client.ask(API_VERSIONS, 0, {})
    assert wait_until(lambda: listening.service.held_bytes == 0)
    # The service may send the last response before it drops the request.
    assert wait_until(lambda: gc.collect() >= 0 and not [o for o in gc.get_objects() if isinstance(o, ApiRequest)])


def test_closing_lets_running_requests_finish(backend: MemoryBackend) -> None:
    with MemoryListener(backend) as listening:
        release_commits = listening.block_commits()
        client, idle = WireClient(listening.port), WireClient(listening.port)
        client.send(COMMIT, 7, commit_message("g", {("t", 0): 1}))
        assert wait_until(lambda: any(c.busy for c in listening.service.connections))
        closing = asyncio.run_coroutine_threadsafe(listening.service.close(grace_s=10), listening.loop)
        assert wait_until(lambda: fails(ConnectionError, lambda port: WireClient(port).socket.close(), listening.port))
        release_commits()
        assert commit_errors(read_response(COMMIT, 7, client.receive())) == {("t", 0): 0}
        assert client.is_disconnected()
        assert idle.is_disconnected()
        closing.result(90)


def test_a_port_in_use_is_an_error_that_names_the_port(listening: MemoryListener) -> None:
    async def again() -> None:
        await SocketServer([]).listen("127.0.0.1", listening.port)

    with pytest.raises(Unreachable, match=str(listening.port)):
        listening.run(again())


# --- kinds of responses -------------------------------------------------------------------------------


def test_a_handler_that_raises_closes_only_its_connection() -> None:
    async def later() -> bytes:
        raise RuntimeError("a defect")

    def handle(request: ApiRequest) -> HandlerResult:
        if request.version == 1:
            raise RuntimeError("a defect")
        if request.version == 2:
            return later()
        if request.version == 3:
            raise InvalidRequest("request", "is not one")
        return b"fine"

    with one_api(handle) as (_, port), WireClient(port) as good:
        for version in (1, 2, 3):
            with WireClient(port) as bad:
                bad.send(FORWARDED, version, b"")
                assert bad.is_disconnected()
            good.send(FORWARDED, 0, b"")
            assert good.receive()[4:] == b"fine"


class Pieces:
    """A streamed response of many pieces, which records the connection's calls."""

    def __init__(self, loop: asyncio.AbstractEventLoop, correlation: int, pieces: int, size: int = 1024) -> None:
        self.calls: list[str] = []
        self.written = 0
        self._loop = loop
        self._head = struct.pack(">ii", 4 + pieces * size, correlation)
        self._left = pieces
        self._piece = bytes(size)
        self._paused = False
        self._over = False
        self._client: ClientSession
        self._end: Callable[[], None]

    def begin(self, client: ClientSession, end: Callable[[], None]) -> None:
        self.calls.append("begin")
        self._client, self._end = client, end
        client.write(self._head)
        self._loop.call_soon(self._more)

    def _more(self) -> None:
        if self._paused or self._over:
            return
        if self._left == 0:
            self._over = True
            self._end()
            return
        self._left -= 1
        self.written += len(self._piece)
        self._client.write(self._piece)
        self._loop.call_soon(self._more)

    def pause(self) -> None:
        self.calls.append("pause")
        self._paused = True

    def resume(self) -> None:
        self.calls.append("resume")
        self._paused = False
        self._more()

    def lost(self) -> None:
        self.calls.append("lost")
        self._over = True


@pytest.mark.slow
def test_a_stream_pauses_while_the_client_does_not_read_and_is_lost_when_the_client_disconnects() -> None:
    streams: list[Pieces] = []

    def handle(request: ApiRequest) -> HandlerResult:
        streams.append(Pieces(asyncio.get_running_loop(), request.correlation, 200, 1 << 20))
        return streams[-1]

    with one_api(handle, Concurrency.FORWARDED) as (_, port):
        with WireClient(port) as client:
            client.send(FORWARDED, 0, b"")
            client.send(FORWARDED, 0, b"")
            assert wait_until(lambda: bool(streams) and "pause" in streams[0].calls)
            buffered = streams[0].written
            assert buffered < 50 << 20
            assert len(client.receive()) == 4 + (200 << 20)
            assert streams[0].calls.count("pause") == streams[0].calls.count("resume")
            assert wait_until(lambda: len(streams) == 2 and "begin" in streams[1].calls)
        assert wait_until(lambda: streams[1].calls[-1] == "lost")
        assert streams[1].written < 200 << 20


# --- limits -------------------------------------------------------------------------------------------


def test_idle_connections_are_closed_and_busy_ones_are_not(backend: MemoryBackend) -> None:
    with (
        MemoryListener(backend, limits=limits(idle_timeout_s=10), manual_clock=True) as listening,
        WireClient(listening.port) as idle,
        WireClient(listening.port) as waiting,
    ):
        release_commits = listening.block_commits()
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
        MemoryListener(backend, limits=limits(request_timeout_s=10), manual_clock=True) as listening,
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


@pytest.mark.parametrize("limit", ["max_connections", "max_connections_per_address"])
def test_connections_over_the_limit_are_closed_and_ended_connections_make_room(backend, limit: str) -> None:
    with MemoryListener(backend, limits=limits(**{limit: 3})) as listening:
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


def test_the_memory_of_all_requests_together_is_limited(backend: MemoryBackend) -> None:
    """The service closes connections that send only parts of large requests, and serves the others."""
    allowed = limits(max_held_bytes=4 << 20, max_request_bytes=4 << 20)
    with MemoryListener(backend, limits=allowed) as listening, WireClient(listening.port) as good:
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


def test_a_large_request_is_served_while_idle_clients_hold_all_memory(backend: MemoryBackend) -> None:
    """The service closes the connection that has waited longest for the rest of a large request."""
    with MemoryListener(backend, limits=limits(max_held_bytes=1 << 20)) as listening:
        idle = [WireClient(listening.port) for _ in range(4)]
        for number, client in enumerate(idle, 1):
            client.socket.sendall(struct.pack(">i", 1 << 20) + bytes(250_000))
            assert wait_until(lambda: listening.service.held_bytes > number * 250_000)  # noqa: B023 - called in this turn
        with WireClient(listening.port) as good:
            offsets = {("t", partition): 1 for partition in range(10_000)}
            assert set(commit_errors(good.commit("g", offsets)).values()) == {0}
        assert idle[0].is_disconnected()
        assert not select.select([client.socket for client in idle[1:]], [], [], 0)[0]
        assert wait_until(lambda: listening.service.held_bytes == 3 * 250_004)
        for client in idle:
            client.socket.close()
        assert wait_until(lambda: not listening.service.held_bytes and not listening.service.large_partials)


# --- backpressure -------------------------------------------------------------------------------------


def test_the_connection_reads_no_more_requests_than_may_be_in_flight(backend: MemoryBackend) -> None:
    with MemoryListener(backend, limits=limits(max_in_flight=5)) as listening, WireClient(listening.port) as client:
        release_commits = listening.block_commits()
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


def test_a_backend_with_backpressure_receives_no_more_commits(listening, backend) -> None:
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
    allowed = limits(idle_timeout_s=0.5)
    with MemoryListener(backend, limits=allowed) as listening, WireClient(listening.port) as client:
        client.socket.settimeout(0.2)
        with pytest.raises((TimeoutError, ConnectionError)):
            for _ in range(100_000):
                client.send(FETCH, 5, fetch_message("g"))
        (connection,) = listening.service.connections or [None]
        assert connection is None or connection.unsent < 4 << 20
        assert wait_until(lambda: not listening.service.connections)
        assert listening.service.metrics()['connections_cut_total{why="answers not taken"}'] == 1


def test_the_memory_of_the_unread_responses_of_all_clients_is_limited(backend: MemoryBackend, caplog) -> None:
    backend.offsets["g"] = {"t": {p: (p, -1, "x" * 4000) for p in range(2_000)}}
    with MemoryListener(backend, limits=limits(max_held_bytes=16 << 20)) as listening:
        greedy = [WireClient(listening.port, receive_buffer=64 * 1024) for _ in range(8)]
        for client in greedy:
            client.send(FETCH, 5, fetch_message("g"))
        assert wait_until(lambda: listening.service.metrics().get('connections_cut_total{why="memory"}', 0) >= 4)
        assert wait_until(lambda: sum(one.unsent for one in listening.service.connections) <= 16 << 20)
        assert [vars(one)["why"] for one in caplog.records if one.message == "connections closed"] == ["memory"]
        assert listening.service.connections
        with WireClient(listening.port) as good:
            good.commit("good", {("t", 0): 1})
        for client in greedy:
            client.socket.close()


def test_a_client_that_reads_slowly_is_not_closed(backend: MemoryBackend) -> None:
    backend.offsets["g"] = {"t": {p: (p, -1, "x" * 4000) for p in range(8_000)}}
    with (
        MemoryListener(backend, limits=limits(idle_timeout_s=10), manual_clock=True) as listening,
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
