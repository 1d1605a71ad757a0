"""Carrying a proposal out: before-images made durable first, then every change on its condition.

Ordering contract: the before-image file is complete and fsynced (its directory's entry as well) before the first edit
is handed to the store.
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
    """Writes the before-images to ``images`` (which must not exist yet), then edits; one result a group, as the store
    gives them.  ``on_images`` is called when the file is safe, before anything is changed.

    Failures are outcomes in the results. Raises `OffsetMgrError` where the before-images cannot be written (then
    nothing is changed) or the store as a whole cannot be reached.
    """
    write_images(images, proposal, header)
    if on_images is not None:
        on_images(images)

    def edits() -> Iterator[GroupEdit]:
        for group in proposal:
            if (edit := group.edit(guard)) is not None:
                yield edit

    yield from store.edit(edits())
