"""Partition reassignment: encodes and decodes Kafka's JSON, plans a request, and computes its progress. Pure.

If a request comes through the broker API, the controller validates its brokers and replicas
(kafka.controller.KafkaController.validateReplicas). If a request comes through ZooKeeper, the controller does not
validate them. A reassignment to a dead broker would never end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Final

from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import ControllerRequestRefused, OffsetMgrError, UsageError
from offsetmgr.core.field_reader import FieldReader
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.plurals import count_of
from offsetmgr.zookeeper.admin.plan import RequestStep
from offsetmgr.zookeeper.admin.state import AdminState, AssignedPartition
from offsetmgr.zookeeper.nodes import paths
from offsetmgr.zookeeper.nodes.fields import format_ids

ReplicaAssignment = Mapping[TopicPartition, tuple[int, ...]]
"""Partition -> broker ids of its replicas, the preferred leader first."""
WHAT: Final = "reassignment"


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
        tp, replicas = _entry(entry)
        if tp in assignment:
            raise document.error(f"contains partition {tp} twice")
        assignment[tp] = replicas
    return assignment


_FORM = 'as in {"version":1,"partitions":[{"topic":"orders","partition":0,"replicas":[1,2]}]}'


def _entry(entry: FieldReader) -> tuple[TopicPartition, tuple[int, ...]]:
    topic, partition, replicas = entry.text("topic"), entry.integer("partition"), entry.get("replicas")
    if not isinstance(replicas, list) or any(type(broker) is not int or broker < 0 for broker in replicas):
        raise entry.invalid("replicas", "a list of brokers' ids")
    if any(directory != "any" for directory in entry.get("log_dirs") or ()):
        raise entry.error("names log_dirs, which cannot be requested through ZooKeeper")
    paths.check_topic(topic)
    return TopicPartition(topic, partition), tuple(replicas)


def plan_reassignment(
    state: AdminState, assignment: ReplicaAssignment, *, allow_replication_change: bool = False
) -> list[ReassignmentStep]:
    """Returns a step for each partition, sorted by partition. ``allow_replication_change`` allows a change of the
    number of replicas.

    A step's ``rejected`` is the reason why its partition cannot be reassigned, or None. Raises
    `ControllerRequestRefused` if there is no controller or another reassignment is running, and `UsageError` if
    ``assignment`` is empty.
    """
    state.require_controller(WHAT)
    if state.reassignment is not None:
        raise ControllerRequestRefused(
            WHAT,
            f"another is running: {paths.REASSIGN_PARTITIONS} holds {count_of(len(state.reassignment), 'partition')}",
            f"wait until it is done, or cancel it: {cancel_command()}, "
            "where FILE is the request's file or its before-image",
        )
    if not assignment:
        raise UsageError(WHAT, "no partition is named")
    return [_step(state, tp, replicas, allow_replication_change) for tp, replicas in sorted(assignment.items())]


def _step(
    state: AdminState, tp: TopicPartition, after: tuple[int, ...], allow_replication_change: bool
) -> ReassignmentStep:
    try:
        found = state.partition(tp)
    except OffsetMgrError as error:
        return ReassignmentStep(*tp, error, (), after)
    why, hint = _obstacle(state, tp.topic, found, after, allow_replication_change)
    rejected = ControllerRequestRefused(f"partition {tp}", why, hint) if why else None
    return ReassignmentStep(*tp, rejected, found.replicas, after)


def _obstacle(
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
