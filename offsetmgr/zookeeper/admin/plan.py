"""The steps of a request to the controller: their plan, their progress and their outcomes. Pure.

The three kinds of requests are preferred replica election, partition reassignment and topic deletion. A controller
checks little of a request that comes through ZooKeeper, so the plan rejects the steps that would fail or never end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from shlex import quote
from typing import ClassVar, Final, NamedTuple, Self

from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import (
    ControllerRequestRefused,
    OffsetMgrError,
    UsageError,
    value_of,
)
from offsetmgr.core.field_reader import FieldReader
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.plurals import count_of
from offsetmgr.core.selection import TopicSelection
from offsetmgr.zookeeper.admin.state import AdminState, AdminTopicState, AssignedPartition, encode_partitions
from offsetmgr.zookeeper.nodes import paths
from offsetmgr.zookeeper.nodes.fields import format_ids

INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state"})
"""Kafka's internal topics, without which brokers do not work (org.apache.kafka.common.internals.Topic)."""
_FORM: Final = 'as in {"version":1,"partitions":[{"topic":"orders","partition":0,"replicas":[1,2]}]}'


@dataclass(frozen=True, slots=True)
class RequestStep(ABC):
    """One topic or partition of a request. ``rejected`` is the reason why the controller would not execute the step,
    or None."""

    what: ClassVar[str]
    """The kind of the request, for errors."""
    effect: ClassVar[str]
    """The effect of the request on a number of topics or partitions, such as ``elect {}``."""
    noun: ClassVar[str]
    checks_topics: ClassVar[bool] = True
    """Whether the request must not be submitted if a topic has changed since it was read."""

    topic: str
    partition: int | None = None
    rejected: OffsetMgrError | None = None

    @property
    def name(self) -> str:
        """The topic, or ``TOPIC-PARTITION``."""
        return self.topic if self.partition is None else str(self.tp)

    @property
    def tp(self) -> TopicPartition:
        assert self.partition is not None  # a step of a whole topic does not use it
        return TopicPartition(self.topic, self.partition)

    @property
    def needed(self) -> bool:
        """Whether the topic or partition does not have the requested state yet."""
        return True

    @property
    def note(self) -> str:
        """A fact for the user; may be empty."""
        return ""

    @property
    def brokers(self) -> tuple[int, ...]:
        """The brokers that must still be alive when the request is submitted."""
        return ()

    @classmethod
    @abstractmethod
    def nodes(cls, steps: Sequence[Self]) -> dict[str, bytes]:
        """Returns the path and the data of each node of the request. Raises `UsageError` if the request is too
        large."""

    @abstractmethod
    def is_under_way(self, state: AdminState) -> bool:
        """Whether the controller works on the submitted step."""

    @abstractmethod
    def open_reason(self, state: AdminState) -> str:
        """Returns the reason why the submitted step is not done; an empty text if it is done."""


class RequestProgress(NamedTuple):
    """The controller's progress with a request of ``total`` steps.

    ``open`` maps the name of each step that is not done to the reason why it is not done.
    """

    total: int
    open: Mapping[str, str]
    ended: bool
    """Whether the controller has stopped working on the request. If True, the steps in ``open`` have failed."""

    @property
    def done(self) -> int:
        return self.total - len(self.open)


