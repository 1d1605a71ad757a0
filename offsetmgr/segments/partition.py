"""A partition's directory (``topic-0``): its segments, and reads from any offset.

`Partition.refresh` replaces the list of segments as a whole, so a reader that took `Partition.segments` before
continues with a list that does not change while segments are rolled and deleted.

Unfinished work of a dead broker is read as the broker would: segments that compaction had written completely
(``.swap``) replace the original ones, and files to be deleted or unfinished ones are ignored (``.deleted``,
``.cleaned``). Source: kafka.log.LogLoader, LocalLog; for the search and the reads Kafka 0.10.1, Implementation, 5.5
"Log".
"""

from __future__ import annotations

import contextlib
import re
import stat
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from offsetmgr.core.errors import CorruptData, FileFailure, OffsetOutOfRange, UnsupportedOperation
from offsetmgr.core.model import LogRange, TopicPartition
from offsetmgr.segments.checkpoints import LOG_START, read_checkpoint
from offsetmgr.segments.entries import CHUNK, LARGEST
from offsetmgr.segments.segment import LOG, OLD_LOG, SWAP, LogSlice, Segment

_FOLDER: Final = re.compile(r"(?P<topic>[A-Za-z0-9._-]{1,249})-(?P<partition>\d{1,10})")
_ODD: Final = re.compile(r".+\.[0-9a-f]{32}-(delete|future|stray)")
"""A broker's directory of a partition that is not a live log: deleted, being moved, or unknown to the cluster."""
_OLD_FOLDER: Final = re.compile(r".+_\d+")
_CLEANED: Final = ".log.cleaned"


class Partition:
    """A partition's log, for reading.

    ``directory`` has its name. Raises `CorruptData` for a directory of no partition, `UnsupportedOperation` for one of
    Kafka 0.7 and for one that a broker has set aside by name; `FileFailure`.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.name = partition_of(directory)
        self._segments: tuple[Segment, ...] = ()
        self.refresh()

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Returns the segments of the last `refresh`, by offset, as a tuple that never changes."""
        return self._segments

    def refresh(self) -> None:
        """Reads the directory again. Raises `FileFailure`, `UnsupportedOperation`."""
        self._segments = segments_in(self.directory)

    def range(self) -> LogRange:
        """Returns its offsets: from its start, which may be within a segment (DeleteRecords), to the offset after its
        last entry. Raises `CorruptData` if the last segment is damaged, `FileFailure`."""
        return LogRange(self._start(self._segments), self._end(self._segments))

    def segment_of(self, offset: int) -> Segment | None:
        """Returns the last segment that begins at or before ``offset``; None if all begin after it."""
        return _segment_of(self._segments, offset)

    def read(self, offset: int, size: int = CHUNK, largest: int = LARGEST) -> LogSlice | None:
        """Returns about ``size`` bytes from the entry with ``offset`` on, or from the next one if compaction has
        removed it.

        The bytes may end within an entry; an entry larger than ``size`` is returned in full, and one over ``largest``
        raises `LimitExceeded`. None at the log's end. Raises `OffsetOutOfRange` for an offset before the log or after
        its end; `CorruptData`, `FileFailure`.
        """
        segments = self._segments
        at = bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1
        start = self._start(segments)
        if offset < start:
            raise self._outside(offset, segments, start)
        for segment in segments[max(at, 0) :]:
            piece = segment.read(offset, size, largest)
            if piece is not None:
                return piece
        if offset > self._end(segments):
            raise self._outside(offset, segments, start)
        return None

    def _outside(self, offset: int, segments: tuple[Segment, ...], start: int) -> OffsetOutOfRange:
        log = LogRange(start, self._end(segments))
        return OffsetOutOfRange(
            f"{self.directory}, offset {offset}",
            f"the log begins at {log.start} and ends at {log.end} (OFFSET_OUT_OF_RANGE)",
            log_range=log,
        )

    def _start(self, segments: tuple[Segment, ...]) -> int:
        first = segments[0].base_offset if segments else 0
        return max(first, read_checkpoint(self.directory.parent / LOG_START).get(self.name, first))

    def _end(self, segments: tuple[Segment, ...]) -> int:
        return next_offset(segments[-1]) if segments else 0


def next_offset(segment: Segment) -> int:
    """Returns the offset after a segment's last complete entry; the segment's own if it has none.

    Raises `CorruptData` if an entry near the end is damaged, `FileFailure`.
    """
    index = segment.offset_index()
    start = segment.position_before(index[len(index) - 1].offset) if len(index) else 0
    end = segment.base_offset
    with segment.walk(start) as walk:
        for entry in walk:
            if not entry.intact():
                raise CorruptData(
                    f"{segment.log}, position {entry.position}", f"the entry at offset {entry.offset} is damaged"
                )
            end = entry.header().last_offset + 1
    return end


