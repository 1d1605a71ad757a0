"""`LineReader`: the reader of formats with one offset per line (CSV and ExportZkOffsets).

The first pass checks every line and builds an index with the byte ranges of each group's lines: usually one range per
group, and several ranges if the lines of a group are not contiguous. Therefore the memory use grows with the number of
groups, not with the number of offsets. Later passes read the ranges of one group at a time. A small file that contains
only plain lines (`LineFormat.plain`) is read into memory as a whole, which takes half the time and needs no index.

Lines end with ``\\n`` or ``\\r\\n``. The reader skips empty lines, and a byte order mark at the beginning. A line is
bad if it contains control characters or bytes that are not UTF-8, or if it is longer than 64 KiB.
"""

from __future__ import annotations

import os
import re
from abc import abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, islice, repeat
from typing import Any, BinaryIO, ClassVar, Final, NamedTuple

from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import MalformedData, UnsupportedOperation
from offsetmgr.core.model import Committed, TopicPartition
from offsetmgr.core.offset_store import GroupOffsets
from offsetmgr.snapshots.base import (
    MAX_SHOWN_CHARACTERS,
    BadLine,
    BadLines,
    Format,
    SnapshotHeader,
    SnapshotReader,
    group_entry,
    has_control_character,
)
from offsetmgr.snapshots.text_files import MAX_LINE_BYTES, lines_of

BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"

_PLAIN, _OTHER = 1, 0

_MAX_SMALL_FILE_BYTES: Final = 4 * 1024 * 1024
"""The maximum size of a file that is read into memory as a whole (about 260,000 lines of 16 bytes)."""

_BLOCK_BYTES: Final = 32_768


