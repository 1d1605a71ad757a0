"""Reads the TOML files of the listener (credentials and authorization rules) and checks their fields.

Errors name the file and the field, or the line of a syntax error.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from offsetmgr.core.errors import ConfigError

_FIX_HINT: Final = "correct the file and start again"
_LINE: Final = re.compile(r" \(at line (\d+), column \d+\)$")


class TomlTable:
    """One table of a TOML file. ``path`` is the name of the table in errors, such as ``rule 2``; it is empty for the
    top table.

    Errors contain no values, because values may be secrets.
    """

    def __init__(self, file: str, path: str, values: Mapping[str, Any]) -> None:
        self.file = file
        self.path = path
        self.values = values

    def error(self, why: str, field: str = "") -> ConfigError:
        """Returns an error for ``field``, or for the table if ``field`` is empty; ``why`` is the reason."""
        where = f"{self.path}.{field}" if self.path and field else self.path or field
        return ConfigError(f"{self.file}: {where}" if where else self.file, why, _FIX_HINT)

    def reject_unknown(self, known: Collection[str]) -> None:
        """Raises `ConfigError` for a field that is not in ``known``. A misspelled field is an error, because a listener
        that ignored such a field could grant the wrong access."""
        for name in self.values:
            if name not in known:
                raise self.error(f"unknown field; known are {', '.join(known)}", name)

    def text(self, field: str) -> str:
        value = self.values.get(field)
        if not isinstance(value, str) or not value:
            raise self.error("must be a string that is not empty", field)
        return value

    def texts(self, field: str) -> list[str]:
        """Returns a list of strings; empty if the field is missing."""
        value = self.values.get(field, [])
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            raise self.error("must be a list of strings that are not empty", field)
        return value

    def table(self, field: str) -> TomlTable:
        value = self.values.get(field, {})
        if not isinstance(value, dict):
            raise self.error("must be a table", field)
        return TomlTable(self.file, f"{self.path}.{field}" if self.path else field, value)

    def tables(self, field: str) -> list[TomlTable]:
        """Returns an array of tables (``[[field]]``)."""
        value = self.values.get(field, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.error(f"must be written as [[{field}]]", field)
        return [TomlTable(self.file, f"{field} {number}", item) for number, item in enumerate(value, 1)]


def load(path: Path | str) -> TomlTable:
    """Reads a file and returns its top table. Raises `ConfigError` if the file cannot be read or is not TOML."""
    name = str(path)
    try:
        return TomlTable(name, "", tomllib.loads(Path(path).read_text(encoding="utf-8")))
    except OSError as error:
        hint = "name a file that this user may read"
        raise ConfigError(name, f"cannot be read: {error.strerror}", hint) from None
    except UnicodeDecodeError:
        raise ConfigError(name, "is not UTF-8", "save it as UTF-8 text in TOML") from None
    except tomllib.TOMLDecodeError as error:
        text = str(error)
        line = _LINE.search(text)
        where = f"{name}, line {line[1]}" if line else name
        raise ConfigError(where, f"is not TOML: {_LINE.sub('', text)}", _FIX_HINT) from None
