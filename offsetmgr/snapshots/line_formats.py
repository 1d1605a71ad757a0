"""Formats with one offset in each line: an index of each group's lines, and reads group by group.

CSV and ExportZkOffsets share this module. The first pass checks every line and records, for each group, the byte ranges
of its lines: one range if a group's lines are contiguous (the normal case), more if they are not, so that memory grows
with the groups and not with the offsets. Later passes read one group's ranges at a time. A small file without anything
unusual is read at once, in half of the time.

Decisions: lines end with ``\\n`` or ``\\r\\n``; a byte order mark at the beginning is skipped; empty lines are skipped
anywhere; bytes that are not UTF-8 and control characters make a line bad; so does a line over 64 KiB.
"""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import groupby, islice, repeat
from typing import BinaryIO, Final, NamedTuple, Protocol

from offsetmgr.core.errors import MalformedData, UnsupportedOperation
from offsetmgr.core.model import Committed, TopicPartition
from offsetmgr.snapshots.base import (
    SHOWN,
    BadLine,
    BadLines,
    Format,
    FormatCapabilities,
    GroupEntry,
    SnapshotHeader,
    control_character,
)

LONGEST_LINE: Final = 65_536
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
LINES_CARRY: Final = FormatCapabilities(
    metadata=False, leader_epoch=False, commit_timestamp=False, header=False, errors=False
)

_PLAIN, _OTHER = 1, 0

_SMALL: Final = 4 * 1024 * 1024
"""The maximum size of a file that is read at once: less than 200,000 lines of 16 bytes or more."""

_BLOCK: Final = 32_768


class LineSyntax(Protocol):
    """The grammar of one line.

    ``plain`` matches the usual lines completely and quickly; its groups are (quote, group, quote, topic, partition,
    offset), the quotes and the group possibly empty, names in printable ASCII, numbers without leading zeros.
    """

    @property
    def plain(self) -> re.Pattern[bytes]: ...

    def parse(self, line: str) -> tuple[str, str, int, int]:
        """Returns group, topic, partition and offset of any line (without its end); raises `BadLine`."""
        ...

    def is_header(self, line: str) -> bool:
        """Returns whether a file's first line is a header line."""
        ...


