"""Parses a streaming query's checkpoint: the batches, and the offsets up to which each batch read its sources.

Pure: it parses file names and texts that the caller has read. The formats are those of Spark 4.0 to 4.3
(``OffsetSeqLog``, ``CommitLog``). In ``offsets/N``, line 1 is the version, line 2 the batch's settings, and each later
line is the offset of one source, or ``-`` if the source has no offset yet. In version 1 the lines have the order of the
plan. In version 2 each line begins with the source's name, or with its position in the plan, and a colon. Spark writes
``commits/N`` after the output of batch N. The batch is finished when ``commits/N`` exists.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from offsetmgr.core.errors import CorruptData, UnknownVersion
from offsetmgr.core.model import TopicPartition, is_valid_offset, is_valid_topic_name

_VERSION: Final = re.compile(r"v\d+")
_BY_POSITION, _BY_ID = "v1", "v2"
NO_OFFSET: Final = "-"
_NUMBER: Final = re.compile(r"0|[1-9][0-9]*")
_LIKE_A_NUMBER: Final = re.compile(r"-?[0-9]+")
_MAX_SHOWN: Final = 60


@dataclass(frozen=True, slots=True)
class CheckpointBatch:
    """One micro-batch. ``lines`` are the end offsets of its sources as texts, by the id of the source. ``what`` names
    the file in errors. If ``ordered``, the ids are the positions of the sources in the plan."""

    number: int
    lines: Mapping[str, str]
    what: str
    ordered: bool = True

    @property
    def ends(self) -> tuple[Mapping[TopicPartition, int] | None, ...]:
        """The end offsets of the sources for a reader that does not know the plan. The end of a source is None if the
        source has no offset yet, or if its offset has the form of another source. Raises `CorruptData` for an offset
        that only a Kafka source can have written and that is invalid."""
        return tuple(
            kafka_offsets(line, self.what) if _is_kafkas(line, self.what) else None for line in self.lines.values()
        )


def newest_batch(names: Iterable[str]) -> int | None:
    """Returns the largest batch number among the file names of ``offsets`` or ``commits``; None if there is none. The
    function ignores other files, such as checksums and temporary files."""
    return max((int(name) for name in names if _NUMBER.fullmatch(name)), default=None)


def parse_offsets(text: str, number: int, what: str) -> CheckpointBatch:
    """Parses the file ``offsets/N``. ``what`` names it in errors. Raises `UnknownVersion`, `CorruptData`."""
    lines = text.removesuffix("\n").split("\n")
    version = lines[0]
    if not _VERSION.fullmatch(version):
        raise CorruptData(what, f"it begins with {version[:20]!r} instead of a version")
    if version not in (_BY_POSITION, _BY_ID):
        hint = "use a version of offsetmgr that knows this Spark's checkpoints"
        raise UnknownVersion(what, f"its version is {version}; offsetmgr supports {_BY_POSITION} and {_BY_ID}", hint)
    if len(lines) < 3:
        raise CorruptData(what, "it names no source")
    if version == _BY_POSITION:
        return CheckpointBatch(number, {str(position): line for position, line in enumerate(lines[2:])}, what)
    by_id: dict[str, str] = {}
    for line in lines[2:]:
        source, colon, offset = line.partition(":")
        if not colon or not offset or source in by_id:
            raise CorruptData(what, f"the line {_shown(line)} is not the offset of one source")
        by_id[source] = offset
    return CheckpointBatch(number, by_id, what, ordered=False)


def kafka_offsets(line: str, what: str) -> dict[TopicPartition, int]:
    """Parses the offset of a Kafka source, ``{"topic":{"0":23}}``. Raises `CorruptData`."""
    found: dict[TopicPartition, int] = {}
    for topic, partitions in _object(line, what).items():
        for partition, offset in partitions.items() if isinstance(partitions, dict) else [("", None)]:
            valid = _NUMBER.fullmatch(partition) and is_valid_topic_name(topic)
            if not valid or type(offset) is not int or not is_valid_offset(offset):
                raise CorruptData(what, f"the line {_shown(line)} is not a valid offset of a Kafka source")
            found[TopicPartition(topic, int(partition))] = offset
    return found


def _is_kafkas(line: str, what: str) -> bool:
    """Returns whether this line has the form of a Kafka source's offset. Raises `CorruptData` for a line that
    is empty or has been cut."""
    if line and not line.startswith("{"):
        return False
    document = _object(line, what).values()
    return all(isinstance(one, dict) for one in document) and (
        not document or any(_LIKE_A_NUMBER.fullmatch(key) for one in document for key in one)
    )


def _object(line: str, what: str) -> dict[str, Any]:
    try:
        document: Any = json.loads(line)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise CorruptData(what, f"the line {_shown(line)} is not complete" if line else "one of its lines is empty")
    return document


def _shown(line: str) -> str:
    return repr(line if len(line) <= _MAX_SHOWN else line[:_MAX_SHOWN] + "...")
