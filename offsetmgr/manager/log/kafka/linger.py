"""`AdaptiveLinger`: how long the writer of a shard group waits between two transactions. Pure.

The broker answers the end of a transaction before it has told every partition, and rejects the next one of the same id
meanwhile (CONCURRENT_TRANSACTIONS); librdkafka retries only after 20 ms. A wait of a few milliseconds costs less, and
records that arrive during it join the same transaction. The right wait depends on replicas, disks and load, so it is
adapted: longer at once after a rejection, shorter little by little.
"""

from __future__ import annotations

from typing import Final

MAX_WAIT_S: Final = 0.005
"""Seconds."""
REJECTION_S: Final = 0.018
"""Seconds: records confirmed as late as this have most likely met a rejection and librdkafka's pause."""
_INITIAL_WAIT_S: Final = 0.002
_INCREASE_S: Final = 0.001
_DECREASE_S: Final = 4e-6
"""With this value one transaction in 250 is rejected while the smallest sufficient wait is constant."""


class AdaptiveLinger:
    """``wait_s`` is the wait in seconds after the end of a transaction."""

    def __init__(self) -> None:
        self.wait_s = _INITIAL_WAIT_S

    def on_confirmed(self, seconds: float) -> None:
        """Records were confirmed this many seconds after the start of their transaction."""
        if seconds >= REJECTION_S:
            self.wait_s = min(self.wait_s + _INCREASE_S, MAX_WAIT_S)
        else:
            self.wait_s = max(self.wait_s - _DECREASE_S, 0.0)
