"""Parsers of the original coordinator's nodes, which are plain text without a version. They are never written. Pure.

``coordinator`` is a time in ms, ``topic-partitions`` is ``a:0,1;b:0;``, and ``progress`` is ``a.0:time;a.1:time;``. A
topic name may contain dots; the last dot separates the topic name from the partition. The members of the original
coordinator write the nodes unconditionally, so they must not run together with offsetmgr's members. Source: the period
coordinator's document, "shared storage".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from offsetmgr.core.errors import CorruptData
from offsetmgr.core.model import TopicPartition

_NUMBER: Final = re.compile("[0-9]{1,10}")
_TIME: Final = re.compile("[0-9]{1,19}")


def is_legacy(data: bytes) -> bool:
    """Returns whether the original coordinator wrote a node: its content is not empty and does not begin with ``{``."""
    return bool(data.strip()) and not data.lstrip().startswith(b"{")


def parse_limit(path: str, data: bytes) -> int | None:
    """Parses ``coordinator``. Returns the end of the open period in ms; None if the node is empty or contains 0, which
    means that no end was ever set.

    Raises `CorruptData`.
    """
    text = _text(path, data)
    if text and not _TIME.fullmatch(text):
        raise _corrupt(path, f"{text[:40]!r} is not a time in milliseconds")
    return int(text) or None if text else None


def parse_partitions(path: str, data: bytes) -> frozenset[TopicPartition]:
    """Parses ``topic-partitions``. Raises `CorruptData`."""
    found: set[TopicPartition] = set()
    for item in _items(path, data):
        topic, colon, numbers = item.rpartition(":")
        if not colon or not topic:
            raise _corrupt(path, f"{item[:40]!r} is not TOPIC:PARTITION,...")
        for number in numbers.split(","):
            found.add(TopicPartition(topic, _partition(path, item, number)))
    return frozenset(found)


def parse_progress(path: str, data: bytes) -> dict[TopicPartition, int]:
    """Parses ``progress``. Returns for each partition the time in ms up to which the partition has finished. Raises
    `CorruptData`."""
    found: dict[TopicPartition, int] = {}
    for item in _items(path, data):
        name, _, time = item.rpartition(":")
        topic, dot, number = name.rpartition(".")
        if not dot or not topic or not _TIME.fullmatch(time.strip()):
            raise _corrupt(path, f"{item[:40]!r} is not TOPIC.PARTITION:TIME")
        partition = TopicPartition(topic, _partition(path, item, number))
        if partition in found:
            raise _corrupt(path, f"contains {partition} twice")
        found[partition] = int(time)
    return found


def _items(path: str, data: bytes) -> Iterator[str]:
    for item in _text(path, data).split(";"):
        if item.strip():
            yield item.strip()


def _partition(path: str, item: str, text: str) -> int:
    """Parses the number of a partition, with or without the prefix ``partition`` that the document uses."""
    number = text.strip().removeprefix("partition")
    if not _NUMBER.fullmatch(number):
        raise _corrupt(path, f"{item[:40]!r} does not contain the number of a partition")
    return int(number)


def _text(path: str, data: bytes) -> str:
    try:
        return data.decode().strip()
    except UnicodeDecodeError as error:
        raise _corrupt(path, "is not UTF-8") from error


def _corrupt(path: str, why: str) -> CorruptData:
    return CorruptData(f"ZooKeeper node {path}", why)
