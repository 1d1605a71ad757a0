"""How the runtime and the ownership of slots speak to each other: `Ownership` and `OwnershipListener`, and their order.

`ownership` decides which slots this process has (Kafka's group protocol) and whether it may answer right now (the
lease).  The runtime does the work: it claims, loads, serves, gives up.

The order that keeps one writer and one answer a slot (rule 5):

1. ``take(slot)`` is called only for a slot that the newest generation gives to this process.
2. ``give_up(slot)`` is called, and *waited for*, before ownership tells the group that the slot is free.
3. A lease that was lost begins again only with a new generation, after ``give_up`` has been called for every slot that
   this generation does not leave to us, and for all of them where the membership was lost too: so whoever sees the
   lease good and the slot not given up, in this order, owned the slot at the first of the two moments.
4. After ``lost(slot)`` the runtime touches the slot no more, until the next ``take``; ownership rejoins the group
   before that.

Why the runtime looks at the lease again *after* its claim: a process that was frozen between its assignment and its
claim fences the rightful owner when it wakes.  Nothing may come of that but the owner's next claim; so it must not
append unless it owned the slot at a moment after its claim.  (If it did, every later owner claims later, and fences
it.)
"""

from __future__ import annotations

from typing import Protocol


class Ownership(Protocol):
    """What the runtime asks, and tells."""

    def valid(self) -> bool:
        """Whether the lease is good at this very moment. Cheap (asked for every fetch), and from any thread."""
        ...

    def lost(self, slot: int, why: str) -> None:
        """The runtime had to stop serving a shard group: somebody else has claimed it. Called on the event loop; must
        not block. Ownership leaves the shard group, and rejoins the group before it takes it again."""
        ...


class OwnershipListener(Protocol):
    """What ownership asks of the runtime, on the event loop."""

    def on_assigned(self, slot: int) -> None:
        """The shard group is ours: claim it, load what is missing, serve it. Returns at once; failures are retried
        until the shard group is given up or lost. Taking what is held already changes nothing."""
        ...

    async def on_revoked(self, slot: int) -> None:
        """The shard group is ours no longer: refuses new commits at once, ends those in flight, closes the writer.

        When it is done nothing of this process will be appended any more, and nothing answered from the shard group.
        Bounded by the commit timeout and one claim's timeout. Giving up what is not held changes nothing.
        """
        ...
