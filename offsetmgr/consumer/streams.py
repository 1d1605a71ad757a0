"""`MessageStream`: delivers messages to a reader. `StreamState`: the delivered, finished and waiting messages of each
partition.

One lock guards the state of all streams, so that delivery stops in all streams at the same moment. The module performs
no I/O.

A message is finished when its reader requests the next message from the stream, or when its reader commits. From its
delivery until it is finished, the message is the reader's current message. Automatic commits include only finished
messages. Therefore, if a process dies, some messages may be reprocessed, but none is lost. (The old consumer counts a
message as consumed as soon as it delivers the message.)
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
"""How often a reader that waits for a valid lease checks the lease."""


class _ThreadTokens(threading.local):
    """An object that identifies the calling thread. `threading.get_ident` is not enough, because a new thread may get
    the identifier of a thread that has ended."""

    def __init__(self) -> None:
        self.token = object()


_TOKENS: Final = _ThreadTokens()


class StreamMessage(NamedTuple):
    """One message. ``timestamp_ms`` is in milliseconds since 1970, or None if the message has no timestamp.

    >>> StreamMessage("orders", 0, 42, b"key", b"value", 1_700_000_000_000).value
    b'value'
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(eq=False, slots=True)
class PartitionProgress:
    """The progress of one owned partition. A position is the offset of the next message.

    ``fetched`` is the position after the last message in the stream, and ``finished`` the position that may be
    committed. ``known`` is the offset that this consumer last read from the store or wrote to the store.
    ``committed_at`` is the time of this member's last commit (seconds of the monotonic clock), or None. ``gap``
    contains the first offset of a gap in the log, and the offset after the gap. When all messages before the gap are
    finished, the offset after the gap may be committed.
    """

    partition: TopicPartition
    stream: MessageStream
    fetched: int
    finished: int
    known: Offset
    stopped: bool = False
    committed_at: float | None = None
    gap: tuple[int, int] | None = None

    def pass_gap(self) -> None:
        """Marks the gap as finished if all messages before it are finished. The caller holds the lock."""
        if self.gap is not None and self.finished >= self.gap[0]:
            self.finished = max(self.finished, self.gap[1])
            self.gap = None


class StreamState:
    """The state that all streams of one consumer share. Any thread may use it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        """Notified when a message is finished or the set of owned partitions changes."""
        self._owned: dict[TopicPartition, PartitionProgress] = {}
        self._streams: list[MessageStream] = []
        self._may_deliver: Callable[[], bool] = lambda: False
        self.error: OffsetMgrError | None = None
        self.closed = False

    def stream(self, topic: str | None) -> MessageStream:
        """Returns a new stream. If ``topic`` is None, the stream can receive the messages of all topics that the
        consumer's white list or black list selects."""
        stream = MessageStream(self, topic)
        self._streams.append(stream)
        return stream

    def may_deliver(self) -> bool:
        return self._may_deliver()

    def set_delivery_check(self, may_deliver: Callable[[], bool]) -> None:
        """Sets the function that is called before each delivery; a message is delivered only if the function returns
        True."""
        with self.lock:
            self._may_deliver = may_deliver

    # --- partitions ----------------------------------------------------------------------------------

    def add(self, progress: PartitionProgress) -> None:
        with self.lock:
            self._owned[progress.partition] = progress
            self.changed.notify_all()

    def owned(self) -> dict[TopicPartition, PartitionProgress]:
        with self.lock:
            return dict(self._owned)

    def enqueue(self, progress: PartitionProgress, messages: Iterable[StreamMessage]) -> None:
        """Appends messages to the partition's stream. Skips messages that were appended before."""
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
        """Moves the partition's position to ``offset``, because the present position is outside of the log.

        If ``offset`` is not below the present position, the start of the log has advanced beyond that position, and
        waiting messages stay valid. If ``offset`` is below the present position, the topic was recreated: the waiting
        messages and a reader's current message belong to the deleted topic's log and are discarded.
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
            progress.fetched = progress.finished = offset
            progress.gap = None

    def stop(self, partitions: Collection[TopicPartition], timeout_s: float) -> list[PartitionProgress]:
        """Stops the delivery of these partitions at once. Waits up to ``timeout_s`` seconds until the readers have
        finished their current messages. Returns the progress of these partitions. The partitions remain owned until
        `remove` is called."""
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
        """Removes these partitions (all partitions if None) at once, and discards their waiting and current messages.
        Returns the progress of the removed partitions."""
        with self.lock:
            selected = list(self._owned) if partitions is None else [tp for tp in partitions if tp in self._owned]
            removed = [self._owned.pop(tp) for tp in selected]
            for progress in removed:
                progress.stopped = True
            self._purge({id(progress) for progress in removed})
            self._discard_current(removed)
            return removed

    def is_current(self, progress: PartitionProgress) -> bool:
        """Returns whether ``progress`` is still in use for its partition. If the partition was removed and added again,
        the result is False, because the partition has a new `PartitionProgress`."""
        with self.lock:
            return self._owned.get(progress.partition) is progress

    def finish_current_of_caller(self) -> None:
        """Marks the current message of the reader in the calling thread as finished."""
        with self.lock:
            for stream in self._streams:
                if stream.reader is _TOKENS.token:
                    stream.finish()

    def discard_current_of_caller(self) -> None:
        """Discards the current message of the reader in the calling thread, so that it does not count as finished."""
        with self.lock:
            for stream in self._streams:
                if stream.reader is _TOKENS.token:
                    stream.current = None

    def positions(self, owned: Iterable[PartitionProgress]) -> dict[TopicPartition, int]:
        """Returns for each partition the offset that may be committed now."""
        with self.lock:
            return {progress.partition: progress.finished for progress in owned}

    def committable(self) -> Mapping[TopicPartition, PartitionProgress]:
        """Returns the progress of all partitions for which `stop` has not been called."""
        with self.lock:
            return {tp: progress for tp, progress in self._owned.items() if not progress.stopped}

    # --- the end -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends all streams, so that their iterators stop."""
        with self.lock:
            self.closed = True
            self._wake()

    def fail(self, error: OffsetMgrError) -> None:
        """Ends all streams, so that their iterators raise ``error``."""
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
        """Discards the current messages of these partitions, so that they do not count as finished."""
        for stream in self._streams:
            if stream.current is not None and stream.current[0] in owned:
                stream.current = None
        self.changed.notify_all()

    def _purge(self, owned: set[int]) -> None:
        for stream in self._streams:
            if any(id(progress) in owned for progress, _ in stream.buffer):
                stream.buffer = deque(entry for entry in stream.buffer if id(entry[0]) not in owned)


