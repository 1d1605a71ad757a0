"""The kinds of responses of a handler: a frame, no response, a final response, an error, and a stream."""

from __future__ import annotations

import asyncio
import struct

import pytest
from listener_requests import wait_until
from memory_listener import WireClient
from one_api import FORWARDED, OneApi

from offsetmgr.core.errors import InvalidRequest
from offsetmgr.server.network.api import (
    CLOSE_CONNECTION,
    ApiRequest,
    Concurrency,
    FinalResponse,
    Frame,
    HandlerResult,
    Sink,
)


def test_a_forwarded_frame_is_sent_unchanged_and_none_sends_no_response() -> None:
    def handle(request: ApiRequest) -> HandlerResult:
        return None if request.version == 1 else Frame(request.frame)

    with OneApi(handle, Concurrency.FORWARDED) as (_, port), WireClient(port) as client:
        client.send(FORWARDED, 1, b"one")
        client.send(FORWARDED, 2, b"two")
        assert client.receive() == client.frame(FORWARDED, 2, b"two", 2)[4:]


def test_a_final_response_and_close_connection_close_after_earlier_responses() -> None:
    def handle(request: ApiRequest) -> HandlerResult:
        results: dict[int, HandlerResult] = {1: b"first", 2: FinalResponse(b"last"), 3: CLOSE_CONNECTION}
        return results[request.version]

    for version, expected in ((2, [b"first", b"last"]), (3, [b"first"])):
        with OneApi(handle) as (_, port), WireClient(port) as client:
            for sent_version in (1, version, 1):
                client.send(FORWARDED, sent_version, b"")
            assert [client.receive()[4:] for _ in expected] == expected
            assert client.is_disconnected()


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

    with OneApi(handle) as (_, port), WireClient(port) as good:
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
        self._sink: Sink

    def begin(self, sink: Sink) -> None:
        self.calls.append("begin")
        self._sink = sink
        sink.write(self._head)
        self._loop.call_soon(self._more)

    def _more(self) -> None:
        if self._paused or self._over:
            return
        if self._left == 0:
            self._over = True
            self._sink.end()
            return
        self._left -= 1
        self.written += len(self._piece)
        self._sink.write(self._piece)
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


def test_streams_are_written_one_after_the_other_in_order() -> None:
    streams: list[Pieces] = []

    def handle(request: ApiRequest) -> HandlerResult:
        if request.version == 1:
            return b"not streamed"
        streams.append(Pieces(asyncio.get_running_loop(), request.correlation, request.version))
        return streams[-1]

    with OneApi(handle, Concurrency.FORWARDED) as (_, port), WireClient(port) as client:
        for version in (3, 5, 1, 4):
            client.send(FORWARDED, version, b"")
        assert [len(client.receive()) - 4 for _ in range(4)] == [3072, 5120, 12, 4096]
    assert [stream.calls for stream in streams] == [["begin"]] * 3


@pytest.mark.slow
def test_a_stream_pauses_while_the_client_does_not_read_and_is_lost_when_the_client_disconnects() -> None:
    streams: list[Pieces] = []

    def handle(request: ApiRequest) -> HandlerResult:
        streams.append(Pieces(asyncio.get_running_loop(), request.correlation, 200, 1 << 20))
        return streams[-1]

    with OneApi(handle, Concurrency.FORWARDED) as (_, port):
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
