"""The selection of groups and partitions: names, glob patterns, and ``topic:0,1``.

Pure, except for `choose_groups`, `require_known` and `scan_in_order`, which read a store.
"""

from __future__ import annotations

import glob
import re
from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Final, NamedTuple

from offsetmgr.core.errors import (
    CorruptData,
    GroupNotFound,
    NotAuthorized,
    UnknownTopicOrPartition,
    UsageError,
)
from offsetmgr.core.model import BrokerPartition, TopicPartition
from offsetmgr.core.offset_store import GroupOffsets, OffsetStore, PartitionKinds, PartitionScanStore
from offsetmgr.core.running_store import OtherGroupKind
from offsetmgr.stores.dual_calls import fetch_group

_GLOB: Final = frozenset("*?[")
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
    return ("--group", name) if name.startswith("-") else (name,)


def literal_pattern(name: str) -> str:
    """Returns a glob that matches only this name."""
    return glob.escape(name)


class GroupSelection(NamedTuple):
    """Groups that are selected by ``names`` and ``globs``. ``names`` is a set, because a reverse plan selects all of
    its groups by name, and a lookup in a set is fast."""

    names: frozenset[str]
    globs: tuple[str, ...]

    @classmethod
    def parse(cls, patterns: Iterable[str], existing: Container[str] = ()) -> GroupSelection:
        """Returns the selection of the groups that ``patterns`` describe. A pattern that equals an ``existing`` group
        selects only that group."""
        literals = {pattern: literal_of(pattern) for pattern in literal_first(patterns, existing)}
        return cls(
            frozenset(name for name in literals.values() if name is not None),
            tuple(pattern for pattern, name in literals.items() if name is None),
        )

    def matches(self, group: str) -> bool:
        """Returns whether the selection contains the group."""
        return group in self.names or any(fnmatchcase(group, pattern) for pattern in self.globs)


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
        numbers = [number for number in self.partitions if not isinstance(number, BrokerPartition)]
        return f"{self.name}:{','.join(map(str, sorted(numbers or self.partitions)))}"

    def numbers(self) -> list[int]:
        """Returns the partition numbers for Kafka 0.8 and later. Raises `UsageError` if only partitions of Kafka 0.7
        are selected."""
        numbers = [number for number in self.partitions or () if not isinstance(number, BrokerPartition)]
        if self.partitions and not numbers:
            named = ",".join(map(str, sorted(self.partitions)))
            why = f"{named} is not a range, and only stores of Kafka 0.7 have partitions of the form BROKER-PARTITION"
            raise UsageError(f"topic {self.name}:{named}", why, "as in --topic orders:0,1,4-7")
        return numbers

    def matches(self, tp: TopicPartition) -> bool:
        """Returns whether the pattern matches the partition."""
        if self.partitions is not None and tp.partition not in self.partitions:
            return False
        return fnmatchcase(tp.topic, self.name) if is_pattern(self.name) else tp.topic == self.name


