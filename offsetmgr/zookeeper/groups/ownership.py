"""Reads the owners of partitions: ``/consumers/GROUP/owners/TOPIC/PARTITION``. Writes nothing.

In Kafka 0.7, the name of a partition's node is ``BROKER-PARTITION``, and the partition is represented as a
`BrokerPartition`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from offsetmgr.core.batches import batched
from offsetmgr.core.errors import CorruptData, OffsetMgrError
from offsetmgr.core.model import BrokerPartition, TopicPartition
from offsetmgr.zookeeper.client.jute import NodeData
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.groups.registry import RegistryMember, registrations
from offsetmgr.zookeeper.nodes import paths
from offsetmgr.zookeeper.nodes.consumers import parse_owner

GROUPS_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True)
class Owner:
    """The consumer thread that owns a partition, decoded from the owner node's content (see `parse_owner`). ``thread``
    is None if the consumer's client has no threads.

    If the node cannot be decoded, ``error`` is the reason, and ``member_id`` and ``thread`` are None: the partition is
    owned, but its owner is unknown. The session that owns ``node`` also owns the member's registration.
    """

    member_id: str | None
    thread: int | None
    node: NodeData
    error: OffsetMgrError | None = None
    name: str = field(default="", compare=False)
    """The name of the node. For pykafka it is ``LEADER-PARTITION``."""

    def inconsistencies(self, live: Mapping[str, RegistryMember] | None) -> tuple[str, ...]:
        """Returns the inconsistencies with the live members; none if ``live`` is None (unknown)."""
        if self.member_id is None or live is None:
            return ()
        if (member := live.get(self.member_id)) is None:
            return ("no live member",)
        if self.node.session not in (None, member.node.session):
            return (f"its member has another session, {member.node.session or 'none'}",)
        return ()


@dataclass(frozen=True, slots=True)
class GroupOwners:
    """The owners of one group's partitions.

    ``errors`` maps the path of each ignored node to the reason why it is ignored: its name is not a partition number,
    or the node cannot be read. If ``error`` is set, the group's owners are unknown.
    """

    group: str
    owners: Mapping[TopicPartition, Owner] = field(default_factory=dict)
    errors: Mapping[str, OffsetMgrError] = field(default_factory=dict)
    error: OffsetMgrError | None = None


def owners_many(session: ZookeeperSession, groups: Iterable[str]) -> Iterator[GroupOwners]:
    """Yields the owners of many groups' partitions, one result per group. Raises if the session fails."""
    for batch in batched(groups, GROUPS_AT_ONCE):
        yield from _owners_of(session, batch)


def _owners_of(session: ZookeeperSession, groups: list[str]) -> Iterator[GroupOwners]:
    possible, impossible = paths.possible_groups(groups)
    yield from (GroupOwners(group, error=error) for group, error in impossible)
    found: dict[str, dict[TopicPartition, Owner]] = {group: {} for group in possible}
    errors: dict[str, dict[str, OffsetMgrError]] = {group: {} for group in possible}
    listed = session.children_many([paths.owners(group) for group in possible])
    topics = [
        (group, topic, f"{paths.owners(group)}/{topic}")
        for group, names in zip(possible, listed, strict=True)
        if isinstance(names, list)
        for topic in sorted(names)
    ]
    partitions = list(_partitions(session, topics, errors))
    nodes = session.get_many([path for *_, path in partitions])
    members = registrations(session, list(dict.fromkeys(group for group, *_ in partitions)))
    for (group, partition, path), node in zip(partitions, nodes, strict=True):
        if isinstance(node, OffsetMgrError):
            errors[group][path] = node
        elif node is not None:  # None if the partition was released after the children were listed
            known = members[group]
            sessions = {} if isinstance(known, OffsetMgrError) else {m: n.ephemeral_owner for m, n in known.items()}
            owner = _owner(path, node, sessions)
            if owner.thread is None and owner.error is None and isinstance(partition.partition, BrokerPartition):
                partition = TopicPartition(partition.topic, partition.partition.partition)  # noqa: PLW2901 - pykafka
            if (other := found[group].get(partition)) is None or other.node.czxid < owner.node.czxid:
                found[group][partition] = owner
    for group, names in zip(possible, listed, strict=True):
        if isinstance(names, OffsetMgrError):
            yield GroupOwners(group, error=names)
        else:
            yield GroupOwners(group, dict(sorted(found[group].items())), errors[group])


def _partitions(
    session: ZookeeperSession, topics: list[tuple[str, str, str]], errors: dict[str, dict[str, OffsetMgrError]]
) -> Iterator[tuple[str, TopicPartition, str]]:
    """Yields the group, partition and path of each owner node below the topics' nodes. If a node's name is not a
    partition number, adds an error to ``errors``."""
    for (group, topic, path), names in zip(topics, session.children_many([p for *_, p in topics]), strict=True):
        if isinstance(names, OffsetMgrError):
            errors[group][path] = names
            continue
        for name in names or ():
            number = paths.partition_number(name)
            if (number := BrokerPartition.parse(name) if number is None else number) is not None:
                yield group, TopicPartition(topic, number), f"{path}/{name}"
            else:
                what = f"ZooKeeper node {path}/{name}"
                errors[group][f"{path}/{name}"] = CorruptData(what, "its name is not a partition's number")


def _owner(path: str, node: NodeData, members: Mapping[str, int]) -> Owner:
    name = path.rpartition("/")[2]
    try:
        return Owner(*parse_owner(path, node.data, members, node.ephemeral_owner), node, None, name)
    except OffsetMgrError as error:
        return Owner(None, None, node, error, name)
