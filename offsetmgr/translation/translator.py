"""Reads the logs of two clusters, and translates positions of one into positions of the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property
from hashlib import blake2b
from itertools import takewhile
from typing import Final, NamedTuple, TypeAlias

from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import (
    CorruptData,
    OffsetMgrError,
    RecreatedTopic,
    UnknownTopicOrPartition,
    UnsupportedOperation,
    UsageError,
)
from offsetmgr.core.log_origin import TranslationRules
from offsetmgr.core.model import LogRange, TopicPartition
from offsetmgr.core.plurals import count_of
from offsetmgr.core.topic_renames import TopicRenames
from offsetmgr.kafka.cluster import Logs, describable_topics
from offsetmgr.segments.batch_reader import BATCH_HEADER, LOG_OVERHEAD, batches
from offsetmgr.segments.raw_batches import raw_batches
from offsetmgr.translation.alignment import Alignment, InverseAlignment, LogStretch, Translation, Verdict
from offsetmgr.translation.fingerprints import COPIERS_HEADERS, Equality, FingerprintRules, Piece

_FETCH_BYTES: Final = 8 * 1024 * 1024
_MIN_FETCH_BYTES: Final = 64 * 1024
_MARGIN: Final = 1_000
"""The number of offsets that are read before the positions at first."""
_FIRST_OFFSETS: Final = 200_000
"""The number of offsets at the end of each log that are read at first. After that, as many again, and so on."""
_NEIGHBOURS: Final = 50
"""The number of records on each side of a position that must be equal if not everything was read."""
_DIGEST_BYTES: Final = 16
_BATCHES: Final = 4
"""The number of batches that are read again, because pieces begin within them."""
_MEGABYTE: Final = 1_000_000
_RECORD_BYTES: Final = 128
"""The memory that a fingerprint takes, so that a log of tiny records is not read without a limit."""
_EQUAL_SHARE: Final = 10
"""A comparison counts if at least one of this number of records is equal. If a single equal record sufficed, tombstones
and heartbeats would decide for the strictest comparison although all other records have different ids of schemas, and
no place would be known. If no comparison reaches this share, the strictest one counts."""
_OTHERS_SAMPLE: Final = 200
_OTHERS_SAMPLE_BYTES: Final = 1024 * 1024
"""The number of offsets at the end of each other partition in which records are looked for, and their bytes."""


class TranslatedPartition(NamedTuple):
    """The translations of the positions in a partition. If ``error`` is set, there are none."""

    source: TopicPartition
    target: TopicPartition
    translations: Mapping[int, Translation]
    error: OffsetMgrError | None = None
    note: str = ""
    alignment: Alignment | None = None
    log: LogRange | None = None
    """The range of the target's log."""
    lacking: int | None = None
    """The number of records of the source that the target lacks, from the first position on; None if unknown."""
    digest: str = ""
    """A hash of the records that were read of both logs."""
    enough: int = 0
    """The ``max_read`` that would read far enough, estimated from what was read; 0 if it was large enough."""

    def difference(self, position: int, committed: int) -> tuple[int, int] | None:
        """Returns the numbers of records that a group repeats and skips if it resumes at ``committed`` in the target
        instead of ``position`` in the source; None if they are not known."""
        answer = self.translations.get(position)
        if answer is None or answer.offset is None:
            return None
        if self.alignment is None:  # equal logs, or the way back: offsets count as records
            within = self.log is not None and self.log.start <= committed <= self.log.end
            return (max(answer.offset - committed, 0), max(committed - answer.offset, 0)) if within else None
        return self.alignment.difference(position, answer, committed)


class TooMuch(OffsetMgrError):
    """More bytes lie between a position and the end of its log than may be read. ``enough`` is as in
    `TranslatedPartition`."""

    enough: int = 0


