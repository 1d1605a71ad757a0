"""Topics of ``--topic`` without any match: most likely a typing error, so the command does not succeed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from offsetmgr.core.errors import GroupNotFound, UnknownTopicOrPartition
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.offset_store import GroupOffsets
from offsetmgr.groups.edit_plan import GroupEditPlan
from offsetmgr.groups.selection import TopicPattern, TopicSelection


class TopicMatches:
    """The patterns of a selection that have matched no partition so far."""

    def __init__(self, topics: TopicSelection) -> None:
        self._left: list[TopicPattern] = list(topics.patterns)
        self._unknown = False
        """Whether something could not be read, so that a pattern may match after all."""

    def see(self, partitions: Iterable[TopicPartition], *, unread: bool = False) -> None:
        """Records partitions; ``unread`` means that there may be more."""
        self._unknown = self._unknown or unread
        if self._left:
            self._left = TopicSelection(tuple(self._left)).unmatched(partitions)

    def see_group(self, found: GroupOffsets) -> None:
        """Records the partitions of a group."""
        self.see([*found.offsets, *found.errors] if self._left else (), unread=found.error is not None)

    def reading(self, groups: Iterable[GroupOffsets]) -> Iterator[GroupOffsets]:
        """Yields the groups and records each."""
        for found in groups:
            self.see_group(found)
            yield found

    @property
    def missing(self) -> tuple[TopicPattern, ...]:
        """Returns the patterns without a match; none if something could not be read, because that has its own error."""
        return () if self._unknown else tuple(self._left)

    def require_all(self, where: str) -> None:
        """Raises `UnknownTopicOrPartition` for patterns without a match in ``where``."""
        if missing := self.missing:
            raise UnknownTopicOrPartition(
                f"topic{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}",
                f"not among the groups' offsets in {where}",
                "check the names; offsetmgr offsets get shows what is committed",
            )


def require_topics(proposals: Iterable[GroupEditPlan], topics: TopicSelection, where: str) -> Iterator[GroupEditPlan]:
    """Yields the plans; at the end raises `UnknownTopicOrPartition` for selected topics that are in none of them.

    It does not raise if each group was rejected for having no offsets in these topics, because the user has seen that
    for each group.
    """
    topic_matches, refused = TopicMatches(topics), False
    for proposal in proposals:
        absent = isinstance(proposal.problem, GroupNotFound)
        refused = refused or absent
        topic_matches.see(
            (change.partition for change in proposal.changes), unread=not absent and proposal.problem is not None
        )
        yield proposal
    if len(topic_matches.missing) < len(topics.patterns) or not refused:
        topic_matches.require_all(where)
