"""`SnapshotStore`, which implements `OffsetStore` for a snapshot file, and `write_snapshot`, which writes a snapshot
file.

Reads use an index of the file, so memory grows with the number of groups and not with the number of offsets. An edit
rewrites the file in three steps. First, it decides on each change, and writes the results and the groups' new entries
to temporary files. Second, it merges the old file and the new entries into a new file, which replaces the old file.
Third, it returns the results.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import SpooledTemporaryFile, TemporaryFile
from typing import IO, BinaryIO, Final
from urllib.parse import quote

from offsetmgr.core.advice import Advice
from offsetmgr.core.atomic_file import exclusive_writer, reason, replace_file
from offsetmgr.core.errors import (
    FileFailure,
    OffsetMgrError,
    UnsupportedOperation,
    UsageError,
)
from offsetmgr.core.evaluation import evaluate, stopped
from offsetmgr.core.log_origin import UNNAMED, LogOrigin
from offsetmgr.core.model import (
    ABSENT,
    BrokerPartition,
    Committed,
    Offset,
    OffsetAndMetadata,
    TopicPartition,
    is_valid_offset,
)
from offsetmgr.core.offset_store import (
    Capabilities,
    Change,
    ChangeOutcome,
    EditStatus,
    GroupEdit,
    GroupEditResult,
    GroupOffsets,
    OffsetStore,
    StoreIdentity,
    fetched,
)
from offsetmgr.core.selection import MAX_PARTITION
from offsetmgr.snapshots.base import (
    Format,
    LoadedReader,
    SnapshotHeader,
    SnapshotReader,
    SnapshotReport,
)
from offsetmgr.snapshots.registry import by_name, format_name, open_snapshot
from offsetmgr.stores.cross_cluster_check import origin_of_snapshot, with_origin

# Decides on edits of a snapshot file.

HOW: Final = "the file was locked and replaced as a whole"
"""The value of `GroupEditResult.how` for snapshot files."""


class SnapshotEditor:
    """Decides on edits of groups of one snapshot file. Does not write to the file."""

    def __init__(self, form: Format, capabilities: Capabilities) -> None:
        self._form = form
        self._capabilities = capabilities
        self._name_errors: dict[tuple[str, str], OffsetMgrError | None] = {}

    def decide(self, entry: GroupOffsets, edit: GroupEdit) -> tuple[GroupEditResult, GroupOffsets | None]:
        """Returns the result of an edit of the group ``entry``, and the new entry (None if nothing changes)."""
        self._name_errors.clear()  # the cache holds the names of one group only
        offsets = dict(entry.offsets)
        outcomes = {tp: self._decide_one(entry, tp, change, offsets) for tp, change in edit.changes.items()}
        if edit.whole:
            written_partitions = [tp for tp, outcome in outcomes.items() if outcome.status is EditStatus.WRITTEN]
            outcomes |= stopped(edit.group, outcomes, written_partitions)
        written = any(outcome.status is EditStatus.WRITTEN for outcome in outcomes.values())
        after = GroupOffsets(edit.group, offsets, entry.errors, entry.error) if written else None
        return GroupEditResult(edit.group, outcomes, atomic=True, how=HOW), after

    def _decide_one(
        self, entry: GroupOffsets, tp: TopicPartition, change: Change, offsets: dict[TopicPartition, Committed]
    ) -> ChangeOutcome:
        if unreadable := entry.error or entry.errors.get(tp):
            return ChangeOutcome(EditStatus.FAILED, None, unreadable)
        current: Offset = entry.offsets.get(tp, ABSENT)
        if change.after is not None and (error := self._value_error(entry.name, tp, change.after)):
            return ChangeOutcome(EditStatus.FAILED, current, error)
        if outcome := evaluate(entry.name, tp, change, current, self._capabilities):
            return outcome
        if change.after is None:
            del offsets[tp]
        else:
            offsets[tp] = self._storable(change.after)
        return ChangeOutcome(EditStatus.WRITTEN, current)

    def _storable(self, value: OffsetAndMetadata) -> Committed:
        can = self._capabilities
        return Committed(
            value.offset,
            value.metadata if can.metadata else "",
            value.leader_epoch if can.leader_epoch else None,
            value.commit_timestamp if can.commit_timestamp else None,
        )

    def _value_error(self, group: str, tp: TopicPartition, after: OffsetAndMetadata) -> OffsetMgrError | None:
        """Returns the error of an offset, partition or name that the format cannot contain; None if the format can
        contain all of them."""
        where = f"group {group}, {tp}"
        if not tp.topic:
            return UsageError(where, "the topic has no name")
        if not is_valid_offset(after.offset):
            return UsageError(where, f"{after.offset} is not an offset")
        if not (0 <= tp.partition <= MAX_PARTITION or isinstance(tp.partition, BrokerPartition)):
            return UsageError(where, f"{tp.partition} is not the number of a partition")
        if not self._capabilities.partitions.includes(tp):
            return UsageError(where, "is a byte position of Kafka 0.7, which this format cannot tell from an offset")
        return self._name_error(group, tp.topic)

    def _name_error(self, group: str, topic: str) -> OffsetMgrError | None:
        """Returns an error if the format cannot contain the group's or the topic's name; otherwise None. To find this
        out, the method encodes both names and discards the result."""
        if (group, topic) not in self._name_errors:
            probe = GroupOffsets(group, {TopicPartition(topic, 0): Committed(0)})
            try:
                self._form.write(io.BytesIO(), SnapshotHeader("", 0), [probe])
                self._name_errors[group, topic] = None
            except OffsetMgrError as error:
                self._name_errors[group, topic] = error
        return self._name_errors[group, topic]


LOCK_TIMEOUT_MS: Final = 10_000
_IN_MEMORY_BYTES: Final = 4 << 20


def write_snapshot(
    path: str | os.PathLike[str],
    header: SnapshotHeader,
    groups: Iterable[GroupOffsets],
    *,
    format: str | Format | None = None,
    group: str | None = None,
    overwrite: bool = False,
    keep_errors: bool = False,
    on_error: Callable[[OffsetMgrError], None] | None = None,
) -> SnapshotReport:
    """Writes a snapshot file atomically, with a few groups in memory at a time.

    ``format`` and ``group`` are as in ``file:PATH?format=...&group=...``; ``format`` may also be the format itself. A
    group or partition with a read error ends the call with that error, unless ``keep_errors`` is set and the format
    (Avro) can record the error. An existing file is rejected unless ``overwrite`` is set. If the call fails, an
    existing file stays unchanged.

    With ``on_error``, a group that the format cannot record is left out. The function receives the error of each such
    group, and each recorded error. The call then fails only if no offset could be read.

    Raises `FileFailure`, `UsageError`, `UnsupportedOperation`, and the errors of ``groups``.
    """
    where = Path(path)
    form = format if isinstance(format, Format) else by_name(format_name(str(path), format), group)
    failures: list[OffsetMgrError] = []

    def accepted(report_error: Callable[[OffsetMgrError], None]) -> Iterator[GroupOffsets]:
        for one in groups:
            try:
                if not form.lossless:
                    form.write(io.BytesIO(), header, [one])
            except UnsupportedOperation as error:
                failures.append(error)
                report_error(error)
                continue
            for tp, failure in [*([] if one.error is None else [("", one.error)]), *one.errors.items()]:
                failures.append(failure)
                report_error(OffsetMgrError(f"group {one.name} {tp}".rstrip(), str(failure), failure.hint))
            yield one

    def write(stream: BinaryIO) -> SnapshotReport:
        try:
            report = form.write(stream, header, accepted(on_error) if on_error else groups, keep_errors=keep_errors)
        except UnsupportedOperation as error:
            if type(error) is not UnsupportedOperation:  # an error of the store whose groups are written
                raise
            raise UnsupportedOperation(f"file {path} was not written", error.text, error.hint) from error
        if failures and not report.offsets:
            raise failures[0]
        return replace(report, path=str(path), size=stream.tell())

    if not overwrite and where.exists():  # checked before taking the lock and reading the source
        raise FileFailure(f"file {path}", "exists already", Advice("choose another name, or add {overwrite=True}"))
    with exclusive_writer(where, LOCK_TIMEOUT_MS):
        return replace_file(where, write, overwrite=overwrite)


class SnapshotStore(OffsetStore):
    """``file:PATH[?format=csv|avro|zk|json|spark&group=G&unterminated=accept]``.

    ``group`` is the group to which the offsets belong if the file itself names no group, as in CSV without a group
    column and in Spark's JSON. A read of a missing file fails; an edit creates the file. The constructor raises
    `UsageError` if the format is unknown.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        format: str | None = None,
        group: str | None = None,
        *,
        accept_unterminated: bool = False,
        lock_timeout_ms: int = LOCK_TIMEOUT_MS,
    ) -> None:
        self._accept_unterminated = accept_unterminated
        self._path = Path(path)
        self._name = format_name(str(path), format)
        self._given_format = format
        self._group = group
        self._form = by_name(self._name, group if self._name in ("csv", "spark") else None)
        self._lock_timeout_ms = lock_timeout_ms
        self._opened: _OpenSnapshot | None = None
        self._origin: tuple[Callable[[], LogOrigin], Callable[[], Mapping[str, str]]] | None = None
        """The functions that return the cluster and the topic ids that a new file will record."""

    @property
    def uri(self) -> str:
        accept = "accept" if self._accept_unterminated else None
        given = (("format", self._given_format), ("group", self._group), ("unterminated", accept))
        options = [f"{k}={quote(v, safe='')}" for k, v in given if v]
        return f"file:{quote(str(self._path))}" + ("?" + "&".join(options) if options else "")

    @property
    def capabilities(self) -> Capabilities:
        return self._form.capabilities

    @property
    def header(self) -> SnapshotHeader | None:
        """The header of the file; None if the file's format has no header. Raises the errors of `fetch`."""
        return self._open().reader.header

    def identity(self) -> StoreIdentity:
        """Returns the snapshot's own id. If the format has no such id, returns a hash of the file's content, which
        changes with every edit.

        Raises `FileFailure`, `MalformedData`.
        """
        opened = self._open()
        if opened.reader.header is not None:
            return StoreIdentity("file", opened.reader.header.snapshot_id, "the snapshot's own id")
        digest = hashlib.sha256()
        opened.stream.seek(0)
        while data := opened.stream.read(1 << 20):
            digest.update(data)
        how = "SHA-256 of the file's content, which changes with every edit"
        return StoreIdentity("file", f"sha256:{digest.hexdigest()}", how)

    def log_origin(self) -> LogOrigin:
        """Returns the origin in the snapshot's header. Raises the errors of `fetch`."""
        if not os.path.lexists(self._path):
            return replace(UNNAMED, how=f"{self.uri} is a new file", new=True)
        return origin_of_snapshot(self.header)

    def adopt(self, log_origin: Callable[[], LogOrigin], topic_ids: Callable[[], Mapping[str, str]]) -> None:
        self._origin = log_origin, topic_ids

    def topic_ids(self, topics: Iterable[str] | None = None) -> Mapping[str, str]:
        """Returns the ids of the source's topics at the time of the snapshot. Raises the errors of `fetch`."""
        known = {} if (header := self.header) is None else header.topic_ids
        return known if topics is None else {topic: known[topic] for topic in topics if topic in known}

    # --- reads ---------------------------------------------------------------------------------------

    def groups(self) -> Iterator[str]:
        with self._open() as reader:
            yield from reader.groups()

    def fetch(self, group: str, partitions: Iterable[TopicPartition] | None = None) -> Mapping[TopicPartition, Offset]:
        with self._open() as reader:
            entry = reader.find(group) or GroupOffsets(group, {})
        if entry.error is not None:
            raise entry.error
        requested = [*entry.offsets, *entry.errors] if partitions is None else list(partitions)
        failures = {tp: entry.errors[tp] for tp in requested if tp in entry.errors}
        return fetched(f"fetch of group {group} from {self.uri}", entry.offsets, failures, requested)

    def scan(self, groups: Iterable[str]) -> Iterator[GroupOffsets]:
        with self._open() as reader:
            for group in groups:
                try:
                    entry = reader.find(group) or GroupOffsets(group, {})
                except OffsetMgrError as error:
                    entry = GroupOffsets(group, {}, error=error)
                yield entry

    def close(self) -> None:
        if self._opened is not None:
            self._opened.release()
            self._opened = None

    def _open(self) -> _OpenSnapshot:
        """Returns the open file. Opens and checks the file first if it is not open, or if another process has replaced
        or changed it."""
        what = f"snapshot {self._path}"
        try:
            signature = _signature(self._path.stat())
            if self._opened is not None and self._opened.signature == signature:
                return self._opened
            self.close()
            stream = _seekable(self._path.open("rb"))
            accept = self._accept_unterminated
            try:
                reader = open_snapshot(stream, self._name, self._group, what=what, accept_unterminated=accept)
            except BaseException:
                stream.close()
                raise
        except OSError as error:
            raise FileFailure(what, reason(error)) from error
        self._opened = _OpenSnapshot(reader, stream, signature)
        return self._opened

    # --- writes --------------------------------------------------------------------------------------

    def edit(self, edits: Iterable[GroupEdit]) -> Iterator[GroupEditResult]:
        """Works as `OffsetStore.edit`. All edits of one call are written together, in one replacement of the file.

        Raises `FileFailure` if the file cannot be written and `MalformedData` if the file cannot be read. In both
        cases, no edit of this call is written.
        """
        with SpooledTemporaryFile(_IN_MEMORY_BYTES) as results, SpooledTemporaryFile(_IN_MEMORY_BYTES) as entries:
            with exclusive_writer(self._path, self._lock_timeout_ms):
                count = self._edit_locked(edits, results, entries)
            results.seek(0)
            for _ in range(count):
                yield pickle.load(results)

    def _edit_locked(self, edits: Iterable[GroupEdit], results: IO[bytes], entries: IO[bytes]) -> int:
        """Writes the result of each edit to ``results`` and the new entry of its group to ``entries``, then rewrites
        the file. Returns the number of edits."""
        with self._open_or_new() as reader:
            editor = SnapshotEditor(reader.format, self.capabilities)
            newest: dict[str, int] = {}
            count = 0
            for edit in edits:
                if edit.group in newest:
                    entry = _read_entry(entries, newest[edit.group])
                else:
                    entry = reader.find(edit.group) or GroupOffsets(edit.group, {})
                result, after = editor.decide(entry, edit)
                pickle.dump(result, results, pickle.HIGHEST_PROTOCOL)
                if after is not None:
                    newest[edit.group] = entries.seek(0, io.SEEK_END)
                    pickle.dump(after, entries, pickle.HIGHEST_PROTOCOL)
                count += 1
            if newest:
                self._rewrite(reader, newest, entries)
        return count

    def _open_or_new(self) -> _OpenSnapshot:
        if os.path.lexists(self._path):
            if self._path.exists() and not self._path.is_file():
                raise FileFailure(f"snapshot {self._path}", "is a pipe or a device, which can only be read")
            return self._open()
        return _OpenSnapshot(LoadedReader(self._form, self._new_header()), io.BytesIO(), ())

    def _new_header(self) -> SnapshotHeader:
        header = SnapshotHeader.new(self.uri, "file")
        if self._origin is None:
            return header
        log_origin, topic_ids = self._origin
        return with_origin(header, log_origin(), topic_ids())

    def _rewrite(self, reader: SnapshotReader, newest: dict[str, int], entries: IO[bytes]) -> None:
        def merged() -> Iterator[GroupOffsets]:
            for entry in reader.read():
                position = newest.pop(entry.name, None)
                yield entry if position is None else _read_entry(entries, position)
            for position in newest.values():
                yield _read_entry(entries, position)

        kept = (entry for entry in merged() if entry.offsets or entry.errors or entry.error)
        header = reader.header or self._new_header()
        form = reader.format
        replace_file(self._path, lambda stream: form.write(stream, header, kept, keep_errors=True), overwrite=True)


