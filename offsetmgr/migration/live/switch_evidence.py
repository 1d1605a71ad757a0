"""What a switch has seen, as values (data rule "verdicts carry evidence"). Pure."""

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
    """A group as it is before a switch; not one moment's picture, which is why a switch looks again while it holds.

    ``strangers`` are those that commit and do not follow: registered consumers, and members of the group in Kafka.
    ``ahead`` are the partitions in which the store that is not in use is ahead of the one in use (None: no offset
    there); ``copies`` what must be copied before the mode can change; ``recreated`` what would have to be, but
    points into a deleted log.
    """

    seen: NodeState
    switcher: SwitcherNode | None
    followers: tuple[FollowerState, ...]
    strangers: tuple[str, ...]
    ahead: Mapping[TopicPartition, tuple[int | None, int]] = field(default_factory=dict)
    copies: Mapping[TopicPartition, Change] = field(default_factory=dict)
    recreated: Mapping[TopicPartition, RecreatedTopic] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FollowerAck:
    """A member, and when (ms, by the switch's clock) it was seen to go by an epoch; None: it was not."""

    name: str
    host: str
    process: int
    held_ms: int | None
    """When it was seen to have stopped committing in the old mode."""
    followed_ms: int | None = None
    """When it was seen to go by the new mode."""


@dataclass(frozen=True, slots=True)
class SwitchEvidence:
    """What became of a switch, and how it is known: everything here was seen, by this process, at these times (ms).

    ``compared`` is how many partitions were read in both stores after the last copy, while nobody committed.
    """

    group: str
    start: CommitMode
    to: CommitMode
    epoch: int
    """Of the new mode."""
    began_ms: int
    settled_ms: int
    members: tuple[FollowerAck, ...]
    copies: Mapping[TopicPartition, Change]
    compared: int

    @property
    def late(self) -> tuple[FollowerAck, ...]:
        """Members that were not seen to go by the new mode yet. They commit nothing in the old one."""
        return tuple(member for member in self.members if member.followed_ms is None)
