"""The evidence about a group's live old consumers that a mirror needs before it may lock the group in Kafka. Pure.

While the group is locked, a member with dual commit fails its Kafka commit and then does not write ZooKeeper: it would
stop in both stores. Such a member writes Kafka first, so its ZooKeeper offset is never ahead of Kafka. An owned
partition that *moved* in ZooKeeper beyond Kafka's offset, read afterwards, proves that its owner commits to ZooKeeper
alone. A partition that is merely ahead there proves nothing: a member that was just restarted with dual commit has not
committed yet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import Committed, TopicPartition

REBALANCE_S: Final = 10.0
"""Seconds for which a member without partitions may still receive some: the old consumer tries 4 times, 2 s apart."""

_UNKNOWN: Final = "an owner that cannot be read"


class LegacyOwner(NamedTuple):
    """The owner of a partition; ``czxid`` is that of the owner's node. ``member_id`` None: unreadable."""

    member_id: str | None
    czxid: int


@dataclass(frozen=True, slots=True)
class LegacyGroup:
    """The live old consumers of one group: their ZooKeeper sessions by id, and their partitions.

    With ``error`` set nothing is known of them.
    """

    members: Mapping[str, int]
    owners: Mapping[TopicPartition, LegacyOwner]
    error: OffsetMgrError | None = None


ReadLegacyGroups = Callable[[Iterable[str]], Mapping[str, LegacyGroup]]
"""Returns live old consumers; groups without any are missing."""

NO_MEMBERS: Final = LegacyGroup({}, {})


@dataclass(slots=True)
class LegacyMemberEvidence:
    """The observations of one group's members. A member is its id and its session: one that returns is new."""

    members: Mapping[str, int] | None = None
    changed_at: float = -math.inf
    """When members were first seen, or last changed (monotonic seconds); minus infinity if there never were any."""
    _first_seen: dict[TopicPartition, tuple[LegacyOwner, int]] = field(default_factory=dict)
    _proven: set[tuple[str, int]] = field(default_factory=set)

    def observe(
        self,
        group: LegacyGroup,
        source: Mapping[TopicPartition, Committed],
        target: Mapping[TopicPartition, Committed],
        now: float,
    ) -> None:
        """Records one observation: the members read first, then the source, then the target."""
        self.observe_members(group, now)
        for tp, owned in group.owners.items():
            offset = source[tp].offset if tp in source else -1
            first = self._first_seen.get(tp)
            if first is None or first[0] != owned:
                self._first_seen[tp] = (owned, offset)
            elif offset > first[1] and _offset(target, tp) < offset:
                self._proven |= {(m, session) for m, session in group.members.items() if m == owned.member_id}

    def observe_members(self, group: LegacyGroup, now: float) -> None:
        """Records the present members."""
        if self.members != group.members and (self.members is not None or group.members):
            self.changed_at = now
        self.members = dict(group.members)
        self._proven &= set(group.members.items())

    def unproven(self, group: LegacyGroup, now: float) -> list[str]:
        """Returns members that may commit to Kafka too."""
        owners = {owned.member_id for owned in group.owners.values()}
        unproven_members = {
            m if m is not None else _UNKNOWN for m in owners if m is None or not self._is_proven(group, m)
        }
        if not owners or now - self.changed_at < REBALANCE_S:
            unproven_members |= {m for m in group.members if m not in owners and not self._is_proven(group, m)}
        return sorted(unproven_members)

    def allows_lock(self, group: LegacyGroup) -> bool:
        """Returns whether a locked group may be kept: no new member, and no owner without proof."""
        known = set((self.members or {}).items())
        owners = {owned.member_id for owned in group.owners.values()}
        return known.issuperset(group.members.items()) and all(
            m is not None and self._is_proven(group, m) for m in owners
        )

    def _is_proven(self, group: LegacyGroup, member_id: str) -> bool:
        return (member_id, group.members.get(member_id, 0)) in self._proven


def _offset(found: Mapping[TopicPartition, Committed], tp: TopicPartition) -> int:
    return found[tp].offset if tp in found else -1
