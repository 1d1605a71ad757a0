"""`TopicFilter`: an old consumer's white list or black list of topics. Pure.

Source: kafka.consumer.TopicFilter, TopicCount and kafka.common.Topic of Kafka 0.10.2.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from offsetmgr.zookeeper.groups.java_classes import ALPHABET
from offsetmgr.zookeeper.groups.java_regex import compile_java
from offsetmgr.zookeeper.nodes.consumers import BLACK_LIST, WHITE_LIST

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