class LineReader(SnapshotReader):
    """A checked snapshot with one offset per line. If the format has a group, it is the group of all lines.

    The constructor raises `MalformedData` with the bad lines.
    """

    format: LineFormat

    def __init__(self, stream: BinaryIO, form: LineFormat, what: str) -> None:
        self.format = form
        self._stream = stream
        self._what = what
        self._blank = b" \t\r\n\v\f" + form.filler
        self.empty_rows: list[int] = []
        """The numbers of the lines that have separators and no values. The reader skips them."""
        self._values = re.compile(form.plain.pattern.decode("ascii")).findall
        self._ranges: dict[str, array[int]] = {}
        """For each group four numbers per byte range: start, end, first line's number, and `_PLAIN` or `_OTHER`."""
        self._small_file = self._read_small_file()
        """All groups of a small file that contains only plain lines; `None` if the index is used instead."""
        if self._small_file is None:
            bad = BadLines(what)
            for group in self._find_ranges(bad):
                self._check_scattered(group, bad)
            bad.raise_if_any()
        self.index = self._ranges if self._small_file is None else self._small_file

    def load(self, group: str) -> GroupOffsets:
        if self._small_file is not None:
            partitions, numbers = self._small_file[group]
            return GroupOffsets(group, dict(zip(partitions, _commits(numbers), strict=True)))
        offsets: dict[TopicPartition, Committed] = {}
        for start, end, _, kind in _ranges_of(self._ranges[group]):
            self._stream.seek(start)
            data = self._stream.read(end - start)
            if kind == _PLAIN:
                _, _, _, topics, ids, values = zip(*self._values(data.decode("ascii")), strict=True)
                tps = map(_NEW, repeat(TopicPartition), zip(topics, map(int, ids), strict=True))
                offsets.update(zip(tps, _commits(map(int, values)), strict=True))
            else:
                for line in data.split(b"\n"):
                    if line.strip(self._blank):
                        _, topic, number, value = self.format.parse(_text(line))
                        offsets[TopicPartition(topic, number)] = Committed(value)
        return group_entry(self._what, group, offsets)

    # --- small files ------------------------------------------------------------------------------

    def _read_small_file(self) -> dict[str, _GroupValues] | None:
        """Returns all groups of a small file. Returns `None` if the file is large, if one of its lines is not plain, if
        the lines of a group are not contiguous, or if a partition occurs twice. In these cases, the caller needs the
        index and the checks of the first pass."""
        whole_lines = re.compile(f"^{self.format.plain.pattern.decode('ascii')}(?:(?<=\n)|\\Z)", re.MULTILINE)
        values_by_group: dict[str, _GroupValues] = {}
        known, last = _Partitions(), _GroupValues([], array("q"))
        self._stream.seek(0)
        size = 0
        while block := self._stream.read(_BLOCK_BYTES) + self._stream.readline(MAX_LINE_BYTES):
            size += len(block)
            text = block.decode("ascii", "replace").rstrip("\n")
            found = whole_lines.findall(text)
            if size > _MAX_SMALL_FILE_BYTES or len(found) != text.count("\n") + 1:
                return None
            _, groups, _, topics, numbers, values = zip(*found, strict=True)
            pairs = zip(
                map(known.__getitem__, zip(topics, numbers, strict=True)),
                map(int, values),
                strict=True,
            )
            for group, lines in groupby(groups):
                name = group if self.format.group is None else self.format.group
                partitions, offsets = zip(*islice(pairs, len(list(lines))), strict=True)
                if name not in values_by_group:
                    last = values_by_group[name] = _GroupValues([], array("q"))
                elif values_by_group[name] is not last:
                    return None
                last.partitions.extend(partitions)
                last.offsets.extend(offsets)
        duplicates = any(
            len(set(values_of_group.partitions)) < len(values_of_group.partitions)
            for values_of_group in values_by_group.values()
        )
        longest = max(map(len, [*values_by_group, *(topic for topic, _ in known)]), default=0)
        return values_by_group if values_by_group and not duplicates and longest < MAX_LINE_BYTES // 4 else None

    # --- the first pass ---------------------------------------------------------------------------

    def _find_ranges(self, bad: BadLines) -> list[str]:
        """Builds the index. Returns the groups whose lines are not contiguous."""
        match = self.format.plain.fullmatch
        scattered: dict[str, None] = {}
        seen: dict[tuple[bytes, bytes], int] = {}
        current: bytes | None = None
        kind = -1
        ranges: array[int] = array("q")
        position = first_data = 0
        for number, line in enumerate(lines_of(self._stream), 1):
            start, position = position, position + len(line)
            if number == 1 and line.startswith(BYTE_ORDER_MARK):
                start, line = start + 3, line[3:]  # noqa: PLW2901
            if found := match(line):
                group, topic, partition = found.group(2, 4, 5)
                this = _PLAIN
            elif parsed := self._parse(line, number, first_data == 0, bad):
                group, topic, partition = parsed
                this = _OTHER
            else:
                kind = -1
                first_data = first_data or (number if line.strip(self._blank) else 0)
                continue
            first_data = first_data or number
            if group != current or this != kind:
                if group != current:
                    current, seen = group, {}
                name = group.decode("utf-8") if self.format.group is None else self.format.group
                if name in self._ranges:
                    ranges = self._ranges[name]
                    if not seen:
                        scattered[name] = None
                else:
                    ranges = self._ranges[name] = array("q")
                ranges.extend((start, position, number, this))
                kind = this
            else:
                ranges[-3] = position
            if (before := seen.setdefault((topic, partition), number)) != number:
                bad.add(number, line, f"the same partition as line {before}")
        return list(scattered)

    def _parse(self, line: bytes, number: int, may_be_header: bool, bad: BadLines) -> tuple[bytes, bytes, bytes] | None:
        """Parses a line that is not plain. Returns group, topic and partition; None for an empty line, a header line or
        a bad line. A bad line is added to ``bad``."""
        if not line.strip(self._blank):
            self.empty_rows += [number] if line.strip() else []
            return None
        try:
            text = _text(line)
            if may_be_header and self.format.is_header(text):
                self.format.titled = True
                return None
            group, topic, partition, _ = self.format.parse(text)
        except BadLine as why:
            bad.add(number, line, str(why))
            return None
        return group.encode(), topic.encode(), str(partition).encode()

    def _check_scattered(self, group: str, bad: BadLines) -> None:
        """Finds duplicate partitions in a group whose lines are not contiguous. The first pass finds duplicates only
        among contiguous lines."""
        seen: dict[TopicPartition, int] = {}
        for start, end, first, _ in _ranges_of(self._ranges[group]):
            self._stream.seek(start)
            for number, line in enumerate(self._stream.read(end - start).split(b"\n"), first):
                if line.strip(self._blank):
                    _, topic, partition, _ = self.format.parse(_text(line))
                    before = seen.setdefault(TopicPartition(topic, partition), number)
                    if before != number:
                        bad.add(number, line, f"the same partition as line {before}")


_NEW: Final[Any] = tuple.__new__
"""Skips the argument handling of named tuples, which takes half the time of `LineReader.load`."""


def _commits(offsets: Iterable[int]) -> Iterator[Committed]:
    """Returns commits that have only an offset."""
    return map(
        _NEW, repeat(Committed), zip(offsets, repeat(""), repeat(None), repeat(None), repeat(None), strict=False)
    )


class _GroupValues(NamedTuple):
    """The partitions and offsets of one group in the order of its lines."""

    partitions: list[TopicPartition]
    offsets: array[int]


class _Partitions(dict[tuple[str, str], TopicPartition]):
    """A cache of partitions by topic and number, because groups share most partitions."""

    def __missing__(self, key: tuple[str, str]) -> TopicPartition:
        topic, number = key
        partition = self[key] = TopicPartition(topic, int(number))
        return partition


