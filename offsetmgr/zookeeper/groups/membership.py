"""Membership in an old consumer group: the id, the registration, and the facts that an assignment depends on.

Registrations are ephemeral: they disappear with the session. Source: kafka.consumer.ZookeeperConsumerConnector of
0.10.2.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from offsetmgr.core.errors import Conflict, OffsetMgrError, ServerError
from offsetmgr.zookeeper.client.jute import ZookeeperError
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.transactions import Create, OperationState
from offsetmgr.zookeeper.groups.subscription import Subscription
from offsetmgr.zookeeper.nodes import paths
from offsetmgr.zookeeper.nodes.consumers import parse_registration
from offsetmgr.zookeeper.nodes.topics import parse_topic

_TRIES: Final = 8


def member_id(group: str, configured: str | None = None, *, now_ms: int, host: str | None = None) -> str:
    """Returns the id under which a consumer registers: ``GROUP_HOST-MILLIS-8HEX``, or ``GROUP_CONFIGURED``
    (``consumer.id``).

    Raises `UsageError` for a text that cannot be a node's name.
    """
    own = configured if configured is not None else f"{host or socket.gethostname()}-{now_ms}-{secrets.token_hex(4)}"
    found = f"{group}_{own}"
    paths.member(group, found)
    return found


@dataclass(frozen=True, slots=True)
class GroupRegistration:
    """The input of an assignment, as one member read it."""

    members: Mapping[str, Subscription]
    """Live members by id."""
    brokers: Sequence[str]
    """Ids of the live brokers."""
    topics: Sequence[str] = ()
    """All existing topics."""
    streams: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Member -> topic -> number of streams, patterns resolved."""
    partitions: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Topic -> partitions, for each consumed topic; empty for one that does not exist."""


def register(session: ZookeeperSession, group: str, member: str, subscription: Subscription, now_ms: int) -> int:
    """Registers the member in this session and returns the session's id; does nothing if it is already registered.

    Raises `Conflict` if another session holds the id: the session of a process that has just died, or of a second
    consumer with the same configured id. Also raises what the session raises.
    """
    path, parent = paths.member(group, member), paths.ids(group)
    for _ in range(_TRIES):
        node = session.get(path)
        if node is not None:
            if node.ephemeral_owner == session.session_id:
                return node.ephemeral_owner
            raise Conflict(
                f"consumer id {member}",
                "is registered by another session",
                "give each consumer an id of its own; that of a process which died is free once its session has ended",
            )
        ensure(session, [paths.CONSUMERS, paths.group(group), parent])
        outcome = session.transaction([Create(path, subscription.encoded(now_ms), ephemeral=True)])
        if outcome.state is OperationState.REJECTED and outcome.code not in (
            ZookeeperError.NODE_EXISTS,
            ZookeeperError.NO_NODE,
        ):
            raise outcome.error or ServerError(f"ZooKeeper node {path}", "was refused")
        if outcome.state is OperationState.UNKNOWN:
            session.sync()
    raise Conflict(f"consumer id {member}", "its registration comes and goes", "does another consumer use the same id?")


def read_registration(session: ZookeeperSession, group: str, *, exclude_internal: bool = True) -> GroupRegistration:
    """Reads the facts that the group's assignment depends on. The result is not a snapshot: the caller sets watches and
    reads again after a change.

    Raises what the session raises, and `CorruptData`, `UnknownVersion`, `UnsupportedOperation` for a registration or a
    topic that cannot be decoded: an assignment without it would differ from the other members'.
    """
    ids = sorted(session.children(paths.ids(group)) or ())
    registrations = session.get_many([paths.member(group, name) for name in ids])
    members: dict[str, Subscription] = {}
    for name, node in zip(ids, registrations, strict=True):
        if isinstance(node, OffsetMgrError):
            raise node
        if node is not None:  # has left since the ids were listed, and the watch reports that
            members[name] = Subscription.of(parse_registration(paths.member(group, name), node.data))
    brokers = sorted(session.children(paths.BROKER_IDS) or ())
    topics = sorted(session.children(paths.BROKER_TOPICS) or ())
    streams = {name: found.topics(topics, exclude_internal=exclude_internal) for name, found in members.items()}
    wanted = sorted({topic for of_member in streams.values() for topic in of_member})
    partitions: dict[str, Sequence[int]] = {}
    for topic, node in zip(wanted, session.get_many([paths.topic(topic) for topic in wanted]), strict=True):
        if isinstance(node, OffsetMgrError):
            raise node
        partitions[topic] = [] if node is None else sorted(parse_topic(paths.topic(topic), node.data).replicas)
    return GroupRegistration(members, brokers, topics, streams, partitions)


def ensure(session: ZookeeperSession, wanted: Sequence[str]) -> None:
    """Creates the missing ones of these (persistent, empty) nodes; parents must come before their children.

    Raises what the session raises.
    """
    for _ in range(_TRIES):
        missing = [path for path, node in zip(wanted, session.get_many(wanted), strict=True) if node is None]
        if not missing:
            return
        outcome = session.transaction([Create(path) for path in missing])
        if outcome.state is OperationState.COMMITTED:
            return
        if outcome.state is OperationState.REJECTED and outcome.code not in (
            ZookeeperError.NODE_EXISTS,
            ZookeeperError.NO_NODE,
        ):
            raise outcome.error or ServerError(f"ZooKeeper node {missing[0]}", "was refused")
    raise Conflict(f"ZooKeeper node {wanted[-1]}", "its parents come and go")
