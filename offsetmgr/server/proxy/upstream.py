"""`UpstreamConnection`: a connection to one broker that forwards the requests of one client's connection unread.

Frames are forwarded unchanged, so the broker sees the client's correlation ids. A broker responds in the order of the
requests. A response is streamed to the client as it arrives (`forward`) or collected whole (`ask`). All upstream
connections read into one shared buffer and write to clients from it, so that fetched records are not copied into new
objects.

If the connection to the broker breaks, the client's connection is closed too, as if the broker had closed it. The
broker may or may not have executed the requests in flight; clients can handle this. There is one exception: if the
client is connected to the manager's own port and no request is in flight (for example if the broker has closed an idle
connection), the client's connection stays open, and the next request opens another upstream connection.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, cast

from offsetmgr.core.errors import InvalidRequest, OffsetMgrError, ServerError, Unreachable
from offsetmgr.kafka.client.connection import BrokerConnection, Security
from offsetmgr.kafka.protocol.frames import Address
from offsetmgr.server.network.requests import ApiRequest, ClientSession

CONNECT_TIMEOUT_S: Final = 10.0
CLOSE_TIMEOUT_S: Final = 10.0
"""How long the broker may take to read the last requests of a disconnected client."""
MAX_COLLECTED_BYTES: Final = 256 * 1024 * 1024
"""Maximum size of a response that is collected whole. Streamed responses may have any size."""
HEAD_BYTES: Final = 64
"""Number of bytes that contain the header of a response and the first fields of its body."""

_START: Final = struct.Struct(">ii")
_BUFFER_BYTES: Final = 512 * 1024
_MAX_UNSENT_BYTES: Final = 1024 * 1024
"""Size of unsent requests above which the upstream connection applies backpressure to the client."""


class ReadBuffer:
    """The buffer that all upstream connections of one event loop use for reading, one at a time."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(_BUFFER_BYTES))

    def renew(self) -> None:
        """Allocates a new buffer, because a client's transport may still refer to the current one."""
        self.view = memoryview(bytearray(_BUFFER_BYTES))


class ForwardedResponse:
    """The response to a forwarded request, which is streamed to the client; implements `api.Stream`."""

    __slots__ = ("_upstream", "correlation", "end", "head", "lost", "on_head", "pause", "resume")

    def __init__(self, upstream: UpstreamConnection, correlation: int, on_head: Callable[[bytes], None] | None) -> None:
        self._upstream = upstream
        self.pause, self.resume, self.lost = upstream.pause, upstream.resume, upstream.release
        self.correlation = correlation
        self.end: Callable[[], None] | None = None
        self.on_head = on_head
        self.head = b""

    def begin(self, client: ClientSession, end: Callable[[], None]) -> None:
        self.end = end
        self._upstream.on_stream_begin(client)


@dataclass(slots=True, eq=False)
class _ResponseBuffer:
    """A response that is being collected whole."""

    correlation: int
    future: asyncio.Future[bytes]
    parts: list[bytes] = field(default_factory=list)


