"""Reads the facts of many groups in bulk. If a node cannot be read, its error becomes part of the facts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from offsetmgr.core.errors import NotAuthorized, OffsetMgrError, value_of
from offsetmgr.core.model import TopicPartition
from offsetmgr.zookeeper.check.facts import ClusterFacts, GroupFacts, OtherGroup, StoredOffset
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.groups.ownership import GroupOwners, owners_many
from offsetmgr.zookeeper.groups.registry import GroupMembers, members_many
from offsetmgr.zookeeper.groups.topic_filter import topics_of
from offsetmgr.zookeeper.groups.topics import topics
from offsetmgr.zookeeper.nodes import paths
from offsetmgr.zookeeper.nodes.offset_data import parse_decimal
from offsetmgr.zookeeper.offsets.group_nodes import GroupNodes, read_groups
from offsetmgr.zookeeper.offsets.layouts import BrokersLayout, Layout

_KAFKA_0_7: Final = BrokersLayout()


class _AnyPartition(Layout):
    """Kafka's layouts of all releases."""

    def partition(self, topic: str, node: str) -> TopicPartition | None:
        return super().partition(topic, node) or _KAFKA_0_7.partition(topic, node)


def read_cluster(session: ZookeeperSession) -> ClusterFacts:
    """Reads the facts of the cluster. Raises if ``/brokers/topics`` or ``/brokers/ids`` cannot be read."""
    modes: list[str] | OffsetMgrError
    try:
        names = sorted(session.children(paths.STORAGE_MODES) or ())
        below = map(value_of, session.children_many([f"{paths.STORAGE_MODES}/{name}" for name in names]))
        modes = [name for name, nodes in zip(names, below, strict=True) if "storage" in (nodes or ())]
    except NotAuthorized as denied:
        modes = denied
    topic_names = session.children(paths.BROKER_TOPICS)
    if topic_names is None:
        return ClusterFacts(None, storage_modes=modes, connect=session.connect)
    alive = set(session.children(paths.BROKER_IDS) or ())
    found: dict[str, frozenset[int] | OffsetMgrError] = {}
    unserved: dict[str, tuple[int, ...]] = {}
    for topic in topics(session, sorted(topic_names)):
        error = topic.assignment.error or topic.error
        found[topic.name] = frozenset(topic.partitions) if error is None else error
        # omits missing and unreadable state nodes, because they do not show whether the partition's leader is alive
        states = {number: state.value for number, state in topic.states.items() if state.value is not None}
        if leaderless := tuple(number for number, state in sorted(states.items()) if str(state.leader) not in alive):
            unserved[topic.name] = leaderless
    return ClusterFacts(found, unserved, modes, session.connect)


def read_facts(
    session: ZookeeperSession, cluster: ClusterFacts, known: Collection[str], groups: Sequence[str]
) -> list[GroupFacts]:
    """Reads the current state of groups. Raises if the session fails.

    ``known`` are all groups in ZooKeeper. If the owner of a group's partition is not a member of this group, the
    function looks for the owner among the members of the groups in ``known``.
    """
    # Reads members before owners. If a member joins between the two reads, the first check reports that the owner of
    # the member's partitions is not a member. The second check removes this finding. If owners were read before
    # members, the partitions of a member that leaves would seem to have no owner.
    members = {found.group: found for found in members_many(session, groups)}
    owners = {found.group: found for found in owners_many(session, groups)}
    nodes = read_groups(session, _AnyPartition(), groups)
    foreign = _foreign_owners(session, known, members, owners)
    return [_facts(cluster, members[found.group], owners[found.group], found, foreign[found.group]) for found in nodes]


def _facts(
    cluster: ClusterFacts,
    members: GroupMembers,
    owners: GroupOwners,
    nodes: GroupNodes,
    foreign_owners: Mapping[str, OtherGroup],
) -> GroupFacts:
    group = members.group
    errors = dict(nodes.errors)
    offsets: dict[TopicPartition, StoredOffset] = {}
    for partition, path, node in nodes.offsets:
        try:
            stored = value_of(node)
            offsets[partition] = StoredOffset(parse_decimal(path, stored.data), stored.mtime_ms)
        except OffsetMgrError as error:
            errors[path] = error
    if members.error is not None:
        errors[paths.ids(group)] = members.error
    if owners.error is not None:
        errors[paths.owners(group)] = owners.error
    subscriptions: dict[str, frozenset[str]] = {}
    for member in members.members:
        if member.error is None and (member.node.session or members.commits):
            try:
                registration = member.registration
                streams = topics_of(registration.subscription, registration.pattern, cluster.topics or ())
                subscriptions[member.member_id] = frozenset(topic for topic, n in streams.items() if n > 0)
            except OffsetMgrError as error:  # the pattern cannot be parsed
                errors[f"{paths.ids(group)}/{member.member_id}"] = error
    return GroupFacts(
        group,
        members.members,
        subscriptions,
        owners.owners,
        foreign_owners,
        offsets,
        nodes.created_ms,
        {**errors, **owners.errors},
        tuple(nodes.unrecognised),
        members.commits,
    )


def _foreign_owners(
    session: ZookeeperSession,
    known: Collection[str],
    members: Mapping[str, GroupMembers],
    owners: Mapping[str, GroupOwners],
) -> dict[str, dict[str, OtherGroup]]:
    """For each group, returns the consumer ids in the group's owner nodes that belong to a different group. Each
    consumer id is mapped to the group to which it belongs."""
    found: dict[str, dict[str, OtherGroup]] = {group: {} for group in members}
    registrations_to_read: list[tuple[str, str, str]] = []
    for group in members:
        own = {member.member_id for member in members[group].members}
        ids = {owner.member_id for owner in owners[group].owners.values() if owner.member_id is not None}
        for foreign_owner in sorted(ids - own):
            candidates = [other for other in _groups_in(foreign_owner) if other != group and other in known]
            if candidates and not foreign_owner.startswith(f"{group}_"):
                found[group][foreign_owner] = OtherGroup(candidates[-1], live=False)
            registrations_to_read += [(group, foreign_owner, other) for other in candidates]
    registered = session.get_many(
        [f"{paths.ids(other)}/{foreign_owner}" for _, foreign_owner, other in registrations_to_read]
    )
    for (group, foreign_owner, other), node in zip(registrations_to_read, registered, strict=True):
        if node is not None and not isinstance(node, OffsetMgrError):
            found[group][foreign_owner] = OtherGroup(other, live=True)
    return found


def _groups_in(member_id: str) -> list[str]:
    """Returns the groups to which a consumer id may belong, shortest name first. An id begins with the name of its
    group and "_"."""
    return [member_id[:at] for at, character in enumerate(member_id) if character == "_" and at > 0]
