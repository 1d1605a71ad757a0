"""What was asked for with ``--topic`` and met nothing at all: a name that was mistyped, most likely, so no success."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from offsetmgr.core.errors import GroupNotFound, UnknownTopicOrPartition
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.offset_store import GroupOffsets
from offsetmgr.groups.edit_plan import GroupEditPlan
from offsetmgr.groups.selection import TopicPattern, TopicSelection


class TopicMatches:
    """The patterns of a selection that have met no partition so far."""

    def __init__(self, topics: TopicSelection) -> None:
        self._left: list[TopicPattern] = list(topics.patterns)
        self._unknown = False
        """Whether something could not be read: what was not met may be there all the same."""

    def see(self, partitions: Iterable[TopicPartition], *, unread: bool = False) -> None:
        """Takes in partitions that are there; ``unread``: there may be more of them."""
        self._unknown = self._unknown or unread
        if self._left:
            self._left = TopicSelection(tuple(self._left)).unmatched(partitions)

    def see_group(self, found: GroupOffsets) -> None:
        """Takes in what was read of a group."""
        self.see([*found.offsets, *found.errors] if self._left else (), unread=found.error is not None)

    def reading(self, groups: Iterable[GroupOffsets]) -> Iterator[GroupOffsets]:
        """The groups as they come, each taken in."""
        for found in groups:
            self.see_group(found)
            yield found

    @property
    def missing(self) -> tuple[TopicPattern, ...]:
        """What was not met; nothing where something could not be read, which is told by its own error."""
        return () if self._unknown else tuple(self._left)

    def require_all(self, where: str) -> None:
        """Raises `UnknownTopicOrPartition` for what was not met in ``where``."""
        if missing := self.missing:
            raise UnknownTopicOrPartition(
                f"topic{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}",
                f"not among the groups' offsets in {where}",
                "check the names; offsetmgr offsets get shows what is committed",
            )


def require_topics(proposals: Iterable[GroupEditPlan], topics: TopicSelection, where: str) -> Iterator[GroupEditPlan]:
    """The proposals as they come; at their end raises `UnknownTopicOrPartition` for topics that were asked for and are
    in none of them.

    Not where each group was refused for having nothing in any of the topics: that has been said then, group by group.
    """
    sought, refused = TopicMatches(topics), False
    for proposal in proposals:
        absent = isinstance(proposal.problem, GroupNotFound)
        refused = refused or absent
        sought.see(
            (change.partition for change in proposal.changes), unread=not absent and proposal.problem is not None
        )
        yield proposal
    if len(sought.missing) < len(topics.patterns) or not refused:
        sought.require_all(where)
