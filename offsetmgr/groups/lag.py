"""The lag of groups: the number of records between each committed offset and the end of its log.

Log ends are read in bulk after the commits, so that the lag of an active group is never negative.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from operator import attrgetter, lt, sub
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from offsetmgr.core import title_of
from offsetmgr.core.batches import batched, batched_by_size
from offsetmgr.core.errors import ErrorCode, OffsetMgrError, UnknownTopicOrPartition
from offsetmgr.core.log_origin import LogRangeCache
from offsetmgr.core.model import (
    ABSENT,
    INTERNAL_TOPICS,
    BrokerPartition,
    Committed,
    GroupDescription,
    LogRange,
    Offset,
    TopicPartition,
)
from offsetmgr.core.offset_store import GroupOffsets, OffsetStore, OtherGroupKind, PlainOffsets
from offsetmgr.core.plurals import count_of
from offsetmgr.core.selection import ALL_TOPICS, TopicSelection
from offsetmgr.groups.last_writes import VIEW_LIMIT_S, GroupPair, LastWriter, LastWrites
from offsetmgr.groups.scan import not_known, scan_in_order, without_impossible

if TYPE_CHECKING:
    from offsetmgr.kafka.client.share_groups import ShareOffsets
    from offsetmgr.kafka.cluster import KafkaCluster

BATCH: Final = 100_000
"""The number of offsets whose log ranges are requested together. The limit bounds memory. Most clusters have fewer
committed offsets than the limit."""

UNREAD_BATCH: Final = 1_000
"""The number of offsets that are returned together if no log ranges are requested."""

STALE: Final = "older than "
"""The beginning of a row's note if another store was written after the store."""

UNCLEAR: Final = "maybe older than "
"""The beginning of a row's note if another store holds another offset, and nothing shows which was written last."""

ELSEWHERE: Final = "only in "
"""The beginning of a row's note if only another store has an offset."""

NOTHING: Final = "nothing committed"
"""The note of a partition without a commit."""


BELOW_START: Final = "below the log's start"
"""The note of an offset whose records were deleted before the group consumed them. The lag does not count them."""
START_OFFSET: Final = "start offset of a share group"
"""The note of a share group's partition. All records before the offset are acknowledged."""
NO_START: Final = "no start offset of the share group yet"
"""The note of a share group's partition whose start offset ``share.auto.offset.reset`` will decide."""
_HARMLESS: Final = (START_OFFSET, *INTERNAL_TOPICS)
"""The notes of rows that need no attention."""
UNREAD: Final = ("pending", "unreadable")
"""The states, and the notes, of partitions whose offset could not be read. The first means that an open transaction
will commit or abort an offset."""


def state_of(error: OffsetMgrError) -> str:
    """Returns the element of `UNREAD` for the error of a partition."""
    return UNREAD[error.code is not ErrorCode.UNSTABLE_OFFSET_COMMIT]


class LagRow(NamedTuple):
    """One partition of one group. None means unknown.

    ``lag`` is the number of records from the committed offset to the log's end. If the log's start is larger than the
    committed offset, the records are counted from the log's start. The lag is unknown if the committed offset is beyond
    the log's end, for example because the topic was recreated. In this case ``note`` says that the offset is beyond the
    log's end. ``error`` is the reason why the partition could not be read. ``newer`` has `STALE`, `UNCLEAR` or
    `ELSEWHERE` and the title of the other store, if the note begins with this.
    """

    group: str
    partition: TopicPartition
    committed: Offset
    log_start: int | None
    log_end: int | None
    lag: int | None
    note: str = ""
    error: OffsetMgrError | None = None
    newer: tuple[str, str] | None = None

    @property
    def state(self) -> str:
        """``committed``, ``start`` for the start offset of a share group, ``absent``, or an element of `UNREAD`."""
        if isinstance(self.committed, Committed):
            return "start" if self.note == START_OFFSET else "committed"
        return self.note if self.note in UNREAD else "absent"


PARTITION: Final = attrgetter("partition")
"""The sort key of rows."""


