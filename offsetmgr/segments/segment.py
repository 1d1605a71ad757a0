"""One segment: a log file and its indexes, for reading.

No file stays open between calls.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from offsetmgr.core.errors import CorruptData, FileFailure, OffsetMgrError, UnsupportedOperation, os_error_as
from offsetmgr.segments.entries import CHUNK, MAX_ENTRY_BYTES, EntryReader, LogEntry, LogSlice
from offsetmgr.segments.indexes import Index, IndexEntry, TimeEntry, offset_index, time_index

LOG: Final = ".log"
INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
ABORTED_INDEX: Final = ".txnindex"
SWAP: Final = ".swap"
"""Suffix of a file that compaction has written completely, and that a broker renames at its next start."""
KAFKA_07_LOG: Final = ".kafka"
_NAME: Final = re.compile(r"(\d{20})\.log(\.swap)?")
_DIGITS: Final = 20
_SEARCH: Final = 16 * 1024
"""Number of bytes that a search for an entry reads at once. By default an offset index has an entry for every 4 KiB of
the log."""


class Segment(NamedTuple):
    """A segment of a partition's log. ``base_offset`` is the number in its file name; the segment contains no smaller
    offset."""

    log: Path
    base_offset: int

    @classmethod
    def of(cls, file: Path) -> Segment:
        """Returns the segment of a log file (``00000000000000000042.log``).

        Raises `UnsupportedOperation` for a log file of Kafka 0.7 (``.kafka``), and `CorruptData` for any other file
        whose name is not that of a log file.
        """
        if file.name.endswith(KAFKA_07_LOG):
            raise UnsupportedOperation(
                str(file),
                "it is a log of Kafka 0.7, whose entries have no offset: a position in the file is the offset",
                "offsetmgr reads only logs of Kafka 0.8 and later (.log)",
            )
        found = _NAME.fullmatch(file.name)
        if found is None:
            raise CorruptData(
                str(file), "its name is not that of a log segment", "an example is 00000000000000000042.log"
            )
        return cls(file, int(found[1]))

    def index_path(self, suffix: str) -> Path:
        """Returns the path of one of the segment's indexes; ``suffix`` is `INDEX`, `TIME_INDEX` or `ABORTED_INDEX`."""
        swap = SWAP if self.log.name.endswith(SWAP) else ""
        return self.log.with_name(f"{self.base_offset:0{_DIGITS}}{suffix}{swap}")

    @property
    def size(self) -> int:
        """Returns the size of the log file in bytes. Raises `FileFailure`."""
        return self._stat().st_size

    @property
    def modified(self) -> int:
        """Returns the time of the log file's last modification in milliseconds since 1970. Raises `FileFailure`."""
        return self._stat().st_mtime_ns // 1_000_000

    def _stat(self) -> os.stat_result:
        with os_error_as(FileFailure, f"cannot read {self.log}"):
            return self.log.stat()

    @contextmanager
    def open_reader(
        self, position: int = 0, *, end: int | None = None, chunk: int = CHUNK, max_entry_bytes: int = MAX_ENTRY_BYTES
    ) -> Iterator[EntryReader]:
        """Opens a reader of the entries from ``position`` on. An entry must begin at ``position``. The file is closed
        when the context ends. Raises `FileFailure`."""
        with self.open() as file:
            yield EntryReader(
                file, str(self.log), position=position, end=end, chunk=chunk, max_entry_bytes=max_entry_bytes
            )

    def open(self) -> BinaryIO:
        """Opens the log file for reading. Raises `FileFailure`."""
        with os_error_as(FileFailure, f"cannot read {self.log}"):
            return self.log.open("rb")

    def offset_index(self) -> Index[IndexEntry]:
        """Returns the offset index, which is empty if the file does not exist. Raises `FileFailure`."""
        return offset_index(_read_bytes(self.index_path(INDEX)), self.base_offset)

    def time_index(self) -> Index[TimeEntry]:
        """Returns the time index, which is empty if the file does not exist. Releases before Kafka 0.10.1 do not write
        this file. Raises `FileFailure`."""
        return time_index(_read_bytes(self.index_path(TIME_INDEX)), self.base_offset)

    def position_before(self, offset: int) -> int:
        """Returns a position at which an entry begins. All entries before this position have offsets below ``offset``.

        The position comes from the offset index. If no intact entry begins at the position from the index, returns 0.
        """
        near = self.offset_index().before(offset)
        if near is None or near.position == 0:
            return 0
        with self.open_reader(near.position, chunk=4096) as reader:
            try:
                entry = next(iter(reader), None)
                valid = entry is not None and entry.intact() and entry.header().last_offset <= near.offset
            except OffsetMgrError:
                valid = False
        return near.position if valid else 0

    def find(self, offset: int, max_entry_bytes: int = MAX_ENTRY_BYTES) -> LogEntry | None:
        """Returns the entry that contains ``offset``, or the first entry after ``offset``; None if all entries are
        before ``offset``.

        Raises `CorruptData` if this entry, or an entry that must be read before it, is damaged.
        """
        start = self.position_before(offset)
        with self.open_reader(start, chunk=_SEARCH, max_entry_bytes=max_entry_bytes) as reader:
            return next((entry for entry in self._intact(reader) if entry.header().last_offset >= offset), None)

    def next_offset(self) -> int:
        """Returns the offset after the last complete entry. If there is no complete entry, returns the base offset.

        Raises `CorruptData` if an entry near the end is damaged, `FileFailure`.
        """
        last, end = self.offset_index().last, self.base_offset
        with self.open_reader(self.position_before(last.offset) if last else 0) as reader:
            for entry in self._intact(reader):
                end = entry.header().last_offset + 1
        return end

    def _intact(self, entries: Iterable[LogEntry]) -> Iterator[LogEntry]:
        """Yields the entries. Raises `CorruptData` for a damaged entry."""
        for entry in entries:
            if not entry.intact():
                what = f"{self.log}, position {entry.position}"
                raise CorruptData(what, f"the entry at offset {entry.offset} is damaged")
            yield entry

    def read(self, offset: int, size: int = CHUNK, max_entry_bytes: int = MAX_ENTRY_BYTES) -> LogSlice | None:
        """Returns about ``size`` bytes from the entry that `find` returns; `None` if all entries are before ``offset``.

        The bytes may end within an entry, but the first entry is always complete. Raises `LimitExceeded` if that entry
        is larger than ``max_entry_bytes``.
        """
        found = self.find(offset, max_entry_bytes)
        if found is None:
            return None
        if len(found.data) >= size:
            return LogSlice(found.position, found.data)
        with self.open() as file, os_error_as(FileFailure, f"cannot read {self.log}"):
            file.seek(found.position)
            return LogSlice(found.position, file.read(size))


def segment_file_name(base_offset: int) -> str:
    """Returns the name of a segment's log file: the base offset in twenty digits and the suffix."""
    return f"{base_offset:0{_DIGITS}}{LOG}"


def _read_bytes(file: Path) -> bytes:
    with os_error_as(FileFailure, f"cannot read {file}"):
        try:
            return file.read_bytes()
        except FileNotFoundError:
            return b""
