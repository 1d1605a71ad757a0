"""``offsetmgr log dump``: the messages in log files, with keys and values decoded if their format is known."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from offsetmgr.cli.errors import fail_if, report_and_exit_code
from offsetmgr.cli.log_values import ValueDecoder, ValueFormat, control_value, display_text, raw_json
from offsetmgr.cli.options import FormatOption, TopicsOption, flag, opt
from offsetmgr.cli.render import Column, OutputFormat, note, progress, write_rows, write_structured_rows
from offsetmgr.cli.scenario import parse_datetime
from offsetmgr.core.errors import CorruptData, FileFailure, LimitExceeded, OffsetMgrError

if TYPE_CHECKING:
    from offsetmgr.core.model import TopicPartition
    from offsetmgr.segments.message_scan import MessageFilter, OnError
    from offsetmgr.segments.segment import Segment

app = typer.Typer()

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
