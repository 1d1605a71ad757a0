"""Reads a group's snapshot from ZooKeeper.

The nodes are read with several requests. Therefore, if the group rebalances during the read, the owners and members in
the result may be inconsistent.
"""

from __future__ import annotations

from collections.abc import Iterable

from offsetmgr.core.errors import GroupNotFound, InvalidPattern, UnsupportedOperation
from offsetmgr.core.model import BrokerPartition
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.groups.assignors import ThreadId
from offsetmgr.zookeeper.groups.ownership import owners
from offsetmgr.zookeeper.groups.registry import RegistryMember, members
from offsetmgr.zookeeper.groups.subscription import Subscription
from offsetmgr.zookeeper.groups.topics import Topic, topic_names, topics
from offsetmgr.zookeeper.nodes import paths
from offsetmgr.zookeeper.nodes.consumers import BLACK_LIST, STATIC, WHITE_LIST
from offsetmgr.zookeeper.rebalance_preview.group_snapshot import GroupSnapshot


def read_group(session: ZookeeperSession, group: str, extra_topics: Iterable[str] = ()) -> GroupSnapshot:
    """Reads a group and its topics. The topics in the result are the topics to which the members subscribe, the topics
    of owned partitions, and ``extra_topics``.

    Raises `GroupNotFound`, the first error from reading a topic of the result, and any error of the session.
    """
    if session.get(paths.group(group)) is None:
        raise GroupNotFound(f"group {group!r}", f"does not exist in ZooKeeper at {session.connect}")
    live = {one.member_id: _subscription(one) for one in members(session, group)}
    owned = owners(session, group)
    existing = topic_names(session)
    consumed = {*extra_topics, *(one.topic for one in owned)}
    for subscription in live.values():
        try:
            consumed.update({} if subscription is None else subscription.topics(existing, exclude_internal=False))
        except (InvalidPattern, UnsupportedOperation):  # reported when the assignment is computed
            consumed.update(existing)
    return GroupSnapshot(
        group,
        live,
        {one.name: _brokers_of(one) for one in topics(session, sorted(consumed.intersection(existing)))},
        {
            partition: None if one.member_id is None or one.thread is None else ThreadId(one.member_id, one.thread)
            for partition, one in owned.items()
        },
        frozenset(int(name) for name in session.children(paths.BROKER_IDS) or () if name.isdecimal()),
    )


def _subscription(member: RegistryMember) -> Subscription | None:
    """Returns the member's subscription, or None if the registration cannot be decoded.

    If the version of the registration's format is unknown, returns the part that could be decoded, because Kafka
    ignores the version.
    """
    if member.error is not None and not member.subscription:
        return None
    by_pattern = member.subscription and member.pattern in (WHITE_LIST, BLACK_LIST)
    return Subscription(member.pattern if by_pattern else STATIC, member.subscription)


def _brokers_of(topic: Topic) -> dict[int, tuple[int, ...]]:
    for error in (topic.assignment.error, topic.error, *(one.error for one in topic.counts.values())):
        if error is not None:
            raise error
    assignment = topic.assignment.value
    if assignment is None:
        return {one: (one.broker,) for one in topic.partitions if isinstance(one, BrokerPartition)}
    found: dict[int, tuple[int, ...]] = {}
    for partition, replicas in assignment.replicas.items():
        entry = topic.states.get(partition)
        state = None if entry is None else entry.value
        leading = () if state is None or state.leader is None else (state.leader,)
        others = [] if state is None else [one for one in replicas if one in state.isr and one not in leading]
        found[partition] = (*leading, *others)
    return found
