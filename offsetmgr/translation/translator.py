"""Reads the logs of two clusters, and translates positions of one into positions of the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from offsetmgr.core.errors import (
    CorruptData,
    OffsetMgrError,
    RecreatedTopic,
    UnknownTopicOrPartition,
    UnsupportedOperation,
)
from offsetmgr.core.model import LogRange, TopicPartition
from offsetmgr.kafka.cluster import Logs
from offsetmgr.translation.alignment import Alignment, Translation
from offsetmgr.translation.fingerprints import COPIERS_HEADERS, Comparison, Equality, Piece

_FETCH_BYTES: Final = 8 * 1024 * 1024
_MARGIN: Final = 1_000
"""The number of offsets that are read before the positions at first."""
_RECORD_BYTES: Final = 128
"""The memory that a fingerprint takes, so that a log of tiny records is not read without a limit."""


class TranslationOptions(NamedTuple):
    """``max_read`` is the largest number of bytes that are read of a partition, in both logs together, and ``throttle``
    the largest number that is read in a second. ``ignored_headers`` are headers that only the target's records have."""

    max_read: int = 256 * 1024 * 1024
    throttle: int | None = None
    ignored_headers: tuple[str, ...] = COPIERS_HEADERS


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
        if self.alignment is None or position not in self.translations:
            return None
        return self.alignment.difference(self.translations[position], committed)


class TooMuch(OffsetMgrError):
    """The logs have more bytes between the position and their ends than may be read."""


class Translator:
    """Translates positions of the cluster of ``source`` into positions of the cluster of ``target``.

    Each log is read at most once, from the position that lies furthest back up to the end that it had at first; only a
    comparison that finds nothing, or a log whose time stamps change their kind, needs another read.
    """

    def __init__(self, source: Logs, target: Logs, options: TranslationOptions = TranslationOptions()) -> None:  # noqa: B008
        self._source, self._target, self._options = source, target, options

    def translate(
        self, positions: Mapping[TopicPartition, Collection[int]], rename: Callable[[str], str] = str
    ) -> Iterator[TranslatedPartition]:
        """Yields the translations of each partition. ``rename`` returns the name that a topic has in the target.

        First reads the ends of the target's logs, then those of the source. Errors of one partition, such as a missing
        right to read, are in its result. Raises `Unreachable`, `TimedOut` if a cluster never responded.
        """
        targets = {tp: TopicPartition(rename(tp.topic), tp.partition) for tp in positions}
        topics = {tp.topic: targets[tp].topic for tp in positions}
        ids = self._topic_ids(topics)
        refused = self._refused(topics)
        ends = self._target.log_ranges([targets[tp] for tp in positions])
        starts = self._source.log_ranges(list(positions))
        for tp, wanted in positions.items():
            target = targets[tp]
            outcome = refused.get(tp.topic) or _first_error(starts[tp], ends[target])
            if outcome is None:
                ranges = starts[tp], ends[target]
                assert isinstance(ranges[0], LogRange)
                assert isinstance(ranges[1], LogRange)
                logs = _Log(self._source, tp, ranges[0]), _Log(self._target, target, ranges[1])
                yield self._partition(logs, wanted, ids)
            else:
                yield TranslatedPartition(tp, target, {}, outcome)

    def _partition(
        self, logs: tuple[_Log, _Log], wanted: Collection[int], ids: tuple[Mapping[str, str], Mapping[str, str]]
    ) -> TranslatedPartition:
        source, target = logs
        try:
            aligned, note = self._align(source, target, wanted)
            found = {position: aligned.translate(position) for position in wanted}
            now = self._topic_ids({source.tp.topic: target.tp.topic})
            for log, before, after in zip(logs, ids, now, strict=True):
                if before.get(log.tp.topic) != after.get(log.tp.topic):
                    raise RecreatedTopic(str(log.tp), "the topic was deleted or recreated meanwhile")
        except OffsetMgrError as error:
            return TranslatedPartition(source.tp, target.tp, {}, error)
        return TranslatedPartition(source.tp, target.tp, found, note=note, alignment=aligned)

    def _align(self, source: _Log, target: _Log, wanted: Collection[int]) -> tuple[Alignment, str]:
        for equality in Equality:
            aligned = self._read(source, target, wanted, equality)
            if aligned.first_copied is not None or not (aligned.a.prints and aligned.b.prints):
                break
        else:
            equality = Equality.ALL
        return aligned, equality.text

    def _read(self, source: _Log, target: _Log, wanted: Collection[int], equality: Equality) -> Alignment:
        """Reads both logs backward until they pass the positions."""
        inside = [one for one in wanted if source.range.start <= one <= source.range.end]
        distance = source.range.end - min(inside, default=source.range.end) + _MARGIN
        budget = _Budget(self._options)
        headers, timestamps = self._options.ignored_headers, None
        while True:
            b = target.read(target.range.end - distance, Comparison(equality, timestamps, headers), budget)
            a = source.read(source.range.end - distance, Comparison(equality, bool(b.timestamps)), budget)
            while True:
                aligned = Alignment(a.stretch, b.committed())
                earlier_a, earlier_b = aligned.needs_earlier(inside)
                if b.mixed_times or not (earlier_a or earlier_b):
                    break
                if earlier_a:
                    a = source.read_before(a, Comparison(equality, bool(b.timestamps)), budget)
                if earlier_b:
                    b = target.read_before(b, Comparison(equality, b.timestamps, headers), budget)
            if not b.mixed_times:
                return aligned
            timestamps = False

    def _topic_ids(self, topics: Mapping[str, str]) -> tuple[Mapping[str, str], Mapping[str, str]]:
        return self._source.topic_ids(topics), self._target.topic_ids(topics.values())

    def _refused(self, topics: Mapping[str, str]) -> dict[str, OffsetMgrError]:
        """Returns an error for each of the source's topics whose partitions cannot correspond to the target's."""
        errors: dict[str, OffsetMgrError] = {}
        in_source, in_target = self._source.topics(topics), self._target.topics(set(topics.values()))
        for topic, renamed in topics.items():
            counts = in_source.get(topic), in_target.get(renamed)
            if counts[0] is None:
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
        self._left, self._throttle = options.max_read, options.throttle

    def spend(self, read: int, records: int) -> None:
        """Raises `TooMuch` if more bytes than allowed have been read."""
        self._left -= max(read, records * _RECORD_BYTES)
        if self._left < 0:
            raise TooMuch("reading the logs", "more bytes lie between the position and the ends than may be read")
        if self._throttle:
            time.sleep(read / self._throttle)


