"""Offsets for all partitions of a topic, and the state of a group."""

from __future__ import annotations

from offsetmgr.core.model import GroupDescription, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, GroupEdit
from offsetmgr.kafka.cluster import KafkaCluster

PARTITIONS = 4


def state_of(cluster: KafkaCluster, group: str) -> str:
    described = cluster.describe_groups([group])[group]
    assert isinstance(described, GroupDescription)
    return described.state


def at(topic: str, offset: int) -> dict[TopicPartition, OffsetAndMetadata]:
    """The same offset for each partition."""
    return {TopicPartition(topic, p): OffsetAndMetadata(offset) for p in range(PARTITIONS)}


def edit_of(group: str, topic: str, offset: int) -> GroupEdit:
    """An edit that sets each partition to the same offset."""
    return GroupEdit(group, {tp: Change(after) for tp, after in at(topic, offset).items()})
