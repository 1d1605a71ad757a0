"""Reports stale offsets: offsets of a group that is, or may be, further on in another configured store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from shlex import join, quote
from typing import TYPE_CHECKING, Any

from offsetmgr.cli.render import note
from offsetmgr.core.plurals import count_of

if TYPE_CHECKING:
    from offsetmgr.core.offset_store import OffsetStore


class StaleOffsetCounter:
    """Counts the rows whose offset in ``store`` is or may be stale, or is absent, because one of ``others`` has an
    offset of the group. The last cell of such a row is a note that starts with `STALE`, `UNCLEAR` or `ELSEWHERE`.
    `report` prints the counts."""

    def __init__(self, store: OffsetStore, others: Sequence[OffsetStore], options: str) -> None:
        self._store = store
        self._others = others
        self._counts: Counter[tuple[str, str]] = Counter()
        self._options = options
        self._group = ""

    def count(self, rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """Yields all rows, and counts the rows of stale and absent offsets."""
        from offsetmgr.groups.lag import ELSEWHERE, STALE, UNCLEAR

        for row in rows:
            for beginning, separator in ((STALE, "'s "), (UNCLEAR, "'s "), (ELSEWHERE, ": ")):
                if row[-1] is not None and row[-1].startswith(beginning):
                    self._counts[beginning, row[-1].removeprefix(beginning).partition(separator)[0]] += 1
                    self._group = row[0]
            yield row

    def report(self) -> None:
        """Prints the numbers of stale and absent offsets, and the option that shows the other offsets."""
        from offsetmgr.core.selection import group_words, literal_pattern
        from offsetmgr.groups.lag import ELSEWHERE, STALE, UNCLEAR
        from offsetmgr.groups.last_writes import TITLES

        here = TITLES.get(self._store.uri.partition(":")[0])
        for other in self._others:
            title = TITLES[other.uri.partition(":")[0]]
            stale, unclear, absent = (self._counts[beginning, title] for beginning in (STALE, UNCLEAR, ELSEWHERE))
            if stale:
                offsets = f"{count_of(stale, 'offset')} in {here} {'is' if stale == 1 else 'are'}"
                note(f"warning: {offsets} older than the group's in {title}; the lag is computed from those in {title}")
            if unclear:
                offsets = f"{count_of(unclear, 'offset')} in {here} {'differs' if unclear == 1 else 'differ'}"
                why = "and nothing shows which is newer; the lag is unknown"
                note(f"warning: {offsets} from the group's in {title}, {why}")
            if absent:
                only = f"{count_of(absent, 'offset')} {'is' if absent == 1 else 'are'} only in {title}, not in {here}"
                note(f"warning: {only}; the lag is computed from {'it' if absent == 1 else 'them'}")
            if stale or unclear or absent:
                shows = f"--store {quote(other.uri)} shows what {title} holds"
                where = join(("offsetmgr", "groups", "where", *group_words(literal_pattern(self._group))))
                note(f"hint: {shows}; {where} --window 60{self._options} shows where the group commits")
