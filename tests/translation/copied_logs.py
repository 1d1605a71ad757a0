"""Simulates a source log and copiers that write its records to a target log. Each record has an identity, which the
alignment does not see. It shows the position in the target that is truly right."""

from __future__ import annotations

import struct
from array import array
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from random import Random
from typing import NamedTuple

from offsetmgr.segments.batch_builder import Producer, batch
from offsetmgr.segments.batch_reader import Record as StoredRecord
from offsetmgr.translation.alignment import NO_KEY, LogStretch


@dataclass(eq=False)
class Record:
    """A record that a producer wrote once. Its copies in a log are the same object."""

    key: int | None
    value: int | None
    time: int
    aborted: bool = False
    open: bool = False
    producer: int | None = None
    """The producer of the record's transaction."""


class Entry(NamedTuple):
    """A record at an offset of a log. The copier may have changed it, so that it equals no record of A."""

    offset: int
    record: Record
    appended: int
    """The time of the append."""
    changed: bool = False


@dataclass
class Log:
    """The log of a partition. ``transactional`` is False in a copy, where the copies of aborted records are ordinary
    records."""

    compacted: bool = False
    transactional: bool = True
    start: int = 0
    end: int = 0
    entries: list[Entry] = field(default_factory=list)
    markers: dict[int, tuple[int, bool]] = field(default_factory=dict)
    """For each marker, the producer, and whether the transaction was aborted."""
    cleaned: int = 0
    """The cleaner has removed older values below this offset."""

    def append(self, record: Record, now: int, changed: bool = False) -> None:
        self.entries.append(Entry(self.end, record, now, changed))
        self.end += 1

    def append_marker(self, producer: int, aborted: bool) -> None:
        self.markers[self.end] = producer, aborted
        self.end += 1

    def delete_before(self, offset: int) -> None:
        self.start = max(self.start, offset)
        self.entries = [one for one in self.entries if one.offset >= self.start]

    def compact(self, up_to: int, remove_tombstones: bool) -> None:
        """Removes older values and aborted records below an offset, and tombstones that an earlier run has kept."""
        below = [one for one in self.entries if one.offset < up_to and not (self.transactional and one.record.open)]
        aborted = {one.offset for one in below if self.transactional and one.record.aborted}
        newest = {one.record.key: one.offset for one in below if one.offset not in aborted}
        gone = {
            one.offset
            for one in below
            if one.offset in aborted
            or newest[one.record.key] != one.offset
            or (remove_tombstones and one.record.value is None and one.offset < self.cleaned)
        }
        self.entries = [one for one in self.entries if one.offset not in gone]
        self.cleaned = max(self.cleaned, up_to)

    def delivered(self) -> list[Entry]:
        """Returns the records that a consumer gets which reads only committed ones."""
        if not self.transactional:
            return self.entries
        stop = next((at for at, one in enumerate(self.entries) if one.record.open), len(self.entries))
        return [one for one in self.entries[:stop] if not one.record.aborted]

    def stretch(self, first: int, with_times: bool, read_committed: bool, stop: int = 1 << 40) -> LogStretch:
        """Returns the columns of the log from an offset up to another."""
        read = [one for one in (self.delivered() if read_committed else self.entries) if first <= one.offset < stop]
        first = max(first, self.start)
        there = {one.offset for one in self.entries} | self.markers.keys()
        return LogStretch(
            first,
            self.start,
            self.end,
            array("q", (one.offset for one in read)),
            [_print(one, with_times) for one in read],
            keys=array("q", (NO_KEY if one.record.key is None else one.record.key for one in read)),
            aborted={at for at, one in enumerate(read) if self.transactional and one.record.aborted},
            gaps=any(offset not in there for offset in range(first, min(stop, self.end))),
            timed=with_times,
        )

    def batches(self, keeps_times: bool) -> list[tuple[int, bytes]]:
        """Returns the last offset and the bytes of each batch. Without ``keeps_times`` the broker sets the times."""
        parts: list[list[Entry]] = [[]]
        for one in self.entries:
            last = parts[-1][-1] if parts[-1] else one._replace(offset=one.offset - 1)
            follows = last.offset + 1 == one.offset and last.record.producer == one.record.producer
            if len(parts[-1]) == 20 or not follows or not (keeps_times or last.appended == one.appended):
                parts.append([])
            parts[-1].append(one)
        found = []
        for part in filter(None, parts):
            producer = part[0].record.producer if self.transactional else None
            of = None if producer is None else Producer(producer, 0, 0, transactional=True)
            found.append((part[-1].offset, batch([_encoded(one, keeps_times) for one in part], producer=of)))
        for offset, (producer, aborted) in self.markers.items():
            marker = StoredRecord(offset, 0, struct.pack(">hh", 0, not aborted), bytes(6))
            found.append((offset, batch([marker], producer=Producer(producer, 0, -1, True), control=True)))
        return sorted(one for one in found if one[0] >= self.start)


