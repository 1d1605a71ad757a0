"""The original coordinator's nodes: plain text without a version. They are read, never written. Pure.

``coordinator``: a time in ms; ``topic-partitions``: ``a:0,1;b:0;``; ``progress``: ``a.0:time;a.1:time;``, where a
topic's name may contain dots, so that the last one ends it. Members that write these nodes ignore the conditions that
protect ours, so they must not run at the same time. Source: the period coordinator's document, "shared storage".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from offsetmgr.core.errors import CorruptData
from offsetmgr.core.model import TopicPartition

_NUMBER: Final = re.compile("[0-9]{1,10}")
_TIME: Final = re.compile("[0-9]{1,19}")


def is_old(data: bytes) -> bool:
    """Whether a non-empty node is in the old format: ours are JSON objects."""
    return bool(data.strip()) and not data.lstrip().startswith(b"{")


def parse_limit(path: str, data: bytes) -> int | None:
    """``coordinator``: the end of the open period in ms; None where it has never been set (empty, or 0).

    Raises `CorruptData`.
    """
    text = _text(path, data)
    if text and not _TIME.fullmatch(text):
        raise _broken(path, f"{text[:40]!r} is no time in milliseconds")
    return int(text) or None if text else None


def parse_partitions(path: str, data: bytes) -> frozenset[TopicPartition]:
    """``topic-partitions``. Raises `CorruptData`."""
    found: set[TopicPartition] = set()
    for item in _items(path, data):
        topic, colon, numbers = item.rpartition(":")
        if not colon or not topic:
            raise _broken(path, f"{item[:40]!r} is not TOPIC:PARTITION,...")
        for number in numbers.split(","):
            found.add(TopicPartition(topic, _partition(path, item, number)))
    return frozenset(found)


def parse_progress(path: str, data: bytes) -> dict[TopicPartition, int]:
    """``progress``: partition -> the time up to which it has finished, in ms. Raises `CorruptData`."""
    found: dict[TopicPartition, int] = {}
    for item in _items(path, data):
        name, _, time = item.rpartition(":")
        topic, dot, number = name.rpartition(".")
        if not dot or not topic or not _TIME.fullmatch(time.strip()):
            raise _broken(path, f"{item[:40]!r} is not TOPIC.PARTITION:TIME")
        partition = TopicPartition(topic, _partition(path, item, number))
        if partition in found:
            raise _broken(path, f"says of {partition} twice how far it is")
        found[partition] = int(time)
    return found


def _items(path: str, data: bytes) -> Iterator[str]:
    for item in _text(path, data).split(";"):
        if item.strip():
            yield item.strip()


def _partition(path: str, item: str, text: str) -> int:
    """The document writes ``partition0`` for a number."""
    number = text.strip().removeprefix("partition")
    if not _NUMBER.fullmatch(number):
        raise _broken(path, f"{item[:40]!r} names no partition by its number")
    return int(number)


def _text(path: str, data: bytes) -> str:
    try:
        return data.decode().strip()
    except UnicodeDecodeError as error:
        raise _broken(path, "is not UTF-8") from error


def _broken(path: str, why: str) -> CorruptData:
    return CorruptData(f"ZooKeeper node {path}", why)
