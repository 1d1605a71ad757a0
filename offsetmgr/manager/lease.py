"""`OwnershipLease`: the time for which this process may assume, without asking the coordinator, that it is a member of
the managers' group and owns its shard groups. Pure except for its clock.

Another manager can remove this member from the group at any moment (see `peer_monitor`), and the coordinator removes a
member after a timeout. A removed member may be alive and may not know of its removal. Two rules keep it from answering
with an outdated offset:

1. **The lease is short.** It ends `LEASE_DURATION_S` after the member *sent* the last request that proved its
   membership. A request proves the membership only if a response of the group's real coordinator confirms that the
   member belonged to the current generation when the coordinator processed the request.
2. **The next owner waits.** It claims a shard group that the previous owner has not released only `TAKEOVER_WAIT_S`
   after it *sent* the SyncGroup of the generation that assigned the shard group to it (`ownership`). The coordinator
   had removed the previous owner before that moment, and therefore had processed that owner's last proof before it.

So the lease of the removed member ends before the next owner claims. Both durations are measured on the clocks of two
machines: the member's clock may run up to a fifth slower than the next owner's clock (`MARGIN`).

**An OffsetCommit proves the membership; a Heartbeat does not.** The coordinator checks the member id and the generation
of an OffsetCommit, appends the offset to the partition of ``__consumer_offsets`` that stores the group, and responds
after the in-sync replicas have the record. A coordinator that is loading its groups rejects an OffsetCommit with
COORDINATOR_LOAD_IN_PROGRESS. A broker that was replaced as the coordinator, and does not know it yet (it was frozen or
is cut off from its cluster), cannot replicate the record, and so it cannot confirm the commit. In contrast, a loading
coordinator answers every Heartbeat with NONE without a check (handleHeartbeat of GroupCoordinator.scala;
GroupCoordinatorService.heartbeat in 4.x), and a replaced broker answers Heartbeat, JoinGroup, and SyncGroup in a stable
group, from its old state. Before members could be removed within a second, these responses did no harm, because the new
coordinator gave a member's shard groups away only after a session timeout. Now they could, so they prove nothing here.

While the offsets topic does not exist, brokers reject the OffsetCommit, and a Heartbeat takes its place. It suffices,
because no manager can claim a shard group of a topic that does not exist. So the managers continue to answer fetches,
and an operator can save the offsets.

A proof is a proof at any time: if the lease has expired because the coordinator was slow, the next proof begins it
again. The member belonged to the group at that moment, so its shard groups still belonged to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from offsetmgr.core.clock import boottime

__all__ = ["LEASE_DURATION_S", "MARGIN", "MAX_LEASE_S", "TAKEOVER_WAIT_S", "OwnershipLease", "boottime"]

MARGIN: Final = 0.8
"""The ratio of two machines' clock rates that the lease tolerates: one clock may run up to a fifth slower than the
other one."""
MAX_LEASE_S: Final = 1.5
"""The longest time for which a lease can be valid, on the clock of any machine within `MARGIN`."""
LEASE_DURATION_S: Final = MAX_LEASE_S * MARGIN
"""The time in seconds for which a lease is valid, on the clock of its member. A member sends several proofs within this
time (`offsetmgr.kafka.groups.group_member`)."""
TAKEOVER_WAIT_S: Final = MAX_LEASE_S
"""The time in seconds that an owner waits before it claims a shard group that the previous owner has not released, on
the clock of the new owner."""


class OwnershipLease:
    """The lease of one member. The lease is not valid before the first call of `extend`. Any thread may call `valid`;
    only one thread may call the other methods."""

    def __init__(self, clock: Callable[[], float] = boottime) -> None:
        self._clock = clock
        self._until = float("-inf")

    def extend(self, sent: float) -> None:
        """Records a proof of the membership, in the response to a request that was sent at ``sent``. The lease has
        already expired if the response took too long."""
        self._until = max(self._until, sent + LEASE_DURATION_S)

    def end(self) -> None:
        """Ends the lease at once, because the membership has ended."""
        self._until = float("-inf")

    def valid(self) -> bool:
        return self._clock() < self._until

    def remaining(self) -> float:
        """Returns the seconds until the lease expires; 0 if the lease is not valid."""
        return max(self._until - self._clock(), 0.0)
