"""Reads the live old consumers of many groups from ZooKeeper's registry, for `mirror_safety`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from offsetmgr.migration.mirror_safety import LegacyGroup, LegacyOwner, ReadLegacyGroups
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.groups.ownership import owners_many
from offsetmgr.zookeeper.groups.registry import members_many


def legacy_groups(session: ZookeeperSession) -> ReadLegacyGroups:
    """Returns a function that reads the members and owners of groups.

    The returned function raises an error if the session fails. An error that concerns a single group is not raised, but
    stored in `LegacyGroup.error` of this group.
    """

    def read(groups: Iterable[str]) -> Mapping[str, LegacyGroup]:
        found = {group.group: group for group in members_many(session, groups) if group.members or group.error}
        found_groups = {name: LegacyGroup({}, {}, group.error) for name, group in found.items()}
        for owned in owners_many(session, [name for name, group in found.items() if group.error is None]):
            problem = owned.error or next(iter(owned.errors.values()), None)
            members = {member.member_id: member.node.ephemeral_owner for member in found[owned.group].members}
            owners = {tp: LegacyOwner(owner.member_id, owner.node.czxid) for tp, owner in owned.owners.items()}
            found_groups[owned.group] = LegacyGroup(members, owners, problem)
        return found_groups

    return read
