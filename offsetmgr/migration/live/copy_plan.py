"""The offsets that prevent a change of the mode. Pure.

In mode dual the larger offset counts. So before dual begins, the unused store must not be ahead anywhere; and before it
ends, the store that stays must have everything, because a partition without traffic never gets there by itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from offsetmgr.core.model import ABSENT, Committed, Offset, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change

Offsets = Mapping[TopicPartition, Offset]


def partitions_ahead(used: Offsets, other: Offsets) -> dict[TopicPartition, tuple[int | None, int]]:
    """Returns the partitions in which the unused store is ahead: the offset in use (None: none), and the other one."""
    found: dict[TopicPartition, tuple[int | None, int]] = {}
    for tp in sorted(other):
        here, there = used.get(tp, ABSENT), other[tp]
        if not isinstance(there, Committed):
            continue
        if not isinstance(here, Committed):
            found[tp] = (None, there.offset)
        elif there.offset > here.offset:
            found[tp] = (here.offset, there.offset)
    return found


def catch_up_changes(kept: Offsets, other: Offsets) -> dict[TopicPartition, Change]:
    """Returns the writes that raise the store that stays to the larger offset, each conditional on its current
    value."""
    changes: dict[TopicPartition, Change] = {}
    for tp in partitions_ahead(kept, other):
        there = other[tp]
        assert isinstance(there, Committed)
        value = OffsetAndMetadata(there.offset, there.metadata, there.leader_epoch)
        changes[tp] = Change(value, expected=kept.get(tp, ABSENT))
    return changes