class StepOutcome(NamedTuple):
    """The outcome of a step: done, failed, open (the controller continues), unknown, refused, unchanged or "not done"
    (another step is refused)."""

    state: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """The steps of a request. If ``all_or_nothing`` is true, one rejected step rejects the whole request."""

    steps: Sequence[RequestStep]
    all_or_nothing: bool = True

    @property
    def rejections(self) -> list[OffsetMgrError]:
        """The reasons why steps are rejected."""
        return [step.rejected for step in self.steps if step.rejected is not None]

    @property
    def todo(self) -> list[RequestStep]:
        """The steps to submit."""
        if self.all_or_nothing and self.rejections:
            return []
        return [step for step in self.steps if step.needed and step.rejected is None]

    @property
    def summary(self) -> str:
        """The effect of the steps to submit, as in ``elect 3 leaders``."""
        step = self.steps[0]
        return step.effect.format(count_of(len(self.todo), step.noun))

    def untouched(self, step: RequestStep) -> StepOutcome:
        """Returns the outcome of a step that is not submitted."""
        if step.rejected is not None:
            return StepOutcome("refused", step.rejected.why or step.rejected.what)
        return (
            StepOutcome("not done", "another part is refused") if step.needed else StepOutcome("unchanged", step.note)
        )

    def outcome(self, step: RequestStep, seen: RequestProgress | None) -> StepOutcome:
        """Returns the outcome of a step after the submission. ``seen`` is the last progress; None if it could not be
        read."""
        if not step.needed or step.rejected is not None or (self.all_or_nothing and self.rejections):
            return self.untouched(step)
        if seen is None:
            return StepOutcome("unknown", "the state of the request could not be read")
        if step.name not in seen.open:
            return StepOutcome("done")
        return StepOutcome("failed" if seen.ended else "open", seen.open[step.name])


def progress_of(state: AdminState, steps: Sequence[RequestStep]) -> RequestProgress:
    """Returns the progress of submitted steps. A step whose topic cannot be read is open."""
    waiting: dict[str, str] = {}
    under_way = False
    for step in steps:
        try:
            under_way |= step.is_under_way(state)
            why = step.open_reason(state)
        except OffsetMgrError as error:
            why = str(error)
        if why:
            waiting[step.name] = why
    return RequestProgress(len(steps), waiting, ended=not under_way)


# Preferred replica election. The controller tries to elect the preferred replica of each partition once. It then
# deletes the request's node, even if some preferred replicas did not become leader
# (kafka.controller.KafkaController.onReplicaElection). Therefore the progress is computed from the partitions' leaders,
# not from the request's node.


@dataclass(frozen=True, slots=True)
class ElectionStep(RequestStep):
    """One partition with its leader and its preferred leader.

    The controller does not retry an election after it has deleted the request's node. If a preferred replica is still
    not the leader at that time, the election of its partition has failed.
    """

    what = "preferred replica election"
    effect = "elect {}"
    noun = "leader"
    checks_topics = False

    leader: int | None = None
    preferred: int | None = None

    @property
    def needed(self) -> bool:
        return self.leader != self.preferred

    @property
    def note(self) -> str:
        return "" if self.needed else "is the leader already"

    @classmethod
    def nodes(cls, steps: Sequence[Self]) -> dict[str, bytes]:
        """Returns the request's node (kafka.zk.PreferredReplicaElectionZNode, version 1)."""
        partitions = [{"topic": one.topic, "partition": one.partition} for one in steps]
        return {paths.PREFERRED_REPLICA_ELECTION: encode_partitions(cls.what, partitions)}

    def is_under_way(self, state: AdminState) -> bool:
        return state.election

    def open_reason(self, state: AdminState) -> str:
        leader = state.partition(self.tp).leader
        if leader == self.preferred:
            return ""
        who = "it has no leader" if leader is None else f"broker {leader} leads it"
        return f"{who}, not broker {self.preferred}"


def plan_election(state: AdminState, selection: TopicSelection) -> list[ElectionStep]:
    """Returns a rejected step for each unreadable topic, then a step for each selected partition, sorted by partition.

    Raises `ControllerRequestRefused` if there is no controller, or if another election is running. Raises
    `UnknownTopicOrPartition` if a named topic or partition does not exist.
    """
    chosen = state.partitions(selection)
    unreadable = [
        ElectionStep(name, rejected=error) for name, error in state.topics.items() if isinstance(error, OffsetMgrError)
    ]
    if not chosen and not unreadable:
        return []
    state.require_controller(ElectionStep.what)
    if state.election:
        raise ControllerRequestRefused(
            ElectionStep.what,
            f"another is running: {paths.PREFERRED_REPLICA_ELECTION} exists",
            "wait until the controller has completed it",
        )
    return [*unreadable, *(_election_step(state, tp) for tp in chosen)]


