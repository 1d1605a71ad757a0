"""The protocols between the runtime and ownership, `Ownership` and `OwnershipListener`, and the order of their calls.

`ownership` decides which shard groups this process has (Kafka's group protocol) and whether it may answer now (the
lease). The runtime claims, loads, serves and revokes.

The order that keeps one writer for each shard group (data rule "one writer per shard"):

1. ``on_assigned(shard group)`` is called only for a shard group that the newest generation gives to this process.
2. ``on_revoked(shard group)`` is called, and *awaited*, before ownership tells the group that the shard group is free.
3. An expired lease begins again only with a new generation, after ``on_revoked`` has been called for every shard group
   that this generation does not include, and for all of them if the membership was lost too. So a caller that sees a
   valid lease and then a shard group that is not revoked knows that this process owned it at the first of the two
   moments.
4. After ``on_fenced(shard group)`` the runtime does not touch the shard group until the next ``on_assigned``; ownership
rejoins the
   group before that.

The runtime checks the lease again *after* its claim, because a process that was frozen between its assignment and its
claim fences the rightful owner when it wakes. The only consequence may be the owner's next claim, so the process must
not append unless it owned the shard group at a moment after its claim. (If it did, every later owner claims later, and
fences it.)
"""

from __future__ import annotations

from typing import Protocol


class Ownership(Protocol):
    """Calls of the runtime to ownership."""

    def valid(self) -> bool:
        """Returns whether the lease is valid at this moment. Cheap, because every fetch calls it, and callable from any
        thread."""
        ...

    def on_fenced(self, shard_group: int, why: str) -> None:
        """The runtime stopped serving a shard group because another writer has claimed it. Called on the event loop;
        must not block. Ownership drops the shard group and rejoins the group before it takes it again."""
        ...


class OwnershipListener(Protocol):
    """Calls of ownership to the runtime, on the event loop."""

    def on_assigned(self, shard_group: int) -> None:
        """This process now owns the shard group: the runtime claims it, loads what is missing and serves it. Returns at
        once; the runtime retries failures until the shard group is revoked or lost. A second call for an owned shard
        group changes nothing."""
        ...

    async def on_revoked(self, shard_group: int) -> None:
        """This process does not own the shard group any more: the runtime rejects new commits at once, ends those in
        flight and closes the writer.

        After it returns, this process appends and serves nothing of the shard group. It takes at most the commit
        timeout and the timeout of one claim. A call for a shard group that is not owned changes nothing.
        """
        ...
