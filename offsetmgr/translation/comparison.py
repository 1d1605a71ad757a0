"""Compares the positions of groups in two clusters: is each group in the target at the right record? Pure.

`CommittedPositions` first collects the offsets of all groups in both stores. So groups that share a position share its
translation, and each log is read once. A position takes a few numbers in arrays, because there may be a million.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Final, NamedTuple

from offsetmgr.core.errors import OffsetMgrError, UnknownTopicOrPartition, UnsupportedOperation, UsageError
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.plurals import count_of
from offsetmgr.translation.alignment import Translation, Verdict
from offsetmgr.translation.translator import TooMuch, TranslatedPartition

_NONE: Final = -1
"""The offset of a partition without a commit."""
ONLY_TO: Final = "only-to"
REFUSED: Final = "refused"
UNREADABLE: Final = "unreadable"


class PositionDifference(NamedTuple):
    """A partition of a group that is not at the right record in the target, or not known to be.

    ``partition`` is that of the source, and ``target`` is its copy. Both are None if the whole group is unreadable.
    ``verdict`` says how sure ``right`` is (see `Verdict`), or is ``only-to`` for an offset that only the target has,
    ``refused``, ``pending`` or ``unreadable``; in the last three cases ``error`` is the reason. ``right`` is the right
    offset in the target, and ``right_end`` is the largest offset that may be right, if this is not known exactly. From
    ``to_offset`` on, the group repeats at most ``repeats`` records, and skips ``least_skips`` to ``skips`` records; the
    numbers are exact without ``right_end``. A value is None if it is unknown or absent.
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

    def add(self, one: PositionDifference, *, sure: bool) -> None:
        """Counts a partition that is not at the right record."""
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

    @property
    def total(self) -> int:
        known = self.right + self.repeating + self.skipping + self.elsewhere
        known += sum(one.partitions for one in self.unsure_skips.values())
        return known + self.only_from + self.only_to + self.unknown.total()

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


