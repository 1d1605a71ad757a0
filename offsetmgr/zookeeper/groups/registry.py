"""Reads the live members of groups: old consumers of all releases, registered in ``/consumers/GROUP/ids``. Writes
nothing.

A registration that cannot be decoded still belongs to a live member. The results include this member together with the
error, because a caller that checks for live members before a write must not miss a member.

This module alone decides whether a group is live. An ephemeral registration belongs to a running process. A persistent
one proves nothing: it may be left over, but kafka-spark-consumer creates persistent registrations
(``ids/TOPIC/Receiver-N``) while it runs. Such a group is live if commits are seen. Otherwise it is undecided, and the
user decides (``ConnectionConfig.ignore_persistent_members``).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from offsetmgr.core.batches import batched
from offsetmgr.core.errors import CorruptData, GroupActive, OffsetMgrError
from offsetmgr.core.model import PERSISTENT_MEMBERS, PERSISTENT_MEMBERS_HINT, BrokerPartition, TopicPartition
from offsetmgr.core.plurals import count_of
from offsetmgr.core.selection import TopicSelection
from offsetmgr.zookeeper.client.jute import NodeData
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.nodes import paths
from offsetmgr.zookeeper.nodes.consumers import ConsumerRegistration, parse_member_id, parse_owner, parse_registration
from offsetmgr.zookeeper.nodes.fields import Notes, ReadErrors, errors_of
from offsetmgr.zookeeper.nodes.tree import TreeReader

GROUPS_AT_ONCE: Final = 2000
WATCH_S: Final = 5.0
"""The time for which commits are watched before persistent members are ignored."""
_SEEN: Final[WeakKeyDictionary[ZookeeperSession, dict[str, dict[str, tuple[int, int]]]]] = WeakKeyDictionary()
"""For each session and group, the first read of the versions of the offsets."""
_PERSISTENT: Final = "persistent: does not show whether its consumer runs"


@dataclass(frozen=True, slots=True)
class RegistryMember:
    """One live consumer of a group, decoded from the consumer's registration.

    ``host`` and ``started_at_ms`` are parsed from a generated id, which has the form ``group_host-millis-8hex`` or
    ``host:uuid``; the second form contains no start time. Both fields are None for a configured ``consumer.id``. A
    consumer registers again after its session has expired, so ``node`` may be newer than the consumer. If the
    registration cannot be decoded, ``error`` is the reason, and the subscription of ``registration`` is empty; if the
    version of the registration is unknown (`UnknownVersion`), ``registration`` instead contains the part that could be
    decoded. ``notes`` describe unknown fields and values.
    """

    member_id: str
    node: NodeData
    registration: ConsumerRegistration
    host: str | None
    started_at_ms: int | None
    error: OffsetMgrError | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GroupMembers:
    """The members of one group, sorted by id. If ``error`` is set, the members are unknown. ``commits`` is True if
    offsets of the group were written since the session first read its members."""

    group: str
    members: tuple[RegistryMember, ...] = field(default=())
    error: OffsetMgrError | None = None
    commits: bool = False

    @property
    def live(self) -> bool:
        """Whether a member is known to run."""
        return self.commits or any(member.node.ephemeral_owner for member in self.members)

    def require_none(self, what: str) -> None:
        """Raises `GroupActive` if the group has members, and ``error``."""
        if self.error is not None:
            raise self.error
        if self.members:
            names = tuple(member.member_id for member in self.members)
            why = f"{len(names)} consumers are registered: {', '.join(names[:3])}"
            if not self.live:
                why = PERSISTENT_MEMBERS.format(count_of(len(names), "persistent registration"))
            raise GroupActive(what, why, "stop them first" if self.live else PERSISTENT_MEMBERS_HINT, members=names)


def members_many(session: ZookeeperSession, groups: Iterable[str]) -> Iterator[GroupMembers]:
    """Yields the live members of many groups, one result per group. Raises if the session fails."""
    for batch in batched(groups, GROUPS_AT_ONCE):
        yield from _members_of(session, batch)


def member_ids(session: ZookeeperSession, groups: Iterable[str]) -> Mapping[str, tuple[str, ...] | OffsetMgrError]:
    """Returns the ids of the live members of those groups that have members, or the error of the group. A group whose
    name is not allowed as a znode name cannot have registered members."""
    possible, _ = paths.possible_groups(groups)
    return {
        group.group: group.error or tuple(member.member_id for member in group.members)
        for group in members_many(session, possible)
        if group.members or group.error
    }


def _members_of(session: ZookeeperSession, groups: list[str]) -> Iterator[GroupMembers]:
    possible, impossible = paths.possible_groups(groups)
    yield from (GroupMembers(group, error=error) for group, error in impossible)
    listed = registrations(session, possible)
    committing = _committing(session, [group for group, nodes in listed.items() if _are_persistent(nodes)])
    for group, nodes in listed.items():
        if isinstance(nodes, OffsetMgrError):
            yield GroupMembers(group, error=nodes)
            continue
        ignored = session.config.ignore_persistent_members and group not in committing
        found = (_member(group, name, one) for name, one in nodes.items() if one.ephemeral_owner or not ignored)
        yield GroupMembers(group, tuple(found), commits=group in committing)


def _are_persistent(nodes: dict[str, NodeData] | OffsetMgrError) -> bool:
    return isinstance(nodes, dict) and bool(nodes) and not any(one.ephemeral_owner for one in nodes.values())


def registrations(session: ZookeeperSession, groups: Sequence[str]) -> dict[str, dict[str, NodeData] | OffsetMgrError]:
    """Returns the registrations of each group by member id. The id of a nested registration is ``PARENT/NAME``; a
    persistent node with children, or without data of its own, is a directory."""
    by_root = {paths.ids(group): group for group in groups}
    found: dict[str, dict[str, NodeData] | OffsetMgrError] = {group: {} for group in groups}
    group = ""
    for one in TreeReader(session).read(list(by_root)):
        group, is_root = by_root.get(one.path, group), one.path in by_root
        known, node = found[group], one.node
        if (error := one.children_error or one.read_error) is not None:
            found[group] = error
        elif (
            isinstance(known, dict)
            and node
            and (node.ephemeral_owner or not (is_root or one.children or paths.is_directory(node.data)))
        ):
            known[one.path.removeprefix(f"{paths.ids(group)}/")] = node
    return found


def _committing(session: ZookeeperSession, groups: Sequence[str]) -> set[str]:
    """Returns the groups whose offsets were written since the first call with this session and group. If the user
    ignores persistent members, the first call watches for a moment. Deletions do not count, because offsetmgr makes
    them."""
    seen = _SEEN.setdefault(session, {})
    if new := [group for group in groups if group not in seen]:
        seen.update(_versions(session, new))
        if session.config.ignore_persistent_members:
            time.sleep(WATCH_S)
    now = _versions(session, groups)
    return {group for group in groups if any(seen[group].get(path) != one for path, one in now[group].items())}


def forget_commits(session: ZookeeperSession, group: str) -> None:
    """Makes the next read of the members start from the present nodes: offsetmgr itself has written offsets."""
    _SEEN.get(session, {}).pop(group, None)


def _versions(session: ZookeeperSession, groups: Sequence[str]) -> dict[str, dict[str, tuple[int, int]]]:
    roots = {f"{paths.group(group)}/{name}": group for group in groups for name in ("offset", "offsets")}
    found: dict[str, dict[str, tuple[int, int]]] = {group: {} for group in groups}
    group = ""
    for one in TreeReader(session).read(list(roots)):
        group = roots.get(one.path, group)
        if one.node is not None:
            found[group][one.path] = (one.node.czxid, one.node.version)
    return found


def _member(group: str, name: str, node: NodeData) -> RegistryMember:
    host, started_at_ms = parse_member_id(group, name) or (None, None)
    path, notes = f"{paths.ids(group)}/{name}", Notes()
    registration, error = ConsumerRegistration({}, "", None, None), None
    try:
        registration = parse_registration(path, node.data, notes)
        broken = bool(notes)
    except OffsetMgrError:
        broken = True
    if broken:  # otherwise the strict parser accepts the node, too
        try:
            parse_registration(path, node.data)
        except OffsetMgrError as strict:
            error = strict
    return RegistryMember(name, node, registration, host, started_at_ms, error, tuple(notes))


# Reads the owners of partitions: ``/consumers/GROUP/owners/TOPIC/PARTITION``. Writes nothing. In Kafka 0.7, the name
# of a partition's node is ``BROKER-PARTITION``, and the partition is represented as a `BrokerPartition`.

OWNERS_OF_GROUPS_AT_ONCE: Final = 500


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
    for batch in batched(groups, OWNERS_OF_GROUPS_AT_ONCE):
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


class Member(NamedTuple):
    """A registered member of a group, with the number of partitions that it owns (None if unknown)."""

    group: str
    member: RegistryMember
    partitions: int | None
    notes: tuple[str, ...]
    errors: tuple[OffsetMgrError, ...]


def members_with_partitions(listed: GroupMembers, owned: GroupOwners) -> Iterator[Member | ReadErrors]:
    """Yields the members of a group, after the errors that prevent counting their partitions."""
    errors = errors_of(listed.error) or errors_of(owned.error, *owned.errors.values())
    if errors:
        yield ReadErrors(listed.group, errors)
    held = Counter(owner.member_id for owner in owned.owners.values())
    for one in listed.members:
        partitions = None if errors else held[one.member_id]
        yield Member(listed.group, one, partitions, (*one.notes, *_persistence(one.node)), errors_of(one.error))


class OwnedPartition(NamedTuple):
    """A partition with its owner."""

    group: str
    partition: TopicPartition
    owner: Owner
    notes: tuple[str, ...]
    errors: tuple[OffsetMgrError, ...]


def owned_partitions(
    owned: GroupOwners, listed: GroupMembers, topics: TopicSelection
) -> Iterator[OwnedPartition | ReadErrors]:
    """Yields the errors of a group, then its selected partitions with their owners."""
    if errors := errors_of(owned.error) or errors_of(listed.error, *owned.errors.values()):
        yield ReadErrors(owned.group, errors)
    live = None if listed.error is not None else {member.member_id: member for member in listed.members}
    for tp, one in owned.owners.items():
        if topics.matches(tp):
            notes = (*_persistence(one.node), *one.inconsistencies(live))
            yield OwnedPartition(owned.group, tp, one, notes, errors_of(one.error))


def _persistence(node: NodeData) -> tuple[str, ...]:
    return () if node.ephemeral_owner else (_PERSISTENT,)
