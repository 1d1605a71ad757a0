"""Finds the live members of a store's groups: from coordinators, ZooKeeper's registry, or both (dual)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from offsetmgr.core.errors import OffsetMgrError, UsageError
from offsetmgr.core.model import GroupDescription, GroupMember, TopicPartition

if TYPE_CHECKING:
    from offsetmgr.groups.describe import DescribeGroups
    from offsetmgr.kafka.cluster.base import Cluster
    from offsetmgr.zookeeper.client.session import ZookeeperSession

Descriptions = Mapping[str, GroupDescription | OffsetMgrError]


def registry_directory(session: ZookeeperSession) -> DescribeGroups:
    """Members that old consumers registered in ``/consumers/G/ids``, and their partitions in ``/consumers/G/owners``.

    ZooKeeper stores no group state. A group with members is STABLE, one without members EMPTY, one without a znode
    DEAD.
    """

    def describe(groups: Iterable[str]) -> Descriptions:
        from offsetmgr.zookeeper.groups.ownership import owners_many
        from offsetmgr.zookeeper.groups.registry import members_many
        from offsetmgr.zookeeper.nodes import paths

        out: dict[str, GroupDescription | OffsetMgrError] = {}
        names = []
        for name in groups:
            try:
                paths.check_group(name)
            except UsageError:  # no node can have this name, so it has no registrations
                out[name] = GroupDescription(name, "DEAD")
            else:
                names.append(name)
        owned = {found.group: found for found in owners_many(session, names)}
        listed = dict(zip(names, session.children_many([paths.group(name) for name in names]), strict=True))
        for found in members_many(session, names):
            owners = owned[found.group]
            if (error := found.error or owners.error) is not None:
                out[found.group] = error
                continue
            holds: dict[str, list[TopicPartition]] = {}
            for tp, owner in owners.owners.items():
                if owner.member_id is not None:
                    holds.setdefault(owner.member_id, []).append(tp)
            members = tuple(
                GroupMember(m.member_id, host=m.host or "", partitions=tuple(sorted(holds.get(m.member_id, ()))))
                for m in found.members
            )
            empty = "DEAD" if listed[found.group] is None else "EMPTY"
            out[found.group] = GroupDescription(
                found.group, "STABLE" if members else empty, "zookeeper", members=members
            )
        return out

    return describe


def cluster_directory(cluster: Cluster) -> DescribeGroups:
    """Members that the groups' coordinators report."""
    return cluster.describe_groups


def empty_directory(groups: Iterable[str]) -> Descriptions:
    """Members of groups in files, which have no consumers: none."""
    return {group: GroupDescription(group, "DEAD") for group in groups}


def merged_directory(first: DescribeGroups, second: DescribeGroups) -> DescribeGroups:
    """The members of both sources. A group's state is that of the first, unless only the second has members."""

    def describe(groups: Iterable[str]) -> Descriptions:
        names = list(groups)
        here, there = first(names), second(names)
        return {name: _merge(here[name], there[name]) for name in names}

    return describe


def with_registered_members(coordinator: DescribeGroups, cluster: Cluster, session: ZookeeperSession) -> DescribeGroups:
    """The coordinator's members, and old consumers registered in ZooKeeper.

    With dual commit, old consumers commit to the group without being its members. A ZooKeeper of another cluster is
    ignored.
    """
    with_registry = merged_directory(coordinator, registry_directory(session))

    def describe(groups: Iterable[str]) -> Descriptions:
        names = list(groups)
        found = with_registry(names)
        unclear = any(isinstance(one, OffsetMgrError) or one.members for one in found.values())
        return coordinator(names) if unclear and _is_other_cluster(session, cluster) else found

    return describe


def _is_other_cluster(session: ZookeeperSession, cluster: Cluster) -> bool:
    """Whether this ZooKeeper is known to be another cluster's; False if one of the two has no id (before 0.10.1)."""
    from offsetmgr.zookeeper.nodes import paths
    from offsetmgr.zookeeper.nodes.cluster import parse_cluster_id

    (node,) = session.get_many([paths.CLUSTER_ID])
    if isinstance(node, OffsetMgrError):
        raise node
    here = cluster.cluster_id()
    return node is not None and here is not None and parse_cluster_id(paths.CLUSTER_ID, node.data) != here


def _merge(
    first: GroupDescription | OffsetMgrError, second: GroupDescription | OffsetMgrError
) -> GroupDescription | OffsetMgrError:
    if isinstance(first, OffsetMgrError):
        return first
    if isinstance(second, OffsetMgrError):
        return second
    unseen = first.idle or not first.membership
    state = second.state if unseen and (second.members or first.state == "DEAD") else first.state
    return replace(first, state=state, members=first.members + second.members)
