"""Reads the logs of two clusters, and translates positions of one into positions of the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from offsetmgr.core.errors import (
    CorruptData,
    OffsetMgrError,
    RecreatedTopic,
    UnknownTopicOrPartition,
    UnsupportedOperation,
)
from offsetmgr.core.model import LogRange, TopicPartition
from offsetmgr.kafka.cluster import Logs, describable_topics
from offsetmgr.segments.batch_reader import BATCH_HEADER, LOG_OVERHEAD, batches
from offsetmgr.segments.raw_batches import raw_batches
from offsetmgr.translation.alignment import Alignment, LogStretch, Translation, Verdict
from offsetmgr.translation.fingerprints import COPIERS_HEADERS, Equality, FingerprintRules, Piece

_FETCH_BYTES: Final = 8 * 1024 * 1024
_MARGIN: Final = 1_000
"""The number of offsets that are read before the positions at first."""
_FIRST_OFFSETS: Final = 200_000
"""The number of offsets at the end of each log that are read at first. After that, as many again, and so on."""
_NEIGHBOURS: Final = 50
"""The number of records on each side of a position that must be equal if not everything was read."""
_SAMPLE: Final = 1_000
"""The number of offsets that are read around a place, to look for a record."""
_RECORD_BYTES: Final = 128
"""The memory that a fingerprint takes, so that a log of tiny records is not read without a limit."""
_PLACED: Final = (Verdict.SEEN, Verdict.INFERRED, Verdict.BRACKETED)


class TranslationOptions(NamedTuple):
    """``max_read`` is the largest number of bytes that are read of a partition, in both logs together, and ``throttle``
    the largest number that is read in a second. ``ignored_headers`` are headers that only the target's records have.
    ``on_read`` is called with the number of bytes of each read."""

    max_read: int = 256 * 1024 * 1024
    throttle: int | None = None
    ignored_headers: tuple[str, ...] = COPIERS_HEADERS
    on_read: Callable[[int], None] = lambda _: None


class TranslatedPartition(NamedTuple):
    """The translations of the positions in a partition. If ``error`` is set, there are none."""

    source: TopicPartition
    target: TopicPartition
    translations: Mapping[int, Translation]
    error: OffsetMgrError | None = None
    note: str = ""
    alignment: Alignment | None = None

    def difference(self, position: int, committed: int) -> tuple[int, int] | None:
        """Returns the numbers of records that a group repeats and skips if it resumes at ``committed`` in the target
        instead of ``position`` in the source; None if they are not known."""
        answer = self.translations.get(position)
        if answer is None or answer.offset is None:
            return None
        if self.alignment is None:  # equal logs: offsets count as records
            return max(answer.offset - committed, 0), max(committed - answer.offset, 0)
        return self.alignment.difference(answer, committed)

    def least_skips(self, position: int, committed: int) -> int | None:
        """Returns the number of records that such a group skips at least: if the right offset is the largest one that
        may be right."""
        answer = self.translations[position]
        if self.alignment is None:
            return None
        apart = self.alignment.difference(answer._replace(offset=answer.upper), committed)
        return None if apart is None else apart[1]


class TooMuch(OffsetMgrError):
    """More bytes lie between a position and the end of its log than may be read."""


class PositionTranslator:
    """Translates positions of the cluster of ``source`` into positions of the cluster of ``target``.

    The logs are read backward, in pieces, from their ends to the position that lies furthest back. No piece is read
    twice, unless no record equals another by the strictest comparison.
    """

    def __init__(self, source: Logs, target: Logs, options: TranslationOptions | None = None) -> None:
        self._source, self._target, self._options = source, target, options or TranslationOptions()

    def translate(
        self,
        positions: Mapping[TopicPartition, Collection[int]],
        rename: Callable[[str], str] = str,
        earliest: Mapping[TopicPartition, int] | None = None,
    ) -> Iterator[TranslatedPartition]:
        """Yields the translations of each partition. ``rename`` returns the name that a topic has in the target.
        ``earliest`` is the smallest offset in the target that will be compared, by the partition of the source.

        First reads the ends of the target's logs, then those of the source. Errors of one partition, such as a missing
        right to read, are in its result. Raises `Unreachable`, `TimedOut` if a cluster never responded.
        """
        targets = {tp: TopicPartition(rename(tp.topic), tp.partition) for tp in positions}
        topics = {tp.topic: targets[tp].topic for tp in positions}
        ids = self._topic_ids(topics)
        refused = self._refused(topics)
        in_target = self._target.log_ranges(targets.values())
        in_source = self._source.log_ranges(positions)
        for tp, wanted in positions.items():
            ranges = in_source[tp], in_target[targets[tp]]
            try:
                if tp.topic in refused:
                    raise refused[tp.topic]
                logs = (_Log(self._source, tp, _known(ranges[0])), _Log(self._target, targets[tp], _known(ranges[1])))
                translated = self._partition(logs, wanted, (earliest or {}).get(tp), ids)
            except OffsetMgrError as error:
                translated = TranslatedPartition(tp, targets[tp], {}, error)
            yield translated

    def _partition(self, logs: _Pair, wanted: Collection[int], earliest: int | None, ids: _Ids) -> TranslatedPartition:
        """Raises the error of the partition."""
        source, target = logs
        alignment, note = None, ""
        found: Mapping[int, Translation]
        if equal := _equal_logs(logs, wanted):
            why = "both logs have equal batches at equal offsets"
            found = {position: Translation(Verdict.SEEN, position, why=why) for position in equal}
        else:
            reading = self._read(logs, wanted, earliest)
            alignment, note = reading.alignment, reading.equality.text
            found = {one: self._answer(logs, alignment, one) for one in wanted}
            if not any(one.verdict in _PLACED for one in found.values()):
                self._refuse_other_partitions(logs)
        now = self._topic_ids({source.tp.topic: target.tp.topic})
        for log, before, after in zip(logs, ids, now, strict=True):
            if before.get(log.tp.topic) != after.get(log.tp.topic):
                raise RecreatedTopic(str(log.tp), "the topic was deleted or recreated meanwhile")
        return TranslatedPartition(source.tp, target.tp, found, note=note, alignment=alignment)

    def _read(self, logs: _Pair, wanted: Collection[int], earliest: int | None) -> _AlignedLogs:
        """Reads both logs with the strictest comparison for which records are equal."""
        first = None
        for equality in Equality:
            reading = _AlignedLogs(logs, self._options, equality)
            reading.align(wanted, earliest)
            first = first or reading
            if reading.alignment.first_copied is not None:
                return reading
            if not (reading.alignment.a.prints and reading.alignment.b.prints):
                break
        return first or reading

    def _answer(self, logs: _Pair, alignment: Alignment, position: int) -> Translation:
        answer = alignment.translate(position)
        if not (answer.earlier_a or answer.earlier_b) or answer.verdict in (Verdict.SEEN, Verdict.NOT_YET):
            return answer
        return self._inferred(logs, position) or answer._replace(why=f"{answer.why}; more bytes than may be read")

    def _inferred(self, logs: _Pair, position: int) -> Translation | None:
        """Compares the records around a position, and others that lie as far from both, without those between."""
        source, target = logs
        if not source.range.start <= position < source.range.end:
            return None
        timestamp = source.timestamp_at(position)
        hint = None if timestamp is None else target.offset_at_time(timestamp)
        for equality in Equality:
            readings = _AlignedLogs(logs, self._options, equality)
            for place in filter(None, (hint, target.range.end - (source.range.end - position))):
                try:
                    shift = readings.shift(position, place)
                except TooMuch:
                    return None
                if shift is not None:
                    why = f"the records around it are equal, and those between were not read; {equality.text}"
                    return Translation(Verdict.INFERRED, position + shift, why=why.removesuffix("; "), earlier_a=True)
        return None

    def _refuse_other_partitions(self, logs: _Pair) -> None:
        """Raises `UnsupportedOperation` if records of the source's partition lie in other partitions of the target."""
        source, target = logs
        count = self._target.topics([target.tp.topic]).get(target.tp.topic, 0)
        others = [tp for number in range(count) if (tp := TopicPartition(target.tp.topic, number)) != target.tp]
        known = {tp: log for tp, log in self._target.log_ranges(others).items() if isinstance(log, LogRange)}
        found: set[TopicPartition] = set()
        for equality in Equality if known else ():
            rules = FingerprintRules(equality, timestamps=False)
            records = set(_end_of(source, rules, self._options))
            ends = {tp: _end_of(_Log(self._target, tp, log), rules, self._options) for tp, log in known.items()}
            found.update(tp for tp, end in ends.items() if not records.isdisjoint(end))
        if found:
            names = ", ".join(map(str, sorted(found)))
            why = f"its records lie in {names} of the target: the copier chose partitions by another rule"
            raise UnsupportedOperation(str(source.tp), why)

    def _topic_ids(self, topics: Mapping[str, str]) -> _Ids:
        return self._source.topic_ids(topics), self._target.topic_ids(topics.values())

    def _refused(self, topics: Mapping[str, str]) -> dict[str, OffsetMgrError]:
        """Returns an error for each of the source's topics whose partitions cannot correspond to the target's."""
        in_source, errors = describable_topics(self._source, topics)
        in_target, hidden = describable_topics(self._target, topics.values())
        for topic, renamed in topics.items():
            counts = in_source.get(topic), in_target.get(renamed)
            if topic in errors:
                continue
            if renamed in hidden:
                errors[topic] = hidden[renamed]
            elif counts[0] is None:
                errors[topic] = UnknownTopicOrPartition(f"topic {topic}", "the source has no such topic")
            elif counts[1] is None:
                errors[topic] = UnknownTopicOrPartition(f"topic {renamed}", "the target has no such topic")
            elif counts[0] != counts[1]:
                why = f"it has {counts[0]} partitions in the source, and {renamed} has {counts[1]} in the target"
                errors[topic] = UnsupportedOperation(f"topic {topic}", why)
        return errors


