"""Finds, for a position in a partition's log, the position in the copy of the log at which a consumer gets the same
records.

Pure. The input is two stretches of fingerprints: A is the end of the source's log, and B is the end of the target's
log. It does not matter who wrote the copy.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from offsetmgr.core.plurals import count_of

_FOREIGN: Final = -1
"""The class of a record of B that equals no record of A."""
_NOWHERE: Final = -1
NO_KEY: Final = -1
"""The hash of an absent key; `hash` never returns it."""


@dataclass(slots=True)
class LogStretch:
    """The records of a log from ``first`` up to its end, as columns in the order of the log.

    ``prints`` are the fingerprints of the records. ``alternatives`` holds a second fingerprint, without the headers
    that copiers add, for records that have such headers. ``keys`` are hashes of the keys, and `NO_KEY`. ``aborted`` are the indexes of the records of aborted transactions. ``start`` and ``end`` are
    the range of the whole log. ``gaps`` tells whether offsets of the stretch have neither a record nor a transaction
    marker, as after compaction.
    """

    first: int
    start: int
    end: int
    offsets: array[int] = field(default_factory=lambda: array("q"))
    prints: list[bytes] = field(default_factory=list)
    alternatives: dict[int, bytes] = field(default_factory=dict)
    keys: array[int] = field(default_factory=lambda: array("q"))
    aborted: set[int] = field(default_factory=set)
    gaps: bool = False
    compacted: bool = False

    @property
    def whole(self) -> bool:
        """Whether the stretch begins where the log begins."""
        return self.first <= self.start

    def index_of(self, offset: int) -> int:
        """Returns the index of the first record at or after an offset."""
        return bisect_left(self.offsets, offset)

    def offset_at(self, index: int) -> int:
        """Returns the offset of a record, or the log's end after the last one."""
        return self.offsets[index] if index < len(self.offsets) else self.end


class Verdict(StrEnum):
    """How sure a translation is."""

    SEEN = "seen"
    INFERRED = "inferred"
    BRACKETED = "bracketed"
    MISSING = "missing"
    NOT_YET = "not yet"
    UNKNOWN = "unknown"


class Translation(NamedTuple):
    """The position in B for a position in A.

    ``offset`` is the answer, or None. For `Verdict.BRACKETED` the right position lies between ``offset`` and ``upper``:
    a consumer that starts at ``offset`` gets up to ``repeats`` records again, and one that starts at ``upper`` skips up
    to ``skips`` records. For `Verdict.MISSING`, ``skips`` is the number of records after the position that B does not
    hold. For `Verdict.NOT_YET`, ``repeats`` is the number of records before the position that B does not hold yet.
    """

    verdict: Verdict
    offset: int | None = None
    upper: int | None = None
    repeats: int = 0
    skips: int = 0
    why: str = ""


