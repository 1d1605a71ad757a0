"""``zk``: Kafka's znodes, and requests to the controller through ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.app.ui import interrupted_as
from offsetmgr.core.advice import Advice, Invocation
from offsetmgr.core.errors import (
    FileFailure,
    OffsetMgrError,
    ServerError,
    UnknownTopicOrPartition,
    UsageError,
)
from offsetmgr.core.plurals import count_of
from offsetmgr.core.selection import ALL_TOPICS, GroupSelection, TopicSelection, accept_names
from offsetmgr.zookeeper.nodes.fields import ReadErrors as ReadErrors

if TYPE_CHECKING:
    from offsetmgr.app.connections import Connections
    from offsetmgr.zookeeper.admin.plan import RequestPlan, RequestProgress, RequestStep, StepOutcome
    from offsetmgr.zookeeper.check.rules import Finding
    from offsetmgr.zookeeper.client.session import ZookeeperSession
    from offsetmgr.zookeeper.groups.registry import Member, OwnedPartition
    from offsetmgr.zookeeper.groups.topics import PartitionReplicas
    from offsetmgr.zookeeper.nodes.cluster_nodes import ClusterBrokers as ClusterBrokers
    from offsetmgr.zookeeper.nodes.tree import Znode

WAIT_S: Final = 300.0


def tree(connections: Connections, path: str = "/", depth: int | None = None) -> Iterator[Znode | ReadErrors]:
    """Yields a znode and its descendants down to ``depth`` levels, decoded. Raises `UsageError` for an invalid path."""
    from offsetmgr.zookeeper.nodes.tree import walk

    if not path.startswith("/") or "//" in path or (path != "/" and path.endswith("/")):
        raise UsageError(f"path {path!r}", "is not a valid ZooKeeper path", "as in /brokers/ids")
    session = connections.zookeeper("zk tree")
    one = None
    for one in connections.ui.progress(walk(session, path, depth), "nodes"):
        yield one
    if one is None:
        missing = ServerError(f"ZooKeeper node {path}", f"does not exist in ZooKeeper at {session.connect}")
        yield ReadErrors(path, (missing,))


def brokers(connections: Connections) -> ClusterBrokers:
    """Returns the live brokers with their addresses, and which of them is the controller."""
    from offsetmgr.zookeeper.nodes.cluster_nodes import cluster_brokers

    return cluster_brokers(connections.zookeeper("zk brokers"))


def topics(connections: Connections, topic: TopicSelection = ALL_TOPICS) -> Iterator[PartitionReplicas]:
    """Yields the partitions of topics with their leaders, assigned and in-sync replicas, and reassignments.

    Partitions of Kafka 0.7 are `BrokerPartition` objects. Raises `UnknownTopicOrPartition` if a named topic does not
    exist.
    """
    from offsetmgr.zookeeper.groups.topics import partition_replicas, topic_names
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
        for one in partition_replicas(found, topic, ("being deleted",) if found.name in deletions else ()):
            yield one
    if one is None:
        connections.ui.note(f"no topics in ZooKeeper at {session.connect}{'' if known else '; is the chroot right?'}")


def members(connections: Connections, groups: GroupSelection) -> Iterator[Member | ReadErrors]:
    """Yields the members of groups registered in ZooKeeper, with their subscriptions. Raises `GroupNotFound`."""
    from offsetmgr.zookeeper.groups.registry import members_many, members_with_partitions, owners_many

    session = connections.zookeeper("zk members")
    chosen = _registered_groups(connections, session, groups)
    found = zip(members_many(session, chosen), owners_many(session, chosen), strict=True)
    for listed, owned in connections.ui.progress(found, "groups", len(chosen)):
        yield from members_with_partitions(listed, owned)


def owners(
    connections: Connections, groups: GroupSelection, topic: TopicSelection = ALL_TOPICS
) -> Iterator[OwnedPartition | ReadErrors]:
    """Yields the owned partitions of groups, each with the consumer thread that owns it. Raises `GroupNotFound`."""
    from offsetmgr.zookeeper.groups.registry import members_many, owned_partitions, owners_many

    session = connections.zookeeper("zk owners")
    chosen = _registered_groups(connections, session, groups)
    # The owners are read before the members. If the members were read first, the partitions of a member that joins
    # between the two reads would appear to have an owner that is not a member.
    found = zip(owners_many(session, chosen), members_many(session, chosen), strict=True)
    for owned, listed in connections.ui.progress(found, "groups", len(chosen)):
        yield from owned_partitions(owned, listed, topic)


def _registered_groups(connections: Connections, session: ZookeeperSession, groups: GroupSelection) -> list[str]:
    """Returns the selected groups of the registry. The session may be an older one: commits that it has seen before do
    not count in the reads that follow."""
    from offsetmgr.zookeeper.groups.registry import forget_commits
    from offsetmgr.zookeeper.nodes.paths import CONSUMERS

    known = session.children(CONSUMERS) or []
    if not known and groups.patterns is None:
        connections.tell_empty("groups", connections.opened(f"zookeeper://{session.connect}"))
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
    from offsetmgr.zookeeper.check.zookeeper_check import ZookeeperCheck, existing_groups, unknown_cluster

    session = connections.zookeeper("zk check")
    cluster = connections.cluster_or_none()
    unknown = None if cluster is None else unknown_cluster(session, cluster.cluster_id())
    known = existing_groups(session)
    chosen = _registered_groups(connections, session, groups)
    checking = ZookeeperCheck(
        session,
        known,
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


@dataclass(frozen=True, slots=True)
class ControllerRequest:
    """A planned request to the controller. ``undo`` undoes it, and the command line ``cancel`` cancels unfinished
    steps."""

    name: str
    connections: Connections
    session: ZookeeperSession
    plan: RequestPlan
    submit: Callable[[Sequence[RequestStep]], None]
    undo: Invocation | None = None
    cancel: str | None = None
    image: Path | None = None
    """The before-image."""

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
        ui.confirm(f"{self.name}: {self.plan.summary}?")
        undo = () if self.undo is None else (self.undo.command_line(),)
        stores, files = (f"zookeeper://{self.session.connect}",), () if self.image is None else (str(self.image),)
        start = OperationStart(self.name, stores, (), 0, len(todo), files, undo, reason=reason)
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
        with interrupted_as("the request was submitted, and the controller continues with it"):
            for found in poll_progress(self.session, todo, SystemClock(), wait_s=wait_s):
                if isinstance(found, OffsetMgrError):
                    self.connections.ui.note(f"{self.name}: {found}; trying again", repeated=True)
                else:
                    seen, text = found, f"{self.name}: {found.done} of {found.total} done"
                    self.connections.ui.note(text, repeated=not found.ended)
        return seen


def elect(connections: Connections, topic: TopicSelection = ALL_TOPICS) -> ControllerRequest:
    """Plans to make the preferred replica of each partition its leader again (preferred replica election). A partition
    whose preferred replica is dead or not in sync is rejected; the others get their election.

    Raises `UnknownTopicOrPartition` if no partition is selected, and `ControllerRequestRefused`.
    """
    from offsetmgr.zookeeper.admin.admin_reader import read_state
    from offsetmgr.zookeeper.admin.plan import RequestPlan, plan_election
    from offsetmgr.zookeeper.admin.submit import submit
    from offsetmgr.zookeeper.groups.topics import topic_names

    session = connections.zookeeper("zk elect")
    names = topic_names(session)
    state = read_state(session, filter(topic.matches_topic, names))
    steps = plan_election(state, topic)
    if not steps:
        what = " ".join(topic.texts) or Advice("{all_topics}")
        hint = "" if names else "is the chroot right?"
        raise UnknownTopicOrPartition(what, f"no topic of {session.connect} matches", hint)
    plan = RequestPlan(steps, all_or_nothing=False)
    return ControllerRequest("zk elect", connections, session, plan, partial(submit, session, state))


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
    from offsetmgr.zookeeper.admin.admin_reader import read_state
    from offsetmgr.zookeeper.admin.plan import (
        ReassignmentStep,
        RequestPlan,
        cancel_command,
        decode_reassignment,
        plan_reassignment,
    )
    from offsetmgr.zookeeper.admin.submit import submit

    what = f"file {reassignment_json_file}"
    with os_error_as(FileFailure, what):
        assignment = decode_reassignment(what, reassignment_json_file.read_bytes())
    session = connections.zookeeper("zk reassign")
    state = read_state(session, {tp.topic for tp in assignment})
    steps = plan_reassignment(state, assignment, allow_replication_change=allow_replication_change)
    plan = RequestPlan(steps)
    image = before_image or default_image_path("zk reassign").with_suffix(".json")

    def save() -> None:
        data = ReassignmentStep.undo(step for step in steps if step.needed)
        with os_error_as(FileFailure, f"directory {image.parent}"):
            image.parent.mkdir(parents=True, exist_ok=True)
        replace_file(image, lambda out: out.write(data), overwrite=False)
        connections.ui.note(f"before-image: {image}")

    changes_replication = any(len(step.before) != len(step.after) for step in steps)
    named = {**connections.given, "zookeeper": session.connect, "bootstrap_server": None, "store": None}
    named = {"reassignment_json_file": str(image), **named, "allow_replication_change": changes_replication}
    undo, cancel = Invocation("zk reassign", (), named), cancel_command(str(image), connections.bootstrap())
    send = partial(submit, session, state, save=save)
    return ControllerRequest("zk reassign", connections, session, plan, send, undo, cancel, image)


def delete_topic(connections: Connections, topic: Sequence[str]) -> ControllerRequest:
    """Plans to delete topics with all their messages, which cannot be undone. ``topic`` are their whole names.

    If brokers are known, first asks the controller whether it deletes topics at all (delete.topic.enable). One rejected
    topic rejects the whole request. Raises `ControllerRequestRefused`.
    """
    from offsetmgr.zookeeper.admin.admin_reader import read_state
    from offsetmgr.zookeeper.admin.plan import RequestPlan, plan_deletion
    from offsetmgr.zookeeper.admin.submit import submit

    session = connections.zookeeper("zk delete-topic")
    state = read_state(session, topic)
    plan = RequestPlan(plan_deletion(state, topic, enabled=_deletion_enabled(connections, state.controller)))
    return ControllerRequest("zk delete-topic", connections, session, plan, partial(submit, session, state))


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


accept_names(globals())