class PlainRows(Sequence[LagRow]):
    """The rows of a group whose offsets all lie in their logs, so no row has a note or an error. ``lags`` has their
    lags. The rows are built when one of them is read, because sums need the lags alone."""

    def __init__(self, group: str, offsets: PlainOffsets, logs: Sequence[Sequence[int]], lags: Sequence[int]) -> None:
        self.lags, self.partitions, self._columns = lags, offsets.partitions, (*logs, lags)
        self._group, self._offsets = group, offsets

    @classmethod
    def of(cls, read: GroupOffsets, logs: LogRangeCache) -> PlainRows | None:
        """Returns the rows of a group; None if its offsets are not plain, if a row needs a note or an error, or if
        ``logs`` lacks a partition."""
        if not isinstance(offsets := read.offsets, PlainOffsets) or read.errors or read.error:
            return None
        if not (ranges := logs.columns(offsets.partitions)):
            return None
        starts, ends = ranges
        lags = [*map(sub, ends, offsets.numbers)]
        return None if min(lags) < 0 or any(map(lt, offsets.numbers, starts)) else cls(read.name, offsets, ranges, lags)

    @cached_property
    def _rows(self) -> list[LagRow]:
        new, name = tuple.__new__, self._group  # skips the argument handling of named tuples
        return [
            new(LagRow, (name, tp, at, start, end, lag, "", None, None))
            for (tp, at), start, end, lag in zip(self._offsets.items(), *self._columns, strict=True)
        ]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._rows == [*other]

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._rows)

    def __len__(self) -> int:
        return len(self.lags)

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]

    def __iter__(self) -> Iterator[LagRow]:
        return iter(self._rows)


class NewerOffset(NamedTuple):
    """The offset of a partition in another configured store, or the error of its read. ``sure`` tells whether the other
    store is known to have been written last."""

    title: str
    found: Committed | OffsetMgrError
    sure: bool = True


class GroupLag(NamedTuple):
    """The rows of one group, sorted by partition; ``error`` is set if the whole group could not be read. ``read`` is
    what the store returned."""

    name: str
    rows: Sequence[LagRow]
    error: OffsetMgrError | None = None
    read: GroupOffsets | None = None

    @property
    def lags(self) -> Sequence[int | None]:
        """The lag of each row."""
        return self.rows.lags if isinstance(self.rows, PlainRows) else [row.lag for row in self.rows]

    @property
    def notable(self) -> Sequence[LagRow]:
        """The rows that may have a note or an error."""
        return () if isinstance(self.rows, PlainRows) else self.rows

    @property
    def total(self) -> int | None:
        """The lag of all partitions in records; None if the group could not be read, if one lag is unknown, or if
        nothing is committed. A partition without a commit has a row, and so an unknown lag, only if its topic is named.
        Of such a group, ``--totals`` of the command line shows the sum of the known lags, and the number of the others.

        >>> row = LagRow("g", TopicPartition("t", 0), None, None, None, 5)
        >>> GroupLag("g", [row, row]).total, GroupLag("g", [row, row._replace(lag=None)]).total
        (10, None)
        >>> GroupLag("g", []).total is None
        True
        """
        known = [lag for lag in self.lags if lag is not None]
        return sum(known) if known and len(known) == len(self.rows) and self.failure is None else None

    @property
    def failure(self) -> OffsetMgrError | None:
        """The reason why offsets of the group are missing: ``error``, that of offsets that offsetmgr does not
        understand, or the first error of a row."""
        hidden = None if self.read is None else self.read.hidden
        return self.error or hidden or next((row.error for row in self.notable if row.error is not None), None)

    @property
    def largest(self) -> int | None:
        """The largest lag of a partition, in records; None if `total` is None."""
        return None if self.total is None else max(lag for lag in self.lags if lag is not None)


