"""`KnownLogEnds`: lower bounds of the end offsets, known from records that the replicas confirmed."""

from __future__ import annotations

import threading
from collections.abc import Mapping


class KnownLogEnds:
    """A lower bound of each partition's end offset. Writers raise the bound. A broker may return an end offset below
    the bound. Such an end offset is outdated.

    Any number of threads may use it.
    """

    def __init__(self) -> None:
        self._lower_bounds: dict[int, int] = {}
        self._lock = threading.Lock()

    def raise_to(self, confirmed: Mapping[int, int]) -> None:
        """Raises the bounds, because every in-sync replica confirmed a record at each of these offsets."""
        with self._lock:
            for partition, offset in confirmed.items():
                self._lower_bounds[partition] = max(self._lower_bounds.get(partition, 0), offset + 1)

    def forget(self) -> None:
        """Forgets all bounds, because the topic was recreated."""
        with self._lock:
            self._lower_bounds.clear()

    def lower_bound(self, partition: int) -> int:
        """Returns the lower bound of the partition's end."""
        with self._lock:
            return self._lower_bounds.get(partition, 0)
