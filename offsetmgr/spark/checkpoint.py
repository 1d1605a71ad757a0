"""Parses a streaming query's checkpoint: the batches, and the offsets up to which each batch read its sources.

Pure: it parses file names and texts that the caller has read. The formats are those of Spark 4.0 (``OffsetSeqLog``,
``CommitLog``). In ``offsets/N``, line 1 is the version, line 2 the batch's settings, and each further line is the
offset of one source, or ``-`` if the source has no offset yet. Spark writes ``commits/N`` after the output of batch N.
The batch is finished when ``commits/N`` exists.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from offsetmgr.core.errors import CorruptData, UnknownVersion
from offsetmgr.core.model import TopicPartition

_VERSION: Final = re.compile(r"v\d+")
_KNOWN: Final = "v1"
_NO_OFFSET: Final = "-"
_NUMBER: Final = re.compile(r"0|[1-9][0-9]*")


@dataclass(frozen=True, slots=True)
class CheckpointBatch:
    """One micro-batch. ``ends`` are the end offsets of its sources, in the order of the checkpoint's lines.

    The end of a source is None if the source has no offset yet, or if its offset is not in Kafka's format.
    """

    number: int
    ends: tuple[Mapping[TopicPartition, int] | None, ...]


def newest_batch(names: Iterable[str]) -> int | None:
    """Returns the largest batch number among the file names of ``offsets`` or ``commits``; None if there is none. The
    function ignores other files, such as checksums and temporary files."""
    return max((int(name) for name in names if _NUMBER.fullmatch(name)), default=None)


def parse_offsets(text: str, number: int, what: str) -> CheckpointBatch:
    """Parses the file ``offsets/N``. ``what`` names it in errors. Raises `UnknownVersion`, `CorruptData`."""
    lines = text.removesuffix("\n").split("\n")
    if not _VERSION.fullmatch(lines[0]):
        raise CorruptData(what, f"it begins with {lines[0][:20]!r} instead of a version")
    if lines[0] != _KNOWN:
        hint = "use a version of offsetmgr that knows this Spark's checkpoints"
        raise UnknownVersion(what, f"its version is {lines[0]}; offsetmgr supports {_KNOWN}", hint)
    if len(lines) < 3:
        raise CorruptData(what, "it names no source")
    return CheckpointBatch(number, tuple(kafka_offsets(line) for line in lines[2:]))


def kafka_offsets(line: str) -> dict[TopicPartition, int] | None:
    """Parses one source's offset if it is in Kafka's format, ``{"topic":{"0":23}}``. Returns None for any other
    source."""
    if line == _NO_OFFSET:
        return None
    try:
        document: Any = json.loads(line)
    except ValueError:
        return None
    if not isinstance(document, dict):
        return None
    found: dict[TopicPartition, int] = {}
    for topic, partitions in document.items():
        if not isinstance(partitions, dict):
            return None
        for partition, offset in partitions.items():
            if not _NUMBER.fullmatch(partition) or type(offset) is not int or offset < 0:
                return None
            found[TopicPartition(topic, int(partition))] = offset
    return found
