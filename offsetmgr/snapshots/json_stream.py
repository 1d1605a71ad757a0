"""Reads JSON documents of a stream one at a time, each with the line where it begins.

The JSON formats share this module. A document may be in one line (as they are written) or in many; only one is in
memory at a time. Duplicate keys in one object are errors, because JSON parsers keep the last one silently.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, NoReturn

from offsetmgr.core.model import TopicPartition
from offsetmgr.snapshots.base import (
    MAX_BAD_LINES,
    MAX_OFFSET,
    MAX_PARTITION,
    BadLine,
    BadLines,
    control_character,
    number,
)
from offsetmgr.snapshots.line_formats import BYTE_ORDER_MARK

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
        """Returns the document as Python objects; raises `BadEntry`."""
        try:
            text = self.data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise BadEntry(self.line + self.data[: error.start].count(b"\n"), "not UTF-8") from None
        try:
            parsed = json.loads(text, object_pairs_hook=_without_doubles, parse_constant=_no_constant)
        except json.JSONDecodeError as error:
            raise BadEntry(self.line + error.lineno - 1, f"not JSON, column {error.colno}: {error.msg}") from None
        except _Double as double:
            first, second = self.lines_of_double(double.key)
            raise BadEntry(second, f"key {double.key!r} came before, in line {first}") from None
        except RecursionError:
            raise BadEntry(self.line, "nested too deeply") from None
        except ValueError as error:  # a number of thousands of digits, NaN
            raise BadEntry(self.line, str(error).partition(";")[0]) from None
        if not isinstance(parsed, dict):
            raise BadEntry(self.line, "not a JSON object")
        return parsed

    def line_of(self, path: tuple[str, ...]) -> int:
        """Returns the line of the key at ``path``; the document's first if there is no such key."""
        return next((line for found, line in self._keys() if found == path), self.line)

    def lines_of_double(self, key: str) -> tuple[int, int]:
        """Returns the lines of the first duplicate key in one object."""
        seen: dict[tuple[str, ...], int] = {}
        for path, line in self._keys():
            if path[-1] == key and path in seen:
                return seen[path], line
            seen.setdefault(path, line)
        return self.line, self.line

    def _keys(self) -> Iterator[tuple[tuple[str, ...], int]]:
        """Yields all keys of a valid document with path and line. Only errors need this."""
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
    """Why a document is invalid: one reason, or several, each with its line."""

    def __init__(self, line: int, why: str, *more: tuple[int, str]) -> None:
        super().__init__(why)
        self.problems = ((line, why), *more)

    def note(self, document: Document, bad: BadLines) -> None:
        """Adds the reasons to those of the file."""
        lines = document.data.split(b"\n")
        for line, why in self.problems:
            bad.add(line, lines[line - document.line], why)


class _Double(Exception):
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def documents(stream: BinaryIO, bad: BadLines) -> Iterator[Document]:
    """Yields all documents of a stream; records invalid text in ``bad`` and continues after it."""
    stream.seek(0)
    position = depth = begin_line = 0
    begin = 0
    held: list[bytes] = []
    for line_number, line in enumerate(stream, 1):
        start, position = position, position + len(line)
        if line_number == 1 and line.startswith(BYTE_ORDER_MARK):
            start, line = start + 3, line[3:]  # noqa: PLW2901
        if not held:
            if not line.strip():
                continue
            if not line.lstrip().startswith(b"{"):
                bad.add(line_number, line, "not a JSON object")
                continue
            begin, begin_line = start, line_number
        held.append(line)
        for bracket in _BRACKETS.findall(line):
            depth += 1 if bracket in b"{[" else -1 if bracket in b"}]" else 0
        if depth <= 0:
            yield Document(begin, position, begin_line, b"".join(held))
            held, depth = [], 0
    if held:
        bad.add(begin_line, held[0], "a JSON object that does not end")


def offsets_of(document: Document, parsed: Any, path: tuple[str, ...], lowest: int) -> dict[TopicPartition, int]:
    """Parses ``{"topic": {"partition": offset}}``; ``path`` is its path in the document. Offsets are at least
    ``lowest``. Raises `BadEntry` with the bad entries."""
    if not isinstance(parsed, dict):
        raise BadEntry(document.line_of(path), "not an object of topics")
    found: dict[TopicPartition, int] = {}
    problems: list[tuple[int, str]] = []
    for topic, partitions in parsed.items():
        try:
            _check_topic(topic, partitions)
        except BadLine as why:
            problems.append((document.line_of((*path, topic)), f"topic {topic!r} {why}"))
            continue
        for text, offset in partitions.items():
            try:
                tp = TopicPartition(topic, number(text, MAX_PARTITION, "partition"))
                if type(offset) is not int or not lowest <= offset <= MAX_OFFSET:
                    raise BadLine(_why_no_offset(offset))
                if tp in found:
                    raise BadLine("came before, written otherwise")
                found[tp] = offset
            except BadLine as why:
                problems.append((document.line_of((*path, topic, text)), f"topic {topic!r}, partition {text!r}: {why}"))
                if len(problems) >= MAX_BAD_LINES:
                    raise BadEntry(*problems[0], *problems[1:]) from None
    if problems:
        raise BadEntry(*problems[0], *problems[1:])
    return found


def _check_topic(topic: str, partitions: Any) -> None:
    if not topic or control_character(topic):
        raise BadLine("is no name")
    if not isinstance(partitions, dict):
        raise BadLine("holds no object of partitions")


def check_name(document: Document, path: tuple[str, ...], kind: str, name: Any) -> str:
    """Returns a group's name; raises `BadEntry`."""
    if not isinstance(name, str) or not name or control_character(name):
        raise BadEntry(document.line_of(path), f"{kind} {name!r} is no name")
    return name


def _why_no_offset(offset: Any) -> str:
    if type(offset) is not int:
        return f"offset {json.dumps(offset)[:40]} is not a whole number"
    return f"negative offset {offset}" if offset < 0 else f"offset is larger than {MAX_OFFSET}"


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _Double(key)
            seen.add(key)
    return made


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")
