"""Reads and repairs Kafka's logs on disk, without a broker: segment files, and the directories that hold them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import FileFailure, LimitExceeded, OffsetMgrError, UsageError
from offsetmgr.core.plurals import count_of
from offsetmgr.core.selection import (
    ALL_GROUPS,
    ALL_TOPICS,
    GroupsArgument,
    GroupSelection,
    TopicsArgument,
    TopicSelection,
    accept_names,
)
from offsetmgr.records.json_values import ValueFormat as ValueFormat

if TYPE_CHECKING:
    from offsetmgr.app.connections import Connections
    from offsetmgr.app.edits import PlannedEdit
    from offsetmgr.app.ui import Ui
    from offsetmgr.core.log_origin import OffsetTranslation
    from offsetmgr.groups.operation_log import OperationProgress
    from offsetmgr.segments.committed_offsets import SavedGroup as SavedGroup
    from offsetmgr.segments.message_scan import DumpedEntry, DumpedMessage, OnError
    from offsetmgr.segments.repair import RecoveredLog, Verification
    from offsetmgr.snapshots.base import SnapshotReport

DEFAULT_RETENTION_MINUTES: Final = 7 * 24 * 60
"""The default of ``offsets.retention.minutes`` in brokers since Kafka 2.0."""
_MIB: Final = 1024 * 1024
_MINUTE_MS: Final = 60_000


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


def dump(
    ui: Ui,
    paths: Iterable[Path],
    topics: TopicSelection = ALL_TOPICS,
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

    from offsetmgr.segments.compression import MAX_DECOMPRESSED_BYTES
    from offsetmgr.segments.entries import MAX_ENTRY_BYTES
    from offsetmgr.segments.message_scan import MessageFilter, dumped_entries, dumped_messages, logs_under

    options = options or DumpOptions()
    limit = options.max_batch_bytes
    selected = MessageFilter(*options[:6], limit or MAX_DECOMPRESSED_BYTES, max(limit or 0, MAX_ENTRY_BYTES))
    logs = logs_under(paths, topics, failed)
    found: Iterator[DumpedMessage | DumpedEntry] = (
        dumped_entries(logs, selected, failed) if entries else dumped_messages(logs, selected, options.decode, failed)
    )
    return islice(ui.progress(found, "reading"), max_messages)


def verify(ui: Ui, paths: Sequence[Path]) -> Verification:
    """Checks that every entry of every segment is complete, and has the right checksum and a plausible offset. Writes
    nothing.

    The paths are log files, directories of partitions, and brokers' log directories. Raises `UsageError` for a path
    without a log.
    """
    from offsetmgr.segments.broker_lock import Use, detect_broker
    from offsetmgr.segments.repair import Verification

    found = Verification(paths, ui.meter("MiB", _MIB))
    for text in dict.fromkeys(str(one) for one in map(detect_broker, paths) if one.use is Use.RUNNING):
        ui.note(f"{text}: an incomplete write may look like a missing tail")
    return found


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
    repair = LogRepair(to, keep, errors, strict=strict)
    logs, older = repair.examine(paths, ui.meter("MiB", _MIB))
    if older:
        ui.note(f"{count_of(older, 'segment')} before the recovery points not checked; log verify checks all")
    needed = [one for one in logs if one.position is not None and (to is not None or one.cut)]
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

    groups: GroupsArgument = ALL_GROUPS
    topics: TopicSelection | TopicsArgument = ALL_TOPICS
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
    from offsetmgr.groups.disk_recovery import Expiry, RecoveredOffsets, RecoveryRun, find_topic_directories
    from offsetmgr.segments.parallel import processors
    from offsetmgr.segments.partition import is_directory
    from offsetmgr.stores.uri import parse_uri

    options = options or SaveOptions()
    target = None if to is None else parse_uri(to)
    for directory in directories:
        if not (there := is_directory(directory)):
            raise UsageError(f"directory {directory}", "does not exist" if there is None else "is a file")
    sources = find_topic_directories(directories, options.offsets_topic)
    groups, topics = GroupSelection.of(options.groups), TopicSelection.of(options.topics)
    ui, at = connections.ui, options.expired_at
    expiry = None if at is None else Expiry(at, options.retention_minutes * _MINUTE_MS)
    run = RecoveryRun(ui.note, on_error, ui.meter("reading MiB", _MIB), options.processes or processors())
    saved = RecoveredOffsets(sources, run, groups, topics, expiry)
    finish = partial(saved.finish, target.kind if target else "")
    if target is None:
        return SavedOffsets(finish, saved.groups())
    if target.kind == "file":
        report = saved.write_file(target.address, target.options, overwrite=options.overwrite)
        return SavedOffsets(finish, report=report)
    from offsetmgr.app.edits import PlannedEdit
    from offsetmgr.groups.edits import plan_import

    store = connections.store(to)
    crossing = connections.check_crossing("log offsets", sources, store, options.translate)
    found = saved.offsets(errors=False)
    plans = plan_import(store, found, allow_rewind=options.allow_rewind, crossing=crossing)
    return SavedOffsets(finish, edit=PlannedEdit(connections, "log offsets", store, plans, to))


accept_names(globals())