def newer_texts(found: Counter[tuple[str, str]], here: str, title: str) -> Iterator[str]:
    """Yields warnings about offsets of the store ``here`` that are older than those of ``title``. ``found`` counts rows
    by `LagRow.newer`."""
    if number := found[STALE, title]:
        verb = "is" if number == 1 else "are"
        why = f"{verb} older than the group's in {title}; the lag is computed from those in {title}"
        yield f"{count_of(number, 'offset')} in {here} {why}"
    if number := found[UNCLEAR, title]:
        verb = "differs" if number == 1 else "differ"
        why = f"{verb} from the group's in {title}, and nothing shows which is newer; the lag is unknown"
        yield f"{count_of(number, 'offset')} in {here} {why}"
    if number := found[ELSEWHERE, title]:
        verb, them = ("is", "it") if number == 1 else ("are", "them")
        yield f"{count_of(number, 'offset')} {verb} only in {title}, not in {here}; the lag is computed from {them}"


def needs_log_range(row: LagRow) -> bool:
    """Returns whether a row has a lag, an unknown lag, or a note. Such a row needs attention."""
    return row.lag is None or row.lag > 0 or (bool(row.note) and row.note not in _HARMLESS)


def lag_of(committed: int, log: LogRange) -> int | None:
    """Returns the number of records between ``committed`` and the log's end; None if ``committed`` is beyond the
    end."""
    return log.end - max(committed, log.start) if committed <= log.end else None


def lag(
    store: OffsetStore,
    cluster: KafkaCluster | None,
    groups: Iterable[str],
    topics: TopicSelection = ALL_TOPICS,
    *,
    strict: bool = False,
    partitions: Mapping[str, Collection[TopicPartition]] = MappingProxyType({}),
    others: Sequence[OffsetStore] = (),
    writes: Callable[..., LastWrites] = LastWrites,
) -> Iterator[GroupLag]:
    """Yields the lag of each group, in the order of ``groups``. Without a ``cluster``, the lag and the log ranges are
    unknown.

    ``others`` are the other configured stores of the same cluster. If one of them was written after ``store`` for a
    partition, the note of the row begins with `STALE`; if only it has an offset, the note begins with `ELSEWHERE`. The
    lag is then counted from the offset in the other store. If the offsets differ and nothing shows which store was
    written last, the note begins with `UNCLEAR`, and the lag is unknown. With ``strict``, the ``error``
    of a group that neither ``store`` nor ``others`` know is `GroupNotFound`. ``partitions`` has, for each group, the
    partitions that are reported even without a commit. ``writes`` makes the `LastWrites` of two stores.

    The function scans the store once and sends one bulk request to the cluster for each `BATCH` offsets.
    """
    logs = None if cluster is None else LogRangeCache(partial(_read_log_ranges, cluster))
    scanned = scan_in_order(store, groups, expected=partitions)
    limit = BATCH if cluster is not None or others else UNREAD_BATCH
    for batch in batched_by_size(scanned, lambda found: 1 + len(found.offsets), limit):
        yield from _lag_of_batch(store, batch, topics, logs, partitions, others, writes, strict=strict)


def _lag_of_batch(
    store: OffsetStore,
    batch: list[GroupOffsets],
    topics: TopicSelection,
    logs: LogRangeCache | None,
    partitions: Mapping[str, Collection[TopicPartition]],
    others: Sequence[OffsetStore],
    writes: Callable[..., LastWrites],
    *,
    strict: bool,
) -> Iterator[GroupLag]:
    """Yields the rows of one batch."""
    all_topics, known = topics.everything, {} if logs is None else logs.known
    elsewhere = _scan_others(others, [found.name for found in batch])

    def plain_rows(found: GroupOffsets) -> PlainRows | None:
        simple = all_topics and not (others or partitions.get(found.name))
        return PlainRows.of(found, logs) if simple and logs is not None else None

    plain = {found.name: plain_rows(found) for found in batch}
    if logs is not None:
        logs.load(
            (tp for found in batch for tp in partitions.get(found.name, ())),
            (
                (tp, committed.offset)
                for found in (*batch, *(one for several in elsewhere.values() for one in several.values()))
                if plain[found.name] is None
                for tp, committed in found.offsets.items()
                if all_topics or topics.matches(tp)
            ),
        )
    writers = _last_writers(store, batch, others, elsewhere, writes)
    for found in batch:
        if (of_plain := plain[found.name] or plain_rows(found)) is not None:
            yield GroupLag(found.name, of_plain, None, found)
            continue
        several = elsewhere[found.name]
        unseen = strict and not any(one.offsets or one.errors or one.error for one in (found, *several.values()))
        if unseen and (missing := not_known([store, *others], [found.name])) is not None:
            yield GroupLag(found.name, [], missing)
            continue
        offsets, name = _with_others(found, several), found.name
        seen = offsets.items() if several else ()
        newer = {tp: _newer_elsewhere(several, tp, at, writers.get((name, tp))) for tp, at in seen}
        rows = _rows(name, offsets, topics, known, newer)
        rows += _unread(name, found.errors, topics)
        rows += [
            uncommitted(found.name, tp, known.get(tp))
            for tp in partitions.get(found.name, ())
            if found.error is None and tp not in offsets and tp not in found.errors
        ]
        rows.sort(key=PARTITION)
        # If another store could not be read, the rows of the group contain the error. If no row contains the error, the
        # `GroupLag` contains it.
        failed = (there.error for there in several.values() if there.error is not None)
        unread = next((error for error in failed if not any(row.error is error for row in rows)), None)
        yield GroupLag(found.name, rows, found.error or unread, found)


