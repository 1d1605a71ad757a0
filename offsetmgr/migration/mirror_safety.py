"""Collects evidence that a group's live old (ZooKeeper-based) consumers commit only to ZooKeeper. Without this
evidence, a mirror must not lock the group in Kafka. Pure.

While a group is locked in Kafka, the commits of a member with dual commit fail. After a failed commit to Kafka, the
member does not write ZooKeeper either, so neither store would receive the member's progress. A dual member writes Kafka
first, so its ZooKeeper offset is never ahead of its offset in Kafka. Therefore, if the ZooKeeper offset of a partition
was seen to *move* beyond the offset that was read from Kafka afterwards, the owner of the partition commits to
ZooKeeper alone. A ZooKeeper offset that is merely ahead proves nothing: a member that was just restarted with dual
commit may not have committed yet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import PERSISTENT_MEMBERS_HINT, Committed, TopicPartition

REBALANCE_S: Final = 10.0
"""The number of seconds after a change of the members during which a rebalance may still assign partitions to a member
without partitions. An old consumer tries to rebalance 4 times, 2 s apart."""

_UNKNOWN: Final = "an owner that cannot be read"


class LegacyOwner(NamedTuple):
    """The owner of a partition. ``member_id`` is None if the owner's znode is unreadable; ``czxid`` is the transaction
    that created the znode."""

    member_id: str | None
    czxid: int


@dataclass(frozen=True, slots=True)
class LegacyGroup:
    """The live old consumers of one group: their ZooKeeper sessions by member id, and the owners of partitions.

    ``error`` is the reason why the members or the owners could not be read. None means that both were read.
    """

    members: Mapping[str, int]
    owners: Mapping[TopicPartition, LegacyOwner]
    error: OffsetMgrError | None = None

    @property
    def hint(self) -> str:
        """The end of a message about the members, if no session belongs to any of them."""
        if any(self.members.values()):
            return ""
        return Advice("; their registrations are persistent: {}", PERSISTENT_MEMBERS_HINT)


ReadLegacyGroups = Callable[[Iterable[str]], Mapping[str, LegacyGroup]]
"""Returns the live old consumers of groups. Groups without live members are missing from the result."""

NO_MEMBERS: Final = LegacyGroup({}, {})


@dataclass(slots=True)
class LegacyMemberEvidence:
    """The evidence about the members of one group. A member is identified by its id and its session, so a member that
    registers again counts as a new member."""

    members: Mapping[str, int] | None = None
    changed_at: float = -math.inf
    """The time (monotonic seconds) at which the members were first seen or last changed; minus infinity if no member
    was seen."""
    _first_seen: dict[TopicPartition, tuple[LegacyOwner, int]] = field(default_factory=dict)
    _proven: set[tuple[str, int]] = field(default_factory=set)

    def observe(
        self,
        group: LegacyGroup,
        source: Mapping[TopicPartition, Committed],
        target: Mapping[TopicPartition, Committed],
        now: float,
    ) -> None:
        """Records one observation. The members must be read first, then the source, then the target."""
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
        """Returns the members for which no observation proves that they commit to ZooKeeper alone."""
        owners = {owned.member_id for owned in group.owners.values()}
        unproven_members = {
            m if m is not None else _UNKNOWN for m in owners if m is None or not self._is_proven(group, m)
        }
        if not owners or now - self.changed_at < REBALANCE_S:
            unproven_members |= {m for m in group.members if m not in owners and not self._is_proven(group, m)}
        return sorted(unproven_members)

    def allows_lock(self, group: LegacyGroup) -> bool:
        """Returns whether the group may stay locked: there is no new member, and every owner is proven to commit to
        ZooKeeper alone."""
        known = set((self.members or {}).items())
        owners = {owned.member_id for owned in group.owners.values()}
        return known.issuperset(group.members.items()) and all(
            m is not None and self._is_proven(group, m) for m in owners
        )

    def _is_proven(self, group: LegacyGroup, member_id: str) -> bool:
        return (member_id, group.members.get(member_id, 0)) in self._proven


def _offset(found: Mapping[TopicPartition, Committed], tp: TopicPartition) -> int:
    return found[tp].offset if tp in found else -1
