"""Compares two stores over all their groups and partitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import tee
from typing import Final, NamedTuple

from offsetmgr.core.batches import batched
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import ABSENT, Committed, Offset, TopicPartition
from offsetmgr.core.offset_store import Capabilities, GroupOffsets, OffsetStore
from offsetmgr.core.selection import ALL_TOPICS, TopicSelection
from offsetmgr.groups.lag import state_of
from offsetmgr.groups.scan import scan_in_order, with_unlisted, without_impossible

_BATCH: Final = 500
"""The number of groups whose unlisted partitions are read together."""


class OffsetDifference(NamedTuple):
    """A difference between the stores, or a partition that could not be compared.

    ``kind`` is ``only-left``, ``only-right``, ``offset``, ``metadata``, ``leader-epoch``, ``pending`` or
    ``unreadable``. In the last two cases ``error`` is the reason. ``left`` is None if the offset in the left store
    cannot be read, and ``right`` is None if the offset in the right store cannot be read. If the whole group is
    unreadable, ``partition``, ``left`` and ``right`` are None.
    """

    group: str
    partition: TopicPartition | None
    kind: str
    left: Offset | None
    right: Offset | None
    error: OffsetMgrError | None = None


def diff(
    left: OffsetStore,
    right: OffsetStore,
    groups: Iterable[str],
    topics: TopicSelection = ALL_TOPICS,
) -> Iterator[OffsetDifference]:
    """Yields the differences between the stores, in the order of ``groups``. Within a group, the differences are sorted
    by partition.

    A field that only one of the stores can hold (metadata, leader epoch) is not compared.
    """
    for_left, for_right = tee(groups)
    capabilities = (left.capabilities, right.capabilities)
    read = zip(scan_in_order(left, for_left), scan_in_order(right, for_right), strict=True)
    for pairs in batched(read, _BATCH):
        lefts, rights = ([without_impossible(one) for one in side] for side in zip(*pairs, strict=True))
        # A partition that only one store lists may be hidden in the other.
        lefts = with_unlisted(left, lefts, {one.name: one.offsets for one in rights})
        rights = with_unlisted(right, rights, {one.name: one.offsets for one in lefts})
        for in_left, in_right in zip(lefts, rights, strict=True):
            yield from _group_differences(in_left, in_right, topics, capabilities)


def _group_differences(
    left: GroupOffsets, right: GroupOffsets, topics: TopicSelection, capabilities: tuple[Capabilities, Capabilities]
) -> Iterator[OffsetDifference]:
    if (error := left.error or right.error or left.hidden or right.hidden) is not None:
        yield OffsetDifference(left.name, None, "unreadable", None, None, error)
        return
    for tp in sorted({*left.offsets, *right.offsets, *left.errors, *right.errors}):
        if not topics.matches(tp):
            continue
        left_offset: Offset = left.offsets.get(tp, ABSENT)
        right_offset: Offset = right.offsets.get(tp, ABSENT)
        if (unread := left.errors.get(tp) or right.errors.get(tp)) is not None:
            known = (None if tp in left.errors else left_offset), (None if tp in right.errors else right_offset)
            yield OffsetDifference(left.name, tp, state_of(unread), *known, unread)
        elif (kind := _kind(left_offset, right_offset, capabilities)) is not None:
            yield OffsetDifference(left.name, tp, kind, left_offset, right_offset)


def _kind(left: Offset, right: Offset, capabilities: tuple[Capabilities, Capabilities]) -> str | None:
    if not isinstance(left, Committed):
        return "only-right" if isinstance(right, Committed) else None
    if not isinstance(right, Committed):
        return "only-left"
    if left.offset != right.offset:
        return "offset"
    if all(c.metadata for c in capabilities) and left.metadata != right.metadata:
        return "metadata"
    if all(c.leader_epoch for c in capabilities) and left.leader_epoch != right.leader_epoch:
        return "leader-epoch"
    return None
