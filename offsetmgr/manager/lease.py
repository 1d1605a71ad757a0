"""`OwnershipLease`: how long this process may assume that it owns its shard groups without asking the coordinator. Pure
except for its clock.

The coordinator takes shard groups from a member in only two cases besides the member's own request: it has received
nothing from it for a *session*, or the member has not rejoined within the *rebalance timeout*. The lease ends before
either can happen. Both times count from the sending of a request that was answered, since the coordinator processed it
at that moment or later:

- ``sent`` of any response to a known member of the current generation (a Heartbeat with no error or with
  REBALANCE_IN_PROGRESS, a JoinGroup, a SyncGroup): the session began again then, or later.
- ``sent`` of a response while we *owed nothing* (`settled`: a Heartbeat of a synced generation without error, a
  JoinGroup, a SyncGroup): any rebalance that we can be late for began then, or later.

So a Heartbeat with REBALANCE_IN_PROGRESS prolongs the lease, but only within the rebalance timeout, because a JoinGroup
that was sent need not have arrived.

A lease that has expired stays expired until a SyncGroup is answered (`begin`). A Heartbeat is not enough: a coordinator
that is loading its groups answers every Heartbeat with NONE without a check (handleHeartbeat of GroupCoordinator.scala;
GroupCoordinatorService.heartbeat in 4.x), and a frozen coordinator answers from an old state. While the lease is valid
that does no harm: no other member can have received our shard groups, so the coordinator still loads a group with us in
it. A coordinator answers a SyncGroup only after the generation is replicated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from offsetmgr.core.clock import boottime

__all__ = ["MARGIN", "OwnershipLease", "boottime"]

MARGIN: Final = 0.8
"""The part of the coordinator's times for which a lease is valid: clock rates may differ by a fifth."""


class OwnershipLease:
    """A lease that `begin` starts. Any thread may call `valid`; one thread calls the other methods."""

    def __init__(self, session_timeout: float, rebalance_timeout: float, clock: Callable[[], float] = boottime) -> None:
        """``session_timeout`` and ``rebalance_timeout`` are the member's timeouts in seconds."""
        self._session_duration = session_timeout * MARGIN
        self._rebalance_duration = rebalance_timeout * MARGIN
        self._clock = clock
        self._session_from = self._rebalance_from = self._until = float("-inf")

    def begin(self, sent: float) -> None:
        """A SyncGroup sent at ``sent`` was answered: a valid lease continues, else a new one begins (and may have
        expired already)."""
        if not self.extend(sent, stable=True):
            self._session_from = self._rebalance_from = sent
            self._until = sent + min(self._session_duration, self._rebalance_duration)

    def extend(self, sent: float, *, stable: bool) -> bool:
        """A request sent at ``sent`` was answered. Returns False without effect if the lease has expired or has not
        begun."""
        if not self.valid():
            return False
        self._session_from = max(self._session_from, sent)
        if stable:
            self._rebalance_from = max(self._rebalance_from, sent)
        self._until = min(self._session_from + self._session_duration, self._rebalance_from + self._rebalance_duration)
        return True

    def end(self) -> None:
        """Ends the lease at once, because the membership has ended."""
        self._until = float("-inf")

    def valid(self) -> bool:
        return self._clock() < self._until

    def remaining(self) -> float:
        """Returns the seconds for which the lease is valid; 0 if it is not."""
        return max(self._until - self._clock(), 0.0)
