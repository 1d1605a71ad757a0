"""`OwnershipLease`: how long this process may take itself for the owner of its slots without asking anybody; pure but
its clock.

The coordinator takes a member's slots away in two cases only, apart from the member's own wish: it has heard nothing
of it for a *session*, or the member has not rejoined within the *rebalance time-out* after a rebalance began.  The
lease ends before either can happen.  Both are counted from the sending of a request that was answered, since the
coordinator worked on it at that moment or later:

- ``sent`` of whatever the coordinator answered to a known member of the current generation (a Heartbeat answered with
  no error or with REBALANCE_IN_PROGRESS, a JoinGroup, a SyncGroup): the session began again then, or later.
- ``sent`` of what was answered while we *owed nothing* (`settled`: a Heartbeat of a synced generation answered without
  error, a JoinGroup, a SyncGroup): any rebalance that we can be late for began then, or later.

So a Heartbeat answered REBALANCE_IN_PROGRESS prolongs the lease, whether or not a JoinGroup of ours waits already, but
only within the rebalance time-out; counted without that bound it would not be right, because a JoinGroup that was sent
need not have arrived.

A lease that has run out once stays so until a SyncGroup is answered (`begin`), never by a Heartbeat alone: a
coordinator that is still loading its groups answers every Heartbeat NONE without looking (GroupCoordinator.scala's
handleHeartbeat; GroupCoordinatorService.heartbeat in 4.x), and one that was frozen itself answers from an old memory.
While the lease is unbroken that does no harm: nobody can have been given our slots, so whatever the coordinator loads
still has us in it, with a whole session to come.  A SyncGroup is answered only after the generation is replicated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from offsetmgr.core.clock import boottime

__all__ = ["MARGIN", "OwnershipLease", "boottime"]

MARGIN: Final = 0.8
"""The part of the coordinator's times that a lease lasts: clocks may differ in rate by a fifth."""


class OwnershipLease:
    """Not begun yet. `valid` may be asked from any thread; the rest is for one thread."""

    def __init__(self, session: float, rebalance: float, clock: Callable[[], float] = boottime) -> None:
        """``session`` and ``rebalance`` are the member's timeouts as told to the coordinator, in seconds."""
        self._session = session * MARGIN
        self._rebalance = rebalance * MARGIN
        self._clock = clock
        self._heard = self._settled = self._until = float("-inf")

    def begin(self, sent: float) -> None:
        """A SyncGroup sent at ``sent`` was answered: a lease that is good goes on, else a new one begins (and may be
        over already)."""
        if not self.prolong(sent, settled=True):
            self._heard = self._settled = sent
            self._until = sent + min(self._session, self._rebalance)

    def prolong(self, sent: float, *, settled: bool) -> bool:
        """Something sent at ``sent`` was answered (see the module). False, and without effect, where the lease has run
        out or has not begun."""
        if not self.valid():
            return False
        self._heard = max(self._heard, sent)
        if settled:
            self._settled = max(self._settled, sent)
        self._until = min(self._heard + self._session, self._settled + self._rebalance)
        return True

    def end(self) -> None:
        """The membership is over: from this moment the lease is not valid."""
        self._until = float("-inf")

    def valid(self) -> bool:
        return self._clock() < self._until

    def left(self) -> float:
        """Seconds that it is valid for; 0 where it is not."""
        return max(self._until - self._clock(), 0.0)
