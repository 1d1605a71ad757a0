"""Rules about a whole group: subscriptions to missing topics or to partitions without a leader, unused groups,
unreadable nodes. `check_group` applies all rules to a group. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from offsetmgr.core.durations import utc_text
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.plurals import count_of, list_of
from offsetmgr.zookeeper.check.facts import ClusterFacts, GroupFacts, Ranges
from offsetmgr.zookeeper.check.findings import Finding, FindingCode
from offsetmgr.zookeeper.check.offset_rules import offsets_without_partition, out_of_range
from offsetmgr.zookeeper.check.owner_rules import without_owner, wrong_owners
from offsetmgr.zookeeper.nodes import paths

_INSPECT_NODE = "inspect the node (offsetmgr zk tree) and its ACL"
_SHOWN = 20


def check_group(
    facts: GroupFacts, cluster: ClusterFacts, ranges: Ranges | None, unused_since_ms: int | None
) -> list[Finding]:
    """Applies all rules to one group. If ``ranges`` or ``unused_since_ms`` is None, the rule that needs this value is
    skipped."""
    return [
        *unreadable(facts),
        *left_over_members(facts, cluster),
        *without_owner(facts, cluster),
        *wrong_owners(facts),
        *unserved(facts, cluster),
        *offsets_without_partition(facts, cluster),
        *(out_of_range(facts, ranges) if ranges is not None else ()),
        *(unused(facts, unused_since_ms) if unused_since_ms is not None else ()),
    ]


def check_cluster(cluster: ClusterFacts) -> list[Finding]:
    """Returns the findings that concern all groups: unreadable topics, and storage modes of an earlier offsetmgr."""
    found: list[Finding] = []
    for topic, error in sorted((cluster.topics or {}).items()):
        if not isinstance(error, frozenset):
            text = f"cannot be read: {error.why or error.what}"
            found.append(Finding(FindingCode.UNREADABLE, None, paths.topic(topic), text, _INSPECT_NODE, topic))
    return [*found, *storage_modes(cluster)]


def storage_modes(cluster: ClusterFacts) -> Iterator[Finding]:
    """Yields a finding for the nodes that ``migrate switch`` of an earlier offsetmgr wrote."""
    groups, path = cluster.storage_modes, paths.STORAGE_MODES
    if isinstance(groups, OffsetMgrError):
        text = f"cannot be read: {groups.why or groups.what}"
        yield Finding(FindingCode.UNREADABLE, None, path, text, _INSPECT_NODE)
    elif groups:
        text = (
            f"holds the storage mode of {count_of(len(groups), 'group')} ({list_of(groups, _SHOWN)}), which migrate "
            "switch of an earlier offsetmgr recorded; this version has no such command and ignores the mode"
        )
        delete = f"zookeeper-shell.sh {quote(cluster.connect)} deleteall"
        todo = "if no consumer runs with that offsetmgr any more, delete the nodes (rmr in ZooKeeper 3.4): " + list_of(
            (f"{delete} {quote(f'{path}/{group}')}" for group in groups), _SHOWN, "; "
        )
        yield Finding(FindingCode.UNRECOGNISED, None, path, text, todo)


def unreadable(facts: GroupFacts) -> Iterator[Finding]:
    """Yields a finding for each node of the group that cannot be read or decoded."""
    for path, error in sorted(facts.errors.items()):
        text, todo = f"cannot be read: {error.why or error.what}", error.hint or _INSPECT_NODE
        yield facts.finding(FindingCode.UNREADABLE, path, text, todo)
    for member in facts.members:
        if (broken := member.error) is not None:
            path = f"{paths.ids(facts.group)}/{member.member_id}"
            text = f"cannot be read: {broken.why or broken.what}; the subscription of this member is unknown"
            yield facts.finding(FindingCode.UNREADABLE, path, text, _INSPECT_NODE)
    for tp, owner in sorted(facts.owners.items()):
        if (broken := owner.error) is not None:
            path = facts.owner_path(tp)
            text = f"cannot be read: {broken.why or broken.what}; the owner of {tp} is unknown"
            yield facts.finding(FindingCode.UNREADABLE, path, text, _INSPECT_NODE, *tp)
    for absolute, what, may_hold_offsets in facts.unrecognised:
        path = absolute[absolute.index(paths.group(facts.group)) :]
        text = f"{what}; it may be offsets" if may_hold_offsets else what
        yield facts.finding(FindingCode.UNRECOGNISED, path, text, "find out which client writes it")


def left_over_members(facts: GroupFacts, cluster: ClusterFacts) -> Iterator[Finding]:
    """Yields a finding for each persistent registration of a consumer that is not known to run."""
    for member in facts.members:
        if member not in facts.live:
            path = f"{paths.ids(facts.group)}/{member.member_id}"
            text = "is persistent, which does not show whether its consumer runs, and no commit was seen"
            todo = (
                "if its consumer has stopped (kafka-spark-consumer registers such nodes while it runs),"
                f" delete the node: zookeeper-shell.sh {quote(cluster.connect)} delete {quote(path)}"
            )
            yield facts.finding(FindingCode.MEMBER_PERSISTENT, path, text, todo)


def unserved(facts: GroupFacts, cluster: ClusterFacts) -> Iterator[Finding]:
    """Yields a finding for a live member if a topic to which it subscribes does not exist or has partitions without a
    live leader, or if the member's pattern matches no topic."""
    if cluster.topics is None:
        return
    for member in facts.live:
        topics = facts.subscriptions.get(member.member_id)
        if topics is None:
            continue
        path = f"{paths.ids(facts.group)}/{member.member_id}"
        todo = "create the topic, or fix the consumer's subscription"
        if missing := sorted(topic for topic in topics if topic not in cluster.topics):
            names = ", ".join(missing)
            what = f"topic {names}, which does" if len(missing) == 1 else f"topics {names}, which do"
            text = f"subscribes to {what} not exist"
            one = missing[0] if len(missing) == 1 else None
            yield facts.finding(FindingCode.SUBSCRIPTION_UNSERVED, path, text, todo, one)
        for topic in sorted(topics & cluster.unserved.keys()):
            text = f"subscribes to topic {topic}, of which {{partitions}} have no live leader"
            todo = "check the brokers that host them (offsetmgr zk topics)"
            yield facts.finding(FindingCode.SUBSCRIPTION_UNSERVED, path, text, todo, topic, *cluster.unserved[topic])
        if not topics and member.registration.subscription:
            (pattern, *_) = member.registration.subscription
            text = f"subscribes by {member.registration.pattern} {pattern!r}, which no topic matches"
            yield facts.finding(FindingCode.SUBSCRIPTION_UNSERVED, path, text, todo)


def unused(facts: GroupFacts, since_ms: int) -> Iterator[Finding]:
    """Yields a finding if the group has no member and no offset was written since ``since_ms``.

    If a node of the group cannot be read, this function yields nothing, and `unreadable` yields a finding for this
    node.
    """
    if facts.members or facts.errors or facts.created_ms is None or (facts.unrecognised and not facts.offsets):
        return
    last = max((stored.mtime_ms for stored in facts.offsets.values()), default=facts.created_ms)
    if last < since_ms:
        what = "its offsets were last written" if facts.offsets else "it has no offsets here, and was created"
        text = f"has no live member, and {what} on {utc_text(last)[:10]}"
        todo = "delete it if it is not needed (offsetmgr groups delete); its consumers may still commit to Kafka"
        yield facts.finding(FindingCode.UNUSED, paths.group(facts.group), text, todo)
