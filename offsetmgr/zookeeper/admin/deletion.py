"""Topic deletion: plans the requests, predicts what the controller has to wait for, and computes the progress of a
deletion. Pure.

If ``delete.topic.enable`` is false on the controller, the controller removes the request and deletes nothing. If a
topic has a replica on a dead broker, or is being reassigned, the controller postpones the deletion
(kafka.controller.TopicDeletionManager).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from offsetmgr.core.errors import ControllerRequestRefused, OffsetMgrError, value_of
from offsetmgr.zookeeper.admin.plan import RequestStep
from offsetmgr.zookeeper.admin.state import AdminState, AdminTopicState
from offsetmgr.zookeeper.nodes import paths
from offsetmgr.zookeeper.nodes.fields import format_ids

INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state"})
"""Kafka's internal topics, without which brokers do not work (org.apache.kafka.common.internals.Topic)."""
WHAT: Final = "deletion of topics"


@dataclass(frozen=True, slots=True)
class DeletionStep(RequestStep):
    """The deletion of one topic. ``replicas`` counts the replicas of all ``partitions``.

    ``waits_for`` describes what the controller has to wait for; it is empty if the controller does not have to wait.
    ``czxid`` is that of the topic's node; a topic that was deleted and recreated has another.
    """

    partitions: int | None = None
    replicas: int | None = None
    waits_for: str = ""
    czxid: int = 0

    @property
    def note(self) -> str:
        return f"will wait for {self.waits_for}" if self.waits_for else ""

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
    state.require_controller(WHAT)
    if enabled is False:
        raise ControllerRequestRefused(
            WHAT,
            f"delete.topic.enable is false on the controller, broker {state.controller}: it would discard the request",
        )
    return [_step(state, topic) for topic in sorted(set(topics))]


def _step(state: AdminState, name: str) -> DeletionStep:
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
