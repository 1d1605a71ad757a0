"""Reports stale offsets: offsets that are smaller than the offsets of the same group in another configured store, or
absent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from shlex import quote
from typing import TYPE_CHECKING, Any

from offsetmgr.cli.render import note
from offsetmgr.core.plurals import count_of

if TYPE_CHECKING:
    from offsetmgr.core.offset_store import OffsetStore


class StaleOffsetCounter:
    """Counts the rows whose offset in ``store`` is stale or absent, because the group has a larger offset in one of
    ``others``. The last cell of such a row is a note that starts with `STALE` or `ELSEWHERE`. `report` prints the
    counts."""

    def __init__(self, store: OffsetStore, others: Sequence[OffsetStore]) -> None:
        self._store = store
        self._others = others
        self._counts: Counter[tuple[str, str]] = Counter()

    def count(self, rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """Yields all rows, and counts the rows of stale and absent offsets."""
        from offsetmgr.groups.lag import ELSEWHERE, STALE

        for row in rows:
            for beginning, separator in ((STALE, "'s "), (ELSEWHERE, ": ")):
                if row[-1] is not None and row[-1].startswith(beginning):
                    self._counts[beginning, row[-1].removeprefix(beginning).partition(separator)[0]] += 1
            yield row

    def report(self) -> None:
        """Prints the numbers of stale and absent offsets, and the option that shows the larger offsets."""
        from offsetmgr.groups.lag import ELSEWHERE, STALE, TITLES

        here = TITLES.get(self._store.uri.partition(":")[0])
        for other in self._others:
            title = TITLES[other.uri.partition(":")[0]]
            stale, absent = self._counts[STALE, title], self._counts[ELSEWHERE, title]
            if stale:
                unclear = title == TITLES["zookeeper"]
                lag = (
                    f"unknown where {here} has a smaller offset" if unclear else f"computed from the offsets in {title}"
                )
                offsets = f"{count_of(stale, 'offset')} in {here} {'is' if stale == 1 else 'are'}"
                note(f"warning: {offsets} older than the group's in {title}; the lag is {lag}")
            if absent:
                offsets = (
                    f"{count_of(absent, 'offset')} {'is' if absent == 1 else 'are'} only in {title}, not in {here}"
                )
                note(f"warning: {offsets}; the lag is computed from {'it' if absent == 1 else 'them'}")
            if stale or absent:
                shows = f"--store {quote(other.uri)} shows what {title} holds"
                note(f"hint: {shows}; groups where shows where a group commits")
