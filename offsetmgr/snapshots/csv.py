"""The CSV format of kafka-consumer-groups: ``group,topic,partition,offset``. A file of a single group may omit the
column ``group``.

The writer follows Kafka's tool (org.apache.kafka.tools.consumer.group.CsvUtils): no header line, quotes only if a value
needs them, an empty line at the end. The reader also accepts a header line, quotes around any value, and empty lines
anywhere. The first line that is not empty determines the number of columns. A line with a different number of columns
is a bad line.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from typing import BinaryIO, Final

from offsetmgr.core.errors import UsageError
from offsetmgr.core.model import MAX_OFFSET
from offsetmgr.snapshots.base import (
    MAX_PARTITION,
    BadLine,
    DroppedFields,
    FormatCapabilities,
    OffsetsOfGroup,
    SnapshotHeader,
    WriteReport,
    number,
    reject_unreadable,
)
from offsetmgr.snapshots.line_formats import (
    BYTE_ORDER_MARK,
    LINE_FORMAT_CAPABILITIES,
    MAX_LINE_BYTES,
    LineReader,
    NameCheck,
)

_NAME = rb"([ !#-+\--~]+)"
_NUMBERS = rb",(0|[1-9][0-9]{0,8}),(0|[1-9][0-9]{0,17})\r?\n?"
_WITH_GROUP: Final = re.compile(rb'(")?' + _NAME + rb'(?(1)"),(")?' + _NAME + rb'(?(3)")' + _NUMBERS)
_WITHOUT_GROUP: Final = re.compile(rb'()()(")?' + _NAME + rb'(?(3)")' + _NUMBERS)
_COLUMNS: Final = ("group", "topic", "partition", "offset")


class CsvFormat:
    """The CSV format. If ``group`` is given, the lines have no group column, and all of them belong to that group."""

    name = "csv"
    capabilities: FormatCapabilities = LINE_FORMAT_CAPABILITIES
    cannot_hold = "metadata, leader epochs, commit timestamps, snapshot id, time and source"

    def __init__(self, group: str | None = None) -> None:
        self._group = group

    def write(
        self, stream: BinaryIO, header: SnapshotHeader, groups: Iterable[OffsetsOfGroup], *, keep_errors: bool = False
    ) -> WriteReport:
        dropped = DroppedFields(self.capabilities, header)
        names = NameCheck("CSV")
        for group in groups:
            reject_unreadable(group, self.capabilities, keep_errors)
            prefix = self._prefix(group.group, names)
            topics = names.topics(group.offsets, _quoted)
            dropped.count(group)
            lines = [f"{prefix}{topics[tp[0]]},{tp[1]},{found[0]}\n" for tp, found in sorted(group.offsets.items())]
            stream.write("".join(lines).encode("utf-8"))
        stream.write(b"\n")
        return dropped.report()

    def _prefix(self, group: str, names: NameCheck) -> str:
        if self._group is None:
            return _quoted(names.require_valid("group", group)) + ","
        if group != self._group:
            raise UsageError(
                f"group {group}",
                f"a CSV of group {self._group} alone has no column for groups",
                "leave out --group (in a URI: group=)",
            )
        return ""

    def open(self, stream: BinaryIO, *, what: str = "snapshot") -> LineReader:
        columns = _column_count(stream)
        if columns == 3 and self._group is None:
            raise UsageError(what, "its lines do not contain the group", "name it with --group (in a URI: group=)")
        if columns == 4 and self._group is not None:
            raise UsageError(what, "its lines contain the groups", "leave out --group (in a URI: group=)")
        return LineReader(stream, _CsvLineSyntax(self._group), self, what=what, only_group=self._group)


class _CsvLineSyntax:
    def __init__(self, group: str | None) -> None:
        self._group = group
        self._columns = _COLUMNS if group is None else _COLUMNS[1:]
        self.plain = _WITH_GROUP if group is None else _WITHOUT_GROUP

    def is_header(self, line: str) -> bool:
        return tuple(value.lower() for value in _split(line)) == self._columns

    def parse(self, line: str) -> tuple[str, str, int, int]:
        values = _split(line)
        if len(values) != len(self._columns):
            raise BadLine(f"{len(values)} values instead of {len(self._columns)} ({','.join(self._columns)})")
        *names, partition, offset = values
        for column, value in zip(self._columns, names, strict=False):
            if not value:
                raise BadLine(f"empty {column}")
        group = "" if self._group is not None else names[0]
        return group, names[-1], number(partition, MAX_PARTITION, "partition"), number(offset, MAX_OFFSET, "offset")


def _split(line: str) -> list[str]:
    try:
        return next(csv.reader([line], strict=True))
    except csv.Error as error:
        why = str(error)
        raise BadLine("a quote that never closes" if "end of data" in why else why) from None


def _quoted(name: str) -> str:
    # Without quotes, a U+FEFF at the beginning of the file would be read as a byte order mark.
    if '"' in name or "," in name or name.startswith("\ufeff"):
        return '"' + name.replace('"', '""') + '"'
    return name


def _column_count(stream: BinaryIO) -> int | None:
    """Returns the number of values of the first line that is not empty; None if there is none, or if it is invalid."""
    stream.seek(0)
    while line := stream.readline(MAX_LINE_BYTES):
        if text := line.removeprefix(BYTE_ORDER_MARK).strip():
            try:
                return len(_split(text.decode("utf-8", "replace")))
            except BadLine:
                return None
    return None
