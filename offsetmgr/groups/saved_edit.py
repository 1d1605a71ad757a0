"""Executes a planned edit in any store, with its before-images in a file or, for a dual store, in two files."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from typing import NamedTuple

from offsetmgr.core.offset_store import GroupEditResult, OffsetStore
from offsetmgr.groups.before_images import BeforeImageFile, image_file
from offsetmgr.groups.dual_execute import StorePair, execute_dual
from offsetmgr.groups.edit_plan import EditPlan
from offsetmgr.groups.execute import execute


class SavedEdit(NamedTuple):
    """An edit whose before-images are saved before its first write.

    ``images`` are the files of before-images, one for each store that is written. ``results`` executes the edit: each
    ``next`` returns the result of one group. Close ``results`` if you do not exhaust it, because the edit in progress
    may hold group locks.
    """

    images: tuple[BeforeImageFile, ...]
    results: Generator[GroupEditResult, None, None]


def execute_saved(
    store: OffsetStore, plan: EditPlan, path: Path, on_durable: Callable[[Path], None] = lambda _path: None
) -> SavedEdit:
    """Starts an edit. For a `StorePair`, ``path`` gets the suffixes ``.primary`` and ``.secondary``.

    ``on_durable`` is called with the path of each file as soon as the file is durable. Raises any error of a store that
    does not report its identity.
    """
    if not isinstance(store, StorePair):
        image = image_file(path, store, plan, on_durable)
        return SavedEdit((image,), execute(store, [plan], image))
    first, second = (
        image_file(path.with_stem(f"{path.stem}.{which}"), one, plan, on_durable)
        for which, one in (("primary", store.primary), ("secondary", store.secondary))
    )
    return SavedEdit((first, second), execute_dual(store, plan, (first, second)))
