"""Compares two stores over all their groups and partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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
    capabilities = (left.capabilities, right.capabilities)
    for in_left, in_right in read_both(left, right, groups):
        yield from _group_differences(in_left, in_right, topics, capabilities)


class NamesInRight(NamedTuple):
    """How groups and partitions of the left store are named in the right store. ``back`` returns the partition of the
    left store, or None if it has none of that name."""

    group: Callable[[str], str] = str
    partition: Callable[[TopicPartition], TopicPartition] = lambda tp: tp
    back: Callable[[TopicPartition], TopicPartition | None] = lambda tp: tp


_EQUAL_NAMES: Final = NamesInRight()


def read_both(
    left: OffsetStore, right: OffsetStore, groups: Iterable[str], names: NamesInRight = _EQUAL_NAMES
) -> Iterator[tuple[GroupOffsets, GroupOffsets]]:
    """Yields the offsets of each group in the left and in the right store, each with the names of its own store."""
    for_left, for_right = tee(groups)
    read = zip(scan_in_order(left, for_left), scan_in_order(right, map(names.group, for_right)), strict=True)
    for pairs in batched(read, _BATCH):
        lefts, rights = ([without_impossible(one) for one in side] for side in zip(*pairs, strict=True))
        # A partition that only one store lists may be hidden in the other.
        listed = ([found for tp in one.offsets if (found := names.back(tp)) is not None] for one in rights)
        lefts = with_unlisted(left, lefts, dict(zip((one.name for one in lefts), listed, strict=True)))
        listed = ([names.partition(tp) for tp in one.offsets] for one in lefts)
        rights = with_unlisted(right, rights, dict(zip((one.name for one in rights), listed, strict=True)))
        yield from zip(lefts, rights, strict=True)


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
