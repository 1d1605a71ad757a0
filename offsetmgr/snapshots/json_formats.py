"""The JSON formats of snapshots: a stream of documents, kafka-utils, and the starting offsets of a Spark job."""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, Final, NoReturn

from offsetmgr.core.batches import by_topic
from offsetmgr.core.errors import OffsetMgrError, UnsupportedOperation, UsageError
from offsetmgr.core.model import MAX_OFFSET, Committed, TopicPartition
from offsetmgr.core.offset_store import GroupOffsets
from offsetmgr.core.selection import MAX_PARTITION
from offsetmgr.snapshots.base import (
    MAX_BAD_LINES,
    NAME_THE_GROUP,
    BadLine,
    BadLines,
    Format,
    LoadedReader,
    SnapshotHeader,
    SnapshotReader,
    group_entry,
    has_control_character,
    number,
)
from offsetmgr.snapshots.line_formats import BYTE_ORDER_MARK, NameCheck, TextFormat

# Reads a stream of JSON documents one at a time. Both JSON formats use this reader. A document may be on one line, as
# the writers of these formats write it, or on several lines. Errors name the line. A duplicate key in an object is an
# error, because a JSON parser would silently keep only the last value.

_BRACKETS: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]')
_TOKENS: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|\n')


@dataclass(frozen=True, slots=True)
class Document:
    """One document: its position in the stream (bytes), the number of its first line, and its text."""

    start: int
    end: int
    line: int
    data: bytes

    def parse(self) -> dict[str, Any]:
        """Parses the document, which must be a JSON object. Raises `BadEntry`."""
        try:
            text = self.data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadEntry(self.line + self.data[: error.start].count(b"\n"), "not UTF-8") from None
        try:
            parsed = json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_no_constant)
        except json.JSONDecodeError as error:
            raise BadEntry(self.line + error.lineno - 1, f"not JSON, column {error.colno}: {error.msg}") from None
        except _DuplicateKey as duplicate:
            (key,) = duplicate.args
            first, second = self.lines_of_duplicate(key)
            raise BadEntry(second, f"key {key!r} came before, in line {first}") from None
        except RecursionError:
            raise BadEntry(self.line, "nested too deeply") from None
        except ValueError as error:  # a number of thousands of digits, NaN
            raise BadEntry(self.line, str(error).partition(";")[0]) from None
        if not isinstance(parsed, dict):
            raise BadEntry(self.line, "not a JSON object")
        return parsed

    def line_of(self, path: tuple[str, ...]) -> int:
        """Returns the line of the key at ``path``; the first line of the document if there is no such key."""
        return next((line for found, line in self._keys() if found == path), self.line)

    def lines_of_duplicate(self, key: str) -> tuple[int, int]:
        """Returns the lines of the first two occurrences of ``key`` in the same object."""
        seen: dict[tuple[str, ...], int] = {}
        for path, line in self._keys():
            if path[-1] == key and path in seen:
                return seen[path], line
            seen.setdefault(path, line)
        return self.line, self.line

    def _keys(self) -> Iterator[tuple[tuple[str, ...], int]]:
        """Yields the path and the line of each key of a valid document. Used only for error messages."""
        line = self.line
        path: list[str] = []
        text = ""
        for match in _TOKENS.finditer(self.data.decode("utf-8")):
            token = match.group()
            if token == "\n":
                line += 1
            elif token == ":":
                path[-1] = text
                yield tuple(path), line
            elif token in "{[":
                path.append("")
            elif token in "}]":
                path.pop()
            elif token != ",":
                text = json.loads(token)


class BadEntry(Exception):
    """A document is invalid. ``problems`` contains one or several reasons, each with its line."""

    def __init__(self, line: int, why: str, *more: tuple[int, str]) -> None:
        super().__init__(why)
        self.problems = ((line, why), *more)

    def add_to(self, document: Document, bad: BadLines) -> None:
        """Adds the reasons to the bad lines of the file."""
        lines = document.data.split(b"\n")
        for line, why in self.problems:
            bad.add(line, lines[line - document.line], why)


class _DuplicateKey(Exception):
    """An object has a key twice. The argument is the key."""


def documents(stream: BinaryIO, bad: BadLines) -> Iterator[Document]:
    """Yields all documents of a stream. If a line does not belong to a document, adds the line to ``bad`` and continues
    with the next line."""
    stream.seek(0)
    position = depth = begin_line = 0
    begin = 0
    lines: list[bytes] = []
    for line_number, line in enumerate(stream, 1):
        start, position = position, position + len(line)
        if line_number == 1 and line.startswith(BYTE_ORDER_MARK):
            start, line = start + 3, line[3:]  # noqa: PLW2901
        if not lines:
            if not line.strip():
                continue
            if not line.lstrip().startswith(b"{"):
                bad.add(line_number, line, "not a JSON object")
                continue
            begin, begin_line = start, line_number
        lines.append(line)
        for bracket in _BRACKETS.findall(line):
            depth += 1 if bracket in b"{[" else -1 if bracket in b"}]" else 0
        if depth <= 0:
            yield Document(begin, position, begin_line, b"".join(lines))
            lines, depth = [], 0
    if lines:
        bad.add(begin_line, lines[0], "a JSON object that does not end")


