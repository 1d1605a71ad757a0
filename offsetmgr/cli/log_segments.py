"""Helpers of the commands that read segments: they find the logs under a path, and format the columns of a segment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from offsetmgr.cli.render import Column, note
from offsetmgr.core.errors import FileFailure, OffsetMgrError, UsageError

if TYPE_CHECKING:
    from offsetmgr.segments.segment import Segment
    from offsetmgr.segments.truncation import ExaminedSegment

Paths = Annotated[
    list[Path],
    typer.Argument(metavar="PATH...", help="Log files, directories of partitions, brokers' log directories."),
]

_MIB: Final = 1024 * 1024
SEGMENT: Final = (
    Column("path", detail=True),
    Column("partition"),
    Column("base_offset", right=True),
    Column("size", right=True),
    Column("entries", right=True),
    Column("next_offset", right=True),
    Column("state"),
    Column("sound", right=True),
)


def sources(path: Path, errors: list[OffsetMgrError]) -> Iterator[tuple[Path, tuple[Segment, ...]]]:
    """Yields the log files and partitions' directories under a path, each with its segments. If a directory cannot be
    read, or has a file with which a broker does not start, its error is added to ``errors``. Raises `UsageError` for a
    path without a log."""
    from offsetmgr.segments.checkpoints import unusable_files
    from offsetmgr.segments.partition import is_directory, partitions_in, segments_in
    from offsetmgr.segments.segment import Segment

    path_is_directory = is_directory(path)
    if path_is_directory is None:
        raise UsageError(f"path {path}", "does not exist")
    if not path_is_directory:
        yield path, (Segment.of(path),)
        return
    if own := segments_in(path):
        errors += unusable_files(path)
        yield path, own
        return
    directories = list(partitions_in(path))
    if not directories:
        raise UsageError(f"directory {path}", "holds no log: neither segments nor directories of partitions")
    for directory in directories:
        try:
            if segments := segments_in(directory):
                errors += unusable_files(directory)
                yield directory, segments
        except OffsetMgrError as error:
            errors.append(error)


def note_scope(paths: Iterable[Path]) -> None:
    """Prints the files that the prediction about a broker is based on."""
    if all(path.is_file() for path in paths):
        note("checked: only the segments that are named, not the other files of their directories")
    else:
        note(
            "checked: segments, partition.metadata, leader-epoch-checkpoint; a broker reads other files when it starts"
        )


def mib_in(segments: Iterable[Segment]) -> int:
    """The approximate number of progress steps for reading these segments."""
    return sum(_size(segment) // _MIB + 1 for segment in segments)


def _size(segment: Segment) -> int:
    try:
        return segment.size
    except FileFailure:
        return 0  # the failure is reported when the segment is read


def state(seen: ExaminedSegment) -> str:
    found = seen.result
    if found.damage is not None:
        return found.damage.value
    return "in doubt" if found.suspicion_count else "sound"


def columns(seen: ExaminedSegment) -> tuple[Any, ...]:
    found, log = seen.result, seen.segment.log
    return (
        str(log),
        log.absolute().parent.name,
        found.base_offset,
        found.size,
        found.entries,
        found.next_offset,
        state(seen),
        found.valid_bytes,
    )
