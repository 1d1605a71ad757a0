"""`RawReader`: reads acknowledged records of the topic from raw batches, in bulk or as they arrive.

The reader has its own client and event loop. The client requests raw record batches, because only their headers contain
the producer of the records, by which the reader recognizes batches of other programs (see `batch_audit`).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine, Mapping, MutableMapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

from offsetmgr.kafka.client.client import Client, EventLoopThread
from offsetmgr.kafka.client.connection import Security
from offsetmgr.manager.log.base import LogClosed, LogRecord
from offsetmgr.manager.log.kafka.batch_audit import AuditState
from offsetmgr.manager.log.kafka.log_follower import LogFollower
from offsetmgr.manager.log.kafka.log_history import LogHistory
from offsetmgr.manager.log.kafka.log_load import LogLoad, PartitionLoad

_CHECK_INTERVAL_S: Final = 0.1
"""The interval at which a load reports its progress and checks whether it is stopped."""


class RawReader:
    """Implements `offsetmgr.manager.log.base.LogReader`. Only one thread may use it at a time. Any thread may call
    `close`, which ends a waiting call within a tenth of a second."""

    def __init__(self, bootstrap: str, security: Security, topic: str, history: LogHistory) -> None:
        self._topic = topic
        self._history = history
        self._client = Client(bootstrap, security)
        self._runner = EventLoopThread()
        self._follower = LogFollower(self._client, topic, history)
        self._following = False
        self.position = self._follower.position
        self._states: dict[int, AuditState] = {}
        self._work: list[concurrent.futures.Future[None]] = []
        self._closing = threading.Lock()
        self._closed = False

    # --- loading -------------------------------------------------------------------------------------

    def load(
        self,
        starts: Mapping[int, int],
        ends: Mapping[int, int],
        newest: Mapping[int, MutableMapping[bytes, bytes | None]],
        *,
        progress: Callable[[int], None] | None = None,
        stopped: Callable[[], bool] | None = None,
    ) -> Mapping[int, int]:
        """Works as `LogReader.load`. Raises `TimedOut` after 30 seconds without progress, and `UnsuitableTopic` if the
        topic has batches of a transaction."""
        self._check_open()
        self._states = {partition: self._history.audit(partition, starts[partition]).state for partition in ends}
        loads = {
            partition: PartitionLoad(self._topic, partition, starts[partition], newest[partition], self._history)
            for partition, end in ends.items()
            if starts[partition] < end
        }
        reached: dict[int, int] = dict(starts)
        if not loads or (stopped is not None and stopped()):
            return reached
        loading = self._submit(LogLoad(self._client, self._topic, loads, ends).run())
        self._work.append(loading)
        try:
            while not concurrent.futures.wait((loading,), _CHECK_INTERVAL_S).done:
                reached = _report(loads, reached, progress)
                if self._closed or (stopped is not None and stopped()):
                    break
        finally:
            if not loading.done():  # waits until the load changes nothing any more
                loading.cancel()
                with contextlib.suppress(LogClosed):
                    concurrent.futures.wait((self._submit(asyncio.sleep(0)),))
            self._work.remove(loading)
        self._check_open()
        if not loading.cancelled():
            loading.result()
        self._states |= {partition: load.audit.state for partition, load in loads.items()}
        return _report(loads, reached, progress)

    @property
    def invalid_keys(self) -> Mapping[int, AbstractSet[bytes]]:
        """The keys whose newest record in a partition of the last `load` is invalid. The owner appends the values that
        `load` has returned for them again, or tombstones, because the log cleaner keeps only the newest record."""
        return {partition: state.invalid_keys for partition, state in self._states.items() if state.invalid_keys}

    # --- following -----------------------------------------------------------------------------------

    def follow(self, starts: Mapping[int, int]) -> None:
        """See `LogReader.follow`."""
        self._check_open()
        if not self._following:
            self._following = True
            self._work.append(self._submit(self._follower.run()))
        self._follower.follow(starts)

    def poll(self, max_records: int, timeout_s: float) -> Sequence[LogRecord]:
        """Works as `LogReader.poll`. Returns early without records if only a position has advanced. Raises
        `UnsuitableTopic` if the topic has batches of a transaction."""
        self._check_open()
        return self._follower.poll(max_records, timeout_s)

    def close(self) -> None:
        """See `LogReader.close`."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        self._follower.close()
        for one in list(self._work):
            one.cancel()
        self._runner.run(self._client.close())
        self._runner.close()

    def _submit(self, call: Coroutine[Any, Any, None]) -> concurrent.futures.Future[None]:
        with self._closing:
            if not self._closed:
                return self._runner.submit(call)
        call.close()
        raise self._closed_error()

    def _check_open(self) -> None:
        if self._closed:
            raise self._closed_error()

    def _closed_error(self) -> LogClosed:
        return LogClosed(f"reader of {self._topic}", "it was closed")


def _report(
    loads: Mapping[int, PartitionLoad], reached: Mapping[int, int], progress: Callable[[int], None] | None
) -> dict[int, int]:
    """Reports the progress since the positions ``reached``, and returns the present positions."""
    now = {**reached, **{partition: load.fetch_offset for partition, load in loads.items()}}
    if progress is not None:
        progress(max(0, sum(now.values()) - sum(reached.values())))
    return now
