"""Locates groups in all configured stores, for `OffsetAdmin.where` and for ``offsetmgr groups where``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from offsetmgr.core.errors import GroupNotFound
from offsetmgr.groups.selection import is_pattern, matching_groups

if TYPE_CHECKING:
    from offsetmgr.migration.group_location import GroupLocation
    from offsetmgr.migration.group_locator import GroupLocator


def located_groups(
    open_locator: Callable[[], GroupLocator],
    warn: Callable[[str], None],
    patterns: Sequence[str] | None,
    window_s: float | None,
    plans: Iterable[str | Path],
) -> Iterator[GroupLocation]:
    """Yields the location of each group; of all groups if ``patterns`` is None. See `OffsetAdmin.where`."""
    from offsetmgr.migration.group_observer import ObservationWindow

    locator = open_locator()
    for plan in plans:
        locator.add_plan(Path(plan))
    known, errors = locator.groups()
    if patterns is None and errors:
        raise errors[0]
    stores = [one.store.uri for one in locator.stores]
    names = chosen_groups(patterns, known, stores)
    for one in locator.locate(names, None if window_s is None else ObservationWindow(window_s)):
        if not one.found and one.group not in known:
            raise GroupNotFound(f"group {one.group!r}", f"does not exist in {', '.join(stores)}")
        yield one
    for error in locator.unread_plans:
        warn(f"not used as evidence: {error}")


def chosen_groups(patterns: Sequence[str] | None, known: set[str], uris: Sequence[str]) -> list[str]:
    """Returns the groups that the patterns select, sorted. A name that no store lists is included, because a store may
    be unreadable. Raises `GroupNotFound` if a glob matches no group."""
    if not patterns:
        return sorted(known)
    chosen: set[str] = set()
    for pattern in patterns:
        matching = matching_groups([pattern], known)
        if not matching and is_pattern(pattern):
            raise GroupNotFound(f"group {pattern!r}", f"no group in {', '.join(uris)} matches this pattern")
        chosen.update(matching or [pattern])
    return sorted(chosen)
