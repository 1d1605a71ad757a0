"""Finds, for a position in a partition's log, the position in the copy of the log at which a consumer gets the same
records.

Pure. The input is two stretches of fingerprints: A is the end of the source's log, and B is the end of the target's
log. It does not matter who wrote the copy.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from itertools import accumulate, repeat
from typing import Final, NamedTuple

from offsetmgr.core.plurals import count_of

_FOREIGN: Final = -1
"""The class of a record of B that equals no record of A."""
_IGNORED: Final = -2
"""The class of a record of B that does not count: an older value of a compacted key."""
_ABSENT: Final = -1
"""The place of a record that B does not hold."""
_KEPT_EACH: Final = 64
"""The result for each so many records of A is kept, so that a long run of equal records is searched once."""
NO_KEY: Final = -1
"""The hash of an absent key; `hash` never returns it."""


@dataclass(slots=True)
class LogStretch:
    """The records of a log from ``first`` up to its end, as columns in the order of the log.

    ``prints`` are the fingerprints of the records. ``keys`` are hashes of the keys, and `NO_KEY`. ``aborted`` are
    the indexes of the records of aborted transactions; a stretch of B has none, because they are left out. ``start``
    and ``end`` are the range of the whole log; a stretch of B ends before a transaction that is open, and ``hidden`` is
    the number of offsets from there to the log's end. ``gaps`` tells whether offsets of the stretch have neither a
    record nor a transaction marker, as after compaction. ``timed`` tells whether the fingerprints contain the time
    stamps, so that a record hardly equals one that the log held before.
    """

    first: int
    start: int
    end: int
    offsets: array[int] = field(default_factory=lambda: array("q"))
    prints: list[bytes] = field(default_factory=list)
    keys: array[int] = field(default_factory=lambda: array("q"))
    aborted: set[int] = field(default_factory=set)
    gaps: bool = False
    timed: bool = False
    hidden: int = 0

    @property
    def whole(self) -> bool:
        """Whether the stretch begins where the log begins."""
        return self.first <= self.start

    @property
    def empty(self) -> bool:
        """Whether the stretch has no record that a consumer gets."""
        return len(self.prints) == len(self.aborted)

    def index_of(self, offset: int) -> int:
        """Returns the index of the first record at or after an offset."""
        return bisect_left(self.offsets, offset)

    def offset_at(self, index: int) -> int:
        """Returns the offset of a record, or the log's end after the last one."""
        return self.offsets[index] if index < len(self.offsets) else self.end

    def next_committed(self, index: int) -> int:
        """Returns the index of the first record from ``index`` on that is not of an aborted transaction."""
        while index in self.aborted:
            index += 1
        return index

    @property
    def may_lack_old_values(self) -> bool:
        """Whether compaction may have removed records, and the keys are known."""
        return self.gaps and len(self.keys) == len(self.prints)


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

    ``offset`` is the answer, or None. If ``upper`` is not None, the right position lies between ``offset`` and
    ``upper``: a consumer that starts at ``offset`` gets up to ``repeats`` records again, and one that starts at
    ``upper`` skips up to as many. `Verdict.BRACKETED` and `Verdict.MISSING` have both bounds. ``missing`` is
    the number of records after the position that B does not hold although it holds later ones, and ``waits`` the number
    of records before the position that B does not hold yet. ``earlier_a`` and ``earlier_b`` tell which log must be read
    further back for a better answer.
    """

    verdict: Verdict
    offset: int | None = None
    upper: int | None = None
    repeats: int = 0
    why: str = ""
    missing: int = 0
    waits: int = 0
    earlier_a: bool = False
    earlier_b: bool = False


class _Bounds(NamedTuple):
    """For each index of A: the smallest and the largest place in B that may be right for a position there."""

    lower: array[int]
    upper: array[int]


class Alignment:
    """Matches the records of B with the records of A that they are copies of.

    The rules:

    - The *right* position is the last position of B from which a consumer gets every record that A would still deliver
      and that B holds. Records of aborted transactions and transaction markers are no records for A's consumer. At B
      they may be ordinary records, because a copier may read uncommitted records.
    - A record that occurs once in A's stretch is *unique*. Only unique records show a place.
    - `Verdict.SEEN` needs all of these. *End*: B's last record is the copy of a unique record E of A; the next record
      of A is not at B, or there is none; and no record of B is the copy of a later unique one. *After*: B holds every
      record from the position to E, in the same order, from the answer on; the last copy of a unique record lies after
      the last copies of all unique records before it in A, also of those before the position. *Before*: the nearest
      unique record before the position lies at B before the answer, with the same records between; or the answer
      begins a stretch that B holds twice, and this holds for an earlier copy. If no record precedes the position since
      offset 0 of A, no copy precedes the answer. A's first record needs nothing before it if it is unique and time
      stamps are compared. *Nothing else*: between the first copy in B's stretch and the answer, B holds no record that
      A does not hold. If B has never held a record, its end is the answer for A's first record.
    - If a log is compacted, a record that is missing on one side is excused if that side holds a later record of the
      same key. A record that is not unique shows nothing there. No excused record of B lies directly before the answer
      if B lacks the record at the position, because it may be a changed copy of this record.
    - `Verdict.MISSING`: B lacks records after the position, and holds later ones. `Verdict.NOT_YET`: B ends before the
      position, or a stretch that B already holds may be being copied again. Otherwise `Verdict.BRACKETED`, or
      `Verdict.UNKNOWN` if no unique record shows a place, or a log must be read further back.

    A copier may have changed records. Therefore a bracket holds the places of records of B that A does not hold, unless
    they lie between copies of records that follow in A's order and lie before the position. This does not hold if such
    a copier begins again, and the copies that it has changed lie there.

    Content does not distinguish equal records. If records without time stamps repeat in a cycle, and all records that
    B holds copies of lie before A's stretch, or compaction has removed them from A, then these look like copies of
    later ones. If a copier leaves out some of several equal records, changes them, or writes them in another order, an
    answer may be wrong by these records; one of several may be of an aborted transaction.

    On the way from a copy back to its original, `InverseAlignment` gives the last position of the original from which a
    consumer gets every record that the copy would still deliver, and every record that was not copied yet.
    """

    def __init__(self, a: LogStretch, b: LogStretch) -> None:
        self.a, self.b = a, b
        self._classes_a, self._classes_b = _classes(a, b)
        self._unique = _unique(self._classes_a)
        self._find_copies()
        self._find_foreign()
        self._end, self._why_no_end = self._find_end()
        self._match_backward()
        self._aborted = array("q", sorted(a.aborted))
        self._known: dict[tuple[int, int], bool | None] = {}

    def translate(self, position: int) -> Translation:
        """Returns the answer for a position in A's log."""
        a, b = self.a, self.b
        if not a.start <= position <= a.end:
            where = f"below the start {a.start}" if position < a.start else f"after the end {a.end}"
            return Translation(
                Verdict.UNKNOWN, why=f"{position} is {where} of the source's log; there auto.offset.reset decides"
            )
        if position < a.first:
            return Translation(Verdict.UNKNOWN, why=f"the source was read only from {a.first} on", earlier_a=True)
        if a.whole and a.empty:
            if b.whole and b.empty:
                return Translation(Verdict.SEEN, b.end, why="both logs hold no record")
            return Translation(Verdict.INFERRED, b.end, why="the source holds no record")
        index = a.next_committed(a.index_of(position))
        if b.whole and b.empty and not b.end:
            waits = self._committed_between(0, index) + max(a.first - a.start, 0)
            if not waits:
                return Translation(Verdict.SEEN, b.end, why="the target is empty, and nothing precedes the position")
            return Translation(Verdict.NOT_YET, why=f"the target is empty{self._open_text}", waits=waits)
        if self.first_copied is None:
            further = {"earlier_a": not a.whole, "earlier_b": not b.whole}
            return Translation(Verdict.UNKNOWN, why="no record of the target equals one of the source", **further)
        if self._end is None:
            return self._bracket(index, self._why_no_end, earlier_a=self._ends_foreign, earlier_b=True)
        if self.may_be_copied_again:
            return Translation(Verdict.NOT_YET, why="a stretch that the target already holds may be being copied again")
        if waits := self._committed_between(self._end + 1, index):
            why = f"the target ends {count_of(waits, 'record')} before the position{self._open_text}"
            return Translation(Verdict.NOT_YET, why=why, waits=waits)
        return self._between(min(index, self._end + 1))

    @property
    def _open_text(self) -> str:
        return f"; a transaction that began at offset {self.b.end} is open in the target" if self.b.hidden else ""

    def needs_earlier(self, positions: Collection[int]) -> tuple[bool, bool]:
        """Returns whether A and whether B must be read further back for better answers to the positions."""
        answers = [self.translate(position) for position in positions]
        return any(answer.earlier_a for answer in answers), any(answer.earlier_b for answer in answers)

    @property
    def copies(self) -> int:
        """The number of records of B that equal a record of A."""
        return sum(of >= 0 for of in self._classes_b)

    def lacking(self, position: int) -> int | None:
        """Returns the number of records of A that B does not hold: those after B's last copy, and those before it that
        lie from a position on. Returns None if it is unknown."""
        size = len(self.a.prints)
        if self.a.whole and (self.a.empty or (self.b.empty and self.b.whole)):
            return self._committed_between(0, size)
        if self._end is None or self.may_be_copied_again or position < self.a.first:
            return None
        missing = _number_from(self._missing, self.a.index_of(position))
        return None if missing and self.is_cut else missing + self._committed_between(self._end + 1, size)

    @property
    def following(self) -> int | None:
        """The offset in A of the first record after E, unless B's stretch shows whether B holds a copy of it.

        If B holds a copy before the stretch, a part of the log is being copied again, and no answer is sure. Therefore
        a reader asks for B's first record with a time stamp that is not older, and reads B from there, or sets
        `may_be_copied_again`."""
        if self.b.whole or self._end is None or self.may_be_copied_again:
            return None
        index = self.a.next_committed(self._end + 1)
        return self.a.offsets[index] if index < len(self.a.offsets) else None

    def difference(
        self, position: int, translation: Translation, committed: int, *, surely: bool = False
    ) -> tuple[int, int] | None:
        """Returns how many records of B a group that has committed an offset of B gets again, and how many records
        after its position in A it skips, if the translation is the answer to this position.

        If the translation has two bounds, both numbers are the largest possible ones, unless ``surely`` leaves out the
        skipped records that may be no copies of needed ones. Returns None if there is no answer, or the offset is
        outside of B, or the records there were not read."""
        b = self.b
        if translation.offset is None or min(translation.offset, committed) < b.first or committed > b.end:
            return None
        at, lower = b.index_of(committed), b.index_of(translation.offset)
        upper = lower if translation.upper is None else b.index_of(translation.upper)
        if translation.verdict is Verdict.SEEN:
            # Each record of A up to E that B holds has its own place.
            last = 0 if self._end is None else self._end + 2
            first, stop = (bisect_left(self._places, place, 0, last) for place in (lower, at))
            skips = len(set(self._places[first:stop]))
        else:
            passed, sure = self._classes_b[lower:at], set[int]()
            if not self._may_hold_older():
                sure = {of for of in passed if of >= 0 and self._unique[of]}
            index = self.a.index_of(position)
            skips = sum(of >= index and self._last_copy[of] < at for of in sure - self.a.aborted)
            skips += 0 if surely else sum(of not in sure for of in passed)
        return max(upper - at, 0), skips

    def superseded(self, translation: Translation, committed: int) -> int:
        """Returns how many of the records that such a group gets again are older values of compacted keys, which A no
        longer holds. Nothing shows whether the group got them before."""
        end = translation.upper or translation.offset or 0
        return self._classes_b[self.b.index_of(committed) : self.b.index_of(end)].count(_IGNORED)

    # --- columns, each computed once for all positions -----------------------------------------------

    def _find_copies(self) -> None:
        """Finds the places in B of each record of A."""
        self._last_copy = array("q", [_ABSENT]) * len(self._classes_a)
        """For each class: the last place in B."""
        self._earlier_copy = array("q", [_ABSENT]) * len(self._classes_b)
        """For each place in B: the place before of the same class."""
        last, earlier = self._last_copy, self._earlier_copy
        for place, of in enumerate(self._classes_b):
            if of >= 0:
                earlier[place] = last[of]
                last[of] = place
        self.first_copied = next((place for place, of in enumerate(self._classes_b) if of >= 0), None)
        """The place of B's first record that is a copy; None if no record of B is one."""
        of_unique = (place if unique else _ABSENT for unique, place in zip(self._unique, last, strict=True))
        places = last if all(self._unique) else of_unique
        self._latest_before = array("q", accumulate(places, max, initial=_ABSENT))
        """For each index of A: the last place in B of the copies of all unique records before it."""

    def _find_foreign(self) -> None:
        """Finds the records of B that A does not hold, without the older values of compacted keys."""
        classes = self._classes_b
        self._foreign = array("q")
        """The places of the records of B that A does not hold."""
        self._holds_others = _FOREIGN in classes
        """Whether B holds such records, or older values of compacted keys."""
        if not self._holds_others:
            return
        newest = self._newest_of_keys() if self.a.may_lack_old_values and self.b.keys else {}
        for place, of in enumerate(classes):
            if of != _FOREIGN:
                continue
            if newest and (newer := newest.get(self.b.keys[place])) is not None:
                copy = self._last_copy[self._classes_a[newer]]
                if copy == _ABSENT or copy > place:
                    classes[place] = _IGNORED
                    continue
            self._foreign.append(place)

    def _newest_of_keys(self) -> dict[int, int]:
        """Returns the index of the newest record of each key in A."""
        return {key: at for at, key in enumerate(self.a.keys) if key != NO_KEY and at not in self.a.aborted}

    def _find_end(self) -> tuple[int | None, str]:
        """Returns the index of E, the record of A that B's last record is the copy of; or None and the reason."""
        last = next((of for of in reversed(self._classes_b) if of != _IGNORED), _FOREIGN)
        self._ends_foreign = last == _FOREIGN
        self.is_cut = False
        """Whether the reader stopped before it had what the answers need: older copies may be missing. A reader sets
        it."""
        self.may_be_copied_again = False
        """Whether a stretch that B already holds may be being copied again. A reader sets it if B may hold a copy of
        the record `following` in a part that was not read."""
        if self._ends_foreign:
            return None, "the target's last record equals no record that was read of the source"
        if not self._unique[last]:
            return None, "the target's last record equals several records of the source"
        following = self.a.next_committed(last + 1)
        for index in range(last + 1, len(self._unique)):
            if self._last_copy[self._classes_a[index]] == _ABSENT:
                continue
            if self._unique[index]:
                self.may_be_copied_again = True
                break
            if index == following:
                return None, "the source's record after the last copy occurs there more than once"
        return last, ""

    def _match_backward(self) -> None:
        """Finds the last places in B where A's records lie in the order of A, from E backward."""
        self._places = array("q", bytes(8 * (len(self._classes_a) + 1)))
        """For each index of A up to E: the last place in B from which all records up to E follow in A's order."""
        self._missing, self._disordered = array("q"), array("q")
        """The indexes of the records up to E that B does not hold, and of those that lie before a copy of an earlier
        record."""
        if self._end is None:
            return
        classes, unique, last = self._classes_a, self._unique, self._last_copy
        places, aborted, latest_before = self._places, self.a.aborted, self._latest_before
        unread = array("q", last)
        place = places[self._end + 1] = len(self._classes_b)
        for index in range(self._end, -1, -1):
            of = classes[index]
            at = last[of]
            if not unique[index]:
                at = unread[of]
                while at >= place:
                    at = self._earlier_copy[at]
                unread[of] = at
            if index not in aborted:
                if at > latest_before[index] and (unique[index] or not self._shows_nothing(index)):
                    place = at
                elif at != _ABSENT and (unique[index] or at > latest_before[index]):
                    self._disordered.append(index)
                elif index not in self._excused:
                    self._missing.append(index)
            places[index] = place
        self._missing.reverse()
        self._disordered.reverse()

    def _shows_nothing(self, index: int) -> bool:
        """Returns whether a record of A equals others, and compaction may have removed it or its copy. Another record
        may then seem to be its copy."""
        compacted = self.a.may_lack_old_values or self.b.may_lack_old_values
        return not self._unique[index] and compacted and self.a.keys[index] != NO_KEY

    @cached_property
    def _excused(self) -> Collection[int]:
        """The indexes of the records of A that compaction may have removed from B: B holds a later one of their key."""
        if not self.b.may_lack_old_values or len(self.a.keys) != len(self.a.prints):
            return ()
        later, excused = set[int](), set[int]()
        for index in range(len(self.a.keys) - 1, -1, -1):
            key = self.a.keys[index]
            if key in later:
                excused.add(index)
            elif key != NO_KEY and self._last_copy[self._classes_a[index]] != _ABSENT:
                later.add(key)
        return excused

    @cached_property
    def _first_that_counts(self) -> int:
        """The place from which on B may hold no record that A does not hold: that of the first copy, but 0 if a record
        before it may be a changed copy of an excused one."""
        first = self.first_copied or 0
        return first if {self.a.keys[index] for index in self._excused}.isdisjoint(self.b.keys[:first]) else 0

    @cached_property
    def _bounds(self) -> _Bounds:
        """The places that may be right, without the rules of `Verdict.SEEN`.

        The upper bound is the last copy of a needed unique record, unless it lies before a copy of an earlier record.
        The lower bound is the smallest place of a record that may be the last copy of a needed one. A record that is
        not unique is no copy of a needed record if it lies between copies of unique records that lie before the
        position and follow in the order of A. This also holds for a record that A does not hold, which may be a copy
        that the copier has changed. If a copy may be one of an older record, there is no upper bound, and
        the first copies count."""
        size, last, unique = len(self._classes_a), self._last_copy, self._unique
        lower = array("q", [len(self._classes_b)]) * (size + 1)
        upper = array("q", lower)
        newest = array("q", [_ABSENT]) * size
        for index, of in enumerate(self._classes_a):
            if index not in self.a.aborted:
                newest[of] = index
        for place, neighbour in self._not_unique_places():
            of = self._classes_b[place]
            until = min(newest[of] if of >= 0 else size, neighbour)
            if until >= 0:
                lower[until] = min(lower[until], place)
        surely_copies = not self._may_hold_older()
        needed = last if surely_copies else self._first_copies()
        for index in range(size - 1, -1, -1):
            upper[index] = upper[index + 1]
            if unique[index] and index not in self.a.aborted and last[index] != _ABSENT:
                lower[index] = min(lower[index], needed[index])
                if surely_copies and last[index] > self._latest_before[index]:
                    upper[index] = last[index]
            lower[index] = min(lower[index], lower[index + 1])
        return _Bounds(lower, upper)

    def _may_hold_older(self) -> bool:
        """Returns whether a record of B that equals a unique record of A may be the copy of an older record, which A
        has deleted or which was not read."""
        a = self.a
        return not a.timed and (not a.whole or a.start > 0 or a.may_lack_old_values)

    def _first_copies(self) -> array[int]:
        """Returns the first place in B of each class."""
        first = array("q", self._last_copy)
        for place in range(len(self._classes_b) - 1, -1, -1):
            if self._classes_b[place] >= 0:
                first[self._classes_b[place]] = place
        return first

    def _not_unique_places(self) -> Iterator[tuple[int, int]]:
        """Yields the places of records that are not copies of unique ones, each with the larger index in A of the
        unique records before and after it in B; with the size of A if these do not follow in the order of A."""
        waiting: list[int] = []
        before = _ABSENT
        for place, of in enumerate(self._classes_b):
            if of >= 0 and self._unique[of]:
                yield from zip(waiting, repeat(of if of > before else len(self._unique)))
                waiting, before = [], of
            else:
                waiting.append(place)
        yield from zip(waiting, repeat(len(self._unique)))

    # --- one position -------------------------------------------------------------------------------

    def _between(self, index: int) -> Translation:
        """Returns the answer for a position that is not after the record that follows E."""
        assert self.first_copied is not None
        missing = _number_from(self._missing, index)
        if missing:
            why = f"the target lacks {count_of(missing, 'record')} after the position, and holds later ones"
            return self._bracket(index, why, missing=missing, earlier_b=True)
        if _number_from(self._disordered, index):
            return self._bracket(index, "the target holds records in another order", earlier_a=True, earlier_b=True)
        answer = self._places[index]
        foreign = bisect_left(self._foreign, answer) - bisect_left(self._foreign, self._first_that_counts)
        if foreign:
            return self._bracket(
                index, f"the target holds {count_of(foreign, 'record')} that the source lacks", earlier_a=True
            )
        before = answer
        while before and self._classes_b[before - 1] in self.a.aborted:
            before -= 1
        if before and self._classes_b[before - 1] == _IGNORED and self._lacks(index, answer):
            why = "the records before it in the target are older values or changed copies"
            return self._bracket(index, why, earlier_a=True)
        preceded = [self._preceded(index, place) for place in self._copies(answer)]
        if any(preceded) or self._is_first(index, answer):
            older = self.first_copied if self.a.whole else 0
            why = f"the source lacks the {count_of(older, 'record')} before the copies" if older else ""
            return Translation(Verdict.SEEN, self.b.offset_at(answer), why=why)
        more = not self.a.start or self._unique.find(1, 0, index) >= 0 or bool(self._excused)
        why = "no unique record before the position lies directly before it in the target"
        if self.a.whole and not more:
            why = "the source has deleted the records before the position, which would show its place"
        return self._bracket(index, why, earlier_a=None in preceded, earlier_b=more)

    def _lacks(self, index: int, answer: int) -> bool:
        """Returns whether the answer is not the place of the record at A's ``index``, which compaction has removed from
        B, or which B may not hold yet."""
        last = answer == len(self._classes_b)
        return index < len(self._classes_a) and (last or self._classes_b[answer] != self._classes_a[index])

    def _committed_between(self, index: int, stop: int) -> int:
        """Returns how many records of A in a range of indexes are not of aborted transactions."""
        aborted = _number_from(self._aborted, index) - _number_from(self._aborted, stop)
        return max(stop - index - aborted, 0)

    def _preceded(self, index: int, place: int) -> bool | None:
        """Returns whether the nearest unique record before A's ``index`` lies at B before ``place``, with the same
        records between; or None if A must be read further back."""
        classes_a, classes_b = self._classes_a, self._classes_b
        passed: list[tuple[int, int]] = []
        found: bool | None = False
        for at in range(index - 1, -1, -1):
            while place and classes_b[place - 1] == _IGNORED:
                place -= 1
            if not at % _KEPT_EACH:
                if (at, place) in self._known:
                    found = self._known[at, place]
                    break
                passed.append((at, place))
            if place and classes_b[place - 1] == classes_a[at]:
                if self._unique[at] or at in self.a.aborted:
                    # A copier may leave out an aborted record, and B may hold one that equals it.
                    found = bool(self._unique[at])
                    break
                place -= 1
            elif at not in self.a.aborted and at not in self._excused:
                break
        else:
            first = not self.a.start and not self._may_hold_older()
            found = first and self.b.whole and place <= (self.first_copied or 0) if self.a.whole else None
        self._known.update(dict.fromkeys(passed, found))
        return found

    def _is_first(self, index: int, answer: int) -> bool:
        """Returns whether no record precedes the position at A, and the answer is the place of a unique record, which
        has a time stamp and so is no copy of a record that A has deleted."""
        first = self.a.whole and self.a.timed and not self._committed_between(0, index)
        first &= self.b.whole or not self._excused  # an excused record may lie in a part of B that was not read
        return first and answer < len(self._classes_b) and bool(self._unique[self._classes_b[answer]])

    def _copies(self, answer: int) -> Iterator[int]:
        """Yields a place in B, and the places of the earlier copies of its record if that is unique."""
        yield answer
        of = self._classes_b[answer] if answer < len(self._classes_b) else _FOREIGN
        if of >= 0 and self._unique[of]:
            while (answer := self._earlier_copy[answer]) != _ABSENT:
                yield answer

    def _bracket(
        self, index: int, why: str, *, missing: int = 0, earlier_a: bool = False, earlier_b: bool = False
    ) -> Translation:
        """Returns the range that holds the right position."""
        lower, upper = self._range(index)
        earlier_b |= lower < upper and self._latest_before[index] == _ABSENT
        earlier_a, earlier_b = earlier_a and not self.a.whole, earlier_b and not self.b.whole
        anchored = lower == upper or self._latest_before[-1] != _ABSENT
        if earlier_a or earlier_b or not anchored:
            return Translation(Verdict.UNKNOWN, why=why, earlier_a=earlier_a, earlier_b=earlier_b)
        bounds = self.b.offset_at(lower), self.b.offset_at(upper), upper - lower
        return Translation(Verdict.MISSING if missing else Verdict.BRACKETED, *bounds, why, missing)

    def _range(self, index: int) -> tuple[int, int]:
        """Returns the smallest and the largest place in B that may be right for A's ``index``."""
        end = self._end
        if end is None or _number_from(self._missing, index) or _number_from(self._disordered, index):
            return self._bounds.lower[index], self._bounds.upper[index]
        lower = upper = self._places[index]
        if index <= end and lower < len(self._classes_b) and not self._unique[self._classes_b[lower]]:
            lower, upper = self._latest_before[index] + 1, self._bounds.upper[index]
        elif index <= end and self._may_hold_older():
            upper = self._bounds.upper[index]
        lacks = self._excused or self.a.next_committed(end + 1) < len(self._classes_a)
        if lacks and self._holds_others:
            lower = min(lower, self._bounds.lower[index])  # B may hold changed copies of the records that it lacks
        return lower, upper


