"""``offsetmgr log dump|verify|recover``: Kafka's logs on disk, without a broker."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeAlias

import typer

from offsetmgr.cli import log_offsets
from offsetmgr.cli.errors import fail_if, report_and_exit_code
from offsetmgr.cli.options import Execute, FormatOption, Reason, TopicsOption, Yes, flag, opt
from offsetmgr.cli.render import Column, OutputFormat, note, progress, write_rows, write_structured_rows
from offsetmgr.cli.terminal import confirm
from offsetmgr.core.durations import parse_datetime
from offsetmgr.core.errors import CorruptData, FileFailure, LimitExceeded, OffsetMgrError, UsageError
from offsetmgr.core.os_errors import os_error_as
from offsetmgr.core.plurals import count_of
from offsetmgr.groups.operation_log import OperationLog, OperationProgress, OperationStart
from offsetmgr.records.base import GroupKey, Key, OffsetKey, RecordFormat, UnknownKey
from offsetmgr.records.kafka import KEY_NAMES, KafkaRecordFormat
from offsetmgr.records.kafka_group import decode_group_metadata
from offsetmgr.records.registry import FORMATS, format_of

if TYPE_CHECKING:
    from offsetmgr.core.model import TopicPartition
    from offsetmgr.segments.batch_reader import Record
    from offsetmgr.segments.message_scan import MessageFilter, OnError
    from offsetmgr.segments.segment import Segment
    from offsetmgr.segments.transactions import Marker
    from offsetmgr.segments.truncation import ExaminedSegment, TruncationPoint


app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Kafka's logs on disk, without a broker: segment files, and the directories that hold them.",
)


KAFKA_OFFSETS: Final = "__consumer_offsets"
MAX_SHOWN: Final = 100
"""Maximum number of characters of a key or value in a table."""

JsonValue: TypeAlias = Any


class ValueFormat(StrEnum):
    """The values of ``--decode``."""

    AUTO = "auto"
    OFFSETS = "offsets"
    RAW = "raw"


class ValueDecoder:
    """Decodes keys and values of one partition.

    With ``auto``, records in Kafka's format of committed offsets are decoded only in ``__consumer_offsets``. Records in
    the offset manager's own format are decoded in every topic.
    """

    def __init__(self, decode: ValueFormat, topic: str | None) -> None:
        self._decode = decode
        self._kafka = decode is ValueFormat.OFFSETS or topic == KAFKA_OFFSETS
        self._formats: dict[str, RecordFormat] = {name: make() for name, make in FORMATS.items()}

    def json(self, record: Record) -> tuple[JsonValue, JsonValue]:
        """Returns a record's key and value as JSON values."""
        known = self._format(record.key)
        if known is None or record.key is None:
            return raw_json(record.key), raw_json(record.value)
        try:
            key = known.decode_key(record.key)
        except OffsetMgrError as error:
            return raw_json(record.key) if self._decode is ValueFormat.AUTO else _failed(record.key, error), raw_json(
                record.value
            )
        return _key(key), _value(known, key, record.value)

    def _format(self, key: bytes | None) -> RecordFormat | None:
        name = None if key is None or self._decode is ValueFormat.RAW else format_of(key)
        if name is None or (name == KafkaRecordFormat.name and not self._kafka):
            return None
        return self._formats[name]


