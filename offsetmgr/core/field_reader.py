"""`FieldReader` reads the typed fields of a JSON object or a TOML table, and `parse_json` parses JSON.

Every error names the source (a file or a znode), the path of the field inside it, and the expected type. Errors contain
no values, because a value may be a secret.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeVar

from offsetmgr.core.errors import MalformedData, OffsetMgrError, UnknownVersion

T = TypeVar("T")

MAX_INT: Final = 2**31 - 1
MAX_LONG: Final = 2**63 - 1


def parse_json(data: bytes, error: Callable[[str], OffsetMgrError], *, unique_keys: bool = False) -> Any:
    """Parses JSON in UTF-8, with or without a byte order mark. Raises the exception that ``error`` creates from the
    reason.

    If ``unique_keys`` is True, an object that contains a key twice is an error. Otherwise the last value of the key
    counts.
    """

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in found]
        if double := next((key for key in keys if keys.count(key) > 1), None):
            raise error(f"is JSON, but {double!a} occurs twice in one object")
        return dict(found)

    if not data:
        raise error("is empty")
    try:
        return json.loads(data.decode("utf-8-sig"), object_pairs_hook=pairs if unique_keys else None)
    except UnicodeDecodeError as broken:
        raise error("is not UTF-8") from broken
    except json.JSONDecodeError as broken:
        where = f"line {broken.lineno}, column {broken.colno}"
        raise error(f"is not JSON: {broken.msg} ({where})") from broken
    except OffsetMgrError:  # an error of `pairs`, which can be a ValueError
        raise
    except ValueError as broken:  # Python rejects numbers of more than 4300 digits
        raise error("is JSON with a number that is too long") from broken
    except RecursionError as broken:
        raise error("is JSON nested too deeply") from broken


def format_versions(known: Collection[int]) -> str:
    """Formats consecutive versions for messages: ``1 to 5``."""
    first, last = min(known), max(known)
    return str(first) if first == last else f"{first} to {last}"


@dataclass(eq=False)
class FieldReader:
    """The fields of one object. Fields that no caller reads are ignored. A field with the value null counts as
    missing.

    ``what`` names the source in errors, and ``kind`` is the class of the errors. ``within`` is the path of the object
    in the source; it is empty for the whole document.
    """

    values: Mapping[str, Any] = field(repr=False)
    what: str
    kind: type[OffsetMgrError] = MalformedData
    hint: str = ""
    within: str = field(default="", kw_only=True)

    @classmethod
    def parse(cls, data: bytes, what: str, kind: type[OffsetMgrError] = MalformedData, hint: str = "") -> Self:
        """Parses a JSON object."""
        values = parse_json(data, lambda why: kind(what, why, hint))
        if not isinstance(values, dict):
            raise kind(what, "is JSON, but not an object", hint)
        return cls(values, what, kind, hint)

    # --- errors --------------------------------------------------------------------------------------

    def error(self, why: str, name: str = "", hint: str = "") -> OffsetMgrError:
        """Returns an error about the field ``name``, or about the object if ``name`` is empty; ``why`` is the
        predicate of a sentence."""
        path = self._path_of(name) if name else self.within
        return self.kind(self.what, f"its {path!a} {why}" if path else why, hint or self.hint)

    def invalid(self, name: str, expected: str) -> OffsetMgrError:
        return self.error(f"is not {expected}", name)

    def missing(self, name: str) -> OffsetMgrError:
        return self.kind(self.what, f"has no {self._path_of(name)!a}", self.hint)

    def reject_unknown(self, known: Collection[str]) -> None:
        """Raises an error for a field that is not in ``known``, such as a misspelled field."""
        for name in self.values:
            if name not in known:
                raise self.error(f"is an unknown field; known are {', '.join(known)}", name)

    # --- fields --------------------------------------------------------------------------------------

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def get(self, name: str) -> Any:
        """Returns the value of a field, or None if the field is missing."""
        return self.values.get(name)

    def version(self, known: Collection[int], hint: str = "") -> int:
        """Returns the version of the format. Raises `UnknownVersion` if it is not in ``known``."""
        version = self.integer("version", minimum=-MAX_LONG)
        if version not in known:
            raise UnknownVersion(self.what, f"is of version {version}; known: {format_versions(known)}", hint)
        return version

    def require_format(self, name: str, known: Collection[int], content: str) -> int:
        """Returns the version of a document whose field ``format`` is ``name``. In the error for another document,
        ``content`` is what it is not."""
        if self.get("format") != name:
            raise self.error(f"is not {content}")
        return self.version(known)

    def integer(self, name: str, minimum: int = 0, maximum: int = MAX_LONG) -> int:
        return self._required(name, self.optional_integer(name, minimum, maximum))

    def optional_integer(self, name: str, minimum: int = 0, maximum: int = MAX_LONG) -> int | None:
        value = self.get(name)
        if value is None:
            return None
        number = self._number(value)
        if number is None:
            raise self.invalid(name, "a number")
        if not minimum <= number <= maximum:
            raise self.invalid(name, f"a number between {minimum} and {maximum}")
        return number

    def text(self, name: str) -> str:
        return self._required(name, self.optional_text(name))

    def optional_text(self, name: str) -> str | None:
        return self._optional(name, str, "a string")

    def boolean(self, name: str) -> bool:
        return self._required(name, self._optional(name, bool, "true or false"))

    def mapping(self, name: str) -> dict[str, Any]:
        """Returns an object whose values the caller checks."""
        return self._required(name, self.optional_mapping(name))

    def optional_mapping(self, name: str) -> dict[str, Any] | None:
        return self._optional(name, dict, "an object")

    def integers(self, name: str, minimum: int = 0, maximum: int = MAX_LONG) -> dict[str, int]:
        """Returns an object whose values are numbers."""
        fields = self.object(name)
        return {key: fields.integer(key, minimum, maximum) for key in fields.values}

    def texts(self, name: str) -> dict[str, str]:
        """Returns an object whose values are strings."""
        fields = self.object(name)
        return {key: fields.text(key) for key in fields.values}

    def text_list(self, name: str) -> list[str]:
        found = self.get(name)
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            raise self.invalid(name, "a list of strings")
        return found

    def object(self, name: str) -> Self:
        return self._part(self.mapping(name), self._path_of(name))

    def objects(self, name: str) -> list[Self]:
        found = self.get(name)
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            raise self.invalid(name, "a list of objects")
        return [self._part(one, f"{self._path_of(name)}[{at}]") for at, one in enumerate(found)]

    def _optional(self, name: str, kind: type[T], expected: str) -> T | None:
        value = self.get(name)
        if value is None or isinstance(value, kind):
            return value
        raise self.invalid(name, expected)

    def _required(self, name: str, value: T | None) -> T:
        if value is None:
            raise self.missing(name)
        return value

    def _number(self, value: Any) -> int | None:
        """Converts a number; returns None for any other value. A boolean is not a number."""
        return value if type(value) is int else None

    def _path_of(self, name: str) -> str:
        return f"{self.within}.{name}" if self.within else name

    def _part(self, values: Mapping[str, Any], within: str) -> Self:
        return type(self)(values, self.what, self.kind, self.hint, within=within)
