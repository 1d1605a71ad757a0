"""Preferred replica election: plans the requests and computes the progress of an election. Pure.

The controller tries to elect the preferred replica of each partition once. It then deletes the request's node, even if
some preferred replicas did not become leader (kafka.controller.KafkaController.onReplicaElection). Therefore the
progress is computed from the partitions' leaders, not from the request's node.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from offsetmgr.core.errors import ControllerRequestRefused, OffsetMgrError
from offsetmgr.core.model import TopicPartition
from offsetmgr.zookeeper.admin.plan import RequestStep
from offsetmgr.zookeeper.admin.state import AdminState, AssignedPartition
from offsetmgr.zookeeper.nodes import paths
from offsetmgr.zookeeper.nodes.fields import format_ids

WHAT: Final = "preferred replica election"


@dataclass(frozen=True, slots=True)
class ElectionStep(RequestStep):
    """One partition with its leader and its preferred leader.

    The controller does not retry an election after it has deleted the request's node. If a preferred replica is still
    not the leader at that time, the election of its partition has failed.
    """

    leader: int | None = None
    preferred: int | None = None

    @property
    def needed(self) -> bool:
        return self.leader != self.preferred

    @property
    def note(self) -> str:
        return "" if self.needed else "is the leader already"

    def is_under_way(self, state: AdminState) -> bool:
        return state.election

    def open_reason(self, state: AdminState) -> str:
        leader = state.partition(self.tp).leader
        if leader == self.preferred:
            return ""
        who = "it has no leader" if leader is None else f"broker {leader} leads it"
        return f"{who}, not broker {self.preferred}"


def plan_election(state: AdminState, partitions: Iterable[TopicPartition]) -> list[ElectionStep]:
    """Returns a step for each partition, sorted by partition.

    Raises `ControllerRequestRefused` if there is no controller, or if another election is running.
    """
    state.require_controller(WHAT)
    if state.election:
        raise ControllerRequestRefused(
            WHAT,
            f"another is running: {paths.PREFERRED_REPLICA_ELECTION} exists",
            "wait until the controller has completed it",
        )
    return [_step(state, tp) for tp in sorted(set(partitions))]


def _step(state: AdminState, tp: TopicPartition) -> ElectionStep:
    try:
        found = state.partition(tp)
    except OffsetMgrError as error:
        return ElectionStep(*tp, error)
    rejected = None if found.leader == found.preferred else _obstacle(state, tp, found)
    return ElectionStep(*tp, rejected, found.leader, found.preferred)


def _obstacle(state: AdminState, tp: TopicPartition, found: AssignedPartition) -> OffsetMgrError | None:
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
