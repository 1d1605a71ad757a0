"""`Fields`: reads the fields of a node's JSON object. The errors of `Fields` name the node. `Fields` adds notes about
unknown fields."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from offsetmgr.core.errors import CorruptData, UnknownVersion

Notes: TypeAlias = list[str]
"""A list to which a tolerant parser appends a line for each unknown version or field."""

MAX_INT: Final = 2**31 - 1
MAX_LONG: Final = 2**63 - 1

_DIGITS: Final = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_PARTITION: Final = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)


def corrupt(path: str, why: str) -> CorruptData:
    return CorruptData(f"ZooKeeper node {path}", why)


def decoded(path: str, data: bytes) -> str:
    """Decodes the node's text. Raises `CorruptData`."""
    if not data:
        raise corrupt(path, "is empty")
    try:
        return data.decode()
    except UnicodeDecodeError as broken:
        raise corrupt(path, "is not UTF-8") from broken


def parsed(path: str, data: bytes) -> Any:
    """Parses the node's JSON. Raises `CorruptData`. The error does not quote the text, because the text may contain
    secrets."""
    text = decoded(path, data)
    try:
        value = json.loads(text)
    except json.JSONDecodeError as broken:
        where = f"line {broken.lineno}, column {broken.colno}"
        raise corrupt(path, f"is not JSON: {broken.msg} ({where})") from broken
    except ValueError as broken:  # Python rejects numbers of more than 4300 digits
        raise corrupt(path, "is JSON with a number that is too long") from broken
    except RecursionError as broken:
        raise corrupt(path, "is JSON nested too deeply") from broken
    if "\\u" in text:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as broken:  # Java programs do not write such text, and offsetmgr could not print it
            raise corrupt(path, "is JSON with an incomplete character (a lone surrogate)") from broken
    return value


def parse_number(path: str, data: bytes, what: str, maximum: int = MAX_INT) -> int:
    """Parses a node that contains only a decimal number; ``what`` names the number in errors. Raises `CorruptData`."""
    text = decoded(path, data)
    if not _DIGITS.fullmatch(text) or not 0 <= int(text) <= maximum:
        raise corrupt(path, f"does not contain {what}, a decimal number up to {maximum}")
    return int(text)