def raw_json(data: bytes | None) -> JsonValue:
    """Returns bytes of an unknown format as a JSON value: as text if the bytes are valid UTF-8, else as hexadecimal
    digits."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"hex": data.hex()}


def display_text(value: JsonValue) -> str | None:
    """A JSON value as one line of text, shortened to `MAX_SHOWN` characters."""
    if value is None:
        return None
    text = value if isinstance(value, str) else _fields(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}... ({len(text):,} characters)"


def control_value(record: Record, marker: Marker) -> JsonValue:
    """Returns the fields of a control record except its kind."""
    if marker.coordinator_epoch is not None:
        return {"coordinator_epoch": marker.coordinator_epoch}
    return None if record.value is None else {"hex": record.value.hex()}


def _fields(value: JsonValue) -> str:
    if isinstance(value, Mapping):
        if set(value) == {"hex"}:
            return f"0x{value['hex']}"
        return " ".join(f"{name}={_plain(field)}" for name, field in value.items() if field not in (None, ""))
    return _plain(value)


def _plain(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _key(key: Key) -> JsonValue:
    if isinstance(key, OffsetKey):
        return {"type": "offset", **key._asdict()}
    if isinstance(key, GroupKey):
        return {"type": "group", "group": key.group}
    return {"type": KEY_NAMES.get(key.version, "unknown"), "version": key.version}


def _value(known: RecordFormat, key: Key, value: bytes | None) -> JsonValue:
    if value is None or isinstance(key, UnknownKey):
        return raw_json(value)
    try:
        if isinstance(key, OffsetKey):
            found = known.decode_value(value)._asdict()
            found["topic_id"] = None if found["topic_id"] is None else str(found["topic_id"])
            return found
        if known.name != KafkaRecordFormat.name:
            return known.decode_group(value)._asdict()
        group = decode_group_metadata(value)._asdict()
        group["members"] = [
            {
                **member._asdict(),
                "subscription": {"hex": member.subscription.hex()},
                "assignment": {"hex": member.assignment.hex()},
            }
            for member in group["members"]
        ]
    except OffsetMgrError as error:
        return _failed(value, error)
    return group


def _failed(data: bytes, error: OffsetMgrError) -> JsonValue:
    """Returns the raw bytes of a key or value that cannot be decoded, and the reason."""
    return {"hex": data.hex(), "error": str(error)}


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


MESSAGES: Final = (
    Column("topic", optional=True),
    Column("partition", right=True, optional=True),
    Column("offset", right=True),
    Column("timestamp", time=True),
    Column("timestamp_type", detail=True),
    Column("key"),
    Column("value"),
    Column("headers", optional=True),
    Column("control", optional=True),
    Column("transactional", detail=True),
    Column("producer_id", right=True, optional=True),
    Column("producer_epoch", right=True, detail=True),
    Column("sequence", right=True, detail=True),
    Column("leader_epoch", right=True, detail=True),
    Column("magic", right=True, detail=True),
    Column("codec", detail=True),
)

ENTRIES: Final = (
    Column("file"),
    Column("position", right=True),
    Column("size", right=True),
    Column("magic", right=True),
    Column("base_offset", right=True),
    Column("last_offset", right=True),
    Column("records", right=True),
    Column("codec"),
    Column("base_timestamp", time=True, detail=True),
    Column("largest_timestamp", time=True, title="LARGEST TIME"),
    Column("timestamp_type", detail=True),
    Column("leader_epoch", right=True, optional=True),
    Column("producer_id", right=True, optional=True),
    Column("producer_epoch", right=True, optional=True, title="EPOCH"),
    Column("base_sequence", right=True, optional=True, title="SEQUENCE"),
    Column("transactional"),
    Column("control"),
    Column("delete_horizon", detail=True),
    Column("crc", right=True, detail=True),
)


class Isolation(StrEnum):
    """Kafka's ``isolation.level``."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


class Log(NamedTuple):
    """One log to dump: the segments of one partition. ``partition`` is `None` if the name of the directory does not
    name a partition."""

    partition: TopicPartition | None
    segments: tuple[Segment, ...]


class ErrorReporter:
    """Prints each error at once instead of collecting errors, because there may be as many errors as rows."""

    def __init__(self) -> None:
        self.any = False

    def __call__(self, error: OffsetMgrError) -> None:
        self.any = True
        if isinstance(error, LimitExceeded):
            error = LimitExceeded(
                error.what, error.why, "--max-batch-bytes allows more, if the writer really wrote that much"
            )
        report_and_exit_code([error])


