"""Parses the options of ``zk rebalance --simulate`` that describe the simulated changes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from offsetmgr.core.errors import UsageError

if TYPE_CHECKING:
    from offsetmgr.zookeeper.groups.subscription import Subscription
    from offsetmgr.zookeeper.rebalance_preview.group_snapshot import GroupSnapshot


def changes_of(
    join: list[str] | None,
    like: str | None,
    topic: list[str] | None,
    leave: list[str] | None,
    grow: list[str] | None,
    delete_topic: list[str] | None,
    lose_broker: list[int] | None,
    add_broker: list[int] | None,
) -> Callable[[GroupSnapshot], GroupSnapshot] | None:
    """Returns a function that applies all changes to a snapshot: first the changes to topics, then the changes to
    brokers, then the changes to members. Returns None if there are no changes."""
    if not any((join, leave, grow, delete_topic, lose_broker, add_broker)):
        if like or topic:
            raise UsageError("--like and --topic", "are the subscription of members that join", "add --join HOST")
        return None
    from offsetmgr.zookeeper.rebalance_preview import changes

    def change(snapshot: GroupSnapshot) -> GroupSnapshot:
        for text in grow or []:
            snapshot = changes.topic_grows(snapshot, *_growth(text))
        for name in delete_topic or []:
            snapshot = changes.topic_is_deleted(snapshot, name)
        for broker in lose_broker or []:
            snapshot = changes.broker_leaves(snapshot, broker)
        for broker in add_broker or []:
            snapshot = changes.broker_joins(snapshot, broker)
        subscription = _subscription(snapshot, like, topic) if join else None
        for name in leave or []:
            snapshot = changes.member_leaves(snapshot, name)
        if subscription is not None:
            for number, text in enumerate(join or []):
                host, _, streams = text.partition(":")
                own = changes.with_streams(subscription, _number("--join", text, streams)) if streams else subscription
                snapshot = changes.member_joins(snapshot, _new_id(snapshot.group, host, number), own)
        return snapshot

    return change


def with_initial_sizes(snapshot: GroupSnapshot, grow: list[str] | None) -> GroupSnapshot:
    """Adds the topics of ``--grow`` to a snapshot that has no topics. If ``--grow`` names a topic several times, the
    first number of partitions is the initial size of the topic."""
    from offsetmgr.zookeeper.rebalance_preview.changes import topic_grows

    seen: set[tuple[str, int | None]] = set()
    for topic, count, broker in map(_growth, grow or []):
        if (topic, broker) not in seen:
            seen.add((topic, broker))
            snapshot = topic_grows(snapshot, topic, count, broker)
    return snapshot


def _subscription(snapshot: GroupSnapshot, like: str | None, topics: list[str] | None) -> Subscription:
    from offsetmgr.zookeeper.groups.subscription import Subscription
    from offsetmgr.zookeeper.rebalance_preview.changes import member_named, most_common_subscription

    if topics:
        if like is not None:
            raise UsageError(
                "--like and --topic", "are both given as the subscription of members that join", "give only one"
            )
        return Subscription.static(dict.fromkeys(topics, 1))
    if like is None:
        return most_common_subscription(snapshot)
    member = member_named(snapshot, like)
    found = snapshot.members[member]
    if found is None:
        raise UsageError(f"member {member}", "its registration cannot be read", "name another with --like")
    return found


def _new_id(group: str, host: str, number: int) -> str:
    """Returns ``host`` unchanged if it is a member id. Otherwise ``host`` is a host name, and the result is an id in
    the form that a new member on this host generates."""
    if not host:
        raise UsageError("--join", "no host is named", "as in --join HOST, or HOST:STREAMS")
    return host if host.startswith(f"{group}_") else f"{group}_{host}-{time.time_ns() // 1_000_000}-{number:08x}"


def _growth(text: str) -> tuple[str, int, int | None]:
    topic, _, count = text.rpartition("=")
    if not topic:
        raise UsageError(f"--grow {text}", "is not TOPIC=N", "as in --grow orders=12")
    broker, colon, number = count.rpartition(":")
    return topic, _number("--grow", text, number), _number("--grow", text, broker) if colon else None


def _number(option: str, text: str, written: str) -> int:
    if not (written.isascii() and written.isdigit() and len(written) < 10):
        raise UsageError(f"{option} {text}", f"{written!r} is no number")
    return int(written)
