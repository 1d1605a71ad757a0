"""The relay forwards a broker's responses byte for byte, in any chunks, when the client's turn comes."""

from __future__ import annotations

import asyncio
import struct
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from async_tests import async_test
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.kafka.client.connection import Security
from offsetmgr.kafka.protocol.frames import Address
from offsetmgr.server.network.requests import ApiRequest
from offsetmgr.server.proxy import upstream
from offsetmgr.server.proxy.upstream import ForwardedResponse, ReadBuffer, UpstreamConnection


class Client:
    """The client's connection, as far as an upstream connection uses it."""

    def __init__(self) -> None:
        self.node_id: int | None = 1
        self.unsent = self.collected_bytes = 0
        self.service = SimpleNamespace(held_bytes=0)
        self.aborted = False
        self.stalled_since: float | None = None
        self.data = b""

    def abort(self) -> None:
        self.aborted = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += bytes(data)


class Unconnected(UpstreamConnection):
    """An upstream connection that receives its bytes from the test."""

    async def _connect(self, security: Security) -> None:
        pass

    def receive(self, data: bytes) -> None:
        while data:
            view = self.get_buffer(-1)
            size = min(len(view), len(data))
            view[:size] = data[:size]
            self.buffer_updated(size)
            data = data[size:]


class Exchange:
    def __init__(self) -> None:
        self.client = Client()
        self.upstream = Unconnected(cast(Any, self.client), Address("x", 1), Security(), ReadBuffer())
        self.answers: list[bytes] = []
        self.waiting: list[ForwardedResponse] = []

    def forward(self, correlation: int) -> ForwardedResponse:
        answer = self.upstream.forward(request(correlation))
        self.waiting.append(answer)
        return answer

    def begin_next(self) -> None:
        if self.waiting:
            self.waiting.pop(0).begin(cast(Any, self.client), self.on_end)

    def on_end(self) -> None:
        """Begins the next response after the end of one, as a pipeline does."""
        self.answers.append(self.client.data)
        self.client.data = b""
        self.begin_next()


def request(correlation: int) -> ApiRequest:
    connection: Any = None
    return ApiRequest(connection, struct.pack(">ihhih", 10, 1, 4, correlation, -1))


def frame(correlation: int, body: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(body), correlation) + body


BODIES = st.lists(st.binary(max_size=40), min_size=1, max_size=6)


@given(BODIES, st.lists(st.integers(1, 60), max_size=60), st.integers(0, 8))
@async_test
async def test_frames_arrive_complete_and_in_order_in_any_chunks(bodies, cuts: list[int], begins_after: int) -> None:
    """The turn of the first response may come late: the connection keeps the bytes received before."""

    exchange = Exchange()
    for number in range(len(bodies)):
        exchange.forward(number)
    sent = b"".join(frame(number, body) for number, body in enumerate(bodies))
    pieces, at = [], 0
    for size in cuts:
        pieces.append(sent[at : at + size])
        at += size
    pieces.append(sent[at:])
    for number, piece in enumerate(pieces):
        if number == begins_after:
            exchange.begin_next()
        exchange.upstream.receive(piece)
    if begins_after >= len(pieces):
        exchange.begin_next()
    assert exchange.answers == [frame(number, body) for number, body in enumerate(bodies)]
    assert not exchange.client.aborted


@given(st.lists(st.integers(1, 9), max_size=20))
@async_test
async def test_responses_for_the_manager_are_collected_between_forwarded_ones(cuts: list[int]) -> None:
    exchange = Exchange()
    exchange.forward(1)
    exchange.begin_next()
    read = exchange.upstream.ask(request(2))
    exchange.forward(3)
    sent = frame(1, b"one") + frame(2, b"two") + frame(3, b"three")
    for size in [*cuts, len(sent)]:
        piece, sent = sent[:size], sent[size:]
        exchange.upstream.receive(piece)
        collected = 11 - (len(sent) - len(frame(3, b"three")))  # of the second response
        assert exchange.client.collected_bytes in ({collected, 0} if 8 <= collected < 11 else {0}), "counts as memory"
    assert await read == frame(2, b"two")
    assert exchange.answers[0] == frame(1, b"one")
    assert exchange.answers[1:] == [frame(3, b"three")]


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(frame(8, b""), id="an answer without a request"),
        pytest.param(struct.pack(">ii", 3, 7), id="a length that is too short"),
        pytest.param(struct.pack(">ii", -1, 7), id="a negative length"),
        pytest.param(frame(7, b"x") + frame(7, b"x"), id="one answer too many"),
    ],
)
@async_test
async def test_a_malformed_response_closes_both_connections(sent: bytes) -> None:
    exchange = Exchange()
    exchange.forward(7)
    exchange.begin_next()
    exchange.upstream.receive(sent)
    assert (exchange.upstream.closed, exchange.client.aborted) == (True, True)


def test_an_idle_connection_that_the_broker_closes_does_not_disconnect_the_managers_clients() -> None:
    async def run(node_id: int | None) -> bool:
        exchange = Exchange()
        exchange.client.node_id = node_id
        exchange.upstream.connection_lost(None)
        return exchange.client.aborted

    assert (asyncio.run(run(None)), asyncio.run(run(3))) == (False, True)


@pytest.mark.parametrize("lost", [False, True])
@async_test
async def test_only_a_connection_that_does_not_end_in_time_is_aborted(lost: bool, monkeypatch) -> None:
    monkeypatch.setattr(upstream, "CLOSE_TIMEOUT_S", 0.0)
    connection = Exchange().upstream
    transport = connection._transport = Mock(get_write_buffer_size=lambda: 5)
    connection.release()
    if lost:
        connection.connection_lost(None)
    for _ in range(3):  # turns of the event loop
        await asyncio.sleep(0)
    assert transport.abort.called is not lost


@async_test
async def test_unsent_bytes_are_not_overwritten_by_the_next_ones() -> None:
    exchange = Exchange()
    exchange.forward(1)
    exchange.begin_next()
    kept: list[memoryview] = []
    exchange.client.write = lambda data: kept.append(memoryview(data))  # type: ignore[method-assign]
    exchange.client.unsent = 5
    exchange.upstream.receive(frame(1, b"a" * 100)[:50])
    exchange.upstream.receive(frame(1, b"b" * 100)[50:])
    assert b"".join(kept) == frame(1, b"a" * 42 + b"b" * 58)