class Alignment:
    """Which records of B are copies of which records of A.

    The rules:

    - The *right* position is the last position of B from which a consumer gets every record that A would still deliver
      and that B holds. Records of aborted transactions and transaction markers are no records for A's consumer. At B
      they may be ordinary records, because a copier may read uncommitted records.
    - A record that occurs once in A's stretch is *unique*. Only unique records show a place.
    - `Verdict.SEEN` needs all of these. *End*: B's last record is the copy of a unique record E of A; the next record of
      A is unique and not at B, or there is none; and no record of B is the copy of a later one. *After*: B holds every
      record from the position to E, in the same order, from the answer on, and no copy of an earlier record after the
      answer. *Before*: the nearest unique record before the position lies at B before the answer, with the same
      records between; or the answer begins a stretch that B holds twice, and this holds for an earlier copy.
      *Nothing else*: between the first copy in B's stretch and the answer, B holds no record that A does not hold.
    - If a log is compacted, a record that is missing on one side is excused if that side holds a later record of the
      same key.
    """

    def __init__(self, a: LogStretch, b: LogStretch) -> None:
        self.a, self.b = a, b
        self._classes_a, self._classes_b = _classes(a, b)
        self._unique = _unique(self._classes_a)
        self._read_b()
        self._end = self._copy_of_last()
        self._match_backward()
        self._read_a()

    # --- columns, each computed once for all positions -----------------------------------------------

    def _read_b(self) -> None:
        """Finds the places of each unique record in B, and counts the foreign records of B."""
        unique, classes = self._unique, self._classes_b
        self._first_copy = array("q", bytes(8 * len(unique)))
        self._last_copy = array("q", bytes(8 * len(unique)))
        first, last = self._first_copy, self._last_copy
        for index in range(len(unique)):
            first[index] = last[index] = _NOWHERE
        for at, of in enumerate(classes):
            if of >= 0:
                last[of] = at
        for at in range(len(classes) - 1, -1, -1):
            if classes[at] >= 0:
                first[classes[at]] = at
        self.first_copied = next((at for at, of in enumerate(classes) if of >= 0), None)
        """The index of B's first record that is a copy; None if no record of B is one."""
        excused = self._excused(self.b, self.a) if self._excuses else frozenset()
        self._foreign_before = array("q", [0])
        """For each index of B, the number of records before it that A does not hold."""
        count = 0
        for at, of in enumerate(classes):
            count += of == _FOREIGN and at not in excused
            self._foreign_before.append(count)

    @property
    def _excuses(self) -> bool:
        """Whether a record may be missing because a log was compacted."""
        logs = (self.a, self.b)
        return any(log.compacted or log.gaps for log in logs) and all(len(log.keys) == len(log.prints) for log in logs)

    def _excused(self, here: LogStretch, there: LogStretch) -> frozenset[int]:
        """Returns the indexes of records of ``here`` whose key has a later record ``there``.

        Later means: a copy of a record that follows in ``here``, or, if ``there`` holds a record of the key that is no
        copy of an earlier record, that record."""
        newest = {key: print_ for key, print_ in zip(there.keys, there.prints, strict=True) if key != NO_KEY}
        seen_later: set[int] = set()
        excused = set()
        for index in range(len(here.prints) - 1, -1, -1):
            key = here.keys[index]
            if key == NO_KEY:
                continue
            if key in seen_later:
                excused.add(index)
            elif key in newest:
                if newest[key] != here.prints[index] and here is self.b:
                    excused.add(index)
                seen_later.add(key)
        return frozenset(excused)

    def _copy_of_last(self) -> int | None:
        """Returns the index in A of the record that B's last record is the copy of."""
        last = self._classes_b[-1] if len(self._classes_b) else _FOREIGN
        return last if last >= 0 and self._unique[last] else None

    def _match_backward(self) -> None:
        """Finds the last places in B where A's records lie in the order of A, from E backward."""
        size = len(self._classes_a)
        self._places = array("q", bytes(8 * (size + 1)))
        """For each index of A up to E: the last place in B from which all records up to E follow in A's order."""
        self._missing = array("q", bytes(8 * (size + 1)))
        """For each index of A up to E: the number of records from it to E that B does not hold there."""
        if self._end is None:
            return
        end, aborted = self._end, self.a.aborted
        excused = self._excused(self.a, self.b) if self._excuses else frozenset()
        places, missing, classes_a, classes_b = self._places, self._missing, self._classes_a, self._classes_b
        earlier = _Occurrences(classes_b)
        place, absent = len(classes_b), 0
        places[end + 1] = place
        for index in range(end, -1, -1):
            if index not in aborted:
                # The copy usually is the record before.
                of = classes_a[index]
                at = place - 1 if place and classes_b[place - 1] == of else earlier.before(of, place)
                if at >= 0:
                    place = at
                elif index not in excused:
                    absent += 1
            places[index], missing[index] = place, absent

    def _read_a(self) -> None:
        size, last, unique = len(self._classes_a), self._last_copy, self._unique
        self._latest_before = array("q", [_NOWHERE])
        """For each index of A: the last place in B of the copies of all unique records before it."""
        latest = _NOWHERE
        for index in range(size):
            if unique[index] and last[index] > latest:
                latest = last[index]
            self._latest_before.append(latest)
        self._earliest_after = array("q", bytes(8 * (size + 1)))
        """For each index of A: the smallest of the last places in B of all unique records from it on."""
        earliest = len(self._classes_b)
        for index in range(size, -1, -1):
            if index < size and unique[index] and index not in self.a.aborted and 0 <= last[index] < earliest:
                earliest = last[index]
            self._earliest_after[index] = earliest
        self._last_copied = max((index for index in range(size) if unique[index] and last[index] >= 0), default=None)

    def needs_earlier(self, positions: Iterable[int]) -> tuple[bool, bool]:
        return False, False

    def difference(self, translation: Translation, committed: int) -> tuple[int, int] | None:
        return None

    # --- one position -------------------------------------------------------------------------------

    def translate(self, position: int) -> Translation:
        """Returns the answer for a position within A's log, from its start to its end."""
        index = self._next(self.a.index_of(position))
        if self.first_copied is None:
            return self._without_copies()
        if self._end is None:
            return self._bracket(index, self._why_no_end())
        if self._last_copied is not None and self._last_copied > self._end:
            return self._not_yet("a stretch that B already holds may be being copied again")
        following = self._end + 1
        if following < len(self._unique) and not self._unique[following]:
            return self._bracket(index, "the record of A after the last copy occurs in A more than once")
        if index > following:
            waits = sum(1 for at in range(following, index) if at not in self.a.aborted)
            if waits:
                return self._not_yet(f"B ends {count_of(waits, 'record')} before the position", waits)
        return self._within(index)

    def _within(self, index: int) -> Translation:
        """Returns the answer for a position whose records B holds."""
        answer, absent = self._places[min(index, self._end + 1 if self._end is not None else 0)], self._missing[index]
        if absent:
            return self._with_missing(index, absent)
        if self._latest_before[index] >= answer:
            return self._bracket(index, "records before the position lie after it at B")
        if self._foreign(answer):
            return self._bracket(index, f"B holds {count_of(self._foreign(answer), 'record')} that A does not hold")
        if self._begins(index, answer) or self._begins_second_copy(index, answer):
            return Translation(Verdict.SEEN, self.b.offset_at(answer), why=self._older())
        return self._bracket(index, "no unique record before the position lies directly before it at B")

    def _next(self, index: int) -> int:
        """Returns the index of the first record from ``index`` on that A's consumer gets."""
        while index in self.a.aborted:
            index += 1
        return index

    def _foreign(self, answer: int) -> int:
        assert self.first_copied is not None
        return self._foreign_before[answer] - self._foreign_before[self.first_copied]

    def _older(self) -> str:
        return f"B held {count_of(self.first_copied, 'other record')} before" if self.first_copied else ""

    def _begins(self, index: int, answer: int) -> bool:
        """Whether the nearest unique record before A's ``index`` lies at B before ``answer``, with the same records
        between."""
        classes_a, classes_b, aborted = self._classes_a, self._classes_b, self.a.aborted
        place, at = answer, index
        while at > 0:
            at -= 1
            before = place - 1
            if at in aborted:
                place -= before >= 0 and classes_b[before] == classes_a[at]
                continue
            if before < 0 or classes_b[before] != classes_a[at]:
                return False
            place = before
            if self._unique[at]:
                return True
        # No record precedes: A's log never had one.
        return self.a.whole and self.a.start == 0 and place <= (self.first_copied or 0)

    def _begins_second_copy(self, index: int, answer: int) -> bool:
        if index >= len(self._unique) or not self._unique[index]:
            return False
        copies = (at for at in range(self._first_copy[index], answer) if self._classes_b[at] == index)
        return any(self._begins(index, at) for at in copies)

    # --- answers that are not sure ------------------------------------------------------------------

    def _without_copies(self) -> Translation:
        return Translation(Verdict.UNKNOWN, why="no record of B equals a record of A")

    def _why_no_end(self) -> str:
        if self._classes_b[-1] == _FOREIGN:
            return "B's last record equals no record of A that was read"
        return "B's last record equals several records of A"

    def _not_yet(self, why: str, waits: int = 0) -> Translation:
        return Translation(Verdict.NOT_YET, repeats=waits, why=why)

    def _with_missing(self, index: int, absent: int) -> Translation:
        place = self._places[index]
        why = f"B does not hold {count_of(absent, 'record')} after the position, and holds later ones"
        return Translation(Verdict.MISSING, self.b.offset_at(place), skips=absent, why=why)

    def _bracket(self, index: int, why: str) -> Translation:
        """Returns the range that holds the right position: from the copy of an earlier record to the first copy of a
        unique later record."""
        upper = self._earliest_after[index]
        lower = self._copy_before(index, upper) + 1
        if lower > upper:
            return Translation(Verdict.UNKNOWN, why=why)
        repeats = upper - lower
        skips = sum(1 for at in range(lower, upper) if self._classes_b[at] >= 0)
        return Translation(Verdict.BRACKETED, self.b.offset_at(lower), self.b.offset_at(upper), repeats, skips, why)

    def _copy_before(self, index: int, upper: int) -> int:
        """Returns the last place before ``upper`` of the nearest unique record before A's ``index`` that B holds."""
        for at in range(index - 1, -1, -1):
            if self._unique[at] and 0 <= self._first_copy[at] < upper:
                return max(place for place in range(self._first_copy[at], upper) if self._classes_b[place] == at)
        return _NOWHERE


