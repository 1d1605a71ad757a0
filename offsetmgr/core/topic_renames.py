"""`TopicRenames`: the names that topics of one cluster have in another, such as ``east.orders``. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import UsageError
from offsetmgr.core.model import TopicPartition, is_valid_topic_name
from offsetmgr.core.plurals import list_of

_EXAMPLE = r"as in '(.*)=east.\1', or back: 'east\.(.*)=\1'"
_MAX_NAMED: Final = 5


class TopicRenames:
    """Rules of the form ``PATTERN=REPLACEMENT``. The first rule whose regular expression matches the whole name gives
    the new name, and a topic without such a rule keeps its name.

    >>> renames = TopicRenames([r"(.*)=east.\\1"])
    >>> renames("orders")
    'east.orders'
    """

    def __init__(self, rules: Iterable[str] = ()) -> None:
        """Raises `UsageError` for a rule without ``=``, and for a pattern or a replacement that is not valid."""
        self._texts = tuple(rules)
        self._rules = [_parse(rule) for rule in self._texts]

    def __bool__(self) -> bool:
        return bool(self._rules)

    def __call__(self, topic: str) -> str:
        """Returns the new name. Raises `UsageError` if Kafka does not accept it as the name of a topic."""
        name = self._renamed(topic)
        if name != topic and not is_valid_topic_name(name):
            raise UsageError(Advice("{rename_topic}"), f"gives topic {topic} the name {name!r}", _EXAMPLE)
        return name

    def _renamed(self, topic: str) -> str:
        found = next(((match, new) for pattern, new in self._rules if (match := pattern.fullmatch(topic))), None)
        return topic if found is None else found[0].expand(found[1])

    def require_matches(self, topics: Collection[str], examples: Collection[str]) -> None:
        """Raises `UsageError` for a rule that matches none of ``topics``. The hint names some of ``examples``."""
        for text, (pattern, _) in zip(self._texts, self._rules, strict=True):
            if not any(map(pattern.fullmatch, topics)):
                named = f": {list_of(sorted(examples), _MAX_NAMED)}" * bool(examples)
                hint = f"a pattern must match a whole name in the source{named}"
                raise _error(text, "no topic of the source has such a name", hint)

    def partition(self, tp: TopicPartition) -> TopicPartition:
        """Returns the partition under the new name of its topic."""
        return TopicPartition(self(tp.topic), tp.partition) if self._rules else tp

    def inverse(self, topics: Iterable[str]) -> dict[str, str]:
        """Returns the old name of each new name of ``topics``. If two topics get one name, the one that a rule renames
        has it."""
        found = [(self._renamed(topic), topic) for topic in topics]
        return dict(sorted(found, key=lambda names: names[0] != names[1]))


def _parse(rule: str) -> tuple[re.Pattern[str], str]:
    text, equals, replacement = rule.rpartition("=")  # no name of a topic contains the character
    if not (text and equals and replacement):
        raise _error(rule, "must be PATTERN=REPLACEMENT")
    try:
        pattern = re.compile(text)
        pattern.sub(replacement, "")  # checks the references to groups
    except (re.error, IndexError) as error:
        raise _error(rule, f"not a regular expression with its replacement: {error}") from None
    return pattern, replacement


def _error(rule: str, why: str, hint: str = _EXAMPLE) -> UsageError:
    return UsageError(Advice("{rename_topic} {}", f"'{rule}'"), why, hint)