class InverseAlignment(Alignment):
    """Translates positions of the copy B into positions of the original A, which may hold later records.

    The right position is the last position of A from which a consumer gets every record of A that B would still
    deliver, and every record of A after the last copied one. Therefore a position in a stretch that B holds twice leads
    to the first record of A that B still delivers.

    It is `Verdict.SEEN` if the alignment of A with B is sure of the place of this record in B, B holds no other record
    of A from the position up to this place, and A holds every record that B holds from the position on. If a record of
    B may be the copy of a record that A has removed, the alignment has to be sure of the place of E too.
    """

    def lacking(self, position: int) -> int | None:
        """Returns the number of records of B from a position on that A does not hold, without those before its first
        copy; None if unknown."""
        if self.b.empty and self.b.whole:
            return 0
        if self.first_copied is None or position < self.b.first:
            return None
        lacking = _number_from(self._foreign, max(self.first_copied, self.b.index_of(position)))
        return None if lacking and self.is_cut else lacking

    def translate(self, position: int) -> Translation:
        """Returns the answer for a position in B's log."""
        a, b = self.a, self.b
        if not b.start <= position <= b.end:
            why = f"{position} is outside of {b.start} to {b.end}, the part of the source's log that consumers get"
            return Translation(Verdict.UNKNOWN, why=why)
        if b.whole and b.empty and not b.end:
            return Translation(Verdict.SEEN, a.start, why="the source has never held a record")
        if a.whole and a.empty and b.whole and b.empty:
            return Translation(Verdict.SEEN, a.end, why="both logs hold no record")
        if position < b.first or self.first_copied is None:
            why = "no record that was read of the source equals one of the target"
            return Translation(Verdict.UNKNOWN, why=why, earlier_a=not a.whole, earlier_b=not b.whole)
        place = b.index_of(position)
        at, index = self._next_copied(place)
        unread = not a.whole and (not at or place <= self._last_other or not a.timed)
        missing = _number_from(self._foreign, place)
        answer = super().translate(a.offset_at(index))
        if answer.verdict is Verdict.SEEN and self._end is not None and self._may_hold_older():
            # B's last record may be the copy of one that A has removed, unless the records before it are equal too.
            answer = super().translate(a.offset_at(min(self._end, index)))
        left_out = sum(_number_from(of, at) - _number_from(of, index) for of in (self._missing, self._disordered))
        if min(self._classes_b[place : self._places[at]], default=0) < 0:  # these may be changed copies
            left_out = self._committed_between(at, index)
        if answer.verdict is Verdict.SEEN and not (unread or missing or left_out):
            return answer._replace(offset=a.offset_at(index), why="")
        lower, upper = (a.next_committed(bound[place]) for bound in self._bounds_back)
        earlier_a = not a.whole and (unread or answer.earlier_a or not (lower and a.timed))
        earlier_b = not b.whole and (answer.earlier_b or not at)
        why = "the records of both logs do not follow in the same order there"
        if missing:
            why = f"the target lacks {count_of(missing, 'record')} after the position"
        elif self.may_be_copied_again:
            why = "the source may be receiving a stretch again that it already holds"
        if earlier_a or earlier_b:
            return Translation(Verdict.UNKNOWN, why=why, missing=missing, earlier_a=earlier_a, earlier_b=earlier_b)
        bounds = a.offset_at(lower), a.offset_at(upper), upper - lower
        return Translation(Verdict.MISSING if missing else Verdict.BRACKETED, *bounds, why, missing)

    def _next_copied(self, place: int) -> tuple[int, int]:
        """Returns the index of the record of A whose place is the next one from ``place`` on, and before it that of the
        first record from which on B lacks those before this record."""
        if self._end is None:
            return 0, 0
        at = bisect_left(self._places, place, 0, self._end + 2)
        return at, self.a.next_committed(bisect_right(self._places, self._places[at], at, self._end + 2) - 1)

    @cached_property
    def _last_other(self) -> int:
        """The place of B's last record that equals no record of A."""
        return max((place for place, of in enumerate(self._classes_b) if of < 0), default=_ABSENT)

    @cached_property
    def _bounds_back(self) -> tuple[list[int], list[int]]:
        """For each place in B: the smallest and the largest index of A that may be right for a position there.

        A record that A does not hold may be a changed copy of one after the nearest unique record before it in B."""
        older, size, before, after = self._may_hold_older(), len(self._classes_a), 0, 0
        low, high = list[int](), list[int]()
        for of in self._classes_b:
            sure = of >= 0 and self._unique[of]
            low.append(of if of >= 0 else before)
            high.append(of if sure and not older and of not in self.a.aborted else size)
            before = of + 1 if sure else before
            after = max(after, before)
        bounds = (low, 0 if older else after), (high, size)
        lower, upper = (list(accumulate(reversed(one), min, initial=last))[::-1] for one, last in bounds)
        return lower, upper


def _number_from(indexes: array[int], index: int) -> int:
    """Returns how many of the ascending indexes are not below ``index``."""
    return len(indexes) - bisect_left(indexes, index)


def _classes(a: LogStretch, b: LogStretch) -> tuple[array[int], array[int]]:
    """Returns, for each record of both stretches, the index of the first record of A that equals it."""
    size = len(a.prints)
    first = dict(zip(reversed(a.prints), range(size - 1, -1, -1), strict=True))
    of_a = array("q", range(size) if len(first) == size else map(first.__getitem__, a.prints))
    of_b = array("q", map(first.get, b.prints, repeat(_FOREIGN)))
    return of_a, of_b


def _unique(classes: Sequence[int]) -> bytearray:
    """Returns 1 for each record of A that equals no other record of A, else 0."""
    unique = bytearray(b"\1") * len(classes)
    for index, of in enumerate(classes):
        if of != index:
            unique[index] = unique[of] = 0
    return unique
