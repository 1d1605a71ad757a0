"""Finds ``--topic`` patterns that match no partition. A pattern without a match is probably mistyped, so the command
fails."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from offsetmgr.core.errors import GroupNotFound, UnknownTopicOrPartition
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.offset_store import GroupOffsets
from offsetmgr.core.selection import TopicPattern, TopicSelection

if TYPE_CHECKING:
    from offsetmgr.groups.edit_plan import GroupEditPlan


class TopicMatches:
    """Receives partitions, and records the patterns of a selection that have not matched any partition yet."""

    def __init__(self, topics: TopicSelection) -> None:
        self._unmatched: list[TopicPattern] = list(topics.patterns)
        self._incomplete = False
        """Whether some partitions could not be read. A pattern without a match may match an unreadable partition."""

    def record(self, partitions: Iterable[TopicPartition], *, incomplete: bool = False) -> None:
        """Records partitions. ``incomplete`` is True if other partitions could not be read."""
        self._incomplete = self._incomplete or incomplete
        if self._unmatched:
            self._unmatched = TopicSelection(tuple(self._unmatched)).unmatched(partitions)

    def record_group(self, group: GroupOffsets) -> None:
        incomplete = group.error is not None or group.hidden is not None
        self.record([*group.offsets, *group.errors] if self._unmatched else (), incomplete=incomplete)

    def record_each(self, groups: Iterable[GroupOffsets]) -> Iterator[GroupOffsets]:
        """Yields the groups, and records the partitions of each group."""
        for group in groups:
            self.record_group(group)
            yield group

    @property
    def missing(self) -> tuple[TopicPattern, ...]:
        """The patterns without a match. Empty if some partitions could not be read, because the read error is reported
        instead."""
        return () if self._incomplete else tuple(self._unmatched)

    def require_all(self, where: str) -> None:
        """Raises `UnknownTopicOrPartition` if patterns have no match. ``where`` is the store to name in the error."""
        if missing := self.missing:
            raise UnknownTopicOrPartition(
                f"topic{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}",
                f"not among the groups' offsets in {where}",
                "check the names; offsetmgr offsets get shows what is committed",
            )


def require_topics(plans: Iterable[GroupEditPlan], topics: TopicSelection, where: str) -> Iterator[GroupEditPlan]:
    """Yields the plans. At the end, raises `UnknownTopicOrPartition` for selected topics that occur in none of the
    plans.

    If a plan has the problem `GroupNotFound` and none of the selected topics occurs in any plan, the function raises no
    error, because the user has already seen this problem.
    """
    topic_matches, any_rejected = TopicMatches(topics), False
    for plan in plans:
        absent = isinstance(plan.problem, GroupNotFound)
        any_rejected = any_rejected or absent
        topic_matches.record(
            (change.partition for change in plan.changes), incomplete=not absent and plan.problem is not None
        )
        yield plan
    if len(topic_matches.missing) < len(topics.patterns) or not any_rejected:
        topic_matches.require_all(where)
