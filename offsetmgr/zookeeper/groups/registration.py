"""Registers a member in an old consumer group, and reads the input of the group's assignment.

Registrations are ephemeral: ZooKeeper deletes them with the member's session. Source:
kafka.consumer.ZookeeperConsumerConnector of Kafka 0.10.2.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from offsetmgr.core.errors import Conflict, value_of
from offsetmgr.zookeeper.client.session import ZookeeperSession, commit, ensure_nodes
from offsetmgr.zookeeper.client.transactions import Create
from offsetmgr.zookeeper.groups.subscription import Subscription, topics_of
from offsetmgr.zookeeper.nodes import paths
from offsetmgr.zookeeper.nodes.consumers import ConsumerRegistration, parse_registration
from offsetmgr.zookeeper.nodes.topics import parse_topic

_MAX_TRIES: Final = 8


def member_id(group: str, configured: str | None = None, *, now_ms: int) -> str:
    """Returns the consumer id for a registration: ``GROUP_HOST-MILLIS-8HEX``, or ``GROUP_CONFIGURED``.

    ``configured`` is the setting ``consumer.id``. Raises `UsageError` if the id cannot be the name of a node.
    """
    own = configured if configured is not None else f"{socket.gethostname()}-{now_ms}-{secrets.token_hex(4)}"
    found = f"{group}_{own}"
    paths.member(group, found)
    return found


@dataclass(frozen=True, slots=True)
class GroupRegistration:
    """The data from which one member computes the assignment."""

    brokers: Sequence[str]
    """Ids of the live brokers."""
    streams: Mapping[str, Mapping[str, int]]
    """Live member -> topic -> number of streams. If a member subscribes by a pattern, its topics are the topics that
    the pattern selects."""
    partitions: Mapping[str, Sequence[int]]
    """Consumed topic -> the topic's partitions; an empty list if the topic does not exist."""


def register(session: ZookeeperSession, group: str, member: str, subscription: Subscription, now_ms: int) -> int:
    """Registers the member in this session, unless this session has already registered it. Returns the session's id.

    Raises `Conflict` if another session has registered the id. The other session may belong to a process that has just
    died, or to a second consumer with the same configured id. Also raises any error of the session.
    """
    path, parent = paths.member(group, member), paths.ids(group)
    for _ in range(_MAX_TRIES):
        node = session.get(path)
        if node is not None:
            if node.ephemeral_owner == session.session_id:
                return node.ephemeral_owner
            raise Conflict(
                f"consumer id {member}",
                "is registered by another session",
                "give each consumer its own consumer.id; a dead process frees its id when its session expires",
            )
        ensure_nodes(session, [paths.CONSUMERS, paths.group(group), parent])
        commit(session, [Create(path, subscription.encoded(now_ms), ephemeral=True)])
    raise Conflict(
        f"consumer id {member}", "its registration keeps changing", "check whether another consumer uses the same id"
    )


def read_registration(session: ZookeeperSession, group: str, *, exclude_internal: bool = True) -> GroupRegistration:
    """Reads the input of the group's assignment. The result is not a snapshot. Therefore the caller must set watches
    before it calls this function, and call this function again after each change.

    Raises any error of the session. Also raises `CorruptData`, `UnknownVersion` or `UnsupportedOperation` if a
    registration or topic cannot be decoded. The function does not ignore the registration or topic, because then the
    caller's assignment would differ from the assignment of the other members.
    """
    ids = sorted(session.children(paths.ids(group)) or ())
    registrations = session.get_many([paths.member(group, name) for name in ids])
    members: dict[str, ConsumerRegistration] = {}
    for name, found in zip(ids, map(value_of, registrations), strict=True):
        if found is not None:  # None if the member left after the ids were listed; a watch then reports the change
            members[name] = parse_registration(paths.member(group, name), found.data)
    brokers = sorted(session.children(paths.BROKER_IDS) or ())
    topics = sorted(session.children(paths.BROKER_TOPICS) or ())
    internal = not exclude_internal
    streams = {
        name: topics_of(one.subscription, one.pattern, topics, internal=internal) for name, one in members.items()
    }
    consumed = sorted({topic for of_member in streams.values() for topic in of_member})
    partitions: dict[str, Sequence[int]] = {}
    for topic, node in zip(consumed, session.get_many([paths.topic(topic) for topic in consumed]), strict=True):
        assigned = value_of(node)
        partitions[topic] = [] if assigned is None else sorted(parse_topic(paths.topic(topic), assigned.data).replicas)
    return GroupRegistration(brokers, streams, partitions)
