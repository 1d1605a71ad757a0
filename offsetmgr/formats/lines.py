"""Formats of one offset a line: an index of where each group's lines are, and reading them group by group.

Here belongs what CSV and ExportZkOffsets share.  The first pass checks every line and remembers, for each group, the
byte ranges of its lines: one range where a group's lines stand together (the normal case), more where they do not, so
that memory grows with the groups and not with the offsets.  Later passes read one group's ranges at a time.

Decisions: lines end at ``\\n`` or ``\\r\\n``; a byte order mark at the beginning is skipped; empty lines are skipped
wherever they stand; bytes that are not UTF-8 and control characters make a line bad; so does a line over 64 KiB.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import repeat
from typing import BinaryIO, Final, Protocol

from offsetmgr.errors import UnsupportedOperation
from offsetmgr.formats.base import BadLine, BadLines, Carries, Format, GroupEntry, SnapshotHeader, control_character
from offsetmgr.model import Committed, TopicPartition

LONGEST_LINE: Final = 65_536
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
LINES_CARRY: Final = Carries(metadata=False, leader_epoch=False, commit_timestamp=False, header=False, errors=False)

_PLAIN, _OTHER = 1, 0


class LineSyntax(Protocol):
    """One line's grammar.

    ``plain`` matches the usual lines whole and quickly; its groups are (quote, group, quote, topic, partition,
    offset), the quotes and the group possibly empty, names in printable ASCII, numbers without leading zeros.
    """

    @property
    def plain(self) -> re.Pattern[bytes]: ...

    def parse(self, line: str) -> tuple[str, str, int, int]:
        """Group, topic, partition, offset of any line (without its end); raises `BadLine`."""
        ...

    def is_header(self, line: str) -> bool:
        """Whether a file's first line is a title line, and no data."""
        ...


class LineReader:
    """A checked snapshot of lines; ``only_group`` is whose they are where the lines do not say it.

    Raises `MalformedData` on construction, naming the bad lines.
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
        self._index(what)

    def groups(self) -> Iterator[str]:
        return iter(self._runs)

    def read(self) -> Iterator[GroupEntry]:
        for group in self._runs:
            yield self._load(group)

    def find(self, group: str) -> GroupEntry | None:
        return self._load(group) if group in self._runs else None

    def _load(self, group: str) -> GroupEntry:
        new = tuple.__new__  # skips the argument handling of named tuples, half of the time of this loop
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

    # --- the first pass ---------------------------------------------------------------------------

    def _index(self, what: str) -> None:
        bad = BadLines(what)
        spread = self._find_runs(bad)
        for group in spread:
            self._check_spread(group, bad)
        bad.raise_if_any()

    def _find_runs(self, bad: BadLines) -> list[str]:
        """Fills the index; gives back the groups whose lines do not stand together."""
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
        """A line that is not plain: its keys, or None if it is empty, a title or bad."""
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
        """Looks for doubles in a group whose lines stand in several places, which the first pass cannot see."""
        seen: dict[TopicPartition, int] = {}
        for start, end, first, _ in _fours(self._runs[group]):
            self._stream.seek(start)
            for number, line in enumerate(self._stream.read(end - start).split(b"\n"), first):
                if line.strip():
                    _, topic, partition, _ = self._syntax.parse(_text(line))
                    before = seen.setdefault(TopicPartition(topic, partition), number)
                    if before != number:
                        bad.add(number, line, f"the same partition as line {before}")


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    stream.seek(0)
    return iter(partial(stream.readline, LONGEST_LINE), b"")


def _text(line: bytes) -> str:
    """A line as text, without its end; raises `BadLine`."""
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
    """Refuses names that lines cannot carry; remembers the ones that it has seen to be good."""

    def __init__(self, form: str, forbidden: str = "") -> None:
        self._form = form
        self._forbidden = forbidden
        self._good: set[str] = set()

    def topics(self, partitions: Iterable[TopicPartition], render: Callable[[str], str]) -> dict[str, str]:
        """Each topic's name as it is to be written."""
        return {topic: render(self.good("topic", topic)) for topic in {tp.topic for tp in partitions}}

    def good(self, kind: str, name: str) -> str:
        if name not in self._good:
            if why := self._why_not(name):
                raise UnsupportedOperation(
                    f"{kind} {name!r}", f"{self._form} cannot carry a name that {why}", "write Avro instead"
                )
            if kind == "topic":  # topics come again with each group, groups do not
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
