"""Applies hypothetical changes to a group. For each kind of change, one function returns a changed snapshot. Other
functions find the member or the subscription to which a change refers. Pure.

The functions raise `UsageError` if the change cannot be applied to the snapshot.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Final

from offsetmgr.core.errors import UsageError
from offsetmgr.core.model import BrokerPartition
from offsetmgr.zookeeper.groups.subscription import Subscription
from offsetmgr.zookeeper.nodes.member_id import parse_member_id
from offsetmgr.zookeeper.rebalance_preview.group_snapshot import MAX_STREAMS, GroupSnapshot

MAX_PARTITIONS: Final = 200_000
"""Maximum number of partitions of all topics after a change: Kafka's limit for a cluster with ZooKeeper."""


def member_joins(snapshot: GroupSnapshot, member_id: str, subscription: Subscription) -> GroupSnapshot:
    if member_id in snapshot.members:
        raise UsageError(f"member {member_id}", "is already in the group")
    return replace(snapshot, members={**snapshot.members, member_id: subscription})


def member_leaves(snapshot: GroupSnapshot, name: str) -> GroupSnapshot:
    """Removes a member. ``name`` identifies the member as in `member_named`."""
    leaving = member_named(snapshot, name)
    return replace(snapshot, members={one: held for one, held in snapshot.members.items() if one != leaving})


def topic_grows(snapshot: GroupSnapshot, topic: str, count: int, broker: int | None = None) -> GroupSnapshot:
    """Extends a topic to ``count`` partitions, or creates it with ``count`` partitions. In Kafka 0.7, ``count`` is the
    number of the topic's partitions on ``broker``."""
    held = dict(snapshot.topics.get(topic, {}))
    others = sum(len(partitions) for name, partitions in snapshot.topics.items() if name != topic)
    if others + count > MAX_PARTITIONS:  # checked before the list is built, so that a typo does not exhaust the memory
        raise UsageError(
            f"topic {topic}",
            f"would have {count:,} partitions, and all topics together {others + count:,}, but at most "
            f"{MAX_PARTITIONS:,} can be simulated",
            "check the number",
        )
    if snapshot.of_kafka_0_7 and broker is None:
        raise UsageError(f"topic {topic}", "partitions of Kafka 0.7 belong to a broker", "as in TOPIC=BROKER:COUNT")
    if held and not snapshot.of_kafka_0_7 and broker is not None:
        raise UsageError(f"topic {topic}", "its partitions do not belong to a broker", "as in TOPIC=COUNT")
    try:
        required = [n if broker is None else BrokerPartition(broker, n) for n in range(count)]
    except ValueError as error:
        raise UsageError(f"topic {topic}", str(error)) from error
    here = [one for one in held if broker is None or (isinstance(one, BrokerPartition) and one.broker == broker)]
    if gone := sorted(set(here) - set(required)):
        raise UsageError(
            f"topic {topic}",
            f"has {len(here)} partitions{'' if broker is None else f' on broker {broker}'}, and partitions cannot be "
            f"removed from a topic (with {count} partitions, it would lose partition {gone[0]})",
        )
    held |= {one: () if broker is None else (broker,) for one in required if one not in held}
    return replace(snapshot, topics={**snapshot.topics, topic: held})


def topic_is_deleted(snapshot: GroupSnapshot, topic: str) -> GroupSnapshot:
    if topic not in snapshot.topics:
        raise UsageError(f"topic {topic}", "is not consumed by the group")
    return replace(snapshot, topics={name: held for name, held in snapshot.topics.items() if name != topic})


def broker_leaves(snapshot: GroupSnapshot, broker: int) -> GroupSnapshot:
    """Stops a broker. In Kafka 0.7, the broker's partitions disappear. In Kafka 0.8 and later, if the broker is the
    leader of a partition, the partition's next in-sync replica becomes the leader."""
    known = {one for held in snapshot.topics.values() for brokers in held.values() for one in brokers}
    if broker not in (known if snapshot.brokers is None else snapshot.brokers):
        raise UsageError(f"broker {broker}", "is not among the live brokers")
    topics = {
        topic: {
            partition: tuple(one for one in brokers if one != broker)
            for partition, brokers in held.items()
            if not (isinstance(partition, BrokerPartition) and partition.broker == broker)
        }
        for topic, held in snapshot.topics.items()
    }
    return replace(snapshot, topics=topics, brokers=None if snapshot.brokers is None else snapshot.brokers - {broker})


def broker_joins(snapshot: GroupSnapshot, broker: int) -> GroupSnapshot:
    """Starts a new broker. The broker has no partitions."""
    if snapshot.brokers is not None and broker in snapshot.brokers:
        raise UsageError(f"broker {broker}", "is already alive")
    return replace(snapshot, brokers=None if snapshot.brokers is None else snapshot.brokers | {broker})


def member_named(snapshot: GroupSnapshot, name: str) -> str:
    """Returns the member to which ``name`` refers. ``name`` is the member's id, the member's id without the prefix
    ``GROUP_``, or a host on which only one member runs."""
    for exact in (name, f"{snapshot.group}_{name}"):
        if exact in snapshot.members:
            return exact
    found = [
        member
        for member in sorted(snapshot.members)
        if (origin := parse_member_id(snapshot.group, member)) is not None and origin.host == name
    ]
    if len(found) == 1:
        return found[0]
    why = f"is a host with several members: {', '.join(found)}" if found else f"is not in group {snapshot.group}"
    raise UsageError(f"member {name}", why, f"members: {', '.join(sorted(snapshot.members)) or 'none'}")


def most_common_subscription(snapshot: GroupSnapshot) -> Subscription:
    """Returns the most frequent subscription of the members. Raises `UsageError` if the members' subscriptions differ
    in anything other than the numbers of streams."""
    readable = [one for one in snapshot.members.values() if one is not None]
    if not readable:
        raise UsageError(
            f"group {snapshot.group}", "has no member whose subscription a new member could copy", "add --topic"
        )
    if len({(one.kind, frozenset(one.streams)) for one in readable}) > 1:
        raise UsageError(
            f"group {snapshot.group}", "its members subscribe to different topics", "add --like MEMBER, or --topic"
        )
    counted = Counter(tuple(sorted(one.streams.items())) for one in readable)
    usual = max(counted, key=lambda streams: (counted[streams], streams))
    return next(one for one in readable if tuple(sorted(one.streams.items())) == usual)


def with_streams(subscription: Subscription, count: int) -> Subscription:
    """Returns a subscription to the same topics or the same pattern, with ``count`` streams for each topic or for the
    pattern."""
    if count < 1:
        raise UsageError(f"{count} streams", "a member needs at least one stream")
    if count > MAX_STREAMS:
        raise UsageError(
            f"{count:,} streams", f"at most {MAX_STREAMS:,} streams of all members can be simulated", "check the number"
        )
    return Subscription(subscription.kind, dict.fromkeys(subscription.streams, count))
