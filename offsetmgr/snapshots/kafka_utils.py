"""The JSON format of Yelp's kafka-utils: ``{"groupid": "g", "offsets": {"t": {"0": 42}}}``.

The tools of kafka-utils write and read one group per file. This module writes any number of groups to a file: one JSON
document per group, and each document on one line. The module reads any number of documents, each on one line or on
several lines.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO

from offsetmgr.core.errors import UsageError
from offsetmgr.core.model import MAX_OFFSET, Committed, TopicPartition
from offsetmgr.snapshots.base import (
    BadLines,
    DroppedFields,
    FormatCapabilities,
    GroupEntry,
    OffsetsOfGroup,
    SnapshotHeader,
    WriteReport,
    group_entry,
    reject_unreadable,
)
from offsetmgr.snapshots.json_stream import BadEntry, Document, check_name, documents, offsets_of
from offsetmgr.snapshots.line_formats import LINE_FORMAT_CAPABILITIES, NameCheck


class KafkaUtilsFormat:
    """The format of kafka-utils, with one JSON document per group."""

    name = "json"
    capabilities: FormatCapabilities = LINE_FORMAT_CAPABILITIES
    cannot_hold = "metadata, leader epochs, commit timestamps, snapshot id, time and source"

    def __init__(self, group: str | None = None) -> None:
        if group is not None:
            raise UsageError("format json", "its documents contain the groups", "leave out --group (in a URI: group=)")

    def write(
        self, stream: BinaryIO, header: SnapshotHeader, groups: Iterable[OffsetsOfGroup], *, keep_errors: bool = False
    ) -> WriteReport:
        dropped = DroppedFields(self.capabilities, header)
        names = NameCheck("JSON")
        for group in groups:
            reject_unreadable(group, self.capabilities, keep_errors)
            dropped.count(group)
            names.require_valid("group", group.group)
            document = {"groupid": group.group, "offsets": by_topic(group.offsets, names)}
            stream.write(json.dumps(document, ensure_ascii=False).encode("utf-8") + b"\n")
        return dropped.report()

    def open(self, stream: BinaryIO, *, what: str = "snapshot") -> KafkaUtilsReader:
        return KafkaUtilsReader(stream, self, what)


class KafkaUtilsReader:
    """The reader of a checked file. It keeps an index with three numbers per group in memory."""

    header: SnapshotHeader | None = None

    def __init__(self, stream: BinaryIO, form: KafkaUtilsFormat, what: str) -> None:
        self.format = form
        self._stream = stream
        self._what = what
        self._documents: dict[str, array[int]] = {}
        """For each group the start and the end of its document (in bytes), and the number of its first line."""
        bad = BadLines(what)
        for document in documents(stream, bad):
            try:
                group, _ = _read(document)
                if group in self._documents:
                    why = f"group {group!r} came before, in line {self._documents[group][2]}"
                    raise BadEntry(document.line, why)
                self._documents[group] = array("q", (document.start, document.end, document.line))
            except BadEntry as entry:
                entry.add_to(document, bad)
        bad.raise_if_any()

    def groups(self) -> Iterator[str]:
        return iter(self._documents)

    def read(self) -> Iterator[GroupEntry]:
        for group in self._documents:
            yield self._load(group)

    def find(self, group: str) -> GroupEntry | None:
        return self._load(group) if group in self._documents else None

    def _load(self, group: str) -> GroupEntry:
        start, end, line = self._documents[group]
        self._stream.seek(start)
        _, found = _read(Document(start, end, line, self._stream.read(end - start)))
        return group_entry(self._what, group, {tp: Committed(offset) for tp, offset in found.items()})


def is_kafka_utils(parsed: dict[str, Any]) -> bool:
    """Returns whether a document is kafka-utils' JSON and not Spark's, whose keys are topics."""
    return isinstance(parsed.get("groupid"), str) or ("groupid" not in parsed and set(parsed) == {"offsets"})


def by_topic(offsets: Mapping[TopicPartition, Committed], names: NameCheck) -> dict[str, dict[str, int]]:
    """Returns a mapping of partitions to offsets as ``{"topic": {"partition": offset}}``."""
    names.topics(offsets, str)
    topics: dict[str, dict[str, int]] = {}
    for tp, committed in sorted(offsets.items()):
        topics.setdefault(tp.topic, {})[str(tp.partition)] = committed.offset
    return topics


def _read(document: Document) -> tuple[str, dict[TopicPartition, int]]:
    parsed = document.parse()
    if not is_kafka_utils(parsed):
        raise BadEntry(document.line, 'no "groupid" with a name')
    if unknown := sorted(set(parsed) - {"groupid", "offsets"}):
        raise BadEntry(document.line_of((unknown[0],)), f"unknown key {unknown[0]!r}")
    group = check_name(document, ("groupid",), "group", parsed.get("groupid"))
    if "offsets" not in parsed:
        raise BadEntry(document.line, 'no "offsets"')
    return group, offsets_of(document, parsed["offsets"], ("offsets",), lowest=-MAX_OFFSET)