def require_line_end(stream: BinaryIO, what: str) -> None:
    """Raises `MalformedData` if the last line has no line end. Such a file may have been truncated within its last
    number, so that its last offset is too small."""
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(size - MAX_LINE_BYTES, 0))
    last = stream.read().rpartition(b"\n")[2]
    stream.seek(0)
    if last.strip(b" \t\r,;"):
        shown = last.decode("utf-8", "replace")[-MAX_SHOWN_CHARACTERS:]
        why = f"its last line has no line end, so the file may be truncated within its last number: {shown!r}"
        hint = Advice(
            "take a complete copy of the file; if it is complete, add {accept_unterminated} (offsets import, offsets "
            "reset), or unterminated=accept to a file: URI"
        )
        raise MalformedData(what, why, hint)


def _text(line: bytes) -> str:
    """Decodes a line and removes its line end. Raises `BadLine`."""
    if len(line) >= MAX_LINE_BYTES:
        raise BadLine(f"longer than {MAX_LINE_BYTES - 1} bytes")
    line = line.removesuffix(b"\n").removesuffix(b"\r")
    if b"\0" in line:
        raise BadLine("holds a NUL")
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadLine(f"not UTF-8 at byte {error.start + 1}") from None
    if has_control_character(text):
        raise BadLine("holds a control character")
    return text


def _ranges_of(ranges: array[int]) -> Iterator[tuple[int, int, int, int]]:
    numbers = iter(ranges)
    return zip(numbers, numbers, numbers, numbers, strict=True)


class TextFormat(Format):
    """A format with a text for each group."""

    title: ClassVar[str]
    """The name of the format in errors."""
    forbidden: ClassVar[str] = ""
    """The characters that names cannot contain."""
    end: ClassVar[bytes] = b""

    def _write(self, stream: BinaryIO, header: SnapshotHeader, groups: Iterable[GroupOffsets]) -> None:  # noqa: ARG002
        names = NameCheck(self.title, self.forbidden)
        for group in groups:
            stream.write(self._text(group, names).encode("utf-8"))
        stream.write(self.end)

    @abstractmethod
    def _text(self, group: GroupOffsets, names: NameCheck) -> str:
        """Returns the lines of a group. Raises `UnsupportedOperation` for a name that the format cannot contain."""


class LineFormat(TextFormat):
    """A format with one offset per line. ``group`` is the group of all lines, in a file whose lines contain none.

    ``plain`` is a regular expression that quickly matches usual lines: names in printable ASCII, numbers without
    leading zeros. Its capture groups are quote, group, quote, topic, partition and offset; the quotes and the group may
    be empty. `parse` also handles the lines that ``plain`` does not match. A line of blanks and ``filler`` is empty.
    """

    plain: re.Pattern[bytes]
    filler: ClassVar[bytes] = b""
    titled = False
    """Whether a file begins with a header line."""

    def is_header(self, line: str) -> bool:  # noqa: ARG002
        """Returns whether a file's first line is a header line."""
        return False

    @abstractmethod
    def parse(self, line: str) -> tuple[str, str, int, int]:
        """Parses a line without its line end. Returns group, topic, partition and offset. Raises `BadLine`."""

    def open(self, stream: BinaryIO, *, what: str = "snapshot") -> LineReader:
        return LineReader(stream, self, what)


class NameCheck:
    """Rejects names that a format cannot contain, and caches the valid topic names."""

    def __init__(self, form: str, forbidden: str = "") -> None:
        self._form = form
        self._forbidden = forbidden
        self._valid: set[str] = set()

    def topics(self, partitions: Iterable[TopicPartition], render: Callable[[str], str]) -> dict[str, str]:
        """Returns each topic of ``partitions`` in its written form. Raises `UnsupportedOperation`."""
        return {topic: render(self.require_valid("topic", topic)) for topic in {tp.topic for tp in partitions}}

    def require_valid(self, kind: str, name: str) -> str:
        if name not in self._valid:
            if why := self._problem(name):
                raise UnsupportedOperation(
                    f"{kind} {name!r}", f"{self._form} cannot contain a name that {why}", "write Avro instead"
                )
            if kind == "topic":  # topics occur in many groups, a group id only once
                self._valid.add(name)
        return name

    def _problem(self, name: str) -> str:
        if not name:
            return "is empty"
        if has_control_character(name):
            return "holds control characters"
        if found := next((c for c in self._forbidden if c in name), None):
            return f"holds {found!r}"
        try:
            name.encode("utf-8")
        except UnicodeEncodeError:
            return "is not valid Unicode"
        return ""
