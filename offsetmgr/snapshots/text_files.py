"""Reads text files as spreadsheets and shells save them: in UTF-16, with CR alone at the end of each line, or with
other separators than commas. Such a file is converted in memory, with the same numbers of lines; any other is read as
it is.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import io
import re
from collections.abc import Collection, Iterator
from functools import partial
from typing import BinaryIO, Final

from offsetmgr.core.errors import MalformedData
from offsetmgr.snapshots.base import BadLine

MAX_LINE_BYTES: Final = 65_536
_SEPARATORS: Final = ",;\t"
_EMPTY: Final = codecs.BOM_UTF8 + b" \t\r\n\v\f,;"
"""The bytes of a line without values."""
_SEPARATOR_LINE: Final = re.compile(r'"?sep=([,;\t|])"?', re.IGNORECASE)
"""The first line with which Excel names the separator of a CSV file."""


def as_utf8(stream: BinaryIO, what: str) -> BinaryIO:
    """Returns the stream, or a copy in UTF-8 with ``\\n`` if the text is in UTF-16 or its lines end with CR alone.

    ``what`` names the file in errors. Raises `MalformedData` for invalid UTF-16.
    """
    sample = stream.read(MAX_LINE_BYTES)
    stream.seek(0)
    # Without a byte order mark, zero bytes show the encoding, because the first characters of these files are ASCII.
    encoding, errors = "utf-8", "surrogateescape"  # the reader of the lines reports bytes that are not UTF-8
    if sample.startswith(codecs.BOM_UTF16_LE) or sample[1:4:2] == b"\0\0":
        encoding, errors = "utf-16-le", "strict"
    elif sample.startswith(codecs.BOM_UTF16_BE) or sample[:3:2] == b"\0\0":
        encoding, errors = "utf-16-be", "strict"
    elif b"\n" in sample or b"\r" not in sample:
        return stream
    try:
        text = stream.read().decode(encoding, errors)
    except UnicodeDecodeError as error:
        raise MalformedData(what, f"it is not valid UTF-16: {error.reason}", "save it again as UTF-8") from None
    return io.BytesIO(text.replace("\r\n", "\n").replace("\r", "\n").encode("utf-8", errors))


def comma_separated(stream: BinaryIO, columns: Collection[int]) -> BinaryIO:
    """Returns the stream of a CSV file in UTF-8, or a copy with commas if its separators are semicolons or tabs.
    ``columns`` are the possible numbers of values in a line."""
    first = next((line for line in lines_of(stream) if line.strip(_EMPTY)), b"")
    text = first.decode("utf-8", "replace").removeprefix("\ufeff").strip("\r\n")
    named = _SEPARATOR_LINE.fullmatch(text)
    fitting = (one for one in _SEPARATORS if count_of_values(text, one) in columns)
    separator = named[1] if named else next(fitting, ",")
    stream.seek(0)
    if separator == "," and not named:
        return stream
    lines = stream.read().removeprefix(codecs.BOM_UTF8).decode("utf-8", "surrogateescape").split("\n")
    if named:
        lines = ["" if line.strip("\r") == text else line for line in lines]
    for number, line in enumerate(lines):
        with contextlib.suppress(BadLine):  # the reader of the lines reports a line that cannot be split
            lines[number] = ",".join(map(quoted, split(line.rstrip("\r"), separator)))
    return io.BytesIO("\n".join(lines).encode("utf-8", "surrogateescape"))


def lines_of(stream: BinaryIO) -> Iterator[bytes]:
    """Yields the lines from the beginning of the file; a line of `MAX_LINE_BYTES` or more in several parts."""
    stream.seek(0)
    return iter(partial(stream.readline, MAX_LINE_BYTES), b"")


def split(line: str, separator: str = ",") -> list[str]:
    """Returns the values of a line. Raises `BadLine`."""
    try:
        return next(csv.reader([line], delimiter=separator, strict=True), [])
    except csv.Error as error:
        why = str(error)
        raise BadLine("a quote that never closes" if "end of data" in why else why) from None


def count_of_values(line: str, separator: str = ",") -> int | None:
    """Returns the number of values of a line, without the empty ones at its end; None if it is not valid."""
    try:
        return len(without_empty_end(split(line, separator)))
    except BadLine:
        return None


def without_empty_end(values: list[str]) -> list[str]:
    """Returns the values without the empty values at the end, which spreadsheets add for empty cells."""
    return values[: max((number for number, value in enumerate(values, 1) if value), default=0)]


def quoted(value: str) -> str:
    """Returns a value as Kafka's tool writes it: in quotes only if it needs them."""
    # Without quotes, a U+FEFF at the beginning of the file would be read as a byte order mark.
    if '"' in value or "," in value or value.startswith("\ufeff"):
        return '"' + value.replace('"', '""') + '"'
    return value
