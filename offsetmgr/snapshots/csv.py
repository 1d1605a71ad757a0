"""The CSV format of kafka-consumer-groups: ``group,topic,partition,offset``. A file of a single group may omit the
column ``group``.

The writer follows Kafka's tool (org.apache.kafka.tools.consumer.group.CsvUtils): quotes only if a value needs them, an
empty line at the end, and no header line, unless the user asks for one. The reader also accepts a header line, quotes
around any value, empty lines anywhere, empty values at the end of a line, and the files of `text_files`. The first line
that is not empty determines the number of columns. A line with a different number of columns is a bad line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import BinaryIO, Final

from offsetmgr.core.errors import UsageError
from offsetmgr.core.offset_store import GroupOffsets
from offsetmgr.core.selection import MAX_PARTITION
from offsetmgr.snapshots.base import (
    LEAVE_OUT_GROUP,
    NAME_THE_GROUP,
    BadLine,
    SnapshotHeader,
    number,
    offset_number,
)
from offsetmgr.snapshots.line_formats import BYTE_ORDER_MARK, LineFormat, LineReader, NameCheck
from offsetmgr.snapshots.text_files import comma_separated, count_of_values, lines_of, quoted, split, without_empty_end

_NAME = rb"([ !#-+\--~]+)"
_NUMBERS = rb",(0|[1-9][0-9]{0,8}),(0|[1-9][0-9]{0,17})\r?\n?"
_WITH_GROUP: Final = re.compile(rb'(")?' + _NAME + rb'(?(1)"),(")?' + _NAME + rb'(?(3)")' + _NUMBERS)
_WITHOUT_GROUP: Final = re.compile(rb'()()(")?' + _NAME + rb'(?(3)")' + _NUMBERS)
_COLUMNS: Final = ("group", "topic", "partition", "offset")


class CsvFormat(LineFormat):
    """The CSV format. If ``group`` is given, the lines have no group column, and all of them belong to that group. A
    ``titled`` file begins with the names of the columns; the reader sets ``titled`` if the file does."""

    name = "csv"
    title = "CSV"
    end = b"\n"
    filler = b","

    def __init__(self, group: str | None = None, *, titled: bool = False) -> None:
        super().__init__(group)
        self.titled = titled
        self._columns = _COLUMNS if group is None else _COLUMNS[1:]
        self.plain = _WITH_GROUP if group is None else _WITHOUT_GROUP

    def _write(self, stream: BinaryIO, header: SnapshotHeader, groups: Iterable[GroupOffsets]) -> None:
        if self.titled:
            stream.write(f"{','.join(self._columns)}\n".encode())
        super()._write(stream, header, groups)

    def _text(self, group: GroupOffsets, names: NameCheck) -> str:
        if self.group is not None and group.name != self.group:
            why = f"a CSV of group {self.group} alone has no column for groups"
            raise UsageError(f"group {group.name}", why, LEAVE_OUT_GROUP)
        prefix = quoted(names.require_valid("group", group.name)) + "," if self.group is None else ""
        topics = names.topics(group.offsets, quoted)
        return "".join([f"{prefix}{topics[tp[0]]},{tp[1]},{found[0]}\n" for tp, found in sorted(group.offsets.items())])

    def open(self, stream: BinaryIO, *, what: str = "snapshot") -> LineReader:
        stream = comma_separated(stream, (len(_COLUMNS) - 1, len(_COLUMNS)))
        columns = _column_count(stream)
        if columns == 3 and self.group is None:
            raise UsageError(what, "its lines do not contain the group", NAME_THE_GROUP)
        if columns == 4 and self.group is not None:
            raise UsageError(what, "its lines contain the groups", LEAVE_OUT_GROUP)
        return super().open(stream, what=what)

    def is_header(self, line: str) -> bool:
        return tuple(value.lower() for value in without_empty_end(split(line))) == self._columns

    def parse(self, line: str) -> tuple[str, str, int, int]:
        values = split(line)
        if not any(values[len(self._columns) :]):
            del values[len(self._columns) :]
        if len(values) != len(self._columns):
            raise BadLine(f"{len(values)} values instead of {len(self._columns)} ({','.join(self._columns)})")
        *names, partition, offset = values
        for column, value in zip(self._columns, names, strict=False):
            if not value:
                raise BadLine(f"empty {column}")
        group = "" if self.group is not None else names[0]
        return group, names[-1], number(partition, MAX_PARTITION, "partition"), offset_number(offset)


def _column_count(stream: BinaryIO) -> int | None:
    """Returns the number of values of the first line that is not empty; None if there is none, or if it is invalid."""
    for line in lines_of(stream):
        text = line.removeprefix(BYTE_ORDER_MARK).strip().decode("utf-8", "replace")
        if (count := count_of_values(text)) != 0:
            lacks_offset = re.fullmatch(r"[^,]+,[^,]*[^,0-9][^,]*,[0-9]+,", text) is not None
            return len(_COLUMNS) if lacks_offset else count
    return None
