"""`AdaptiveLinger`: the time that the writer of a shard group waits between two transactions. Pure.

The broker answers EndTxn before it has written the markers to every partition. While the broker writes the markers, it
rejects the next transaction of the same transactional id (CONCURRENT_TRANSACTIONS), and librdkafka retries only after
20 ms. A wait of a few milliseconds before the next transaction costs less than such a retry, and records that arrive
during the wait join the next transaction. The necessary wait depends on replicas, disks and load. Therefore each
rejected transaction increases the wait by a large step, and each other transaction decreases the wait by a small step.
"""

from __future__ import annotations

from typing import Final

MAX_WAIT_S: Final = 0.005
REJECTION_S: Final = 0.018
"""If the confirmation of records takes at least this time, the broker has most likely rejected the transaction once,
and librdkafka has paused before its retry."""
_INITIAL_WAIT_S: Final = 0.002
_INCREASE_S: Final = 0.001
_DECREASE_S: Final = 4e-6
"""With this step, the broker rejects about one transaction in 250, as long as the necessary wait does not change."""


class AdaptiveLinger:
    """Adapts ``wait_s``, the time to wait after the end of a transaction."""

    def __init__(self) -> None:
        self.wait_s = _INITIAL_WAIT_S

    def on_confirmed(self, seconds: float) -> None:
        """Adapts the wait to a transaction. ``seconds`` is the time from the start of the transaction to the
        confirmation of its records."""
        if seconds >= REJECTION_S:
            self.wait_s = min(self.wait_s + _INCREASE_S, MAX_WAIT_S)
        else:
            self.wait_s = max(self.wait_s - _DECREASE_S, 0.0)