class Fields:
    """A JSON object in a node. Callers read its fields by name; `close` adds notes about the fields that no caller has
    read."""

    def __init__(self, path: str, fields: Mapping[str, Any], notes: Notes | None, prefix: str = "") -> None:
        """``prefix`` is the position of the object inside the node's JSON, such as ``partitions[3].``. Errors and notes
        contain this prefix."""
        self.path = path
        self._fields = fields
        self._notes = notes
        self._prefix = prefix
        self._read_names: set[str] = set()

    @classmethod
    def of(cls, path: str, data: bytes, notes: Notes | None) -> Fields:
        """Parses the JSON object in a node. Raises `CorruptData`."""
        value = parsed(path, data)
        if not isinstance(value, dict):
            raise corrupt(path, "is JSON, but not an object")
        return cls(path, value, notes)

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._fields)

    def close(self) -> None:
        """Adds a note for each field that was not read, if the parser is tolerant."""
        if self._notes is not None:
            unknown = sorted(self._fields.keys() - self._read_names)
            self._notes.extend(f"unknown field {self._prefix + name!a}" for name in unknown)

    def invalid(self, name: str, expected: str) -> CorruptData:
        return corrupt(self.path, f"its {self._prefix + name!a} is not {expected}")

    def get(self, name: str) -> Any:
        """Returns a field's value, or None if the field is missing."""
        self._read_names.add(name)
        return self._fields.get(name)

    def version(self, known: tuple[int, ...]) -> int:
        """Returns the format's version, which must be one of ``known``.

        If the version is unknown, a strict parser raises `UnknownVersion`; if the version is missing, a strict parser
        raises `CorruptData`. In both cases, a tolerant parser adds a note and returns the newest known version.
        """
        version = self.optional_integer("version")
        if version in known:
            return version
        listed = str(known[0]) if len(known) == 1 else f"{known[0]} to {known[-1]}"
        if self._notes is None:
            if version is None:
                raise corrupt(self.path, "has no 'version'")
            raise UnknownVersion(f"ZooKeeper node {self.path}", f"is of version {version}; known: {listed}")
        self._notes.append("no version" if version is None else f"unknown version {version} (known: {listed})")
        return known[-1]

    def optional_integer(self, name: str, minimum: int = -(2**63), maximum: int = MAX_LONG) -> int | None:
        """Returns a number, or None if the field is missing.

        Depending on the field and the version, Kafka writes the number as a JSON number or as a string of digits.
        """
        found = self.get(name)
        if found is None:
            return None
        if isinstance(found, str) and _DIGITS.fullmatch(found):
            found = int(found)
        if type(found) is not int:
            raise self.invalid(name, "a number")
        if not minimum <= found <= maximum:
            raise self.invalid(name, f"a number between {minimum} and {maximum}")
        return found

    def integer(self, name: str, minimum: int = 0, maximum: int = MAX_INT) -> int:
        found = self.optional_integer(name, minimum, maximum)
        if found is None:
            raise corrupt(self.path, f"has no {self._prefix + name!a}")
        return found

    def optional_text(self, name: str) -> str | None:
        found = self.get(name)
        if found is not None and not isinstance(found, str):
            raise self.invalid(name, "a string")
        return found

    def text(self, name: str) -> str:
        found = self.optional_text(name)
        if found is None:
            raise corrupt(self.path, f"has no {self._prefix + name!a}")
        return found

    def texts(self, name: str) -> dict[str, str]:
        """Returns an object whose values are strings; the result is empty if the field is missing."""
        found = self._object(name)
        if not all(isinstance(value, str) for value in found.values()):
            raise self.invalid(name, "an object of strings")
        return found

    def integers(self, name: str, minimum: int = 0) -> dict[str, int]:
        """Returns an object whose values are numbers; the result is empty if the field is missing."""
        found = self._object(name)
        if not all(type(value) is int and minimum <= value <= MAX_INT for value in found.values()):
            raise self.invalid(name, f"an object of numbers not below {minimum}")
        return found

    def ids(self, name: str) -> tuple[int, ...]:
        """Returns a list of broker ids. Raises `CorruptData`, also if the field is missing."""
        return self._ids(name, self.get(name))

    def ids_by_partition(self, name: str) -> dict[int, tuple[int, ...]]:
        """Returns the broker ids of each partition, sorted by partition; the result is empty if the field is
        missing."""
        found = self._object(name)
        if not all(_PARTITION.fullmatch(key) and int(key) <= MAX_INT for key in found):
            raise self.invalid(name, "an object whose keys are partition numbers")
        return {int(key): self._ids(name, found[key]) for key in sorted(found, key=int)}

    def objects(self, name: str) -> list[Fields]:
        """Returns a list of objects. Raises `CorruptData`, also if the field is missing."""
        found = self.get(name)
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            raise self.invalid(name, "a list of objects")
        return [Fields(self.path, one, self._notes, f"{name}[{at}].") for at, one in enumerate(found)]

    def _object(self, name: str) -> dict[str, Any]:
        found = self.get(name)
        if found is None:
            return {}
        if not isinstance(found, dict):
            raise self.invalid(name, "an object")
        return found

    def _ids(self, name: str, found: Any) -> tuple[int, ...]:
        if not isinstance(found, list) or not all(type(one) is int and 0 <= one <= MAX_INT for one in found):
            raise self.invalid(name, "a list of brokers' ids")
        return tuple(found)


def format_pairs(values: Mapping[str, object]) -> str:
    """Formats a mapping for display: ``a=1 b=2``."""
    return " ".join(f"{key}={value}" for key, value in values.items())
