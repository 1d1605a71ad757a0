"""The waves file of a plan: the wave and the owner of each group, as CSV or JSON.

CSV has a header line with the columns ``group``, ``wave`` and, optionally, ``owner``; it may have each form that
`offsetmgr.snapshots.text_files` reads. JSON is a list of objects with these keys. ``group`` is a name or a glob. A row
with the group's name takes precedence over globs, and the first of several matching globs counts.
"""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from offsetmgr.core.errors import FileFailure, MalformedData, os_error_as
from offsetmgr.core.field_reader import parse_json
from offsetmgr.core.selection import GroupSelection
from offsetmgr.migration.plan import GroupPlan
from offsetmgr.snapshots.text_files import as_utf8, comma_separated, without_empty_end

_COLUMNS = ("group", "wave", "owner")


@dataclass(frozen=True, slots=True)
class Wave:
    """One row of the file."""

    pattern: str
    number: int
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Waves:
    """The rows of a waves file."""

    name: str
    rows: tuple[Wave, ...]

    def patterns(self) -> tuple[str, ...]:
        """Returns the names and globs of all rows."""
        return tuple(row.pattern for row in self.rows)

    def require_all(self, groups: Iterable[str], selection: GroupSelection) -> None:
        """Raises `GroupNotFound` if a row matches none of the groups, and ``selection`` does not exclude it."""
        rows = [pattern for pattern in self.patterns() if not selection.excludes(pattern)]
        if rows:
            GroupSelection(rows).within(groups, f"the plan (waves file {self.name})")

    def of(self, group: str) -> Wave | None:
        """Returns the row of a group; None if no row matches it."""
        exact = next((row for row in self.rows if row.pattern == group), None)
        return exact or next((row for row in self.rows if GroupSelection(row.pattern).matches(group)), None)

    def assigned(self, plans: Iterable[GroupPlan]) -> Iterator[GroupPlan]:
        """Yields the plans with the waves and owners of their groups."""
        for plan in plans:
            row = self.of(plan.name)
            yield plan if row is None else replace(plan, wave=row.number, owner=row.owner)


def read_waves(path: Path) -> Waves:
    """Returns the waves in a file. Raises `FileFailure`, and `MalformedData` with the invalid line or row."""
    what = f"waves file {path}"
    with os_error_as(FileFailure, what):
        data = path.read_bytes()
    data = as_utf8(io.BytesIO(data), what).read()

    def invalid(why: str) -> MalformedData:
        return MalformedData(what, why, "as in: group,wave,owner")

    is_json = data.removeprefix(codecs.BOM_UTF8).lstrip()[:1] in (b"[", b"{")
    rows = _json_rows(data, invalid) if is_json else _csv_rows(data, invalid)
    found: dict[str, Wave] = {}
    for where, row in rows:
        wave = _wave(row, where, invalid)
        if wave.pattern in found:
            raise invalid(f"{where}: group {wave.pattern} occurs twice")
        found[wave.pattern] = wave
    if not found:
        raise invalid("it names no group")
    return Waves(str(path), tuple(found.values()))


def _json_rows(data: bytes, invalid: Callable[[str], MalformedData]) -> Iterator[tuple[str, dict[str, Any]]]:
    document = parse_json(data, invalid, unique_keys=True)
    if not isinstance(document, list):
        raise invalid("is not a list of objects")
    for number, row in enumerate(document, 1):
        if not isinstance(row, dict):
            raise invalid(f"row {number} is not an object")
        yield f"row {number}", row


def _csv_rows(data: bytes, invalid: Callable[[str], MalformedData]) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        text = comma_separated(io.BytesIO(data), range(2, len(_COLUMNS) + 1)).read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise invalid("is not UTF-8") from error
    reader = csv.reader(io.StringIO(text), skipinitialspace=True)
    header: list[str] = []
    try:
        for row in reader:
            values = without_empty_end([value.strip() for value in row])
            if not header or not values:
                header = header or values
                continue
            where = f"line {reader.line_num}"
            if len(values) > len(header) or len(row) < len(header):
                raise invalid(f"{where}: has {'more' if len(values) > len(header) else 'fewer'} cells than the header")
            yield where, dict(zip_longest(header, values, fillvalue=""))
    except csv.Error as error:
        raise invalid(f"line {reader.line_num}: {error}") from error


def _wave(row: dict[str, Any], where: str, invalid: Callable[[str], MalformedData]) -> Wave:
    if unknown := sorted(set(row) - set(_COLUMNS)):
        raise invalid(f"{where}: unknown column {unknown[0]!a}")
    group, number, owner = row.get("group"), row.get("wave"), row.get("owner") or ""
    if not isinstance(group, str) or not group:
        raise invalid(f"{where}: has no group")
    if isinstance(number, str) and number.isascii() and number.isdigit() and len(number) < 10:
        number = int(number)
    if type(number) is not int or not 1 <= number < 10**9:
        raise invalid(f"{where}: the wave of {group} is not a whole number from 1")
    if not isinstance(owner, str):
        raise invalid(f"{where}: the owner of {group} is not a string")
    return Wave(group, number, owner)
