"""``offsetmgr log dump|verify|recover|offsets``: Kafka's logs on disk, without a broker."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from offsetmgr.app import log
from offsetmgr.app.log import DEFAULT_RETENTION_MINUTES, DumpOptions, SaveOptions, ValueFormat
from offsetmgr.app.ui import Ui
from offsetmgr.cli.connect_flags import ConnectFlags, EditFlags, RunFlags, Terminal, command
from offsetmgr.cli.options import (
    AllowRewind,
    FormatOption,
    GroupFilter,
    Overwrite,
    TopicFlags,
    TranslateOption,
    arg,
    command_group,
    flag,
    opt,
    without_connection,
)
from offsetmgr.cli.render import (
    OFFSETS,
    Column,
    Meter,
    OutputFormat,
    fail_if,
    note,
    report_and_exit_code,
    rows_of,
    write_rows,
)
from offsetmgr.core.durations import parse_datetime
from offsetmgr.core.errors import OffsetMgrError, UsageError
from offsetmgr.core.plurals import count_of

if TYPE_CHECKING:
    from offsetmgr.app.log import SavedGroup

app = command_group("Kafka's logs on disk, without a broker: segment files, and the directories that hold them.")

MAX_SHOWN: Final = 100
"""Maximum number of characters of a key or value in a table."""

Paths = Annotated[list[Path], arg("PATH...", "Log files, directories of partitions, brokers' log directories.")]
MESSAGES: Final = (
    Column("topic", optional=True),
    Column("partition", right=True, optional=True),
    Column("offset", right=True, get="message.record.offset"),
    Column("timestamp", time=True, get="message.record.timestamp"),
    Column("timestamp_type", detail=True, get="message.timestamp_type"),
    Column("key", nested=True),
    Column("value", nested=True),
    Column("headers", optional=True, nested=True),
    Column("control", optional=True),
    Column("transactional", detail=True, get="message.header.transactional"),
    Column("producer_id", right=True, optional=True, get="message.header.producer_id"),
    Column("producer_epoch", right=True, detail=True, get="message.header.producer_epoch"),
    Column("sequence", right=True, detail=True, get="message.sequence"),
    Column("leader_epoch", right=True, detail=True, get="message.header.leader_epoch"),
    Column("magic", right=True, detail=True, get="message.header.magic"),
    Column("codec", detail=True, get="message.header.codec_name"),
)
ENTRIES: Final = (
    Column("file", get="segment.log"),
    Column("position", right=True, get="entry.position"),
    Column("size", right=True, get="entry.size"),
    Column("magic", right=True, get="header.magic"),
    Column("base_offset", right=True, get="header.base_offset"),
    Column("last_offset", right=True, get="header.last_offset"),
    Column("records", right=True, get="header.record_count"),
    Column("codec", get="header.codec_name"),
    Column("base_timestamp", time=True, detail=True, get="header.base_timestamp"),
    Column("largest_timestamp", time=True, title="LARGEST TIME", get="header.largest_timestamp"),
    Column("timestamp_type", detail=True, get="header.timestamp_type"),
    Column("leader_epoch", right=True, optional=True, get="header.leader_epoch"),
    Column("producer_id", right=True, optional=True, get="header.producer_id"),
    Column("producer_epoch", right=True, optional=True, title="EPOCH", get="header.producer_epoch"),
    Column("base_sequence", right=True, optional=True, title="SEQUENCE", get="header.base_sequence"),
    Column("transactional", get="header.transactional"),
    Column("control", get="header.control"),
    Column("delete_horizon", detail=True, get="header.delete_horizon"),
    Column("crc", right=True, detail=True, get="header.crc"),
)


class Isolation(StrEnum):
    """Kafka's ``isolation.level``."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


class ErrorReporter:
    """Prints each error at once instead of collecting errors, because there may be as many errors as rows."""

    def __init__(self) -> None:
        self.any = False

    def __call__(self, error: OffsetMgrError) -> None:
        self.any = True
        report_and_exit_code([error])


