"""The lines that Kafka's DumpLogSegments prints, and the same lines from our reader."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from broker_written_logs import CODECS, fail_on_damage

from offsetmgr.sandbox import java_tool
from offsetmgr.segments.entries import LogEntry
from offsetmgr.segments.message_scan import LogMessage, MessageFilter, entries_of, messages
from offsetmgr.segments.segment import Segment
from offsetmgr.segments.transactions import marker_of

_TIMES: Final = {None: "NoTimestampType", False: "CreateTime", True: "LogAppendTime"}
_INNER_CHECKSUM: Final = re.compile(r" isValid: true crc: \d+}")
"""Kafka also prints the checksum of each inner message, which our reader verifies and does not return."""


def number(value: int | None) -> int:
    """The number, or -1 for None, as Kafka prints it."""
    return -1 if value is None else value


def time_of(magic: int, by_broker: bool, timestamp: int | None) -> str:
    return f"{_TIMES[None if magic == 0 else by_broker]}: {number(timestamp)}"


def entry_line(entry: LogEntry) -> str:
    """The line that DumpLogSegments prints for an entry's header."""
    h = entry.header()
    time_ = time_of(h.magic, h.log_append_time, h.largest_timestamp)
    end = f"size: {len(entry.data)} magic: {h.magic} compresscodec: {CODECS[h.codec]} crc: {h.crc} isvalid: true"
    if h.magic < 2:
        return f"offset: {h.last_offset} position: {entry.position} {time_} {end}"
    last = -1 if h.base_sequence is None else h.base_sequence + h.last_offset - entry.offset
    horizon = f"[{h.base_timestamp}]" if h.delete_horizon else ".empty"
    return (
        f"baseOffset: {h.base_offset} lastOffset: {h.last_offset} count: {h.record_count}"
        f" baseSequence: {number(h.base_sequence)} lastSequence: {last} producerId: {number(h.producer_id)}"
        f" producerEpoch: {number(h.producer_epoch)} partitionLeaderEpoch: {number(h.leader_epoch)}"
        f" isTransactional: {str(h.transactional).lower()} isControl: {str(h.control).lower()}"
        f" deleteHorizonMs: OptionalLong{horizon} position: {entry.position} {time_} {end}"
    )


def record_line(message: LogMessage) -> str:
    """The line that DumpLogSegments prints for a record."""
    record, _, header, sequence = message
    key_size, value_size = (-1 if field is None else len(field) for field in (record.key, record.value))
    line = f"| offset: {record.offset} {time_of(header.magic, record.log_append_time, record.timestamp)}"
    line += f" keySize: {key_size} valueSize: {value_size}"
    if header.magic == 2:
        line += f" sequence: {number(sequence)} headerKeys: [{','.join(name for name, _ in record.headers)}]"
    if header.control:
        marker = marker_of(record)
        return f"{line} endTxnMarker: {marker.name.upper()} coordinatorEpoch: {marker.coordinator_epoch}"
    line += "" if record.key is None else f" key: {record.key.decode()}"
    return line + ("" if record.value is None else f" payload: {record.value.decode()}")


def lines_of(segment: Segment) -> Iterator[str]:
    """The lines that DumpLogSegments prints for a segment."""
    records = messages((segment,), MessageFilter(controls=True), fail_on_damage)
    message = next(records, None)
    for entry in entries_of(segment, MessageFilter(), fail_on_damage):
        yield entry_line(entry)
        while message is not None and message.entry.position == entry.position:
            yield record_line(message)
            message = next(records, None)


def printed_by_kafka(jar_set: str, files: list[Path]) -> dict[Path, list[str]]:
    arguments = ["--deep-iteration", "--print-data-log", "--files", ",".join(map(str, files))]
    package = "org.apache.kafka.tools" if jar_set == "kafka-4.4" else "kafka.tools"
    done = java_tool(jar_set, f"{package}.DumpLogSegments", arguments, timeout_s=600)
    assert done.returncode == 0, done.stderr
    found: dict[Path, list[str]] = {}
    for line in done.stdout.splitlines():
        if line.startswith("Dumping "):
            found[Path(line.removeprefix("Dumping "))] = lines = []
        elif not line.startswith("Log starting offset: "):
            lines.append(_INNER_CHECKSUM.sub("", line).rstrip())
    return found
