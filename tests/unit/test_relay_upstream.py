"""What a broker sends arrives byte for byte, however the network cuts it, and in the client's own time."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offsetmgr.core.errors import Unreachable
from offsetmgr.kafka.client.security import Security
from offsetmgr.kafka.protocol.channel import Address
from offsetmgr.server.network.api import ApiRequest
from offsetmgr.server.proxy.upstream import ForwardedResponse, ReadBuffer, UpstreamConnection


class Listener:
    node_id: int | None = 1


class Client:
    """The client's connection, as far as an upstream knows it."""

    def __init__(self) -> None:
        self.listener = Listener()
        self.unsent = 0
        self.was_cut = False

    def abort(self) -> None:
        self.was_cut = True


class Sink:
    """Where a streamed answer goes; the next one begins when it ends, as in a pipeline."""

    def __init__(self, story: Story, full: bool = False) -> None:
        self.story = story
        self.full = full
        self.data = b""
        self.ended = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.ended
        self.data += bytes(data)

    def end(self) -> None:
        self.ended = True
        self.story.answers.append(self.data)
        self.story.begin_next()

    def abort(self) -> None:
        raise AssertionError


class Unconnected(UpstreamConnection):
    """Its bytes come from the test."""

    async def _connect(self, security: Security) -> None:
        pass

    def receive(self, data: bytes) -> None:
        while data:
            view = self.get_buffer(-1)
            size = min(len(view), len(data))
            view[:size] = data[:size]
            self.buffer_updated(size)
            data = data[size:]


class Story:
    def __init__(self) -> None:
        self.client = Client()
        whoever: Any = self.client
        self.upstream = Unconnected(whoever, Address("x", 1), Security(), ReadBuffer())
        self.answers: list[bytes] = []
        self.waiting: list[ForwardedResponse] = []
        self.sinks: list[Sink] = []

    def forward(self, correlation: int) -> ForwardedResponse:
        answer = self.upstream.forward(request(correlation))
        self.waiting.append(answer)
        return answer

    def begin_next(self) -> None:
        if self.waiting:
            self.sinks.append(Sink(self))
            self.waiting.pop(0).begin(self.sinks[-1])


def request(correlation: int) -> ApiRequest:
    connection: Any = None
    return ApiRequest(connection, struct.pack(">ihhih", 10, 1, 4, correlation, -1))


def frame(correlation: int, body: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(body), correlation) + body


BODIES = st.lists(st.binary(max_size=40), min_size=1, max_size=6)


@given(BODIES, st.lists(st.integers(1, 60), max_size=60), st.integers(0, 8))
def test_frames_arrive_whole_and_in_order_however_they_are_cut(
    bodies: list[bytes], cuts: list[int], begins_after: int
) -> None:
    """The first answer's turn may come late: what was sent by then is kept."""

    async def run() -> None:
        story = Story()
        for number in range(len(bodies)):
            story.forward(number)
        sent = b"".join(frame(number, body) for number, body in enumerate(bodies))
        pieces, at = [], 0
        for size in cuts:
            pieces.append(sent[at : at + size])
            at += size
        pieces.append(sent[at:])
        for number, piece in enumerate(pieces):
            if number == begins_after:
                story.begin_next()
            story.upstream.receive(piece)
        if begins_after >= len(pieces):
            story.begin_next()
        assert story.answers == [frame(number, body) for number, body in enumerate(bodies)]
        assert not story.client.was_cut

    asyncio.run(run())


@given(st.lists(st.integers(1, 9), max_size=20))
def test_answers_that_are_read_are_collected_between_those_that_pass(cuts: list[int]) -> None:
    async def run() -> None:
        story = Story()
        story.forward(1)
        story.begin_next()
        read = story.upstream.ask(request(2))
        story.forward(3)
        sent = frame(1, b"one") + frame(2, b"two") + frame(3, b"three")
        for size in [*cuts, len(sent)]:
            piece, sent = sent[:size], sent[size:]
            story.upstream.receive(piece)
        assert await read == frame(2, b"two")
        assert story.answers[0] == frame(1, b"one")
        assert story.answers[1:] == [frame(3, b"three")]

    asyncio.run(run())


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(frame(8, b""), id="an answer to nothing that was asked"),
        pytest.param(struct.pack(">ii", 3, 7), id="a length that is too short"),
        pytest.param(struct.pack(">ii", -1, 7), id="a negative length"),
        pytest.param(frame(7, b"x") + frame(7, b"x"), id="one answer too many"),
    ],
)
def test_a_malformed_response_closes_both_connections(sent: bytes) -> None:
    async def run() -> None:
        story = Story()
        story.forward(7)
        story.begin_next()
        story.upstream.receive(sent)
        assert (story.upstream.closed, story.client.was_cut) == (True, True)

    asyncio.run(run())


def test_a_broken_connection_fails_the_requests_in_flight() -> None:
    async def run() -> None:
        story = Story()
        asked = story.upstream.ask(request(7))
        story.upstream.connection_lost(None)
        with pytest.raises(Unreachable):
            await asked
        with pytest.raises(Unreachable):
            await story.upstream.ask(request(8))
        assert story.client.was_cut

    asyncio.run(run())


def test_an_idle_connection_that_the_broker_closes_does_not_cost_the_managers_clients_theirs() -> None:
    async def run(node_id: int | None) -> bool:
        story = Story()
        story.client.listener.node_id = node_id
        story.upstream.connection_lost(None)
        return story.client.was_cut

    assert (asyncio.run(run(None)), asyncio.run(run(3))) == (False, True)


def test_what_the_socket_could_not_take_is_not_overwritten_by_what_comes_next() -> None:
    async def run() -> None:
        story = Story()
        story.forward(1)
        story.begin_next()
        kept: list[memoryview] = []
        story.sinks[0].write = lambda data: kept.append(memoryview(data))  # type: ignore[method-assign]
        story.client.unsent = 5
        story.upstream.receive(frame(1, b"a" * 100)[:50])
        story.upstream.receive(frame(1, b"b" * 100)[50:])
        assert b"".join(kept) == frame(1, b"a" * 42 + b"b" * 58)

    asyncio.run(run())