@app.command("dump")
@without_connection
def dump(
    paths: Annotated[
        list[Path], arg("PATH...", "A segment (.log), a partition's directory, or a broker's log directory.")
    ],
    topics: TopicFlags,
    from_offset: Annotated[int | None, opt("--offset", "N", "From this offset on.", min=0)] = None,
    to_offset: Annotated[int | None, opt("--to-offset", "N", "Only before this offset.", min=0)] = None,
    from_datetime: Annotated[
        str | None,
        opt("--from-datetime", "YYYY-MM-DDTHH:mm:SS.sss", "From this time on; UTC without a zone."),
    ] = None,
    to_datetime: Annotated[
        str | None,
        opt("--to-datetime", "YYYY-MM-DDTHH:mm:SS.sss", "Only before this time."),
    ] = None,
    max_rows: Annotated[int | None, opt("--max-messages", "N", "Maximum number of rows.", min=1)] = None,
    isolation: Annotated[
        Isolation,
        opt("--isolation-level", None, "read_committed leaves out messages of open and aborted transactions."),
    ] = Isolation.READ_UNCOMMITTED,
    decode: Annotated[
        ValueFormat,
        opt(
            "--decode",
            None,
            "How to decode keys and values: auto (only in known offsets topics), offsets (always), raw (never).",
        ),
    ] = ValueFormat.AUTO,
    controls: Annotated[bool, flag("--controls", "Show control records too.")] = False,
    entries: Annotated[
        bool,
        flag("--entries", "Show a row for each entry of the files instead: a batch, or a message of an older format."),
    ] = False,
    limit: Annotated[
        int | None,
        opt("--max-batch-bytes", "N", "Maximum decompressed batch size (128 MiB).", min=1),
    ] = None,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Print the messages in log files, in every format since Kafka 0.8.

    The command writes nothing and needs no broker; it can also read the files of a running broker. It reports damaged
    messages and shows the others. Tables cut long keys and values; --format json and csv print them whole.
    """
    options = DumpOptions(
        from_offset or 0,
        to_offset,
        None if from_datetime is None else parse_datetime(from_datetime, "--from-datetime"),
        None if to_datetime is None else parse_datetime(to_datetime),
        isolation is Isolation.READ_COMMITTED,
        controls,
        decode,
        limit,
    )
    ui, failed = Ui() if sys.stdout.isatty() else Terminal(), ErrorReporter()
    selected = topics.selection()
    found = log.dump(ui, paths, selected, options, entries=entries, max_messages=max_rows, on_error=failed)
    columns = ENTRIES if entries else MESSAGES
    rows = map(attrgetter(*(column.get or column.name for column in columns)), found)
    shortens = output.for_people and not entries
    count = write_rows(columns, map(_shortened, rows) if shortens else rows, output)
    fail_if(failed.any)
    if not count:
        note("no message matches" if not entries else "no entry matches")


def _shortened(row: tuple[Any, ...]) -> tuple[Any, ...]:
    topic, partition, offset, timestamp, kind, key, value, headers, *rest = row
    text = " ".join(f"{name}={display_text(content)}" for name, content in headers) if headers else None
    return (topic, partition, offset, timestamp, kind, display_text(key), display_text(value), text, *rest)


def display_text(value: Any) -> str | None:
    """A JSON value as one line of text, shortened to `MAX_SHOWN` characters."""
    if value is None:
        return None
    text = value if isinstance(value, str) else _fields(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}... ({len(text):,} characters)"


def _fields(value: Any) -> str:
    if isinstance(value, Mapping):
        if set(value) == {"hex"}:
            return f"0x{value['hex']}"
        return " ".join(f"{name}={_plain(field)}" for name, field in value.items() if field not in (None, ""))
    return _plain(value)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


_SEGMENT: Final = (
    Column("path", detail=True, get="segment.log"),
    Column("partition"),
    Column("base_offset", right=True, get="result.base_offset"),
    Column("size", right=True, get="result.size"),
    Column("entries", right=True, get="result.entries"),
    Column("next_offset", right=True, get="result.next_offset"),
    Column("state", get="result.state"),
    Column("sound", right=True, get="result.valid_bytes"),
)
_VERIFY: Final = (
    *_SEGMENT,
    Column("broker", get="result.outcome"),
    Column("suspicious_entries", right=True, detail=True, get="result.suspicion_count"),
    Column("why", optional=True, get="result.reasons"),
)


@app.command("verify")
def verify(
    paths: Paths,
    only_damaged: Annotated[bool, flag("--only-damaged", "Leave out segments that are sound.")] = False,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Check that every entry of every segment is complete, and has the right checksum and a plausible offset.

    SOUND is the number of bytes before the first damage. NEXT-OFFSET is the log end offset at that position. BROKER is
    what Kafka's own recovery would do with the segment, and unknown if the broker would not start. The command writes
    nothing. The exit code is 0 if everything is valid, else 1.
    """
    found = log.verify(Terminal(), paths)
    shown = (one for one in found if not only_damaged or one.result.state != "sound")
    write_rows(_VERIFY, rows_of(_VERIFY, shown), output)
    failed = f", {count_of(len(found.errors), 'error')}" if found.errors else ""
    note(f"{count_of(found.segments, 'segment')}, {found.unsound} not sound{failed}")
    _note_scope(paths)
    fail_if(report_and_exit_code(found.errors) or found.unsound)


def _note_scope(paths: Iterable[Path]) -> None:
    """Prints the files that the prediction about a broker is based on."""
    if all(path.is_file() for path in paths):
        note("checked: only the segments that are named, not the other files of their directories")
    else:
        note(
            "checked: segments, partition.metadata, leader-epoch-checkpoint; a broker reads other files when it starts"
        )


_RECOVER: Final = (
    *(
        one._replace(get="next_offset" if one.name == "next_offset" else f"examined.{one.get or one.name}")
        for one in _SEGMENT
    ),
    Column("cut", right=True),
    Column("removed", right=True, optional=True),
    Column("action"),
    Column("copy", optional=True),
)


@app.command("recover")
@without_connection
def recover(
    paths: Paths,
    to: Annotated[Path | None, opt("--to", "DIR", "Write repaired copies into this directory.")] = None,
    in_place: Annotated[
        bool, flag("--in-place", "Truncate the logs themselves, after copying the removed bytes.")
    ] = False,
    keep: Annotated[
        Path | None,
        opt(
            "--keep",
            "DIR",
            "With --in-place: directory for the copies of the removed bytes (default: next to each log).",
        ),
    ] = None,
    strict: Annotated[
        bool, flag("--strict", "Also cut before the first entry whose offset or version is in doubt.")
    ] = False,
    *,
    flags: RunFlags,
) -> None:
    """Truncate logs after their last valid entry, as a broker does after a crash: in a copy, or in place.

    For a partition's directory, the command checks the segments that a broker would recover, from its recovery point to
    the newest. If it truncates a segment, it REMOVES the later ones. If a single segment file is given, the command
    processes only that file. The command never writes to logs of a running broker, and reports how it determined that
    no broker is running.
    """
    if in_place == (to is not None):
        both = "both --to and --in-place are given" if in_place else "neither --to nor --in-place is given"
        raise UsageError("log recover", both, "--to DIR writes repaired copies, --in-place cuts the logs themselves")
    if keep is not None and not in_place:
        raise UsageError("--keep", "works only with --in-place", "add --in-place, or leave out --keep")
    ui, reason = Terminal(yes=flags.yes), flags.reason or ""
    found = log.recover(ui, paths, to, keep=keep, strict=strict, execute=flags.execute, reason=reason)
    Meter.clear()
    write_rows(_RECOVER, rows_of(_RECOVER, found.logs), flags.output)
    _note_scope(paths)
    if not flags.execute:
        note("dry run: nothing was written; add --execute to do it")
    fail_if(report_and_exit_code(found.errors))


_OFFSETS: Final = (
    *(one._replace(detail=one.name == "state", rank=0) for one in OFFSETS),
    Column("expire_timestamp", optional=True, title="EXPIRES-AT", time=True),
    Column("log_offset", right=True, detail=True),
)


@command(app, "offsets")
def offsets(
    connect: ConnectFlags,
    dirs: Annotated[list[Path], arg("DIR...", "Brokers' log dirs (log.dirs), or partitions' directories in them.")],
    to: Annotated[
        str | None,
        opt(
            "--to",
            "URI",
            "Target: a new file:PATH (.avro, .csv, .zk, .json), which is written even without --execute; or a store.",
        ),
    ] = None,
    *,
    groups: GroupFilter,
    topics: TopicFlags,
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
            f"With --expired-at: the cluster's offsets.retention.minutes ({DEFAULT_RETENTION_MINUTES}).",
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
    given = connect.flags
    if given.store or given.bootstrap_server or given.zookeeper:
        raise UsageError("log offsets", "reads no server", "name the target of the offsets with --to URI")
    edits = {
        "--translate": translate is not None,
        "--allow-rewind": allow_rewind,
        "--execute": flags.execute,
        "--yes": flags.yes,
        "--before-image": flags.before_image is not None,
    }
    _reject_inapplicable(to, {"--overwrite": overwrite}, edits)
    if retention_minutes is not None and expired_at is None:
        raise UsageError("--retention-minutes", "has no effect without --expired-at", "add --expired-at")
    options = SaveOptions(
        groups.selection(),
        topics.selection(),
        offsets_topic,
        None if expired_at is None else parse_datetime(expired_at, "--expired-at"),
        retention_minutes or DEFAULT_RETENTION_MINUTES,
        processes,
        overwrite,
        translate,
        allow_rewind,
    )
    failed = ErrorReporter()
    found = log.offsets(connect, dirs, to, options, failed)
    code = 0
    if to is None:
        write_rows(_OFFSETS, _offset_rows(found.groups), flags.output)
    elif (saved := found.report) is not None:
        note(f"saved {count_of(saved.offsets, 'offset')} of {count_of(saved.groups, 'group')} to {saved.path}")
        for lost in saved.lost:
            note(f"not in the file, because its format cannot hold it: {lost}")
    elif found.edit is not None:
        code = flags.run(found.edit)
    Meter.clear()
    found.finish()
    fail_if(failed.any or code)


def _reject_inapplicable(to: str | None, of_files: dict[str, bool], of_stores: dict[str, bool]) -> None:
    """Raises `UsageError` if a given flag has no effect for this kind of target."""
    kind, _, address = (to or "").partition(":")
    if to is None:
        inapplicable, why = {**of_files, **of_stores}, "nothing is written"
        hint = "name the target of the offsets with --to URI"
    elif kind == "file":
        inapplicable, why = of_stores, f"needs a store as the target: {address.partition('?')[0]} is a file"
        hint = "leave it out: the file is written without --execute; offsets import loads it into a store"
    else:
        inapplicable, why = of_files, f"is for a file, and the target is of kind {kind}"
        hint = "leave it out; --allow-rewind allows offsets to go backwards"
    for name in (name for name, given in inapplicable.items() if given):
        raise UsageError(name, why, hint)


def _offset_rows(groups: Iterable[SavedGroup]) -> Iterator[tuple[Any, ...]]:
    for group in groups:
        for tp in sorted({*group.offsets, *group.errors}):
            one = group.offsets.get(tp)
            state, cells = ("unreadable", (None,) * 6) if one is None else ("committed", one)
            yield (group.name, tp[0], tp[1], state, *cells)