def _scan_others(others: Sequence[OffsetStore], names: list[str]) -> Mapping[str, dict[str, GroupOffsets]]:
    """Reads the groups in the other stores, and returns their offsets by the title of the store. A store that cannot
    contain a group of a name has no offset of the group."""
    elsewhere: dict[str, dict[str, GroupOffsets]] = {name: {} for name in names}
    for other in others:
        title = title_of(other.uri)
        for read in map(without_impossible, other.scan(names)):
            unknown = read if read.hidden is None else replace(read, error=read.error or read.hidden)
            elsewhere[read.name][title] = unknown
    return elsewhere


def _read_log_ranges(
    cluster: KafkaCluster, partitions: Collection[TopicPartition]
) -> Mapping[TopicPartition, LogRange | OffsetMgrError]:
    """Reads the log ranges. If a topic does not exist, the result contains the error of the topic for each partition
    of the topic."""
    logs = cluster.log_ranges(partitions)
    unknown = {tp.topic for tp, log in logs.items() if isinstance(log, UnknownTopicOrPartition)}
    if not unknown:
        return logs
    other = cluster.topics(sorted(unknown))
    gone = {
        topic: UnknownTopicOrPartition(f"topic {topic}", "does not exist in this Kafka cluster")
        for topic in unknown.difference(other)
    }
    return {tp: gone.get(tp.topic, log) for tp, log in logs.items()}


_Writers: TypeAlias = Mapping[tuple[str, TopicPartition], Mapping[str, LastWriter]]
"""By group and partition, and by the title of another store that holds another offset: the last writer of the two."""


def _last_writers(
    store: OffsetStore,
    batch: list[GroupOffsets],
    others: Sequence[OffsetStore],
    elsewhere: Mapping[str, Mapping[str, GroupOffsets]],
    writes: Callable[..., LastWrites],
) -> _Writers:
    """Returns the last writers of ``store`` and of each other store."""
    writers: dict[tuple[str, TopicPartition], dict[str, LastWriter]] = {}
    for other in others:
        title = title_of(other.uri)
        pairs = (GroupPair(found, elsewhere[found.name][title]) for found in batch)
        for pair in writes(store, other, limit_s=VIEW_LIMIT_S).find(pairs):
            for tp, writer in pair.writers.items():
                writers.setdefault((pair.source.name, tp), {})[title] = writer
    return writers


def _newer_elsewhere(
    several: Mapping[str, GroupOffsets], tp: TopicPartition, committed: Offset, writers: Mapping[str, LastWriter] | None
) -> NewerOffset | None:
    """Returns the partition's offset in the other store that was or may have been written last; None if there is none.
    If an offset could not be read, returns the error."""
    newest: NewerOffset | None = None
    for title, there in several.items():
        if (error := there.error or there.errors.get(tp)) is not None:
            return NewerOffset(title, error)
        found, writer = there.offsets.get(tp), (writers or {}).get(title)
        if found is None or (isinstance(committed, Committed) and writer is None):
            continue
        if writer is None or writer.store is None or writer.is_offset(found.offset):
            newest = NewerOffset(title, found, writer is None or writer.store is not None) if newest is None else newest
    return newest


