"""A connection of one client: the order of requests and responses, frames in pieces, and the end of the connection."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import threading

import pytest
from listener_requests import API_VERSIONS, COMMIT, FETCH, FIND_COORDINATOR, block_commits, fetch_message, wait_until
from memory_listener import MemoryBackend, MemoryListener, WireClient, commit_errors, commit_message, read_response
from one_api import FORWARDED, OneApi

from offsetmgr.core.errors import InvalidRequest, Unreachable
from offsetmgr.kafka.protocol.frames import FrameSplitter
from offsetmgr.server.network.api import ApiRequest, Concurrency, HandlerResult
from offsetmgr.server.network.socket_server import ServerListener, SocketServer

pytest_plugins = ["memory_listener_fixtures"]


def test_commits_of_one_connection_run_concurrently_and_a_later_fetch_sees_them(
    listening: MemoryListener, backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    release_commits = block_commits(listening)
    begun: list[str] = []
    commit, fetch = backend._commit_when_allowed, backend.fetch
    monkeypatch.setattr(backend, "_commit_when_allowed", lambda r: begun.append(f"commit {r.group}") or commit(r))
    monkeypatch.setattr(backend, "fetch", lambda r: begun.append(f"fetch {r.group}") or fetch(r))
    with WireClient(listening.port) as client, WireClient(listening.port) as other:
        sent = [client.send(COMMIT, 7, commit_message(group, {("t", 0): 5})) for group in ("a", "b")]
        sent.append(client.send(FETCH, 5, fetch_message("b")))
        sent.append(client.send(COMMIT, 7, commit_message("c", {("t", 0): 6})))

        assert wait_until(lambda: begun == ["commit a", "commit b"])
        assert other.ask(FETCH, 5, fetch_message("b"))["topics"] == [], "another connection does not wait"
        release_commits()

        frames = [client.receive() for _ in sent]
        assert [struct.unpack_from(">i", frame)[0] for frame in frames] == sent
        (topic,) = read_response(FETCH, 5, frames[2])["topics"]
        assert topic["partitions"][0]["committed_offset"] == 5
    assert begun == ["commit a", "commit b", "fetch b", "fetch b", "commit c"]


def test_a_search_for_the_coordinator_does_not_delay_the_commits_behind_it(
    listening: MemoryListener, backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    release_commits = block_commits(listening)
    begun: list[str] = []
    commit = backend._commit_when_allowed
    monkeypatch.setattr(backend, "_commit_when_allowed", lambda r: begun.append(r.group) or commit(r))
    with WireClient(listening.port) as client:
        sent = [client.send(COMMIT, 7, commit_message("a", {("t", 0): 5}))]
        sent.append(client.send(FIND_COORDINATOR, 2, {"key": "b", "key_type": 0}))
        sent.append(client.send(COMMIT, 7, commit_message("b", {("t", 0): 5})))

        assert wait_until(lambda: begun == ["a", "b"])
        release_commits()

        frames = [client.receive() for _ in sent]
        assert [struct.unpack_from(">i", frame)[0] for frame in frames] == sent, (
            "the responses keep the order of the requests"
        )


def test_answers_keep_the_order_of_requests_when_the_later_one_is_ready_first() -> None:
    release: dict[int, asyncio.Future[bytes]] = {}

    def handle(request: ApiRequest) -> HandlerResult:
        release[request.correlation] = asyncio.get_running_loop().create_future()
        return release[request.correlation]

    with OneApi(handle, Concurrency.COMMITS) as (loop, port), WireClient(port) as client:
        for _ in range(3):
            client.send(FORWARDED, 0, b"")
        assert wait_until(lambda: len(release) == 3)
        for correlation in (3, 2, 1):
            loop.call_soon_threadsafe(release[correlation].set_result, b"answer %d" % correlation)
        assert [client.receive()[4:] for _ in range(3)] == [b"answer 1", b"answer 2", b"answer 3"]


def test_frames_are_split_correctly_in_any_chunks() -> None:
    frames = [struct.pack(">i", size) + bytes([size % 256]) * size for size in (8, 9, 100, 5000, 8)]
    data = b"".join(frames)
    for step in (1, 2, 3, 7, 64, 1000, len(data)):
        splitter = FrameSplitter(10_000)
        found = []
        for at in range(0, len(data), step):
            splitter.feed(data[at : at + step])
            while (frame := splitter.next()) is not None:
                found.append(frame)
            assert splitter.held_bytes < 5004
        assert found == frames
        assert splitter.held_bytes == 0


@pytest.mark.parametrize("length", [-1, 0, 7, 10_001, 100 * 1024 * 1024, 2**31 - 1, -(2**31)])
def test_an_invalid_length_is_rejected_immediately(length: int) -> None:
    splitter = FrameSplitter(10_000)
    splitter.feed(struct.pack(">i", length))
    with pytest.raises(InvalidRequest):
        splitter.next()


def test_requests_in_many_small_pieces_and_many_in_one_piece(listening: MemoryListener) -> None:
    with WireClient(listening.port) as client:
        frame = client.frame(COMMIT, 7, b"", 1)
        frame = client.frame(API_VERSIONS, 0, b"", 1)
        for byte in frame:
            client.socket.sendall(bytes([byte]))
        client.receive()
        writer = threading.Thread(target=client.socket.sendall, args=(frame * 5_000,))
        writer.start()
        for _ in range(5_000):
            client.receive()
        writer.join()


def test_a_client_that_stops_sending_is_closed(listening: MemoryListener) -> None:
    with WireClient(listening.port) as client:
        client.ask(API_VERSIONS, 0, {})
        client.socket.shutdown(socket.SHUT_WR)
        assert client.is_disconnected()
    assert wait_until(lambda: not listening.service.connections)


def test_clients_that_disconnect_during_requests_leave_nothing_behind(
    listening: MemoryListener, backend: MemoryBackend
) -> None:
    release_commits = block_commits(listening)
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


def refuses_connections(port: int) -> bool:
    """Whether the port accepts no connections."""
    try:
        WireClient(port).socket.close()
    except ConnectionError:
        return True
    return False


def test_closing_lets_running_requests_finish(backend: MemoryBackend) -> None:
    with MemoryListener(backend) as listening:
        release_commits = block_commits(listening)
        client, idle = WireClient(listening.port), WireClient(listening.port)
        client.send(COMMIT, 7, commit_message("g", {("t", 0): 1}))
        assert wait_until(lambda: any(c.busy for c in listening.service.connections))
        closing = asyncio.run_coroutine_threadsafe(listening.service.close(grace_s=10), listening.loop)
        assert wait_until(lambda: refuses_connections(listening.port))
        release_commits()
        assert commit_errors(read_response(COMMIT, 7, client.receive())) == {("t", 0): 0}
        assert client.is_disconnected()
        assert idle.is_disconnected()
        closing.result(90)


def test_a_port_in_use_is_an_error_that_names_the_port(listening: MemoryListener) -> None:
    async def again() -> None:
        await ServerListener(SocketServer([]), "127.0.0.1", listening.port).start()

    with pytest.raises(Unreachable, match=str(listening.port)):
        listening.run(again())


def test_the_durations_of_requests_are_reported_by_kind(backend: MemoryBackend) -> None:
    seen: list[tuple[str, float]] = []
    with MemoryListener(backend) as listening, WireClient(listening.port) as client:
        listening.service._observe = lambda kind, seconds: seen.append((kind, seconds))
        client.commit("g", {("t", 0): 1})
        client.ask(FETCH, 5, fetch_message("g"))
        client.ask(API_VERSIONS, 0, {})
    assert [kind for kind, _ in seen] == ["commit", "fetch", "other"]
    assert all(0 <= seconds < 60 for _, seconds in seen)
