"""`Partition`: lists the segments in a partition's directory (``topic-0``), and reads the log from any offset.

`Partition.refresh` replaces the tuple of segments. A caller that has read `Partition.segments` before the refresh can
continue to use the old tuple, which does not change when a broker rolls or deletes segments.

After a crash of the broker, this module reads the files as the broker would at its next start: segments that compaction
had written completely (``.swap``) replace the original segments, and files that are incomplete (``.cleaned``) or marked
for deletion (``.deleted``) are ignored.

Source: kafka.log.LogLoader, LocalLog; for the search and the reads Kafka 0.10.1, Implementation, 5.5 "Log".
"""

from __future__ import annotations

import contextlib
import re
import stat
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from offsetmgr.core.errors import CorruptData, FileFailure, OffsetOutOfRange, UnsupportedOperation, os_error_as
from offsetmgr.core.model import LogRange, TopicPartition
from offsetmgr.segments.checkpoints import LOG_START, read_checkpoint
from offsetmgr.segments.entries import CHUNK, MAX_ENTRY_BYTES, LogSlice
from offsetmgr.segments.segment import KAFKA_07_LOG, LOG, SWAP, Segment

_PARTITION_DIR: Final = re.compile(r"(?P<topic>[A-Za-z0-9._-]{1,249})-(?P<partition>\d{1,10})")
_INACTIVE_DIR: Final = re.compile(r".+\.[0-9a-f]{32}-(delete|future|stray)")
"""The name of a directory that is not a live log: the log was deleted, is still being copied, or is unknown to the
cluster."""
_KAFKA_07_DIR: Final = re.compile(r".+_\d+")
_CLEANED: Final = ".log.cleaned"


