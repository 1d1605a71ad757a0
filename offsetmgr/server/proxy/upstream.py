"""`UpstreamConnection`: one connection to one broker, opened for one client's connection, which carries its requests
unread.

Frames are forwarded unchanged, so the broker sees the client's own correlation ids, and responds in the order of the
requests. A response is either streamed to the client as it arrives (`forward`) or collected whole (`ask`). All upstream
connections read into one shared buffer and write from there: no bytes object is created for a fetched record.

If the connection to the broker breaks, the client's connection is closed, as the broker's own would be: its requests
may or may not have been carried out, and clients handle that. Only a connection to the manager itself survives the loss
of an unused upstream connection (which the broker closed as idle): the next request opens another.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from typing import TYPE_CHECKING, Final, cast

from offsetmgr.core.errors import OffsetMgrError, ServerError, Unreachable
from offsetmgr.kafka.client.connection import BrokerConnection
from offsetmgr.kafka.client.security import Security
from offsetmgr.kafka.protocol.channel import Address
from offsetmgr.server.network.api import ApiRequest, Sink

if TYPE_CHECKING:
    from offsetmgr.server.network.api import ClientConnection

DIAL_S: Final = 10.0
PARTING_S: Final = 10.0
"""How long a broker may take to receive the requests of a disconnected client."""
LARGEST_ANSWER: Final = 256 * 1024 * 1024
"""Maximum size of a response that is collected whole. Streamed responses may have any size."""

_START: Final = struct.Struct(">ii")
_BUFFER_BYTES: Final = 512 * 1024
_MOST_UNSENT: Final = 1024 * 1024
"""Bytes of requests that the broker has not taken yet, above which reading from the client stops."""


class ReadBuffer:
    """The memory that all upstream connections of one event loop read into, one after the other."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(_BUFFER_BYTES))

    def renew(self) -> None:
        """Allocates another buffer, because the transport may still refer to the present one."""
        self.view = memoryview(bytearray(_BUFFER_BYTES))


class ForwardedResponse:
    """The response to a forwarded request: see `api.Stream`."""

    __slots__ = ("_upstream", "correlation", "sink")

    def __init__(self, upstream: UpstreamConnection, correlation: int) -> None:
        self._upstream = upstream
        self.correlation = correlation
        self.sink: Sink | None = None

    def begin(self, sink: Sink) -> None:
        self.sink = sink
        self._upstream.begun(sink)

    def pause(self) -> None:
        self._upstream.pause()

    def resume(self) -> None:
        self._upstream.resume()

    def lost(self) -> None:
        self._upstream.release()


class _ResponseBuffer:
    """A response that is collected whole."""

    __slots__ = ("correlation", "future", "parts")

    def __init__(self, correlation: int, future: asyncio.Future[bytes]) -> None:
        self.correlation = correlation
        self.future = future
        self.parts: list[bytes] = []


