"""Findings about the owners of partitions. Pure.

Source: kafka.consumer.ZookeeperConsumerConnector. An owner's node is ephemeral and is created by the session that also
created the member's registration. It contains ``<consumer id>-<thread>``, where the id begins with the group's name and
"_".
"""

from __future__ import annotations

from collections.abc import Iterator

from offsetmgr.core.model import TopicPartition
from offsetmgr.zookeeper.check.facts import ClusterFacts, GroupFacts, OtherStoreOffset
from offsetmgr.zookeeper.check.findings import Finding, FindingCode
from offsetmgr.zookeeper.groups.ownership import Owner
from offsetmgr.zookeeper.groups.registry import RegistryMember
from offsetmgr.zookeeper.nodes import paths


def without_owner(facts: GroupFacts, cluster: ClusterFacts) -> Iterator[Finding]:
    """Partitions of subscribed topics that no live member owns, one finding for each topic."""
    wanted: dict[str, int] = {}
    for topics in facts.subscriptions.values():
        for topic in topics:
            wanted[topic] = wanted.get(topic, 0) + 1
    for topic, members in sorted(wanted.items()):
        partitions = (cluster.topics or {}).get(topic)
        if not isinstance(
            partitions, frozenset
        ):  # the topic does not exist; a subscription can contain an invalid name
            continue
        root = paths.owners_of_topic(facts.group, topic)
        if _hidden(facts, root):
            continue
        missing = tuple(sorted(n for n in partitions if TopicPartition(topic, n) not in facts.owners))
        # an unreadable owner node still owns its partition
        missing = tuple(n for n in missing if f"{root}/{n}" not in facts.errors)
        if missing:
            left_over = len(facts.live) < len(facts.members)
            who = "1 live member subscribes" if members == 1 else f"{members} live members subscribe"
            has = "has" if len(missing) == 1 else "have"
            yield Finding(
                FindingCode.NO_OWNER,
                facts.group,
                root,
                f"{{partitions}} of topic {topic} {has} no owner, though {who} to it: they are not consumed",
                "delete the persistent member nodes first: the members leave them their share"
                if left_over
                else "look at the members' logs for a rebalance that failed; a restart of one member starts another",
                topic,
                missing,
            )


def _hidden(facts: GroupFacts, root: str) -> bool:
    """Whether unreadable nodes below ``root`` may hide owners."""
    return root in facts.errors or paths.owners(facts.group) in facts.errors or paths.group(facts.group) in facts.errors


def wrong_owners(facts: GroupFacts) -> Iterator[Finding]:
    """Owners whose node is persistent or of another session, and owners that are not members or are in another
    group."""
    members = {member.member_id: member for member in facts.live}
    known = paths.ids(facts.group) not in facts.errors
    for tp, owner in sorted(facts.owners.items()):
        path = facts.owner_path(tp)
        if owner.session_id == 0:
            yield Finding(
                FindingCode.OWNER_PERSISTENT,
                facts.group,
                path,
                f"is persistent: it does not go with its consumer, and no other can own partition {tp}",
                f"make sure that no consumer reads {tp}, then delete the node",
                tp.topic,
                (tp.partition,),
            )
        if owner.member_id is None:
            continue
        if (other := facts.elsewhere.get(owner.member_id)) is not None:
            yield _of_other_group(facts, tp, path, owner.member_id, other)
        elif (member := members.get(owner.member_id)) is not None:
            if owner.session_id not in (0, member.session_id):
                yield _of_other_session(facts, tp, path, owner, member)
        elif known:
            yield Finding(
                FindingCode.OWNER_NOT_MEMBER,
                facts.group,
                path,
                f"names {owner.member_id} as the owner of {tp}, which is no live member",
                "the session that made the node still lives: end that process"
                if owner.session_id
                else "delete the node",
                tp.topic,
                (tp.partition,),
            )


def _of_other_group(
    facts: GroupFacts, tp: TopicPartition, path: str, member_id: str, other: OtherStoreOffset
) -> Finding:
    what = "a live member of" if other.live else "by its name of"
    return Finding(
        FindingCode.OWNER_OF_OTHER_GROUP,
        facts.group,
        path,
        f"names {member_id} as the owner of {tp}, which is {what} group {other.group}",
        f"find out why a consumer of {other.group} writes here; then delete the node",
        tp.topic,
        (tp.partition,),
    )


def _of_other_session(
    facts: GroupFacts, tp: TopicPartition, path: str, owner: Owner, member: RegistryMember
) -> Finding:
    return Finding(
        FindingCode.OWNER_SESSION,
        facts.group,
        path,
        f"is of session {owner.session_id:#x}, while {member.member_id} is registered by {member.session_id:#x}: "
        f"an earlier session of it still owns {tp}, or another client created the node",
        "wait for that session to end; if it does not, restart the member",
        tp.topic,
        (tp.partition,),
    )