@app.command("dump")
def dump(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...", help="A segment (.log), a partition's directory, or a broker's log directory."
        ),
    ],
    topic: TopicsOption = None,
    from_offset: Annotated[
        int | None,
        opt("--offset", "N", "From this offset on.", min=0),
    ] = None,
    to_offset: Annotated[
        int | None,
        opt("--to-offset", "N", "Only before this offset.", min=0),
    ] = None,
    from_datetime: Annotated[
        str | None,
        opt("--from-datetime", "YYYY-MM-DDTHH:mm:SS.sss", "From this time on; UTC without a zone."),
    ] = None,
    to_datetime: Annotated[
        str | None,
        opt("--to-datetime", "YYYY-MM-DDTHH:mm:SS.sss", "Only before this time."),
    ] = None,
    max_rows: Annotated[
        int | None,
        opt("--max-messages", "N", "Maximum number of rows.", min=1),
    ] = None,
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
    from offsetmgr.segments.compression import MAX_DECOMPRESSED_BYTES
    from offsetmgr.segments.entries import MAX_ENTRY_BYTES
    from offsetmgr.segments.message_scan import MessageFilter

    message_filter = MessageFilter(
        first=from_offset or 0,
        end=to_offset,
        since=None if from_datetime is None else parse_datetime(from_datetime, "--from-datetime"),
        until=None if to_datetime is None else parse_datetime(to_datetime),
        committed=isolation is Isolation.READ_COMMITTED,
        controls=controls,
        limit=limit or MAX_DECOMPRESSED_BYTES,
        max_entry_bytes=max(limit or 0, MAX_ENTRY_BYTES),
    )
    failed = ErrorReporter()
    logs = _logs(paths, topic or [], failed)
    if entries:
        count = write_rows(ENTRIES, _limited(_entry_rows(logs, message_filter, failed), max_rows), output)
    else:
        as_table = output is OutputFormat.TABLE
        rows = _limited(_message_rows(logs, message_filter, decode, failed, as_table), max_rows)
        count = write_rows(MESSAGES, rows, output) if as_table else write_structured_rows(MESSAGES, rows, output)
    fail_if(failed.any)
    if not count:
        note("no message matches" if not entries else "no entry matches")


def _logs(paths: list[Path], topics: list[str], failed: OnError) -> Iterator[Log]:
    """Yields the logs under the given paths. If a log cannot be read, reports the error and continues with the next
    log."""
    from offsetmgr.core.selection import TopicSelection

    chosen = TopicSelection.parse(topics)
    for path in paths:
        try:
            yield from _logs_at(path, chosen, failed)
        except OffsetMgrError as error:
            failed(error)


def _logs_at(path: Path, chosen: Any, failed: OnError) -> Iterator[Log]:
    from offsetmgr.segments.partition import (
        has_partition_dir_name,
        is_directory,
        partition_of,
        partitions_in,
        segments_in,
    )
    from offsetmgr.segments.segment import Segment

    is_log_directory = is_directory(path)
    if is_log_directory is None:
        raise FileFailure(f"cannot read {path}", "there is no such file or directory")
    if not is_log_directory:
        yield Log(_partition_named_by(path.parent), (Segment.of(path),))
        return
    directories = list(partitions_in(path))
    if not directories and not has_partition_dir_name(path):
        raise CorruptData(str(path), "it is not a partition directory and contains none", "as in orders-0")
    if not directories:
        partition = partition_of(path)
        if chosen.matches(partition):
            yield Log(partition, segments_in(path))
        return
    for directory in directories:
        partition = partition_of(directory)
        if chosen.matches(partition):
            try:
                yield Log(partition, segments_in(directory))
            except OffsetMgrError as error:
                failed(error)


def _partition_named_by(directory: Path) -> TopicPartition | None:
    """Returns the partition that the name of a directory denotes, as in orders-0. Returns `None` if the name does not
    denote a partition."""
    from offsetmgr.segments.partition import partition_of

    try:
        return partition_of(directory)
    except OffsetMgrError:
        return None


def _limited(rows: Iterator[tuple[Any, ...]], max_rows: int | None) -> Iterator[tuple[Any, ...]]:
    """Yields at most ``max_rows`` rows. Shows progress, unless the rows are printed on a terminal."""
    from itertools import islice

    return islice(rows if sys.stdout.isatty() else progress(rows, "reading"), max_rows)


