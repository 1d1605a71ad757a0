"""`AdaptiveLinger`: how long the writer of a shard group waits between two transactions. Pure.

The broker answers the end of a transaction before it has told every partition, and rejects the next one of the same id
meanwhile (CONCURRENT_TRANSACTIONS); librdkafka retries only after 20 ms. A wait of a few milliseconds costs less, and
records that arrive during it join the same transaction. The right wait depends on replicas, disks and load, so it is
adapted: longer at once after a rejection, shorter little by little.
"""

from __future__ import annotations

from typing import Final

LONGEST_S: Final = 0.005
"""Seconds."""
REJECTED_S: Final = 0.018
"""Seconds: records confirmed as late as this have most likely met a rejection and librdkafka's pause."""
_FIRST_S: Final = 0.002
_LONGER_S: Final = 0.001
_SHORTER_S: Final = 4e-6
"""With this value one transaction in 250 is rejected while the smallest sufficient wait is constant."""


class AdaptiveLinger:
    """``rest`` is the wait in seconds after the end of a transaction."""

    def __init__(self) -> None:
        self.rest = _FIRST_S

    def confirmed(self, seconds: float) -> None:
        """Records were confirmed this many seconds after the start of their transaction."""
        if seconds >= REJECTED_S:
            self.rest = min(self.rest + _LONGER_S, LONGEST_S)
        else:
            self.rest = max(self.rest - _SHORTER_S, 0.0)
