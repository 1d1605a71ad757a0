"""Reads the baseline of a rolling bounce: from the JSON of a runbook, or from the state file of a bounce."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from offsetmgr.core.errors import MalformedData, UnknownVersion
from offsetmgr.core.field_reader import FieldReader
from offsetmgr.core.plurals import list_of
from offsetmgr.migration import bounce_checkpoint, observation
from offsetmgr.migration.observation import Observation

FORMAT: Final = "offsetmgr-runbook"
VERSION: Final = 3
_ONE_GROUP: Final = 1
"""The version of files that hold the runbook of one group. Versions 1 and 2 have ``stages`` in place of ``steps``."""
VERSIONS: Final = (_ONE_GROUP, 2, VERSION)


class NoBaseline(MalformedData):
    """The file has no valid baseline of this group. It may have those of other groups."""


class BaselineFile:
    """The baselines in a runbook's JSON, or in the state file of a bounce. The file is read once, for all groups.

    Raises `MalformedData` if the file is invalid, and `UnknownVersion`.
    """

    def __init__(self, path: Path) -> None:
        self._what = f"baseline {path}"
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise MalformedData(self._what, error.strerror or str(error)) from error
        except ValueError as error:
            raise MalformedData(
                self._what, f"it is not JSON ({error})", "give the JSON that `offsetmgr runbook write` made"
            ) from error
        self._bounces: Mapping[str, bounce_checkpoint.BounceState] = {}
        self._books: Mapping[str, Mapping[str, Any]] = {}
        if isinstance(data, dict) and data.get("format") == bounce_checkpoint.FORMAT:
            self._bounces = bounce_checkpoint.decode_all(data, path)
        else:
            self._books = _books(data, self._what)

    def of(self, group: str) -> Observation:
        """Returns the baseline of the group. Raises `NoBaseline` if the file has none of the group or an invalid
        one."""
        if group in self._bounces:
            return self._bounces[group].baseline
        if group not in self._books:
            others = list_of(sorted(filter(None, (*self._bounces, *self._books))), 3)
            raise NoBaseline(self._what, f"it belongs to group {others}, not to {group}")
        try:
            return _baseline(self._books[group], self._what)
        except MalformedData as error:
            raise NoBaseline(error.what, error.why, error.hint) from error


def _books(data: Any, what: str) -> Mapping[str, Mapping[str, Any]]:
    """Returns the runbooks by group. If a group has several, the first is used."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise MalformedData(what, "it is not a runbook", "give the JSON that `offsetmgr runbook write` made")
    if data.get("version") not in VERSIONS:
        known = ", ".join(map(str, VERSIONS))
        raise UnknownVersion(what, f"version {data.get('version')!r}, this program knows {known}")
    books = (
        [data] if data["version"] == _ONE_GROUP else [one.values for one in FieldReader(data, what).objects("runbooks")]
    )
    return {_group_of(book): book for book in reversed(books)}


def _group_of(book: Mapping[str, Any]) -> str:
    baseline = book.get("baseline")
    group = baseline.get("group") if isinstance(baseline, dict) else None
    return group if isinstance(group, str) else ""


def _baseline(book: Mapping[str, Any], what: str) -> Observation:
    found = observation.from_json(book.get("baseline"), where=what)
    return found if found.stores else replace(found, stores=observation.stores_from_json(book))
