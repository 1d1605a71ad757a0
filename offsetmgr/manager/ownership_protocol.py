"""The interface between the runtime and ownership: `Ownership`, `OwnershipListener` and the order of their calls.

`ownership` decides by Kafka's group protocol which shard groups this process owns, and by the lease whether it may
answer now. The runtime claims, loads, serves and revokes shard groups.

This order ensures one writer for each shard group (data rule "one writer per shard"):

1. ``on_assigned(shard group)`` is called only for a shard group that the newest generation gives to this process.
2. ``on_revoked(shard group)`` is called, and *awaited*, before ownership reports to the group that the shard group is
   free.
3. An expired lease begins again only with a new generation, after ``on_revoked`` has been called for every shard group
   that this generation does not include, and for every shard group if the membership was lost too. So a caller that
   sees a valid lease and then a shard group that is not revoked knows that this process owned it at the first of the
   two moments.
4. After ``on_fenced(shard group)`` the runtime does not touch the shard group until the next ``on_assigned``; ownership
   rejoins the group before that.

The runtime checks the lease again *after* its claim, because a process that was frozen between its assignment and its
claim fences the rightful owner when it wakes. The only consequence of such a claim may be that the owner claims again.
So the process must not append unless it owned the shard group at some moment after its claim. (If it did, every later
owner claims after that moment and fences it.)
"""

from __future__ import annotations

from typing import Protocol


class Ownership(Protocol):
    """The methods of ownership that the runtime calls."""

    def valid(self) -> bool:
        """Returns whether the lease is valid at this moment. Every fetch calls this method, so it must be cheap. Any
        thread may call it."""
        ...

    def on_fenced(self, shard_group: int, why: str) -> None:
        """Reports that the runtime has stopped serving a shard group because another writer claimed it. Called on the
        event loop; must not block. Ownership drops the shard group and rejoins the group before it assigns the shard
        group to the runtime again."""
        ...


class OwnershipListener(Protocol):
    """The methods of the runtime that ownership calls on the event loop."""

    def on_assigned(self, shard_group: int) -> None:
        """Reports that this process now owns the shard group. The runtime claims it, loads the missing part of the log
        and serves it. Returns at once; the runtime retries failures until the shard group is revoked or fenced. A
        second call for an owned shard group changes nothing."""
        ...

    async def on_revoked(self, shard_group: int) -> None:
        """Revokes the shard group: the runtime rejects new commits at once, completes those in flight and closes the
        writer.

        After it returns, this process neither appends to the shard group nor serves it. The call takes at most the
        commit timeout and the timeout of one claim. A call for a shard group that is not owned changes nothing.
        """
        ...
