"""Reports stale offsets: offsets that are smaller than the offsets of the same group in another configured store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from shlex import quote
from typing import TYPE_CHECKING, Any

from offsetmgr.cli.render import note
from offsetmgr.core.plurals import count_of

if TYPE_CHECKING:
    from offsetmgr.core.offset_store import OffsetStore


class StaleOffsetCounter:
    """Counts the rows whose offset in ``store`` is stale, because the group has a larger offset in one of ``others``.
    The last cell of a stale row is a note that starts with `STALE`. `report` prints the count."""

    def __init__(self, store: OffsetStore, others: Sequence[OffsetStore]) -> None:
        self._store = store
        self._others = others
        self._counts: dict[str, int] = {}

    def count(self, rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """Yields all rows, and counts the rows of stale offsets."""
        from offsetmgr.groups.lag import STALE

        for row in rows:
            if row[-1] is not None and row[-1].startswith(STALE):
                title = row[-1].removeprefix(STALE).partition("'s ")[0]
                self._counts[title] = self._counts.get(title, 0) + 1
            yield row

    def report(self) -> None:
        """Prints the number of stale offsets, and the option that shows the newer offsets."""
        from offsetmgr.groups.lag import TITLES

        here = TITLES.get(self._store.uri.partition(":")[0])
        for other in self._others:
            title = TITLES[other.uri.partition(":")[0]]
            if not (count := self._counts.get(title)):
                continue
            verb = "is" if count == 1 else "are"
            lag = f"computed from the offsets in {title}"
            if title == TITLES["zookeeper"]:
                lag = f"unknown where {here} has a smaller offset"
            offsets = f"{count_of(count, 'offset')} in {here} {verb} older than the group's in {title}"
            note(f"warning: {offsets}; the lag is {lag}")
            note(f"hint: --store {quote(other.uri)} shows what {title} holds; groups where shows where a group commits")
