"""x"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from offsetmgr.cli.connect_flags import ConnectFlags, connected
from offsetmgr.cli.errors import FAILED, fail_if, report_and_exit_code
from offsetmgr.cli.options import AllowRewind, GroupFilter, Overwrite, TopicsOption, TranslateOption, opt
from offsetmgr.cli.render import GROUP_PARTITION, Column, Meter, note, write_rows
from offsetmgr.cli.terminal import EditFlags
from offsetmgr.core.errors import OffsetMgrError, UsageError
from offsetmgr.core.plurals import count_of

if TYPE_CHECKING:
    from offsetmgr.core.model import TopicPartition
    from offsetmgr.core.offset_store import GroupOffsets
    from offsetmgr.core.selection import GroupSelection, TopicSelection
    from offsetmgr.groups.disk_layout import TopicDirectories
    from offsetmgr.groups.disk_recovery import Expiry
    from offsetmgr.segments.committed_offsets import SavedGroup
    from offsetmgr.stores.scheme import StoreUri


app = typer.Typer()

_ROWS: Final = (
    *GROUP_PARTITION,
    Column("state", detail=True),
    Column("offset", right=True),
    Column("metadata", optional=True),
    Column("leader_epoch", right=True, optional=True, title="EPOCH"),
    Column("commit_timestamp", optional=True, title="COMMITTED-AT", time=True),
    Column("expire_timestamp", optional=True, title="EXPIRES-AT", time=True),
    Column("log_offset", right=True, detail=True),
)
_MIB: Final = 1024 * 1024
_MINUTE_MS: Final = 60_000
_DEFAULT_RETENTION_MINUTES: Final = 7 * 24 * 60
"""The default of ``offsets.retention.minutes`` in brokers since Kafka 2.0."""
_DEFAULT_PARTITIONS: Final = 50
"""The default number of partitions of ``__consumer_offsets`` (``offsets.topic.num.partitions`` of the broker)."""

Dirs = Annotated[
    list[Path],
    typer.Argument(metavar="DIR...", help="Brokers' log dirs (log.dirs), or partitions' directories in them."),
]
ExportTarget = Annotated[
    str | None,
    opt(
        "--to",
        "URI",
        "Target: a new file:PATH (.avro, .csv, .zk, .json), which is written even without --execute; or a store.",
    ),
]


@app.command("offsets")
@connected
def offsets(
    connect: ConnectFlags,
    dirs: Dirs,
    to: ExportTarget = None,
    *,
    groups: GroupFilter,
    topic: TopicsOption = None,
    offsets_topic: Annotated[
        str,
        opt("--offsets-topic", "NAME", "The offsets topic, such as an offset manager's."),
    ] = "__consumer_offsets",
    expired_at: Annotated[
        str | None,
        opt(
            "--expired-at",
            "TIME",
            "Leave out offsets that a broker would have expired by this time (YYYY-MM-DDTHH:mm:SS, UTC).",
        ),
    ] = None,
    retention_minutes: Annotated[
        int | None,
        opt(
            "--retention-minutes",
            "N",
            f"With --expired-at: the cluster's offsets.retention.minutes ({_DEFAULT_RETENTION_MINUTES}).",
            min=1,
        ),
    ] = None,
    processes: Annotated[
        int | None,
        opt("--processes", "N", "Number of partitions read in parallel (default: the number of processors).", min=1),
    ] = None,
    overwrite: Overwrite = False,
    translate: TranslateOption = None,
    allow_rewind: AllowRewind = False,
    flags: EditFlags,
) -> None:
    """Save the latest committed offsets of each group from the disks of a lost cluster, without a broker.

    Without --to the command prints them. If several brokers have replicas of a partition, the command reads the replica
    with the latest leader epoch, or the longest of several such replicas. It ignores a damaged tail, as a broker's
    recovery would. If a partition is damaged elsewhere, the command reports an error, reads the other partitions, and
    exits with code 1. It leaves out the offsets of unfinished transactions.
    """
    from offsetmgr.core.durations import parse_datetime
    from offsetmgr.core.selection import TopicSelection
    from offsetmgr.groups.disk_layout import find_topic_directories
    from offsetmgr.groups.disk_recovery import Expiry
    from offsetmgr.segments.parallel import processors
    from offsetmgr.segments.partition import is_directory
    from offsetmgr.stores.uri import parse_uri

    given = connect.flags
    if given.store or given.bootstrap_server or given.zookeeper:
        raise UsageError("log offsets", "reads no server", "name the target of the offsets with --to URI")
    target = None if to is None else parse_uri(to)
    edits = {
        "--translate": translate is not None,
        "--allow-rewind": allow_rewind,
        "--execute": flags.execute,
        "--yes": flags.yes,
        "--before-image": flags.before_image is not None,
    }
    _reject_inapplicable(target, {"--overwrite": overwrite}, edits)
    if retention_minutes is not None and expired_at is None:
        raise UsageError("--retention-minutes", "has no effect without --expired-at", "add --expired-at")
    for directory in dirs:
        if not (there := is_directory(directory)):
            raise UsageError(f"directory {directory}", "does not exist" if there is None else "is a file")
    expiry = None
    if expired_at is not None:
        retention_ms = (retention_minutes or _DEFAULT_RETENTION_MINUTES) * _MINUTE_MS
        expiry = Expiry(parse_datetime(expired_at, "--expired-at"), retention_ms)
    sources = find_topic_directories(dirs, offsets_topic)
    saved = _SavedOffsets(
        sources, groups.selection(), TopicSelection.parse(topic or []), processes or processors(), expiry
    )
    failed = 0
    if target is None:
        write_rows(_ROWS, saved.rows(), flags.output)
    elif target.kind == "file":
        _write_file(target, saved, overwrite=overwrite)
    else:
        from offsetmgr.cli.edit_command import cross_cluster_check
        from offsetmgr.groups.disk_layout import DiskLogs
        from offsetmgr.groups.edits import plan_import

        store = connect.store(to)
        crossing = cross_cluster_check("log offsets", DiskLogs(sources), store, translate)
        edit = connect.edit("log offsets", flags, store, connect.group_describer_for_edit(to))
        proposals = plan_import(store, saved.offsets(errors=False), allow_rewind=allow_rewind, crossing=crossing)
        failed = edit.run(proposals)
    fail_if(saved.finish(target) or failed)


def _reject_inapplicable(target: StoreUri | None, of_files: dict[str, bool], of_stores: dict[str, bool]) -> None:
    """Raises `UsageError` if a given flag has no effect for this kind of target."""
    if target is None:
        inapplicable, why = {**of_files, **of_stores}, "nothing is written"
        hint = "name the target of the offsets with --to URI"
    elif target.kind == "file":
        inapplicable, why = of_stores, f"needs a store as the target: {target.address} is a file"
        hint = "leave it out: the file is written without --execute; offsets import loads it into a store"
    else:
        inapplicable, why = of_files, f"is for a file, and the target is of kind {target.kind}"
        hint = "leave it out; --allow-rewind allows offsets to go backwards"
    for flag in (flag for flag, given in inapplicable.items() if given):
        raise UsageError(flag, why, hint)


def _write_file(target: StoreUri, saved: _SavedOffsets, *, overwrite: bool) -> None:
    """Writes a snapshot, as ``offsets export`` does. The snapshot includes read errors if the format of the file
    supports errors."""
    from offsetmgr.core.version import __version__
    from offsetmgr.groups.disk_layout import DiskLogs, cluster_id
    from offsetmgr.segments.broker_lock import require_unused_parent
    from offsetmgr.snapshots.base import SnapshotHeader
    from offsetmgr.snapshots.registry import by_name, format_name
    from offsetmgr.stores.cross_cluster_check import with_origin
    from offsetmgr.stores.snapshot import write_snapshot

    name = format_name(target.address, target.options.get("format"))
    group = target.options.get("group")
    source = ",".join(str(path.absolute()) for path in saved.sources.log_dirs)
    header = SnapshotHeader.new(f"log:{source}", "kafka", cluster_id(saved.sources), f"offsetmgr {__version__}")
    header = with_origin(header, DiskLogs(saved.sources).log_origin(), {})
    keeps = by_name(name, group).capabilities.errors
    try:
        with require_unused_parent(Path(target.address), "name another file with --to"):
            done = write_snapshot(
                target.address,
                header,
                _require_any(saved.offsets(errors=keeps)),
                format=name,
                group=group,
                overwrite=overwrite,
                keep_errors=keeps,
            )
    except _NothingFound:
        saved.report_empty(f"file {target.address} was not written")
        return
    note(f"saved {count_of(done.offsets, 'offset')} of {count_of(done.groups, 'group')} to {target.address}")
    for lost in done.lost:
        note(f"not in the file, because its format cannot hold it: {lost}")


class _NothingFound(OffsetMgrError):
    """Raised if there are no offsets to write, so that the command neither creates an empty file nor replaces an
    existing file."""


def _require_any(groups: Iterator[GroupOffsets]) -> Iterator[GroupOffsets]:
    first = next(groups, None)
    if first is None:
        raise _NothingFound("file", "there is nothing to write")
    yield first
    yield from groups


class _SavedOffsets:
    """The recovered offsets. The class is also the `RecoveryListener`, and prints the progress, notes and errors of the
    recovery."""

    def __init__(
        self,
        sources: TopicDirectories,
        groups: GroupSelection,
        topics: TopicSelection,
        processes: int,
        expiry: Expiry | None,
    ) -> None:
        self.sources = sources
        self._where = ", ".join(map(str, sources.log_dirs))
        self._groups = groups
        self._topics = topics
        self._processes = processes
        self._expiry = expiry
        self._failed = False
        self._seen: set[str] = set()
        self._left_out: set[str] = set()
        self._meter = Meter("reading MiB", _MIB)

    def groups(self) -> Iterator[SavedGroup]:
        """Yields the selected groups with their selected offsets and errors. Also prints the errors."""
        from offsetmgr.groups.disk_recovery import saved_groups

        found = saved_groups(self.sources, self, processes=self._processes, expiry=self._expiry)
        for one in found:
            if not self._groups.matches(one.group):
                self._left_out.add(one.group)
                continue
            group = self._selected(one)
            for tp, error in group.errors.items():
                self.error(OffsetMgrError(f"group {group.group}, {tp}", str(error), error.hint))
            if group.offsets or group.errors:
                self._seen.add(group.group)
                yield group
        self._meter.clear()

    def rows(self) -> Iterator[tuple[Any, ...]]:
        for group in self.groups():
            name = group.group
            for tp in sorted({*group.offsets, *group.errors}):
                if (one := group.offsets.get(tp)) is None:
                    yield (name, tp[0], tp[1], "unreadable", *[None] * 6)
                    continue
                offset, metadata, epoch, committed, expires, at = one
                yield (name, tp[0], tp[1], "committed", offset, metadata, epoch, committed, expires, at)

    def offsets(self, *, errors: bool = True) -> Iterator[GroupOffsets]:
        """Yields the groups in the form that stores accept. If ``errors`` is false, the errors of unreadable offsets
        are printed but are not in the result."""
        from offsetmgr.groups.disk_recovery import group_offsets

        for group in self.groups():
            if errors or group.offsets:
                found = group_offsets(group)
                yield found if errors else replace(found, errors={})

    def finish(self, target: StoreUri | None) -> int:
        """Reports each group that --group names literally if the group has no committed offsets. Also reports if the
        whole result is empty. Returns the exit code."""
        from offsetmgr.core.errors import GroupNotFound
        from offsetmgr.groups.disk_layout import CONSUMER_OFFSETS

        for name in sorted(self._groups.names - self._seen):
            self.error(GroupNotFound(f"group {name!r}", f"has no committed offsets in {self._where}"))
        for name in sorted(self._groups.excluded_names - self._left_out):
            self.error(GroupNotFound(f"excluded group {name!r}", f"has no committed offsets in {self._where}"))
        count = len(self.sources.partitions)
        if (
            target is not None
            and self.sources.topic == CONSUMER_OFFSETS
            and not self.sources.named
            and count != _DEFAULT_PARTITIONS
        ):
            note(f"{CONSUMER_OFFSETS}: {count_of(count, 'partition')} read; the default is {_DEFAULT_PARTITIONS}")
        if not self._seen and target is not None and target.kind != "file":
            self.report_empty("nothing was written")
        elif not self._seen and not self._failed:
            note(f"no committed offsets in {self._where}")
        return FAILED if self._failed else 0

    def report_empty(self, what: str) -> None:
        """Reports that no offsets were found. The command fails in this case."""
        hint = "are these the right disks, --offsets-topic, --group and --topic?"
        self.error(OffsetMgrError(what, f"none of the selected offsets can be read in {self._where}", hint))

    def _selected(self, group: SavedGroup) -> SavedGroup:
        if not self._topics.patterns:
            return group

        def selected(tp: TopicPartition) -> bool:
            return self._topics.matches(tp)

        offsets = {tp: one for tp, one in group.offsets.items() if selected(tp)}
        return replace(group, offsets=offsets, errors={tp: e for tp, e in group.errors.items() if selected(tp)})

    # --- Listener ----------------------------------------------------------------------------------

    def note(self, text: str) -> None:
        self._meter.clear()
        note(text)

    def error(self, error: OffsetMgrError) -> None:
        """Prints the error at once, so that the user sees it before the prompt."""
        self._meter.clear()
        self._failed = True
        report_and_exit_code([error])

    def on_progress(self, done: int, total: int) -> None:
        self._meter.show(done, total)