class CommittedPositions:
    """The offsets of groups in the source and in the target, in the order in which they are added.

    Call in this order: 1. `add` and `fail` for each group; 2. `compare` for the translation of each partition of
    `positions`; 3. `differences`. ``rename`` returns the target's name of a topic. ``accepted`` are the verdicts with
    which a position counts as known, in addition to `Verdict.SEEN`. With ``lost``, the source is as good as lost: if
    the target ends before a position, its end is the right place.
    """

    def __init__(self, rename: Callable[[str], str], accepted: Collection[str] = (), *, lost: bool = False) -> None:
        self._rename, self._accepted, self._lost = cache(rename), frozenset({Verdict.SEEN, *accepted}), lost
        self._groups: list[str] = []
        self._first_rows = array("q")
        """The number of rows before each group."""
        self._from, self._to = array("q"), array("q")
        self._outcomes: list[PositionDifference | None] = []
        """The difference of each row, in which the group has no name; None for a row at the right record."""
        self._rows: dict[TopicPartition, array[int]] = {}
        """The rows of each partition that needs a translation."""
        self._sources: dict[str, str] = {}
        """The topic of the source by the topic of the target."""
        self._sure: set[int] = set()
        """The rows with a difference whose position is known."""
        self.no_copies: set[str] = set()
        """Topics with offsets in the target that are no copies of the source's topics."""
        self.enough = 0
        """The ``max_read`` with which the positions that are not known would be; 0 if none would."""
        self.lacking: dict[TopicPartition, int | None] = {}
        """The number of records of each partition of the source that the target lacks; None if it is unknown."""
        self.counts = PositionCounts()
        self.of_groups: dict[str, PositionCounts] = {}
        """The counts of each group that has an offset."""

    def target(self, tp: TopicPartition) -> TopicPartition:
        """Returns the partition of the target that a partition of the source has as its copy."""
        return TopicPartition(self._rename(tp.topic), tp.partition)

    def begin(self, group: str) -> None:
        """Begins the rows of a group."""
        self._groups.append(group)
        self._first_rows.append(len(self._outcomes))

    def add(self, tp: TopicPartition, source: int, target: int | None) -> None:
        """Adds a partition with an offset in the source. Raises `UsageError` if two topics of the source have one name
        in the target."""
        topic = self._rename(tp.topic)
        if (other := self._sources.setdefault(topic, tp.topic)) != tp.topic:
            names = " and ".join(sorted((other, tp.topic)))
            raise UsageError(f"topics {names}", f"both are topic {topic} in the target", "select one of them")
        self._rows.setdefault(tp, array("q")).append(len(self._outcomes))
        self._append(source, target, None)

    def add_difference(self, one: PositionDifference) -> None:
        """Adds a partition that needs no translation."""
        self._append(one.from_offset, one.to_offset, one)

    def _append(self, source: int | None, target: int | None, outcome: PositionDifference | None) -> None:
        self._from.append(_NONE if source is None else source)
        self._to.append(_NONE if target is None else target)
        self._outcomes.append(outcome)

    def topics(self) -> set[str]:
        """Returns the topics in which a group has an offset in the source."""
        others = (one for one in self._outcomes if one is not None and one.partition and one.verdict != ONLY_TO)
        return {tp.topic for tp in self._rows} | {one.partition.topic for one in others if one.partition}

    def positions(self) -> Mapping[TopicPartition, Collection[int]]:
        """Returns the distinct positions of each partition of the source."""
        return {tp: {self._from[row] for row in rows} for tp, rows in sorted(self._rows.items())}

    def earliest(self) -> Mapping[TopicPartition, int]:
        """Returns the smallest offset in the target of each partition of the source."""
        offsets = ((tp, [self._to[row] for row in rows if self._to[row] != _NONE]) for tp, rows in self._rows.items())
        return {tp: min(found) for tp, found in offsets if found}

    def compare(self, found: TranslatedPartition) -> None:
        """Compares the offsets of the groups in the target with the translation of a partition."""
        self.lacking[found.source] = found.lacking
        if found.error is not None:
            self._fail(found.source, found.error)
            return
        known: dict[tuple[int, int], tuple[PositionDifference | None, bool]] = {}
        for row in self._rows.pop(found.source, ()):
            pair = self._from[row], self._to[row]
            if pair not in known:
                known[pair] = self._compared(found, *pair)
            self._outcomes[row], sure = known[pair]
            if sure and self._outcomes[row] is not None:
                self._sure.add(row)

    def _compared(self, found: TranslatedPartition, source: int, target: int) -> tuple[PositionDifference | None, bool]:
        """Returns the difference, None if there is none, and whether the right position is known."""
        right = found.translations.get(source) or Translation(Verdict.UNKNOWN, why="the log was not read")
        if self._lost and right.verdict is Verdict.NOT_YET and right.waits and found.alignment is not None:
            right = Translation(Verdict.SEEN, found.alignment.b.end)
            found = found._replace(translations={source: right})
        sure = right.verdict in self._accepted
        if not sure and (right.earlier_a or right.earlier_b):
            self.enough = max(self.enough, found.enough)
        committed = None if target == _NONE else target
        apart = None if committed is None else found.difference(source, committed)
        if sure and committed is not None and (committed == right.offset or apart == (0, 0)):
            return None, True
        repeats, skips = apart or (None, None)
        end = None if right.upper == right.offset else right.upper
        least = found.least_skips(source, committed) if end and repeats is not None and committed is not None else skips
        notes = [f"right is {right.offset} to {end}" if end else "", right.why]
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

    def _fail(self, tp: TopicPartition, error: OffsetMgrError) -> None:
        kinds = {
            UnsupportedOperation: REFUSED,
            UnknownTopicOrPartition: REFUSED,
            TooMuch: str(Verdict.UNKNOWN),
        }
        verdict = next((verdict for kind, verdict in kinds.items() if isinstance(error, kind)), UNREADABLE)
        target = self.target(tp)
        for row in self._rows.pop(tp, ()):
            offsets = (self._from[row], None if self._to[row] == _NONE else self._to[row])
            self._outcomes[row] = PositionDifference("", tp, target, verdict, *offsets, note=error.why, error=error)

    def differences(self) -> Iterator[PositionDifference]:
        """Yields the partitions that are not at the right record, and counts them in ``counts``."""
        for tp in list(self._rows):
            self._fail(tp, OffsetMgrError(str(tp), "was not translated"))
        ends = [*self._first_rows[1:], len(self._outcomes)]
        for group, first, end in zip(self._groups, self._first_rows, ends, strict=True):
            counts = self.of_groups[group] = PositionCounts()
            for row in range(first, end):
                if (one := self._outcomes[row]) is None:
                    counts.right += 1
                    self.counts.right += 1
                else:
                    counts.add(one, sure=row in self._sure)
                    self.counts.add(one, sure=row in self._sure)
                    yield one._replace(group=group)