def enough_text(enough: int, command: str = "") -> Advice:
    """Returns which ``max_read`` reads far enough. ``command`` is as in `Translations`."""
    return Advice(f"{command}{{max_read}} {{}}MB reads far enough", enough // _MEGABYTE)


class PositionTranslator:
    """Translates positions of the cluster of ``source`` into positions of the cluster of ``target``.

    The logs are read backward, in pieces, from their ends to the position that lies furthest back. They are read again
    if fewer than a tenth of the records are equal by the strictest comparison, or if the copy keeps the time stamps of
    only some records. `Alignment` has the rules. With ``rules.back``, the source is the copy, and the answers are those
    of `InverseAlignment`. ``on_read`` is called with the number of bytes of each read.
    """

    def __init__(
        self, source: Logs, target: Logs, rules: TranslationRules, on_read: Callable[[int], None] = lambda _: None
    ) -> None:
        self.source = source
        self._target, self._rules, self._on_read = target, rules, on_read
        self._ends: dict[tuple[TopicPartition, Equality], frozenset[bytes]] = {}
        """The last records of partitions of the target's topic that was read last."""

    def translate(
        self,
        positions: Mapping[TopicPartition, Collection[int]],
        rename: Callable[[str], str] = str,
        earliest: Mapping[TopicPartition, int] | None = None,
    ) -> Iterator[TranslatedPartition]:
        """Yields the translations of each partition. ``rename`` returns the name that a topic has in the target.
        ``earliest`` is the smallest offset in the target that will be compared, by the partition of the source.

        First reads the ends of the copies, then those of the originals, so that the original of each copy that is read
        is read too. Errors of one partition, such as a missing right to read, are in its result. Raises `Unreachable`,
        `TimedOut` if a cluster never responded.
        """
        targets = {tp: TopicPartition(rename(tp.topic), tp.partition) for tp in positions}
        topics = {tp.topic: targets[tp].topic for tp in positions}
        ids = self.topic_ids(topics)
        refused = self._refused(topics)
        in_copy = self.source.log_ranges(positions) if self._rules.back else None
        in_target = self._target.log_ranges(targets.values())
        in_source = in_copy or self.source.log_ranges(positions)
        for tp, wanted in positions.items():
            ranges = in_source[tp], in_target[targets[tp]]
            try:
                if tp.topic in refused:
                    raise refused[tp.topic]
                logs = self._log(self.source, tp, ranges[0]), self._log(self._target, targets[tp], ranges[1])
                start, end = logs[1].range
                translated = self._partition(logs, wanted, max((earliest or {}).get(tp, end), start), ids)
            except OffsetMgrError as error:
                translated = TranslatedPartition(tp, targets[tp], {}, error)
            yield translated

    def _log(self, logs: Logs, tp: TopicPartition, range_: LogRange | OffsetMgrError) -> _Log:
        if isinstance(range_, OffsetMgrError):
            raise range_
        return _Log(logs, tp, range_, self._rules.throttle, self._on_read)

    def _partition(self, logs: _Pair, wanted: Collection[int], earliest: int, ids: _Ids) -> TranslatedPartition:
        """Raises the error of the partition."""
        source, target = logs
        alignment, note, enough = None, "", 0
        found: Mapping[int, Translation]
        _allow(logs, self._rules)
        lacking: int | None = source.range.end - target.range.end
        if digest := _equal_logs(logs, wanted):
            why = "both logs have equal batches at equal offsets"
            found = {position: Translation(Verdict.SEEN, position, why=why) for position in wanted}
        else:
            inside = [one for one in wanted if source.range.start <= one <= source.range.end]
            try:
                reading = self._read(logs, wanted, earliest)
            except TooMuch as error:
                error.enough = _enough(logs, inside)
                raise
            alignment, note = reading.alignment, reading.equality.text
            digest = blake2b(digest_size=_DIGEST_BYTES)
            lacking = alignment.lacking(min(inside, default=source.range.end))
            for stretch in (alignment.a, alignment.b):
                digest.update(stretch.offsets)
                digest.update(b"".join(stretch.prints))
            found = {one: reading.translate(one) for one in wanted}
            if self._rules.lost:
                end = Translation(Verdict.SEEN, alignment.b.end)
                found |= {at: end for at, one in found.items() if one.verdict is Verdict.NOT_YET and one.waits}
            enough = _enough(logs, inside) if reading.stopped else 0
            if inside and (alignment.first_copied is None or any(one.missing for one in found.values())):
                self._refuse_other_partitions(logs)
        now = self.topic_ids({source.tp.topic: target.tp.topic})
        for log, before, after in zip(logs, ids[source.tp.topic], now[source.tp.topic], strict=True):
            if before != after:
                raise RecreatedTopic(str(log.tp), "the topic was deleted or recreated meanwhile")
        shown = None if self._rules.back else alignment
        return TranslatedPartition(
            source.tp, target.tp, found, None, note, shown, target.range, lacking, digest.hexdigest(), enough
        )

    def _read(self, logs: _Pair, wanted: Collection[int], earliest: int) -> _AlignedLogs:
        """Reads both logs with the strictest comparison for which some share of the records is equal, or else with the
        strictest one."""
        first = None
        for equality in Equality:
            reading = _AlignedLogs(logs, self._rules, equality)
            reading.align(wanted, earliest)
            first = first or reading
            alignment = reading.alignment
            possible = min(len(alignment.a.prints), len(alignment.b.prints))
            if alignment.copies * _EQUAL_SHARE >= possible:
                return first if not possible else reading
        return first or reading

    def _refuse_other_partitions(self, logs: _Pair) -> None:
        """Raises `UnsupportedOperation` if records of the source's partition lie in other partitions of the target."""
        source, target = logs
        count = self._target.topics([target.tp.topic]).get(target.tp.topic, 0)
        others = [tp for number in range(count) if (tp := TopicPartition(target.tp.topic, number)) != target.tp]
        self._ends = {key: end for key, end in self._ends.items() if key[0].topic == target.tp.topic}
        for equality in Equality if others else ():
            try:
                records = _end_of(source, equality)
            except TooMuch:
                return
            left = records - self._end_in_target(target.tp, equality)
            found = {tp: left & self._end_in_target(tp, equality) for tp in others}
            if len(frozenset().union(*found.values())) * _EQUAL_SHARE >= max(len(records), 2 * _EQUAL_SHARE):
                names = ", ".join(str(tp) for tp, equal in found.items() if equal)
                why = f"its records lie in {names} of the target: the copier chose partitions by another rule"
                raise UnsupportedOperation(str(source.tp), why)

    def _end_in_target(self, tp: TopicPartition, equality: Equality) -> frozenset[bytes]:
        if (end := self._ends.get((tp, equality))) is None:
            try:
                end = _end_of(self._log(self._target, tp, self._target.log_ranges([tp])[tp]), equality)
            except OffsetMgrError:  # it tells nothing about the partition in question
                end = frozenset()
            self._ends[tp, equality] = end
        return end

    def topic_ids(self, topics: Mapping[str, str]) -> _Ids:
        """Returns, for each topic of the source, its id and that of its name in the target; None if unknown."""
        here, there = (self.source.topic_ids(topics), self._target.topic_ids(topics.values())) if topics else ({}, {})
        return {topic: (here.get(topic), there.get(name)) for topic, name in topics.items()}

    def _refused(self, topics: Mapping[str, str]) -> dict[str, OffsetMgrError]:
        """Returns an error for each of the source's topics whose partitions cannot correspond to the target's."""
        in_source, errors = describable_topics(self.source, topics)
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


class TranslatedOffset(NamedTuple):
    """The offset in ``target`` for a position in the source. ``problem`` is the reason why it must not be written, and
    empty if it may be. ``how`` says in words how the answer is known."""

    target: TopicPartition
    answer: Translation
    problem: str
    how: str


class Translations:
    """The translations that a command has made. Each position of a partition is translated once, so that groups which
    share a position share the work.

    ``started`` is called with the positions that are translated next, and ``progress`` wraps the iteration over their
    partitions. Call `load` with positions that were just read, then `get` for each of them. ``command`` precedes the
    options in texts if another command has them, such as "migrate plan with ".
    """

    def __init__(
        self,
        translator: PositionTranslator,
        rules: TranslationRules,
        started: Callable[[Mapping[TopicPartition, Collection[int]]], None] = lambda _: None,
        progress: Callable[[Iterable[TranslatedPartition], int], Iterable[TranslatedPartition]] = lambda found, _: (
            found
        ),
        command: str = "",
    ) -> None:
        self.rules, self.rename = rules, TopicRenames(rules.topics)
        self._command = command
        self.partitions: dict[TopicPartition, TranslatedPartition] = {}
        """The translations of each partition of the source, without alignments."""
        self._translator, self._started, self._progress = translator, started, progress
        self.topic_ids: dict[str, tuple[str | None, str | None]] = {}
        """The ids of the source's topics, and of their copies, before the logs were first read."""
        self._differences: dict[tuple[TopicPartition, int, int], tuple[int, int] | None] = {}
        self._copies: dict[str, str] = {}
        """The topic of the target by the topic of the source."""
        self._sources: dict[str, str] = {}
        """The topic of the source by the topic of the target."""

    def target(self, tp: TopicPartition) -> TopicPartition:
        """Returns the copy of a partition of the source. Raises `UsageError` if two topics have one name in the
        target."""
        if (copy := self._copies.get(tp.topic)) is None:
            copy = self.rename(tp.topic)
            if (other := self._sources.setdefault(copy, tp.topic)) != tp.topic:
                names = " and ".join(sorted((other, tp.topic)))
                raise UsageError(f"topics {names}", f"both are topic {copy} in the target", "select one of them")
            self._copies[tp.topic] = copy
        return TopicPartition(copy, tp.partition)

    def source(self, tp: TopicPartition) -> TopicPartition | None:
        """Returns the partition of the source whose copy a partition of the target is; None if it is no copy."""
        name = self._old_names.get(tp.topic) if self.rename else tp.topic
        return None if name is None else TopicPartition(name, tp.partition)

    @cached_property
    def _old_names(self) -> dict[str, str]:
        return self.rename.inverse(self._translator.source.topics())

    def require_matches(self, topics: Collection[str]) -> None:
        """Raises `UsageError` if a rule of the names matches no topic. ``topics`` are those of the positions."""
        if self.rename:
            self.rename.require_matches({*self._translator.source.topics(), *topics}, topics)

    def translate(
        self, positions: Mapping[TopicPartition, Collection[int]], earliest: Mapping[TopicPartition, int]
    ) -> Iterable[TranslatedPartition]:
        """Does what `PositionTranslator.translate` does, and keeps nothing, for a command that needs each partition
        once."""
        self._started(positions)
        return self._progress(self._translator.translate(positions, self.rename, earliest), len(positions))

    def load(
        self,
        positions: Iterable[tuple[TopicPartition, int]] = (),
        committed: Iterable[tuple[TopicPartition, int, int]] = (),
    ) -> None:
        """Translates the positions that are not translated yet. ``committed`` are positions with an offset in the
        target, which `difference` compares. Raises the errors of `PositionTranslator.translate`."""
        new: dict[TopicPartition, set[int]] = {}
        compared: dict[TopicPartition, set[tuple[int, int]]] = {}
        for tp, position in positions:
            known = self.partitions.get(tp)
            if known is None or (known.error is None and position not in known.translations):
                new.setdefault(tp, set()).add(position)
        for tp, position, offset in committed:
            known = self.partitions.get(tp)
            if (known is None or known.error is None) and (tp, position, offset) not in self._differences:
                new.setdefault(tp, set()).add(position)
                compared.setdefault(tp, set()).add((position, offset))
        if not new:
            return
        ids = self._translator.topic_ids({tp.topic: self.rename(tp.topic) for tp in new})
        self.topic_ids = {**ids, **self.topic_ids}
        earliest = {tp: min(offset for _, offset in pairs) for tp, pairs in compared.items()}
        for one in self.translate(new, earliest):
            for position, offset in compared.get(one.source, ()):
                self._differences[one.source, position, offset] = one.difference(position, offset)
            found, digest, lacking = one.translations, one.digest, one.lacking
            if known := self.partitions.get(one.source):
                found = {**known.translations, **found}
                # The first position has the larger number
                lacking = None if lacking is None or known.lacking is None else max(lacking, known.lacking)
                digest = blake2b((known.digest + digest).encode(), digest_size=_DIGEST_BYTES).hexdigest()
            known = one._replace(translations=found, lacking=lacking, digest=digest, alignment=None)
            self.partitions[one.source] = known

    def get(self, tp: TopicPartition, position: int) -> TranslatedOffset | OffsetMgrError:
        """Returns the answer for a loaded position, or the error of its partition."""
        found = self.partitions[tp]
        if found.error is not None:
            return found.error
        answer = found.translations[position]
        how = "; ".join(filter(None, (_how(answer), answer.why, found.note)))
        problem = ""
        if answer.offset is None:
            problem = how
        elif answer.verdict not in (Verdict.SEEN, *self.rules.accepts):
            problem = Advice(f"{{}}; {self._command}{{accept}} {{}} writes it", how, answer.verdict)
        if problem and found.enough and (answer.earlier_a or answer.earlier_b):
            problem = Advice("{}; {}", problem, enough_text(found.enough, self._command))
        return TranslatedOffset(found.target, answer, problem, how)

    def difference(self, tp: TopicPartition, position: int, committed: int) -> tuple[int, int] | None:
        """Returns the numbers of records that a group repeats and skips if it resumes at ``committed`` in the target
        instead of a position in the source; None if they are not known, or were not loaded."""
        return self._differences.get((tp, position, committed))

    def keep(self, positions: Iterable[tuple[TopicPartition, int]]) -> None:
        """Removes the translations that longer logs may change: all but the answers for ``positions`` that may be
        written, and of topics that were not recreated."""
        kept: dict[TopicPartition, dict[int, Translation]] = {}
        ids = self._translator.topic_ids({tp.topic: one.target.topic for tp, one in self.partitions.items()})
        for tp, position in positions:
            known = self.partitions.get(tp)
            if known is None or position not in known.translations or ids[tp.topic] != self.topic_ids.get(tp.topic):
                continue
            if isinstance(found := self.get(tp, position), TranslatedOffset) and not found.problem:
                kept.setdefault(tp, {})[position] = found.answer
        self.partitions = {tp: self.partitions[tp]._replace(translations=found) for tp, found in kept.items()}
        self.topic_ids = {tp.topic: self.topic_ids[tp.topic] for tp in kept}
        self._differences.clear()

    def clear(self) -> None:
        """Removes all translations, because the logs have changed."""
        self.partitions.clear()
        self.topic_ids.clear()
        self._differences.clear()


def _how(answer: Translation) -> str:
    if answer.upper is None or answer.upper == answer.offset:
        return str(answer.verdict)
    bounds = f"{answer.verdict} [{answer.offset}, {answer.upper}]"
    return f"{bounds}: repeats up to {count_of(answer.repeats, 'record')} at {answer.offset}"


class _Log:
    """The log of a partition, with the range that it had at first."""

    def __init__(
        self, logs: Logs, tp: TopicPartition, range_: LogRange, throttle: int | None, on_read: Callable[[int], None]
    ) -> None:
        self.tp, self.range = tp, range_
        self.left = 0
        """The number of bytes that may still be read."""
        self.bytes_per_record: float | None = None
        """An estimate, from the whole batches of the last read."""
        self.batch_bytes = 0
        """The size of the largest batch that is larger than what a read asked for."""
        self._logs, self._throttle, self._on_read = logs, throttle, on_read
        self._fetch_bytes = min(_FETCH_BYTES, throttle or _FETCH_BYTES)

    def read(self, first: int, rules: FingerprintRules, stop: int | None = None) -> Piece:
        """Reads the log from an offset, or from its start, up to ``stop`` or its end. Raises `OffsetMgrError`."""
        first = max(first, self.range.start)
        end = self.range.end if stop is None else min(stop, self.range.end)
        piece = Piece(self.range, first, max(first, end), rules)
        while piece.next_offset < piece.stop:
            before, records = piece.next_offset, len(piece.stretch.prints)
            expected = int((piece.stop - before) * (self.bytes_per_record or 1024) * 1.2)
            least = min(_MIN_FETCH_BYTES, self._fetch_bytes)
            data = self.bytes_at(before, max(min(expected, self._fetch_bytes, self.left), least))
            piece.add(data)
            if piece.next_offset == before:
                if data:
                    raise CorruptData(f"log of {self.tp}", f"the broker returns no records from offset {before} on")
                piece.skip_to_stop()
            added = len(piece.stretch.prints) - records
            self.left -= max(added * _RECORD_BYTES - len(data), 0)
            self.bytes_per_record = piece.bytes_per_record or self.bytes_per_record
        return piece

    def bytes_at(self, offset: int, max_bytes: int = 1) -> bytes:
        """Returns the log from an offset on, with at least one complete batch if there is one. Raises `TooMuch` after
        the bytes that may be read, and the error of the read."""
        if self.left < 0:
            raise TooMuch(f"log of {self.tp}", "more bytes lie between the position and its end than may be read")
        data = self._logs.read_log(self.tp, offset, max_bytes)
        if isinstance(data, OffsetMgrError):
            raise data
        if len(data) > max_bytes:
            self.batch_bytes = max(self.batch_bytes, len(data))
        self.left -= len(data)
        self._on_read(len(data))
        if self._throttle:
            time.sleep(len(data) / self._throttle)
        return data

    def timestamp_at(self, offset: int) -> int | None:
        """Returns the time stamp of the first record from an offset on."""
        read = (record.timestamp for batch in batches(self.bytes_at(offset), offset) for record in batch.records)
        return next(read, None)

    def offset_at_time(self, timestamp: int) -> int | None:
        """Returns the offset of the first record with this time stamp or a later one."""
        found = self._logs.offsets_for_time([self.tp], timestamp)[self.tp]
        return found if isinstance(found, int) else None

    def checksums(self, first: int, max_bytes: int = 1) -> list[tuple[int, int, int]]:
        """Returns the first and last offsets and the checksums of the batches from the one that contains an offset on.
        A message of an older format has no checksum that tells, so the list ends before it."""
        data = self.bytes_at(first, max_bytes)
        found = list(takewhile(lambda batch: batch.magic == 2, raw_batches(data)))
        if found and found[0].record_count > 0:
            self.bytes_per_record = (found[0].end - found[0].start) / found[0].record_count
        crcs = (BATCH_HEADER.unpack_from(data, one.start + LOG_OVERHEAD)[2] for one in found)
        return [(one.base_offset, one.last_offset, crc) for one, crc in zip(found, crcs, strict=True)]


def _end_of(log: _Log, equality: Equality) -> frozenset[bytes]:
    """Returns the fingerprints of the last records of a log."""
    log.left = _OTHERS_SAMPLE_BYTES
    rules = FingerprintRules(equality, timestamps=False)
    return frozenset(log.read(log.range.end - _OTHERS_SAMPLE, rules).stretch.prints)


_Pair: TypeAlias = tuple[_Log, _Log]
_Ids: TypeAlias = Mapping[str, tuple[str | None, str | None]]


def _allow(logs: _Pair, rules: TranslationRules) -> None:
    """Allows three quarters of the bytes that may be read; the rest is for samples."""
    for log in logs:
        log.left = rules.read_limit * 3 // 8


def _enough(logs: _Pair, inside: Collection[int]) -> int:
    """Returns the number of bytes that would be enough to read to these positions, in whole megabytes. Each read
    doubles what was read, so up to twice as much is read, and begins with a whole batch; samples need the last
    quarter."""
    source, target = (log.range for log in logs)
    distance = 4 * (source.end - min(inside, default=source.end) + _MARGIN)
    records = min(source.end - source.start, distance), target.end - target.start
    sizes = (max(log.bytes_per_record or 1024, _RECORD_BYTES) for log in logs)
    read = (count * record for count, record in zip(records, sizes, strict=True))
    size = max(read) + _BATCHES * max(log.batch_bytes for log in logs)
    return (int(size * 8 / 3 * 1.2) // _MEGABYTE + 1) * _MEGABYTE


def _equal_logs(logs: _Pair, wanted: Collection[int]) -> blake2b | None:
    """Returns a hash of the checksums if both logs have equal batches at equal offsets, as the logs of linked clusters
    have: at the end of the target, around each position, and between as far as may be read; otherwise None."""
    source, target = logs
    start, end = max(source.range.start, target.range.start), target.range.end
    if end > source.range.end or end <= start or not all(start <= position <= end for position in wanted):
        return None
    found, around, first = set[tuple[int, int, int]](), False, end
    places = sorted({end - 1, *(place for one in wanted for place in (one - 1, one) if start <= place < end)})
    try:
        for place in reversed(places):
            if place >= first:  # in the batch that was read last
                continue
            checksums = target.checksums(place)[:1]
            if not checksums or checksums != source.checksums(place)[:1]:
                return None
            found.update(checksums)
            first = checksums[0][0]
        at, around = places[0], True
        while at < end:
            pairs = list(zip(source.checksums(at, _FETCH_BYTES), target.checksums(at, _FETCH_BYTES), strict=False))
            if any(one != other for one, other in pairs):
                return None
            found.update(one for one, _ in pairs)
            if (following := pairs[-1][0][1] + 1 if pairs else at) <= at:
                break
            at = following
    except TooMuch:
        if not around:
            return None
    return blake2b(repr(sorted(found)).encode(), digest_size=_DIGEST_BYTES)


class _AlignedLogs:
    """The reads of both logs of a partition with one comparison."""

    def __init__(self, logs: _Pair, rules: TranslationRules, equality: Equality) -> None:
        self._logs, self._rules, self.equality = logs, rules, equality
        self._original, self._copy = reversed(logs) if rules.back else logs
        self.alignment: Alignment
        self._timestamps: bool | None = None
        self.stopped = False
        """Whether no more may be read."""
        self._samples_left: int | None = None
        if equality is not Equality.ALL:
            _allow(logs, rules)

    # --- reading to the positions -------------------------------------------------------------------

    def align(self, wanted: Collection[int], earliest: int) -> None:
        """Reads the logs back to the positions, the target to ``earliest`` too, and further if the answers need it. The
        end is where no more may be read."""
        source, target = self._logs
        inside = [one for one in wanted if source.range.start <= one <= source.range.end]
        needed = source.range.end - min(inside, default=source.range.end) + _MARGIN
        distance = min(needed, _FIRST_OFFSETS, self._first_distance())
        original, copy = self._original, self._copy
        b = copy.read(copy.range.end - distance, self._fingerprints)
        self._timestamps = b.timestamps if self._timestamps is None else self._timestamps
        pieces = {original: original.read(original.range.end - distance, self._fingerprints), copy: b}
        try:
            while distance < needed and not pieces[copy].mixed_times:
                self._read_earlier(pieces, self._logs)
                distance *= 2
            while not pieces[copy].mixed_times:
                self.alignment = self._aligned(pieces)
                needs = zip((original, copy), self.alignment.needs_earlier(inside), strict=True)
                further = {log for log, need in needs if need} or self._may_hold_following()
                further |= {target} if earliest < pieces[target].stretch.first else set()
                if all(pieces[log].stretch.whole for log in further):
                    return
                self._read_earlier(pieces, further)
        except TooMuch:
            self.stopped = True
            self.alignment = self._aligned(pieces)
            self.alignment.is_cut = True
            self._original.left = 0  # enough for one more record
            self.alignment.may_be_copied_again |= bool(self._may_hold_following())
            return
        self._timestamps = False
        _allow(self._logs, self._rules)
        self.align(wanted, earliest)

    def _first_distance(self) -> int:
        """Returns the number of offsets that may be read at once, by the size of the last batches."""
        for log in self._logs:
            if log.bytes_per_record is None and log.range.end > log.range.start:
                log.checksums(log.range.end - 1)
        sizes = ((log.left, max(log.bytes_per_record or 1024, _RECORD_BYTES)) for log in self._logs)
        return max(min(int(left / (2 * size)) for left, size in sizes), 1)

    @property
    def _fingerprints(self) -> FingerprintRules:
        return FingerprintRules(self.equality, self._timestamps, (*COPIERS_HEADERS, *self._rules.ignored_headers))

    def _aligned(self, pieces: Mapping[_Log, Piece]) -> Alignment:
        made = InverseAlignment if self._rules.back else Alignment
        return made(pieces[self._original].stretch, pieces[self._copy].committed())

    def _read_earlier(self, pieces: dict[_Log, Piece], logs: Iterable[_Log]) -> None:
        """Reads as much again before what was read of these logs. Raises `TooMuch`."""
        for log in logs:
            first = pieces[log].stretch.first
            earlier = log.read(first - (log.range.end - first), self._fingerprints, stop=first)
            earlier.extend(pieces[log])
            pieces[log] = earlier

    def _may_hold_following(self) -> set[_Log]:
        """Returns the copy if an earlier part of it may hold copies of records that its end does not hold."""
        if self.alignment.following is None:
            return set()
        timestamp = self._original.timestamp_at(self.alignment.following)
        first = None if timestamp is None else self._copy.offset_at_time(timestamp)
        return {self._copy} if first is not None and first < self.alignment.b.first else set()

    # --- one position -------------------------------------------------------------------------------

    def translate(self, position: int) -> Translation:
        """Returns the answer. If not enough of the logs may be read, it is inferred, or unknown."""
        answer = self.alignment.translate(position)
        if answer.verdict is Verdict.NOT_YET:
            return answer._replace(earlier_b=self.stopped and not answer.waits)
        if not self.stopped or not (answer.earlier_a or answer.earlier_b):
            return answer
        return self._inferred(position) or answer._replace(why=f"{answer.why}; more bytes than may be read")

    @cached_property
    def _last_copy(self) -> tuple[int, int] | None:
        """The offsets in the source and in the target of the copy's last record; None unless exactly one record of the
        original that was read equals it."""
        a, b = self.alignment.a, self.alignment.b
        equal = [index for index, one in enumerate(a.prints) if one == b.prints[-1]] if b.prints else []
        if len(equal) != 1:
            return None
        last = a.offsets[equal[0]], b.offsets[-1]
        return last[::-1] if self._rules.back else last

    def _inferred(self, position: int) -> Translation | None:
        """Compares the records around a position, and others that lie as far from both, without those between."""
        source, target = self._logs
        if self._last_copy is None or not source.range.start <= position < source.range.end:
            return None
        if self._samples_left is None:
            self._samples_left = self._rules.read_limit // 8
        source.left = target.left = self._samples_left
        shift = self._last_copy[1] - self._last_copy[0]
        try:
            equal = self._fits(position, shift)
        except TooMuch:
            return None
        finally:
            self._samples_left = min(log.left for log in self._logs)
        if not equal:
            return None
        why = "the records around it are equal, and those between were not read"
        return Translation(Verdict.INFERRED, position + shift, why=why, earlier_a=True)

    def _fits(self, position: int, shift: int) -> bool:
        """Returns whether the records around a position, and around another one halfway to the start of the logs, are
        equal to those at the offsets in the target that are larger by ``shift``."""
        source, target = self._logs
        start = max(source.range.start, target.range.start - shift)
        for place in (position, (start + position) // 2):
            a, b = self._around(source, place), self._around(target, place + shift)
            index, at = a.index_of(place), b.index_of(place + shift)
            if b.offset_at(at) - a.offset_at(index) != shift:
                return False
            for ours, theirs in ((a.prints[:index], b.prints[:at]), (a.prints[index:][::-1], b.prints[at:][::-1])):
                sides = ours[-_NEIGHBOURS:], theirs[-_NEIGHBOURS:]
                if len(sides[0]) < _NEIGHBOURS or sides[0] != sides[1]:
                    return False
        return True

    def _around(self, log: _Log, place: int) -> LogStretch:
        return log.read(place - 2 * _NEIGHBOURS, self._fingerprints, stop=place + 2 * _NEIGHBOURS).stretch
