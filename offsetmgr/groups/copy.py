"""Plans a copy of a group's offsets to another name or store, and compares the copy with the original afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from offsetmgr.core.errors import Conflict, GroupNotFound, PartialFailure
from offsetmgr.core.model import Committed
from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.core.selection import ALL_TOPICS, TopicSelection
from offsetmgr.groups.edit_plan import GroupEditPlan
from offsetmgr.groups.edits import plan_import
from offsetmgr.groups.scan import require_known, scan_in_order
from offsetmgr.stores.cross_cluster_check import CrossClusterCheck


def plan_copy(
    source: OffsetStore,
    group: str,
    target: OffsetStore,
    name: str,
    topics: TopicSelection = ALL_TOPICS,
    *,
    allow_rewind: bool = False,
    crossing: CrossClusterCheck | None = None,
    accept_unseen: bool = False,
) -> Iterator[GroupEditPlan]:
    """Plans to copy the committed offsets of ``group`` in ``source`` to the group ``name`` in ``target``. With
    ``accept_unseen``, leaves out the offsets that cannot be read.

    Raises `GroupNotFound` if ``group`` does not exist in ``source``, or has no offsets in ``topics``.
    """
    (found,) = scan_in_order(source, [group])
    if found.hidden is not None and not found.offsets:
        raise found.hidden
    if not (found.offsets or found.errors or found.error):
        require_known(source, [group])
        raise GroupNotFound(f"group {group!r}", "has no committed offsets to copy")
    if found.offsets and not any(topics.matches(tp) for tp in found.offsets):
        raise GroupNotFound(f"group {group!r}", "has no committed offsets in these topics")
    if accept_unseen and found.offsets:
        found = replace(found, errors={})
    rename = {group: name}
    for plan in plan_import(target, [found], topics, rename=rename, allow_rewind=allow_rewind, crossing=crossing):
        yield replace(plan, unrecognised=found.unrecognised + plan.unrecognised)


def verify_copy(source: OffsetStore, group: str, target: OffsetStore, name: str, *, accept_unseen: bool = False) -> int:
    """Reads both groups again, and compares the offset and the metadata of each partition of the original group with
    the copy. Returns the number of compared partitions.

    Raises `Conflict` if the copy differs from the original, and any error from reading the groups. With
    ``accept_unseen``, leaves out the offsets of the original that cannot be read.
    """
    try:
        original = source.fetch(group)
    except PartialFailure as partial:
        if not accept_unseen:
            raise
        original = partial.successes
    copied = target.fetch(name)
    for tp in sorted({*original, *copied}):
        expected, actual = original.get(tp), copied.get(tp)
        if not isinstance(expected, Committed):
            continue
        if not isinstance(actual, Committed) or (actual.offset, actual.metadata) != (
            expected.offset,
            expected.metadata,
        ):
            raise Conflict(
                f"copy of group {group!r} in {name!r}",
                f"{tp} is {_offset_text(actual)} in the copy and {_offset_text(expected)} in the original; "
                "the original was kept",
                "find out whether a client commits to one of the two groups",
                actual=actual,
            )
    return len(original)


def _offset_text(found: object) -> str:
    return str(found.offset) if isinstance(found, Committed) else "absent"