def _message_rows(
    logs: Iterator[Log], message_filter: MessageFilter, decode: ValueFormat, failed: OnError, as_table: bool
) -> Iterator[tuple[Any, ...]]:
    from offsetmgr.segments.compression import CODEC_NAMES
    from offsetmgr.segments.message_scan import messages
    from offsetmgr.segments.transactions import marker_of

    for partition, segments in logs:
        topic, number = partition or (None, None)
        decoder = ValueDecoder(decode, topic)
        for record, _, header, sequence in messages(segments, message_filter, failed):
            try:
                marker = marker_of(record) if header.control else None
            except OffsetMgrError as error:
                failed(error)
                continue
            key, value = decoder.json(record) if marker is None else (None, control_value(record, marker))
            headers: Any = [[name, raw_json(content)] for name, content in record.headers]
            if as_table:
                key, value = display_text(key), display_text(value)
                headers = " ".join(f"{name}={display_text(content)}" for name, content in headers) or None
            yield (
                topic,
                number,
                record.offset,
                record.timestamp,
                None if record.timestamp is None else ("append" if record.log_append_time else "create"),
                key,
                value,
                headers,
                None if marker is None else marker.name,
                header.transactional,
                header.producer_id,
                header.producer_epoch,
                sequence,
                header.leader_epoch,
                header.magic,
                CODEC_NAMES[header.codec],
            )


def _entry_rows(logs: Iterator[Log], message_filter: MessageFilter, failed: OnError) -> Iterator[tuple[Any, ...]]:
    from offsetmgr.segments.compression import CODEC_NAMES
    from offsetmgr.segments.message_scan import entries_of

    for _, segments in logs:
        for segment in segments:
            for entry in entries_of(segment, message_filter, failed):
                header = entry.header()
                if header.last_offset < message_filter.first or (
                    message_filter.end is not None and entry.offset >= message_filter.end
                ):
                    continue
                yield (
                    str(segment.log),
                    entry.position,
                    len(entry.data),
                    header.magic,
                    header.base_offset,
                    header.last_offset,
                    header.record_count,
                    CODEC_NAMES[header.codec] if header.codec < len(CODEC_NAMES) else f"codec-{header.codec}",
                    header.base_timestamp,
                    header.largest_timestamp,
                    None if header.largest_timestamp is None else ("append" if header.log_append_time else "create"),
                    header.leader_epoch,
                    header.producer_id,
                    header.producer_epoch,
                    header.base_sequence,
                    header.transactional,
                    header.control,
                    header.delete_horizon,
                    header.crc,
                )


