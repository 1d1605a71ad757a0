"""Reads and repairs Kafka's logs on disk, without a broker: segment files, and the directories that hold them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import CorruptData, FileFailure, GroupNotFound, LimitExceeded, OffsetMgrError, UsageError
from offsetmgr.core.plurals import count_of, raw_json
from offsetmgr.core.selection import GroupSelection, TopicSelection
from offsetmgr.records.json_values import ValueDecoder
from offsetmgr.records.json_values import ValueFormat as ValueFormat

if TYPE_CHECKING:
    from offsetmgr.app.connections import Connections
    from offsetmgr.app.edits import PlannedEdit
    from offsetmgr.app.ui import Ui
    from offsetmgr.core.log_origin import OffsetTranslation
    from offsetmgr.core.model import TopicPartition
    from offsetmgr.core.offset_store import GroupOffsets
    from offsetmgr.groups.disk_recovery import TopicDirectories
    from offsetmgr.groups.operation_log import OperationProgress
    from offsetmgr.segments.batch_reader import Record
    from offsetmgr.segments.committed_offsets import SavedGroup as SavedGroup
    from offsetmgr.segments.entries import EntryHeader, LogEntry
    from offsetmgr.segments.message_scan import LogMessage, MessageFilter, OnError
    from offsetmgr.segments.repair import ExaminedSegment, RecoveredLog
    from offsetmgr.segments.segment import Segment
    from offsetmgr.segments.transactions import Marker
    from offsetmgr.stores.snapshot import SnapshotReport

DEFAULT_RETENTION_MINUTES: Final = 7 * 24 * 60
"""The default of ``offsets.retention.minutes`` in brokers since Kafka 2.0."""
_DEFAULT_PARTITIONS: Final = 50
"""The default number of partitions of ``__consumer_offsets`` (``offsets.topic.num.partitions`` of the broker)."""
_MIB: Final = 1024 * 1024
_MINUTE_MS: Final = 60_000
_ALL_TOPICS: Final = TopicSelection()


def _raise(error: OffsetMgrError) -> NoReturn:
    raise error


class DumpOptions(NamedTuple):
    """The messages that `dump` yields, and their form.

    ``offset`` and ``from_datetime`` are inclusive, ``to_offset`` and ``to_datetime`` exclusive; times are in
    milliseconds since 1970. ``committed`` leaves out the messages of open and aborted transactions. ``controls`` adds
    control records. ``max_batch_bytes`` limits the decompressed size of a batch (default: 128 MiB).
    """

    offset: int = 0
    to_offset: int | None = None
    from_datetime: int | None = None
    to_datetime: int | None = None
    committed: bool = False
    controls: bool = False
    decode: ValueFormat = ValueFormat.AUTO
    max_batch_bytes: int | None = None

    def _filter(self) -> MessageFilter:
        from offsetmgr.segments.compression import MAX_DECOMPRESSED_BYTES
        from offsetmgr.segments.entries import MAX_ENTRY_BYTES
        from offsetmgr.segments.message_scan import MessageFilter

        limit = self.max_batch_bytes or MAX_DECOMPRESSED_BYTES
        largest = max(self.max_batch_bytes or 0, MAX_ENTRY_BYTES)
        return MessageFilter(*self[:6], limit, largest)


class DumpedMessage(NamedTuple):
    """A message of a log. ``topic`` and ``partition`` are None if the directory is not that of a partition. ``key``,
    ``value`` and the values of ``headers`` are JSON values. ``control`` is the kind of a control record."""

    topic: str | None
    partition: int | None
    message: LogMessage
    key: Any
    value: Any
    headers: list[tuple[str, Any]]
    control: str | None


class DumpedEntry(NamedTuple):
    """An entry of a log file: a batch, or a message of an older format."""

    segment: Segment
    entry: LogEntry
    header: EntryHeader


def dump(
    ui: Ui,
    paths: Iterable[Path],
    topics: TopicSelection = _ALL_TOPICS,
    options: DumpOptions | None = None,
    *,
    entries: bool = False,
    max_messages: int | None = None,
    on_error: OnError = _raise,
) -> Iterator[DumpedMessage | DumpedEntry]:
    """Yields the messages in log files of every format since Kafka 0.8, or with ``entries`` the entries that hold them.

    Each path is a segment (.log), a partition's directory, or a broker's log directory. The broker may be running.
    ``on_error`` receives the error of each path, file and entry that cannot be read; the others are still read.
    """

    def failed(error: OffsetMgrError) -> None:
        hint = Advice("{max_batch_bytes} allows more, if the writer really wrote that much")
        on_error(LimitExceeded(error.what, error.why, hint) if isinstance(error, LimitExceeded) else error)

    options = options or DumpOptions()
    logs = _dumped_logs(paths, topics, failed)
    found: Iterator[DumpedMessage | DumpedEntry] = (_entries if entries else _messages)(logs, options, failed)
    return islice(ui.progress(found, "reading"), max_messages)


def _dumped_logs(
    paths: Iterable[Path], topics: TopicSelection, failed: OnError
) -> Iterator[tuple[TopicPartition | None, Sequence[Segment]]]:
    """Yields the segments of each log under the paths. The partition is None for a file in a directory that is not that
    of a partition."""
    from offsetmgr.segments.partition import (
        has_partition_dir_name,
        is_directory,
        partition_of,
        partitions_in,
        segments_in,
    )
    from offsetmgr.segments.segment import Segment

    def of_path(path: Path) -> Iterator[tuple[TopicPartition | None, Sequence[Segment]]]:
        path_is_directory = is_directory(path)
        if path_is_directory is None:
            raise FileFailure(f"cannot read {path}", "there is no such file or directory")
        if not path_is_directory:
            named = None
            with suppress(OffsetMgrError):
                named = partition_of(path.parent)
            yield named, (Segment.of(path),)
            return
        directories = list(partitions_in(path))
        if not directories and not has_partition_dir_name(path):
            raise CorruptData(str(path), "it is not a partition directory and contains none", "as in orders-0")
        for directory in directories or [path]:
            if topics.matches(partition := partition_of(directory)):
                try:
                    yield partition, segments_in(directory)
                except OffsetMgrError as error:
                    failed(error)

    for path in paths:
        try:
            yield from of_path(path)
        except OffsetMgrError as error:
            failed(error)


def _messages(
    logs: Iterable[tuple[TopicPartition | None, Sequence[Segment]]], options: DumpOptions, failed: OnError
) -> Iterator[DumpedMessage]:
    from offsetmgr.segments.message_scan import messages
    from offsetmgr.segments.transactions import marker_of

    message_filter = options._filter()
    for partition, segments in logs:
        topic, number = partition or (None, None)
        decoder = ValueDecoder(options.decode, topic)
        for found in messages(segments, message_filter, failed):
            record, control = found.record, None
            if found.header.control:
                try:
                    marker = marker_of(record)
                except OffsetMgrError as error:
                    failed(error)
                    continue
                key, value, control = None, _control_value(record, marker), marker.name
            else:
                key, value = decoder.json(record.key, record.value)
            headers = [(name, raw_json(content)) for name, content in record.headers] if record.headers else []
            yield DumpedMessage(topic, number, found, key, value, headers, control)


def _control_value(record: Record, marker: Marker) -> dict[str, Any] | None:
    """Returns the fields of a control record except its kind."""
    if marker.coordinator_epoch is not None:
        return {"coordinator_epoch": marker.coordinator_epoch}
    return None if record.value is None else {"hex": record.value.hex()}


def _entries(
    logs: Iterable[tuple[TopicPartition | None, Sequence[Segment]]], options: DumpOptions, failed: OnError
) -> Iterator[DumpedEntry]:
    from offsetmgr.segments.message_scan import entries_of

    message_filter = options._filter()
    end = message_filter.end
    for segment in (segment for _, segments in logs for segment in segments):
        for entry in entries_of(segment, message_filter, failed):
            header = entry.header()
            if header.last_offset >= message_filter.first and (end is None or entry.offset < end):
                yield DumpedEntry(segment, entry, header)


class Verification:
    """The check of ``segments`` segments. The iteration checks them, and yields the results. After it, ``unsound`` is
    the number of segments that are not sound, and ``errors`` has the errors of segments and directories that cannot be
    read, and of files with which a broker does not start."""

    def __init__(self, ui: Ui, paths: Iterable[Path]) -> None:
        self.errors: list[OffsetMgrError] = []
        self.unsound = 0
        self._ui = ui
        self._found = [segment for path in paths for _, found in _sources(path, self.errors) for segment in found]
        self.segments = len(self._found)
        self._offline = {Path(error.what).parent for error in self.errors}

    def __iter__(self) -> Iterator[ExaminedSegment]:
        from offsetmgr.segments.recovery import RecoveryOutcome
        from offsetmgr.segments.repair import examine_in_steps

        def steps() -> Iterator[ExaminedSegment | None]:
            for segment in self._found:
                try:
                    yield from examine_in_steps(segment)
                except OffsetMgrError as error:
                    self.errors.append(error)

        for seen in self._ui.progress(steps(), "MiB", _mib_in(self._found)):
            if seen is not None:
                self.unsound += seen.result.state != "sound"
                offline = seen.segment.log.parent in self._offline
                unknown = replace(seen.result, outcome=RecoveryOutcome.UNKNOWN) if offline else seen.result
                yield replace(seen, result=unknown)


def verify(ui: Ui, paths: Sequence[Path]) -> Verification:
    """Checks that every entry of every segment is complete, and has the right checksum and a plausible offset. Writes
    nothing.

    The paths are log files, directories of partitions, and brokers' log directories. Raises `UsageError` for a path
    without a log.
    """
    from offsetmgr.segments.broker_lock import Use, detect_broker

    found = Verification(ui, paths)
    for text in dict.fromkeys(str(one) for one in map(detect_broker, paths) if one.use is Use.RUNNING):
        ui.note(f"{text}: an incomplete write may look like a missing tail")
    return found


def _sources(path: Path, errors: list[OffsetMgrError]) -> Iterator[tuple[Path, tuple[Segment, ...]]]:
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
    directories = [path] if segments_in(path) else list(partitions_in(path))
    if not directories:
        raise UsageError(f"directory {path}", "holds no log: neither segments nor directories of partitions")
    for directory in directories:
        try:
            if segments := segments_in(directory):
                errors += unusable_files(directory)
                yield directory, segments
        except OffsetMgrError as error:
            errors.append(error)


def _mib_in(segments: Iterable[Segment]) -> int:
    """The approximate number of progress steps for reading these segments."""

    def size(segment: Segment) -> int:
        with suppress(FileFailure):  # the failure is reported when the segment is read
            return segment.size
        return 0

    return sum(size(segment) // _MIB + 1 for segment in segments)


class Recovery(NamedTuple):
    """The logs of `recover`, and the errors of those that cannot be read or must not be truncated."""

    logs: list[RecoveredLog]
    errors: list[OffsetMgrError]


def recover(
    ui: Ui,
    paths: Iterable[Path],
    to: Path | None,
    *,
    keep: Path | None = None,
    strict: bool = False,
    execute: bool = False,
    reason: str = "",
) -> Recovery:
    """Truncates logs after their last valid entry, as a broker does after a crash: in copies in the directory ``to``,
    or if it is None in place. The removed bytes are first copied to the directory ``keep``, or next to each log.

    Of a partition's directory, checks the segments that a broker would recover, from its recovery point to the newest,
    and removes the segments after a truncated one. ``strict`` also cuts before the first entry whose offset or version
    is in doubt. Without ``execute`` nothing is written. Never writes to logs of a running broker. Raises `UsageError`
    for a path without a log, `FileFailure` if ``keep`` is no directory.
    """
    from offsetmgr.segments.repair import LogRepair

    if keep is not None and not keep.is_dir():
        raise FileFailure(Advice("{keep} {}", keep), "is no directory")
    errors: list[OffsetMgrError] = []
    ends = _examined(ui, paths, errors, strict=strict)
    repair = LogRepair(to, keep, errors, strict=strict)
    logs = [repair.plan(source, end) for source, end in ends]
    needed = [one for one in logs if one.point is not None and (to is not None or one.cut)]
    if execute and needed:
        in_place: AbstractContextManager[OperationProgress | None] = nullcontext()
        if to is None:
            size = sum(one.cut or 0 for one in needed)
            ui.confirm(f"log recover: cut {size:,} bytes from {count_of(len(needed), 'log')} in place?")
            in_place = _recorded(needed, reason)
        with in_place as recorded:
            for one in ui.progress(needed, "logs", len(needed)):
                repair.execute(one, ui.note)
                if recorded is not None:
                    recorded.written += one.action == "cut"
                    recorded.failed += one.action == "failed"
    return Recovery(logs, errors)


def _examined(
    ui: Ui, paths: Iterable[Path], errors: list[OffsetMgrError], *, strict: bool
) -> list[tuple[Path, ExaminedSegment]]:
    """Returns each log file and each partition's directory, with the segment in which the valid data ends."""
    from offsetmgr.segments.repair import scan_in_steps, unflushed

    logs = []
    older = 0
    for source, segments in (found for path in paths for found in _sources(path, errors)):
        recoverable = unflushed(source, segments) if source.is_dir() else segments
        logs.append((source, recoverable))
        older += len(segments) - len(recoverable)

    def steps() -> Iterator[tuple[Path, ExaminedSegment] | None]:
        for source, segments in logs:
            try:
                for segment_end in scan_in_steps(segments, strict=strict):
                    yield None if segment_end is None else (source, segment_end)
            except OffsetMgrError as error:
                errors.append(error)

    found = ui.progress(steps(), "MiB", _mib_in(segment for _, segments in logs for segment in segments))
    ends = [one for one in found if one is not None]
    if older:
        ui.note(f"{count_of(older, 'segment')} before the recovery points not checked; log verify checks all")
    return ends