def _with_others(found: GroupOffsets, several: Mapping[str, GroupOffsets]) -> Mapping[TopicPartition, Offset]:
    """Returns the offsets of a group, and `ABSENT` for each partition that only another store has."""
    if not several or found.error is not None:
        return found.offsets
    there = (tp for other in several.values() for tp in (*other.offsets, *other.errors) if tp not in found.errors)
    return {**found.offsets, **{tp: ABSENT for tp in there if tp not in found.offsets}}


def _rows(
    group: str,
    offsets: Mapping[TopicPartition, Offset],
    topics: TopicSelection,
    logs: Mapping[TopicPartition, LogRange | OffsetMgrError],
    newer: Mapping[TopicPartition, NewerOffset | None],
) -> list[LagRow]:
    """Returns the rows of the selected partitions. If no other store is configured, the function itself makes the rows
    of offsets in their logs, because a call of `_row` takes three times as long."""
    everything, new = topics.everything, tuple.__new__  # skips the argument handling of named tuples
    return [
        new(LagRow, (group, tp, at, log[0], log[1], log[1] - at[0], "", None, None))
        if not newer
        and isinstance(at, Committed)
        and isinstance(log := logs.get(tp), LogRange)
        and log[0] <= at[0] <= log[1]
        else _row(group, tp, at, logs.get(tp), newer.get(tp))
        for tp, at in offsets.items()
        if everything or topics.matches(tp)
    ]


def _row(
    group: str,
    tp: TopicPartition,
    committed: Offset,
    log: LogRange | OffsetMgrError | None,
    newer: NewerOffset | None,
) -> LagRow:
    if log is None and newer is None and not isinstance(tp.partition, BrokerPartition):
        return LagRow(group, tp, committed, None, None, None)
    notes, kind = [], None
    counted_from: Offset = committed
    if newer is not None and isinstance(newer.found, Committed):
        absent = not isinstance(committed, Committed)
        separator = ": " if absent else "'s "
        kind = ELSEWHERE if absent else STALE if newer.sure else UNCLEAR
        notes.append(f"{kind}{newer.title}{separator}{newer.found.offset}")
        counted_from = newer.found if newer.sure else ABSENT
    elif newer is not None:
        notes.append(f"{newer.title}'s offset unknown")
    behind: int | None = None
    if log is None:
        notes += ["a byte position of Kafka 0.7"] if isinstance(tp.partition, BrokerPartition) else []
    elif isinstance(log, OffsetMgrError):
        notes.append("log unknown")
    elif isinstance(counted_from, Committed):
        if (behind := lag_of(counted_from.offset, log)) is None:
            notes.append("beyond the log's end")
        elif counted_from.offset < log.start:
            notes.append(BELOW_START)
    unread = newer.found if newer is not None and isinstance(newer.found, OffsetMgrError) else None
    error = log if isinstance(log, OffsetMgrError) else unread
    start, end = (log.start, log.end) if isinstance(log, LogRange) else (None, None)
    newer_in = None if kind is None or newer is None else (kind, newer.title)
    return LagRow(group, tp, committed, start, end, behind, "; ".join(notes), error, newer_in)


def uncommitted(group: str, tp: TopicPartition, log: LogRange | OffsetMgrError | None) -> LagRow:
    """Returns the row of a partition without a commit. The lag is unknown, but the log range may be known."""
    return _in_log(group, tp, ABSENT, log, None, NOTHING)


def _in_log(
    group: str, tp: TopicPartition, at: Offset, log: LogRange | OffsetMgrError | None, lag: int | None, note: str
) -> LagRow:
    if isinstance(log, LogRange):
        return LagRow(group, tp, at, log.start, log.end, lag, note)
    return LagRow(group, tp, at, None, None, lag, note, log)


