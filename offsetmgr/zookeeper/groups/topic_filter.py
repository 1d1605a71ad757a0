"""The topics that an old consumer's pattern selects: white lists and black lists. Pure.

Source: kafka.consumer.TopicFilter, TopicCount and kafka.common.Topic of 0.10.2.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from offsetmgr.zookeeper.groups.java_classes import ALPHABET
from offsetmgr.zookeeper.groups.java_regex import compile_java

STATIC: Final = "static"
WHITE_LIST: Final = "white_list"
BLACK_LIST: Final = "black_list"
INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets"})
"""The topics that `exclude.internal.topics` leaves out (members of 0.11 and later also leave out
``__transaction_state``)."""

_BLANK: Final = "".join(map(chr, range(0x21)))  # the characters that Java's trim removes
_LEADING_QUOTES: Final = re.compile("""\\A["']+""")
_TRAILING_QUOTES: Final = re.compile("""["']+(?=(?:\\r\\n|[\\n\\r\\x85\\u2028\\u2029])?\\Z)""")  # Java's $


def normalized(pattern: str) -> str:
    """Returns the regular expression for a pattern as users write it: a comma means "or"; blanks and enclosing quotes
    are removed. Members register this form, and others apply the same rule again when they read it."""
    expression = pattern.strip(_BLANK).replace(",", "|").replace(" ", "")
    return _TRAILING_QUOTES.sub("", _LEADING_QUOTES.sub("", expression))


@dataclass(frozen=True, slots=True)
class TopicFilter:
    """A white list selects the topics whose whole name matches, a black list the others.

    ``pattern`` is in the form that users write. The constructor raises `InvalidPattern`, `UnsupportedOperation`.
    """

    pattern: str
    excludes: bool = False
    """Whether it is a black list."""

    def __post_init__(self) -> None:
        _compiled(self.pattern)

    def allows(self, topic: str, *, internal: bool = False) -> bool:
        """Whether it selects a topic; with ``internal`` also Kafka's own (`exclude.internal.topics` = false).

        A name that brokers reject is never selected.
        """
        if (topic in INTERNAL_TOPICS and not internal) or not topic or not ALPHABET.issuperset(topic):
            return False
        return (_compiled(self.pattern).fullmatch(topic) is None) is self.excludes


def topics_of(
    subscription: dict[str, int], kind: str, existing: Iterable[str], *, internal: bool = False
) -> dict[str, int]:
    """Topic -> number of streams, of a registration: ``kind`` is its ``pattern``, ``existing`` the cluster's topics.

    As in Kafka, any kind other than the two lists is static, and only the first entry of a list counts. A static
    subscription names its topics, whether they exist or not. Raises `InvalidPattern`, `UnsupportedOperation`.
    """
    if kind not in (WHITE_LIST, BLACK_LIST) or not subscription:
        return dict(subscription)
    pattern, streams = next(iter(subscription.items()))
    chosen = TopicFilter(pattern, excludes=kind == BLACK_LIST)
    return {topic: streams for topic in sorted(existing) if chosen.allows(topic, internal=internal)}


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return compile_java(normalized(pattern))
