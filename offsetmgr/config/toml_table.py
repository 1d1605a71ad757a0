"""Reads the TOML files of the listener (credentials and authorization rules) and checks their fields.

Errors name the file and the field, or the line of a syntax error.
"""

from __future__ import annotations

import logging
import re
import stat
import tomllib
from pathlib import Path
from typing import Final

from offsetmgr.core.errors import ConfigError, OffsetMgrError
from offsetmgr.core.field_reader import FieldReader

_log = logging.getLogger(__name__)

_FIX_HINT: Final = "correct the file and start again"
_LINE: Final = re.compile(r" \(at line (\d+), column \d+\)$")


class TomlTable(FieldReader):
    """One table of a TOML file. ``within`` is the name of the table in errors, such as ``rule 2``; it is empty for the
    top table."""

    def error(self, why: str, name: str = "", hint: str = "") -> OffsetMgrError:
        """Returns an error that names the field as a part of the file; ``why`` is a sentence without a subject."""
        where = self._path_of(name) if name else self.within
        return self.kind(f"{self.what}: {where}" if where else self.what, why, hint or self.hint)

    def invalid(self, name: str, expected: str) -> OffsetMgrError:
        return self.error(f"must be {expected}", name)

    def text(self, name: str) -> str:
        """Returns a string that is not empty."""
        value = self.get(name)
        if not isinstance(value, str) or not value:
            raise self.invalid(name, "a string that is not empty")
        return value

    def text_list(self, name: str) -> list[str]:
        """Returns a list of strings; empty if the field is missing."""
        value = self.values.get(name, [])
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            raise self.invalid(name, "a list of strings that are not empty")
        return value

    def table(self, name: str) -> TomlTable:
        """Returns a table; empty if the field is missing."""
        value = self.values.get(name, {})
        if not isinstance(value, dict):
            raise self.invalid(name, "a table")
        return self._part(value, self._path_of(name))

    def tables(self, name: str) -> list[TomlTable]:
        """Returns an array of tables (``[[name]]``)."""
        value = self.values.get(name, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.invalid(name, f"written as [[{name}]]")
        return [self._part(item, f"{name} {number}") for number, item in enumerate(value, 1)]


def load(path: Path | str, *, secret: bool = False) -> TomlTable:
    """Reads a file and returns its top table. If it contains a ``secret``, logs a warning if every user of the machine
    can read the file. Raises `ConfigError` if the file cannot be read or is not TOML."""
    name = str(path)
    try:
        if secret and Path(path).stat().st_mode & stat.S_IROTH:
            _log.warning("every user of this machine can read a file with secrets; run chmod o-r", extra={"file": name})
        return TomlTable(tomllib.loads(Path(path).read_text(encoding="utf-8")), name, ConfigError, _FIX_HINT)
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
