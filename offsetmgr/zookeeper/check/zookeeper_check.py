"""`ZookeeperCheck`: reads and checks a stream of groups. If a group has transient findings, the group is checked a
second time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from offsetmgr.core.advice import Advice
from offsetmgr.core.batches import batched
from offsetmgr.core.clock import Clock
from offsetmgr.core.errors import CorruptData, NotAuthorized, OffsetMgrError, UsageError, value_of, value_of_each
from offsetmgr.core.log_origin import FetchLogRanges, LogRangeCache
from offsetmgr.core.model import TopicPartition
from offsetmgr.zookeeper.check.rules import (
    ClusterFacts,
    Finding,
    GroupFacts,
    OtherGroup,
    StoredOffset,
    check_cluster,
    check_group,
    confirmed,
    partitions_with_log,
)
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.groups.registry import GroupMembers, GroupOwners, members_many, owners_many
from offsetmgr.zookeeper.groups.subscription import topics_of
from offsetmgr.zookeeper.groups.topics import topics
from offsetmgr.zookeeper.nodes import paths
from offsetmgr.zookeeper.nodes.cluster import parse_cluster_id
from offsetmgr.zookeeper.nodes.offset_data import parse_decimal
from offsetmgr.zookeeper.offsets.group_nodes import GroupNodes, read_groups
from offsetmgr.zookeeper.offsets.layouts import BrokersLayout, Layout

# Reads the facts of many groups in bulk. If a node cannot be read, its error becomes part of the facts.

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


def existing_groups(session: ZookeeperSession) -> list[str]:
    """Returns all groups in ZooKeeper. Raises `CorruptData` if it has neither consumers nor brokers."""
    consumers = session.children(paths.CONSUMERS)
    if consumers is None and session.children(paths.BROKERS) is None:
        why = f"has neither {paths.CONSUMERS} nor {paths.BROKERS}, so there is nothing to check"
        raise CorruptData(f"ZooKeeper at {session.connect}", why, "is the chroot right?")
    return consumers or []


def unknown_cluster(session: ZookeeperSession, kafka_id: str | None) -> str | None:
    """Returns None if ZooKeeper belongs to the brokers' cluster ``kafka_id``, or the reason why this is unknown. Raises
    `UsageError` if it belongs to another cluster."""
    node = session.get(paths.CLUSTER_ID)
    if node is None or kafka_id is None:
        who = "the brokers have" if node is not None else f"ZooKeeper at {session.connect} has"
        return f"whether brokers and ZooKeeper belong to one cluster ({who} no cluster id)"
    if (zookeeper_id := parse_cluster_id(paths.CLUSTER_ID, node.data)) != kafka_id:
        why = f"the brokers belong to cluster {kafka_id}, ZooKeeper to {zookeeper_id}"
        raise UsageError(Advice("{bootstrap_server}"), why, "name the brokers that use this ZooKeeper, and its chroot")
    return None


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


def _groups_in(member_id: str) -> list[str]:
    """Returns the groups to which a consumer id may belong, shortest name first. An id begins with the name of its
    group and "_"."""
    return [member_id[:at] for at, character in enumerate(member_id) if character == "_" and at > 0]


GROUPS_AT_ONCE: Final = 250
MAX_WAITING_FINDINGS: Final = 10_000
"""Maximum number of findings that wait for the second check. When this number is reached, the second check runs
immediately."""


class CheckReport(NamedTuple):
    """The findings for one group."""

    group: str
    findings: Sequence[Finding]


class ZookeeperCheck:
    """One check of many groups. The constructor reads the cluster's topics, and raises the same errors as
    `read_cluster`.

    If ``fetch_log_ranges`` or ``unused_since_ms`` is None, the check skips the rules that need it. Before each second
    check, the object calls ``on_recheck`` with the number of groups to check again, and then waits ``recheck_after_s``
    seconds. If ``recheck_after_s`` is 0, there is no second check. Memory use depends on the batch size and on the
    number of findings that wait for the second check, not on the number of groups.
    """

    def __init__(
        self,
        session: ZookeeperSession,
        known_groups: Iterable[str],
        clock: Clock,
        *,
        fetch_log_ranges: FetchLogRanges | None = None,
        unused_since_ms: int | None = None,
        recheck_after_s: float = 0.0,
        on_recheck: Callable[[int], None] | None = None,
    ) -> None:
        self._session = session
        self._known = frozenset(known_groups)
        self._clock = clock
        self._ranges = None if fetch_log_ranges is None else LogRangeCache(partial(value_of_each, fetch_log_ranges))
        self._unused_since_ms = unused_since_ms
        self._recheck_after_s = recheck_after_s
        self._on_recheck = on_recheck
        self._cluster = read_cluster(session)

    @property
    def cluster_findings(self) -> list[Finding]:
        """The findings that concern all groups."""
        return check_cluster(self._cluster)

    def skipped_rules(self) -> list[str]:
        """The rules that this check skips, each with the reason."""
        reasons: list[str] = []
        if self._cluster.topics is None:
            why = f"there is no {paths.BROKER_TOPICS} here"
            reasons.append(f"owners of all partitions, and whether topics exist ({why})")
        if self._ranges is None:
            reasons.append(Advice("offsets outside of the logs' ranges (no {bootstrap_server})"))
        if self._unused_since_ms is None:
            reasons.append(Advice("unused groups (no {unused_since_ms:unused_since})"))
        if not self._recheck_after_s:
            reasons.append(Advice("whether findings are transient: no second check ({settle_s:settle=0})"))
        return reasons

    def run(self, groups: Iterable[str]) -> Iterator[CheckReport]:
        """Yields the findings of each group. The findings of a group that is checked twice are yielded after its second
        check.

        Raises if the session fails. A node that cannot be read is reported as a finding.
        """
        waiting: list[CheckReport] = []
        for batch in batched(groups, GROUPS_AT_ONCE):
            for checked in self._check(batch):
                if self._recheck_after_s and any(finding.code.transient for finding in checked.findings):
                    waiting.append(checked)
                else:
                    yield checked
            if sum(len(checked.findings) for checked in waiting) >= MAX_WAITING_FINDINGS:
                yield from self._recheck(waiting)
                waiting = []
        if waiting:
            yield from self._recheck(waiting)

    def _check(self, groups: Sequence[str]) -> Iterator[CheckReport]:
        """Reads the current state of groups and checks it. Raises if the session fails."""
        # Reads members before owners. If a member joins between the two reads, the first check reports that the owner
        # of the member's partitions is not a member. The second check removes this finding. If owners were read before
        # members, the partitions of a member that leaves would seem to have no owner.
        members = {found.group: found for found in members_many(self._session, groups)}
        owners = {found.group: found for found in owners_many(self._session, groups)}
        nodes = read_groups(self._session, _AnyPartition(), groups)
        # The consumer ids in the owner nodes of each group that belong to a different group, with this group. They are
        # looked for among the members of all groups in ZooKeeper.
        foreign: dict[str, dict[str, OtherGroup]] = {group: {} for group in members}
        registrations_to_read: list[tuple[str, str, str]] = []
        for group, listed in members.items():
            own = {member.member_id for member in listed.members}
            ids = {owner.member_id for owner in owners[group].owners.values() if owner.member_id is not None}
            for foreign_owner in sorted(ids - own):
                candidates = [other for other in _groups_in(foreign_owner) if other != group and other in self._known]
                if candidates and not foreign_owner.startswith(f"{group}_"):
                    foreign[group][foreign_owner] = OtherGroup(candidates[-1], live=False)
                registrations_to_read += [(group, foreign_owner, other) for other in candidates]
        registered = self._session.get_many(
            [f"{paths.ids(other)}/{foreign_owner}" for _, foreign_owner, other in registrations_to_read]
        )
        for (group, foreign_owner, other), node in zip(registrations_to_read, registered, strict=True):
            if node is not None and not isinstance(node, OffsetMgrError):
                foreign[group][foreign_owner] = OtherGroup(other, live=True)
        found = [_facts(self._cluster, members[one.group], owners[one.group], one, foreign[one.group]) for one in nodes]
        ranges = None
        if self._ranges is not None:
            ranges = self._ranges.known
            with_log = ((facts, tp) for facts in found for tp in partitions_with_log(facts, self._cluster))
            self._ranges.load(offsets=((tp, facts.offsets[tp].offset) for facts, tp in with_log))
        for facts in found:
            yield CheckReport(facts.group, check_group(facts, self._cluster, ranges, self._unused_since_ms))

    def _recheck(self, waiting: Sequence[CheckReport]) -> Iterator[CheckReport]:
        """Waits, checks the groups again, and yields the findings that both checks confirm.

        Reads the topics and the log ranges again, because a topic may have been created, deleted or recreated since
        the first check.
        """
        if self._on_recheck is not None:
            self._on_recheck(len(waiting))
        self._clock.sleep(self._recheck_after_s)
        self._session.sync()
        self._cluster = read_cluster(self._session)
        if self._ranges is not None:
            self._ranges.clear()
        for batch in batched(waiting, GROUPS_AT_ONCE):
            for first, second in zip(batch, self._check([checked.group for checked in batch]), strict=True):
                yield CheckReport(second.group, confirmed(first.findings, second.findings))
