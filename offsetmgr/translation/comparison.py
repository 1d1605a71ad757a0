"""Compares the positions of groups in two clusters: is each group in the target at the right record? Pure.

`CommittedPositions` first collects the offsets of all groups in both stores. So each log is read once, and groups that
have the same two offsets share their comparison, because there may be a million positions.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from offsetmgr.core.errors import OffsetMgrError, UnknownTopicOrPartition, UnsupportedOperation
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.plurals import count_of
from offsetmgr.translation.alignment import Translation, Verdict
from offsetmgr.translation.translator import TooMuch, TranslatedPartition

ONLY_TO: Final = "only-to"
REFUSED: Final = "refused"
UNREADABLE: Final = "unreadable"


class PositionDifference(NamedTuple):
    """A partition of a group that is not at the right record in the target, or not known to be.

    ``partition`` is that of the source, and ``target`` is its copy. Both are None if the whole group is unreadable.
    ``verdict`` says how sure ``right`` is (see `Verdict`), or is ``only-to`` for an offset that only the target has,
    ``refused``, ``pending`` or ``unreadable``; in the last three cases ``error`` is the reason. ``right`` is the right
    offset in the target, and ``right_end`` is the largest offset that may be right, if this is not known exactly. From
    ``to_offset`` on, the group repeats at most ``repeats`` records, or exactly so many without ``right_end`` if the
    source is not compacted, and skips ``least_skips`` to ``skips`` records. A value is None if it is unknown or absent.
    """

    group: str
    partition: TopicPartition | None
    target: TopicPartition | None
    verdict: str
    from_offset: int | None = None
    to_offset: int | None = None
    right: int | None = None
    right_end: int | None = None
    repeats: int | None = None
    skips: int | None = None
    note: str = ""
    error: OffsetMgrError | None = None
    least_skips: int | None = None


class UnsureSkips(NamedTuple):
    """The number of partitions that skip records, and how many records these are at least and at most."""

    partitions: int = 0
    least: int = 0
    most: int = 0

    def text(self, verdict: str) -> str:
        records = f"{self.least:,} to " * (self.least < self.most) + count_of(self.most, "record")
        others = ", and the target lacks others" * (verdict == Verdict.MISSING)
        return f"{self.partitions:,} skip{'s' * (self.partitions == 1)} {records}{others} ({verdict})"


@dataclass
class PositionCounts:
    """The number of partitions by outcome. ``repeated`` and ``skipped`` are numbers of records of the partitions in
    ``repeating`` and ``skipping``. Partitions whose verdict is not sure are in ``unsure_skips``, by verdict, if they
    skip records, otherwise in ``unknown``."""

    total: int = 0
    right: int = 0
    repeating: int = 0
    repeated: int = 0
    skipping: int = 0
    skipped: int = 0
    elsewhere: int = 0
    only_from: int = 0
    only_to: int = 0
    unknown: Counter[str] = field(default_factory=Counter)
    unsure_skips: dict[str, UnsureSkips] = field(default_factory=dict)
    first_unknown: str = ""
    """The first partition whose right record or whose place is not known, with the reason."""

    def add(self, one: PositionDifference | None, *, sure: bool) -> None:
        """Counts a partition that is not at the right record; None is one that is."""
        self.total += 1
        if one is None:
            self.right += 1
            return
        if not sure or (one.to_offset is not None and one.skips is None):
            why = "it has an offset only in the target" if one.verdict == ONLY_TO else one.note
            self.first_unknown = self.first_unknown or (f"{one.partition}: {why}" if one.partition else why)
        if one.verdict == ONLY_TO:
            self.only_to += 1
        elif not sure and one.skips:
            number, least, most = self.unsure_skips.get(one.verdict, UnsureSkips())
            least += one.skips if one.least_skips is None else one.least_skips
            self.unsure_skips[one.verdict] = UnsureSkips(number + 1, least, most + one.skips)
        elif not sure:
            self.unknown[one.verdict] += 1
        elif one.to_offset is None:
            self.only_from += 1
        elif one.skips:
            self.skipping += 1
            self.skipped += one.skips
        elif one.repeats:
            self.repeating += 1
            self.repeated += one.repeats
        else:
            self.elsewhere += 1

    def __str__(self) -> str:
        kinds = ", ".join(f"{number:,} {verdict}" for verdict, number in sorted(self.unknown.items()))
        found = [
            f"{self.right:,} at the right record",
            _text(self.repeating, f"repeat{'s' * (self.repeating == 1)} {count_of(self.repeated, 'record')}"),
            _text(self.skipping, f"skip{'s' * (self.skipping == 1)} {count_of(self.skipped, 'record')}"),
            *(found.text(verdict) for verdict, found in sorted(self.unsure_skips.items())),
            _text(self.elsewhere, "at another record"),
            _text(self.only_from, "without an offset in the target"),
            _text(self.only_to, "only in the target"),
            _text(self.unknown.total(), f"not known ({kinds})"),
        ]
        return f"{count_of(self.total, 'partition')}: {', '.join(filter(None, found))}"


def _text(number: int, what: str) -> str:
    return f"{number:,} {what}" if number else ""


_NOT_TRANSLATED: Final = PositionDifference("", None, None, UNREADABLE, note="was not translated")


@dataclass(slots=True)
class _Comparison:
    """The result for a position and an offset in the target, which groups share. ``difference`` is None for the right
    record, and ``sure`` tells whether this is known."""

    difference: PositionDifference | None = _NOT_TRANSLATED
    sure: bool = False


class CommittedPositions:
    """The offsets of groups in the source and in the target, in the order in which they are added.

    Call in this order: 1. `add` and `add_difference` for each group; 2. `compare` for the translation of each partition
    of `positions`; 3. `differences`. ``accepted`` are the verdicts with which a position counts as known, in addition
    to `Verdict.SEEN`.
    """

    def __init__(self, accepted: Collection[str] = ()) -> None:
        self._accepted = frozenset({Verdict.SEEN, *accepted})
        self._groups = defaultdict[str, list[_Comparison]](list)
        self._pairs = defaultdict[TopicPartition, defaultdict[tuple[int, int | None], _Comparison]](
            lambda: defaultdict(_Comparison)
        )
        """The offsets in both stores that need a translation, by the partition of the source."""
        self.topics: set[str] = set()
        """The topics in which a group has an offset in the source."""
        self.no_copies: set[str] = set()
        """Topics with offsets in the target that are no copies of the source's topics."""
        self.enough = 0
        """The ``max_read`` with which the positions that are not known would be; 0 if none would."""
        self.lacking: dict[TopicPartition, int | None] = {}
        """The number of records of each partition of the source that the target lacks; None if it is unknown."""
        self.counts = PositionCounts()
        self.of_groups: dict[str, PositionCounts] = {}
        """The counts of each group that has an offset."""

    def add(self, group: str, tp: TopicPartition, source: int, target: int | None) -> None:
        """Adds a partition with an offset in the source."""
        self.topics.add(tp.topic)
        self._groups[group].append(self._pairs[tp][source, target])

    def add_difference(self, one: PositionDifference) -> None:
        """Adds a partition that needs no translation."""
        if one.partition is not None and one.verdict != ONLY_TO:
            self.topics.add(one.partition.topic)
        self._groups[one.group].append(_Comparison(one))

    def positions(self) -> Mapping[TopicPartition, Collection[int]]:
        """Returns the distinct positions of each partition of the source."""
        return {tp: {source for source, _ in pairs} for tp, pairs in sorted(self._pairs.items())}

    def earliest(self) -> Mapping[TopicPartition, int]:
        """Returns the smallest offset in the target of each partition of the source."""
        offsets = ((tp, [target for _, target in pairs if target is not None]) for tp, pairs in self._pairs.items())
        return {tp: min(found) for tp, found in offsets if found}

    def compare(self, found: TranslatedPartition) -> None:
        """Compares the offsets of the groups in the target with the translation of a partition."""
        self.lacking[found.source] = found.lacking
        for pair, comparison in self._pairs.pop(found.source, {}).items():
            if found.error is not None:
                comparison.difference = _unread(found, found.error, *pair)
            else:
                comparison.difference, comparison.sure = self._compared(found, *pair)

    def _compared(
        self, found: TranslatedPartition, source: int, committed: int | None
    ) -> tuple[PositionDifference | None, bool]:
        """Returns the difference, None if there is none, and whether the right position is known."""
        right = found.translations.get(source) or Translation(Verdict.UNKNOWN, why="the log was not read")
        sure = right.verdict in self._accepted
        if not sure and (right.earlier_a or right.earlier_b):
            self.enough = max(self.enough, found.enough)
        apart = None if committed is None else found.difference(source, committed)
        if sure and committed is not None and (committed == right.offset or apart == (0, 0)):
            return None, True
        repeats, skips = apart or (None, None)
        end = None if right.upper == right.offset else right.upper
        least, gone = skips, 0
        if apart is not None and found.alignment is not None and committed is not None:
            gone = found.alignment.superseded(right, committed)
            _, least = found.alignment.difference(source, right, committed, surely=not sure) or apart
        notes = [f"right is {right.offset} to {end}" if end else "", right.why]
        notes.append(f"the source lacks {gone:,} of the repeated records: the group may not have got them" * bool(gone))
        if apart is None and committed is not None and found.log is not None:
            if not found.log.start <= committed <= found.log.end:
                notes.append(f"{committed} is outside the target's log, {found.log.start} to {found.log.end}")
            elif right.offset is not None and committed <= right.offset:
                repeats, skips, least = (end or right.offset) - committed, 0, 0
                if repeats:
                    notes.append("repeats are counted by offsets: these records were not read")
        note = "; ".join(filter(None, [*notes, found.note]))
        where = (found.source, found.target, str(right.verdict), source, committed)
        return PositionDifference("", *where, right.offset, end, repeats, skips, note, None, least), sure

    def differences(self) -> Iterator[PositionDifference]:
        """Yields the partitions that are not at the right record, and counts them in ``counts``."""
        for group, comparisons in self._groups.items():
            self.of_groups[group] = PositionCounts()
            for one in comparisons:
                for counts in (self.of_groups[group], self.counts):
                    counts.add(one.difference, sure=one.sure)
                if one.difference is not None:
                    yield one.difference._replace(group=group)


def _unread(found: TranslatedPartition, error: OffsetMgrError, source: int, target: int | None) -> PositionDifference:
    """Returns the difference of a partition that could not be translated."""
    verdict = UNREADABLE
    if isinstance(error, UnsupportedOperation | UnknownTopicOrPartition):
        verdict = REFUSED
    elif isinstance(error, TooMuch):
        verdict = str(Verdict.UNKNOWN)
    where = (found.source, found.target, verdict, source, target)
    return PositionDifference("", *where, note=error.why, error=error)