def offsets_of(document: Document, parsed: Any, path: tuple[str, ...], lowest: int) -> dict[TopicPartition, int]:
    """Returns the offsets in the object ``{"topic": {"partition": offset}}``. ``path`` is the path of the object in the
    document, ``lowest`` the smallest valid offset. Raises `BadEntry` with all bad entries."""
    if not isinstance(parsed, dict):
        raise BadEntry(document.line_of(path), "not an object of topics")
    found: dict[TopicPartition, int] = {}
    problems: list[tuple[int, str]] = []
    for topic, partitions in parsed.items():
        is_name = topic and not has_control_character(topic)
        if not is_name or not isinstance(partitions, dict):
            why = "holds no object of partitions" if is_name else "is not a valid name"
            problems.append((document.line_of((*path, topic)), f"topic {topic!r} {why}"))
            continue
        for text, offset in partitions.items():
            try:
                tp = TopicPartition(topic, number(text, MAX_PARTITION, "partition"))
                if type(offset) is not int:
                    raise BadLine(f"offset {json.dumps(offset)[:40]} is not a whole number")
                if not lowest <= offset <= MAX_OFFSET:
                    raise BadLine(f"negative offset {offset}" if offset < 0 else f"offset is larger than {MAX_OFFSET}")
                if tp in found:
                    raise BadLine("occurs twice, with another spelling of the number")
                found[tp] = offset
            except BadLine as bad:
                problems.append((document.line_of((*path, topic, text)), f"topic {topic!r}, partition {text!r}: {bad}"))
                if len(problems) >= MAX_BAD_LINES:
                    raise BadEntry(*problems[0], *problems[1:]) from None
    if problems:
        raise BadEntry(*problems[0], *problems[1:])
    return found


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    parsed = dict(pairs)
    if len(parsed) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _DuplicateKey(key)
            seen.add(key)
    return parsed


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


# The JSON format of Yelp's kafka-utils: ``{"groupid": "g", "offsets": {"t": {"0": 42}}}``. The tools of kafka-utils
# write and read one group per file. `KafkaUtilsFormat` writes any number of groups to a file: one JSON document per
# group, and each document on one line. It reads any number of documents, each on one line or on several lines.


class KafkaUtilsFormat(TextFormat):
    """The format of kafka-utils, with one JSON document per group."""

    name = "json"
    groups_in = "documents"
    title = "JSON"

    def _text(self, group: GroupOffsets, names: NameCheck) -> str:
        names.require_valid("group", group.name)
        document = {"groupid": group.name, "offsets": _by_topic(group.offsets, names)}
        return json.dumps(document, ensure_ascii=False) + "\n"

    def open(self, stream: BinaryIO, *, what: str = "snapshot") -> KafkaUtilsReader:
        return KafkaUtilsReader(stream, self, what)


class KafkaUtilsReader(SnapshotReader):
    """The reader of a checked file. It keeps an index with three numbers per group in memory."""

    def __init__(self, stream: BinaryIO, form: KafkaUtilsFormat, what: str) -> None:
        self.format = form
        self._stream = stream
        self._what = what
        self.index: dict[str, array[int]] = {}
        """For each group the start and the end of its document (in bytes), and the number of its first line."""
        bad = BadLines(what)
        for document in documents(stream, bad):
            try:
                group, _ = _read(document)
                if group in self.index:
                    why = f"group {group!r} came before, in line {self.index[group][2]}"
                    raise BadEntry(document.line, why)
                self.index[group] = array("q", (document.start, document.end, document.line))
            except BadEntry as entry:
                entry.add_to(document, bad)
        bad.raise_if_any()

    def load(self, group: str) -> GroupOffsets:
        start, end, line = self.index[group]
        self._stream.seek(start)
        _, found = _read(Document(start, end, line, self._stream.read(end - start)))
        return group_entry(self._what, group, {tp: Committed(offset) for tp, offset in found.items()})


def is_kafka_utils(parsed: dict[str, Any]) -> bool:
    """Returns whether a document is kafka-utils' JSON and not Spark's, whose keys are topics."""
    return isinstance(parsed.get("groupid"), str) or ("groupid" not in parsed and set(parsed) == {"offsets"})


def _by_topic(offsets: Mapping[TopicPartition, Committed], names: NameCheck) -> dict[str, dict[str, int]]:
    """Returns a mapping of partitions to offsets as ``{"topic": {"partition": offset}}``."""
    names.topics(offsets, str)
    return by_topic({tp: committed.offset for tp, committed in offsets.items()})


