"""Reports stale offsets in ZooKeeper: offsets that are smaller than the offsets of the same group in Kafka."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from offsetmgr.cli.render import note
from offsetmgr.core.plurals import count_of

if TYPE_CHECKING:
    from offsetmgr.core.offset_store import OffsetStore


class StaleOffsetCounter:
    """Counts the rows whose offset in ZooKeeper is stale, because the group has a larger offset in Kafka. The last cell
    of a stale row is a note that starts with `STALE`. `report` prints the count."""

    def __init__(self, newer: OffsetStore | None) -> None:
        self._newer = newer
        self._count = 0

    def count(self, rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """Yields all rows, and counts the rows of stale offsets."""
        from offsetmgr.groups.lag import STALE

        for row in rows:
            self._count += row[-1] is not None and row[-1].startswith(STALE)
            yield row

    def report(self) -> None:
        """Prints the number of stale offsets, and the option that shows the newer offsets in Kafka."""
        if self._newer is not None and self._count:
            verb = "is" if self._count == 1 else "are"
            offsets = f"{count_of(self._count, 'offset')} in ZooKeeper {verb} older than the group's in Kafka"
            note(f"warning: {offsets}; the lag is computed from the offsets in Kafka")
            note(f"hint: --store {self._newer.uri} shows what Kafka holds")
