"""Preferred replica election: plans the requests and computes the progress of an election. Pure.

The controller tries to elect the preferred replica of each partition once. It then deletes the request's node, even if
some preferred replicas did not become leader (kafka.controller.KafkaController.onReplicaElection). Therefore the
progress is computed from the partitions' leaders, not from the request's node.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from offsetmgr.core.errors import ControllerRequestRefused, OffsetMgrError
from offsetmgr.core.model import TopicPartition
from offsetmgr.zookeeper.admin.state import AdminState, AssignedPartition, RequestProgress, checked_size, numbers
from offsetmgr.zookeeper.nodes import paths


class ElectionStep(NamedTuple):
    """One partition with its leader and its preferred leader. ``needed`` is False if the preferred replica is already
    the leader."""

    partition: TopicPartition
    leader: int | None
    preferred: int | None
    needed: bool = False
    rejected: OffsetMgrError | None = None


def plan_election(state: AdminState, partitions: Iterable[TopicPartition]) -> list[ElectionStep]:
    """Returns a step for each partition, sorted by partition. A step's ``rejected`` is the reason why the controller
    would not elect the preferred leader, or None.

    Raises `ControllerRequestRefused` if there is no controller, or if another election is running.
    """
    what = "preferred replica election"
    state.require_controller(what)
    if state.election:
        raise ControllerRequestRefused(
            what,
            f"another is running: {paths.PREFERRED_REPLICA_ELECTION} exists",
            "wait until the controller has completed it",
        )
    return [_step(state, tp) for tp in sorted(set(partitions))]


def _step(state: AdminState, tp: TopicPartition) -> ElectionStep:
    try:
        found = state.partition(tp)
    except OffsetMgrError as error:
        return ElectionStep(tp, None, None, rejected=error)
    if found.leader == found.preferred:
        return ElectionStep(tp, found.leader, found.preferred)
    return ElectionStep(tp, found.leader, found.preferred, True, _obstacle(state, tp, found))


def _obstacle(state: AdminState, tp: TopicPartition, found: AssignedPartition) -> OffsetMgrError | None:
    """Returns the reason why the controller would not elect the preferred leader, or None if it would."""
    if tp.topic in state.deletions:
        return ControllerRequestRefused(f"partition {tp}", f"topic {tp.topic} is being deleted")
    if found.preferred not in state.brokers:
        return ControllerRequestRefused(
            f"partition {tp}", f"its preferred leader, broker {found.preferred}, is not alive"
        )
    if found.preferred not in found.isr:
        in_sync = numbers(found.isr) or "none"
        return ControllerRequestRefused(
            f"partition {tp}",
            f"its preferred leader, broker {found.preferred}, is not in sync (in sync: {in_sync})",
            "wait until it has caught up",
        )
    return None


def encode_election(partitions: Iterable[TopicPartition]) -> bytes:
    """Encodes the data of the request's node (kafka.zk.PreferredReplicaElectionZNode, version 1). Raises `UsageError`
    if the data is too large."""
    listed = [{"topic": tp.topic, "partition": tp.partition} for tp in partitions]
    data = json.dumps({"version": 1, "partitions": listed}, separators=(",", ":")).encode()
    return checked_size("preferred replica election", data)


def progress_of(state: AdminState, requested: Mapping[TopicPartition, int]) -> RequestProgress:
    """Returns the progress of an election; ``requested`` maps each partition to its preferred leader.

    The controller does not retry an election after it has deleted the request's node. If a preferred replica is still
    not the leader at that time, the election of its partition has failed.
    """
    waiting: dict[str, str] = {}
    for tp, preferred in requested.items():
        try:
            leader = state.partition(tp).leader
        except OffsetMgrError as error:
            waiting[str(tp)] = str(error)
            continue
        if leader != preferred:
            who = "it has no leader" if leader is None else f"broker {leader} leads it"
            waiting[str(tp)] = f"{who}, not broker {preferred}"
    return RequestProgress(len(requested) - len(waiting), len(requested), waiting, ended=not state.election)
