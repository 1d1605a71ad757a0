"""`assign_without`: an assignment that leaves out the partitions whose offsets are being edited. Pure.

While offsetmgr edits a running group, it leads the group for one generation. In this generation the members keep the
partitions that they own, and no member owns an edited partition. Therefore a member forgets its position in an edited
partition before another rebalance assigns the partition again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from offsetmgr.core.batches import by_key
from offsetmgr.core.model import TopicPartition
from offsetmgr.kafka.protocol.consumer_protocol import MemberSubscription


def assign_without(
    withheld: Collection[TopicPartition], members: Mapping[str, MemberSubscription], counts: Mapping[str, int]
) -> dict[str, list[TopicPartition]]:
    """Returns the partitions of each member. ``counts`` contains the number of partitions of each topic.

    A member keeps the partitions that it owns. If two members name the same partition, no member gets it, because one
    of them has to revoke it first. Each other partition goes to the subscribed member with the fewest partitions.
    """
    owners = by_key((tp, member) for member, subscription in members.items() for tp in set(subscription.owned))
    assigned: dict[str, list[TopicPartition]] = {member: [] for member in members}
    free: list[TopicPartition] = []
    for topic in sorted({topic for subscription in members.values() for topic in subscription.topics}):
        for tp in (TopicPartition(topic, number) for number in range(counts.get(topic, 0))):
            owning = [member for member in owners.get(tp, ()) if topic in members[member].topics]
            if tp in withheld or len(owning) > 1:
                continue
            if owning:
                assigned[owning[0]].append(tp)
            else:
                free.append(tp)
    for tp in free:
        subscribed = [member for member, subscription in members.items() if tp.topic in subscription.topics]
        assigned[min(subscribed, key=lambda member: (len(assigned[member]), member))].append(tp)
    return assigned