def _election_step(state: AdminState, tp: TopicPartition) -> ElectionStep:
    try:
        found = state.partition(tp)
    except OffsetMgrError as error:
        return ElectionStep(*tp, error)
    rejected = None if found.leader == found.preferred else _election_obstacle(state, tp, found)
    return ElectionStep(*tp, rejected, found.leader, found.preferred)


def _election_obstacle(state: AdminState, tp: TopicPartition, found: AssignedPartition) -> OffsetMgrError | None:
    """Returns the reason why the controller would not elect the preferred leader, or None if it would."""
    what, why, hint = f"partition {tp}", f"its preferred leader, broker {found.preferred}, is not", ""
    if tp.topic in state.deletions:
        why = f"topic {tp.topic} is being deleted"
    elif found.preferred not in state.brokers:
        why = f"{why} alive"
    elif found.preferred not in found.isr:
        why = f"{why} in sync (in sync: {format_ids(found.isr) or 'none'})"
        hint = "wait until it has caught up"
    else:
        return None
    return ControllerRequestRefused(what, why, hint)


# Partition reassignment. If a request comes through the broker API, the controller validates its brokers and replicas
# (kafka.controller.KafkaController.validateReplicas). If a request comes through ZooKeeper, the controller does not
# validate them. A reassignment to a dead broker would never end.


def cancel_command(file: str = "FILE", bootstrap: str | None = None) -> str:
    """Returns the command that cancels a reassignment through the brokers (KIP-455).

    ``file`` is a file that lists the partitions: the file of the request, or the file with the partitions' previous
    replicas. A request cannot be cancelled through ZooKeeper: while a controller (of Kafka 3.9.1) processes a request,
    changing or deleting the request's node has no effect.
    """
    return (
        f"kafka-reassign-partitions.sh --bootstrap-server {quote(bootstrap or 'BROKER:9092')} "
        f"--reassignment-json-file {quote(file)} --cancel --preserve-throttles"
    )


@dataclass(frozen=True, slots=True)
class ReassignmentStep(RequestStep):
    """The replicas of one partition before and after the reassignment. ``before`` is empty if the partition does not
    exist. If the controller has finished and the partition does not have the requested replicas, the reassignment of
    this partition has failed."""

    what = "reassignment"
    effect = "change the replicas of {}"
    noun = "partition"

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    @property
    def needed(self) -> bool:
        return self.before != self.after

    @property
    def note(self) -> str:
        if self.adding or self.removing:
            return ""
        return "another preferred leader" if self.needed else "has these replicas already"

    @property
    def adding(self) -> tuple[int, ...]:
        return tuple(broker for broker in self.after if broker not in self.before)

    @property
    def removing(self) -> tuple[int, ...]:
        return tuple(broker for broker in self.before if broker not in self.after)

    @property
    def brokers(self) -> tuple[int, ...]:
        return self.after

    @classmethod
    def nodes(cls, steps: Sequence[Self]) -> dict[str, bytes]:
        """Returns the request's node, in the format of ``kafka-reassign-partitions``."""
        partitions = [{"topic": one.topic, "partition": one.partition, "replicas": one.after} for one in steps]
        return {paths.REASSIGN_PARTITIONS: encode_partitions(cls.what, partitions)}

    @classmethod
    def undo(cls, steps: Iterable[Self]) -> bytes:
        """Returns the reassignment that undoes these steps."""
        (data,) = cls.nodes([replace(one, after=one.before) for one in steps]).values()
        return data

    def is_under_way(self, state: AdminState) -> bool:
        return self.tp in (state.reassignment or ()) or state.partition(self.tp).moving

    def open_reason(self, state: AdminState) -> str:
        found = state.partition(self.tp)
        if not self.is_under_way(state):
            why = f"its replicas are {format_ids(found.replicas)}, and the controller does not change them"
            return "" if found.replicas == self.after else why
        behind = [broker for broker in self.after if broker not in found.isr]
        dead = [broker for broker in behind if broker not in state.brokers]
        if dead:
            return f"broker {format_ids(dead)} is not alive"
        return (
            f"broker {format_ids(behind)} is not in sync yet" if behind else "the controller has not completed it yet"
        )