class LineReader:
    """A checked snapshot of lines; ``only_group`` is the group if the lines do not contain one.

    The constructor raises `MalformedData` with the bad lines.
    """

    header: SnapshotHeader | None = None

    def __init__(
        self, stream: BinaryIO, syntax: LineSyntax, form: Format, *, what: str, only_group: str | None = None
    ) -> None:
        self.format = form
        self._only_group = only_group
        self._stream = stream
        self._syntax = syntax
        self._values = re.compile(syntax.plain.pattern.decode("ascii")).findall
        self._runs: dict[str, array[int]] = {}
        """Group -> start, end, number of the first line, plain or not; four numbers for each range."""
        self._whole = self._take_in()
        """All groups of a small file; None if the index is used."""
        if self._whole is None:
            self._index(what)

    def groups(self) -> Iterator[str]:
        return iter(self._runs if self._whole is None else self._whole)

    def read(self) -> Iterator[GroupEntry]:
        for group in self.groups():
            yield self._load(group)

    def find(self, group: str) -> GroupEntry | None:
        return self._load(group) if group in (self._runs if self._whole is None else self._whole) else None

    def _load(self, group: str) -> GroupEntry:
        new = tuple.__new__  # skips the argument handling of named tuples, half of the time of this loop
        if self._whole is not None:
            few = self._whole[group]
            fields = zip(few.offsets, repeat(""), repeat(None), repeat(None), repeat(None), strict=False)
            return GroupEntry(group, dict(zip(few.partitions, map(new, repeat(Committed), fields), strict=True)))
        offsets: dict[TopicPartition, Committed] = {}
        for start, end, _, kind in _fours(self._runs[group]):
            self._stream.seek(start)
            data = self._stream.read(end - start)
            if kind == _PLAIN:
                _, _, _, topics, numbers, values = zip(*self._values(data.decode("ascii")), strict=True)
                partitions = map(new, repeat(TopicPartition), zip(topics, map(int, numbers), strict=True))
                fields = zip(map(int, values), repeat(""), repeat(None), repeat(None), repeat(None), strict=False)
                offsets.update(zip(partitions, map(new, repeat(Committed), fields), strict=True))
            else:
                for line in data.split(b"\n"):
                    if line.strip():
                        _, topic, number, value = self._syntax.parse(_text(line))
                        offsets[TopicPartition(topic, number)] = Committed(value)
        return GroupEntry(group, offsets)

    # --- small files ------------------------------------------------------------------------------

    def _take_in(self) -> dict[str, _OpenFiles] | None:
        """Returns every group of a small file of plain lines, each group contiguous and no partition twice; None for
        any other file, which needs the index and its checks."""
        whole_lines = re.compile(f"^{self._syntax.plain.pattern.decode('ascii')}(?:(?<=\n)|\\Z)", re.MULTILINE)
        taken: dict[str, _OpenFiles] = {}
        known, last = _Partitions(), _OpenFiles([], array("q"))
        self._stream.seek(0)
        size = 0
        while block := self._stream.read(_BLOCK) + self._stream.readline(LONGEST_LINE):
            size += len(block)
            text = block.decode("ascii", "replace").rstrip("\n")
            found = whole_lines.findall(text)
            if size > _SMALL or len(found) != text.count("\n") + 1:
                return None
            _, groups, _, topics, numbers, values = zip(*found, strict=True)
            pairs = zip(
                map(known.__getitem__, zip(topics, numbers, strict=True)),
                map(int, values),
                strict=True,
            )
            for group, lines in groupby(groups):
                name = group if self._only_group is None else self._only_group
                partitions, offsets = zip(*islice(pairs, len(list(lines))), strict=True)
                if name not in taken:
                    last = taken[name] = _OpenFiles([], array("q"))
                elif taken[name] is not last:
                    return None
                last.partitions.extend(partitions)
                last.offsets.extend(offsets)
        doubles = any(len(set(few.partitions)) < len(few.partitions) for few in taken.values())
        longest = max(map(len, [*taken, *(topic for topic, _ in known)]), default=0)
        return taken if taken and not doubles and longest < LONGEST_LINE // 4 else None

    # --- the first pass ---------------------------------------------------------------------------

    def _index(self, what: str) -> None:
        bad = BadLines(what)
        spread = self._find_runs(bad)
        for group in spread:
            self._check_spread(group, bad)
        bad.raise_if_any()

    def _find_runs(self, bad: BadLines) -> list[str]:
        """Builds the index; returns the groups whose lines are not contiguous."""
        match = self._syntax.plain.fullmatch
        spread: dict[str, None] = {}
        seen: dict[tuple[bytes, bytes], int] = {}
        current: bytes | None = None
        kind = -1
        run: array[int] = array("q")
        position = first_data = 0
        for number, line in enumerate(_lines(self._stream), 1):
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
                first_data = first_data or (number if line.strip() else 0)
                continue
            first_data = first_data or number
            if group != current or this != kind:
                if group != current:
                    current, seen = group, {}
                name = group.decode("utf-8") if self._only_group is None else self._only_group
                if name in self._runs:
                    run = self._runs[name]
                    if not seen:
                        spread[name] = None
                else:
                    run = self._runs[name] = array("q")
                run.extend((start, position, number, this))
                kind = this
            else:
                run[-3] = position
            if (before := seen.setdefault((topic, partition), number)) != number:
                bad.add(number, line, f"the same partition as line {before}")
        return list(spread)

    def _parse(self, line: bytes, number: int, may_be_header: bool, bad: BadLines) -> tuple[bytes, bytes, bytes] | None:
        """Parses a line that is not plain: returns its keys, or None if it is empty, a header or bad."""
        if not line.strip():
            return None
        try:
            text = _text(line)
            if may_be_header and self._syntax.is_header(text):
                return None
            group, topic, partition, _ = self._syntax.parse(text)
        except BadLine as why:
            bad.add(number, line, str(why))
            return None
        return group.encode(), topic.encode(), str(partition).encode()

    def _check_spread(self, group: str, bad: BadLines) -> None:
        """Looks for duplicates in a group whose lines are in several places, which the first pass cannot see."""
        seen: dict[TopicPartition, int] = {}
        for start, end, first, _ in _fours(self._runs[group]):
            self._stream.seek(start)
            for number, line in enumerate(self._stream.read(end - start).split(b"\n"), first):
                if line.strip():
                    _, topic, partition, _ = self._syntax.parse(_text(line))
                    before = seen.setdefault(TopicPartition(topic, partition), number)
                    if before != number:
                        bad.add(number, line, f"the same partition as line {before}")


