"""`ProducerHistory`: the producer ids that have ever written to each partition of the log, as far as they are known."""

from __future__ import annotations

import threading
from collections.abc import Iterable


class ProducerHistory:
    """Collects producer ids from claims in the log and from the leaders. A claim lists all of them, because compaction
    removes older claims while records of their producer ids remain.

    Any number of threads may use it.
    """

    def __init__(self) -> None:
        self._ids: dict[int, set[int]] = {}
        self._claimed: dict[int, frozenset[int]] = {}
        self._lock = threading.Lock()

    def add(self, partition: int, producer_ids: Iterable[int]) -> None:
        """Adds producer ids of a partition."""
        with self._lock:
            self._ids.setdefault(partition, set()).update(producer_ids)

    def ids(self, partition: int) -> tuple[int, ...]:
        """Returns the known producer ids of a partition in ascending order."""
        with self._lock:
            return tuple(sorted(self._ids.get(partition, ())))

    def on_claimed(self, partition: int) -> None:
        """Records that this process has appended a claim that lists the known producer ids."""
        with self._lock:
            self._claimed[partition] = frozenset(self._ids.get(partition, ()))

    def is_incomplete(self, partition: int) -> bool:
        """Returns whether producer ids were added since the last claim of this process."""
        with self._lock:
            return self._claimed.get(partition, frozenset()) != self._ids.get(partition, set())

    def forget(self) -> None:
        """Forgets everything, because the topic was recreated."""
        with self._lock:
            self._ids.clear()
            self._claimed.clear()
