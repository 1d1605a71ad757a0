"""``zk``: Kafka's znodes, and requests to the controller through ZooKeeper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.app.ui import Interrupted
from offsetmgr.core.advice import Advice, Invocation
from offsetmgr.core.errors import (
    CorruptData,
    FileFailure,
    OffsetMgrError,
    ServerError,
    UnknownTopicOrPartition,
    UsageError,
)
from offsetmgr.core.model import BrokerPartition, TopicPartition
from offsetmgr.core.plurals import count_of
from offsetmgr.core.selection import ALL_TOPICS, GroupSelection, TopicSelection

if TYPE_CHECKING:
    from offsetmgr.app.connections import Connections
    from offsetmgr.kafka.cluster import KafkaCluster
    from offsetmgr.zookeeper.admin.plan import RequestPlan, RequestProgress, RequestStep, StepOutcome
    from offsetmgr.zookeeper.check.rules import Finding
    from offsetmgr.zookeeper.client.session import ZookeeperSession
    from offsetmgr.zookeeper.groups.registry import Owner, RegistryMember
    from offsetmgr.zookeeper.groups.topics import Topic
    from offsetmgr.zookeeper.nodes.cluster import RegisteredBroker
    from offsetmgr.zookeeper.nodes.cluster_nodes import ClusterNodes, NodeEntry
    from offsetmgr.zookeeper.nodes.kinds import NodeDescription
    from offsetmgr.zookeeper.nodes.topics import PartitionState
    from offsetmgr.zookeeper.nodes.tree import TreeNode

WAIT_S: Final = 300.0
_PERSISTENT: Final = "persistent: does not show whether its consumer runs"


class ReadErrors(NamedTuple):
    """The errors of a whole group or of a missing node. ``name`` is the group or the path."""

    name: str
    errors: tuple[OffsetMgrError, ...]


class Znode(NamedTuple):
    """A znode with its decoded content."""

    tree: TreeNode
    found: NodeDescription

    @property
    def errors(self) -> tuple[OffsetMgrError, ...]:
        return _known(self.tree.read_error or self.found.error, self.tree.children_error)


def tree(connections: Connections, path: str = "/", depth: int | None = None) -> Iterator[Znode | ReadErrors]:
    """Yields a znode and its descendants down to ``depth`` levels, decoded. Raises `UsageError` for an invalid path."""
    from offsetmgr.zookeeper.nodes.kinds import NodeDescription, describe
    from offsetmgr.zookeeper.nodes.tree import walk

    if not path.startswith("/") or "//" in path or (path != "/" and path.endswith("/")):
        raise UsageError(f"path {path!r}", "is not a valid ZooKeeper path", "as in /brokers/ids")
    session = connections.zookeeper("zk tree")
    one = None
    for one in connections.ui.progress(walk(session, path, depth), "nodes"):
        yield Znode(one, NodeDescription() if one.node is None else describe(one.path, one.node.data))
    if one is None:
        missing = ServerError(f"ZooKeeper node {path}", f"does not exist in ZooKeeper at {session.connect}")
        yield ReadErrors(path, (missing,))


class Broker(NamedTuple):
    """A node below ``/brokers/ids``. ``broker_id`` is None if the node's name is not an id. ``role`` is "controller" or
    None."""

    broker_id: int | None
    role: str | None
    entry: NodeEntry[RegisteredBroker]
    errors: tuple[OffsetMgrError, ...]


class ClusterBrokers(NamedTuple):
    """The live brokers, and the nodes that exist once per cluster. ``zookeeper`` is the connect string."""

    zookeeper: str
    cluster: ClusterNodes
    live: Sequence[Broker]


def brokers(connections: Connections) -> ClusterBrokers:
    """Returns the live brokers with their addresses, and which of them is the controller."""
    from offsetmgr.zookeeper.nodes import cluster_nodes

    session = connections.zookeeper("zk brokers")
    cluster = cluster_nodes.cluster_nodes(session)
    controller, found = cluster.controller.value, []
    for entry in cluster_nodes.brokers(session):
        leads = entry.value is not None and controller is not None and controller.broker_id == entry.value.broker_id
        name = entry.path.rpartition("/")[2]
        number = int(name) if name.isascii() and name.isdigit() else None
        found.append(Broker(number, "controller" if leads else None, entry, _known(entry.error)))
    return ClusterBrokers(session.connect, cluster, found)


class PartitionReplicas(NamedTuple):
    """A partition of a topic. ``partition`` is None in a result for the whole topic, which has no partitions or could
    not be read. Replicas are broker ids, the preferred leader first."""

    topic: str
    partition: int | None
    replicas: tuple[int, ...]
    notes: tuple[str, ...]
    errors: tuple[OffsetMgrError, ...] = ()
    state: PartitionState | None = None
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    topic_id: str | None = None

    @property
    def leader(self) -> int | None:
        if isinstance(self.partition, BrokerPartition):
            return self.partition.broker
        return self.state.leader if self.state else None


def topics(connections: Connections, topic: TopicSelection = ALL_TOPICS) -> Iterator[PartitionReplicas]:
    """Yields the partitions of topics with their leaders, assigned and in-sync replicas, and reassignments.

    Partitions of Kafka 0.7 are `BrokerPartition` objects. Raises `UnknownTopicOrPartition` if a named topic does not
    exist.
    """
    from offsetmgr.zookeeper.groups.topics import topic_names
    from offsetmgr.zookeeper.groups.topics import topics as read
    from offsetmgr.zookeeper.nodes.paths import DELETE_TOPICS

    session = connections.zookeeper("zk topics")
    known = topic_names(session)
    if missing := sorted(set(topic.named()) - set(known)):
        raise UnknownTopicOrPartition(f"topic {missing[0]}", f"does not exist in ZooKeeper at {session.connect}")
    names = [name for name in known if topic.matches_topic(name)]
    deletions = frozenset(session.children(DELETE_TOPICS) or ())
    one = None
    for found in connections.ui.progress(read(session, names), "topics", len(names)):
        for one in _partitions(found, topic, ("being deleted",) if found.name in deletions else ()):
            yield one
    if one is None:
        connections.ui.note(f"no topics in ZooKeeper at {session.connect}{'' if known else '; is the chroot right?'}")


def _partitions(topic: Topic, selection: TopicSelection, notes: tuple[str, ...]) -> Iterator[PartitionReplicas]:
    notes += topic.assignment.notes
    assignment = topic.assignment.value
    broken = _known(topic.assignment.error, topic.error, *(count.error for count in topic.counts.values()))
    for partition in topic.partitions:
        if not selection.matches(TopicPartition(topic.name, partition)):
            continue
        if isinstance(partition, BrokerPartition):
            yield PartitionReplicas(topic.name, partition, (partition.broker,), notes)
        elif assignment is not None:
            entry, replicas = topic.states.get(partition), assignment.replicas[partition]
            state = entry.value if entry is not None else None
            own = ("no state yet",) if entry is None else entry.notes
            own += state.irregularities(replicas) if state is not None else ()
            errors = _known(entry.error) if entry is not None else ()
            adding, removing = assignment.adding.get(partition, ()), assignment.removing.get(partition, ())
            more = (errors, state, adding, removing, assignment.topic_id)
            yield PartitionReplicas(topic.name, partition, replicas, notes + own, *more)
    if broken or not topic.partitions:
        notes += () if broken else ("no partitions",)
        yield PartitionReplicas(topic.name, None, (), notes, broken)


class Member(NamedTuple):
    """A registered member of a group, with the number of partitions that it owns (None if unknown)."""

    group: str
    member: RegistryMember
    partitions: int | None
    notes: tuple[str, ...]
    errors: tuple[OffsetMgrError, ...]


def members(connections: Connections, groups: GroupSelection) -> Iterator[Member | ReadErrors]:
    """Yields the members of groups registered in ZooKeeper, with their subscriptions. Raises `GroupNotFound`."""
    from offsetmgr.zookeeper.groups.registry import members_many, owners_many

    session = connections.zookeeper("zk members")
    chosen = _registered_groups(connections, session, groups)
    found = zip(members_many(session, chosen), owners_many(session, chosen), strict=True)
    for listed, owned in connections.ui.progress(found, "groups", len(chosen)):
        errors = _known(listed.error) or _known(owned.error, *owned.errors.values())
        if errors:
            yield ReadErrors(listed.group, errors)
        held = Counter(owner.member_id for owner in owned.owners.values())
        for one in listed.members:
            partitions = None if errors else held[one.member_id]
            notes = (*one.notes, *(() if one.node.ephemeral_owner else (_PERSISTENT,)))
            yield Member(listed.group, one, partitions, notes, _known(one.error))


class OwnedPartition(NamedTuple):
    """A partition with its owner."""

    group: str
    partition: TopicPartition
    owner: Owner
    notes: tuple[str, ...]
    errors: tuple[OffsetMgrError, ...]


def owners(
    connections: Connections, groups: GroupSelection, topic: TopicSelection = ALL_TOPICS
) -> Iterator[OwnedPartition | ReadErrors]:
    """Yields the owned partitions of groups, each with the consumer thread that owns it. Raises `GroupNotFound`."""
    from offsetmgr.zookeeper.groups.registry import members_many, owners_many

    session = connections.zookeeper("zk owners")
    chosen = _registered_groups(connections, session, groups)
    # The owners are read before the members. If the members were read first, the partitions of a member that joins
    # between the two reads would appear to have an owner that is not a member.
    found = zip(owners_many(session, chosen), members_many(session, chosen), strict=True)
    for owned, listed in connections.ui.progress(found, "groups", len(chosen)):
        if errors := _known(owned.error) or _known(listed.error, *owned.errors.values()):
            yield ReadErrors(owned.group, errors)
        live = None if listed.error is not None else {member.member_id: member for member in listed.members}
        for tp, one in owned.owners.items():
            if topic.matches(tp):
                notes = (*(() if one.node.ephemeral_owner else (_PERSISTENT,)), *one.inconsistencies(live))
                yield OwnedPartition(owned.group, tp, one, notes, _known(one.error))


def _known(*errors: OffsetMgrError | None) -> tuple[OffsetMgrError, ...]:
    return tuple(error for error in errors if error is not None)


def _registered_groups(connections: Connections, session: ZookeeperSession, groups: GroupSelection) -> list[str]:
    """Returns the selected groups of the registry. The session may be an older one: commits that it has seen before do
    not count in the reads that follow."""
    from offsetmgr.stores.cross_cluster_check import names_cluster
    from offsetmgr.zookeeper.groups.registry import forget_commits
    from offsetmgr.zookeeper.nodes.paths import CONSUMERS

    known = session.children(CONSUMERS) or []
    if not known and groups.patterns is None:
        store = connections.opened(f"zookeeper://{session.connect}")
        hint = "" if names_cluster(store) else "; is the chroot right?"
        connections.ui.note(f"no groups in {store.uri}{hint}")
    chosen = groups.within(known, f"ZooKeeper at {session.connect}")
    for group in chosen:
        forget_commits(session, group)
    return chosen


class Check(NamedTuple):
    """A check of ``groups``, which runs while ``findings`` is read. ``not_checked`` has what it leaves out and why.
    ``is_same_cluster`` is False if it is unknown whether the brokers and ZooKeeper belong to one cluster."""

    groups: Sequence[str]
    findings: Iterator[Finding]
    not_checked: Sequence[str]
    is_same_cluster: bool


def check(
    connections: Connections, groups: GroupSelection, *, unused_since_ms: int | None = None, settle_s: float = 5.0
) -> Check:
    """Returns a check of the groups of old consumers: owners, subscriptions, offsets, unreadable nodes.

    If brokers are known, the check also compares offsets with the logs. With ``unused_since_ms`` (ms since 1970), it
    reports groups that have no members and in which nothing was written since then. A fault that a rebalance may have
    caused is reported only if it is found again after ``settle_s`` seconds (0: at once).

    Raises `GroupNotFound`, `CorruptData` if ZooKeeper has neither consumers nor brokers, and `UsageError` if the
    brokers belong to another cluster than ZooKeeper, because their logs would be the wrong ones.
    """
    from offsetmgr.core.clock import SystemClock
    from offsetmgr.zookeeper.check.zookeeper_check import ZookeeperCheck
    from offsetmgr.zookeeper.nodes import paths

    session = connections.zookeeper("zk check")
    cluster = connections.cluster_or_none()
    unknown = None if cluster is None else _unknown_cluster(session, cluster)
    consumers = session.children(paths.CONSUMERS)
    if consumers is None and session.children(paths.BROKERS) is None:
        why = f"has neither {paths.CONSUMERS} nor {paths.BROKERS}, so there is nothing to check"
        raise CorruptData(f"ZooKeeper at {session.connect}", why, "is the chroot right?")
    chosen = _registered_groups(connections, session, groups)
    checking = ZookeeperCheck(
        session,
        consumers or [],
        SystemClock(),
        fetch_log_ranges=None if cluster is None else cluster.log_ranges,
        unused_since_ms=unused_since_ms,
        recheck_after_s=settle_s,
        on_recheck=lambda number: connections.ui.note(f"checking {count_of(number, 'group')} again in {settle_s:g} s"),
    )
    findings = (
        finding
        for checked in connections.ui.progress(checking.run(chosen), "checking", len(chosen))
        for finding in checked.findings
    )
    skipped = [*([unknown] if unknown else ()), *checking.skipped_rules()]
    return Check(chosen, chain(checking.cluster_findings, findings), skipped, unknown is None)


def _unknown_cluster(session: ZookeeperSession, cluster: KafkaCluster) -> str | None:
    """Returns None if brokers and ZooKeeper belong to the same cluster, or the reason why this is unknown. Raises
    `UsageError` if they belong to different clusters."""
    from offsetmgr.zookeeper.nodes import paths
    from offsetmgr.zookeeper.nodes.cluster import parse_cluster_id

    node, kafka_id = session.get(paths.CLUSTER_ID), cluster.cluster_id()
    if node is None or kafka_id is None:
        who = "the brokers have" if node is not None else f"ZooKeeper at {session.connect} has"
        return f"whether brokers and ZooKeeper belong to one cluster ({who} no cluster id)"
    if (zookeeper_id := parse_cluster_id(paths.CLUSTER_ID, node.data)) != kafka_id:
        why = f"the brokers belong to cluster {kafka_id}, ZooKeeper to {zookeeper_id}"
        raise UsageError(Advice("{bootstrap_server}"), why, "name the brokers that use this ZooKeeper, and its chroot")
    return None


@dataclass(frozen=True, slots=True)
class ControllerRequest:
    """A planned request to the controller. ``action`` and ``noun`` describe it, as in "elect {}" and "leader". ``undo``
    undoes it, and the command line ``cancel`` cancels unfinished steps."""

    name: str
    connections: Connections
    session: ZookeeperSession
    plan: RequestPlan
    action: str
    noun: str
    submit: Callable[[Sequence[RequestStep]], None]
    undo: Invocation | None = None
    cancel: str | None = None

    @property
    def summary(self) -> str:
        """The effect of the request, as in ``elect 3 leaders``."""
        return self.action.format(count_of(len(self.plan.todo), self.noun))

    def execute(self, *, wait_s: float = WAIT_S, reason: str = "") -> dict[str, StepOutcome]:
        """Submits the request, and waits up to ``wait_s`` seconds for the controller. Returns the outcome of each step
        by its name. The operation log records the request with its ``reason``. A plan without steps to submit is not
        submitted.

        Raises `Declined`, `Conflict` if the cluster has changed since the plan or another request is running, and
        `Interrupted` after Ctrl-C, which does not stop the controller.
        """
        from offsetmgr.groups.operation_log import OperationLog, OperationStart

        ui, todo = self.connections.ui, self.plan.todo
        if not todo:
            return {step.name: self.plan.untouched(step) for step in self.plan.steps}
        ui.confirm(f"{self.name}: {self.summary}?")
        undo = () if self.undo is None else (self.undo.command_line(),)
        stores = (f"zookeeper://{self.session.connect}",)
        start = OperationStart(self.name, stores, (), 0, len(todo), undo=undo, reason=reason)
        with OperationLog().recorded(start) as recorded:
            self.submit(todo)
            recorded.written = len(todo)
        ui.note("submitted to the controller")
        if self.undo is not None:
            execute = self.undo._replace(named={**self.undo.named, "execute": True})
            ui.note(Advice("undo: {}", execute))
        seen = self._watch(todo, wait_s)
        return {step.name: self.plan.outcome(step, seen) for step in self.plan.steps}

    def _watch(self, todo: Sequence[RequestStep], wait_s: float) -> RequestProgress | None:
        from offsetmgr.core.clock import SystemClock
        from offsetmgr.zookeeper.admin.submit import poll_progress

        seen: RequestProgress | None = None
        try:
            for found in poll_progress(self.session, todo, SystemClock(), wait_s=wait_s):
                if isinstance(found, OffsetMgrError):
                    self.connections.ui.note(f"{self.name}: {found}; trying again", repeated=True)
                else:
                    seen, text = found, f"{self.name}: {found.done} of {found.total} done"
                    self.connections.ui.note(text, repeated=not found.ended)
        except KeyboardInterrupt as error:
            raise Interrupted("the request was submitted, and the controller continues with it") from error
        return seen


def elect(connections: Connections, topic: TopicSelection = ALL_TOPICS) -> ControllerRequest:
    """Plans to make the preferred replica of each partition its leader again (preferred replica election). A partition
    whose preferred replica is dead or not in sync is rejected; the others get their election.

    Raises `UnknownTopicOrPartition` if no partition is selected, and `ControllerRequestRefused`.
    """
    from offsetmgr.zookeeper.admin.admin_reader import read_state
    from offsetmgr.zookeeper.admin.election import ElectionStep, plan_election
    from offsetmgr.zookeeper.admin.plan import RequestPlan
    from offsetmgr.zookeeper.admin.submit import submit_election
    from offsetmgr.zookeeper.groups.topics import topic_names

    session = connections.zookeeper("zk elect")
    names = topic_names(session)
    state = read_state(session, filter(topic.matches_topic, names))
    chosen = state.partitions(topic)
    steps = [
        ElectionStep(name, rejected=error) for name, error in state.topics.items() if isinstance(error, OffsetMgrError)
    ]
    if not chosen and not steps:
        what = " ".join(map(str, topic.patterns)) or Advice("{all_topics}")
        hint = "" if names else "is the chroot right?"
        raise UnknownTopicOrPartition(what, f"no topic of {session.connect} matches", hint)
    plan = RequestPlan([*steps, *plan_election(state, chosen)], all_or_nothing=False)
    submit = partial(submit_election, session, state)
    return ControllerRequest("zk elect", connections, session, plan, "elect {}", "leader", submit)


def reassign(
    connections: Connections,
    reassignment_json_file: Path,
    *,
    allow_replication_change: bool = False,
    before_image: Path | None = None,
) -> ControllerRequest:
    """Plans to move partitions to other brokers. The file has the format of ``kafka-reassign-partitions``, as has the
    new file ``before_image`` with the present replicas, which undoes the request (default: a file in the state
    directory).

    One rejected step rejects the whole request. Raises `FileFailure`, `MalformedData`, `UnknownVersion`, `UsageError`
    and `ControllerRequestRefused`.
    """
    from offsetmgr.core.atomic_file import replace_file
    from offsetmgr.core.errors import os_error_as
    from offsetmgr.groups.before_images import default_image_path
    from offsetmgr.zookeeper.admin import reassignment
    from offsetmgr.zookeeper.admin.admin_reader import read_state
    from offsetmgr.zookeeper.admin.plan import RequestPlan
    from offsetmgr.zookeeper.admin.submit import submit_reassignment

    what = f"file {reassignment_json_file}"
    with os_error_as(FileFailure, what):
        assignment = reassignment.decode_reassignment(what, reassignment_json_file.read_bytes())
    session = connections.zookeeper("zk reassign")
    state = read_state(session, {tp.topic for tp in assignment})
    steps = reassignment.plan_reassignment(state, assignment, allow_replication_change=allow_replication_change)
    image = before_image or default_image_path("zk reassign").with_suffix(".json")

    def save(data: bytes) -> None:
        with os_error_as(FileFailure, f"directory {image.parent}"):
            image.parent.mkdir(parents=True, exist_ok=True)
        replace_file(image, lambda out: out.write(data), overwrite=False)
        connections.ui.note(f"before-image: {image}")

    def submit(todo: Sequence[RequestStep]) -> None:
        moves = [step for step in todo if isinstance(step, reassignment.ReassignmentStep)]
        submit_reassignment(session, state, moves, save)

    changes_replication = any(len(step.before) != len(step.after) for step in steps)
    named = {**connections.given, "zookeeper": session.connect, "bootstrap_server": None, "store": None}
    named = {"reassignment_json_file": str(image), **named, "allow_replication_change": changes_replication}
    return ControllerRequest(
        "zk reassign",
        connections,
        session,
        RequestPlan(steps),
        "change the replicas of {}",
        "partition",
        submit,
        Invocation("zk reassign", (), named),
        reassignment.cancel_command(str(image), connections.bootstrap()),
    )


def delete_topic(connections: Connections, topic: Sequence[str]) -> ControllerRequest:
    """Plans to delete topics with all their messages, which cannot be undone. ``topic`` are their whole names.

    If brokers are known, first asks the controller whether it deletes topics at all (delete.topic.enable). One rejected
    topic rejects the whole request. Raises `ControllerRequestRefused`.
    """
    from offsetmgr.zookeeper.admin.admin_reader import read_state
    from offsetmgr.zookeeper.admin.deletion import plan_deletion
    from offsetmgr.zookeeper.admin.plan import RequestPlan
    from offsetmgr.zookeeper.admin.submit import submit_deletion

    session = connections.zookeeper("zk delete-topic")
    state = read_state(session, topic)
    plan = RequestPlan(plan_deletion(state, topic, enabled=_deletion_enabled(connections, state.controller)))
    submit = partial(submit_deletion, session, state)
    return ControllerRequest("zk delete-topic", connections, session, plan, "delete {} for good", "topic", submit)


def _deletion_enabled(connections: Connections, controller: int | None) -> bool | None:
    """Returns the controller's ``delete.topic.enable``, or None if the value is unknown. Notes the reason if no brokers
    are known or the request fails."""
    why: object = Advice("no {bootstrap_server}")
    value = None
    if (cluster := connections.cluster_or_none()) is not None:
        if controller is None:
            return None
        try:
            value = cluster.broker_setting(controller, "delete.topic.enable")
            why = "the broker does not report it to this login"
        except OffsetMgrError as error:
            why = error
    if value is None:
        connections.ui.note(Advice("not checked: delete.topic.enable of the controller ({})", why))
    return None if value is None else value == "true"