def decode_reassignment(what: str, data: bytes) -> dict[TopicPartition, tuple[int, ...]]:
    """Decodes the JSON of a reassignment (version 1). ``kafka-reassign-partitions`` and the request's node use the same
    format. ``what`` names the source of the JSON in errors.

    Raises `UnknownVersion`. Raises `MalformedData` if the JSON cannot be decoded, if a partition occurs twice, or if
    ``log_dirs`` contains a directory other than "any", because a specific directory cannot be requested through
    ZooKeeper.
    """
    document = FieldReader.parse(data, what, hint=_FORM)
    document.version((1,))
    assignment: dict[TopicPartition, tuple[int, ...]] = {}
    for entry in document.objects("partitions"):
        tp, replicas = _assigned(entry)
        if tp in assignment:
            raise document.error(f"contains partition {tp} twice")
        assignment[tp] = replicas
    return assignment


def _assigned(entry: FieldReader) -> tuple[TopicPartition, tuple[int, ...]]:
    topic, partition, replicas = entry.text("topic"), entry.integer("partition"), entry.get("replicas")
    if not isinstance(replicas, list) or any(type(broker) is not int or broker < 0 for broker in replicas):
        raise entry.invalid("replicas", "a list of brokers' ids")
    if any(directory != "any" for directory in entry.get("log_dirs") or ()):
        raise entry.error("names log_dirs, which cannot be requested through ZooKeeper")
    paths.check_topic(topic)
    return TopicPartition(topic, partition), tuple(replicas)


def plan_reassignment(
    state: AdminState, assignment: Mapping[TopicPartition, tuple[int, ...]], *, allow_replication_change: bool = False
) -> list[ReassignmentStep]:
    """Returns a step for each partition of ``assignment``, sorted by partition. ``assignment`` maps each partition to
    the broker ids of its replicas, the preferred leader first. ``allow_replication_change`` allows a change of the
    number of replicas.

    A step's ``rejected`` is the reason why its partition cannot be reassigned, or None. Raises
    `ControllerRequestRefused` if there is no controller or another reassignment is running, and `UsageError` if
    ``assignment`` is empty.
    """
    state.require_controller(ReassignmentStep.what)
    if state.reassignment is not None:
        raise ControllerRequestRefused(
            ReassignmentStep.what,
            f"another is running: {paths.REASSIGN_PARTITIONS} holds {count_of(len(state.reassignment), 'partition')}",
            f"wait until it is done, or cancel it: {cancel_command()}, "
            "where FILE is the request's file or its before-image",
        )
    if not assignment:
        raise UsageError(ReassignmentStep.what, "no partition is named")
    return [
        _reassignment_step(state, tp, replicas, allow_replication_change) for tp, replicas in sorted(assignment.items())
    ]


def _reassignment_step(
    state: AdminState, tp: TopicPartition, after: tuple[int, ...], allow_replication_change: bool
) -> ReassignmentStep:
    try:
        found = state.partition(tp)
    except OffsetMgrError as error:
        return ReassignmentStep(*tp, error, (), after)
    why, hint = _reassignment_obstacle(state, tp.topic, found, after, allow_replication_change)
    rejected = ControllerRequestRefused(f"partition {tp}", why, hint) if why else None
    return ReassignmentStep(*tp, rejected, found.replicas, after)


def _reassignment_obstacle(
    state: AdminState, topic: str, found: AssignedPartition, after: Sequence[int], allow_replication_change: bool
) -> tuple[str, str]:
    """Returns the reason why a partition cannot be reassigned, and a hint. Both are empty if it can."""
    if found.moving:
        return "it is already being reassigned", f"wait until it is done, or cancel it: {cancel_command()}"
    if topic in state.deletions:
        return f"topic {topic} is being deleted", ""
    if not after:
        return "no replicas are named", ""
    if len(set(after)) != len(after):
        return f"the replicas {format_ids(after)} name a broker twice", ""
    if dead := sorted(set(after) - set(state.brokers)):
        verb = "is" if len(dead) == 1 else "are"
        return f"broker {format_ids(dead)} {verb} not alive (alive: {format_ids(sorted(state.brokers))})", ""
    if len(after) != len(found.replicas) and not allow_replication_change:
        why = f"it has {len(found.replicas)} replicas and would have {len(after)}"
        return why, Advice("add {allow_replication_change} if that is intended")
    return "", ""


