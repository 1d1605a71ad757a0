"""`KnownLogEnds`: what this process knows of where partitions end at least, from records that replicas confirmed."""

from __future__ import annotations

import threading
from collections.abc import Mapping


class KnownLogEnds:
    """Least end offsets, raised by writers; an end offset below that a broker tells is one of the past.

    For any number of threads.
    """

    def __init__(self) -> None:
        self._least: dict[int, int] = {}
        self._lock = threading.Lock()

    def raise_to(self, confirmed: Mapping[int, int]) -> None:
        """A record at each of these offsets was confirmed by every replica in sync."""
        with self._lock:
            for partition, offset in confirmed.items():
                self._least[partition] = max(self._least.get(partition, 0), offset + 1)

    def forget(self) -> None:
        """The topic was recreated: nothing is known of where its partitions end."""
        with self._lock:
            self._least.clear()

    def least(self, partition: int) -> int:
        """The offset that the partition ends at or above."""
        with self._lock:
            return self._least.get(partition, 0)