class UpstreamConnection(asyncio.BufferedProtocol):
    """Connects when it is created; requests sent before that wait. Use it in one event loop."""

    def __init__(self, client: ClientConnection, address: Address, security: Security, buffer: ReadBuffer) -> None:
        self.address = address
        self._client = client
        self._buffer = buffer
        self._transport: asyncio.Transport | None = None
        self._owner: BrokerConnection | None = None
        self._unsent: list[bytes] = []
        self._expected: deque[ForwardedResponse | _ResponseBuffer] = deque()
        self._head = b""
        """The first bytes of a frame, while they are too few to contain its length."""
        self._left = 0
        """Missing bytes of the present frame."""
        self._held = b""
        """Received bytes of a response whose turn has not come yet."""
        self._taking = False
        self._paused = False
        self._capacity: asyncio.Future[None] | None = None
        self._posted = False
        """Whether requests without a response wait for the connection."""
        self._closed = False
        self._dialling = asyncio.ensure_future(self._dial(security))

    # --- requests ------------------------------------------------------------------------------------

    def forward(self, request: ApiRequest) -> ForwardedResponse:
        """Forwards the request; its response goes to the client as it arrives."""
        answer = ForwardedResponse(self, request.correlation)
        self._expected.append(answer)
        self._send(request.frame)
        return answer

    def post(self, request: ApiRequest) -> None:
        """Forwards a request to which the broker does not respond (Produce with acks=0)."""
        self._posted = self._posted or self._transport is None
        self._send(request.frame)

    def ask(self, request: ApiRequest) -> asyncio.Future[bytes]:
        """Forwards the request; returns the whole response, its length field first. Raises `Unreachable`."""
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if self._closed:
            future.set_exception(self._gone())
        else:
            self._expected.append(_ResponseBuffer(request.correlation, future))
            self._send(request.frame)
            self.resume()
        return future

    def backpressure(self) -> asyncio.Future[None] | None:
        """None while the broker takes requests as fast as they arrive; else a future that completes when it does."""
        return self._capacity

    @property
    def closed(self) -> bool:
        return self._closed

    def release(self) -> None:
        """The client has disconnected. Its requests are still sent, as from its own socket: a producer without
        acknowledgements disconnects after its last record."""
        if not self._closed:
            if self._transport is not None:
                self._part(self._transport)
            elif not self._posted:
                self._dialling.cancel()
            self._forget()

    def close(self) -> None:
        """Closes the connection at once; open requests fail."""
        if not self._closed:
            self._dialling.cancel()
            if self._transport is not None:
                self._transport.abort()
            self._forget()

    def _part(self, transport: asyncio.Transport) -> None:
        transport.close()
        asyncio.get_running_loop().call_later(PARTING_S, transport.abort)

    def _forget(self) -> None:
        self._closed = True
        self.resume_writing()
        expected, self._expected = self._expected, deque()
        for answer in expected:
            if isinstance(answer, _ResponseBuffer) and not answer.future.done():
                answer.future.set_exception(self._gone())
                answer.future.exception()  # retrieved: the caller may be gone too

    # --- connecting ---------------------------------------------------------------------------------

    async def _dial(self, security: Security) -> None:
        try:
            # The versions are already known; {} avoids the request.
            self._owner = await BrokerConnection.open(self.address, security, DIAL_S, {})
            self._transport = await self._owner.hand_over(self)
        except OffsetMgrError:
            self._break_off()
            return
        if self._closed and not self._posted:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(_MOST_UNSENT)
        unsent, self._unsent = self._unsent, []
        for frame in unsent:
            self._transport.write(frame)
        if self._closed:
            self._part(self._transport)
        elif self._paused:
            self._transport.pause_reading()

    def _send(self, frame: bytes) -> None:
        if self._transport is not None:
            self._transport.write(frame)
        elif not self._closed:
            self._unsent.append(frame)

    def _gone(self) -> Unreachable:
        return Unreachable(f"broker {self.address}", "the connection broke")

    def _break_off(self) -> None:
        self._unsent.clear()
        self.close()
        self._client.abort()

    # --- called by the transport ---------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - as much as there is room for
        return self._buffer.view

    def buffer_updated(self, nbytes: int) -> None:
        if self._closed:
            return
        if self._held:
            self._held += bytes(self._buffer.view[:nbytes])
            return
        self._take(self._buffer.view[:nbytes])
        if self._client.unsent:
            # The transport may keep a reference to bytes that it could not send.
            self._buffer.renew()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - why makes no difference
        if self._closed:
            return
        if self._expected or self._client.listener.node_id is not None:
            self._break_off()
        else:
            self.close()

    def pause_writing(self) -> None:
        self._capacity = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        capacity, self._capacity = self._capacity, None
        if capacity is not None and not capacity.done():
            capacity.set_result(None)

    # --- responses -----------------------------------------------------------------------------------

    def begun(self, sink: Sink) -> None:
        """The first response's turn has come."""
        if self._held and not self._taking:
            held, self._held = self._held, b""
            self._take(memoryview(held))
        # The previous response may have filled the client's socket, and its resume is not reported here.
        (self.pause if sink.full else self.resume)()

    def pause(self) -> None:
        self._paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        self._paused = bool(self._held)
        if self._transport is not None and not self._paused:
            self._transport.resume_reading()

    def _take(self, data: memoryview) -> None:
        """Distributes the received bytes."""
        self._taking = True
        at, end = 0, len(data)
        try:
            while at < end and not self._closed:
                if not self._left:
                    at = self._begin_frame(data, at)
                    continue
                answer = self._expected[0]
                if isinstance(answer, ForwardedResponse) and answer.sink is None:
                    self._held = bytes(data[at:])
                    self.pause()
                    return
                piece = data[at : at + self._left]
                at += len(piece)
                self._give(answer, piece)
        except ServerError:
            self._break_off()
        finally:
            self._taking = False

    def _begin_frame(self, data: memoryview, at: int) -> int:
        """Reads the next frame's length; returns the position of its remaining bytes (of its beginning, if all of it is
        here)."""
        start = bytes(data[at : at + _START.size - len(self._head)])
        head = self._head + start
        if len(head) < _START.size:
            self._head = head
            return at + len(start)
        length, correlation = _START.unpack(head)
        answer = self._expected[0] if self._expected else None
        if answer is None or answer.correlation != correlation or length < 4:
            raise ServerError(f"broker {self.address}", "its response does not belong to the request")
        if isinstance(answer, _ResponseBuffer) and length > LARGEST_ANSWER:
            raise ServerError(f"broker {self.address}", f"an answer of {length} bytes")
        self._left = 4 + length
        if not self._head:
            return at
        self._head = b""
        if isinstance(answer, ForwardedResponse) and answer.sink is None:
            self._held = head + bytes(data[at + len(start) :])
            self.pause()
            return len(data)
        self._give(answer, memoryview(head))
        return at + len(start)

    def _give(self, answer: ForwardedResponse | _ResponseBuffer, piece: memoryview) -> None:
        self._left -= len(piece)
        if isinstance(answer, ForwardedResponse):
            sink = cast(Sink, answer.sink)
            sink.write(piece)
            if not self._left:
                self._expected.popleft()
                sink.end()
        else:
            answer.parts.append(bytes(piece))
            if not self._left:
                self._expected.popleft()
                if not answer.future.done():
                    answer.future.set_result(b"".join(answer.parts))