# Topic deletion. If ``delete.topic.enable`` is false on the controller, the controller removes the request and deletes
# nothing. If a topic has a replica on a dead broker, or is being reassigned, the controller postpones the deletion
# (kafka.controller.TopicDeletionManager).


@dataclass(frozen=True, slots=True)
class DeletionStep(RequestStep):
    """The deletion of one topic. ``replicas`` counts the replicas of all ``partitions``.

    ``waits_for`` describes what the controller has to wait for; it is empty if the controller does not have to wait.
    ``czxid`` is that of the topic's node; a topic that was deleted and recreated has another.
    """

    what = "deletion of topics"
    effect = "delete {} for good"
    noun = "topic"

    partitions: int | None = None
    replicas: int | None = None
    waits_for: str = ""
    czxid: int = 0

    @property
    def note(self) -> str:
        return f"will wait for {self.waits_for}" if self.waits_for else ""

    @classmethod
    def nodes(cls, steps: Sequence[Self]) -> dict[str, bytes]:
        """Returns the request's nodes, one for each topic."""
        return {f"{paths.DELETE_TOPICS}/{one.topic}": b"" for one in steps}

    def is_under_way(self, state: AdminState) -> bool:
        return self.topic in state.deletions

    def open_reason(self, state: AdminState) -> str:
        topic = state.topics.get(self.topic)
        if self.is_under_way(state):
            waits = _waits_for(state, topic) if isinstance(topic, AdminTopicState) else ""
            return f"waits for {waits}" if waits else "the controller is deleting it"
        if topic is not None and value_of(topic).czxid == self.czxid:
            return "the controller has removed the request without deleting the topic; check its delete.topic.enable"
        return ""


def plan_deletion(state: AdminState, topics: Iterable[str], *, enabled: bool | None) -> list[DeletionStep]:
    """Returns a step for each topic, sorted by topic. ``enabled`` is the controller's ``delete.topic.enable``, or None
    if unknown.

    Raises `ControllerRequestRefused` if there is no controller, or if ``enabled`` is False.
    """
    state.require_controller(DeletionStep.what)
    if enabled is False:
        raise ControllerRequestRefused(
            DeletionStep.what,
            f"delete.topic.enable is false on the controller, broker {state.controller}: it would discard the request",
        )
    return [_deletion_step(state, topic) for topic in sorted(set(topics))]


def _deletion_step(state: AdminState, name: str) -> DeletionStep:
    try:
        topic = state.topic(name)
    except OffsetMgrError as error:
        return DeletionStep(name, rejected=error)
    replicas = sum(len(partition.replicas) for partition in topic.partitions.values())
    rejected: OffsetMgrError | None = None
    if name in INTERNAL:
        rejected = ControllerRequestRefused(f"topic {name}", "brokers do not work without it")
    elif name in state.deletions:
        rejected = ControllerRequestRefused(
            f"topic {name}", f"its deletion is under way: {paths.DELETE_TOPICS}/{name} exists"
        )
    waits_for = _waits_for(state, topic)
    return DeletionStep(name, None, rejected, len(topic.partitions), replicas, waits_for, topic.czxid)


def _waits_for(state: AdminState, topic: AdminTopicState) -> str:
    if any(partition.moving for partition in topic.partitions.values()):
        return "the reassignment of its partitions"
    dead = {broker for partition in topic.partitions.values() for broker in partition.replicas} - set(state.brokers)
    return f"broker {format_ids(sorted(dead))}, not alive, which holds replicas" if dead else ""