def _recorded(needed: list[RecoveredLog], reason: str) -> AbstractContextManager[OperationProgress]:
    """Returns a context that records the truncation of logs in the operation log. ``files`` are the copies of the
    removed bytes."""
    from offsetmgr.groups.operation_log import OperationLog, OperationStart

    sources = tuple(str(one.source.absolute()) for one in needed)
    copies = tuple(str(one.copy.absolute()) for one in needed if one.copy is not None)
    return OperationLog().recorded(OperationStart("log recover", sources, (), 0, len(needed), copies, reason=reason))


class SaveOptions(NamedTuple):
    """The offsets that `offsets` reads, and how it writes them.

    ``expired_at`` (milliseconds since 1970) leaves out the offsets that a broker would have expired by this time, with
    the cluster's ``offsets.retention.minutes``. ``processes`` is the number of partitions that are read in parallel
    (default: the number of processors). ``overwrite`` is for a file; ``translate`` and ``allow_rewind`` are for a
    store: see `OffsetAdmin.plan_import`.
    """

    groups: GroupSelection = GroupSelection()
    topics: TopicSelection = _ALL_TOPICS
    offsets_topic: str = "__consumer_offsets"
    expired_at: int | None = None
    retention_minutes: int = DEFAULT_RETENTION_MINUTES
    processes: int | None = None
    overwrite: bool = False
    translate: OffsetTranslation | None = None
    allow_rewind: bool = False