_VERIFY: Final = (
    *SEGMENT,
    Column("broker"),
    Column("suspicious_entries", right=True, detail=True),
    Column("why", optional=True),
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
    from offsetmgr.segments.recovery import RecoveryOutcome

    errors: list[OffsetMgrError] = []
    segments = list(_segments(paths, errors))
    offline = {Path(error.what).parent for error in errors}
    _note_running_brokers(paths)
    bad = 0

    def rows() -> Iterator[tuple[Any, ...]]:
        nonlocal bad
        for seen in _examined(segments, errors):
            found = seen.result
            if state(seen) != "sound":
                bad += 1
            elif only_damaged:
                continue
            why = "; ".join(
                ([f"position {found.valid_bytes}: {found.why}"] if found.damage else [])
                + [f"position {doubt.position}: {doubt.why}" for doubt in found.suspicions[:1]]
            )
            outcome = RecoveryOutcome.UNKNOWN if seen.segment.log.parent in offline else found.outcome
            yield (*columns(seen), outcome.value, found.suspicion_count, why or None)

    write_rows(_VERIFY, rows(), output)
    note(
        f"{count_of(len(segments), 'segment')}, {bad} not sound"
        + (f", {count_of(len(errors), 'error')}" if errors else "")
    )
    note_scope(paths)
    fail_if(report_and_exit_code(errors) or bad)


def _segments(paths: Iterable[Path], errors: list[OffsetMgrError]) -> Iterator[Segment]:
    for path in paths:
        for _, segments in sources(path, errors):
            yield from segments


def _examined(segments: list[Segment], errors: list[OffsetMgrError]) -> Iterator[ExaminedSegment]:
    """Examines each segment, with progress in MiB. If a segment cannot be read, the error is added to ``errors``."""
    from offsetmgr.segments.truncation import examine_in_steps

    def steps() -> Iterator[ExaminedSegment | None]:
        for segment in segments:
            try:
                yield from examine_in_steps(segment)
            except OffsetMgrError as error:
                errors.append(error)

    return (seen for seen in progress(steps(), "MiB", mib_in(segments)) if seen is not None)


def _note_running_brokers(paths: Iterable[Path]) -> None:
    from offsetmgr.segments.broker_lock import Use, detect_broker

    found = {str(one): None for one in map(detect_broker, paths) if one.use is Use.RUNNING}
    for text in found:
        note(f"{text}: an incomplete write may look like a missing tail")


_RECOVER: Final = (
    *SEGMENT,
    Column("cut", right=True),
    Column("removed", right=True, optional=True),
    Column("action"),
    Column("copy", optional=True),
)
_KEEP_HINT: Final = "name another directory with --keep"


@app.command("recover")
def recover(
    paths: Paths,
    to: Annotated[
        Path | None,
        opt("--to", "DIR", "Write repaired copies into this directory."),
    ] = None,
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
    execute: Execute = False,
    yes: Yes = False,
    reason: Reason = None,
    output: FormatOption = OutputFormat.TABLE,
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
    if keep is not None and not keep.is_dir():
        raise FileFailure(f"--keep {keep}", "is no directory")
    errors: list[OffsetMgrError] = []
    recovery = _Recovery(to, keep, strict, errors)
    cuts = [recovery.plan(source, segment_end) for source, segment_end in recovery.examined(paths)]
    possible = [one for one in cuts if one.cut is not None]
    if execute and possible:
        needed = [one for one in possible if to is not None or one.size]
        size = sum(one.size for one in needed)
        if in_place and needed:
            confirm(f"log recover: cut {size:,} bytes from {count_of(len(needed), 'log')} in place?", yes=yes)
        with _recorded(needed, reason) if in_place and needed else nullcontext(OperationProgress("")) as recorded:
            for one in progress(needed, "logs", len(needed)):
                recovery.execute(one)
                recorded.written += one.action == "cut"
                recorded.failed += one.action == "failed"
    write_rows(_RECOVER, (one.row() for one in cuts), output)
    note_scope(paths)
    if not execute:
        note("dry run: nothing was written; add --execute to do it")
    fail_if(report_and_exit_code(errors))


def _recorded(needed: list[_PlannedRecovery], reason: str | None) -> AbstractContextManager[OperationProgress]:
    """Returns a context that records the truncation of logs in the operation log. ``files`` are the copies of the
    removed bytes."""
    sources = tuple(str(one.source.absolute()) for one in needed)
    copies = tuple(str(one.copy.absolute()) for one in needed if one.copy is not None)
    return OperationLog().recorded(
        OperationStart("log recover", sources, (), 0, len(needed), copies, reason=reason or "")
    )


class _PlannedRecovery:
    """A log, the position at which the command truncates it, and the outcome."""

    def __init__(
        self, source: Path, segment_end: ExaminedSegment, cut: TruncationPoint | None, action: str, copy: Path | None
    ) -> None:
        self.source = source
        self.segment_end = segment_end
        self.cut = cut
        self.size = 0 if cut is None else cut.size
        self.action = action
        self.copy = copy

    def row(self) -> tuple[Any, ...]:
        cells = list(columns(self.segment_end))
        if self.cut is not None:
            cells[5] = self.cut.next_offset
        size = None if self.cut is None else self.size
        behind = None if self.cut is None else len(self.segment_end.later)
        return (*cells, size, behind or None, self.action, None if self.copy is None else str(self.copy))


class _Recovery:
    """Plans and executes the truncations of one ``log recover`` command, one log at a time."""

    def __init__(self, to: Path | None, keep: Path | None, strict: bool, errors: list[OffsetMgrError]) -> None:
        self._to = to
        self._keep = keep
        self._strict = strict
        self._errors = errors
        self._targets: dict[Path, Path] = {}

    def examined(self, paths: Iterable[Path]) -> list[tuple[Path, ExaminedSegment]]:
        """Returns each log file and each partition's directory, with the segment in which the valid data ends."""
        from offsetmgr.segments.truncation import scan_in_steps, unflushed

        logs = []
        older = 0
        for path in paths:
            for source, segments in sources(path, self._errors):
                recoverable = unflushed(source, segments) if source.is_dir() else segments
                logs.append((source, recoverable))
                older += len(segments) - len(recoverable)

        def steps() -> Iterator[tuple[Path, ExaminedSegment] | None]:
            for source, segments in logs:
                try:
                    for segment_end in scan_in_steps(segments, strict=self._strict):
                        yield None if segment_end is None else (source, segment_end)
                except OffsetMgrError as error:
                    self._errors.append(error)

        found = progress(steps(), "MiB", mib_in(segment for _, segments in logs for segment in segments))
        ends = [one for one in found if one is not None]
        if older:
            note(f"{count_of(older, 'segment')} before the recovery points not checked; log verify checks all")
        return ends

    def plan(self, source: Path, segment_end: ExaminedSegment) -> _PlannedRecovery:
        """Determines where to truncate a log. If the log must not be truncated, or a broker does not start with its
        directory, the errors have the reason."""
        from offsetmgr.segments.broker_lock import Use, check_parent_unused, detect_broker, in_use_error
        from offsetmgr.segments.repair import backup_path
        from offsetmgr.segments.truncation import truncation_point

        try:
            if source in {Path(error.what).parent for error in self._errors}:
                return _PlannedRecovery(source, segment_end, None, "refused", None)
            cut = truncation_point(segment_end, strict=self._strict)
            if self._to is not None:
                target = self._to / (source if source.name not in ("", "..") else source.resolve()).name
                if target.exists():
                    raise FileFailure(str(target), "exists already", "name another directory with --to")
                if target in self._targets:
                    why = f"{self._targets[target]} would be copied to the same path"
                    raise FileFailure(str(target), why, "recover one after the other, each with a directory of its own")
                check_parent_unused(target)
                self._targets[target] = source
                return _PlannedRecovery(source, segment_end, cut, "would be copied", target)
            if not cut.size:
                return _PlannedRecovery(source, segment_end, cut, "nothing to cut", None)
            found = detect_broker(source)
            if found.use is not Use.IDLE:
                raise in_use_error(source, found)
            if self._keep is not None:
                check_parent_unused(self._keep, _KEEP_HINT)
            return _PlannedRecovery(source, segment_end, cut, "would be cut", backup_path(cut, self._keep))
        except OffsetMgrError as error:
            self._errors.append(error)
            return _PlannedRecovery(source, segment_end, None, "refused", None)

    def execute(self, one: _PlannedRecovery) -> None:
        """Writes the repaired copy, or truncates the log in place. Failures are added to the errors."""
        from offsetmgr.segments.broker_lock import require_unused, require_unused_parent
        from offsetmgr.segments.repair import copy_directory, copy_log, truncate_in_place

        assert one.cut is not None
        try:
            with ExitStack() as stack:
                if self._to is None:
                    found = stack.enter_context(require_unused(one.source))
                    if self._keep is not None:
                        stack.enter_context(require_unused_parent(self._keep, _KEEP_HINT))
                    note(f"{one.source}: {found}")
                    truncate_in_place(one.cut, self._keep)
                    one.action = "cut"
                    return
                assert one.copy is not None
                stack.enter_context(require_unused_parent(one.copy))
                _make_directory(self._to)
                (copy_directory if one.source.is_dir() else copy_log)(one.cut, one.copy)
                one.action = "copied"
        except OffsetMgrError as error:
            self._errors.append(error)
            one.action, one.copy = "failed", None


def _make_directory(directory: Path) -> None:
    with os_error_as(FileFailure, f"directory {directory}"):
        directory.mkdir(parents=True, exist_ok=True)


app.registered_commands += log_offsets.app.registered_commands