def _encoded(one: Entry, keeps_times: bool) -> StoredRecord:
    key = None if one.record.key is None else b"%d" % one.record.key
    value = None if one.record.value is None and not one.changed else f"{one.record.value}{one.changed}".encode()
    time = one.record.time if keeps_times else one.appended
    return StoredRecord(one.offset, time, key, value, (), not keeps_times)


def _print(one: Entry, with_times: bool) -> bytes:
    time = one.record.time if with_times else ""
    return f"{one.record.key},{one.record.value},{time}{',changed' if one.changed else ''}".encode()


@dataclass(frozen=True)
class Case:
    """The faults of producers, copiers and brokers. Numbers from 0 to 1 are probabilities: ``restart``, ``hole``,
    ``foreign``, ``change``, and the compactions and deletions in each round; ``retry`` and ``reorder`` for each batch.
    After a ``change``, the copier begins to change the records that it copies, or ends it.

    ``equal`` is the share of records with the same payload. ``cycle`` is the number of records after which payloads
    repeat; then A keeps the last record that was copied, and it is read (see `Alignment` for the reason). ``keys`` is
    the number of keys, 0 for records without keys. ``done`` tells whether the copiers finish."""

    name: str
    least_seen: float = 0
    equal: float = 0
    cycle: int = 0
    keys: int = 0
    keeps_times: bool = True
    same_times: float = 0.005
    transactions: bool = False
    committed_only: bool = False
    copiers: int = 1
    restart: float = 0
    retry: float = 0
    reorder: float = 0
    hole: float = 0
    foreign: float = 0
    change: float = 0
    foreign_around: bool = False
    compact_a: float = 0
    compact_b: float = 0
    tombstones: float = 0
    remove_tombstones: bool = False
    delete_a: float = 0
    delete_b: float = 0
    retained: int = 0
    done: bool = True
    equal_logs: bool = False
    rounds: int = 12


