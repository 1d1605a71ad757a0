"""The selection of groups and partitions: names, glob patterns, exclusions, and ``topic:0,1``. Pure."""

from __future__ import annotations

import fnmatch
import glob
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import wraps
from types import FunctionType
from typing import Any, Final, NamedTuple, TypeAlias

from offsetmgr.core.advice import Advice, Argument, Invocation, option
from offsetmgr.core.errors import GroupNotFound, UnknownTopicOrPartition, UsageError
from offsetmgr.core.model import BrokerPartition, TopicPartition
from offsetmgr.core.offset_store import PartitionKinds
from offsetmgr.core.plurals import count_of

_GLOB: Final = frozenset("*?[")
MAX_NAMED: Final = 100
"""The number of groups that `deletion_of` names at most."""
MAX_PARTITION: Final = 2**31 - 1
_DIGITS: Final = len(str(MAX_PARTITION))


def is_pattern(name: str) -> bool:
    """Returns whether ``name`` contains a glob character (``*``, ``?``, ``[``). ``[*]`` is a literal star."""
    return not _GLOB.isdisjoint(name)


def literal_of(pattern: str) -> str | None:
    """Returns the name that a pattern matches; None if the pattern can match more than one name."""
    name = re.sub(r"\[([*?\[])\]", r"\1", pattern)
    return name if glob.escape(name) == pattern else None


def group_words(name: str) -> tuple[str, ...]:
    """Returns the words that name a group in a command with group arguments. A name that begins with a dash needs the
    option, because the command line would parse it as an option."""
    return (option("group"), name) if name.startswith("-") else (name,)


def literal_pattern(name: str) -> str:
    """Returns a glob that matches only this name."""
    return glob.escape(name)


def deletion_of(store: str, groups: Sequence[str], options: Mapping[str, Argument]) -> Advice:
    """Returns the call that deletes these groups from the store at the URI ``store``. If there are more than
    `MAX_NAMED`, it has the first of them, and a text after it has the number of the others."""
    named = tuple(map(literal_pattern, groups[:MAX_NAMED]))
    call = Invocation("groups delete", (), {"store": store, "group": named, **options, "execute": True})
    left = count_of(len(groups) - MAX_NAMED, "more empty group")
    text = "{}" if len(groups) <= MAX_NAMED else "{}  ({}: see {})"
    return Advice(text, call, left, Invocation("groups list"))