class _Budget:
    """Counts the bytes that are read of a partition, and slows the reads down."""

    def __init__(self, options: TranslationOptions) -> None:
        self._left, self._throttle, self._on_read = options.max_read, options.throttle, options.on_read
        self.fetch_bytes = min(_FETCH_BYTES, options.throttle or _FETCH_BYTES)

    def spend(self, read: int, records: int) -> None:
        """Raises `TooMuch` if more bytes than allowed have been read."""
        self._on_read(read)
        self._left -= max(read, records * _RECORD_BYTES)
        if self._left < 0:
            raise TooMuch("reading the logs", "more bytes lie between the position and the ends than may be read")
        if self._throttle:
            time.sleep(read / self._throttle)


class _Log(NamedTuple):
    """The log of a partition, with the range that it had at first."""

    logs: Logs
    tp: TopicPartition
    range: LogRange

    def read(self, first: int, comparison: FingerprintRules, budget: _Budget, stop: int | None = None) -> Piece:
        """Reads the log from an offset, or from its start, up to ``stop`` or its end. Raises `OffsetMgrError`."""
        first = max(first, self.range.start)
        end = self.range.end if stop is None else min(stop, self.range.end)
        piece = Piece(self.range, first, max(first, end), comparison)
        while piece.next_offset < piece.stop:
            data = self.bytes_at(piece.next_offset, budget.fetch_bytes)
            before, records = piece.next_offset, len(piece.stretch.prints)
            added = piece.add(data)
            if piece.next_offset == before:
                if data:
                    raise CorruptData(f"log of {self.tp}", f"the broker returns no records from offset {before} on")
                piece.skip_to_stop()
            budget.spend(added, len(piece.stretch.prints) - records)
        return piece

    def bytes_at(self, offset: int, max_bytes: int = 1) -> bytes:
        """Returns the log from an offset on, with at least one complete batch if there is one."""
        found = self.logs.read_log(self.tp, offset, max_bytes)
        if isinstance(found, OffsetMgrError):
            raise found
        return found

    def timestamp_at(self, offset: int) -> int | None:
        """Returns the time stamp of the first record from an offset on."""
        read = (record for batch in batches(self.bytes_at(offset), offset) for record in batch.records)
        record = next(read, None)
        return None if record is None else record.timestamp

    def offset_at_time(self, timestamp: int) -> int | None:
        """Returns the offset of the first record with this time stamp or a later one."""
        found = self.logs.offsets_for_time([self.tp], timestamp)[self.tp]
        return found if isinstance(found, int) else None

    def checksum_at(self, offset: int) -> tuple[int, int] | None:
        """Returns the base offset and the checksum of the batch that contains an offset. The checksum of a message of
        an older format does not tell, so the result is None for it."""
        data = self.bytes_at(offset)
        batch = next(raw_batches(data), None)
        if batch is None or batch.magic < 2:
            return None
        return batch.base_offset, BATCH_HEADER.unpack_from(data, batch.start + LOG_OVERHEAD)[2]


