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

_LEASE_CHECK_INTERVAL_S: Final = 0.05
"""The interval at which a reader that waits for the lease checks it again."""


class _ThreadTokens(threading.local):
    """One object for each thread, because `threading.get_ident` may return the number of an ended thread."""

    def __init__(self) -> None:
        self.token = object()


_TOKENS: Final = _ThreadTokens()


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

    ``fetched`` is the end of the messages in the stream, ``delivered`` of those that readers have received,
    ``finished`` of those that may be committed; ``known`` is the store's offset at the last read or write,
    ``committed_at`` the time of the last write (seconds of the monotonic clock; None: not yet by this member). ``gap``
    is a gap in the log that has been passed over: once all messages before it are finished, the offset after it may be
    committed.
    """

    partition: TopicPartition
    stream: MessageStream
    fetched: int
    delivered: int
    finished: int
    known: Offset
    stopped: bool = False
    committed_at: float | None = None
    gap: tuple[int, int] | None = None

    def pass_gap(self) -> None:
        """Marks the gap as finished if all messages before it are. Under the lock."""
        if self.gap is not None and self.finished >= self.gap[0]:
            self.finished = max(self.finished, self.gap[1])
            self.gap = None


class StreamState:
    """The state that all streams of one consumer share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        """A message has been finished, or the partitions have changed."""
        self._owned: dict[TopicPartition, PartitionProgress] = {}
        self._streams: list[MessageStream] = []
        self._may_deliver: Callable[[], bool] = lambda: False
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

    def may_deliver(self) -> bool:
        return self._may_deliver()

    def set_delivery_check(self, may_deliver: Callable[[], bool]) -> None:
        """From now on this function is called before each delivery."""
        with self.lock:
            self._may_deliver = may_deliver

    def wake(self) -> None:
        """Wakes waiting readers."""
        with self.lock:
            self._wake()

    # --- partitions ----------------------------------------------------------------------------------

    def add(self, progress: PartitionProgress) -> None:
        with self.lock:
            self._owned[progress.partition] = progress
            self.changed.notify_all()

    def owned(self) -> dict[TopicPartition, PartitionProgress]:
        with self.lock:
            return dict(self._owned)

    def enqueue(self, progress: PartitionProgress, messages: Iterable[StreamMessage]) -> None:
        """Puts messages into the partition's stream in order; skips those that were there before."""
        with self.lock:
            if progress.stopped:
                return
            buffer = progress.stream.buffer
            was_empty = not buffer
            for message in messages:
                if message.offset >= progress.fetched:
                    buffer.append((progress, message))
                    progress.fetched = message.offset + 1
            if was_empty and buffer:
                progress.stream.readable.notify_all()

    def move_position(self, progress: PartitionProgress, offset: int) -> None:
        """The log does not contain the next position: continues at ``offset``.

        If it is larger, the log's start has passed the position, and waiting messages stay valid. If it is smaller, the
        log has been recreated: waiting messages, and a reader's current one, belong to another log.
        """
        with self.lock:
            if offset >= progress.fetched:
                gap_start = (
                    progress.gap[0] if progress.gap is not None and progress.gap[1] == progress.fetched else None
                )
                progress.gap = (progress.fetched if gap_start is None else gap_start), offset
                progress.fetched = offset
                progress.pass_gap()
                return
            self._purge({id(progress)})
            self._discard_current([progress])
            progress.fetched = progress.delivered = progress.finished = offset
            progress.gap = None

    def stop(self, partitions: Collection[TopicPartition], timeout_s: float) -> list[PartitionProgress]:
        """From this moment nothing of these partitions is delivered. Waits (at most so long) until readers have
        finished their current messages, and returns the states, which stay until `remove`."""
        with self.lock:
            found = [self._owned[tp] for tp in partitions if tp in self._owned]
            for progress in found:
                progress.stopped = True
            self._purge({id(progress) for progress in found})
            deadline = time.monotonic() + timeout_s
            while self._has_current(found) and (left := deadline - time.monotonic()) > 0:
                self.changed.wait(left)
            return found

    def remove(self, partitions: Collection[TopicPartition] | None) -> list[PartitionProgress]:
        """Removes these (None: all) at once, with waiting and current messages, and returns them."""
        with self.lock:
            selected = list(self._owned) if partitions is None else [tp for tp in partitions if tp in self._owned]
            removed = [self._owned.pop(tp) for tp in selected]
            for progress in removed:
                progress.stopped = True
            self._purge({id(progress) for progress in removed})
            self._discard_current(removed)
            return removed

    def is_current(self, progress: PartitionProgress) -> bool:
        """Returns whether it is still there: neither removed, nor replaced by a later one of the same partition."""
        with self.lock:
            return self._owned.get(progress.partition) is progress

    def finish_current_of_caller(self) -> None:
        """The reader in the calling thread has finished its current message."""
        with self.lock:
            for stream in self._streams:
                if stream.reader is _TOKENS.token:
                    stream.finish()

    def discard_current_of_caller(self) -> None:
        """The reader in the calling thread will not finish its current message."""
        with self.lock:
            for stream in self._streams:
                if stream.reader is _TOKENS.token:
                    stream.current = None

    def positions(self, owned: Iterable[PartitionProgress]) -> dict[TopicPartition, int]:
        """Returns the offsets that may be committed now."""
        with self.lock:
            return {progress.partition: progress.finished for progress in owned}

    def committable(self) -> Mapping[TopicPartition, PartitionProgress]:
        """Returns all partitions that are not being stopped."""
        with self.lock:
            return {tp: progress for tp, progress in self._owned.items() if not progress.stopped}

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

    def _has_current(self, owned: list[PartitionProgress]) -> bool:
        return any(stream.current is not None and stream.current[0] in owned for stream in self._streams)

    def _discard_current(self, owned: list[PartitionProgress]) -> None:
        """The current messages of these partitions will not count as finished."""
        for stream in self._streams:
            if stream.current is not None and stream.current[0] in owned:
                stream.current = None
        self.changed.notify_all()

    def _purge(self, owned: set[int]) -> None:
        for stream in self._streams:
            if any(id(progress) in owned for progress, _ in stream.buffer):
                stream.buffer = deque(entry for entry in stream.buffer if id(entry[0]) not in owned)


