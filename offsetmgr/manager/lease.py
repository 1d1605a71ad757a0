"""`OwnershipLease`: the time for which this process may assume, without asking the coordinator, that it owns its shard
groups. Pure except for its clock.

A member can release shard groups itself. The coordinator takes shard groups from a member in only two cases: the member
has sent nothing for the *session timeout*, or it has not rejoined within the *rebalance timeout*. The lease ends before
either case can occur. The lease measures both timeouts from the time at which the member sent a request that the
coordinator has answered. The coordinator measures both timeouts from the time at which it processed the request, which
is later. The following responses restart the timeouts:

- Any response to a known member of the current generation restarts the session timeout: a Heartbeat without an error or
  with REBALANCE_IN_PROGRESS, a JoinGroup, a SyncGroup.
- A response to a *stable* member, from which the coordinator expected neither a JoinGroup nor a SyncGroup, restarts the
  rebalance timeout too: a Heartbeat without an error in a synced generation, a JoinGroup, a SyncGroup. A rebalance that
  the member later fails to rejoin in time can only have begun after the coordinator had processed this request.

A Heartbeat that the coordinator answers with REBALANCE_IN_PROGRESS therefore restarts only the session timeout. It does
not restart the rebalance timeout, because the JoinGroup that this member sent may not have reached the coordinator.

An expired lease stays expired until the coordinator answers a SyncGroup (`begin`). A Heartbeat is not enough: a
coordinator that is loading its groups answers every Heartbeat with NONE without a check (handleHeartbeat of
GroupCoordinator.scala; GroupCoordinatorService.heartbeat in 4.x), and a frozen coordinator answers from an old state.
While the lease is valid, the response of a loading or frozen coordinator does no harm: no other member can have
received this member's shard groups, so the group that the coordinator loads still contains this member. The response to
a SyncGroup is reliable, because the coordinator sends it only after the generation has been replicated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from offsetmgr.core.clock import boottime

__all__ = ["MARGIN", "OwnershipLease", "boottime"]

MARGIN: Final = 0.8
"""The fraction of the coordinator's timeouts for which a lease is valid. The rest of the timeout is a margin, because
one machine's clock may run up to a fifth slower than another machine's clock."""


class OwnershipLease:
    """The lease of one member. The lease is not valid before the first call of `begin`. Any thread may call `valid`;
    only one thread may call the other methods."""

    def __init__(
        self, session_timeout_s: float, rebalance_timeout_s: float, clock: Callable[[], float] = boottime
    ) -> None:
        """``session_timeout_s`` and ``rebalance_timeout_s`` are the member's timeouts in seconds."""
        self._session_duration_s = session_timeout_s * MARGIN
        self._rebalance_duration_s = rebalance_timeout_s * MARGIN
        self._clock = clock
        self._session_from = self._rebalance_from = self._until = float("-inf")

    def begin(self, sent: float) -> None:
        """Records that the coordinator answered a SyncGroup that was sent at ``sent``. If the lease is valid, the call
        extends it. Otherwise a new lease begins at ``sent``. The new lease has already expired if the response took too
        long."""
        if not self.extend(sent, stable=True):
            self._session_from = self._rebalance_from = sent
            self._until = sent + min(self._session_duration_s, self._rebalance_duration_s)

    def extend(self, sent: float, *, stable: bool) -> bool:
        """Records that the coordinator answered a request that was sent at ``sent``. ``stable`` is True if the
        coordinator expected neither a JoinGroup nor a SyncGroup from this member when it answered. Returns False and
        changes nothing if the lease has expired or has not begun."""
        if not self.valid():
            return False
        self._session_from = max(self._session_from, sent)
        if stable:
            self._rebalance_from = max(self._rebalance_from, sent)
        self._until = min(
            self._session_from + self._session_duration_s, self._rebalance_from + self._rebalance_duration_s
        )
        return True

    def end(self) -> None:
        """Ends the lease at once, because the membership has ended."""
        self._until = float("-inf")

    def valid(self) -> bool:
        return self._clock() < self._until

    def remaining(self) -> float:
        """Returns the seconds until the lease expires; 0 if the lease is not valid."""
        return max(self._until - self._clock(), 0.0)
