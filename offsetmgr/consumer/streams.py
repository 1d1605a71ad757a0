"""Streams of messages, and the state of each partition behind them: delivered, finished and waiting messages.

One lock guards all of it, so that "stop delivering" is one moment for all streams. No I/O.

A message counts as finished when its reader asks the stream for the next one (or commits): until then it is the
reader's current message. Only finished messages are committed automatically, so a process that dies repeats messages
and loses none. The old consumer counts a message when it delivers it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import Offset, TopicPartition

_LOOK_S: Final = 0.05
"""The interval at which a reader that waits for the lease checks it again."""


class _Marks(threading.local):
    """One object for each thread, because `threading.get_ident` may return the number of an ended thread."""

    def __init__(self) -> None:
        self.mine = object()


_MARKS: Final = _Marks()


class StreamMessage(NamedTuple):
    """One message. ``timestamp_ms`` is milliseconds since 1970, None if the message has none."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(eq=False, slots=True)
class PartitionProgress:
    """One owned partition. All offsets are those of the next message.

    ``fetched`` is the end of the messages in the stream, ``handed`` of those that readers have received, ``done`` of
    those that may be committed; ``known`` is the store's offset at the last read or write, ``committed_at`` the time of
    the last write (seconds of the monotonic clock; None: not yet by this member). ``gap`` is a gap in the log that has
    been passed over: once all messages before it are finished, the offset after it may be committed.
    """

    partition: TopicPartition
    stream: MessageStream
    fetched: int
    handed: int
    done: int
    known: Offset
    stopped: bool = False
    committed_at: float | None = None
    gap: tuple[int, int] | None = None

    def pass_gap(self) -> None:
        """Marks the gap as finished if all messages before it are. Under the lock."""
        if self.gap is not None and self.done >= self.gap[0]:
            self.done = max(self.done, self.gap[1])
            self.gap = None


class StreamState:
    """The state that all streams of one consumer share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        """A message has been finished, or the partitions have changed."""
        self._holdings: dict[TopicPartition, PartitionProgress] = {}
        self._streams: list[MessageStream] = []
        self._may_hand_out: Callable[[], bool] = lambda: False
        self.error: OffsetMgrError | None = None
        self.closed = False

    def stream(self, topic: str | None) -> MessageStream:
        """Returns a new stream; ``topic`` None is one that mixes the topics of a pattern."""
        stream = MessageStream(self, topic)
        self._streams.append(stream)
        return stream

    @property
    def streams(self) -> Collection[MessageStream]:
        return tuple(self._streams)

    def may_hand_out(self) -> bool:
        return self._may_hand_out()

    def grant(self, may_hand_out: Callable[[], bool]) -> None:
        """From now on this function is called before each delivery."""
        with self.lock:
            self._may_hand_out = may_hand_out

    def wake(self) -> None:
        """Wakes waiting readers."""
        with self.lock:
            self._wake()

    # --- partitions ----------------------------------------------------------------------------------

    def add(self, holding: PartitionProgress) -> None:
        with self.lock:
            self._holdings[holding.partition] = holding
            self.changed.notify_all()

    def holdings(self) -> dict[TopicPartition, PartitionProgress]:
        with self.lock:
            return dict(self._holdings)

    def feed(self, holding: PartitionProgress, messages: Iterable[StreamMessage]) -> None:
        """Puts messages into the partition's stream in order; skips those that were there before."""
        with self.lock:
            if holding.stopped:
                return
            buffer = holding.stream.buffer
            was_empty = not buffer
            for message in messages:
                if message.offset >= holding.fetched:
                    buffer.append((holding, message))
                    holding.fetched = message.offset + 1
            if was_empty and buffer:
                holding.stream.readable.notify_all()

    def relocate(self, holding: PartitionProgress, offset: int) -> None:
        """The log does not contain the next position: continues at ``offset``.

        If it is larger, the log's start has passed the position, and waiting messages stay valid. If it is smaller, the
        log has been recreated: waiting messages, and a reader's current one, belong to another log.
        """
        with self.lock:
            if offset >= holding.fetched:
                begins = holding.gap[0] if holding.gap is not None and holding.gap[1] == holding.fetched else None
                holding.gap = (holding.fetched if begins is None else begins), offset
                holding.fetched = offset
                holding.pass_gap()
                return
            self._purge({id(holding)})
            self._let_go([holding])
            holding.fetched = holding.handed = holding.done = offset
            holding.gap = None

    def stop(self, partitions: Collection[TopicPartition], timeout_s: float) -> list[PartitionProgress]:
        """From this moment nothing of these partitions is delivered. Waits (at most so long) until readers have
        finished their current messages, and returns the states, which stay until `remove`."""
        with self.lock:
            found = [self._holdings[tp] for tp in partitions if tp in self._holdings]
            for holding in found:
                holding.stopped = True
            self._purge({id(holding) for holding in found})
            deadline = time.monotonic() + timeout_s
            while self._in_hand(found) and (left := deadline - time.monotonic()) > 0:
                self.changed.wait(left)
            return found

    def remove(self, partitions: Collection[TopicPartition] | None) -> list[PartitionProgress]:
        """Removes these (None: all) at once, with waiting and current messages, and returns them."""
        with self.lock:
            chosen = list(self._holdings) if partitions is None else [tp for tp in partitions if tp in self._holdings]
            gone = [self._holdings.pop(tp) for tp in chosen]
            for holding in gone:
                holding.stopped = True
            self._purge({id(holding) for holding in gone})
            self._let_go(gone)
            return gone

    def holds(self, holding: PartitionProgress) -> bool:
        """Returns whether it is still there: neither removed, nor replaced by a later one of the same partition."""
        with self.lock:
            return self._holdings.get(holding.partition) is holding

    def done_by_caller(self) -> None:
        """The reader in the calling thread has finished its current message."""
        with self.lock:
            for stream in self._streams:
                if stream.reader is _MARKS.mine:
                    stream.finish()

    def left_by_caller(self) -> None:
        """The reader in the calling thread will not finish its current message."""
        with self.lock:
            for stream in self._streams:
                if stream.reader is _MARKS.mine:
                    stream.in_hand = None

    def positions(self, holdings: Iterable[PartitionProgress]) -> dict[TopicPartition, int]:
        """Returns the offsets that may be committed now."""
        with self.lock:
            return {holding.partition: holding.done for holding in holdings}

    def committable(self) -> Mapping[TopicPartition, PartitionProgress]:
        """Returns all partitions that are not being stopped."""
        with self.lock:
            return {tp: holding for tp, holding in self._holdings.items() if not holding.stopped}

    # --- the end -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends all streams: iterators stop."""
        with self.lock:
            self.closed = True
            self._wake()

    def fail(self, error: OffsetMgrError) -> None:
        """Ends all streams: iterators raise ``error``."""
        with self.lock:
            self.error = error
            self._wake()

    def _wake(self) -> None:
        for stream in self._streams:
            stream.readable.notify_all()
        self.changed.notify_all()

    def _in_hand(self, holdings: list[PartitionProgress]) -> bool:
        return any(stream.in_hand is not None and stream.in_hand[0] in holdings for stream in self._streams)

    def _let_go(self, holdings: list[PartitionProgress]) -> None:
        """The current messages of these partitions will not count as finished."""
        for stream in self._streams:
            if stream.in_hand is not None and stream.in_hand[0] in holdings:
                stream.in_hand = None
        self.changed.notify_all()

    def _purge(self, holdings: set[int]) -> None:
        for stream in self._streams:
            if any(id(holding) in holdings for holding, _ in stream.buffer):
                stream.buffer = deque(entry for entry in stream.buffer if id(entry[0]) not in holdings)