class _OpenFiles(NamedTuple):
    """One group's values in the order of its lines."""

    partitions: list[TopicPartition]
    offsets: array[int]


class _Partitions(dict[tuple[str, str], TopicPartition]):
    """Partitions by topic and number: most groups have those of another group."""

    def __missing__(self, key: tuple[str, str]) -> TopicPartition:
        topic, number = key
        partition = self[key] = TopicPartition(topic, int(number))
        return partition


def require_line_end(stream: BinaryIO, what: str) -> None:
    """Raises `MalformedData` if the last line has no line end: a file that was truncated inside its last number would
    give a smaller offset."""
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(size - LONGEST_LINE, 0))
    last = stream.read().rpartition(b"\n")[2]
    stream.seek(0)
    if last.strip():
        shown = last.decode("utf-8", "replace")[-SHOWN:]
        why = f"its last line has no line end, so the file may be cut inside its last number: {shown!r}"
        hint = (
            "take a complete copy of the file; if it is complete, add --accept-unterminated (offsets import, offsets "
            "reset), or unterminated=accept to a file: URI"
        )
        raise MalformedData(what, why, hint)


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    stream.seek(0)
    return iter(partial(stream.readline, LONGEST_LINE), b"")


def _text(line: bytes) -> str:
    """Returns a line as text, without its end; raises `BadLine`."""
    if len(line) >= LONGEST_LINE:
        raise BadLine(f"longer than {LONGEST_LINE - 1} bytes")
    line = line.removesuffix(b"\n").removesuffix(b"\r")
    if b"\0" in line:
        raise BadLine("holds a NUL")
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadLine(f"not UTF-8 at byte {error.start + 1}") from None
    if control_character(text):
        raise BadLine("holds a control character")
    return text


def _fours(run: array[int]) -> Iterator[tuple[int, int, int, int]]:
    numbers = iter(run)
    return zip(numbers, numbers, numbers, numbers, strict=True)


class NameCheck:
    """Rejects names that lines cannot hold; caches the valid ones."""

    def __init__(self, form: str, forbidden: str = "") -> None:
        self._form = form
        self._forbidden = forbidden
        self._good: set[str] = set()

    def topics(self, partitions: Iterable[TopicPartition], render: Callable[[str], str]) -> dict[str, str]:
        """Returns each topic's name as it is written."""
        return {topic: render(self.good("topic", topic)) for topic in {tp.topic for tp in partitions}}

    def good(self, kind: str, name: str) -> str:
        if name not in self._good:
            if why := self._why_not(name):
                raise UnsupportedOperation(
                    f"{kind} {name!r}", f"{self._form} cannot carry a name that {why}", "write Avro instead"
                )
            if kind == "topic":  # topics repeat with each group, groups do not
                self._good.add(name)
        return name

    def _why_not(self, name: str) -> str:
        if not name:
            return "is empty"
        if control_character(name):
            return "holds control characters"
        if found := next((c for c in self._forbidden if c in name), None):
            return f"holds {found!r}"
        try:
            name.encode("utf-8")
        except UnicodeEncodeError:
            return "is not valid Unicode"
        return ""
