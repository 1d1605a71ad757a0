"""What is known when groups are judged: one group, and the cluster that all of them share. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import LogRange, TopicPartition
from offsetmgr.zookeeper.groups.ownership import Owner
from offsetmgr.zookeeper.groups.registry import RegistryMember
from offsetmgr.zookeeper.nodes import paths


class StoredOffset(NamedTuple):
    """A committed offset and when it was last written (ms since 1970, by ZooKeeper's clock)."""

    offset: int
    mtime_ms: int


class OtherStoreOffset(NamedTuple):
    """Another group to which an owner's id belongs: by its name, and ``live`` where it is registered there."""

    group: str
    live: bool


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """One group. ``errors`` maps the path of a node to why it, and what is below it, is not known."""

    group: str
    members: tuple[RegistryMember, ...] = ()
    """All that are registered; those of a persistent node are not `live`."""
    subscriptions: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Member id -> topics that it wants streams of (patterns resolved); live members that can be read only."""
    owners: Mapping[TopicPartition, Owner] = field(default_factory=dict)
    elsewhere: Mapping[str, OtherStoreOffset] = field(default_factory=dict)
    """Member id of an owner that is no member -> the other group that it is of, where there is one."""
    offsets: Mapping[TopicPartition, StoredOffset] = field(default_factory=dict)
    created_ms: int | None = None
    """When the group's node was made; None where that is not known."""
    errors: Mapping[str, OffsetMgrError] = field(default_factory=dict)

    @property
    def live(self) -> tuple[RegistryMember, ...]:
        """Members with a session. A persistent node stays when its process has gone, or was never a consumer's."""
        return tuple(member for member in self.members if member.session_id)

    def owner_path(self, tp: TopicPartition) -> str:
        """The node that says who owns a partition, which may be one of 0.7."""
        return f"{paths.owners_of_topic(self.group, tp.topic)}/{tp.partition}"


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """``topics`` holds each topic's partitions, or why they are not known; None where there is no ``/brokers/topics``:
    no broker has ever used this ZooKeeper, so nothing can be said of topics at all."""

    topics: Mapping[str, frozenset[int] | OffsetMgrError] | None
    unserved: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Topic -> partitions that have no leader, or one that is not alive."""


Ranges = Mapping[TopicPartition, LogRange | OffsetMgrError]
"""What the partitions' logs hold, or why that is not known."""
