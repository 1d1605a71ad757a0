"""Reads the groups for a snapshot file, and opens snapshot files. `offsetmgr.stores.snapshot` writes snapshot files."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

from offsetmgr.core.closeable import Closeable
from offsetmgr.core.errors import (
    FileFailure,
    GroupNotFound,
    OffsetMgrError,
    UnsupportedOperation,
    UsageError,
    os_error_as,
)
from offsetmgr.core.log_origin import LogOrigin
from offsetmgr.core.offset_store import GroupOffsets, OffsetSource, OffsetStore
from offsetmgr.core.plurals import count_of, list_of
from offsetmgr.core.selection import ALL_TOPICS, TopicSelection
from offsetmgr.groups.scan import TopicMatches, require_known, scan_in_order
from offsetmgr.snapshots import registry
from offsetmgr.snapshots.base import SnapshotReader, is_avro
from offsetmgr.snapshots.line_formats import LineReader
from offsetmgr.stores.cross_cluster_check import origin_of_snapshot

if TYPE_CHECKING:
    from typing import BinaryIO


def export_groups(
    store: OffsetStore, groups: Iterable[str], topics: TopicSelection = ALL_TOPICS, *, strict: bool = False
) -> Iterator[GroupOffsets]:
    """Yields the groups for a snapshot, in the order of ``groups``. Groups without offsets in ``topics`` are left out.

    With ``strict``, the function raises `GroupNotFound` for a group that the store does not know, or that has no
    offsets in ``topics``. If a value cannot be read, the yielded group contains the error. The writer of the snapshot
    either rejects the group or records the error. At the end the function raises `UnknownTopicOrPartition` for a
    selected topic in which no group has an offset.
    """
    topics = TopicMatches(topics)
    for found in scan_in_order(store, groups):
        hidden = found.hidden
        topics.incomplete |= (found.error or hidden) is not None
        if hidden is not None:
            yield GroupOffsets(found.name, {}, {}, found.error or hidden)
            continue
        if strict and not (found.offsets or found.errors or found.error):
            require_known([store], [found.name])
        chosen = found
        if not topics.everything:
            offsets = {tp: c for tp, c in found.offsets.items() if topics.matches(tp)}
            errors = {tp: e for tp, e in found.errors.items() if topics.matches(tp)}
            chosen = replace(found, offsets=offsets, errors=errors)
        if chosen.offsets or chosen.errors or chosen.error:
            yield chosen
        elif strict and not topics.everything:
            raise GroupNotFound(f"group {found.name!r}", "has no committed offsets in these topics")
    topics.require_all(store.uri)


class SnapshotFile(OffsetSource, Closeable):
    """An open and checked snapshot file; close it after use."""

    uri = ""

    def __init__(self, stream: IO[bytes], reader: SnapshotReader, uri: str) -> None:
        self._stream = stream
        self._reader = reader
        self.uri = uri
        self.header = reader.header
        """The header, which names the origin of the snapshot; None if the file format has no header."""
        self.capabilities = reader.format.capabilities
        """The data that the file's format can contain."""

    def log_origin(self) -> LogOrigin:
        return origin_of_snapshot(self.header)

    def topic_ids(self, topics: Iterable[str] | None = None) -> Mapping[str, str]:
        """Returns the topic ids at the time of the snapshot."""
        known = {} if self.header is None else self.header.topic_ids
        return known if topics is None else {topic: known[topic] for topic in topics if topic in known}

    def groups(self) -> Iterator[str]:
        """Yields the groups of the snapshot in the order of the file."""
        return self._reader.groups()

    def read(self, groups: set[str] | None = None) -> Iterator[GroupOffsets]:
        """Yields all offsets of ``groups`` (None: all) in the order of the file, one group at a time, with the read
        errors that the file records."""
        recorded = self._reader.format.lossless
        for entry in self._reader.read():
            if groups is not None and entry.name not in groups:
                continue
            errors, error = entry.errors, entry.error
            if recorded:
                errors = {tp: _recorded(str(tp), one) for tp, one in errors.items()}
                error = None if error is None else _recorded(f"group {entry.name}", error)
            yield GroupOffsets(entry.name, entry.offsets, errors, error)

    def close(self) -> None:
        self._stream.close()