class UpstreamConnection(asyncio.BufferedProtocol):
    """A connection to one broker. The constructor starts to connect; requests wait until the connection is open. Use it
    in one event loop."""

    def __init__(self, client: ClientSession, address: Address, security: Security, buffer: ReadBuffer) -> None:
        self.address = address
        self._client = client
        self._buffer = buffer
        self._transport: asyncio.Transport | None = None
        self._owner: BrokerConnection | None = None
        self._unsent: list[bytes] = []
        self._expected: deque[ForwardedResponse | _ResponseBuffer] = deque()
        self._head = b""
        """The received bytes of a frame whose length field and correlation id have not arrived completely."""
        self._missing_bytes = 0
        """Number of bytes of the current frame that have not arrived."""
        self._early_bytes = b""
        """Bytes of a response that have been received but cannot be streamed yet, because the earlier responses have
        not all been sent to the client."""
        self._processing = False
        self._paused = False
        self.capacity: asyncio.Future[None] | None = asyncio.get_running_loop().create_future()
        """A future that completes when the connection is open and the broker has caught up; None while the broker reads
        requests fast enough."""
        self._kept_bytes = 0
        """Size of the requests that are still to be sent although the client has disconnected."""
        self._has_oneway = False
        """Whether a request without a response was queued before the connection was open."""
        self.closed = False
        self._abort_timer: asyncio.TimerHandle | None = None
        self._connecting = asyncio.ensure_future(self._connect(security))

    # --- requests ------------------------------------------------------------------------------------

    def forward(self, request: ApiRequest, on_head: Callable[[bytes], None] | None = None) -> ForwardedResponse:
        """Forwards the request; returns its response, which is streamed to the client. ``on_head`` gets the first
        bytes of the response, at least `HEAD_BYTES` of a longer response. It may raise `InvalidRequest`."""
        answer = ForwardedResponse(self, request.correlation, on_head)
        self._expected.append(answer)
        self._send(request.frame)
        return answer

    def send_oneway(self, request: ApiRequest) -> None:
        """Forwards a request to which the broker does not respond (Produce with acks=0)."""
        self._has_oneway = self._has_oneway or self._transport is None
        self._send(request.frame)

    def ask(self, request: ApiRequest) -> asyncio.Future[bytes]:
        """Forwards the request; returns the whole response, its length field first. Raises `Unreachable`."""
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if self.closed:
            future.set_exception(self._connection_lost())
        else:
            self._expected.append(_ResponseBuffer(request.correlation, future))
            self._send(request.frame)
            self.resume()
        return future

    def release(self) -> None:
        """Closes the connection after the client has disconnected. Queued requests are still sent, because a producer
        with acks=0 disconnects right after its last record. They still count as held memory."""
        if self.closed:
            return
        if self._transport is not None:
            self._kept_bytes = self._transport.get_write_buffer_size()
            self._close_gracefully(self._transport)
        elif self._has_oneway:
            self._kept_bytes = sum(map(len, self._unsent))
        else:
            self._connecting.cancel()
        self._client.service.held_bytes += self._kept_bytes
        self._end()

    def close(self) -> None:
        """Closes the connection at once; requests in flight fail."""
        if not self.closed:
            self._connecting.cancel()
            if self._transport is not None:
                self._transport.abort()
            self._end()

    def _close_gracefully(self, transport: asyncio.Transport) -> None:
        transport.close()
        self._abort_timer = asyncio.get_running_loop().call_later(CLOSE_TIMEOUT_S, transport.abort)

    def _end(self) -> None:
        self.closed = True
        self.resume_writing()
        expected, self._expected = self._expected, deque()
        for answer in expected:
            if isinstance(answer, _ResponseBuffer) and not answer.future.done():
                answer.future.set_exception(self._connection_lost())
                answer.future.exception()  # retrieves the exception, since the caller may have stopped waiting

    # --- connecting ---------------------------------------------------------------------------------

    async def _connect(self, security: Security) -> None:
        try:
            # If versions are passed, `open` sends no ApiVersions request. The response would not be used here.
            self._owner = await BrokerConnection.open(self.address, security, CONNECT_TIMEOUT_S, {})
            self._transport = await self._owner.hand_over(self)
        except OffsetMgrError:
            self._abort()
            return
        if self.closed and not self._has_oneway:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(_MAX_UNSENT_BYTES)
        unsent, self._unsent = self._unsent, []
        for frame in unsent:
            self._transport.write(frame)
        if self.closed:
            self._close_gracefully(self._transport)
        elif self._paused:
            self._transport.pause_reading()
        if self._transport.get_write_buffer_size() <= _MAX_UNSENT_BYTES:
            self.resume_writing()

    def _send(self, frame: bytes) -> None:
        if self._transport is not None:
            self._transport.write(frame)
        elif not self.closed:
            self._unsent.append(frame)

    def _connection_lost(self) -> Unreachable:
        return Unreachable(f"broker {self.address}", "the connection broke")

    def _abort(self) -> None:
        self._drop_kept()
        self._unsent.clear()
        self.close()
        self._client.abort()

    def _drop_kept(self) -> None:
        if self._kept_bytes:
            self._client.service.held_bytes -= self._kept_bytes
            self._kept_bytes = 0

    # --- called by the transport ---------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - always the whole buffer
        return self._buffer.view

    def buffer_updated(self, nbytes: int) -> None:
        if self.closed:
            return
        if self._early_bytes:
            self._early_bytes += bytes(self._buffer.view[:nbytes])
            return
        self._process(self._buffer.view[:nbytes])
        if self._client.unsent:
            # The client's transport may keep a reference to bytes that it could not send.
            self._buffer.renew()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the reason makes no difference
        self._drop_kept()
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        if self.closed:
            return
        if self._expected or self._client.node_id is not None:
            self._abort()
        else:
            self.close()

    def pause_writing(self) -> None:
        if self.capacity is None:
            self.capacity = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        capacity, self.capacity = self.capacity, None
        if capacity is not None and not capacity.done():
            capacity.set_result(None)

    # --- responses -----------------------------------------------------------------------------------

    def on_stream_begin(self, client: ClientSession) -> None:
        """Starts the first response, because all earlier responses to the client have been sent."""
        if self._early_bytes and not self._processing:
            held, self._early_bytes = self._early_bytes, b""
            self._process(memoryview(held))
        # The previous response may have filled the client's socket. In this case, the client's connection has called
        # `pause` only on the previous response, so this response must pause itself.
        (self.resume if client.stalled_since is None else self.pause)()

    def pause(self) -> None:
        self._paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        self._paused = bool(self._early_bytes)
        if self._transport is not None and not self._paused:
            self._transport.resume_reading()

    def _process(self, data: memoryview) -> None:
        """Distributes the received bytes to the pending responses."""
        self._processing = True
        at, end = 0, len(data)
        try:
            while at < end and not self.closed:
                if not self._missing_bytes:
                    at = self._begin_frame(data, at)
                    continue
                answer = self._expected[0]
                if isinstance(answer, ForwardedResponse) and answer.end is None:
                    self._early_bytes = bytes(data[at:])
                    self.pause()
                    return
                piece = data[at : at + self._missing_bytes]
                at += len(piece)
                self._deliver(answer, piece)
        except (ServerError, InvalidRequest):
            self._abort()
        finally:
            self._processing = False

    def _begin_frame(self, data: memoryview, at: int) -> int:
        """Reads the length and the correlation id of the next frame. Returns the position at which processing
        continues."""
        start = bytes(data[at : at + _START.size - len(self._head)])
        head = self._head + start
        if len(head) < _START.size:
            self._head = head
            return at + len(start)
        length, correlation = _START.unpack(head)
        answer = self._expected[0] if self._expected else None
        if answer is None or answer.correlation != correlation or length < 4:
            raise ServerError(f"broker {self.address}", "its response matches no request in flight")
        if isinstance(answer, _ResponseBuffer) and length > MAX_COLLECTED_BYTES:
            raise ServerError(f"broker {self.address}", f"its response of {length} bytes is too large")
        self._missing_bytes = 4 + length
        if not self._head:
            return at
        self._head = b""
        if isinstance(answer, ForwardedResponse) and answer.end is None:
            self._early_bytes = head + bytes(data[at + len(start) :])
            self.pause()
            return len(data)
        self._deliver(answer, memoryview(head))
        return at + len(start)

    def _deliver(self, answer: ForwardedResponse | _ResponseBuffer, piece: memoryview) -> None:
        self._missing_bytes -= len(piece)
        if isinstance(answer, ForwardedResponse):
            if answer.on_head is not None:
                answer.head += bytes(piece[:HEAD_BYTES])
                if len(answer.head) >= HEAD_BYTES or not self._missing_bytes:
                    answer.on_head(answer.head)
                    answer.on_head = None
            self._client.write(piece)
            if not self._missing_bytes:
                self._expected.popleft()
                cast(Callable[[], None], answer.end)()
        else:
            answer.parts.append(bytes(piece))
            self._client.collected_bytes += len(piece)
            if not self._missing_bytes:
                self._client.collected_bytes -= sum(map(len, answer.parts))
                self._expected.popleft()
                if not answer.future.done():
                    answer.future.set_result(b"".join(answer.parts))