class Partition:
    """A partition's log, for reading.

    The name of ``directory`` is that of the partition (``topic-0``). Raises `CorruptData` if the name does not have
    this form. Raises `UnsupportedOperation` for a directory of Kafka 0.7, and for a directory that a broker has renamed
    because the log is not in use (``-delete``, ``-future``, ``-stray``). Also raises `FileFailure`.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from offsetmgr.segments import LogAppender, Record
    >>> with TemporaryDirectory() as parent:
    ...     with LogAppender(Path(parent) / "orders-0") as log:
    ...         done = log.append([Record(0, 1_700_000_000_000, None, b"value")])
    ...     partition = Partition(Path(parent) / "orders-0")
    ...     str(partition.name), partition.range(), len(partition.segments)
    ('orders-0', LogRange(start=0, end=1), 1)
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.name = partition_of(directory)
        self.segments: tuple[Segment, ...] = ()
        """The segments that the last `refresh` found, sorted by offset."""
        self.refresh()

    def refresh(self) -> None:
        """Reads the directory again. Raises `FileFailure`, `UnsupportedOperation`."""
        self.segments = segments_in(self.directory)

    def range(self) -> LogRange:
        """Returns the log's start offset, which may be within a segment (DeleteRecords), and the offset after its last
        entry. Raises `CorruptData` if the last segment is damaged, `FileFailure`."""
        return LogRange(self._start(self.segments), self._end(self.segments))

    def read(self, offset: int, size: int = CHUNK, max_entry_bytes: int = MAX_ENTRY_BYTES) -> LogSlice | None:
        """Returns about ``size`` bytes that begin with the entry that contains ``offset``. If compaction has removed
        this entry, the bytes begin with the next entry. Returns None at the end of the log.

        The bytes may end within an entry, but the first entry is always complete. Raises `LimitExceeded` if the first
        entry is larger than ``max_entry_bytes``, `OffsetOutOfRange` for an offset before the start or after the end of
        the log, `CorruptData`, and `FileFailure`.
        """
        segments = self.segments
        at = bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1
        start = self._start(segments)
        if offset < start:
            raise self._outside(offset, segments, start)
        for segment in segments[max(at, 0) :]:
            log_slice = segment.read(offset, size, max_entry_bytes)
            if log_slice is not None:
                return log_slice
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
        return segments[-1].next_offset() if segments else 0


def partition_of(directory: Path) -> TopicPartition:
    """Returns the partition whose topic and number the name of a directory contains. ``directory`` may also be a link
    to a directory with such a name. Raises the errors of `Partition`."""
    name = directory.name if _PARTITION_DIR.fullmatch(directory.name) else directory.resolve().name
    with contextlib.suppress(FileFailure):  # if the directory is unreadable, only its name is checked
        _reject_kafka_07(directory, name)
    if _INACTIVE_DIR.fullmatch(name):
        state = {"delete": "deleted", "future": "still being copied to", "stray": "unknown to its cluster"}
        raise UnsupportedOperation(
            str(directory),
            f"the partition is {state[name.rpartition('-')[2]]}",
            "to read it anyway, rename it to TOPIC-N",
        )
    found = _PARTITION_DIR.fullmatch(name)
    if found is None:
        raise CorruptData(str(directory), "its name is not that of a partition's directory", "an example is orders-0")
    return TopicPartition(found["topic"], int(found["partition"]))


def has_partition_dir_name(directory: Path) -> bool:
    """Returns whether a directory has the name of a partition's directory. The partition may be live, not in use
    (deleted, being copied, stray), or a partition of Kafka 0.7."""
    name = directory.resolve().name
    return any(form.fullmatch(name) for form in (_PARTITION_DIR, _INACTIVE_DIR, _KAFKA_07_DIR))


def partitions_in(directory: Path) -> Iterator[Path]:
    """Yields the directories of live partitions in a broker's log directory, sorted by topic and number.

    Raises `FileFailure`, and `UnsupportedOperation` if the log directory contains only partitions of Kafka 0.7.
    """
    return (path for _, path in named_partitions(directory))


def named_partitions(directory: Path) -> list[tuple[TopicPartition, Path]]:
    """Returns the partitions and directories that `partitions_in` yields, without reading the directories. Raises the
    errors of `partitions_in`."""
    named = []
    paths = _listing(directory)
    for path in paths:
        found = _PARTITION_DIR.fullmatch(path.name)
        if found and is_directory(path):
            named.append((TopicPartition(found["topic"], int(found["partition"])), path))
    if not named:
        for path in paths:
            if _KAFKA_07_DIR.fullmatch(path.name) and is_directory(path):
                _reject_kafka_07(path)
    return sorted(named)


def segments_in(directory: Path) -> tuple[Segment, ...]:
    """Returns the segments that a broker would find in the directory at its start, sorted by offset. Raises
    `FileFailure`, `UnsupportedOperation`, and `CorruptData` if a ``.swap`` file of compaction is damaged."""
    files = _listing(directory)
    for file in files:
        if file.name.endswith(KAFKA_07_LOG):
            _reject_kafka_07(directory)
    segments = {segment.base_offset: segment for segment in _named(files, LOG)}
    # Compaction renames its files from .cleaned to .swap, from the last segment to the first. If a .cleaned file
    # exists, the renaming was interrupted, so .swap files with its offset or a larger one do not count.
    unfinished = [int(file.name[:20]) for file in files if file.name.endswith(_CLEANED) and file.name[:20].isdigit()]
    swaps = [one for one in _named(files, LOG + SWAP) if not unfinished or one.base_offset < min(unfinished)]
    if swaps:
        low = min(segment.base_offset for segment in swaps)
        high = max(segment.next_offset() for segment in swaps)
        segments = {base: segment for base, segment in segments.items() if not low <= base < high}
        segments |= {segment.base_offset: segment for segment in swaps}
    return tuple(segments[base] for base in sorted(segments))


def _named(files: list[Path], suffix: str) -> list[Segment]:
    """Returns the segments with this suffix. Ignores other files, like a broker."""
    return [Segment.of(file) for file in files if file.name[20:] == suffix and file.name[:20].isdecimal()]


def is_directory(path: Path) -> bool | None:
    """Returns whether a path is a directory; None if it does not exist. Raises `FileFailure`."""
    with os_error_as(FileFailure, f"cannot read {path}"):
        try:
            return stat.S_ISDIR(path.stat().st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return None


def _listing(directory: Path) -> list[Path]:
    with os_error_as(FileFailure, f"cannot read {directory}"):
        return sorted(directory.iterdir())


def _reject_kafka_07(directory: Path, name: str = "") -> None:
    """Raises `UnsupportedOperation` for a directory of Kafka 0.7.

    A ``.kafka`` file identifies a directory of Kafka 0.7. If ``name`` is given, a name of the form TOPIC_N also
    identifies a directory of Kafka 0.7, unless the directory contains ``.log`` files.
    """
    files = [file.name for file in _listing(directory)] if is_directory(directory) else []
    old = [file for file in files if file.endswith(KAFKA_07_LOG)]
    if old or (_KAFKA_07_DIR.fullmatch(name) and not any(file.endswith(LOG) for file in files)):
        why = f"it holds {old[0]}" if old else "its name is TOPIC_N"
        raise UnsupportedOperation(
            str(directory),
            f"{why}: a log of Kafka 0.7, whose entries have a length of 4 bytes and no offset",
            "offsetmgr reads only logs of Kafka 0.8 and later: directories TOPIC-N with .log files",
        )
