"""How long a shard group's writer rests between two transactions: `AdaptiveLinger`. Pure.

The broker answers the end of a transaction before it has told every partition of it, and refuses the next one of the
same id meanwhile (CONCURRENT_TRANSACTIONS); librdkafka asks again only after a fixed 20 ms. A rest of a few
milliseconds costs less, and what arrives during it goes into the same transaction. How long the broker takes is not
known beforehand (replicas, disks, load), so it is found out: longer at once after a refusal, shorter little by little.
"""

from __future__ import annotations

from typing import Final

LONGEST: Final = 0.005
"""Seconds."""
REFUSED: Final = 0.018
"""Seconds: records that were confirmed so late have most likely met a refusal, and librdkafka's pause after it."""
_FIRST: Final = 0.002
_LONGER: Final = 0.001
_SHORTER: Final = 4e-6
"""With it one transaction in 250 is refused where the least sufficient rest does not change."""


class AdaptiveLinger:
    """``rest`` is the time to wait, in seconds, after the end of a transaction."""

    def __init__(self) -> None:
        self.rest = _FIRST

    def confirmed(self, seconds: float) -> None:
        """From the beginning of a transaction it took so long until its records were confirmed."""
        if seconds >= REFUSED:
            self.rest = min(self.rest + _LONGER, LONGEST)
        else:
            self.rest = max(self.rest - _SHORTER, 0.0)
