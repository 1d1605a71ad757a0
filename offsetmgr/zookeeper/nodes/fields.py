"""`Fields`: reads the fields of a node's JSON object, and adds notes about unknown fields."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple, Self, TypeAlias

from offsetmgr.core.errors import CorruptData, OffsetMgrError
from offsetmgr.core.field_reader import MAX_INT, MAX_LONG, FieldReader, format_versions, parse_json

Notes: TypeAlias = list[str]
"""A list to which a tolerant parser appends a line for each unknown version or field."""

_DIGITS: Final = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_PARTITION: Final = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)


class ReadErrors(NamedTuple):
    """The errors of a whole group or of a missing node. ``name`` is the group or the path."""

    name: str
    errors: tuple[OffsetMgrError, ...]


def errors_of(*errors: OffsetMgrError | None) -> tuple[OffsetMgrError, ...]:
    """Returns the errors that are not None."""
    return tuple(error for error in errors if error is not None)


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
    value = parse_json(data, lambda why: corrupt(path, why))
    if b"\\u" in data:
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


class Fields(FieldReader):
    """A JSON object in a node. Callers read its fields by name in a ``with`` block, whose end adds notes about the
    fields that no caller has read.

    Depending on the field and the version, Kafka writes a number as a JSON number or as a string of digits.
    """

    def __init__(self, path: str, fields: Mapping[str, Any], notes: Notes | None, within: str = "") -> None:
        """``within`` is the position of the object inside the node's JSON, such as ``partitions[3]``. Errors and notes
        contain this position."""
        super().__init__(fields, f"ZooKeeper node {path}", CorruptData, within=within)
        self.path = path
        self.format_version = 0
        self._notes = notes
        self._read_names: set[str] = set()

    @classmethod
    def of(cls, path: str, data: bytes, notes: Notes | None) -> Fields:
        """Parses the JSON object in a node. Raises `CorruptData`."""
        value = parsed(path, data)
        if not isinstance(value, dict):
            raise corrupt(path, "is JSON, but not an object")
        return cls(path, value, notes)

    @classmethod
    def versioned(cls, path: str, data: bytes, notes: Notes | None, *known: int) -> Fields:
        """Like `of`, for an object whose format's version must be one of ``known`` (see `version`)."""
        fields = cls.of(path, data, notes)
        fields.format_version = fields.version(known)
        return fields

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        """Adds a note for each field that was not read, if the parser is tolerant."""
        if failure is None and self._notes is not None:
            unknown = sorted(self.values.keys() - self._read_names)
            self._notes.extend(f"unknown field {self._path_of(name)!a}" for name in unknown)

    def get(self, name: str) -> Any:
        self._read_names.add(name)
        return super().get(name)

    def version(self, known: Collection[int], hint: str = "") -> int:
        """Returns the format's version, which must be one of ``known``.

        If the version is unknown or missing, a tolerant parser adds a note and returns the newest known version.
        """
        if self._notes is None:
            return super().version(known, hint)
        version = self.optional_integer("version")
        if version is not None and version in known:
            return version
        listed = format_versions(known)
        self._notes.append("no version" if version is None else f"unknown version {version} (known: {listed})")
        return max(known)

    def integer(self, name: str, minimum: int = 0, maximum: int = MAX_INT) -> int:
        return super().integer(name, minimum, maximum)

    def optional_integer(self, name: str, minimum: int = -(2**63), maximum: int = MAX_LONG) -> int | None:
        return super().optional_integer(name, minimum, maximum)

    def texts(self, name: str) -> dict[str, str]:
        """Returns an object whose values are strings; the result is empty if the field is missing."""
        return {} if self.get(name) is None else super().texts(name)

    def integers(self, name: str, minimum: int = 0, maximum: int = MAX_INT) -> dict[str, int]:
        """Returns an object whose values are numbers; the result is empty if the field is missing."""
        return {} if self.get(name) is None else super().integers(name, minimum, maximum)

    def ids(self, name: str) -> tuple[int, ...]:
        """Returns a list of broker ids. Raises `CorruptData`, also if the field is missing."""
        return self._ids(name, self.get(name))

    def ids_by_partition(self, name: str) -> dict[int, tuple[int, ...]]:
        """Returns the broker ids of each partition, sorted by partition; the result is empty if the field is
        missing."""
        found = self.optional_mapping(name) or {}
        if not all(_PARTITION.fullmatch(key) and int(key) <= MAX_INT for key in found):
            raise self.invalid(name, "an object whose keys are partition numbers")
        return {int(key): self._ids(name, found[key]) for key in sorted(found, key=int)}

    def versions_of_features(self) -> dict[str, dict[str, int]] | None:
        """Returns the field ``features``: label -> version by feature; None if it is missing. Raises `CorruptData`."""
        found = self.get("features")
        if found is None:
            return None
        if not isinstance(found, dict):
            raise self.invalid("features", "an object")
        features = Fields(self.path, found, None, "features")
        return {name: features.integers(name) for name in found}

    def _ids(self, name: str, found: Any) -> tuple[int, ...]:
        if not isinstance(found, list) or not all(type(one) is int and 0 <= one <= MAX_INT for one in found):
            raise self.invalid(name, "a list of brokers' ids")
        return tuple(found)

    def _number(self, value: Any) -> int | None:
        if isinstance(value, str) and _DIGITS.fullmatch(value):
            return int(value)
        return super()._number(value)

    def _part(self, values: Mapping[str, Any], within: str) -> Fields:
        return Fields(self.path, values, self._notes, within)


def format_ids(ids: Iterable[int]) -> str:
    """Formats broker ids for display: ``1,2,3``."""
    return ",".join(map(str, ids))


def format_pairs(values: Mapping[str, object]) -> str:
    """Formats a mapping for display: ``a=1 b=2``."""
    return " ".join(f"{key}={value}" for key, value in values.items())
