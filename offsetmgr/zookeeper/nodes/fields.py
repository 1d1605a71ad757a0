"""Reads the fields of a JSON node one by one, with errors that name the node, and notes about unknown fields."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from offsetmgr.core.errors import CorruptData, UnknownVersion

Notes: TypeAlias = list[str]
"""A tolerant parser appends a line for each unknown version or field."""

MAX_INT: Final = 2**31 - 1
MAX_LONG: Final = 2**63 - 1

_DIGITS: Final = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_PARTITION: Final = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)


def unreadable(path: str, why: str) -> CorruptData:
    return CorruptData(f"ZooKeeper node {path}", why)


def decoded(path: str, data: bytes) -> str:
    """The node's text. Raises `CorruptData`."""
    if not data:
        raise unreadable(path, "is empty")
    try:
        return data.decode()
    except UnicodeDecodeError as broken:
        raise unreadable(path, "is not UTF-8") from broken


def parsed(path: str, data: bytes) -> Any:
    """The node's JSON value. Raises `CorruptData`; the error does not quote the text, which may be a secret."""
    text = decoded(path, data)
    try:
        value = json.loads(text)
    except json.JSONDecodeError as broken:
        where = f"line {broken.lineno}, column {broken.colno}"
        raise unreadable(path, f"is not JSON: {broken.msg} ({where})") from broken
    except ValueError as broken:  # Python rejects numbers of more than 4300 digits
        raise unreadable(path, "is JSON with a number that is too long") from broken
    except RecursionError as broken:
        raise unreadable(path, "is JSON nested too deeply") from broken
    if "\\u" in text:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as broken:  # no Java program writes that, and no output can encode it
            raise unreadable(path, "is JSON with half a character (a lone surrogate)") from broken
    return value


def small_number(path: str, data: bytes, what: str, most: int = MAX_INT) -> int:
    """A node that contains only digits. Raises `CorruptData`."""
    text = decoded(path, data)
    if not _DIGITS.fullmatch(text) or not 0 <= int(text) <= most:
        raise unreadable(path, f"does not hold {what}, a decimal number up to {most}")
    return int(text)


class Fields:
    """One JSON object of a node. Callers read fields by name; `close` notes the fields that were not read."""

    def __init__(self, path: str, fields: Mapping[str, Any], notes: Notes | None, inside: str = "") -> None:
        """``inside`` names the object if it is not the whole node, as in ``partitions[3].``."""
        self.path = path
        self._fields = fields
        self._notes = notes
        self._inside = inside
        self._known: set[str] = set()

    @classmethod
    def of(cls, path: str, data: bytes, notes: Notes | None) -> Fields:
        """The object in a node. Raises `CorruptData`."""
        value = parsed(path, data)
        if not isinstance(value, dict):
            raise unreadable(path, "is JSON, but not an object")
        return cls(path, value, notes)

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._fields)

    def close(self) -> None:
        """Notes the unknown fields, if the parser is tolerant."""
        if self._notes is not None:
            unknown = sorted(self._fields.keys() - self._known)
            self._notes.extend(f"unknown field {self._inside + name!a}" for name in unknown)

    def broken(self, name: str, should: str) -> CorruptData:
        return unreadable(self.path, f"its {self._inside + name!a} is not {should}")

    def get(self, name: str) -> Any:
        """A field's value; None if it is missing."""
        self._known.add(name)
        return self._fields.get(name)

    def version(self, known: tuple[int, ...]) -> int:
        """The format's version. Raises `UnknownVersion` for others, and `CorruptData` if it is missing. A tolerant
        parser adds a note instead and uses the newest known version."""
        version = self.optional_integer("version")
        if version in known:
            return version
        listed = str(known[0]) if len(known) == 1 else f"{known[0]} to {known[-1]}"
        if self._notes is None:
            if version is None:
                raise unreadable(self.path, "has no 'version'")
            raise UnknownVersion(f"ZooKeeper node {self.path}", f"is of version {version}; known: {listed}")
        self._notes.append("no version" if version is None else f"unknown version {version} (known: {listed})")
        return known[-1]

    def optional_integer(self, name: str, least: int = -(2**63), most: int = MAX_LONG) -> int | None:
        """A number, which Kafka writes as a number or as a string of digits, depending on the field and the version."""
        found = self.get(name)
        if found is None:
            return None
        if isinstance(found, str) and _DIGITS.fullmatch(found):
            found = int(found)
        if type(found) is not int:
            raise self.broken(name, "a number")
        if not least <= found <= most:
            raise self.broken(name, f"a number between {least} and {most}")
        return found

    def integer(self, name: str, least: int = 0, most: int = MAX_INT) -> int:
        found = self.optional_integer(name, least, most)
        if found is None:
            raise unreadable(self.path, f"has no {self._inside + name!a}")
        return found

    def optional_text(self, name: str) -> str | None:
        found = self.get(name)
        if found is not None and not isinstance(found, str):
            raise self.broken(name, "a text")
        return found

    def text(self, name: str) -> str:
        found = self.optional_text(name)
        if found is None:
            raise unreadable(self.path, f"has no {self._inside + name!a}")
        return found

    def texts(self, name: str) -> dict[str, str]:
        """An object of strings; empty if it is missing."""
        found = self._object(name)
        if not all(isinstance(value, str) for value in found.values()):
            raise self.broken(name, "an object of texts")
        return found

    def integers(self, name: str, least: int = 0) -> dict[str, int]:
        """An object of numbers; empty if it is missing."""
        found = self._object(name)
        if not all(type(value) is int and least <= value <= MAX_INT for value in found.values()):
            raise self.broken(name, f"an object of numbers of {least} and more")
        return found

    def ids(self, name: str) -> tuple[int, ...]:
        """A list of brokers' ids. Raises `CorruptData`, also if it is missing."""
        return self._ids(name, self.get(name))

    def ids_by_partition(self, name: str) -> dict[int, tuple[int, ...]]:
        """Lists of brokers' ids by partition, in the partitions' order; empty if it is missing."""
        found = self._object(name)
        if not all(_PARTITION.fullmatch(key) and int(key) <= MAX_INT for key in found):
            raise self.broken(name, "an object by partition number")
        return {int(key): self._ids(name, found[key]) for key in sorted(found, key=int)}

    def objects(self, name: str) -> list[Fields]:
        """A list of objects. Raises `CorruptData`, also if it is missing."""
        found = self.get(name)
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            raise self.broken(name, "a list of objects")
        return [Fields(self.path, one, self._notes, f"{name}[{at}].") for at, one in enumerate(found)]

    def _object(self, name: str) -> dict[str, Any]:
        found = self.get(name)
        if found is None:
            return {}
        if not isinstance(found, dict):
            raise self.broken(name, "an object")
        return found

    def _ids(self, name: str, found: Any) -> tuple[int, ...]:
        if not isinstance(found, list) or not all(type(one) is int and 0 <= one <= MAX_INT for one in found):
            raise self.broken(name, "a list of brokers' ids")
        return tuple(found)


def listing(values: Mapping[str, object]) -> str:
    """``a=1 b=2``, for display."""
    return " ".join(f"{key}={value}" for key, value in values.items())
