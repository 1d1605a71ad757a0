"""The observations of a switch, as values (data rule "verdicts carry evidence"). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.core.errors import RecreatedTopic
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.offset_store import Change
from offsetmgr.stores.switched.nodes import FollowerState, NodeState
from offsetmgr.stores.switched.records import SwitcherNode


@dataclass(frozen=True, slots=True)
class SwitchSnapshot:
    """The state of a group before a switch. The values of a snapshot were read one after the other and may be
    inconsistent with each other, so the switch reads and checks them again.

    ``foreign_owners`` are clients that commit and do not follow the mode: registered consumers, and members of the
    group in Kafka. ``ahead`` are partitions in which the unused store is ahead, each with the offset in use (None if
    there is none) and the larger offset. ``copies`` are the writes that must be made before the mode can change.
    ``recreated`` are partitions that cannot be copied, although the change needs their offset, because this offset
    belongs to the deleted log of a recreated topic.
    """

    state: NodeState
    switcher: SwitcherNode | None
    followers: tuple[FollowerState, ...]
    foreign_owners: tuple[str, ...]
    ahead: Mapping[TopicPartition, tuple[int | None, int]] = field(default_factory=dict)
    copies: Mapping[TopicPartition, Change] = field(default_factory=dict)
    recreated: Mapping[TopicPartition, RecreatedTopic] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FollowerAck:
    """A member, and the times (ms, on the clock of this process) at which its acknowledgements were seen. A time is
    None if the acknowledgement was not seen."""

    name: str
    host: str
    process: int
    stopped_ms: int | None
    """The time at which this process saw that the member had stopped committing in the old mode."""
    followed_ms: int | None = None
    """The time at which this process saw that the member follows the new mode."""


@dataclass(frozen=True, slots=True)
class SwitchEvidence:
    """The result of a switch. This process observed all values, at the given times (ms).

    ``compared`` is the number of partitions that were read in both stores after the copy, while no member committed.
    """

    group: str
    old_mode: CommitMode
    to: CommitMode
    epoch: int
    """The epoch of the new mode."""
    began_ms: int
    changed_ms: int
    members: tuple[FollowerAck, ...]
    copies: Mapping[TopicPartition, Change]
    compared: int

    @property
    def unacknowledged(self) -> tuple[FollowerAck, ...]:
        """The members that have acknowledged the announcement but not yet the new mode. These members have stopped
        committing in the old mode."""
        return tuple(member for member in self.members if member.followed_ms is None)
