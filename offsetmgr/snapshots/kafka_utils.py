"""The JSON format of Yelp's kafka-utils: ``{"groupid": "g", "offsets": {"t": {"0": 42}}}``.

The tools of kafka-utils write and read one group per file. This module writes any number of groups to a file: one JSON
document per group, and each document on one line. The module reads any number of documents, each on one line or on
several lines.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from typing import Any, BinaryIO

from offsetmgr.core.model import MAX_OFFSET, Committed, TopicPartition
from offsetmgr.core.offset_store import GroupOffsets
from offsetmgr.snapshots.base import (
    BadLines,
    SnapshotReader,
    group_entry,
)
from offsetmgr.snapshots.json_stream import BadEntry, Document, check_name, documents, offsets_of
from offsetmgr.snapshots.line_formats import NameCheck, TextFormat


class KafkaUtilsFormat(TextFormat):
    """The format of kafka-utils, with one JSON document per group."""

    name = "json"
    groups_in = "documents"
    title = "JSON"

    def _text(self, group: GroupOffsets, names: NameCheck) -> str:
        names.require_valid("group", group.group)
        document = {"groupid": group.group, "offsets": by_topic(group.offsets, names)}
        return json.dumps(document, ensure_ascii=False) + "\n"

    def open(self, stream: BinaryIO, *, what: str = "snapshot") -> KafkaUtilsReader:
        return KafkaUtilsReader(stream, self, what)


class KafkaUtilsReader(SnapshotReader):
    """The reader of a checked file. It keeps an index with three numbers per group in memory."""

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

    def index(self) -> dict[str, array[int]]:
        return self._documents

    def load(self, group: str) -> GroupOffsets:
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
