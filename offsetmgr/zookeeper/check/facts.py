"""The facts on which findings are based: those of one group, and those of the cluster, which all groups share. Values
only."""

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
    """The group that an owner's id belongs to, if it is a different group; ``live`` if the id is registered there."""

    group: str
    live: bool


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """One group. ``errors`` maps the path of an unreadable node to the reason; the node and its descendants are
    unknown."""

    group: str
    members: tuple[RegistryMember, ...] = ()
    """All registered members; a member with a persistent node is not `live`."""
    subscriptions: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Member id -> subscribed topics (patterns resolved); only live members whose registration is readable."""
    owners: Mapping[TopicPartition, Owner] = field(default_factory=dict)
    elsewhere: Mapping[str, OtherStoreOffset] = field(default_factory=dict)
    """Member id of an owner that is not a member -> the other group that it belongs to, if there is one."""
    offsets: Mapping[TopicPartition, StoredOffset] = field(default_factory=dict)
    created_ms: int | None = None
    """Creation time of the group's node; None if unknown."""
    errors: Mapping[str, OffsetMgrError] = field(default_factory=dict)

    @property
    def live(self) -> tuple[RegistryMember, ...]:
        """Members with a session. A persistent node stays after its process has ended, or was not created by a
        consumer."""
        return tuple(member for member in self.members if member.session_id)

    def owner_path(self, tp: TopicPartition) -> str:
        """Path of the node that names the partition's owner, which may be in the 0.7 layout."""
        return f"{paths.owners_of_topic(self.group, tp.topic)}/{tp.partition}"


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """``topics`` holds each topic's partitions, or the error. It is None without ``/brokers/topics``: no broker has
    ever used this ZooKeeper, so nothing is known about topics."""

    topics: Mapping[str, frozenset[int] | OffsetMgrError] | None
    unserved: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Topic -> partitions that have no leader or a dead leader."""


Ranges = Mapping[TopicPartition, LogRange | OffsetMgrError]
"""The ranges of the partitions' logs, or the error."""