def _end_of(log: _Log, rules: FingerprintRules, options: TranslationOptions) -> Sequence[bytes]:
    """Returns the fingerprints of the last records of a log; none if they have more bytes than may be read."""
    try:
        return log.read(log.range.end - _SAMPLE, rules, _Budget(options)).stretch.prints
    except TooMuch:
        return ()


def _known(range_: LogRange | OffsetMgrError) -> LogRange:
    """Raises the error of a log whose range is not known."""
    if isinstance(range_, OffsetMgrError):
        raise range_
    return range_


_Pair: TypeAlias = tuple[_Log, _Log]
_Ids: TypeAlias = tuple[Mapping[str, str], Mapping[str, str]]


def _equal_logs(logs: _Pair, wanted: Collection[int]) -> Collection[int]:
    """Returns the positions if both logs have equal batches at equal offsets around each of them and at the target's
    end, as the logs of linked clusters have; otherwise nothing."""
    source, target = logs
    start, end = (max(source.range.start, target.range.start), target.range.end)
    if end > source.range.end or end <= start or not all(start <= position <= end for position in wanted):
        return ()
    places = sorted({end - 1, *(place for one in wanted for place in (one - 1, one) if start <= place < end)})
    for place in reversed(places):
        checksum = target.checksum_at(place)
        if checksum is None or checksum != source.checksum_at(place):
            return ()
    return wanted


