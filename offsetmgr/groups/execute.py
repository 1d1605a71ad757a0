"""Executes a plan: makes the before-images durable, then edits with conditions.

Ordering contract: the file of before-images is complete and fsynced (with its directory entry) before the store
receives the first edit.
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
    proposal: EditPlan,
    images: Path,
    header: SnapshotHeader,
    *,
    guard: Guard = Guard.LOCK,
    on_images: Callable[[Path], None] | None = None,
) -> Iterator[GroupEditResult]:
    """Writes the before-images to ``images`` (which must not exist), then edits; yields one result for each group in
    the order of the store. Calls ``on_images`` when the file is durable, before any change.

    Failures are outcomes in the results. Raises `OffsetMgrError` if the before-images cannot be written (nothing is
    changed then) or the whole store is unreachable.
    """
    write_images(images, proposal, header)
    if on_images is not None:
        on_images(images)

    def edits() -> Iterator[GroupEdit]:
        for group in proposal:
            if (edit := group.edit(guard)) is not None:
                yield edit

    yield from store.edit(edits())
