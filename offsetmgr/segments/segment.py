"""One segment: a log file and its indexes.

Nothing stays open between calls, and nothing is written here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from offsetmgr.core.errors import CorruptData, FileFailure, OffsetMgrError, UnsupportedOperation
from offsetmgr.segments.entries import CHUNK, LARGEST, EntryReader, LogEntry
from offsetmgr.segments.indexes import AbortedTransaction, OffsetIndex, TimeIndex, aborted_transactions

LOG: Final = ".log"
INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
ABORTED_INDEX: Final = ".txnindex"
SWAP: Final = ".swap"
"""A file that compaction had written completely and was about to rename."""
OLD_LOG: Final = ".kafka"
_NAME: Final = re.compile(r"(\d{20})\.log(\.swap)?")
_DIGITS: Final = 20
_SEARCH: Final = 16 * 1024
"""Bytes read at once to find an entry: indexes have one for every 4 KiB."""


class LogSlice(NamedTuple):
    """Bytes of a segment's log: at least one complete entry, and perhaps the beginning of another.

    ``position`` is their position in the file.
    """

    position: int
    data: bytes


class Segment(NamedTuple):
    """A segment of a partition's log. ``base_offset`` is the number in its name: no offset in it is smaller."""

    log: Path
    base_offset: int

    @classmethod
    def of(cls, file: Path) -> Segment:
        """Returns the segment of a log file (``00000000000000000042.log``).

        Raises `UnsupportedOperation` for one of Kafka 0.7, by name, `CorruptData` for another file.
        """
        refuse_old_form(file)
        found = _NAME.fullmatch(file.name)
        if found is None:
            raise CorruptData(str(file), "it has not the name of a log segment", "as in 00000000000000000042.log")
        return cls(file, int(found[1]))

    def beside(self, suffix: str) -> Path:
        """Returns the file of this segment that ends in ``suffix``: `INDEX`, `TIME_INDEX` or `ABORTED_INDEX`."""
        swap = SWAP if self.log.name.endswith(SWAP) else ""
        return self.log.with_name(f"{self.base_offset:0{_DIGITS}}{suffix}{swap}")

    @property
    def size(self) -> int:
        """Returns the bytes of its log. Raises `FileFailure`."""
        return self._stat().st_size

    @property
    def modified(self) -> int:
        """Returns the last write of its log in milliseconds since 1970. Raises `FileFailure`."""
        return self._stat().st_mtime_ns // 1_000_000

    def _stat(self) -> os.stat_result:
        with _told(self.log):
            return self.log.stat()

    @contextmanager
    def walk(
        self, position: int = 0, *, end: int | None = None, chunk: int = CHUNK, largest: int = LARGEST
    ) -> Iterator[EntryReader]:
        """Yields a reader of its entries from the beginning of any entry on; closes the file at the end. Raises
        `FileFailure`."""
        with self.open() as file:
            yield EntryReader(file, str(self.log), position=position, end=end, chunk=chunk, largest=largest)

    def open(self) -> BinaryIO:
        """Opens its log for reading. Raises `FileFailure`."""
        with _told(self.log):
            return self.log.open("rb")

    def offset_index(self) -> OffsetIndex:
        """Returns the offset index, empty without a file. Raises `FileFailure`."""
        return OffsetIndex(_bytes(self.beside(INDEX)), self.base_offset)

    def time_index(self) -> TimeIndex:
        """Returns the time index, empty without a file (before Kafka 0.10.1). Raises `FileFailure`."""
        return TimeIndex(_bytes(self.beside(TIME_INDEX)), self.base_offset)

    def aborted_index(self) -> list[AbortedTransaction]:
        """Returns the aborted transactions, empty without a file: a broker writes it when a transaction is aborted.
        Raises `FileFailure`, and the errors of `aborted_transactions`."""
        file = self.beside(ABORTED_INDEX)
        return aborted_transactions(_bytes(file), str(file))

    def position_before(self, offset: int) -> int:
        """Returns a position at which an entry begins and before which no entry has ``offset`` or more.

        The index's position is used if an intact entry begins there; else it is the file's beginning.
        """
        near = self.offset_index().before(offset)
        if near.position == 0:
            return 0
        with self.walk(near.position, chunk=4096) as walk:
            try:
                entry = next(iter(walk), None)
                believed = entry is not None and entry.intact() and entry.header().last_offset <= near.offset
            except OffsetMgrError:
                believed = False
        return near.position if believed else 0

    def find(self, offset: int, largest: int = LARGEST) -> LogEntry | None:
        """Returns the entry with ``offset``, or the first one after it; None if all are before it.

        Raises `CorruptData` if it, or an entry on the way to it, is damaged.
        """
        with self.walk(self.position_before(offset), chunk=_SEARCH, largest=largest) as walk:
            for entry in walk:
                if not entry.intact():
                    raise CorruptData(
                        f"{self.log}, position {entry.position}", f"the entry at offset {entry.offset} is damaged"
                    )
                if entry.header().last_offset >= offset:
                    return entry
        return None

    def read(self, offset: int, size: int = CHUNK, largest: int = LARGEST) -> LogSlice | None:
        """Returns about ``size`` bytes from the entry of `find` on; None if all are before ``offset``.

        It may end within an entry. If the first one is larger than ``size``, more is read, so that it is complete; one
        over ``largest`` raises `LimitExceeded`.
        """
        found = self.find(offset, largest)
        if found is None:
            return None
        if len(found.data) >= size:
            return LogSlice(found.position, found.data)
        with self.open() as file, _told(self.log):
            file.seek(found.position)
            return LogSlice(found.position, file.read(size))


def name_of(base_offset: int, suffix: str = LOG) -> str:
    """Returns the name of a segment's file: its offset in twenty digits and the suffix."""
    return f"{base_offset:0{_DIGITS}}{suffix}"


def refuse_old_form(file: Path) -> None:
    """Raises `UnsupportedOperation` for a log file of Kafka 0.7 (``.kafka``)."""
    if file.name.endswith(OLD_LOG):
        raise UnsupportedOperation(
            str(file),
            "it is a log of Kafka 0.7: its entries have a length of 4 bytes and no offset, and positions are offsets",
            "only logs of Kafka 0.8 and later (.log) are read",
        )


@contextmanager
def _told(file: Path) -> Iterator[None]:
    """Turns errors of the file system into `FileFailure`."""
    try:
        yield
    except OSError as error:
        raise FileFailure(f"cannot read {file}", error.strerror or str(error)) from error


def _bytes(file: Path) -> bytes:
    with _told(file):
        try:
            return file.read_bytes()
        except FileNotFoundError:
            return b""
