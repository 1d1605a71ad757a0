"""Compares two stores over all their groups and partitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import tee
from typing import NamedTuple

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import ABSENT, Committed, Offset, TopicPartition
from offsetmgr.core.offset_store import Capabilities, GroupOffsets, OffsetStore
from offsetmgr.groups.selection import ALL_TOPICS, TopicSelection, scan_in_order
from offsetmgr.groups.topic_matches import TopicMatches


class OffsetDifference(NamedTuple):
    """A difference between the stores, or a partition that could not be compared.

    ``kind`` is ``only-left``, ``only-right``, ``offset``, ``metadata``, ``leader-epoch`` or ``unreadable``. If ``kind``
    is ``unreadable``, ``error`` is the reason. ``left`` is None if the offset in the left store is unreadable, and
    ``right`` is None if the offset in the right store is unreadable. If the whole group is unreadable, ``partition``,
    ``left`` and ``right`` are None.
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
    topic_matches: TopicMatches | None = None,
) -> Iterator[OffsetDifference]:
    """Yields the differences between the stores, in the order of ``groups``. Within a group, the differences are sorted
    by partition.

    A field that only one of the stores can hold (metadata, leader epoch) is not compared. If ``topic_matches`` is
    given, the function records the partitions of all groups in ``topic_matches``.
    """
    for_left, for_right = tee(groups)
    capabilities = (left.capabilities, right.capabilities)
    for in_left, in_right in zip(scan_in_order(left, for_left), scan_in_order(right, for_right), strict=True):
        if topic_matches is not None:
            topic_matches.record_group(in_left)
            topic_matches.record_group(in_right)
        yield from _group_differences(in_left, in_right, topics, capabilities)


def _group_differences(
    left: GroupOffsets, right: GroupOffsets, topics: TopicSelection, capabilities: tuple[Capabilities, Capabilities]
) -> Iterator[OffsetDifference]:
    if (error := left.error or right.error) is not None:
        yield OffsetDifference(left.group, None, "unreadable", None, None, error)
        return
    for tp in sorted({*left.offsets, *right.offsets, *left.errors, *right.errors}):
        if not topics.matches(tp):
            continue
        left_offset: Offset | None = None if tp in left.errors else left.offsets.get(tp, ABSENT)
        right_offset: Offset | None = None if tp in right.errors else right.offsets.get(tp, ABSENT)
        if (kind := _kind(left_offset, right_offset, capabilities)) is not None:
            yield OffsetDifference(
                left.group, tp, kind, left_offset, right_offset, left.errors.get(tp) or right.errors.get(tp)
            )


def _kind(left: Offset | None, right: Offset | None, capabilities: tuple[Capabilities, Capabilities]) -> str | None:
    if left is None or right is None:
        return "unreadable"
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
