"""Converts librdkafka's group descriptions into `GroupDescription`."""

from __future__ import annotations

from typing import Any

from offsetmgr.core.model import (
    GroupDescription,
    GroupMember,
    TopicPartition,
)


def _state(state: Any) -> str:
    """Returns Kafka's name of a group state. librdkafka has its own names for two of the states."""
    return state.name.replace("REBALANCING", "REBALANCE") if state is not None else "UNKNOWN"


def group_description(found: Any) -> GroupDescription:
    coordinator = found.coordinator
    return GroupDescription(
        group=found.group_id,
        state=_state(found.state),
        protocol_type="" if found.is_simple_consumer_group else "consumer",
        partition_assignor=found.partition_assignor or "",
        coordinator=f"{coordinator.host}:{coordinator.port}" if coordinator else "",
        members=tuple(
            GroupMember(
                member_id=member.member_id,
                client_id=member.client_id or "",
                host=(member.host or "").removeprefix("/"),
                instance_id=member.group_instance_id or None,
                partitions=tuple(
                    sorted(
                        TopicPartition(tp.topic, tp.partition)
                        for tp in (member.assignment.topic_partitions if member.assignment else ())
                    )
                ),
            )
            for member in found.members
        ),
    )
