"""The rules of ``zk check``: each derives findings from the facts about one group or the cluster. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from shlex import quote
from typing import Final, NamedTuple, Self

from offsetmgr.core.batches import by_key
from offsetmgr.core.durations import utc_text
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import BrokerPartition, LogRange, TopicPartition
from offsetmgr.core.offset_store import UnrecognisedData
from offsetmgr.core.plurals import count_of, list_of, runs_of_numbers
from offsetmgr.zookeeper.groups.registry import Owner, RegistryMember
from offsetmgr.zookeeper.nodes import paths

# `Finding`: one fault that a check reports, with a code that is stable across offsetmgr versions. Values only.


class Severity(StrEnum):
    """The severity of a finding.

    * ERROR: messages are not consumed, or messages will be lost or reprocessed.
    * WARNING: a node is no longer needed or has no effect.
    * UNKNOWN: the check could not read, understand or decide something.
    """

    ERROR = "error"
    WARNING = "warning"
    UNKNOWN = "unknown"


class FindingCode(StrEnum):
    """The kinds of findings, with their severities. The values are stable across offsetmgr versions, so programs can
    rely on them.

    A finding may be ``transient``: a rebalance, an expiring session or the creation of a topic can cause it, and the
    second check can see commits of a group with persistent members.
    """

    severity: Severity
    transient: bool

    def __new__(cls, value: str, severity: Severity, transient: bool = True) -> Self:
        code = str.__new__(cls, value)
        code._value_, code.severity, code.transient = value, severity, transient
        return code

    NO_OWNER = "no-owner", Severity.ERROR
    MEMBER_PERSISTENT = "member-persistent", Severity.UNKNOWN
    OWNER_PERSISTENT = "owner-persistent", Severity.ERROR, False
    OWNER_SESSION = "owner-session", Severity.ERROR
    OWNER_NOT_MEMBER = "owner-not-member", Severity.ERROR
    OWNER_OF_OTHER_GROUP = "owner-of-other-group", Severity.ERROR
    SUBSCRIPTION_UNSERVED = "subscription-unserved", Severity.WARNING
    OFFSETS_TOPIC_GONE = "offsets-topic-gone", Severity.WARNING
    OFFSETS_PARTITION_GONE = "offsets-partition-gone", Severity.WARNING
    OFFSET_OUT_OF_RANGE = "offset-out-of-range", Severity.ERROR
    LOG_RANGE_UNKNOWN = "log-range-unknown", Severity.UNKNOWN, False
    UNUSED = "unused", Severity.WARNING, False
    UNREADABLE = "unreadable", Severity.UNKNOWN, False
    UNRECOGNISED = "unrecognised", Severity.UNKNOWN, False


PARTITIONS: Final = "{partitions}"
"""The placeholder for the partitions in the text of a finding. The placeholder is replaced only when the finding is
formatted, because the second check may remove some of the partitions."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault. ``todo`` is the remedy. ``group`` is None for a finding that concerns all groups.

    ``text`` is either a sentence without its subject (the subject is the node at ``path``), or a whole sentence that
    begins with `PARTITIONS`.
    """

    code: FindingCode
    group: str | None
    path: str
    text: str
    todo: str
    topic: str | None = None
    partitions: tuple[int, ...] = ()

    @property
    def severity(self) -> Severity:
        return self.code.severity

    @property
    def sentence(self) -> str:
        """The text of the finding as a whole sentence, with the node's path."""
        whole = self.text.startswith(PARTITIONS)
        return f"{self.path}{':' if whole else ''} {self.text.replace(PARTITIONS, partition_list(self.partitions))}"


def confirmed(first: Iterable[Finding], second: Iterable[Finding]) -> list[Finding]:
    """Returns the findings of the second check, except transient findings that the first check did not report.

    A transient finding keeps only the partitions that both checks reported.
    """
    before = {(finding.code, finding.path, finding.topic): finding for finding in first}
    kept: list[Finding] = []
    for finding in second:
        if not finding.code.transient:
            kept.append(finding)
            continue
        earlier = before.get((finding.code, finding.path, finding.topic))
        if earlier is None:
            continue
        common = tuple(number for number in finding.partitions if number in set(earlier.partitions))
        if common or not finding.partitions:
            kept.append(replace(finding, partitions=common))
    return kept