class GroupSelection:
    """The groups that names and globs select: ``groups`` (all groups if it is None) without those of ``exclude``.

    A pattern that equals the name of an existing group means only that group, even if it could be read as a glob. An
    empty selection is a `UsageError`: it is probably a defect of the caller, and it must not be read as all groups. So
    is a name that is not a text. ``on_missing`` is called with the error of each name or glob that matches nothing,
    unless no group is selected; by default `within` raises the first error.

    >>> selection = GroupSelection("shop*", exclude=["shop-test"])
    >>> selection.within(["audit", "shop-1", "shop-test"], "the store")
    ['shop-1']
    """

    def __init__(
        self,
        groups: str | Iterable[str] | None = None,
        *,
        exclude: str | Iterable[str] | None = (),
        on_missing: Callable[[GroupNotFound], None] | None = None,
    ) -> None:
        self.patterns = None if groups is None else _texts(groups)
        self.excluded = _texts(exclude or ())
        self.on_missing = on_missing
        if self.patterns == ():
            raise UsageError("groups", "the selection is empty", "name a group, or pass the glob '*' for all groups")
        self._included = _Patterns(self.patterns or ())
        self._excluded = _Patterns(self.excluded)

    def __repr__(self) -> str:
        return f"GroupSelection({self.patterns!r}, exclude={self.excluded!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GroupSelection) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash((self.patterns, self.excluded))

    @classmethod
    def of(cls, groups: GroupSelection | str | Iterable[str] | None) -> GroupSelection:
        """Returns ``groups`` as a selection."""
        return groups if isinstance(groups, GroupSelection) else cls(groups)

    @classmethod
    def decoded(cls, encoded: Mapping[str, Any]) -> GroupSelection:
        """Returns a stored selection. Without groups, it is all groups."""
        return cls(encoded["groups"] or None, exclude=encoded.get("exclude_groups"))

    def encoded(self) -> dict[str, list[str]]:
        """Returns the selection as JSON values, as plans store it."""
        excluded = {"exclude_groups": list(self.excluded)} if self.excluded else {}
        return {"groups": list(self.patterns or ()), **excluded}

    @property
    def arguments(self) -> dict[str, Argument]:
        """The arguments of a further call for the same groups."""
        return {"group": self.patterns, "all_groups": self.patterns is None, "exclude_group": self.excluded}

    @property
    def names(self) -> frozenset[str]:
        """The groups that are selected by name."""
        return self._included.names - self._excluded.names

    @property
    def excluded_names(self) -> frozenset[str]:
        """The groups that are excluded by name."""
        return self._excluded.names

    @property
    def everything(self) -> bool:
        """Whether every group is selected."""
        return self.patterns is None and not self.excluded

    @property
    def single(self) -> str | None:
        """The only name or glob of the selection: the group of a file that does not contain the group."""
        return self.patterns[0] if self.patterns is not None and len(self.patterns) == 1 else None

    def matches(self, group: str) -> bool:
        """Returns whether the selection contains the group."""
        return (self.patterns is None or self._included.matches(group)) and not self.excludes(group)

    def excludes(self, group: str) -> bool:
        """Returns whether the group is excluded."""
        return self._excluded.matches(group)

    def literal_first(self, existing: Container[str]) -> GroupSelection:
        """Returns the selection in which each pattern that equals the name of an existing group matches only it."""
        patterns = None if self.patterns is None else _literal_first(self.patterns, existing)
        return GroupSelection(patterns, exclude=_literal_first(self.excluded, existing), on_missing=self.on_missing)

    def within(
        self,
        existing: Iterable[str],
        where: str,
        *,
        unlisted: bool = False,
        others: Callable[[], Iterable[str]] = tuple,
        hint: str | None = None,
    ) -> list[str]:
        """Returns the selected groups of ``existing``, sorted. ``where`` names the place for error messages.

        ``unlisted`` also returns names that do not exist: a store may hold offsets of a group that it does not list. A
        glob that matches none of ``existing`` selects groups of ``others``. Raises `GroupNotFound` for a name, a glob
        or an excluded name that matches nothing, and if every selected group is excluded. An excluded glob may match
        nothing. ``hint`` replaces the hint of the errors.
        """
        known = set(existing)
        missing: list[GroupNotFound] = []

        def report(what: str, why: str, pattern: str) -> None:
            groups = [pattern] if unlisted else ()
            missing.append(GroupNotFound(what, why, KNOWN_GROUPS if hint is None else hint, groups=groups))

        chosen = set(known) if self.patterns is None else set[str]()
        for pattern in dict.fromkeys(self.patterns or ()):
            name = pattern if pattern in known else literal_of(pattern)
            if name is not None:
                found = [name] if unlisted or name in known else []
            else:
                found = fnmatch.filter(known, pattern) or fnmatch.filter(others(), pattern)
            if not found:
                why = f"does not exist in {where}" if name is not None else f"no group in {where} matches this pattern"
                report(f"group {pattern!r}", why, pattern)
            chosen.update(found)
        there = known | chosen
        excluded = _Patterns(self.excluded, there)
        for name in sorted(excluded.names - there) if there else ():
            why = f"does not exist in {where}" if known else "is not one of the selected groups"
            report(f"excluded group {name!r}", why, name)
        left = sorted(group for group in chosen if not excluded.matches(group))
        if chosen and not left and not missing:
            missing.append(GroupNotFound("groups", f"every selected group of {where} is excluded"))
        if missing and (self.on_missing is None or not left):
            raise missing[0]
        for error in missing:
            assert self.on_missing is not None  # otherwise the error was raised
            self.on_missing(error)
        return left

    def named(self, chosen: Iterable[str]) -> set[str]:
        """Returns those of the chosen groups that were selected by their name, and not by a glob."""
        return {*(self.patterns or ()), *self._included.names}.intersection(chosen)


