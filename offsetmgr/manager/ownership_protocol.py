"""The interface between the runtime and ownership: `Ownership`, `OwnershipListener` and the order of their calls.

`ownership` uses Kafka's group protocol to decide which shard groups this process owns, and the lease to decide whether
the process may answer requests now. The runtime claims, loads, serves and revokes shard groups.

This order ensures one writer for each shard group (data rule "one writer per shard"):

1. ``on_assigned(shard group)`` is called only for a shard group that the newest generation gives to this process.
2. ``on_revoked(shard group)`` is called, and *awaited*, before ownership reports to the group that the shard group is
   free.
3. A lease begins, and begins again after it has expired, only with a proof of a generation that this process has
   applied. Before that, ``on_revoked`` has been called for every shard group that this process does not own in the
   generation. If the membership was lost, the lease has ended, and ``on_revoked`` has been called for every shard
   group. Therefore, if a caller first sees that a shard group is served and afterwards sees a valid lease, no later
   owner had claimed the shard group when the caller checked the lease.
4. The runtime claims a shard group only after the time ``not_before`` of ``on_assigned``. The leases of all earlier
   owners that have not released the shard group have ended by then.
5. After ``on_fenced(shard group)`` the runtime does not claim, load or serve the shard group until ownership calls
   ``on_assigned`` for it again. Before that call, ownership rejoins the managers' group.

The runtime checks the lease again *after* it has claimed a shard group. The process may have been frozen between the
assignment and its claim. In this case its claim fences the rightful owner when the process wakes. The only consequence
of such a claim must be that the rightful owner claims again. Therefore the process appends only if its lease was valid
at some moment after its claim. Every later owner claims after that moment, because it first waits until this lease has
ended, and thereby fences this process.
"""

from __future__ import annotations

from typing import Protocol


class Ownership(Protocol):
    """The methods of ownership that the runtime calls."""

    def valid(self) -> bool:
        """Returns whether the lease is valid at this moment. Every fetch calls this method, so it must be cheap. Any
        thread may call it."""

    def on_fenced(self, shard_group: int, why: str) -> None:
        """Reports that the runtime has stopped serving a shard group because another writer claimed it. Called on the
        event loop; must not block. Ownership drops the shard group, and rejoins the managers' group before it assigns
        the shard group to the runtime again."""


class OwnershipListener(Protocol):
    """The methods of the runtime that ownership calls on the event loop."""

    def on_assigned(self, shard_group: int, not_before: float) -> None:
        """Reports that this process now owns the shard group. The runtime claims it, loads the missing part of the log
        and serves it. The method returns at once, and the runtime retries failures until the shard group is revoked or
        fenced. A second call for an owned shard group changes nothing.

        The runtime sends no claim before the time ``not_before`` of the lease's clock. Until then the previous owner
        may hold a valid lease. The runtime may read the log meanwhile, and answers COORDINATOR_LOAD_IN_PROGRESS."""

    async def on_revoked(self, shard_group: int) -> None:
        """Revokes the shard group: the runtime rejects new commits at once, completes those in flight and closes the
        writer.

        After the call has returned, this process neither appends to the shard group nor serves it. The call takes at
        most the sum of the commit timeout and the timeout of one claim. A call for a shard group that is not owned
        changes nothing.
        """
