"""`KafkaReader`: reads acknowledged records of the topic, in bulk or as they arrive.

Only one thread may use it at a time. Any thread may call `close`, which ends a waiting call within a tenth of a second.
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
from offsetmgr.manager.log.kafka.consumer import AssignedConsumer, ConfluentMessage
from offsetmgr.records.claim import CLAIM_KEY, FENCE_KEY

_RECORDS_PER_TAKE: Final = 500
"""The number of records that a load takes at a time. Larger batches do not fit into the processor's caches (with 10,000
records at a time, a load takes 50 % longer), and larger batches make other threads wait longer."""
SKIPPED_KEYS: Final = frozenset({CLAIM_KEY, FENCE_KEY})
_POLL_SLICE_S: Final = 0.1
_NO_KEY: Final = b""
"""Replaces a missing key. No format has this key, so the record counts as unreadable."""
_STALL_TIMEOUT_S: Final = 30.0
"""A load fails if it makes no progress for this time, so that the operator sees the reason."""

_key: Final[Callable[[ConfluentMessage], Any]] = ck.Message.key
_value: Final[Callable[[ConfluentMessage], Any]] = ck.Message.value


class KafkaReader:
    """Implements `offsetmgr.manager.log.base.LogReader`."""

    def __init__(self, topic: str, follower_settings: Mapping[str, Any], loader_settings: Mapping[str, Any]) -> None:
        self._topic = topic
        self._follower_settings = follower_settings
        self._loader_settings = loader_settings
        self._follower: AssignedConsumer | None = None
        self._closed = False
        self._follower_lock = threading.Lock()
        """Held while the follower is in use, because another thread must not close the client during that time."""

    def load(
        self,
        starts: Mapping[int, int],
        ends: Mapping[int, int],
        newest: Mapping[int, MutableMapping[bytes, bytes | None]],
        *,
        progress: Callable[[int], None] | None = None,
        stopped: Callable[[], bool] | None = None,
    ) -> Mapping[int, int]:
        """Works as `LogReader.load`. Raises `TimedOut` after 30 seconds without progress."""
        reached = dict(starts)
        unread = {partition for partition, end in ends.items() if starts[partition] < end}
        if not unread:
            return reached
        consumer = AssignedConsumer(self._topic, self._loader_settings)
        try:
            consumer.assign({partition: starts[partition] for partition in unread})
            positions, total, last_progress = consumer.positions, 0, time.monotonic()
            while unread and not (stopped is not None and stopped()):
                if self._closed:
                    raise LogClosed(f"load of {self._topic}", "the reader was closed")
                for partition, run in consumer.take(_RECORDS_PER_TAKE, _POLL_SLICE_S):
                    # One C-level call for each run: a Python loop over the records would take much longer.
                    deque(map(newest[partition].__setitem__, map(_key, run), map(_value, run)), maxlen=0)
                unread = {partition for partition in unread if positions[partition] < ends[partition]}
                new_total = sum(positions.values())
                if new_total != total:
                    last_progress = time.monotonic()
                elif time.monotonic() > last_progress + _STALL_TIMEOUT_S:
                    raise self._stalled(consumer)
                if progress is not None:
                    progress(new_total - sum(reached[p] for p in positions))
                reached.update(positions)
                total = new_total
        finally:
            consumer.close()
        for keys in newest.values():
            untyped_keys: Any = keys
            if None in untyped_keys:
                untyped_keys[_NO_KEY] = untyped_keys.pop(None)
            for key in SKIPPED_KEYS:
                keys.pop(key, None)
        return reached

    def follow(self, starts: Mapping[int, int]) -> None:
        """See `LogReader.follow`."""
        with self._follower_lock:
            self._check_open()
            if self._follower is None:
                self._follower = AssignedConsumer(self._topic, self._follower_settings)
            positions = self._follower.positions
            self._follower.unassign([p for p, position in positions.items() if starts.get(p) != position])
            self._follower.assign({p: start for p, start in starts.items() if p not in positions})

    def poll(self, max_records: int, timeout_s: float) -> Sequence[LogRecord]:
        """Works as `LogReader.poll`. Returns early without records if only a position has advanced."""
        deadline = time.monotonic() + timeout_s
        while True:
            with self._follower_lock:
                self._check_open()
                if self._follower is None:
                    raise ValueError("poll before follow")
                before = sum(self._follower.positions.values())
                remaining = deadline - time.monotonic()
                runs = self._follower.take(max_records, max(min(remaining, _POLL_SLICE_S), 0))
                if runs or remaining <= _POLL_SLICE_S or sum(self._follower.positions.values()) != before:
                    return [
                        LogRecord(partition, m.offset(), m.key() or _NO_KEY, m.value(), m.timestamp()[1])
                        for partition, run in runs
                        for m in run
                        if m.key() not in SKIPPED_KEYS
                    ]

    def position(self, partition: int) -> int:
        """Works as `LogReader.position`. Raises `KeyError` for a partition that is not followed."""
        if self._follower is None:
            raise KeyError(partition)
        return self._follower.positions[partition]

    def close(self) -> None:
        """See `LogReader.close`."""
        self._closed = True
        with self._follower_lock:
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
        return TimedOut(what, f"no records arrived for {_STALL_TIMEOUT_S:g} s")