def _read(document: Document) -> tuple[str, dict[TopicPartition, int]]:
    parsed = document.parse()
    if not is_kafka_utils(parsed):
        raise BadEntry(document.line, 'no "groupid" with a name')
    if unknown := sorted(set(parsed) - {"groupid", "offsets"}):
        raise BadEntry(document.line_of((unknown[0],)), f"unknown key {unknown[0]!r}")
    group = parsed.get("groupid")
    if not isinstance(group, str) or not group or has_control_character(group):
        raise BadEntry(document.line_of(("groupid",)), f"group {group!r} is not a valid name")
    if "offsets" not in parsed:
        raise BadEntry(document.line, 'no "offsets"')
    return group, offsets_of(document, parsed["offsets"], ("offsets",), lowest=-MAX_OFFSET)


# Spark's JSON of one query's offsets, as in startingOffsets and endingOffsets: ``{"t": {"0": 23, "1": -2}}``. The
# JSON does not contain the name of a group, so the caller must supply it. The values -2 and -1 stand for the earliest
# and the latest offset of the partition's log when Spark starts. These two values are not offsets, and only the
# partition's log shows which offsets they stand for. The reader returns a `SymbolicOffset` error for each partition
# with such a value (data rule "absent is not zero").

EARLIEST: Final = -2
LATEST: Final = -1
_NAMES: Final = {EARLIEST: "earliest", LATEST: "latest"}


class SymbolicOffset(OffsetMgrError):
    """The error of an entry that contains *earliest* or *latest* instead of an offset. ``position`` is `EARLIEST` or
    `LATEST`."""

    def __init__(self, what: str, why: str = "", hint: str = "", *, position: int = LATEST) -> None:
        super().__init__(what, why, hint)
        self.position = position


class SparkFormat(Format):
    """The offsets of exactly one group. ``group`` is the name of the group, which is required for reading."""

    name = "spark"

    @property
    def cannot_hold(self) -> str:
        return f"the group's name, {super().cannot_hold}"

    def _without_written_errors(self, group: GroupOffsets, number: int) -> GroupOffsets:
        """Also raises `UnsupportedOperation` for a second group, and for a group whose name differs from the name that
        was passed to the constructor."""
        if number or self.group not in (None, group.name):
            hint = "choose one group, or another format"
            raise UnsupportedOperation(f"group {group.name}", "Spark's JSON holds exactly one group", hint)
        return replace(
            group, errors={tp: error for tp, error in group.errors.items() if not isinstance(error, SymbolicOffset)}
        )

    def _write(self, stream: BinaryIO, header: SnapshotHeader, groups: Iterable[GroupOffsets]) -> None:  # noqa: ARG002
        """Raises `UnsupportedOperation` if there is no group, and no name was passed to the constructor."""
        found = list(groups) or ([] if self.group is None else [GroupOffsets(self.group, {})])
        if not found:
            raise UnsupportedOperation("Spark's JSON", "it holds exactly one group, and there is none")
        (group,) = found  # `_without_written_errors` has rejected further groups
        symbolic = {tp: Committed(e.position) for tp, e in group.errors.items() if isinstance(e, SymbolicOffset)}
        document = _by_topic({**group.offsets, **symbolic}, NameCheck("Spark's JSON"))
        stream.write(json.dumps(document, ensure_ascii=False).encode("utf-8") + b"\n")

    def open(self, stream: BinaryIO, *, what: str = "snapshot") -> LoadedReader:
        if self.group is None:
            raise UsageError(what, "Spark's JSON does not contain the group", NAME_THE_GROUP)
        entry = self._read(stream, what)
        return LoadedReader(self, None, {entry.name: entry} if entry.offsets or entry.errors else {})

    def _read(self, stream: BinaryIO, what: str) -> GroupOffsets:
        bad = BadLines(what)
        found: dict[TopicPartition, int] = {}
        first: int | None = None
        for document in documents(stream, bad):
            try:
                if first is not None:
                    raise BadEntry(document.line, f"a second document; the first one begins in line {first}")
                first = document.line
                found = offsets_of(document, document.parse(), (), lowest=EARLIEST)
            except BadEntry as entry:
                entry.add_to(document, bad)
        if first is None:
            bad.add(1, b"", "no JSON object")
        bad.raise_if_any()
        offsets: dict[TopicPartition, Committed] = {}
        errors: dict[TopicPartition, OffsetMgrError] = {}
        for tp, offset in found.items():
            if offset >= 0:
                offsets[tp] = Committed(offset)
            else:
                why = f"{offset} means the {_NAMES[offset]} offset of the log, which is not in the file"
                errors[tp] = SymbolicOffset(f"{what}: {tp}", why, "replace it by the offset itself", position=offset)
        return GroupOffsets(self.group or "", offsets, errors)