class TopicSelection(NamedTuple):
    """A selection of partitions. If there are no patterns, every partition is selected."""

    patterns: tuple[TopicPattern, ...] = ()

    @classmethod
    def parse(cls, texts: Iterable[str]) -> TopicSelection:
        """Parses ``topic``, ``top*`` or ``topic:0,1,4-7``. Raises `UsageError`."""
        return cls(tuple(_parse_topic(text) for text in texts))

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
        return not self.patterns or any(
            fnmatchcase(topic, p.name) if is_pattern(p.name) else topic == p.name for p in self.patterns
        )

    def named(self) -> list[str]:
        """Returns the exactly named topics. (Their partitions are selected even without a commit.)"""
        return list(dict.fromkeys(p.name for p in self.patterns if not is_pattern(p.name)))

    def numbered(self, kind: PartitionKinds = PartitionKinds.NUMBERED) -> list[TopicPartition]:
        """Returns the partitions of this ``kind`` that are named by topic and number. They are selected even without a
        commit."""
        old = kind is PartitionKinds.OF_BROKERS
        return sorted(
            TopicPartition(p.name, number)
            for p in self.patterns
            if p.partitions is not None and not is_pattern(p.name)
            for number in (p.partitions if old else p.numbers())
            if isinstance(number, BrokerPartition) is old
        )

    def explicit_partitions(
        self, counts: Mapping[str, int], kind: PartitionKinds = PartitionKinds.NUMBERED
    ) -> list[TopicPartition]:
        """Returns, sorted, the partitions that are selected even without a commit: the partitions that are named by
        number, and all partitions of topics that are named without partition numbers. ``counts`` has the partition
        counts of topics, as far as they are known."""
        whole = {p.name for p in self.patterns if p.partitions is None and not is_pattern(p.name)}
        if kind is PartitionKinds.OF_BROKERS:
            return self.numbered(kind)
        return sorted({*self.numbered(), *(TopicPartition(t, n) for t in whole for n in range(counts.get(t, 0)))})

    def without(self, committed: Iterable[TopicPartition]) -> list[str]:
        """Returns the exactly named topics that have no partition in ``committed``."""
        topics = {tp.topic for tp in committed}
        return [name for name in self.named() if name not in topics]

    def unmatched(self, partitions: Iterable[TopicPartition]) -> list[TopicPattern]:
        """Returns the patterns that match none of ``partitions``; stops reading once every pattern has matched."""
        left = list(self.patterns)
        for tp in partitions:
            if not left:
                break
            left = [pattern for pattern in left if not pattern.matches(tp)]
        return left

    def expand(self, counts: Mapping[str, int], committed: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Returns the selected partitions, sorted. They are the selected partitions of exactly named topics, and the
        partitions in ``committed`` that match a glob.

        ``counts`` are the partition counts of the named topics. Raises `UnknownTopicOrPartition` if a named topic or
        partition does not exist.
        """
        found: set[TopicPartition] = {tp for tp in committed if self.matches(tp)}
        for pattern in self.patterns:
            if is_pattern(pattern.name):
                continue
            count = counts.get(pattern.name)
            if count is None:
                raise UnknownTopicOrPartition(f"topic {pattern.name}", "does not exist in this Kafka cluster")
            for number in sorted(pattern.numbers()) if pattern.partitions is not None else range(count):
                if number >= count:
                    raise UnknownTopicOrPartition(
                        f"partition {number} of topic {pattern.name}", f"the topic has {count} partitions"
                    )
                found.add(TopicPartition(pattern.name, number))
        return sorted(found)


ALL_TOPICS: Final = TopicSelection()
KNOWN_GROUPS: Final = "offsetmgr groups list shows the groups"


def _parse_topic(text: str) -> TopicPattern:
    name, colon, numbers = text.partition(":")
    if not name:
        raise UsageError(
            f"topic {text!r}", "it has no name", "as in --topic orders, --topic 'ord*' or --topic orders:0,1"
        )
    if not colon:
        return TopicPattern(name)
    chosen: set[int] = set()
    for part in numbers.split(","):
        first, dash, last = part.strip().partition("-")
        if any(_beyond(number) for number in (first, last)):
            raise UsageError(f"topic {name}", f"{_cut(part)} is beyond the largest partition, {MAX_PARTITION}")
        if of_broker := BrokerPartition.parse(part.strip()):
            chosen.add(of_broker)
            if int(last) < int(first):
                continue
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise UsageError(
                f"topic {text!r}",
                f"{part!r} is not a partition number",
                "as in --topic orders:0,1,4-7 (Kafka 0.7: orders:1-0)",
            )
        if dash and int(last) - int(first) > 1_000_000:
            raise UsageError(f"topic {text!r}", f"{part!r} is a range of more than a million partitions")
        chosen.update(range(int(first), int(last if dash else first) + 1))
    return TopicPattern(name, frozenset(chosen))


def _beyond(number: str) -> bool:
    digits = number.lstrip("0")
    return number.isdecimal() and (len(digits) > _DIGITS or int(digits or 0) > MAX_PARTITION)


def _cut(text: str) -> str:
    return text if len(text) <= 30 else f"{text[:30]}..."


def choose_groups(
    store: OffsetStore, names: Iterable[str], *, all_groups: bool = False, others: Iterable[OffsetStore] = ()
) -> list[str]:
    """Returns the selected groups, sorted.

    A name that equals an existing group selects only that group, even if it could also be read as a glob. If a name is
    not a glob, the function returns the name even if no such group exists. The caller checks with `require_known` that
    the group exists. If a pattern matches no group of the store, it selects groups of the ``others``. Raises
    `GroupNotFound` if a pattern matches no group, and any error from ``store.groups()``.
    """
    names = list(names)
    if not all_groups and not any(is_pattern(name) for name in names):
        return sorted(set(names))
    known = set(store.groups())
    if all_groups:
        return sorted(known)
    selection = GroupSelection.parse(names, known)
    chosen = set(selection.names)
    for pattern in selection.globs:
        matching = {group for group in known if fnmatchcase(group, pattern)}
        matching = matching or {group for other in others for group in other.groups() if fnmatchcase(group, pattern)}
        if not matching:
            why = f"no group in {store.uri} matches this pattern"
            raise GroupNotFound(f"group {pattern!r}", why, KNOWN_GROUPS, groups=[pattern])
        chosen |= matching
    return sorted(chosen)


def named_groups(names: Iterable[str], chosen: Iterable[str]) -> set[str]:
    """Returns the groups of ``chosen`` that were selected by their name and not by a glob."""
    names = list(names)
    return {*names, *GroupSelection.parse(names).names}.intersection(chosen)


def literal_first(patterns: Iterable[str], existing: Container[str]) -> list[str]:
    """Returns the patterns, and escapes each pattern that equals the name of an existing group. An escaped pattern
    matches only this group."""
    return [literal_pattern(pattern) if pattern in existing else pattern for pattern in patterns]


def matching_groups(patterns: Iterable[str], existing: Iterable[str]) -> list[str]:
    """Returns the groups in ``existing`` that match a pattern, in unchanged order. If there are no patterns, returns
    all groups. A pattern that equals the name of an existing group matches only that group."""
    known, given = list(existing), list(patterns)
    selection = GroupSelection.parse(given, set(known))
    return [group for group in known if not given or selection.matches(group)]


def require_known(store: OffsetStore, empty: Iterable[str], hint: str = KNOWN_GROUPS) -> None:
    """Raises `GroupNotFound` if the store's list of groups does not contain every group in ``empty``. ``empty`` are
    groups for which no offsets were found."""
    if empty := list(empty):
        known = set(store.groups())
        if unknown := sorted(group for group in empty if group not in known):
            more = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
            raise GroupNotFound(
                f"group {unknown[0]!r}{more}",
                f"does not exist in {store.uri}",
                hint,
                groups=unknown,
            )


def require_kind(store: OffsetStore, group: str) -> None:
    """Raises `OtherGroupKind` if a group that the store does not list is a share group, for example."""
    for found in store.scan([group]):
        if isinstance(found.error, OtherGroupKind):
            raise found.error


def require_known_somewhere(stores: Sequence[OffsetStore], group: str) -> None:
    """Raises `GroupNotFound` if none of the stores knows the group. The error names all stores."""
    if not any(group in set(store.groups()) for store in stores):
        uris = " nor in ".join(store.uri for store in stores)
        raise GroupNotFound(f"group {group!r}", f"does not exist in {uris}", KNOWN_GROUPS)


def scan_in_order(
    store: OffsetStore,
    groups: Iterable[str],
    named: Callable[[str], Iterable[TopicPartition]] = lambda _group: (),
    *,
    expected: Mapping[str, Collection[TopicPartition]] = MappingProxyType({}),
) -> Iterator[GroupOffsets]:
    """Scans groups like ``store.scan``, with the results in the order of ``groups``. If data of a group that cannot be
    decoded or read prevents the scan, reads the partitions that ``named`` returns for the group.

    ``expected`` has partitions of groups that the caller knows by name. If a scan omits one, the function asks for it
    by name, because its offset may be pending or hidden.
    The function keeps a result in memory until it has yielded the results of all earlier groups. Therefore memory grows
    with the number of groups that the store reads at the same time.
    """
    requested: deque[str] = deque()

    def remember() -> Iterator[str]:
        for group in groups:
            requested.append(group)
            yield group

    early: dict[str, GroupOffsets] = {}
    for result in store.scan(remember()):
        early[result.group] = result
        while requested and requested[0] in early:
            found = early.pop(requested.popleft())
            if found.error is not None:
                yield _with_named(store, found, named)
            else:
                yield _with_expected(store, found, expected.get(found.group, ())) if expected else found


def _with_named(
    store: OffsetStore, found: GroupOffsets, named: Callable[[str], Iterable[TopicPartition]]
) -> GroupOffsets:
    if not isinstance(found.error, CorruptData | NotAuthorized) or not (partitions := list(named(found.group))):
        return found
    fetched = fetch_group(store, found.group, partitions)
    return found if fetched.error is not None else fetched


def _with_expected(store: OffsetStore, found: GroupOffsets, expected: Collection[TopicPartition]) -> GroupOffsets:
    missing = [tp for tp in expected if tp not in found.offsets and tp not in found.errors]
    if not missing or not isinstance(store, PartitionScanStore):
        return found
    (named,) = store.scan_partitions({found.group: missing})
    offsets, errors = {**found.offsets, **named.offsets}, {**found.errors, **named.errors}
    return replace(found, offsets=offsets, errors=errors, error=named.error)
