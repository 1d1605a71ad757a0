"""Determines which offsets prevent a change of the mode, and which offsets must be copied before the change. Pure.

In mode dual, members use the larger of the two stores' offsets. Therefore, before a change to dual, the store that is
not in use must not be ahead in any partition. Before a change from dual to one store, that store must have every
offset, because members do not commit partitions without traffic.
"""

from __future__ import annotations

from collections.abc import Mapping

from offsetmgr.core.model import ABSENT, Committed, Offset, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change

OffsetsByPartition = Mapping[TopicPartition, Offset]


def partitions_ahead(
    used: OffsetsByPartition, other: OffsetsByPartition
) -> dict[TopicPartition, tuple[int | None, int]]:
    """Returns the partitions in which the unused store is ahead, each with two offsets: the offset in use (None if
    there is no commit), and the larger offset in the unused store."""
    found: dict[TopicPartition, tuple[int | None, int]] = {}
    for tp in sorted(other):
        in_use, unused = used.get(tp, ABSENT), other[tp]
        if not isinstance(unused, Committed):
            continue
        if not isinstance(in_use, Committed):
            found[tp] = (None, unused.offset)
        elif unused.offset > in_use.offset:
            found[tp] = (in_use.offset, unused.offset)
    return found


def catch_up_changes(remaining: OffsetsByPartition, other: OffsetsByPartition) -> dict[TopicPartition, Change]:
    """Returns the writes that raise the remaining store's offsets to those of the other store, each conditional on the
    current value."""
    changes: dict[TopicPartition, Change] = {}
    for tp in partitions_ahead(remaining, other):
        larger = other[tp]
        assert isinstance(larger, Committed)
        value = OffsetAndMetadata(larger.offset, larger.metadata, larger.leader_epoch)
        changes[tp] = Change(value, expected=remaining.get(tp, ABSENT))
    return changes
