"""The format of the coordinator's znodes: JSON with a version, and partitions as runs such as ``0-3,7``. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, Self

from offsetmgr.core.errors import CorruptData
from offsetmgr.core.field_reader import FieldReader
from offsetmgr.core.model import TopicPartition

VERSION: Final = 1
MAX_PARTITIONS: Final = 1_000_000
"""The maximum number of partitions in one field. With this limit a corrupt node cannot exhaust the memory."""

RUN: Final = re.compile("(0|[1-9][0-9]{0,9})(?:-(0|[1-9][0-9]{0,9}))?")


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """Offsets of one partition: ``first`` is inclusive, ``end`` exclusive.

    >>> OffsetRange(10, 25).end - OffsetRange(10, 25).first
    15
    """

    first: int
    end: int


class NodeReader(FieldReader):
    """Reads the fields of a node. All methods raise `CorruptData`."""

    @classmethod
    def of(cls, path: str, data: bytes) -> Self:
        """Parses a node. Raises `CorruptData`, `UnknownVersion`."""
        node = cls.parse(data, f"ZooKeeper node {path}", CorruptData)
        node.version((VERSION,))
        return node

    def ranges(self, name: str) -> dict[TopicPartition, OffsetRange]:
        """Returns the ranges in a field that `ranges_of` has written; empty if the field is missing."""
        found = {tp: OffsetRange(first, end) for tp, (first, end) in self.offsets(name, ("FIRST", "END")).items()}
        if broken := [tp for tp, offsets in found.items() if offsets.first > offsets.end]:
            raise self.error(f"the offsets of {broken[0].topic} are not PARTITION: [FIRST, END]")
        return found

    def offsets(self, name: str, row: tuple[str, ...]) -> dict[TopicPartition, list[int]]:
        """Returns the lists of offsets in a field that `rows_of` has written; empty if the field is missing. Each list
        must have as many offsets as ``row`` has names."""
        if name not in self:
            return {}
        found: dict[TopicPartition, list[int]] = {}
        for topic, numbers in self.mapping(name).items():
            for number, value in numbers.items() if isinstance(numbers, dict) else [("", None)]:
                offsets = value if isinstance(value, list) and all(type(n) is int for n in value) else []
                known = len(offsets) == len(row) and all(0 <= n < 2**63 for n in offsets)
                if not RUN.fullmatch(number) or "-" in number or not known:
                    raise self.error(f"the offsets of {topic} are not PARTITION: [{', '.join(row)}]")
                found[TopicPartition(topic, int(number))] = offsets
        return found

    def partitions(self, name: str) -> list[TopicPartition]:
        return self.runs(self.mapping(name))

    def runs(self, topics: object) -> list[TopicPartition]:
        """Returns the partitions in an object that `runs_of` has written."""
        if not isinstance(topics, dict):
            raise self.error("has no object where partitions should be")
        found: list[TopicPartition] = []
        for topic, runs in topics.items():
            for run in runs.split(",") if isinstance(runs, str) else [""]:
                match = RUN.fullmatch(run)
                first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
                if not first <= last < first + MAX_PARTITIONS - len(found):
                    raise self.error(f"the partitions of {topic} are not runs of numbers")
                found += (TopicPartition(topic, number) for number in range(first, last + 1))
        return found


def runs_of(partitions: Iterable[TopicPartition]) -> dict[str, str]:
    """Returns for each topic its partitions as runs, such as ``0-3,7``."""
    return {
        topic: ",".join(_run(numbers) for numbers in _neighbours(sorted({tp.partition for tp in of_topic})))
        for topic, of_topic in groupby(sorted(partitions), key=lambda tp: tp.topic)
    }


def ranges_of(ranges: Mapping[TopicPartition, OffsetRange]) -> dict[str, dict[str, list[int]]]:
    """Returns the ranges as ``{"topic": {"partition": [first, end]}}``."""
    return rows_of({tp: [offsets.first, offsets.end] for tp, offsets in ranges.items()})


def rows_of(rows: Mapping[TopicPartition, list[int]]) -> dict[str, dict[str, list[int]]]:
    """Returns lists of offsets as ``{"topic": {"partition": [offset, ...]}}``."""
    found: dict[str, dict[str, list[int]]] = {}
    for (topic, number), offsets in sorted(rows.items()):
        found.setdefault(topic, {})[str(number)] = offsets
    return found


def _neighbours(numbers: list[int]) -> Iterable[list[int]]:
    for _, run in groupby(enumerate(numbers), key=lambda item: item[1] - item[0]):
        yield [number for _, number in run]


def _run(numbers: list[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"


def node_bytes(fields: Mapping[str, Any]) -> bytes:
    """Encodes a node with these fields and the version."""
    return json.dumps({"version": VERSION, **fields}, separators=(",", ":")).encode()
