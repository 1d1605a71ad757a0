"""``offsetmgr offsets``: reads committed offsets, their lag and their records, and compares two stores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from shlex import quote
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from offsetmgr.app.connections import Connections
from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import (
    GroupNotFound,
    OffsetMgrError,
    OffsetOutOfRange,
    TopicNotAuthorized,
    UnknownTopicOrPartition,
    UsageError,
)
from offsetmgr.core.model import Committed, TopicPartition
from offsetmgr.core.plurals import count_of
from offsetmgr.core.selection import ALL_GROUPS, ALL_TOPICS, GroupSelection, TopicSelection, literal_pattern
from offsetmgr.groups.scan import choose_groups, require_kind, require_known, scan_in_order
from offsetmgr.groups.topic_matches import TopicMatches

if TYPE_CHECKING:
    from offsetmgr.consumer.peek import PeekedRecord, RecordPeeker
    from offsetmgr.core.offset_store import GroupOffsets, OffsetStore
    from offsetmgr.groups.diff import OffsetDifference as OffsetDifference
    from offsetmgr.groups.lag import GroupLag as GroupLag
    from offsetmgr.groups.lag import LagRow as LagRow
    from offsetmgr.groups.last_writes import LastWrites
    from offsetmgr.segments.batch_reader import Record as Record

T = TypeVar("T")


class Found(Generic[T]):
    """The result of a bulk read. Iterate over it for the items, in the order of ``groups``, the selected groups.

    ``topics`` are the selected partitions, ``uri`` is the store, and ``others`` are the other stores of its cluster.
    After the last item, ``errors`` has every error that occurred: those of the items, and those that belong to none. If
    the only selected group does not exist, the iteration raises `GroupNotFound`.
    """

    def __init__(
        self,
        connections: Connections,
        store: OffsetStore,
        groups: list[str],
        topics: TopicSelection = ALL_TOPICS,
        others: Iterable[OffsetStore] = (),
    ) -> None:
        self.groups, self.uri, self.errors = groups, store.uri, list[OffsetMgrError]()
        self.topic_matches = TopicMatches(topics)
        self.topics, self.others = topics, tuple(others)
        self._connections, self._store = connections, store
        self._items: Iterable[T] = ()
        self._newer: Counter[tuple[str, str]] = Counter()
        self._newer_group = ""
        self._uncommitted = {p.name for p in topics.patterns if p.partitions is None}.intersection(topics.named())
        self._committed: set[str] = set()

    def of(self, items: Iterable[T]) -> Found[T]:
        """Sets the items, and returns this object."""
        self._items = items
        return self

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def fail(self, error: OffsetMgrError) -> None:
        """Adds an error. Raises it if the only selected group does not exist."""
        if isinstance(error, GroupNotFound):
            error = self._connections.explained(error, selected=len(self.groups))
            if len(self.groups) == 1:
                raise error
        self.errors.append(error)

    def unrecognised(self, read: GroupOffsets | None) -> None:
        """Names data of a group that offsetmgr does not understand: as an error if it may be offsets, else as a
        warning."""
        if read is not None and read.hidden is not None:
            self.errors.append(read.hidden)
        elif read is not None:
            self._connections.warn_of_unrecognised(read.unrecognised)

    def rows(self, rows: Iterable[LagRow]) -> None:
        """Adds the errors of rows, and counts the offsets that are older than those of another store."""
        for row in rows:
            if row.error is not None:
                self.errors.append(row.error)
            if row.newer is not None:
                self._newer[row.newer] += 1
                self._newer_group = row.group

    def committed(self, group: str, partitions: Iterable[TopicPartition], *, named: bool) -> None:
        """Records the committed partitions of a group. A group that was selected by name has an error for each topic of
        the selection in which it has no commit."""
        if not self._uncommitted:
            return
        missing = self.topics.without(partitions)
        for topic in missing if named else ():
            if topic in self._uncommitted:
                self.errors.append(GroupNotFound(f"group {group!r}", f"has no committed offsets in topic {topic}"))
        self._committed.update(set(self.topics.named()).difference(missing))

    def tell(self, shown: int | None) -> None:
        """Tells the user, after the last item, about offsets that are older than those of another store, and about
        topics without a commit. ``shown`` is the number of rows that the user sees; None if the user left out rows."""
        from offsetmgr.groups.lag import ELSEWHERE, STALE, UNCLEAR

        note, here = self._connections.ui.note, _title(self.uri)
        for uri in (other.uri for other in self.others):
            title = _title(uri)
            stale, unclear, absent = (self._newer[kind, title] for kind in (STALE, UNCLEAR, ELSEWHERE))
            if stale:
                offsets = f"{count_of(stale, 'offset')} in {here} {'is' if stale == 1 else 'are'}"
                why = f"older than the group's in {title}; the lag is computed from those in {title}"
                note(f"{offsets} {why}", warning=True)
            if unclear:
                offsets = f"{count_of(unclear, 'offset')} in {here} {'differs' if unclear == 1 else 'differ'}"
                why = f"from the group's in {title}, and nothing shows which is newer; the lag is unknown"
                note(f"{offsets} {why}", warning=True)
            if absent:
                only = f"{count_of(absent, 'offset')} {'is' if absent == 1 else 'are'} only in {title}, not in {here}"
                note(f"{only}; the lag is computed from {'it' if absent == 1 else 'them'}", warning=True)
            if stale or unclear or absent:
                where = self._connections.invocation("groups where", literal_pattern(self._newer_group), window=60)
                shows = "hint: {store} {} shows what {} holds; {} shows where the group commits"
                note(Advice(shows, quote(uri), title, where))
        if self.errors:
            return
        for topic in sorted(self._uncommitted - self._committed):
            note(f"no committed offsets in topic {topic} in {self.uri}")
        if shown == 0 and not self._uncommitted - self._committed:
            note(f"no committed offsets in {self.uri}")

    def tell_empty(self, what: str) -> None:
        """Tells the user that the store has no ``what``. A ZooKeeper without a cluster may be a mistyped chroot."""
        from offsetmgr.stores.cross_cluster_check import names_cluster

        is_zookeeper = what == "groups" and ("zookeeper:" in self.uri or "zookeeper%3A" in self.uri)
        wrong = is_zookeeper and not names_cluster(self._store)
        self._connections.ui.note(f"no {what} in {self.uri}{'; is the chroot right?' if wrong else ''}")

    def strict(self) -> Iterator[T]:
        """Yields the items. At the end, raises `UnknownTopicOrPartition` for a selected topic that matches nothing."""
        yield from self._items
        self.topic_matches.require_all(self.uri)


def last_writes(here: OffsetStore, there: OffsetStore, **options: Any) -> LastWrites:
    """Returns the evidence which of two stores was written last; see `offsetmgr.migration.copied_offsets`."""
    from offsetmgr.migration import copied_offsets  # only a command with two stores needs it

    return copied_offsets.last_writes(here, there, **options)


def _title(uri: str) -> str:
    from offsetmgr.groups.last_writes import TITLES

    return TITLES.get(uri.partition(":")[0], uri)


def get(connections: Connections, selection: GroupSelection, topics: TopicSelection = ALL_TOPICS) -> Found[GroupLag]:
    """Reads committed offsets; the log ranges and the lag of the rows are None. If the settings name two stores, reads
    the one in which all of the groups live.

    A partition that is named by number, and those of a topic that is named exactly, have a row even without a commit.
    """
    store = connections.store_to_read(selection)
    found: Found[GroupLag] = Found(connections, store, choose_groups(store, selection), topics)
    named = selection.named(found.groups)
    expected = _expected(connections, store, topics) if named else []
    numbered = topics.numbered(store.capabilities.partitions)
    also = {name: expected if name in named else numbered for name in found.groups} if expected or numbered else {}
    return found.of(_lag(connections, found, store, selection, also))


def lag(
    connections: Connections,
    selection: GroupSelection,
    topics: TopicSelection = ALL_TOPICS,
    *,
    only_with_lag: bool = False,
) -> Found[GroupLag]:
    """Reads committed offsets and log ranges, and counts the lag in records; it is None if it is unknown, for example
    without brokers. ``only_with_lag`` leaves out rows that need no attention.

    A topic that is named exactly has a row for each of its partitions, even for those without a commit. If another
    configured store of the same cluster holds another offset, the row has a ``note``: the lag counts from the offset
    that was written last, and is None if nothing shows which this is.
    """
    store, others = connections.selected(), connections.others()
    found: Found[GroupLag] = Found(connections, store, choose_groups(store, selection, others), topics, others)
    named = selection.named(found.groups)
    also = dict.fromkeys(named, _expected(connections, store, topics) if named else [])
    return found.of(_lag(connections, found, store, selection, also, only_with_lag=only_with_lag, logs=True))


def _lag(
    connections: Connections,
    found: Found[GroupLag],
    store: OffsetStore,
    selection: GroupSelection,
    also: Mapping[str, list[TopicPartition]],
    *,
    only_with_lag: bool = False,
    logs: bool = False,
) -> Iterator[GroupLag]:
    from offsetmgr.groups.lag import NOTHING, lag, needs_log_range

    named, strict = selection.named(found.groups), selection.patterns is not None
    cluster = connections.cluster_or_none() if logs else None
    options: dict[str, Any] = {"strict": strict, "partitions": also, "others": found.others, "writes": last_writes}
    read = lag(store, cluster, found.groups, found.topics, **options)
    for one in connections.ui.progress(read, "reading", len(found.groups)):
        if one.error is not None:
            found.fail(one.error)
        else:
            there = [row.partition for row in one.rows if row.note != NOTHING]
            found.committed(one.name, there, named=one.name in named)
        found.topic_matches.record((row.partition for row in one.rows), incomplete=one.error is not None)
        found.unrecognised(one.read)
        found.rows(one.rows)
        yield one._replace(rows=[row for row in one.rows if needs_log_range(row)]) if only_with_lag else one


def _expected(connections: Connections, store: OffsetStore, topics: TopicSelection) -> list[TopicPartition]:
    """Returns the partitions that are read even without a commit: those that are named by number, and all of topics
    that are named exactly. If the login may not describe a topic, this is a single partition, whose committed offset
    the coordinator then refuses to show."""
    counts: Mapping[str, int] = {}
    if (cluster := connections.cluster_or_none()) is not None and (names := topics.named()):
        try:
            counts = cluster.topics(names)
        except TopicNotAuthorized:
            counts = dict.fromkeys(names, 1)
        except OffsetMgrError as error:
            connections.warn(f"only committed partitions are shown, because the topics cannot be read: {error}")
    return topics.explicit_partitions(counts, store.capabilities.partitions)


class NextRecord(NamedTuple):
    """A committed offset, and the record that a consumer gets there next; ``record`` is None if there is none.
    ``note`` describes a gap between the offset and the record, or gives the reason why there is no record."""

    group: str
    partition: TopicPartition
    offset: int
    record: Record | None
    note: str | None


def peek(connections: Connections, selection: GroupSelection, topics: TopicSelection = ALL_TOPICS) -> Found[NextRecord]:
    """Reads the record at the committed offset of each partition. Joins no group and commits nothing. Skips transaction
    markers, which consumers never get. If the settings name two stores, reads the one in which all of the groups
    live."""
    from offsetmgr.consumer.peek import RecordPeeker

    connections.cluster("offsets peek")  # raises an error if no brokers are known
    store = connections.store_to_read(selection)
    topics.within(store.capabilities.partitions)
    found: Found[NextRecord] = Found(connections, store, choose_groups(store, selection), topics)
    named = selection.named(found.groups)

    def peeked() -> Iterator[NextRecord]:
        with RecordPeeker(connections.bootstrap() or "", connections.resolved.connection) as peeker:
            for read in connections.ui.progress(scan_in_order(store, found.groups), "reading", len(found.groups)):
                if read.error is not None:
                    found.fail(read.error)
                    continue
                found.unrecognised(read)
                if read.group in named and not (read.offsets or read.errors):
                    try:
                        require_known(store, [read.group])
                    except GroupNotFound as absent:
                        found.fail(absent)
                        continue
                committed = [tp for tp in (*read.offsets, *read.errors) if topics.matches(tp)]
                found.committed(read.group, committed, named=read.group in named)
                yield from _peek_group(found, peeker, read, topics)

    return found.of(peeked())


def _peek_group(
    found: Found[NextRecord], peeker: RecordPeeker, read: GroupOffsets, topics: TopicSelection
) -> Iterator[NextRecord]:
    offsets = {tp: one.offset for tp, one in read.offsets.items() if isinstance(one, Committed) and topics.matches(tp)}
    found.errors += [error for tp, error in sorted(read.errors.items()) if topics.matches(tp)]
    outcomes = peeker.peek(offsets) if offsets else {}
    for tp, offset in sorted(offsets.items()):
        outcome = outcomes[tp]
        if isinstance(outcome, OffsetMgrError):
            if not isinstance(outcome, OffsetOutOfRange):
                found.errors.append(outcome)
            yield NextRecord(read.group, tp, offset, None, _without_record(outcome, offset))
        else:
            yield NextRecord(read.group, tp, offset, outcome.record, "; ".join(_notes(outcome, offset)) or None)


def _without_record(error: OffsetMgrError, offset: int) -> str:
    log = error.log_range if isinstance(error, OffsetOutOfRange) else None
    if log is None:
        return error.why or str(error)
    if offset < log.start:
        return f"removed: the log begins at {log.start}"
    return f"beyond the log, which ends at {log.end}"


def _notes(outcome: PeekedRecord, offset: int) -> Iterator[str]:
    record, end = outcome.record, outcome.log_end
    skipped = f"{count_of(outcome.markers, 'transaction marker')} skipped"
    if record is None:
        if offset < end:
            yield f"no record from {offset} up to {end} (high watermark)"
        else:
            reason = "no record yet" if offset == end else "not readable yet"
            yield f"{reason}: consumers may read up to {end} (high watermark)"
    if outcome.markers:
        yield skipped
    if record is None:
        return
    if gap := record.offset - offset - outcome.markers:
        yield f"{count_of(gap, 'offset')} without a record before {record.offset}"
    elif outcome.markers:
        yield f"record {record.offset}"
    if outcome.transactional:
        yield "part of a transaction, which may be open or aborted"
    if record.value is None:
        yield "tombstone"


def diff(
    connections: Connections,
    source: str | None = None,
    target: str | None = None,
    selection: GroupSelection = ALL_GROUPS,
    topics: TopicSelection = ALL_TOPICS,
) -> Found[OffsetDifference]:
    """Compares the committed offsets of two stores, and yields the differences. ``source`` and ``target`` are URIs; by
    default they are the configured ZooKeeper and the configured brokers."""
    from offsetmgr.groups.diff import diff

    left, right = _sides(connections, source, target)
    topics.within(left.capabilities.partitions, right.capabilities.partitions)
    known, both = {*left.groups(), *right.groups()}, f"{left.uri} and {right.uri}"
    try:
        chosen = selection.within(known, both)
    except GroupNotFound:
        for name, store in product(sorted(selection.names - known), (left, right)):
            require_kind(store, name)
        raise
    if not chosen:
        why = f"no groups in {left.uri} nor in {right.uri}"
        raise GroupNotFound("nothing to compare", why, "check the addresses and the chroot")
    found: Found[OffsetDifference] = Found(connections, left, chosen, topics)

    def differences() -> Iterator[OffsetDifference]:
        names = connections.ui.progress(chosen, "comparing", len(chosen))
        for one in diff(left, right, names, topics, found.topic_matches):
            found.errors += [] if one.error is None else [one.error]
            yield one
        try:
            found.topic_matches.require_all(both)
        except UnknownTopicOrPartition as missing:
            found.errors.append(missing)

    return found.of(differences())


def _sides(connections: Connections, source: str | None, target: str | None) -> tuple[OffsetStore, OffsetStore]:
    """Opens the two stores. Raises `UsageError` if one is neither given nor configured."""
    from offsetmgr.stores.uri import zookeeper_of

    settings = connections.resolved
    own = zookeeper_of(settings.store, settings.connection) if settings.store else None
    zookeeper, bootstrap = own or settings.zookeeper, connections.bootstrap()
    defaults = (zookeeper and f"zookeeper://{zookeeper}", bootstrap and f"kafka://{bootstrap}")
    found = [given or default for given, default in zip((source, target), defaults, strict=True)]
    for name, server, uri in zip(("from", "to"), ("ZooKeeper", "broker"), found, strict=True):
        if uri is None:
            why = f"no store is named, and no {server} is configured"
            raise UsageError(Advice(f"{{{name}}}"), why, Advice(f"add {{{name}}} URI"))
    return connections.store(found[0]), connections.store(found[1])