def partition_of(directory: Path) -> TopicPartition:
    """Returns the partition of a directory with this name, which may be a link's. Raises the errors of `Partition`."""
    name = directory.name if _FOLDER.fullmatch(directory.name) else directory.resolve().name
    with contextlib.suppress(FileFailure):  # the name suffices; a reader of the directory gets the error
        _refuse_kafka_07(directory, name)
    if _ODD.fullmatch(name):
        state = {"delete": "deleted", "future": "still being copied to", "stray": "unknown to its cluster"}
        raise UnsupportedOperation(
            str(directory),
            f"the partition is {state[name.rpartition('-')[2]]}",
            "rename it to TOPIC-N to read it anyway",
        )
    found = _FOLDER.fullmatch(name)
    if found is None:
        raise CorruptData(str(directory), "it has not the name of a partition's directory", "as in orders-0")
    return TopicPartition(found["topic"], int(found["partition"]))


def is_named_as_one(directory: Path) -> bool:
    """Returns whether a directory has the name of a partition's, in use, set aside, or of Kafka 0.7."""
    name = directory.resolve().name
    return any(form.fullmatch(name) for form in (_FOLDER, _ODD, _OLD_FOLDER))


def partitions_in(directory: Path) -> Iterator[Path]:
    """Yields the directories of partitions in a broker's log directory, by topic and number, without those that a
    broker has set aside.

    Raises `FileFailure`, and `UnsupportedOperation` if there are only those of Kafka 0.7.
    """
    return (path for _, path in named_partitions(directory))


def named_partitions(directory: Path) -> list[tuple[TopicPartition, Path]]:
    """Returns `partitions_in` with their partitions, without reading the directories. Raises its errors."""
    named = []
    paths = _listing(directory)
    for path in paths:
        found = _FOLDER.fullmatch(path.name)
        if found and is_partition_dir(path):
            named.append((TopicPartition(found["topic"], int(found["partition"])), path))
    if not named:
        for path in paths:
            if _OLD_FOLDER.fullmatch(path.name) and is_partition_dir(path):
                _refuse_kafka_07(path)
    return sorted(named)


def segments_in(directory: Path) -> tuple[Segment, ...]:
    """Returns a directory's segments by offset, as a broker would find them. Raises `FileFailure`,
    `UnsupportedOperation`, and `CorruptData` if unfinished files of compaction are damaged."""
    files = _listing(directory)
    for file in files:
        if file.name.endswith(OLD_LOG):
            _refuse_kafka_07(directory)
    segments = {segment.base_offset: segment for segment in _named(files, LOG)}
    swaps = _valid_swaps(files)
    if swaps:
        low = min(segment.base_offset for segment in swaps)
        high = max(next_offset(segment) for segment in swaps)
        segments = {base: segment for base, segment in segments.items() if not low <= base < high}
        segments |= {segment.base_offset: segment for segment in swaps}
    return tuple(segments[base] for base in sorted(segments))


def _valid_swaps(files: list[Path]) -> list[Segment]:
    """Compaction renames its files from the last segment to the first, from ``.cleaned`` to ``.swap``: while one
    ``.cleaned`` is left, those from it on are incomplete, and the old segments count."""
    unfinished = [int(file.name[:20]) for file in files if file.name.endswith(_CLEANED) and file.name[:20].isdigit()]
    return [segment for segment in _named(files, LOG + SWAP) if not unfinished or segment.base_offset < min(unfinished)]


def _named(files: list[Path], suffix: str) -> list[Segment]:
    """A broker ignores other files in its directories."""
    return [Segment.of(file) for file in files if file.name[20:] == suffix and file.name[:20].isdecimal()]


def _segment_of(segments: tuple[Segment, ...], offset: int) -> Segment | None:
    at = bisect_right(segments, offset, key=lambda segment: segment.base_offset)
    return segments[at - 1] if at else None


def is_partition_dir(path: Path) -> bool | None:
    """Returns whether a path is a directory (False: something else; None: it does not exist). Raises `FileFailure` if
    that is unknown."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise FileFailure(f"cannot read {path}", error.strerror or str(error)) from error


def _listing(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError as error:
        raise FileFailure(f"cannot read {directory}", error.strerror or str(error)) from error


def _refuse_kafka_07(directory: Path, name: str = "") -> None:
    """Decides by its files, or by its name if that is given and it has no logs of later versions."""
    files = [file.name for file in _listing(directory)] if is_partition_dir(directory) else []
    old = [file for file in files if file.endswith(OLD_LOG)]
    if old or (_OLD_FOLDER.fullmatch(name) and not any(file.endswith(LOG) for file in files)):
        why = f"it holds {old[0]}" if old else "its name is TOPIC_N"
        raise UnsupportedOperation(
            str(directory),
            f"{why}: a log of Kafka 0.7, whose entries have a length of 4 bytes and no offset",
            "only logs of Kafka 0.8 and later (directories TOPIC-N with .log files) are read",
        )
