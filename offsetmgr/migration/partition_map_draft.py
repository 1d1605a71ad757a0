"""The draft of a partition map, which an operator corrects and confirms.

The draft is a guess. Only the people who moved the data know which new partition has the data of each old partition. A
draft is rejected until it contains the name of the person who confirms it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from offsetmgr.core.errors import FileFailure, GroupNotFound
from offsetmgr.core.model import BrokerPartition, TopicPartition
from offsetmgr.core.offset_store import GroupOffsets
from offsetmgr.migration.partition_map import VERSION

_READ_THIS: Final = (
    "Each BROKER-PARTITION of Kafka 0.7 needs the new partition of its data, and the position at which groups continue:"
    ' either "start": "earliest" (messages are consumed again), "latest" (unread messages are skipped) or'
    ' {"time": "2013-05-01T12:00:00Z"};'
    ' or "table": [[byte position, offset], ...] with "between": "refuse" or "floor".'
    " The new partition numbers below are a guess (old partitions in ascending order). Correct them, then put your name"
    ' into "confirmed_by".'
)


@dataclass(slots=True)
class _SampledPartition:
    groups: int = 0
    lowest: int = 2**63 - 1
    highest: int = 0


@dataclass(slots=True)
class MapDraft:
    """Collects the partitions of Kafka 0.7 for which groups have offsets. Memory grows with the partitions, not with
    the groups."""

    _seen: dict[TopicPartition, _SampledPartition] = field(default_factory=dict)

    def add(self, found: GroupOffsets, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            if isinstance(tp.partition, BrokerPartition):
                seen = self._seen.setdefault(tp, _SampledPartition())
                position = found.offsets[tp].offset
                seen.groups += 1
                seen.lowest = min(seen.lowest, position)
                seen.highest = max(seen.highest, position)

    def encode(self, source: str, counts: Mapping[str, int] | None) -> bytes:
        """Returns the draft as text. ``counts`` are the partition counts of topics in the Kafka cluster; None if there
        is no cluster.

        Raises `GroupNotFound` if no group has a byte position.
        """
        if not self._seen:
            raise GroupNotFound("partition map", f"no group in {source} holds a byte position of Kafka 0.7")
        topics: dict[str, dict[str, Any]] = {}
        for tp, seen in sorted(self._seen.items()):
            entries = topics.setdefault(tp.topic, {})
            entries[str(tp.partition)] = {
                "partition": len(entries),
                "start": "earliest",
                "seen": {"groups": seen.groups, "lowest_byte": seen.lowest, "highest_byte": seen.highest},
            }
        lines = [_READ_THIS]
        if counts is not None:
            lines += [
                f"{topic}: {len(entries)} partitions in 0.7, {counts.get(topic, 'no such topic')} in the Kafka cluster"
                for topic, entries in topics.items()
                if counts.get(topic) != len(entries)
            ]
        document = {
            "offsetmgr_partition_map": VERSION,
            "read_this": lines,
            "source": source,
            "confirmed_by": "",
            "topics": topics,
        }
        return json.dumps(document, ensure_ascii=False, indent=2).encode() + b"\n"

    def topics(self) -> set[str]:
        return {tp.topic for tp in self._seen}


def write_draft(path: Path, data: bytes) -> None:
    """Writes a draft to a new file. Raises `FileFailure` if the file exists, because an operator may have edited it."""
    try:
        with path.open("xb") as out:
            out.write(data)
    except FileExistsError:
        raise FileFailure(f"partition map {path}", "this file exists, and a map is never overwritten") from None
    except OSError as error:
        hint = "name another file, in a directory that can be written"
        raise FileFailure(f"partition map {path}", error.strerror or str(error), hint) from error
