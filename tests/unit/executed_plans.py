"""Execution of planned edits, with their before-images in a file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from offsetmgr.groups.before_images import BeforeImageFile, header_for
from offsetmgr.groups.edit_plan import EditPlan, GroupEditPlan
from offsetmgr.groups.execute import execute
from offsetmgr.stores.snapshot import SnapshotStore


def execute_plans(store: SnapshotStore, groups: Iterable[GroupEditPlan], image: Path) -> int:
    """Executes the plans, and returns the number of failures."""
    with EditPlan.of(groups) as plan:
        results = list(execute(store, [plan], BeforeImageFile(image, header_for(store))))
    return sum(len(r.failures) for r in results)
