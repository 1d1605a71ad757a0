"""The arguments of `OffsetAdmin` that select groups, topics and offsets, and their checks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias, get_args

from offsetmgr.core.errors import UsageError
from offsetmgr.core.model import MAX_OFFSET, OffsetAndMetadata, TopicPartition, is_valid_offset
from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.core.selection import GroupSelection, TopicSelection
from offsetmgr.groups.reset import Scenario
from offsetmgr.groups.scan import choose_groups

GroupsArgument: TypeAlias = GroupSelection | str | Iterable[str]
"""A name or a glob of groups, several of them, or a `GroupSelection`, which can exclude groups."""

TopicsArgument: TypeAlias = str | TopicPartition | Iterable[str | TopicPartition]
"""A topic in the form of ``--topic`` (``orders``, ``orders*``, ``orders:0,4-7``), a partition, or several of them."""


def groups_to_edit(store: OffsetStore, groups: GroupsArgument | None) -> list[str]:
    """Returns the selected groups. Raises `UsageError` if ``groups`` is None, so that an edit of all groups is
    explicit."""
    if groups is None:
        raise UsageError("groups", "no group is named", "name a group, or pass the glob '*' for all groups")
    return choose_groups(store, GroupSelection.of(groups))


def topic_selection(store: OffsetStore, topics: TopicsArgument | None) -> TopicSelection:
    """Returns the selection; all topics if ``topics`` is None. Raises `UsageError` for an empty selection, which must
    not be read as all topics, and for a text that names no topic."""
    if topics is None:
        return TopicSelection()
    given = [topics] if isinstance(topics, str | TopicPartition) else list(topics)
    if not given:
        raise UsageError("topics", "the selection is empty", "name a topic, or pass None for all topics")
    texts = [f"{one.topic}:{one.partition}" if isinstance(one, TopicPartition) else one for one in given]
    return TopicSelection.parse(texts).within(store.capabilities.partitions)


def offsets_to_commit(
    offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Returns the offsets as values to commit. Raises `UsageError` if there are none, if a key is not a partition, or
    if a value is not an offset."""
    if not offsets:
        raise UsageError("offsets set", "no offset is given")
    for tp, found in offsets.items():
        if not isinstance(tp, TopicPartition):
            raise UsageError(f"partition {tp!r}", "is not a TopicPartition", 'as in TopicPartition("orders", 0)')
        if not isinstance(found, int | OffsetAndMetadata):
            raise UsageError(str(tp), f"{found!r} is not an offset", "an offset is an int or an OffsetAndMetadata")
    values = {
        tp: found if isinstance(found, OffsetAndMetadata) else OffsetAndMetadata(found) for tp, found in offsets.items()
    }
    for tp, value in values.items():
        if not is_valid_offset(value.offset):
            raise UsageError(str(tp), f"{value.offset} is not an offset", f"offsets go from 0 to {MAX_OFFSET}")
    return values


def require_scenario(to: object) -> None:
    """Raises `UsageError` if ``to`` is not a scenario, for example if it is ``ToEarliest`` without parentheses."""
    if not isinstance(to, get_args(Scenario)):
        raise UsageError("offsets reset", f"{to!r} is not a position", "as in ToEarliest() or ToOffset(5)")