class MessageStream:
    """Messages of the partitions that this stream's thread owns, each partition's in order. One reader at a time.

    As an iterator it waits for the next message, and ends when the consumer is shut down, or (where the consumer has a
    ``consumer_timeout_ms``) when none has come for so long; then it can be iterated again. It raises the error for
    which the consumer has given up.
    """

    timeout_s: float | None = None

    def __init__(self, state: StreamState, topic: str | None) -> None:
        self.topic = topic
        self.buffer: deque[tuple[PartitionProgress, StreamMessage]] = deque()
        self.readable = threading.Condition(state.lock)
        self.current: tuple[PartitionProgress, int] | None = None
        self.reader: object = None
        self._state = state

    @property
    def closed(self) -> bool:
        """Whether it has ended for good."""
        return self._state.closed or self._state.error is not None

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
        state = self._state
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with state.lock:
            self.reader = _TOKENS.token
            self.finish()
            while True:
                if state.error is not None:
                    raise state.error
                if state.closed:
                    return None
                waiting = bool(self.buffer)
                if waiting and state.may_deliver():
                    progress, message = self.buffer.popleft()
                    progress.delivered = message.offset + 1
                    self.current = progress, message.offset + 1
                    return message
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return None
                self.readable.wait(
                    left
                    if not waiting
                    else _LEASE_CHECK_INTERVAL_S
                    if left is None
                    else min(left, _LEASE_CHECK_INTERVAL_S)
                )

    def finish(self) -> None:
        """Marks the reader's present message as processed. Under the desk's lock."""
        if self.current is not None:
            progress, offset = self.current
            progress.finished = max(progress.finished, offset)
            progress.pass_gap()
            self.current = None
            self._state.changed.notify_all()
