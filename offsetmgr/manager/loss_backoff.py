"""`LossBackoff`: the pauses between rejoins of a member that loses shard groups to other claimants."""

from __future__ import annotations

from typing import Final

from offsetmgr.core.retry import Backoff

_PAUSES: Final = Backoff(0.2, 5.0)
_RESET_S: Final = 10.0
"""If no shard group was lost for this time, the next loss counts as the first loss."""


class LossBackoff:
    """Counts the losses of shard groups. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._losses = 0
        self._last_loss = float("-inf")

    def on_loss(self) -> None:
        """Records that another manager claimed a shard group."""
        self._losses += 1

    def pause_s(self, now: float) -> float:
        """Returns the pause in seconds before the member rejoins: 0 after the first loss of a shard group, and a longer
        pause after each further loss."""
        if now - self._last_loss > _RESET_S:
            self._losses = 1
        self._last_loss = now
        return _PAUSES.pause_s(self._losses - 1) if self._losses > 1 else 0.0
