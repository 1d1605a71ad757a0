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


class OwnedGroup(NamedTuple):
    """The owner of a partition; ``czxid`` is that of the owner's node. ``member_id`` None: unreadable."""

    member_id: str | None
    czxid: int


@dataclass(frozen=True, slots=True)
class LegacyGroup:
    """The live old consumers of one group: their ZooKeeper sessions by id, and their partitions.

    With ``error`` set nothing is known of them.
    """

    members: Mapping[str, int]
    owners: Mapping[TopicPartition, OwnedGroup]
    error: OffsetMgrError | None = None


AskOldGroups = Callable[[Iterable[str]], Mapping[str, LegacyGroup]]
"""Returns live old consumers; groups without any are missing."""

NOBODY: Final = LegacyGroup({}, {})


@dataclass(slots=True)
class MemberWatch:
    """The observations of one group's members. A member is its id and its session: one that returns is new."""

    members: Mapping[str, int] | None = None
    since: float = -math.inf
    """When members were first seen, or last changed (monotonic seconds); minus infinity if there never were any."""
    _first: dict[TopicPartition, tuple[OwnedGroup, int]] = field(default_factory=dict)
    _proven: set[tuple[str, int]] = field(default_factory=set)

    def look(
        self,
        old: LegacyGroup,
        source: Mapping[TopicPartition, Committed],
        target: Mapping[TopicPartition, Committed],
        now: float,
    ) -> None:
        """Records one observation: the members read first, then the source, then the target."""
        self.meet(old, now)
        for tp, owned in old.owners.items():
            offset = source[tp].offset if tp in source else -1
            first = self._first.get(tp)
            if first is None or first[0] != owned:
                self._first[tp] = (owned, offset)
            elif offset > first[1] and _offset(target, tp) < offset:
                self._proven |= {(m, session) for m, session in old.members.items() if m == owned.member_id}

    def meet(self, old: LegacyGroup, now: float) -> None:
        """Records the present members."""
        if self.members != old.members and (self.members is not None or old.members):
            self.since = now
        self.members = dict(old.members)
        self._proven &= set(old.members.items())

    def unproven(self, old: LegacyGroup, now: float) -> list[str]:
        """Returns members that may commit to Kafka too."""
        owners = {owned.member_id for owned in old.owners.values()}
        unseen = {m if m is not None else _UNKNOWN for m in owners if m is None or not self._seen(old, m)}
        if not owners or now - self.since < REBALANCE_S:
            unseen |= {m for m in old.members if m not in owners and not self._seen(old, m)}
        return sorted(unseen)

    def admits(self, old: LegacyGroup) -> bool:
        """Returns whether a locked group may be kept: no new member, and no owner without proof."""
        known = set((self.members or {}).items())
        owners = {owned.member_id for owned in old.owners.values()}
        return known.issuperset(old.members.items()) and all(m is not None and self._seen(old, m) for m in owners)

    def _seen(self, old: LegacyGroup, member_id: str) -> bool:
        return (member_id, old.members.get(member_id, 0)) in self._proven


def _offset(found: Mapping[TopicPartition, Committed], tp: TopicPartition) -> int:
    return found[tp].offset if tp in found else -1