class _Patterns:
    """Names and globs. ``names`` is a set, because a reverse plan selects all of its groups by name. A pattern that is
    one of the ``existing`` groups is a name."""

    def __init__(self, patterns: Iterable[str], existing: Container[str] = ()) -> None:
        literals = {one: one if one in existing else literal_of(one) for one in patterns}
        self.names = frozenset(name for name in literals.values() if name is not None)
        self.globs = tuple(pattern for pattern, name in literals.items() if name is None)

    def matches(self, group: str) -> bool:
        return group in self.names or any(group == glob or fnmatchcase(group, glob) for glob in self.globs)


def _texts(groups: str | Iterable[str]) -> tuple[str, ...]:
    found = (groups,) if isinstance(groups, str | bytes) else tuple(groups)
    for name in found:
        if not isinstance(name, str):
            raise UsageError(
                f"group {name!r}", "a name of a group is a str", 'decode bytes first: name.decode("utf-8")'
            )
    return found


def _literal_first(patterns: Iterable[str], existing: Container[str]) -> list[str]:
    return [literal_pattern(pattern) if pattern in existing else pattern for pattern in patterns]


class TopicPattern(NamedTuple):
    """One ``--topic`` value: a topic name or glob, and the selected partitions (None means all).

    ``1-2`` means partitions 1 and 2 in stores with numbered partitions, and partition 2 of broker 1 in stores of Kafka
    0.7.
    """

    name: str
    partitions: frozenset[int] | None = None

    def __str__(self) -> str:
        if self.partitions is None:
            return self.name
        ranges = sorted(number for number in self.partitions if isinstance(number, BrokerPartition))
        single = self.partitions.difference(ranges, *(range(one.broker, one.partition + 1) for one in ranges))
        return f"{self.name}:{','.join(map(str, (*ranges, *sorted(single))))}"

    def numbers(self) -> list[int]:
        """Returns the partition numbers for Kafka 0.8 and later. Raises `UsageError` if only partitions of Kafka 0.7
        are selected."""
        numbers = [number for number in self.partitions or () if not isinstance(number, BrokerPartition)]
        if self.partitions and not numbers:
            named = ",".join(map(str, sorted(self.partitions)))
            why = f"{named} is not a range, and only stores of Kafka 0.7 have partitions of the form BROKER-PARTITION"
            raise UsageError(f"topic {self.name}:{named}", why, "as in orders:0,1,4-7")
        return numbers

    def matches(self, tp: TopicPartition) -> bool:
        """Returns whether the pattern matches the partition."""
        return (self.partitions is None or tp.partition in self.partitions) and self.matches_topic(tp.topic)

    def matches_topic(self, topic: str) -> bool:
        """Returns whether the pattern matches a partition of the topic."""
        return topic == self.name if self.is_exact else fnmatchcase(topic, self.name)

    @property
    def is_exact(self) -> bool:
        """Whether the pattern is the name of a topic, and not a glob."""
        return not is_pattern(self.name)