def partition_list(numbers: Sequence[int]) -> str:
    """Formats partitions: ``partition 3``, ``partitions 0-4,7``, and in the 0.7 layout ``partitions 1-0,1-1``."""
    plural = "" if len(numbers) == 1 else "s"
    if any(isinstance(number, BrokerPartition) for number in numbers):
        return f"partition{plural} {','.join(map(str, sorted(numbers)))}"
    return f"partition{plural} {runs_of_numbers(numbers)}"


# The facts from which the rules derive findings: facts about one group, and facts about the cluster. Values only.


class StoredOffset(NamedTuple):
    """A committed offset, and the time of its last write (ms since 1970, by ZooKeeper's clock)."""

    offset: int
    mtime_ms: int


class OtherGroup(NamedTuple):
    """The owner node of one group can name a consumer of another group. In this case, ``group`` is the group of the
    consumer, and ``live`` is True if the consumer is registered in ``group``."""

    group: str
    live: bool


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """The facts of one group.

    ``errors`` maps the path of each unreadable node to its error. The content of an unreadable node and of its
    descendants is unknown.
    """

    group: str
    members: tuple[RegistryMember, ...] = ()
    """All registered members, including those that are not `live`."""
    subscriptions: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Member id -> subscribed topics, for the live members with a readable registration. Patterns are resolved to
    topics."""
    owners: Mapping[TopicPartition, Owner] = field(default_factory=dict)
    foreign_owners: Mapping[str, OtherGroup] = field(default_factory=dict)
    """Consumer id in an owner node of this group -> the other group to which the id belongs. Ids that belong to this
    group are omitted."""
    offsets: Mapping[TopicPartition, StoredOffset] = field(default_factory=dict)
    created_ms: int | None = None
    """Creation time of the group's node; None if unknown."""
    errors: Mapping[str, OffsetMgrError] = field(default_factory=dict)
    unrecognised: tuple[UnrecognisedData, ...] = ()
    commits: bool = False
    """Whether offsets of the group were written during the check, so that persistent members run, too."""

    @property
    def live(self) -> tuple[RegistryMember, ...]:
        """The members that are known to run (see `registry`)."""
        return tuple(member for member in self.members if member.node.session or self.commits)

    def finding(
        self, code: FindingCode, path: str, text: str, todo: str, topic: str | None = None, *partitions: int
    ) -> Finding:
        """Returns a finding about a node of the group. For ``text`` see `Finding`."""
        return Finding(code, self.group, path, text, todo, topic, partitions)

    def owner_path(self, tp: TopicPartition) -> str:
        """The path of a partition's owner node."""
        return f"{paths.owners_of_topic(self.group, tp.topic)}/{self.owners[tp].name}"


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """The facts of the cluster, which are the same for all groups.

    ``topics`` maps each topic to its partitions, or to the error from reading the topic. If ``/brokers/topics`` does
    not exist, no broker has ever used this ZooKeeper. In this case, the topics are unknown, and ``topics`` is None.
    """

    topics: Mapping[str, frozenset[int] | OffsetMgrError] | None
    unserved: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Topic -> partitions that have no leader, or whose leader is not a live broker."""
    storage_modes: Sequence[str] | OffsetMgrError = ()
    """The groups below `paths.STORAGE_MODES` that have a stored mode, or the error if an ACL forbids to list them."""
    connect: str = ""
    """The connect string of ZooKeeper, with the chroot."""


Ranges = Mapping[TopicPartition, LogRange | OffsetMgrError]
"""Partition -> the range of its log, or the error from reading the range."""


# Rules about committed offsets: partitions that no longer exist, and offsets outside of the logs. Pure.


def offsets_without_partition(facts: GroupFacts, cluster: ClusterFacts) -> Iterator[Finding]:
    """For each topic with offsets, yields a finding if the topic does not exist, or if some of the partitions with
    offsets do not exist."""
    if cluster.topics is None:
        return
    for topic, numbers in sorted(by_key(facts.offsets).items()):
        path = paths.offsets_of_topic(facts.group, topic)
        partitions = cluster.topics.get(topic)
        held = f"holds offsets of {{partitions}} of topic {topic}, which"
        delete = "delete the offsets (offsetmgr offsets delete)"
        if partitions is None:
            todo = f"{delete}: consumers of a recreated topic would start at them"
            code = FindingCode.OFFSETS_TOPIC_GONE
            yield facts.finding(code, path, f"{held} does not exist", todo, topic, *sorted(numbers))
        elif isinstance(partitions, frozenset) and (gone := sorted(n for n in numbers if n not in partitions)):
            code, text = FindingCode.OFFSETS_PARTITION_GONE, f"{held} has {len(partitions)} partitions"
            yield facts.finding(code, path, text, delete, topic, *gone)


def partitions_with_log(facts: GroupFacts, cluster: ClusterFacts) -> Iterator[TopicPartition]:
    """Yields the partitions that have a committed offset and whose log range the brokers can report. Brokers can report
    the log range of a partition that exists and is not a partition of Kafka 0.7."""
    for tp in facts.offsets:
        partitions = (cluster.topics or {}).get(tp.topic)
        if (
            isinstance(partitions, frozenset)
            and tp.partition in partitions
            and not isinstance(tp.partition, BrokerPartition)
        ):
            yield tp


def out_of_range(facts: GroupFacts, ranges: Ranges) -> Iterator[Finding]:
    """Yields findings for offsets below the log's start or beyond its end, and for unknown log ranges."""
    unknown: dict[str, list[tuple[int, OffsetMgrError]]] = {}
    for tp, stored in sorted(facts.offsets.items()):
        found = ranges.get(tp)
        if isinstance(found, OffsetMgrError):
            unknown.setdefault(tp.topic, []).append((tp.partition, found))
        elif found is not None and not found.start <= stored.offset <= found.end:
            yield _outside(facts, tp, stored.offset, found)
    for topic, failed in unknown.items():
        path = paths.offsets_of_topic(facts.group, topic)
        text = f"holds offsets of {{partitions}} of topic {topic}, whose log ranges are unknown: {failed[0][1]}"
        todo, numbers = "check again when the brokers respond", [number for number, _ in failed]
        yield facts.finding(FindingCode.LOG_RANGE_UNKNOWN, path, text, todo, topic, *numbers)


def _outside(facts: GroupFacts, tp: TopicPartition, offset: int, log: LogRange) -> Finding:
    where = f"beyond the log's end, {log.end}: the topic was recreated, its log was truncated, or the offset is wrong"
    if offset < log.start:
        where = f"below the log's start, {log.start}: the messages from this offset to the log's start are deleted"
    path = paths.offset(facts.group, tp.topic, tp.partition)
    text = f"holds offset {offset} of {tp}, {where}, and consumers continue according to auto.offset.reset"
    return facts.finding(
        FindingCode.OFFSET_OUT_OF_RANGE, path, text, "set a valid offset (offsetmgr offsets reset)", *tp
    )


# Rules about the owners of partitions. Pure. An owner node is ephemeral. The session that created the owner node also
# created the member's registration. The owner node contains ``<consumer id>-<thread>``, and the consumer id begins
# with the group's name and "_". Source: kafka.consumer.ZookeeperConsumerConnector.


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
        if facts.errors.keys() & {root, paths.owners(facts.group), paths.group(facts.group)}:
            continue  # an unreadable node may hide the owners below it
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


# Rules about a whole group: subscriptions to missing topics or to partitions without a leader, unused groups,
# unreadable nodes. `check_group` applies all rules to a group. Pure.

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