def _unread(group: str, errors: Mapping[TopicPartition, OffsetMgrError], topics: TopicSelection) -> list[LagRow]:
    """Returns the rows of the selected partitions whose offsets could not be read."""
    unread = ((tp, error) for tp, error in errors.items() if topics.matches(tp))
    return [LagRow(group, tp, ABSENT, None, None, None, state_of(error), error) for tp, error in unread]


# Adds what only some kinds of groups have: the start offsets of share groups, and the internal topics of streams
# groups.

_AT_ONCE: Final = 20
"""The number of groups that are kept in memory, so that one request serves them."""


def with_kinds(
    read: Iterable[GroupLag],
    cluster: KafkaCluster | None,
    topics: TopicSelection = ALL_TOPICS,
    expected: Mapping[str, Collection[TopicPartition]] = MappingProxyType({}),
) -> Iterator[GroupLag]:
    """Yields the lag of each group in ``read``. A share group has a row for each partition with its start offset and
    the lag that the broker counts, and a streams group without offsets has no error. The rows of the topics that a
    streams group's topology names as its internal topics have a note. ``expected`` is as the ``partitions`` of `lag`.
    """
    if cluster is None:
        yield from read
        return
    for batch in batched(read, _AT_ONCE):
        shares = [one.name for one in batch if _other_kind(one) == "share"]
        starts = cluster.share_offsets(shares) if shares else {}
        partitions = {
            name: {*one.offsets, *expected.get(name, ())}.difference(one.errors)
            for name, one in starts.items()
            if not isinstance(one, OffsetMgrError)
        }
        logs = cluster.log_ranges(every) if (every := set().union(*partitions.values())) else {}
        applications = [one.name for one in batch if _may_have_internal_topics(one)]
        described = cluster.describe_groups(applications, every_kind=True) if applications else {}
        for one in batch:
            if one.name in starts:
                yield _of_share_group(one, starts[one.name], partitions.get(one.name, ()), logs, topics)
            elif isinstance(found := described.get(one.name), GroupDescription):
                notes = dict(found.internal_topics)
                yield one._replace(rows=[_marked(row, notes.get(row.partition.topic, "")) for row in one.rows])
            else:
                yield one._replace(error=None) if _other_kind(one) else one


def _other_kind(one: GroupLag) -> str:
    """Returns the type of a group that has no offsets in the store that was read; empty for other groups."""
    error = None if one.read is None else one.read.error
    return error.type if isinstance(error, OtherGroupKind) and error is one.error else ""


def _may_have_internal_topics(one: GroupLag) -> bool:
    """The name of an internal topic begins with that of the group, which is the application id."""
    first = TopicPartition(f"{one.name}-", 0)
    if isinstance(one.rows, PlainRows):
        partitions = one.rows.partitions
        at = bisect_left(partitions, first)
        return at < len(partitions) and partitions[at].topic.startswith(first.topic)
    at = bisect_left(one.rows, first, key=PARTITION)
    return at < len(one.rows) and one.rows[at].partition.topic.startswith(first.topic)


def _marked(row: LagRow, mark: str) -> LagRow:
    return row._replace(note="; ".join(filter(None, (mark, row.note)))) if mark else row


def _of_share_group(
    one: GroupLag,
    starts: ShareOffsets | OffsetMgrError,
    partitions: Iterable[TopicPartition],
    logs: Mapping[TopicPartition, LogRange | OffsetMgrError],
    topics: TopicSelection,
) -> GroupLag:
    if isinstance(starts, OffsetMgrError):
        return one._replace(error=starts)
    rows = _unread(one.name, starts.errors, topics)
    for tp in filter(topics.matches, partitions):
        start, epoch, lag = starts.offsets.get(tp, (None, None, None))
        found, note = (ABSENT, NO_START) if start is None else (Committed(start, leader_epoch=epoch), START_OFFSET)
        note = note if tp in starts.offsets else NOTHING
        rows.append(_in_log(one.name, tp, found, logs[tp], lag, note))
    return one._replace(rows=sorted(rows, key=PARTITION), error=None)
