"""The facts from which the rules derive findings: facts about one group, and facts about the cluster. Values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import LogRange, TopicPartition
from offsetmgr.core.offset_store import UnrecognisedData
from offsetmgr.zookeeper.check.findings import Finding, FindingCode
from offsetmgr.zookeeper.groups.ownership import Owner
from offsetmgr.zookeeper.groups.registry import RegistryMember
from offsetmgr.zookeeper.nodes import paths


class StoredOffset(NamedTuple):
    """A committed offset, and the time of its last write (ms since 1970, by ZooKeeper's clock)."""

    offset: int
    mtime_ms: int


class OtherGroup(NamedTuple):
    """The owner node of one group can name a consumer of another group. In this case, ``group`` is the group of the
    consumer, and ``live`` is True if the consumer is registered in ``group``."""

    group: str
    live: bool


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """The facts of one group.

    ``errors`` maps the path of each unreadable node to its error. The content of an unreadable node and of its
    descendants is unknown.
    """

    group: str
    members: tuple[RegistryMember, ...] = ()
    """All registered members, including those that are not `live`."""
    subscriptions: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Member id -> subscribed topics, for the live members with a readable registration. Patterns are resolved to
    topics."""
    owners: Mapping[TopicPartition, Owner] = field(default_factory=dict)
    foreign_owners: Mapping[str, OtherGroup] = field(default_factory=dict)
    """Consumer id in an owner node of this group -> the other group to which the id belongs. Ids that belong to this
    group are omitted."""
    offsets: Mapping[TopicPartition, StoredOffset] = field(default_factory=dict)
    created_ms: int | None = None
    """Creation time of the group's node; None if unknown."""
    errors: Mapping[str, OffsetMgrError] = field(default_factory=dict)
    unrecognised: tuple[UnrecognisedData, ...] = ()
    commits: bool = False
    """Whether offsets of the group were written during the check, so that persistent members run, too."""

    @property
    def live(self) -> tuple[RegistryMember, ...]:
        """The members that are known to run (see `registry`)."""
        return tuple(member for member in self.members if member.node.session or self.commits)

    def finding(
        self, code: FindingCode, path: str, text: str, todo: str, topic: str | None = None, *partitions: int
    ) -> Finding:
        """Returns a finding about a node of the group. For ``text`` see `Finding`."""
        return Finding(code, self.group, path, text, todo, topic, partitions)

    def owner_path(self, tp: TopicPartition) -> str:
        """The path of a partition's owner node."""
        return f"{paths.owners_of_topic(self.group, tp.topic)}/{self.owners[tp].name}"


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """The facts of the cluster, which are the same for all groups.

    ``topics`` maps each topic to its partitions, or to the error from reading the topic. If ``/brokers/topics`` does
    not exist, no broker has ever used this ZooKeeper. In this case, the topics are unknown, and ``topics`` is None.
    """

    topics: Mapping[str, frozenset[int] | OffsetMgrError] | None
    unserved: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Topic -> partitions that have no leader, or whose leader is not a live broker."""
    storage_modes: Sequence[str] | OffsetMgrError = ()
    """The groups below `paths.STORAGE_MODES` that have a stored mode, or the error if an ACL forbids to list them."""
    connect: str = ""
    """The connect string of ZooKeeper, with the chroot."""


Ranges = Mapping[TopicPartition, LogRange | OffsetMgrError]
"""Partition -> the range of its log, or the error from reading the range."""