class _AlignedLogs:
    """The reads of both logs of a partition with one comparison."""

    def __init__(self, logs: _Pair, options: TranslationOptions, equality: Equality) -> None:
        self._logs, self._options, self.equality = logs, options, equality
        self.alignment: Alignment
        self._budget = _Budget(options)
        self._timestamps: bool | None = None

    def align(self, wanted: Collection[int], earliest: int | None = None) -> None:
        """Reads the logs back to the positions, the target to ``earliest`` too, and further if the answers need it. The
        end is where no more may be read."""
        source, target = self._logs
        inside = [one for one in wanted if source.range.start <= one <= source.range.end]
        needed = source.range.end - min(inside, default=source.range.end) + _MARGIN
        distance, pieces = self._read_ends(min(needed, _FIRST_OFFSETS))
        try:
            while distance < needed and not pieces[target].mixed_times:
                self._read_earlier(pieces, source, target)
                distance *= 2
            while not pieces[target].mixed_times:
                self.alignment = self._aligned(pieces)
                needs = zip(self._logs, self.alignment.needs_earlier(inside), strict=True)
                further = [log for log, need in needs if need] or self._may_hold_following()
                if earliest is not None and earliest < pieces[target].stretch.first:
                    further = [target]
                if all(pieces[log].stretch.whole for log in further):
                    return
                self._read_earlier(pieces, *further)
        except TooMuch:
            self.alignment = self._aligned(pieces)
            self.alignment.may_be_copied_again |= bool(self._may_hold_following())
            return
        self._timestamps = False
        self.align(wanted, earliest)

    def _read_ends(self, distance: int) -> tuple[int, dict[_Log, Piece]]:
        """Reads the ends of both logs, fewer offsets if they have more bytes than may be read. Returns the number of
        offsets too."""
        source, target = self._logs
        while True:
            self._budget = _Budget(self._options)
            try:
                b = target.read(target.range.end - distance, self.comparison(target), self._budget)
                self._timestamps = b.timestamps if self._timestamps is None else self._timestamps
                a = source.read(source.range.end - distance, self.comparison(source), self._budget)
            except TooMuch:
                if distance == 1:
                    raise
                distance = max(distance // 16, 1)
            else:
                return distance, {source: a, target: b}

    def comparison(self, log: _Log) -> FingerprintRules:
        headers = self._options.ignored_headers if log is self._logs[1] else ()
        return FingerprintRules(self.equality, self._timestamps, headers)

    def _aligned(self, pieces: Mapping[_Log, Piece]) -> Alignment:
        a, b = (pieces[log] for log in self._logs)
        return Alignment(a.stretch, b.committed())

    def _read_earlier(self, pieces: dict[_Log, Piece], *logs: _Log) -> None:
        """Reads as much again before what was read of these logs. Raises `TooMuch`."""
        for log in logs:
            first = pieces[log].stretch.first
            earlier = log.read(first - (log.range.end - first), self.comparison(log), self._budget, stop=first)
            earlier.extend(pieces[log])
            pieces[log] = earlier

    def _may_hold_following(self) -> list[_Log]:
        """Returns the target if an earlier part of it may hold copies of records that its end does not hold."""
        source, target = self._logs
        if self.alignment.following is None:
            return []
        timestamp = source.timestamp_at(self.alignment.following)
        first = None if timestamp is None else target.offset_at_time(timestamp)
        return [target] if first is not None and first < self.alignment.b.first else []

    def shift(self, position: int, place: int) -> int | None:
        """Returns the difference of the offsets if the records around both places are equal, those halfway to the start
        of the logs too, and the last records of the target; otherwise None."""
        source, target = self._logs
        b = self._around(target, place).stretch
        a = self._around(source, position).stretch
        index = a.index_of(position)
        at = b.prints.index(a.prints[index]) if index < len(a.prints) and a.prints[index] in b.prints else None
        if at is None or not _equal_neighbours(a, b, index, at):
            return None
        shift = b.offsets[at] - a.offsets[index]
        start = max(source.range.start, target.range.start - shift)
        for anchor in ((start + position) // 2, target.range.end - shift - _NEIGHBOURS):
            a, b = self._around(source, anchor).stretch, self._around(target, anchor + shift).stretch
            index, at = a.index_of(anchor), b.index_of(anchor + shift)
            if not _equal_neighbours(a, b, index, at) or b.offset_at(at) - a.offset_at(index) != shift:
                return None
        return shift

    def _around(self, log: _Log, place: int) -> Piece:
        rules = FingerprintRules(self.equality, self._timestamps, self._options.ignored_headers)
        piece = log.read(place - _SAMPLE, rules, _Budget(self._options), stop=place + _SAMPLE)
        for index, without_headers in piece.stretch.alternatives.items():
            piece.stretch.prints[index] = without_headers
        if log is self._logs[1] and self._timestamps is None:
            self._timestamps = piece.timestamps
        return piece


def _equal_neighbours(a: LogStretch, b: LogStretch, index: int, at: int) -> bool:
    before, after = slice(-_NEIGHBOURS, None), slice(0, _NEIGHBOURS)
    sides = ((a.prints[:index][before], b.prints[:at][before]), (a.prints[index:][after], b.prints[at:][after]))
    return all(len(ours) == _NEIGHBOURS and ours == theirs for ours, theirs in sides)