@dataclass(frozen=True)
class TopicSelection:
    """A selection of partitions. If there are no patterns, every partition is selected."""

    patterns: tuple[TopicPattern, ...] = ()

    @classmethod
    def parse(cls, texts: Iterable[str]) -> TopicSelection:
        """Parses ``topic``, ``top*`` or ``topic:0,1,4-7``. Raises `UsageError`."""
        return cls(tuple(_parse_topic(text) for text in texts))

    @classmethod
    def of(cls, topics: TopicSelection | TopicsArgument | None) -> TopicSelection:
        """Returns ``topics`` as a selection; all topics if it is None. Raises `UsageError` for an empty selection,
        which must not be read as all topics, and for a text that names no topic."""
        if topics is None or isinstance(topics, TopicSelection):
            return topics or ALL_TOPICS
        given = [topics] if isinstance(topics, str | TopicPartition) else list(topics)
        if not given:
            raise UsageError("topics", "the selection is empty", "name a topic, or pass None for all topics")
        return cls.parse(f"{one.topic}:{one.partition}" if isinstance(one, TopicPartition) else one for one in given)

    @classmethod
    def decoded(cls, encoded: Mapping[str, Any]) -> TopicSelection:
        """Returns a stored selection."""
        return cls.parse(encoded["topics"])

    def encoded(self) -> dict[str, list[str]]:
        """Returns the selection as JSON values, as plans store it."""
        return {"topics": self.texts}

    @property
    def texts(self) -> list[str]:
        """The selection as texts that `parse` reads."""
        return [*map(str, self.patterns)]

    @property
    def everything(self) -> bool:
        """Whether every partition is selected."""
        return not self.patterns

    def within(self, *kinds: PartitionKinds) -> TopicSelection:
        """Checks that stores with partitions of these kinds can hold the selection, and returns the selection
        unchanged.

        Raises `UsageError` if none of the stores is a store of Kafka 0.7, and a pattern selects only partitions of
        Kafka 0.7. An example of such a pattern is ``orders:7-2``, because ``7-2`` is not a valid range of partition
        numbers.
        """
        if PartitionKinds.OF_BROKERS not in kinds:
            for pattern in self.patterns:
                pattern.numbers()
        return self

    def matches(self, tp: TopicPartition) -> bool:
        """Returns whether the selection contains the partition."""
        return not self.patterns or any(p.matches(tp) for p in self.patterns)

    def matches_topic(self, topic: str) -> bool:
        """Returns whether a partition of the topic can be part of the selection."""
        return not self.patterns or any(pattern.matches_topic(topic) for pattern in self.patterns)

    def named(self) -> list[str]:
        """Returns the exactly named topics. (Their partitions are selected even without a commit.)"""
        return list(dict.fromkeys(p.name for p in self.patterns if p.is_exact))

    def whole(self) -> list[str]:
        """Returns the exactly named topics that are selected without partition numbers."""
        return list(dict.fromkeys(p.name for p in self.patterns if p.is_exact and p.partitions is None))

    def numbered(self, kind: PartitionKinds = PartitionKinds.NUMBERED) -> list[TopicPartition]:
        """Returns the partitions of this ``kind`` that are named by topic and number. They are selected even without a
        commit."""
        old = kind is PartitionKinds.OF_BROKERS
        return sorted(
            TopicPartition(p.name, number)
            for p in self.patterns
            if p.partitions is not None and p.is_exact
            for number in (p.partitions if old else p.numbers())
            if isinstance(number, BrokerPartition) is old
        )

    def explicit_partitions(
        self, counts: Mapping[str, int], kind: PartitionKinds = PartitionKinds.NUMBERED
    ) -> list[TopicPartition]:
        """Returns, sorted, the partitions that are selected even without a commit: the partitions that are named by
        number, and all partitions of topics that are named without partition numbers. ``counts`` has the partition
        counts of topics, as far as they are known."""
        whole = () if kind is PartitionKinds.OF_BROKERS else self.whole()
        known = (TopicPartition(topic, number) for topic in whole for number in range(counts.get(topic, 0)))
        return sorted(filter(self.matches, {*self.numbered(kind), *known}))

    def expand(
        self, counts: Mapping[str, int], committed: Iterable[TopicPartition], unread: Container[str] = ()
    ) -> list[TopicPartition]:
        """Returns the selected partitions, sorted. They are the selected partitions of exactly named topics, and the
        partitions in ``committed`` that match a glob.

        ``counts`` are the partition counts of the named topics, without the topics that could not be read (``unread``).
        Raises `UnknownTopicOrPartition` if a named topic or partition does not exist.
        """
        named = set[TopicPartition]()
        for pattern in self.patterns:
            if not pattern.is_exact or pattern.name in unread:
                continue
            count = counts.get(pattern.name)
            if count is None:
                raise UnknownTopicOrPartition(f"topic {pattern.name}", "does not exist in this Kafka cluster")
            for number in sorted(pattern.numbers()) if pattern.partitions is not None else range(count):
                if number >= count:
                    what = f"partition {number} of topic {pattern.name}"
                    raise UnknownTopicOrPartition(what, f"the topic has {count} partitions")
                named.add(TopicPartition(pattern.name, number))
        return sorted(filter(self.matches, {*committed, *named}))


