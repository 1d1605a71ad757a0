"""The content of a log whose newest segment ends with invalid bytes."""

from __future__ import annotations

from pathlib import Path

from offsetmgr.segments.batch_builder import batch
from offsetmgr.segments.batch_reader import Record

SOUND = b"".join(batch([Record(40 + n, None, b"k", b"v" * 90)]) for n in range(5))
JUNK = bytes(1000)
NEWEST = "00000000000000000040"


def tree(directory: Path) -> dict[str, bytes]:
    """Returns the content of every file below a directory, by path."""
    return {str(file.relative_to(directory)): file.read_bytes() for file in directory.rglob("*") if file.is_file()}
