"""Spark's JSON of one query's offsets, as in startingOffsets and endingOffsets: ``{"t": {"0": 23, "1": -2}}``.

The JSON does not contain the name of a group, so the caller must supply it. The values -2 and -1 stand for the earliest
and the latest offset of the partition's log when Spark starts. These two values are not offsets, and only the
partition's log shows which offsets they stand for. The reader returns a `SymbolicOffset` error for each partition with
such a value (data rule "absent is not zero").
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import BinaryIO, Final

from offsetmgr.core.errors import OffsetMgrError, UnsupportedOperation, UsageError
from offsetmgr.core.model import Committed, TopicPartition
from offsetmgr.core.offset_store import GroupOffsets
from offsetmgr.snapshots.base import (
    NAME_THE_GROUP,
    BadLines,
    DroppedFields,
    Format,
    SnapshotHeader,
    SnapshotReader,
    WriteReport,
    reject_unreadable,
)
from offsetmgr.snapshots.json_stream import BadEntry, documents, offsets_of
from offsetmgr.snapshots.kafka_utils import by_topic
from offsetmgr.snapshots.line_formats import NameCheck

EARLIEST: Final = -2
LATEST: Final = -1
_NAMES: Final = {EARLIEST: "earliest", LATEST: "latest"}


class SymbolicOffset(OffsetMgrError):
    """The error of an entry that contains *earliest* or *latest* instead of an offset. ``position`` is `EARLIEST` or
    `LATEST`."""

    def __init__(self, what: str, why: str = "", hint: str = "", *, position: int = LATEST) -> None:
        super().__init__(what, why, hint)
        self.position = position


class SparkFormat(Format):
    """The offsets of exactly one group. ``group`` is the name of the group, which is required for reading."""

    name = "spark"

    @property
    def cannot_hold(self) -> str:
        return f"the group's name, {super().cannot_hold}"

    def write(
        self, stream: BinaryIO, header: SnapshotHeader, groups: Iterable[GroupOffsets], *, keep_errors: bool = False
    ) -> WriteReport:
        """Writes like `Format.write`. Also raises `UnsupportedOperation` if ``groups`` contains several groups, if the
        name of the only group differs from the name that was passed to the constructor, or if ``groups`` is empty and
        no name was passed."""
        dropped = DroppedFields(self, header)
        names = NameCheck("Spark's JSON")
        document: dict[str, dict[str, int]] = {}
        for group in groups:
            if dropped.groups or self._group not in (None, group.group):
                raise UnsupportedOperation(
                    f"group {group.group}",
                    "Spark's JSON holds exactly one group",
                    "choose one group, or another format",
                )
            symbolic = {tp: e for tp, e in group.errors.items() if isinstance(e, SymbolicOffset)}
            unreadable = {tp: e for tp, e in group.errors.items() if tp not in symbolic}
            reject_unreadable(replace(group, errors=unreadable), self, keep_errors)
            dropped.count(group)
            document = by_topic({**group.offsets, **{tp: Committed(e.position) for tp, e in symbolic.items()}}, names)
        if not dropped.groups and self._group is None:
            raise UnsupportedOperation(
                "snapshot not written", "Spark's JSON holds exactly one group, and there is none"
            )
        stream.write(json.dumps(document, ensure_ascii=False).encode("utf-8") + b"\n")
        return dropped.report()

    def open(self, stream: BinaryIO, *, what: str = "snapshot") -> SparkReader:
        if self._group is None:
            raise UsageError(what, "Spark's JSON does not contain the group", NAME_THE_GROUP)
        return SparkReader(self._read(stream, what), self)

    def _read(self, stream: BinaryIO, what: str) -> GroupOffsets:
        bad = BadLines(what)
        found: dict[TopicPartition, int] = {}
        first: int | None = None
        for document in documents(stream, bad):
            try:
                if first is not None:
                    raise BadEntry(document.line, f"a second document; the first one begins in line {first}")
                first = document.line
                found = offsets_of(document, document.parse(), (), lowest=EARLIEST)
            except BadEntry as entry:
                entry.add_to(document, bad)
        if first is None:
            bad.add(1, b"", "no JSON object")
        bad.raise_if_any()
        return self._entry(found, what)

    def _entry(self, found: Mapping[TopicPartition, int], what: str) -> GroupOffsets:
        offsets: dict[TopicPartition, Committed] = {}
        errors: dict[TopicPartition, OffsetMgrError] = {}
        for tp, offset in found.items():
            if offset >= 0:
                offsets[tp] = Committed(offset)
            else:
                why = f"{offset} means the {_NAMES[offset]} offset of the log, which is not in the file"
                errors[tp] = SymbolicOffset(f"{what}: {tp}", why, "replace it by the offset itself", position=offset)
        return GroupOffsets(self._group or "", offsets, errors)


class SparkReader(SnapshotReader):
    """The reader of a checked file. It returns one group, or no group if the file contains no partition."""

    def __init__(self, entry: GroupOffsets, form: SparkFormat) -> None:
        self.format = form
        self._entries = {entry.group: entry} if entry.offsets or entry.errors else {}

    def index(self) -> dict[str, GroupOffsets]:
        return self._entries

    def load(self, group: str) -> GroupOffsets:
        return self._entries[group]