class SavedOffsets(NamedTuple):
    """The result of `offsets`. Without a target, ``groups`` yields the groups. For a file, ``report`` describes it;
    None if there was nothing to write. For a store, ``edit`` is the planned import.

    ``finish`` ends the use: it reports groups that were selected by name and have no offsets."""

    finish: Callable[[], None]
    groups: Iterable[SavedGroup] = ()
    report: SnapshotReport | None = None
    edit: PlannedEdit | None = None


def offsets(
    connections: Connections,
    directories: Sequence[Path],
    to: str | None = None,
    options: SaveOptions | None = None,
    on_error: Callable[[OffsetMgrError], None] = _raise,
) -> SavedOffsets:
    """Reads the latest committed offsets of each group from the disks of a lost cluster, without a broker, and saves
    them in the file or plans an import into the store at the URI ``to``.

    The directories are brokers' log directories, or partitions' directories in them. Of several replicas of a
    partition, reads the one with the latest leader epoch, or the longest of several such replicas. Ignores a damaged
    tail, as a broker's recovery would. Leaves out the offsets of unfinished transactions. ``on_error`` receives the
    error of each partition, group and offset that cannot be read; the others are still read. Raises `UsageError` for a
    path that is no directory or holds no offsets topic, `InvalidUri`, `OtherCluster`.
    """
    from offsetmgr.groups.disk_recovery import find_topic_directories
    from offsetmgr.segments.partition import is_directory
    from offsetmgr.stores.uri import parse_uri

    options = options or SaveOptions()
    target = None if to is None else parse_uri(to)
    for directory in directories:
        if not (there := is_directory(directory)):
            raise UsageError(f"directory {directory}", "does not exist" if there is None else "is a file")
    sources = find_topic_directories(directories, options.offsets_topic)
    saved = _SavedOffsets(connections.ui, sources, options, on_error, target.kind if target else "")
    if target is None:
        return SavedOffsets(saved.finish, saved.groups())
    if target.kind == "file":
        return SavedOffsets(saved.finish, report=_write_file(target.address, target.options, saved))
    from offsetmgr.app.edits import PlannedEdit
    from offsetmgr.groups.edits import plan_import

    store = connections.store(to)
    crossing = connections.check_crossing("log offsets", sources, store, options.translate)
    found = saved.offsets(errors=False)
    plans = plan_import(store, found, allow_rewind=options.allow_rewind, crossing=crossing)
    return SavedOffsets(saved.finish, edit=PlannedEdit(connections, "log offsets", store, plans, to))