class MessageStream:
    """Messages of the partitions that this stream's thread owns, each partition's in order. One reader at a time.

    As an iterator it waits for the next message, and ends when the consumer is shut down, or (where the consumer has a
    ``consumer_timeout_ms``) when none has come for so long; then it can be iterated again. It raises the error for
    which the consumer has given up.
    """

    timeout_s: float | None = None

    def __init__(self, desk: StreamState, topic: str | None) -> None:
        self.topic = topic
        self.buffer: deque[tuple[PartitionProgress, StreamMessage]] = deque()
        self.readable = threading.Condition(desk.lock)
        self.in_hand: tuple[PartitionProgress, int] | None = None
        self.reader: object = None
        self._desk = desk

    @property
    def closed(self) -> bool:
        """Whether it has ended for good."""
        return self._desk.closed or self._desk.error is not None

    def __iter__(self) -> Iterator[StreamMessage]:
        return self

    def __next__(self) -> StreamMessage:
        message = self.get(self.timeout_s)
        if message is None:
            raise StopIteration
        return message

    def get(self, timeout_s: float | None = None) -> StreamMessage | None:
        """The next message; None where none has come within the timeout, or the stream has ended (`closed`). Says too
        that the message before it is done with. Raises the error for which the consumer has given up."""
        desk = self._desk
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with desk.lock:
            self.reader = _MARKS.mine
            self.finish()
            while True:
                if desk.error is not None:
                    raise desk.error
                if desk.closed:
                    return None
                waiting = bool(self.buffer)
                if waiting and desk.may_hand_out():
                    holding, message = self.buffer.popleft()
                    holding.handed = message.offset + 1
                    self.in_hand = holding, message.offset + 1
                    return message
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self.readable.wait(left if not waiting else _LOOK_S if left is None else min(left, _LOOK_S))

    def finish(self) -> None:
        """Marks the reader's present message as processed. Under the desk's lock."""
        if self.in_hand is not None:
            holding, offset = self.in_hand
            holding.done = max(holding.done, offset)
            holding.pass_gap()
            self.in_hand = None
            self._desk.changed.notify_all()
