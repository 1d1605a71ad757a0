"""The sources of live members: group coordinators, ZooKeeper's registry of old consumers, and combinations of both.

Each source is a function of the type `DescribeGroups` (a *describer*)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import GroupDescription, GroupMember, TopicPartition

if TYPE_CHECKING:
    from offsetmgr.groups.describe import DescribeGroups
    from offsetmgr.kafka.cluster.base import Cluster
    from offsetmgr.zookeeper.client.session import ZookeeperSession

Descriptions = Mapping[str, GroupDescription | OffsetMgrError]


def registry_describer(session: ZookeeperSession) -> DescribeGroups:
    """Returns a function that describes groups of old consumers. The function reads the members of a group from
    ``/consumers/G/ids``, and the partitions that the members own from ``/consumers/G/owners``.

    ZooKeeper stores no group state. A group with live members is reported as STABLE, a group whose members may have
    stopped as UNKNOWN (see `registry`), a group without members as EMPTY, and a group without a znode as DEAD.
    """

    def describe(groups: Iterable[str]) -> Descriptions:
        from offsetmgr.zookeeper.groups.ownership import owners_many
        from offsetmgr.zookeeper.groups.registry import members_many
        from offsetmgr.zookeeper.nodes import paths

        names, impossible = paths.possible_groups(groups)  # ZooKeeper has no members of an impossible group
        out: dict[str, GroupDescription | OffsetMgrError] = {
            name: GroupDescription(name, "DEAD") for name, _ in impossible
        }
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
                GroupMember(
                    m.member_id,
                    host=m.host or "",
                    partitions=tuple(sorted(holds.get(m.member_id, ()))),
                    persistent=not found.live,
                )
                for m in found.members
            )
            empty = "DEAD" if listed[found.group] is None else "EMPTY"
            state = "STABLE" if found.live else "UNKNOWN" if members else empty
            out[found.group] = GroupDescription(found.group, state, "zookeeper", members=members)
        return out

    return describe


def describe_memberless_groups(groups: Iterable[str]) -> Descriptions:
    """Describes groups of a snapshot file. These groups have no members."""
    return {group: GroupDescription(group, "DEAD") for group in groups}


def merged_describer(first: DescribeGroups, second: DescribeGroups) -> DescribeGroups:
    """Returns a function that describes groups with the members from both sources. The state of a group comes from the
    first source, unless the group is dead in the first source or has members only in the second source."""

    def describe(groups: Iterable[str]) -> Descriptions:
        names = list(groups)
        here, there = first(names), second(names)
        return {name: _merge(here[name], there[name]) for name in names}

    return describe


def fallback_describer(first: DescribeGroups, second: DescribeGroups) -> DescribeGroups:
    """Returns a function that describes groups by the first source. A group without members there is described with the
    members from the second source, if the second source has any."""

    def describe(groups: Iterable[str]) -> Descriptions:
        here = dict(first(groups))
        idle = [name for name, found in here.items() if not isinstance(found, OffsetMgrError) and not found.members]
        for name, found in second(idle).items():
            if not isinstance(found, OffsetMgrError):
                here[name] = _merge(here[name], found)
        return here

    return describe


def with_registered_members(coordinator: DescribeGroups, cluster: Cluster, session: ZookeeperSession) -> DescribeGroups:
    """Returns a function that describes groups with the members that the coordinator reports and the old consumers that
    are registered in ZooKeeper.

    With dual commit, old consumers commit to the group in Kafka, although they are not members of the Kafka group. The
    members in ZooKeeper are ignored if ZooKeeper belongs to another cluster than ``cluster``.
    """
    with_registry = merged_describer(coordinator, registry_describer(session))

    def describe(groups: Iterable[str]) -> Descriptions:
        names = list(groups)
        found = with_registry(names)
        unclear = any(isinstance(one, OffsetMgrError) or one.members for one in found.values())
        return coordinator(names) if unclear and _is_other_cluster(session, cluster) else found

    return describe


def _is_other_cluster(session: ZookeeperSession, cluster: Cluster) -> bool:
    """Whether ZooKeeper is known to belong to another Kafka cluster than ``cluster``. Returns False if ZooKeeper or the
    brokers report no cluster id, as is the case before Kafka 0.10.1."""
    from offsetmgr.zookeeper.nodes import paths
    from offsetmgr.zookeeper.nodes.cluster import parse_cluster_id

    node = session.get(paths.CLUSTER_ID)
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