@dataclass(frozen=True)
class _Log:
    """The log of a partition, with the range that it had at first."""

    logs: Logs
    tp: TopicPartition
    range: LogRange

    def read(self, first: int, comparison: Comparison, budget: _Budget, stop: int | None = None) -> Piece:
        """Reads the log from an offset, or from its start, up to ``stop`` or its end. Raises `OffsetMgrError`."""
        first = max(first, self.range.start)
        piece = Piece(self.range, first, self.range.end if stop is None else stop, comparison)
        while piece.next_offset < piece.stop:
            found = self.logs.read_log(self.tp, piece.next_offset, _FETCH_BYTES)
            if isinstance(found, OffsetMgrError):
                raise found
            before, records = piece.next_offset, len(piece.stretch.prints)
            added = piece.add(found.slice.data)
            if piece.next_offset == before:
                if not found.slice.data and found.slice.high_watermark >= piece.stop:
                    piece.skip_to_stop()
                    break
                raise CorruptData(f"log of {self.tp}", f"the broker returns no records from offset {before} on")
            budget.spend(added, len(piece.stretch.prints) - records)
        return piece

    def read_before(self, piece: Piece, comparison: Comparison, budget: _Budget) -> Piece:
        """Reads as much again before a piece, and returns both as one."""
        first = piece.stretch.first
        earlier = self.read(first - (self.range.end - first), comparison, budget, stop=first)
        earlier.extend(piece)
        return earlier


def _first_error(*outcomes: LogRange | OffsetMgrError) -> OffsetMgrError | None:
    return next((one for one in outcomes if isinstance(one, OffsetMgrError)), None)