TopicsArgument: TypeAlias = str | TopicPartition | Iterable[str | TopicPartition]
"""A topic in the form of ``--topic`` (``orders``, ``orders*``, ``orders:0,4-7``), a partition, or several of them."""

GroupsArgument: TypeAlias = GroupSelection | str | Iterable[str]
"""A name or a glob of groups, several of them, or a `GroupSelection`, which can exclude groups."""


def groups_to_edit(groups: GroupsArgument | None) -> GroupSelection:
    """Returns the selection. Raises `UsageError` if ``groups`` is None, so that an edit of all groups is explicit."""
    if groups is None:
        raise UsageError("groups", "no group is named", "name a group, or pass the glob '*' for all groups")
    return GroupSelection.of(groups)


ALL_TOPICS: Final = TopicSelection()
ALL_GROUPS: Final = GroupSelection()
KNOWN_GROUPS: Final = Advice("{} shows the groups", Invocation("groups list"))


def _parse_topic(text: str) -> TopicPattern:
    name, colon, numbers = text.partition(":")
    if not name:
        raise UsageError(f"topic {text!r}", "it has no name", "as in orders, 'ord*' or orders:0,1")
    if not colon:
        return TopicPattern(name)
    chosen: set[int] = set()
    for part in numbers.split(","):
        first, dash, last = part.strip().partition("-")
        if any(_beyond(number) for number in (first, last)):
            shown = f"{part[:30]}..." if len(part) > 30 else part
            raise UsageError(f"topic {name}", f"{shown} is beyond the largest partition, {MAX_PARTITION}")
        if of_broker := BrokerPartition.parse(part.strip()):
            chosen.add(of_broker)
            if int(last) < int(first):
                continue
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            hint = "as in orders:0,1,4-7 (Kafka 0.7: orders:1-0)"
            raise UsageError(f"topic {text!r}", f"{part!r} is not a partition number", hint)
        if dash and int(last) - int(first) > 1_000_000:
            raise UsageError(f"topic {text!r}", f"{part!r} is a range of more than a million partitions")
        chosen.update(range(int(first), int(last if dash else first) + 1))
    return TopicPattern(name, frozenset(chosen))


def _beyond(number: str) -> bool:
    digits = number.lstrip("0")
    return number.isdecimal() and (len(digits) > _DIGITS or int(digits or 0) > MAX_PARTITION)


# Functions that take selections also take names, so that a program need not make selections.

_SELECTIONS: Final[Mapping[str, Callable[[Any], object]]] = {
    "GroupSelection": groups_to_edit,
    "TopicSelection": TopicSelection.of,
}
"""The functions that return selections, by the annotations of parameters."""


def accept_names(module: dict[str, Any], **more: Callable[[Any], object]) -> None:
    """Lets the public functions of a module, whose namespace this is, also take what `GroupSelection.of` and
    `TopicSelection.of` take. A function that takes a `GroupSelection` raises `UsageError` for None. ``more`` has
    functions for further annotations."""
    of = {**_SELECTIONS, **more}
    for name, function in list(module.items()):
        if isinstance(function, FunctionType) and function.__module__ == module["__name__"] and name[0] != "_":
            kinds = {key: of[kind] for key, kind in function.__annotations__.items() if kind in of}
            module[name] = _converting(function, kinds) if kinds else function


def _converting(function: FunctionType, kinds: Mapping[str, Callable[[Any], object]]) -> Callable[..., Any]:
    names = getattr(function, "__wrapped__", function).__code__.co_varnames

    def convert(name: str, value: object) -> object:
        return kinds[name](value) if name in kinds else value

    @wraps(function)
    def converting(*given: object, **named: object) -> Any:
        converted, surplus = map(convert, names, given), given[len(names) :]
        return function(*converted, *surplus, **{name: convert(name, value) for name, value in named.items()})

    return converting
