"""Locates groups in all configured stores, for `OffsetAdmin.where` and for ``offsetmgr groups where``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from offsetmgr.core.errors import GroupNotFound
from offsetmgr.core.selection import GroupSelection

if TYPE_CHECKING:
    from offsetmgr.migration.group_location import GroupLocation
    from offsetmgr.migration.group_locator import GroupLocator


def located_groups(
    open_locator: Callable[[], GroupLocator],
    warn: Callable[[str], None],
    selection: GroupSelection,
    window_s: float | None,
    plans: Iterable[str | Path],
) -> Iterator[GroupLocation]:
    """Yields the location of each selected group. See `OffsetAdmin.where`."""
    from offsetmgr.migration.group_observer import ObservationWindow

    locator = open_locator()
    for plan in plans:
        locator.add_plan(Path(plan))
    known, errors = locator.groups()
    if selection.patterns is None and errors:
        raise errors[0]
    stores = [one.store.uri for one in locator.stores]
    names = selection.within(known, ", ".join(stores), unlisted=True)
    for one in locator.locate(names, None if window_s is None else ObservationWindow(window_s)):
        if not one.found and one.group not in known:
            raise GroupNotFound(f"group {one.group!r}", f"does not exist in {', '.join(stores)}")
        yield one
    for error in locator.unread_plans:
        warn(f"not used as evidence: {error}")
