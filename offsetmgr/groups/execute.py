"""Executes a plan: makes the before-images durable, then writes the changes conditionally.

Ordering contract: the file of before-images is complete and fsynced, together with its directory entry, before the
store receives the first edit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from offsetmgr.core.offset_store import GroupEdit, GroupEditResult, Guard, OffsetStore
from offsetmgr.groups.before_images import write_images
from offsetmgr.groups.edit_plan import EditPlan
from offsetmgr.snapshots.base import SnapshotHeader


def execute(
    store: OffsetStore,
    plan: EditPlan,
    images: Path,
    header: SnapshotHeader,
    *,
    guard: Guard = Guard.LOCK,
    on_images: Callable[[Path], None] | None = None,
) -> Iterator[GroupEditResult]:
    """Writes the before-images to ``images`` (which must not exist), then edits the store. Yields one result for each
    group, in any order.

    Calls ``on_images`` once the file is durable, before any change. A change that fails raises no error, because the
    outcome of each change is part of the group's result. Raises `OffsetMgrError` if the before-images cannot be written
    (in this case nothing is changed), or if the whole store is unreachable.
    """
    write_images(images, plan, header)
    if on_images is not None:
        on_images(images)

    def edits() -> Iterator[GroupEdit]:
        for group in plan:
            if (edit := group.edit(guard)) is not None:
                yield edit

    yield from store.edit(edits())
