"""Reads a stream of JSON documents one at a time. Both JSON formats use this reader.

A document may be on one line, as the writers of these formats write it, or on several lines. Errors name the line. A
duplicate key in an object is an error, because a JSON parser would silently keep only the last value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, NoReturn

from offsetmgr.core.model import MAX_OFFSET, TopicPartition
from offsetmgr.snapshots.base import (
    MAX_BAD_LINES,
    MAX_PARTITION,
    BadLine,
    BadLines,
    has_control_character,
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
            first, second = self.lines_of_duplicate(duplicate.key)
            raise BadEntry(second, f"key {duplicate.key!r} came before, in line {first}") from None
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
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


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
        try:
            _check_topic(topic, partitions)
        except BadLine as why:
            problems.append((document.line_of((*path, topic)), f"topic {topic!r} {why}"))
            continue
        for text, offset in partitions.items():
            try:
                tp = TopicPartition(topic, number(text, MAX_PARTITION, "partition"))
                if type(offset) is not int or not lowest <= offset <= MAX_OFFSET:
                    raise BadLine(_offset_problem(offset))
                if tp in found:
                    raise BadLine("occurs twice, with another spelling of the number")
                found[tp] = offset
            except BadLine as why:
                problems.append((document.line_of((*path, topic, text)), f"topic {topic!r}, partition {text!r}: {why}"))
                if len(problems) >= MAX_BAD_LINES:
                    raise BadEntry(*problems[0], *problems[1:]) from None
    if problems:
        raise BadEntry(*problems[0], *problems[1:])
    return found


def _check_topic(topic: str, partitions: Any) -> None:
    if not topic or has_control_character(topic):
        raise BadLine("is not a valid name")
    if not isinstance(partitions, dict):
        raise BadLine("holds no object of partitions")


def check_name(document: Document, path: tuple[str, ...], kind: str, name: Any) -> str:
    """Returns ``name`` if it is a valid name. Raises `BadEntry` with the line of ``path`` otherwise."""
    if not isinstance(name, str) or not name or has_control_character(name):
        raise BadEntry(document.line_of(path), f"{kind} {name!r} is not a valid name")
    return name


def _offset_problem(offset: Any) -> str:
    if type(offset) is not int:
        return f"offset {json.dumps(offset)[:40]} is not a whole number"
    return f"negative offset {offset}" if offset < 0 else f"offset is larger than {MAX_OFFSET}"


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
