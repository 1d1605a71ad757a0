"""Copies a group's offsets to another name or store, and verifies the copy with a new read."""

from __future__ import annotations

from collections.abc import Iterator

from offsetmgr.core.errors import Conflict, GroupNotFound
from offsetmgr.core.model import Committed
from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.groups.edit_plan import GroupEditPlan
from offsetmgr.groups.edits import propose_import
from offsetmgr.groups.selection import ALL_TOPICS, TopicSelection, require_known, scan_in_order
from offsetmgr.stores.cross_cluster_check import CrossClusterCheck


def propose_copy(
    source: OffsetStore,
    group: str,
    target: OffsetStore,
    name: str,
    topics: TopicSelection = ALL_TOPICS,
    *,
    allow_rewind: bool = False,
    crossing: CrossClusterCheck | None = None,
) -> Iterator[GroupEditPlan]:
    """Plans the copy of the committed offsets of ``group`` in ``source`` to the group ``name`` of ``target``.

    Raises `GroupNotFound` if there is no such group, or if it has no offsets in these topics.
    """
    (found,) = scan_in_order(source, [group])
    if not (found.offsets or found.errors or found.error):
        require_known(source, [group])
        raise GroupNotFound(f"group {group!r}", "has no committed offsets to copy")
    if found.offsets and not any(topics.matches(tp) for tp in found.offsets):
        raise GroupNotFound(f"group {group!r}", "has no committed offsets in these topics")
    yield from propose_import(
        target, [found], topics, rename={group: name}, allow_rewind=allow_rewind, crossing=crossing
    )


def verify_copy(source: OffsetStore, group: str, target: OffsetStore, name: str) -> int:
    """Reads both groups again and compares all their partitions; returns the number compared.

    Raises `Conflict` if the copy differs from the original, and the errors of the reads.
    """
    original, copied = source.fetch(group), target.fetch(name)
    for tp in sorted({*original, *copied}):
        here, there = original.get(tp), copied.get(tp)
        if not isinstance(here, Committed):
            continue
        if not isinstance(there, Committed) or there.offset != here.offset or there.metadata != here.metadata:
            raise Conflict(
                f"copy of group {group!r} in {name!r}",
                f"{tp} is {_shown(there)} there and {_shown(here)} here; the old group was left as it is",
                "does a client commit to one of them?",
                actual=there,
            )
    return len(original)


def _shown(found: object) -> str:
    return str(found.offset) if isinstance(found, Committed) else "absent"
