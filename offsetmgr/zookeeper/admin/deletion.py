"""Topic deletion: plans the requests, predicts what the controller has to wait for, and computes the progress of a
deletion. Pure.

If ``delete.topic.enable`` is false on the controller, the controller removes the request and deletes nothing. If a
topic has a replica on a dead broker, or is being reassigned, the controller postpones the deletion
(kafka.controller.TopicDeletionManager).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from offsetmgr.core.errors import ControllerRequestRefused, OffsetMgrError
from offsetmgr.zookeeper.admin.state import AdminState, AdminTopicState, RequestProgress, numbers
from offsetmgr.zookeeper.nodes import paths

INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state"})
"""Kafka's internal topics, without which brokers do not work (org.apache.kafka.common.internals.Topic)."""


class DeletionStep(NamedTuple):
    """The deletion of one topic. ``waits_for`` describes what the controller has to wait for; it is empty if the
    controller does not have to wait. ``rejected`` is the reason why the topic cannot be deleted, or None."""

    topic: str
    partitions: int | None = None
    replicas: int | None = None
    waits_for: str = ""
    rejected: OffsetMgrError | None = None


def plan_deletion(state: AdminState, topics: Iterable[str], *, enabled: bool | None) -> list[DeletionStep]:
    """Returns a step for each topic, sorted by topic. ``enabled`` is the controller's ``delete.topic.enable``, or None
    if unknown.

    Raises `ControllerRequestRefused` if there is no controller, or if ``enabled`` is False.
    """
    state.require_controller("deletion of topics")
    if enabled is False:
        raise ControllerRequestRefused(
            "deletion of topics",
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
    return DeletionStep(name, len(topic.partitions), replicas, _waits_for(state, topic), rejected)


def _waits_for(state: AdminState, topic: AdminTopicState) -> str:
    if any(partition.moving for partition in topic.partitions.values()):
        return "the reassignment of its partitions"
    dead = {broker for partition in topic.partitions.values() for broker in partition.replicas} - set(state.brokers)
    return f"broker {numbers(sorted(dead))}, not alive, which holds replicas" if dead else ""


def progress_of(state: AdminState, requested: Mapping[str, int]) -> RequestProgress:
    """Returns the progress of a deletion.

    ``requested`` maps each topic to the ``czxid`` of its node; a topic that was deleted and recreated has another
    ``czxid``.
    """
    waiting: dict[str, str] = {}
    for name, czxid in requested.items():
        topic = state.topics.get(name)
        if name in state.deletions:
            waits = _waits_for(state, topic) if isinstance(topic, AdminTopicState) else ""
            waiting[name] = f"waits for {waits}" if waits else "the controller is deleting it"
        elif isinstance(topic, OffsetMgrError):
            waiting[name] = str(topic)
        elif topic is not None and topic.czxid == czxid:
            waiting[name] = (
                "the controller has removed the request without deleting the topic; check its delete.topic.enable"
            )
    return RequestProgress(
        len(requested) - len(waiting), len(requested), waiting, ended=not state.deletions & requested.keys()
    )