def _recorded(what: str, error: OffsetMgrError) -> OffsetMgrError:
    return OffsetMgrError(what, f"is not in the file, because it could not be read then: {error}")


def open_file(
    path: Path,
    format_name: str | None = None,
    group: str | None = None,
    *,
    unterminated: bool = False,
    shown: str = "",
    note: Callable[[str], None] = lambda _: None,
) -> SnapshotFile:
    """Opens and checks a snapshot. If the file contains offsets without the name of a group, ``group`` is their group.
    ``unterminated`` is ``accept_unterminated`` of `offsetmgr.snapshots.registry.open_snapshot`. ``shown`` is the name
    of the file in messages, if it is not ``path``. ``note`` is called with a text about rows that are skipped.

    Raises `UsageError` if the format is unknown. Raises `FileFailure`, `MalformedData`, `UnknownVersion` or another
    `OffsetMgrError` if the file cannot be read.
    """
    shown = name_of(shown or str(path))
    with os_error_as(FileFailure, f"file {path}"):
        stream = path.open("rb")
    try:
        name = "avro" if format_name is None and is_avro(stream) else registry.format_name(str(path), format_name)
        reader = _reader(stream, name, group, shown, unterminated)
    except BaseException:
        stream.close()
        raise
    if isinstance(reader, LineReader) and (empty := reader.empty_rows):
        note(f"{shown}: skipped {count_of(len(empty), 'row')} without values: line {list_of(empty, 5)}")
    return SnapshotFile(stream, reader, f"file:{path}")


def _reader(stream: BinaryIO, name: str, group: str | None, what: str, accept_unterminated: bool) -> SnapshotReader:
    """Opens the snapshot. ``group`` is used only if the snapshot contains offsets without the name of a group."""
    read = partial(registry.open_snapshot, what=what, accept_unterminated=accept_unterminated)
    if name in ("csv", "json") and group is not None:
        with suppress(UsageError):
            return read(stream, name, None)
        stream.seek(0)
    return read(stream, name, group if name in ("csv", "json", "spark") else None)


def name_of(file: str) -> str:
    """Returns the name of a file in errors. ``-`` is standard input."""
    return "standard input" if file == "-" else file


@contextmanager
def seekable(file: str) -> Iterator[Path]:
    """Yields the path of a regular file with the content of ``file``. A pipe or standard input (``-``) can be read only
    once, so its content is copied to a temporary file. Raises `FileFailure`."""
    path = Path(file)
    if file != "-" and (path.is_file() or not path.exists() or path.is_dir()):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="offsetmgr-") as directory:
        copy = Path(directory) / ("standard-input" if file == "-" else path.name)
        with os_error_as(FileFailure, f"file {file}"), copy.open("wb") as target, _open_once(file) as source:
            shutil.copyfileobj(source, target)
        yield copy


@contextmanager
def written_to(file: str) -> Iterator[str]:
    """Yields the path to which the snapshot is written. If ``file`` is ``-``, yields the path of a temporary file, and
    copies this file to standard output when the snapshot is complete. Therefore a failure leaves no partial output."""
    if file != "-":
        yield file
        return
    with tempfile.TemporaryDirectory(prefix="offsetmgr-") as directory:
        path = Path(directory) / "standard-output"
        try:
            yield str(path)
        except UnsupportedOperation as error:
            error.what = error.what.replace(f"file {path}", "standard output")
            raise
        with path.open("rb") as written:
            shutil.copyfileobj(written, sys.stdout.buffer)
        sys.stdout.flush()


def _open_once(file: str) -> AbstractContextManager[IO[bytes]]:
    if file != "-":
        return Path(file).open("rb")
    if sys.stdin is None:
        raise FileFailure("file -", "standard input is closed", "name a file, or pipe one in")
    return nullcontext(sys.stdin.buffer)