class _Occurrences:
    """The places of each class in B, in order."""

    def __init__(self, classes: Sequence[int]) -> None:
        self._classes = classes
        self._places: dict[int, list[int]] | None = None

    def before(self, of: int, place: int) -> int:
        """Returns the last place of a class before ``place``; -1 if there is none."""
        if self._places is None:
            self._places = {}
            for at, one in enumerate(self._classes):
                self._places.setdefault(one, []).append(at)
        places = self._places.get(of, [])
        at = bisect_left(places, place)
        return places[at - 1] if at else _NOWHERE


def _classes(a: LogStretch, b: LogStretch) -> tuple[array[int], array[int]]:
    """Returns, for each record of both stretches, the index of the first record of A that equals it."""
    first: dict[bytes, int] = {}
    of_a = array("q", (first.setdefault(one, index) for index, one in enumerate(a.prints)))
    of_b = array("q", (first.get(one, _FOREIGN) for one in b.prints))
    for index, alternative in b.alternatives.items():
        if of_b[index] == _FOREIGN:
            of_b[index] = first.get(alternative, _FOREIGN)
    return of_a, of_b


def _unique(classes: Sequence[int]) -> bytearray:
    """Returns 1 for each record of A that equals no other record of A, else 0."""
    unique = bytearray(b"\1") * len(classes)
    for index, of in enumerate(classes):
        if of != index:
            unique[index] = unique[of] = 0
    return unique
