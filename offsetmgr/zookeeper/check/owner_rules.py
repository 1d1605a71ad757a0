"""Rules about the owners of partitions. Pure.

An owner node is ephemeral. The session that created the owner node also created the member's registration. The owner
node contains ``<consumer id>-<thread>``, and the consumer id begins with the group's name and "_". Source:
kafka.consumer.ZookeeperConsumerConnector.
"""

from __future__ import annotations

from collections.abc import Iterator

from offsetmgr.core.model import TopicPartition
from offsetmgr.zookeeper.check.facts import ClusterFacts, GroupFacts
from offsetmgr.zookeeper.check.findings import Finding, FindingCode
from offsetmgr.zookeeper.nodes import paths


def without_owner(facts: GroupFacts, cluster: ClusterFacts) -> Iterator[Finding]:
    """Yields one finding for each subscribed topic that has partitions without an owner."""
    members_by_topic: dict[str, int] = {}
    for topics in facts.subscriptions.values():
        for topic in topics:
            members_by_topic[topic] = members_by_topic.get(topic, 0) + 1
    for topic, members in sorted(members_by_topic.items()):
        partitions = (cluster.topics or {}).get(topic)
        if not isinstance(partitions, frozenset):  # the topic does not exist, or cannot be read
            continue
        root = paths.owners_of_topic(facts.group, topic)
        if _owners_unknown(facts, root):
            continue
        missing = tuple(sorted(n for n in partitions if TopicPartition(topic, n) not in facts.owners))
        # a partition with an unreadable owner node has an owner
        missing = tuple(n for n in missing if f"{root}/{n}" not in facts.errors)
        if missing:
            left_over = len(facts.live) < len(facts.members)
            who = "1 live member subscribes" if members == 1 else f"{members} live members subscribe"
            has = "has" if len(missing) == 1 else "have"
            text = f"{{partitions}} of topic {topic} {has} no owner, though {who} to it: they are not consumed"
            todo = "check the members' logs for a failed rebalance; restart one member to start another rebalance"
            if left_over:
                todo = "delete the persistent member nodes first: the live members assign partitions to them"
            yield facts.finding(FindingCode.NO_OWNER, root, text, todo, topic, *missing)


def _owners_unknown(facts: GroupFacts, root: str) -> bool:
    """Whether an unreadable node may hide the owners below ``root``."""
    return root in facts.errors or paths.owners(facts.group) in facts.errors or paths.group(facts.group) in facts.errors


def wrong_owners(facts: GroupFacts) -> Iterator[Finding]:
    """Yields findings for owner nodes that are persistent or were not created by their member's session, and for owners
    that are not members of the group."""
    members = {member.member_id: member for member in facts.members}
    known = paths.ids(facts.group) not in facts.errors
    for tp, owner in sorted(facts.owners.items()):
        path, session = facts.owner_path(tp), owner.node.session
        if session is None and not facts.commits:
            text = f"is persistent: it outlives its consumer, and no other consumer can own partition {tp}"
            todo = f"make sure that no consumer reads {tp}, then delete the node"
            yield facts.finding(FindingCode.OWNER_PERSISTENT, path, text, todo, *tp)
        if owner.member_id is None:
            continue
        if (other := facts.foreign_owners.get(owner.member_id)) is not None:
            what = "a live member of" if other.live else "named like a member of"
            text = f"names {owner.member_id}, which is {what} group {other.group}, as the owner of {tp}"
            why = f"find out why a consumer of group {other.group} owns a partition in this group"
            yield facts.finding(FindingCode.OWNER_OF_OTHER_GROUP, path, text, f"{why}; then delete the node", *tp)
        elif (member := members.get(owner.member_id)) is not None:
            if session not in (None, member.node.session):
                text = (
                    f"belongs to session {session}, but {member.member_id} is registered by "
                    f"{member.node.session or '0x0'}: an earlier session of this member still owns {tp}, or another "
                    "client created the node"
                )
                todo = "wait until the owner node's session ends; if it does not end, restart the member"
                yield facts.finding(FindingCode.OWNER_SESSION, path, text, todo, *tp)
        elif known:
            text = f"names {owner.member_id}, which is not a live member, as the owner of {tp}"
            todo = "stop the process whose session created the node; that session still exists"
            yield facts.finding(FindingCode.OWNER_NOT_MEMBER, path, text, todo if session else "delete the node", *tp)
