"""Which offsets stand in the way of a change of mode: pure, values in and values out.

In mode dual the larger of both stores counts. So before dual begins, the store that was not in use may be ahead
nowhere; and before it ends, the store that is kept must hold everything: a partition without traffic never gets there
by itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from offsetmgr.core.model import ABSENT, Committed, Offset, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change

Offsets = Mapping[TopicPartition, Offset]


def partitions_ahead(used: Offsets, other: Offsets) -> dict[TopicPartition, tuple[int | None, int]]:
    """Partitions in which the store that is not in use is ahead: the offset in use (None: none), and the other's."""
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
    """The writes that bring the store that is kept to the larger of both, each on condition of what it holds."""
    changes: dict[TopicPartition, Change] = {}
    for tp in partitions_ahead(kept, other):
        there = other[tp]
        assert isinstance(there, Committed)
        value = OffsetAndMetadata(there.offset, there.metadata, there.leader_epoch)
        changes[tp] = Change(value, expected=kept.get(tp, ABSENT))
    return changes
