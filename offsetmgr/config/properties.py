"""Parses Java ``.properties`` files exactly as ``java.util.Properties.load`` does.

`offsetmgr.config.java_config` interprets the keys.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from offsetmgr.core.errors import ConfigError, os_error_as

_BLANK: Final = " \t\f"
_KEY: Final = re.compile(r"(?:[^\\=: \t\f]|\\.?)*", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.|$)", re.DOTALL)
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def load_properties(path: Path) -> dict[str, str]:
    """Reads a file in Java's encoding (ISO-8859-1, with ``\\uXXXX`` for other characters), and skips a byte order mark
    of UTF-8. If a key is repeated, its last value wins.

    Raises `ConfigError` with the file and the line. No error contains a value, because values may be secrets.
    """
    with os_error_as(ConfigError, f"client properties {path}"):
        data = path.read_bytes()
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ConfigError(f"client properties {path}", "is UTF-16 text", "save it again as UTF-8")
    return parse_properties(data.removeprefix(codecs.BOM_UTF8).decode("iso-8859-1"), str(path))


def parse_properties(text: str, source: str) -> dict[str, str]:
    """Parses ``text`` into keys and values. ``source`` is the name of the text in errors."""
    found: dict[str, str] = {}
    for number, line in _logical_lines(text):
        key = _KEY.match(line)[0]  # type: ignore[index]  # it matches the empty text, too
        rest = line[len(key) :].lstrip(_BLANK)
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(_BLANK)
        where = f"{source} line {number}"
        found[_unescape(key, where)] = _unescape(rest, where)
    return found


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yields each logical line with the number of its first physical line. Continuation lines are joined; comments and
    blank lines are left out."""
    pending = ""
    started = 0
    continued = False
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for number, raw_line in enumerate(lines, start=1):
        line = raw_line.lstrip(_BLANK)
        if not continued:
            if not line or line[0] in "#!":
                continue
            started = number
        pending += line
        trailing = len(line) - len(line.rstrip("\\"))
        continued = trailing % 2 == 1
        if continued:
            pending = pending[:-1]
            continue
        if pending:
            yield started, pending
        pending = ""
    if pending:
        yield started, pending


def _unescape(text: str, where: str) -> str:
    def replaced(escape: re.Match[str]) -> str:
        if escape[1] == "u":
            raise ConfigError(where, "a \\u escape needs four hexadecimal digits")
        return chr(int(escape[1][1:], 16)) if len(escape[1]) > 1 else _ESCAPES.get(escape[1], escape[1])

    return _ESCAPE.sub(replaced, text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