def _read_entry(entries: IO[bytes], position: int) -> GroupOffsets:
    entries.seek(position)
    entry: GroupOffsets = pickle.load(entries)
    return entry


class _OpenSnapshot:
    """An open snapshot file. Its store and its readers use it; it is closed after the last of them has released it."""

    def __init__(self, reader: SnapshotReader, stream: BinaryIO, signature: tuple[int, ...]) -> None:
        self.reader = reader
        self.stream = stream
        self.signature = signature
        self._users = 1

    def __enter__(self) -> SnapshotReader:
        self._users += 1
        return self.reader

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        self._users -= 1
        if not self._users:
            self.stream.close()


def _seekable(stream: BinaryIO) -> BinaryIO:
    """Returns the stream, or a temporary copy of a stream that can be read only once, for example a pipe."""
    if stream.seekable():
        return stream
    copy = TemporaryFile()  # noqa: SIM115 - closed as the stream would be
    try:
        with stream:
            shutil.copyfileobj(stream, copy)
    except BaseException:
        copy.close()
        raise
    return copy


def _signature(status: os.stat_result) -> tuple[int, ...]:
    """Returns a value that changes when the file is replaced or changed. For a pipe, the value never changes, because
    the pipe's content was copied and cannot be read again."""
    if not stat.S_ISREG(status.st_mode):
        return (status.st_dev, status.st_ino)
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