class World:
    """A source log A and a target log B after some rounds of a case."""

    def __init__(self, case: Case, random: Random) -> None:
        self.case, self._random = case, random
        self.a, self.b = Log(), Log(transactional=False)
        self._clock = self._produced = 0
        self._open: list[list[Record]] = [[], []]
        self._copiers = [0] * case.copiers
        """The offset of A that each copier reads next."""
        self._last_read = [0] * case.copiers
        self._changes = False
        self._places_in_a = defaultdict[Record, int](lambda: -1)
        if case.foreign_around:
            self._write_foreign()
        for _ in range(case.rounds):
            self._round()
        if case.done:
            self._end_transactions()
            self._copy(10**9)
        if case.foreign_around:
            self._write_foreign()
        if case.equal_logs:
            self.b = replace(self.a, entries=list(self.a.entries))

    @property
    def last_copied(self) -> int:
        """The offset of the last record of A that each copier has copied."""
        return min(self._last_read)

    def right(self, position: int) -> int:
        """Returns the last offset of B from which a consumer gets every record that A would still deliver from the
        position on and that B holds."""
        last = self._last_copies
        return min((last[one] for one in self.needed(position) if one in last), default=self.b.end)

    def right_back(self, position: int) -> int:
        """Returns the last offset of A from which a consumer gets every record of A that B would still deliver from the
        position on, and every record of A after the last copied one."""
        last = max((self._places_in_a[one.record] for one in self.b.entries), default=-1)
        needed = {one.record for one in self.b.delivered() if one.offset >= position}
        return next((one.offset for one in self.of_a if one.record in needed or one.offset > last), self.a.end)

    def next_in_a(self, offset: int) -> int:
        """Returns the offset of A's first record at or after an offset that is not aborted, or A's end."""
        return next((one.offset for one in self.of_a if one.offset >= offset), self.a.end)

    @cached_property
    def of_a(self) -> list[Entry]:
        return [one for one in self.a.entries if not one.record.aborted]

    @cached_property
    def _last_copies(self) -> dict[Record, int]:
        return {one.record: one.offset for one in self.b.entries}

    def needed(self, position: int) -> list[Record]:
        """Returns the records that A's consumer gets from a position on."""
        return [one.record for one in self.a.entries if one.offset >= position and not one.record.aborted]

    def difference(self, position: int, committed: int) -> tuple[int, int]:
        """Returns how many records of B a consumer at an offset of B gets again, and how many of A it skips."""
        skipped = [one for one in self.needed(position) if self._last_copies.get(one, committed) < committed]
        right, delivered = self.right(position), self.b.delivered()
        return sum(committed <= one.offset < right for one in delivered), len(skipped)

    def first_not_older(self, offset: int) -> int:
        """Returns the offset of B's first record with a time at or after the time of the record at an offset of A."""
        return self.first_not_older_than(next(one.record.time for one in self.a.entries if one.offset == offset))

    def first_not_older_than(self, time: int) -> int:
        """Returns the offset of B's first record with this time or a later one."""
        of_entry = (one.record.time if self.case.keeps_times else one.appended for one in self.b.entries)
        found = zip(self.b.entries, of_entry, strict=True)
        return next((one.offset for one, entry_time in found if entry_time >= time), self.b.end)

    # --- the rounds ---------------------------------------------------------------------------------

    def _happens(self, probability: float) -> bool:
        return self._random.random() < probability

    def _round(self) -> None:
        case, random = self.case, self._random
        for _ in range(random.randint(5, 40)):
            self._produce()
        if self._happens(case.restart):
            self._move_copier(-random.randint(1, 60))
        self._changes ^= self._happens(case.change)
        if self._happens(case.hole):
            self._move_copier(random.randint(1, 25))
        self._copy(random.randint(0, 60))
        if self._happens(case.foreign):
            self._write_foreign()
        if self._happens(case.compact_a):
            self.a.compact(random.randint(self.a.start, self.a.end), case.remove_tombstones)
        if self._happens(case.compact_b):
            self.b.compact(random.randint(self.b.start, self.b.end), case.remove_tombstones)
        kept = self.last_copied if case.cycle else self.a.end
        if self._happens(case.delete_a):
            self.a.delete_before(min(random.randint(self.a.start, (self.a.start + self.a.end) // 2), kept))
        if case.retained:
            self.a.delete_before(min(self.a.end - case.retained, kept))
        if self._happens(case.delete_b):
            self.b.delete_before(random.randint(self.b.start, (self.b.start + self.b.end) // 2))

    def _produce(self) -> None:
        case, random = self.case, self._random
        value: int | None = self._produced % case.cycle if case.cycle else self._produced
        if self._happens(case.equal):
            value = -1
        key = random.randrange(case.keys) if case.keys else None
        if self._happens(case.tombstones):
            value = None
        self._produced += 1
        self._clock += not self._happens(case.same_times)
        record = Record(key, value, self._clock)
        self._places_in_a[record] = self.a.end
        self.a.append(record, self._clock)
        if case.transactions:
            record.open = True
            producer = record.producer = random.randrange(2)
            self._open[producer].append(record)
            if self._happens(0.2):
                self._end_transaction(producer)

    def _end_transaction(self, producer: int) -> None:
        aborted = self._happens(0.3)
        for record in self._open[producer]:
            record.open, record.aborted = False, aborted
        if self._open[producer]:
            self.a.append_marker(producer, aborted)
        self._open[producer] = []

    def _end_transactions(self) -> None:
        self._end_transaction(0)
        self._end_transaction(1)

    def _write_foreign(self) -> None:
        for _ in range(self._random.randint(1, 5)):
            key = self._random.randrange(self.case.keys) if self.case.keys else None
            self._produced += 1
            self.b.append(Record(key, -self._produced - 1, self._clock), self._clock)

    # --- the copiers --------------------------------------------------------------------------------

    def _move_copier(self, by: int) -> None:
        copier = self._random.randrange(len(self._copiers))
        moved = self._copiers[copier] + by
        self._copiers[copier] = min(max(moved, self.a.start), self.a.end)

    def _copy(self, records: int) -> None:
        """Copies up to so many records, by all copiers in turn."""
        streams = [self._batches(copier, records) for copier in range(len(self._copiers))]
        while streams:
            stream = self._random.choice(streams)
            batch = next(stream, None)
            if batch is None:
                streams.remove(stream)
                continue
            if self._happens(self.case.reorder) and (following := next(stream, None)) is not None:
                self._write(following)
            self._write(batch)
            if self._happens(self.case.retry):
                self._write(batch)

    def _write(self, batch: list[Record]) -> None:
        for record in batch:
            self.b.append(record, self._clock, self._changes)
        if self.case.committed_only:
            self.b.append_marker(2, False)

    def _batches(self, copier: int, records: int) -> Iterator[list[Record]]:
        """Yields the batches that a copier reads, and moves its position."""
        readable = [one for one in self.a.entries if one.offset >= self._copiers[copier]]
        if self.case.committed_only:
            stop = next((at for at, one in enumerate(readable) if one.record.open), len(readable))
            readable = [one for one in readable[:stop] if not one.record.aborted]
        readable = readable[:records]
        while readable:
            size = self._random.randint(1, 10)
            batch, readable = readable[:size], readable[size:]
            self._last_read[copier] = batch[-1].offset
            self._copiers[copier] = self._last_read[copier] + 1
            yield [one.record for one in batch]