class _NothingFound(OffsetMgrError):
    """Raised if there are no offsets to write, so that `offsets` neither creates an empty file nor replaces an existing
    file."""


def _write_file(address: str, uri_options: Mapping[str, str], saved: _SavedOffsets) -> SnapshotReport | None:
    """Writes a snapshot, as ``offsets export`` does. The snapshot includes read errors if the format of the file
    supports errors. Returns None, and reports the error, if there are no offsets."""
    from offsetmgr.core import __version__
    from offsetmgr.segments.broker_lock import require_unused_parent
    from offsetmgr.snapshots.base import SnapshotHeader
    from offsetmgr.snapshots.registry import by_name, format_name
    from offsetmgr.stores.cross_cluster_check import with_origin
    from offsetmgr.stores.snapshot import write_snapshot

    name, group = format_name(address, uri_options.get("format")), uri_options.get("group")
    source = ",".join(str(path.absolute()) for path in saved.sources.log_dirs)
    origin = saved.sources.log_origin()
    header = SnapshotHeader.new(f"log:{source}", "kafka", origin.cluster_id, f"offsetmgr {__version__}")
    header = with_origin(header, origin, {})
    keeps = by_name(name, group).lossless

    def found() -> Iterator[GroupOffsets]:
        yield from saved.offsets(errors=keeps)
        if not saved.seen:
            raise _NothingFound("file", "there is nothing to write")

    try:
        with require_unused_parent(Path(address), Advice("name another file with {to}")):
            return write_snapshot(
                address,
                header,
                found(),
                format=name,
                group=group,
                overwrite=saved.options.overwrite,
                keep_errors=keeps,
            )
    except _NothingFound:
        saved.report_empty(f"file {address} was not written")
        return None


