"""`Subscription`: the topics to which a consumer subscribes, either by name, or with a white list or black list. Pure.

Source: kafka.consumer.TopicFilter and TopicCount of Kafka 0.10.2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Self

from offsetmgr.core.errors import UsageError
from offsetmgr.zookeeper.groups.java_regex import ALPHABET, compile_java
from offsetmgr.zookeeper.nodes import paths
from offsetmgr.zookeeper.nodes.consumers import BLACK_LIST, STATIC, WHITE_LIST

# `TopicFilter`: an old consumer's white list or black list of topics. Pure. Source: kafka.consumer.TopicFilter,
# TopicCount and kafka.common.Topic of Kafka 0.10.2.

INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets"})
"""The topics that ``exclude.internal.topics`` excludes. Members of Kafka 0.11 and later also exclude
``__transaction_state``."""

_BLANK: Final = "".join(map(chr, range(0x21)))  # the characters that Java's trim removes
_LEADING_QUOTES: Final = re.compile("""\\A["']+""")
_TRAILING_QUOTES: Final = re.compile("""["']+(?=(?:\\r\\n|[\\n\\r\\x85\\u2028\\u2029])?\\Z)""")  # Java's $


def normalized(pattern: str) -> str:
    """Converts a user's pattern into the regular expression that members register.

    A comma becomes ``|``; spaces and enclosing quotes are removed. When a member reads a registration, it applies this
    conversion also to the registration's pattern.
    """
    expression = pattern.strip(_BLANK).replace(",", "|").replace(" ", "")
    return _TRAILING_QUOTES.sub("", _LEADING_QUOTES.sub("", expression))


@dataclass(frozen=True, slots=True)
class TopicFilter:
    """A white list or black list of topics. A white list selects the topics whose whole name matches the pattern. A
    black list selects all other topics.

    ``pattern`` is in the form in which users write it (see `normalized`). The constructor raises `InvalidPattern`,
    `UnsupportedOperation`.
    """

    pattern: str
    excludes: bool = False
    """Whether this is a black list."""

    def __post_init__(self) -> None:
        _compiled(self.pattern)

    def allows(self, topic: str, *, internal: bool = False) -> bool:
        """Whether the filter selects a topic. The filter can select internal topics only if ``internal`` is True
        (``exclude.internal.topics=false``).

        The filter never selects a name that brokers reject.
        """
        if (topic in INTERNAL_TOPICS and not internal) or not topic or not ALPHABET.issuperset(topic):
            return False
        return (_compiled(self.pattern).fullmatch(topic) is None) is self.excludes


def topics_of(
    subscription: Mapping[str, int], kind: str, existing: Iterable[str], *, internal: bool = False
) -> dict[str, int]:
    """Returns the number of streams of each topic that a registration selects.

    ``kind`` is the registration's ``pattern``, ``existing`` are the cluster's topics. As in Kafka, every kind other
    than ``white_list`` and ``black_list`` counts as static, and for these two kinds only the first entry of
    ``subscription`` is used. A white list of several entries is kafka-node's, whose entries are topics. The topics of a
    static subscription are returned even if they do not exist. Raises `InvalidPattern`, `UnsupportedOperation`.
    """
    if kind not in (WHITE_LIST, BLACK_LIST) or not subscription or (kind == WHITE_LIST and len(subscription) > 1):
        return dict(subscription)
    pattern, streams = next(iter(subscription.items()))
    chosen = TopicFilter(pattern, excludes=kind == BLACK_LIST)
    return {topic: streams for topic in sorted(existing) if chosen.allows(topic, internal=internal)}


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return compile_java(normalized(pattern))


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