class MessageStream:
    """Delivers the messages of the partitions that this stream owns, in order within each partition. Only one thread at
    a time may read the stream.

    An iterator over the stream waits for the next message, and ends when the consumer is shut down. If
    ``consumer_timeout_ms`` is set, the iterator also ends when no message has arrived for that time. After such a
    timeout, the caller can iterate over the stream again. If an error has stopped the consumer, the iterator raises
    this error.

    Example::

        from offsetmgr.consumer import ConsumerSettings, ZookeeperConsumer

        settings = ConsumerSettings(auto_offset_reset="smallest", consumer_timeout_ms=1_000)
        consumer = ZookeeperConsumer(zookeeper="h1:2181", bootstrap_servers="h1:9092", group="shop", settings=settings)
        with consumer as member:
            (stream,) = member.create_message_streams({"orders": 1})["orders"]
            for message in stream:  # ends when no message has arrived for 1 s
                print(message.partition, message.offset, message.value)
    """

    timeout_s: float | None = None
    """``consumer_timeout_ms`` in seconds: the time that the iterator waits for a message. If it is None, the iterator
    waits until a message arrives."""

    def __init__(self, state: StreamState, topic: str | None) -> None:
        self.topic = topic
        self.buffer: deque[tuple[PartitionProgress, StreamMessage]] = deque()
        self.readable = threading.Condition(state.lock)
        self.current: tuple[PartitionProgress, int] | None = None
        self.reader: object = None
        self._state = state

    @property
    def closed(self) -> bool:
        """Whether the stream has ended and will deliver no more messages."""
        return self._state.closed or self._state.error is not None

    def __iter__(self) -> Iterator[StreamMessage]:
        return self

    def __next__(self) -> StreamMessage:
        message = self.get(self.timeout_s)
        if message is None:
            raise StopIteration
        return message

    def get(self, timeout_s: float | None = None) -> StreamMessage | None:
        """Returns the next message, or None if no message arrives within the timeout or the stream has ended
        (`closed`). The call also marks the previous message as finished. If an error has stopped the consumer, raises
        this error."""
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
                    self.current = progress, message.offset + 1
                    return message
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return None
                limits = (left, _LEASE_CHECK_INTERVAL_S if waiting else None)
                self.readable.wait(min((limit for limit in limits if limit is not None), default=None))

    def finish(self) -> None:
        """Marks the reader's current message as finished. The caller holds the lock of the state."""
        if self.current is not None:
            progress, offset = self.current
            progress.finished = max(progress.finished, offset)
            progress.pass_gap()
            self.current = None
            self._state.changed.notify_all()
