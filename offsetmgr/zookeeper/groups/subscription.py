"""`Subscription`: the topics to which a consumer subscribes, either by name, or with a white list or black list. Pure.

Source: kafka.consumer.TopicFilter and TopicCount of Kafka 0.10.2.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from offsetmgr.core.errors import UsageError
from offsetmgr.zookeeper.groups.topic_filter import TopicFilter, normalized
from offsetmgr.zookeeper.nodes import paths
from offsetmgr.zookeeper.nodes.consumers import BLACK_LIST, STATIC, WHITE_LIST


@dataclass(frozen=True, slots=True)
class Subscription:
    """A consumer's subscription. ``kind`` is ``static``, ``white_list`` or ``black_list``.

    For ``static``, ``streams`` maps each topic to its number of streams. For a white list or black list, ``streams``
    maps the regular expression (in Java's syntax, see `normalized`) to a number of streams. All topics that the list
    selects share these streams.
    """

    kind: str
    streams: Mapping[str, int]

    @classmethod
    def static(cls, streams: Mapping[str, int]) -> Self:
        """Subscribes to topics by name. Raises `UsageError`."""
        if not streams:
            raise UsageError("subscription", "contains no topic")
        for topic, count in streams.items():
            _check_count(paths.check_topic(topic), count)
        return cls(STATIC, dict(streams))

    @classmethod
    def white_list(cls, pattern: str, count: int = 1) -> Self:
        """Subscribes to the topics that match ``pattern``. Raises `UsageError`, `InvalidPattern`,
        `UnsupportedOperation`."""
        return cls._pattern(WHITE_LIST, pattern, count)

    @classmethod
    def black_list(cls, pattern: str, count: int = 1) -> Self:
        """Subscribes to the topics that do not match ``pattern``. Raises `UsageError`, `InvalidPattern`,
        `UnsupportedOperation`."""
        return cls._pattern(BLACK_LIST, pattern, count)

    @classmethod
    def _pattern(cls, kind: str, pattern: str, count: int) -> Self:
        _check_count(f"pattern {pattern!r}", count)
        TopicFilter(pattern, excludes=kind == BLACK_LIST)
        return cls(kind, {normalized(pattern): count})

    def encoded(self, timestamp_ms: int) -> bytes:
        """Encodes the content of the registration's node, version 1."""
        node = {"version": 1, "subscription": self.streams, "pattern": self.kind, "timestamp": str(timestamp_ms)}
        return json.dumps(node, ensure_ascii=False, separators=(",", ":")).encode()


def _check_count(what: str, count: int) -> None:
    if count < 1:
        raise UsageError(f"{count} streams of {what}", "a subscription needs at least one stream")