class _SavedOffsets:
    """The recovered offsets. Reports the notes, errors and progress of the recovery."""

    def __init__(
        self,
        ui: Ui,
        sources: TopicDirectories,
        options: SaveOptions,
        on_error: Callable[[OffsetMgrError], None],
        kind: str,
    ) -> None:
        self.sources = sources
        self.options = options
        self.seen: set[str] = set()
        """The groups with selected offsets or errors."""
        self._ui = ui
        self._on_error = on_error
        self._kind = kind
        self._where = ", ".join(map(str, sources.log_dirs))
        self._failed = False
        self._left_out: set[str] = set()

    def error(self, error: OffsetMgrError) -> None:
        """Reports the error at once, so that the user sees it before the prompt."""
        self._failed = True
        self._on_error(error)

    def groups(self) -> Iterator[SavedGroup]:
        """Yields the selected groups with their selected offsets and errors. Also reports the errors."""
        from offsetmgr.groups.disk_recovery import Expiry, RecoveryListener, saved_groups
        from offsetmgr.segments.parallel import processors

        at, selected = self.options.expired_at, self.options.topics.matches
        expiry = None if at is None else Expiry(at, self.options.retention_minutes * _MINUTE_MS)
        listener = RecoveryListener(self._ui.note, self.error, self._ui.meter("reading MiB", _MIB))
        processes = self.options.processes or processors()
        for whole in saved_groups(self.sources, listener, processes=processes, expiry=expiry):
            if not self.options.groups.matches(whole.group):
                self._left_out.add(whole.group)
                continue
            offsets = {tp: one for tp, one in whole.offsets.items() if selected(tp)}
            group = replace(whole, offsets=offsets, errors={tp: e for tp, e in whole.errors.items() if selected(tp)})
            for tp, error in group.errors.items():
                self.error(OffsetMgrError(f"group {group.group}, {tp}", str(error), error.hint))
            if group.offsets or group.errors:
                self.seen.add(group.group)
                yield group

    def offsets(self, *, errors: bool) -> Iterator[GroupOffsets]:
        """Yields the groups in the form that stores accept. If ``errors`` is false, the errors of unreadable offsets
        are reported but are not in the result."""
        from offsetmgr.groups.disk_recovery import group_offsets

        for group in self.groups():
            if errors or group.offsets:
                found = group_offsets(group)
                yield found if errors else replace(found, errors={})

    def finish(self) -> None:
        """Reports each group that is selected or excluded by name if it has no committed offsets. Also reports if the
        whole result is empty."""
        from offsetmgr.groups.disk_recovery import CONSUMER_OFFSETS

        groups = self.options.groups
        for what, names in (
            ("group", groups.names - self.seen),
            ("excluded group", groups.excluded_names - self._left_out),
        ):
            for name in sorted(names):
                self.error(GroupNotFound(f"{what} {name!r}", f"has no committed offsets in {self._where}"))
        count = len(self.sources.partitions)
        whole = self.sources.topic == CONSUMER_OFFSETS and not self.sources.named
        if self._kind and whole and count != _DEFAULT_PARTITIONS:
            self._ui.note(
                f"{CONSUMER_OFFSETS}: {count_of(count, 'partition')} read; the default is {_DEFAULT_PARTITIONS}"
            )
        if not self.seen and self._kind not in ("", "file"):
            self.report_empty("nothing was written")
        elif not self.seen and not self._failed:
            self._ui.note(f"no committed offsets in {self._where}")

    def report_empty(self, what: str) -> None:
        """Reports that no offsets were found."""
        hint = Advice("are these the right disks, {offsets_topic}, {group} and {topic}?")
        self.error(OffsetMgrError(what, f"none of the selected offsets can be read in {self._where}", hint))
