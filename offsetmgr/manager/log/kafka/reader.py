"""`KafkaReader`: reads acknowledged records of the topic, in bulk or as they arrive.

One thread at a time uses it. Any thread may call `close`, which ends a waiting call within a tenth of a second.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, Final

import confluent_kafka as ck

from offsetmgr.core.errors import TimedOut
from offsetmgr.kafka.cluster.librdkafka import error_of
from offsetmgr.manager.log.base import LogClosed, LogRecord
from offsetmgr.manager.log.kafka.consumer import AssignedConsumer, Message

_AT_ONCE: Final = 500
"""Records taken at a time in a load: larger batches fall out of the processor's caches (10,000 take half as much time
again), and other threads wait longer."""
_SLICE_S: Final = 0.1
_NO_KEY: Final = b""
"""Stands for a missing key: no format has it, so the record counts as unreadable."""
_STALLED_S: Final = 30.0
"""Seconds without progress after which a load fails, so that the operator learns the reason."""

_key: Final[Callable[[Message], Any]] = ck.Message.key
_value: Final[Callable[[Message], Any]] = ck.Message.value


class KafkaReader:
    """The methods are those of `offsetmgr.manager.log.base.LogReader`."""

    def __init__(self, topic: str, following: Mapping[str, Any], loading: Mapping[str, Any]) -> None:
        self._topic = topic
        self._following = following
        self._loading = loading
        self._follower: AssignedConsumer | None = None
        self._closed = False
        self._busy = threading.Lock()
        """Held while the follower is in use, because the client library must not be closed then."""

    def load(
        self,
        starts: Mapping[int, int],
        ends: Mapping[int, int],
        newest: Mapping[int, MutableMapping[bytes, bytes | None]],
        *,
        progress: Callable[[int], None] | None = None,
        stopped: Callable[[], bool] | None = None,
    ) -> Mapping[int, int]:
        """Works as `LogReader.load`. Raises `TimedOut` if no record arrives for half a minute."""
        reached = dict(starts)
        unread = {partition for partition, end in ends.items() if starts[partition] < end}
        if not unread:
            return reached
        consumer = AssignedConsumer(self._topic, self._loading)
        try:
            consumer.assign({partition: starts[partition] for partition in unread})
            positions, passed, moved = consumer.positions, 0, time.monotonic()
            while unread and not (stopped is not None and stopped()):
                if self._closed:
                    raise LogClosed(f"load of {self._topic}", "the reader was closed")
                for partition, run in consumer.take(_AT_ONCE, _SLICE_S):
                    # One call for each run: a loop in Python over the records would take much longer.
                    deque(map(newest[partition].__setitem__, map(_key, run), map(_value, run)), maxlen=0)
                unread = {partition for partition in unread if positions[partition] < ends[partition]}
                now_passed = sum(positions.values())
                if now_passed != passed:
                    moved = time.monotonic()
                elif time.monotonic() > moved + _STALLED_S:
                    raise self._stalled(consumer)
                if progress is not None:
                    progress(now_passed - sum(reached[p] for p in positions))
                reached.update(positions)
                passed = now_passed
        finally:
            consumer.close()
        for keys in newest.values():
            without: Any = keys
            if None in without:
                without[_NO_KEY] = without.pop(None)
        return reached

    def follow(self, starts: Mapping[int, int]) -> None:
        """See `LogReader.follow`."""
        with self._busy:
            self._check_open()
            if self._follower is None:
                self._follower = AssignedConsumer(self._topic, self._following)
            positions = self._follower.positions
            self._follower.unassign([p for p, position in positions.items() if starts.get(p) != position])
            self._follower.assign({p: start for p, start in starts.items() if p not in positions})

    def poll(self, most: int, timeout: float) -> Sequence[LogRecord]:
        """Works as `LogReader.poll`. Returns nothing early if only a position has moved."""
        deadline = time.monotonic() + timeout
        while True:
            with self._busy:
                self._check_open()
                if self._follower is None:
                    raise ValueError("poll before follow")
                before = sum(self._follower.positions.values())
                left = deadline - time.monotonic()
                runs = self._follower.take(most, max(min(left, _SLICE_S), 0))
                if runs or left <= _SLICE_S or sum(self._follower.positions.values()) != before:
                    return [
                        LogRecord(partition, m.offset(), m.key() or _NO_KEY, m.value(), m.timestamp()[1])
                        for partition, run in runs
                        for m in run
                    ]

    def position(self, partition: int) -> int:
        """Works as `LogReader.position`. Raises `KeyError` for a partition that is not followed."""
        if self._follower is None:
            raise KeyError(partition)
        return self._follower.positions[partition]

    def close(self) -> None:
        """See `LogReader.close`."""
        self._closed = True
        with self._busy:
            follower, self._follower = self._follower, None
        if follower is not None:
            follower.close()

    def _check_open(self) -> None:
        if self._closed:
            raise LogClosed(f"reader of {self._topic}", "it was closed")

    def _stalled(self, consumer: AssignedConsumer) -> Exception:
        what = f"load of {self._topic}"
        if consumer.last_error is not None:
            return error_of(consumer.last_error, what)
        return TimedOut(what, f"nothing came for {_STALLED_S:g} s")
