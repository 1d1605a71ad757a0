"""``offsetmgr offsets``: reads and edits committed offsets, and compares two stores."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from shlex import quote
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeAlias, TypeVar, get_args

from offsetmgr.app.connections import Connections, SourceAndTarget
from offsetmgr.app.translation import open_translations, with_hint
from offsetmgr.core import title_of
from offsetmgr.core.advice import Advice
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import (
    GroupNotFound,
    OffsetMgrError,
    TopicNotAuthorized,
    UnknownTopicOrPartition,
    UnsupportedOperation,
    UsageError,
)
from offsetmgr.core.log_origin import TranslationRules
from offsetmgr.core.model import MAX_OFFSET, OffsetAndMetadata, TopicPartition, dropped_text, is_valid_offset
from offsetmgr.core.offset_store import OtherGroupKind, checked_offsets
from offsetmgr.core.plurals import list_of
from offsetmgr.core.scenario import FromFile, PastRecords, Scenario, ToOffsets
from offsetmgr.core.selection import (
    ALL_GROUPS,
    ALL_TOPICS,
    KNOWN_GROUPS,
    GroupSelection,
    TopicSelection,
    accept_names,
    literal_pattern,
)
from offsetmgr.groups.scan import (
    TopicMatches,
    choose_groups,
    not_known,
    require_kind,
    require_known,
    require_topics,
    scan_in_order,
)

if TYPE_CHECKING:
    from offsetmgr.app.edits import PlannedEdit
    from offsetmgr.config.connection import ConnectionConfig
    from offsetmgr.consumer.peek import NextRecord as NextRecord
    from offsetmgr.core.log_origin import FetchLogRanges, OffsetTranslation
    from offsetmgr.core.offset_store import GroupOffsets, OffsetStore, RunningEdit
    from offsetmgr.groups.diff import OffsetDifference as OffsetDifference
    from offsetmgr.groups.edit_plan import GroupEditPlan
    from offsetmgr.groups.edits import OutsideLogChecks
    from offsetmgr.groups.lag import GroupLag as GroupLag
    from offsetmgr.groups.lag import LagRow as LagRow
    from offsetmgr.kafka.cluster import KafkaCluster
    from offsetmgr.segments.batch_reader import Record as Record
    from offsetmgr.snapshots.base import SnapshotReport
    from offsetmgr.snapshots.group_images import GroupImages, ImagesKind
    from offsetmgr.stores.cross_cluster_check import CrossClusterCheck
    from offsetmgr.translation.comparison import CommittedPositions, PositionCounts
    from offsetmgr.translation.comparison import PositionDifference as PositionDifference
    from offsetmgr.translation.translator import Translations

T = TypeVar("T")
_MAX_NAMED: Final = 5
"""The number of names in a note."""


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
        self.topics, self.others = TopicMatches(topics), tuple(others)
        self.above: dict[str, int | None] = {}
        self.uncommitted: dict[str, int] = {}
        """See `lag`."""
        self._connections = connections
        self._items: Iterable[T] = ()
        self._newer: Counter[tuple[str, str]] = Counter()
        self._newer_group = ""

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

    def require_topics(self, group: str, committed: Iterable[TopicPartition]) -> None:
        """Adds an error for each topic of the selection in which the group, which was selected by name, has none of
        these committed partitions."""
        topics = {tp.topic for tp in committed}
        for topic in self.topics.whole():
            if topic not in topics:
                self.errors.append(GroupNotFound(f"group {group!r}", f"has no committed offsets in topic {topic}"))

    def check_limit(self, one: GroupLag, limit: int, expected: Iterable[TopicPartition], *, named: bool) -> bool:
        """Adds a group to `above` and to `uncommitted`, and returns whether it can fail. ``expected`` are the
        partitions of topics that are named exactly."""
        from offsetmgr.groups.lag import NOTHING

        committed = one._replace(rows=[row for row in one.rows if row.note != NOTHING])
        there = {row.partition for row in committed.rows if expected}
        topics = {tp.topic for tp in there}
        absent = sum(tp not in there and (named or tp.topic in topics) for tp in expected)
        is_empty = not committed.rows and committed.failure is None
        if not is_empty and ((total := committed.total) is None or total > limit):
            self.above[one.name] = total
        if absent or (named and is_empty):
            self.uncommitted[one.name] = absent
        return named or not is_empty

    def tell(self, shown: int | None) -> None:
        """Does what `tell_newer` does, and tells the user that there is no commit. ``shown`` is the number of rows that
        the user sees; None if the user left out rows."""
        self.tell_newer()
        if shown == 0 and not self.errors:
            self._connections.ui.note(f"no committed offsets in {self.uri}")

    def tell_newer(self) -> None:
        """Tells the user, after the last item, about offsets that are older than those of another store."""
        from offsetmgr.groups.lag import newer_texts

        note = self._connections.ui.note
        for uri in (other.uri for other in self.others):
            texts = list(newer_texts(self._newer, title_of(self.uri), title_of(uri)))
            for text in texts:
                note(text, warning=True)
            if texts:
                where = self._connections.invocation("groups where", literal_pattern(self._newer_group), window=60)
                shows = "hint: {store} {} shows what {} holds; {} shows where the group commits"
                note(Advice(shows, quote(uri), title_of(uri), where))

    def check_topics(self, where: str) -> None:
        """Adds an error, after the last item, for selected topics that match nothing in ``where``, unless there is
        another error."""
        try:
            self.topics.require_all(where)
        except UnknownTopicOrPartition as missing:
            self.errors += [] if self.errors else [missing]

    def strict(self) -> Iterator[T]:
        """Yields the items. At the end, raises `UnknownTopicOrPartition` for a selected topic that matches nothing."""
        yield from self._items
        self.topics.require_all(self.uri)


def get(connections: Connections, selection: GroupSelection, topics: TopicSelection = ALL_TOPICS) -> Found[GroupLag]:
    """Reads committed offsets; the log ranges and the lag of the rows are None. If the settings name two stores, reads
    the one in which all of the groups live.

    A partition that is named by number, and those of a topic that is named exactly, have a row even without a commit.
    """
    store = connections.store_to_read(selection)
    found: Found[GroupLag] = Found(connections, store, choose_groups(store, selection), topics)
    return found.of(_lag(connections, found, store, selection))


def lag(
    connections: Connections,
    selection: GroupSelection,
    topics: TopicSelection = ALL_TOPICS,
    *,
    only_with_lag: bool = False,
    fail_above: int | None = None,
) -> Found[GroupLag]:
    """Reads committed offsets and log ranges, and counts the lag in records; it is None if it is unknown, for example
    without brokers. ``only_with_lag`` leaves out rows that need no attention.

    With ``fail_above``, ``above`` of the result has, after the last item, the total lag of each group in which it is
    larger or unknown. ``uncommitted`` has the number of partitions without a commit, which have no lag, of each group
    that needs them: a group with a commit in a topic that is named exactly needs one in each of its selected
    partitions, and a group that is named needs one at all (the number is 0). A read without any commit has an error.

    A topic that is named exactly has a row for each of its partitions, even for those without a commit. If another
    configured store of the same cluster holds another offset, the row has a ``note``: the lag counts from the offset
    that was written last, and is None if nothing shows which this is.
    """
    store, others = connections.selected(), connections.others
    found: Found[GroupLag] = Found(connections, store, choose_groups(store, selection, others), topics, others)
    options: dict[str, Any] = {"only_with_lag": only_with_lag, "fail_above": fail_above}
    return found.of(_lag(connections, found, store, selection, **options, logs=True))


def _lag(
    connections: Connections,
    found: Found[GroupLag],
    store: OffsetStore,
    selection: GroupSelection,
    *,
    only_with_lag: bool = False,
    fail_above: int | None = None,
    logs: bool = False,
) -> Iterator[GroupLag]:
    from offsetmgr.groups.lag import NOTHING, lag, needs_log_range, with_kinds

    named, strict = selection.named(found.groups), selection.patterns is not None
    topics = found.topics if named else TopicSelection(found.topics.patterns)  # what exists is no match of a glob
    expected = _expected(connections, store, topics) if named or fail_above is not None else []
    checked, numbered = fail_above is None, [] if logs else found.topics.numbered(store.capabilities.partitions)
    cluster, needed = connections.cluster_or_none() if logs else None, numbered or (named and expected)
    also = {name: expected if name in named else numbered for name in found.groups} if needed else {}
    options: dict[str, Any] = {"strict": strict, "partitions": also, "others": found.others}
    options["writes"] = connections.last_writes
    read = with_kinds(lag(store, cluster, found.groups, found.topics, **options), cluster, found.topics, also)
    for one in connections.ui.progress(read, "reading", len(found.groups)):
        if one.error is not None:
            found.fail(one.error)
        elif one.name in named:
            found.require_topics(one.name, (row.partition for row in one.rows if row.note != NOTHING))
        found.topics.incomplete |= one.error is not None
        found.unrecognised(one.read)
        found.rows(one.notable)
        if fail_above is not None:
            checked |= found.check_limit(one, fail_above, expected, named=one.name in named)
        rows = [row for row in one.rows if needs_log_range(row)] if only_with_lag else one.rows
        if logs and cluster is None:
            rows = [row._replace(note=row.note or "no brokers are known") for row in rows]
        yield one._replace(rows=rows)
    found.check_topics(found.uri)
    left = {*filter(selection.matches, store.left_out if fail_above is not None else ())}.difference(found.groups)
    if left:
        connections.ui.note(f"not checked: groups without committed offsets, such as {min(left)!r}")
    if not (found.errors or checked):
        found.errors.append(OffsetMgrError("nothing to check", "no selected group has a commit", KNOWN_GROUPS))


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


def peek(connections: Connections, selection: GroupSelection, topics: TopicSelection = ALL_TOPICS) -> Found[NextRecord]:
    """Reads the record at the committed offset of each partition. Joins no group and commits nothing. Skips transaction
    markers, which consumers never get. If the settings name two stores, reads the one in which all of the groups
    live."""
    from offsetmgr.consumer.peek import RecordPeeker

    connections.cluster("offsets peek")  # raises an error if no brokers are known
    store = connections.store_to_read(selection)
    topics.within(store.capabilities.partitions)
    found: Found[NextRecord] = Found(connections, store, choose_groups(store, selection), topics)
    topics = found.topics
    named = selection.named(found.groups)
    expected = dict.fromkeys(named, _expected(connections, store, found.topics) if named else ())

    def peeked() -> Iterator[NextRecord]:
        with RecordPeeker(connections.bootstrap() or "", connections.resolved.connection) as peeker:
            scanned = scan_in_order(store, found.groups, expected=expected)
            for read in connections.ui.progress(scanned, "reading", len(found.groups)):
                if read.error is not None:
                    found.fail(read.error)
                    continue
                found.unrecognised(read)
                empty = read.name in named and not (read.offsets or read.errors)
                if empty and (absent := not_known([store], [read.name])) is not None:
                    found.fail(absent)
                    continue
                committed = [tp for tp in (*read.offsets, *read.errors) if topics.matches(tp)]
                if read.name in named:
                    found.require_topics(read.name, committed)
                found.errors += [error for tp, error in sorted(read.errors.items()) if topics.matches(tp)]
                offsets = {tp: one.offset for tp, one in read.offsets.items() if topics.matches(tp)}
                for one in peeker.next_records(read.name, offsets):
                    found.errors += [] if one.error is None else [one.error]
                    yield one
        found.check_topics(found.uri)

    return found.of(peeked())


def diff(
    connections: Connections,
    source: str | None = None,
    target: str | None = None,
    selection: GroupSelection = ALL_GROUPS,
    topics: TopicSelection = ALL_TOPICS,
    *,
    sides: Sequence[ConnectionConfig] | None = None,
) -> Found[OffsetDifference]:
    """Compares the committed offsets of two stores, and yields the differences. ``source`` and ``target`` are
    URIs, or names of configured stores (default: zookeeper and kafka). ``sides`` are the settings of the source and of
    the target (default: those of the connections). Warns the user if the offsets belong to different Kafka clusters."""
    from offsetmgr.core.log_origin import Relation, compare_origins
    from offsetmgr.groups.diff import diff

    pair = _pair(connections, source, target, sides)
    left, right = pair.source, pair.target
    chosen, both = _groups_of_both(left, right, selection, topics)
    compared = compare_origins(left.log_origin(), right.log_origin())
    if compared.relation is Relation.OTHER:
        text = "{}: equal offsets are not the same records; {translate=auto} compares the records"
        connections.ui.note(Advice(text, compared.how), warning=True)
    found: Found[OffsetDifference] = Found(connections, left, chosen, topics)

    def differences() -> Iterator[OffsetDifference]:
        names = connections.ui.progress(chosen, "comparing", len(chosen))
        for one in diff(left, right, names, found.topics):
            found.errors += [] if one.error is None else [one.error]
            found.topics.incomplete |= one.partition is None
            yield one
        found.check_topics(both)

    return found.of(differences())


def _pair(
    connections: Connections, source: str | None, target: str | None, sides: Sequence[ConnectionConfig] | None
) -> SourceAndTarget:
    uris = connections.uri_of(source or "zookeeper", "source:from"), connections.uri_of(target or "kafka", "target:to")
    return SourceAndTarget(connections, *uris, sides)


def _groups_of_both(
    left: OffsetStore,
    right: OffsetStore,
    selection: GroupSelection,
    topics: TopicSelection,
    renames: Mapping[str, str] = MappingProxyType({}),
) -> tuple[list[str], str]:
    """Returns the selected groups by their names in the left store, and the name of both stores for messages.
    ``renames`` has the names of groups that have another name in the right store."""
    topics.within(left.capabilities.partitions, right.capabilities.partitions)
    old = {new: name for name, new in renames.items()}
    known = {*left.groups(), *(old.get(name, name) for name in right.groups())}
    both = f"{left.uri} and {right.uri}"
    for name in sorted(renames.keys() - known):
        why = f"the source has no group {name}, and the target no group {renames[name]}"
        raise UsageError(Advice("{rename} {}", f"'{name}={renames[name]}'"), why, "OLD is the name in the source")
    try:
        chosen = selection.within(known, both)
    except GroupNotFound:
        for name, store in product(sorted(selection.names - known), (left, right)):
            require_kind(store, name)
        raise
    if not chosen:
        why = f"no groups in {left.uri} nor in {right.uri}"
        raise GroupNotFound("nothing to compare", why, "check the addresses and the chroot")
    return chosen, both


BY_RECORDS: Final = TranslationRules()


class FoundPositions(Found["PositionDifference"]):
    """The result of `diff_translated`. After the last item, ``counts`` has the number of partitions by outcome,
    ``of_groups`` the same of each group, and ``lacking`` the number of records of each partition of the source that the
    target lacks, None if it is unknown."""

    counts: PositionCounts
    of_groups: Mapping[str, PositionCounts]
    lacking: Mapping[TopicPartition, int | None]


def diff_translated(
    connections: Connections,
    source: str | None = None,
    target: str | None = None,
    selection: GroupSelection = ALL_GROUPS,
    topics: TopicSelection = ALL_TOPICS,
    *,
    rules: TranslationRules = BY_RECORDS,
    rename: Mapping[str, str] = MappingProxyType({}),
    sides: Sequence[ConnectionConfig] | None = None,
) -> FoundPositions:
    """Compares the positions of groups in two Kafka clusters by the records, whose offsets differ there. Yields each
    partition in which a group is not at the right record in the target, or is not known to be. The arguments are those
    of `diff`; ``rename`` maps groups to their names in the target. Reads the logs of both clusters, and writes nothing.
    With ``rules.lost``, ``lacking`` has all selected partitions of the groups' topics.

    Raises `UsageError` if both stores belong to one cluster, `UnsupportedOperation` if one is a file, and the errors of
    `diff`."""
    pair = _pair(connections, source, target, sides)
    translations = open_translations(connections, pair, rules)
    chosen, _ = _groups_of_both(pair.source, pair.target, selection, topics, rename)
    connections.ui.note(f"{pair.source.uri} -> {pair.target.uri}")
    found = FoundPositions(connections, pair.source, chosen, topics)
    found.of(_translated(connections, found, pair, translations, renamed=rename, named=selection.named(chosen)))
    return found


def _translated(
    connections: Connections,
    found: FoundPositions,
    pair: SourceAndTarget,
    translations: Translations,
    *,
    renamed: Mapping[str, str],
    named: Collection[str],
) -> Iterator[PositionDifference]:
    """``named`` are the groups that are selected by name."""
    from offsetmgr.groups.diff import NamesInRight, read_both
    from offsetmgr.translation.comparison import CommittedPositions
    from offsetmgr.translation.translator import enough_text

    committed, rules, absent = CommittedPositions(translations.rules.accepts), translations.rules, []
    names = NamesInRight(lambda group: renamed.get(group, group), translations.rename.partition, translations.source)
    groups = connections.ui.progress(found.groups, "reading", len(found.groups))
    for in_left, in_right in read_both(pair.source, pair.target, groups, names):
        found.errors += _add_group(committed, in_left, in_right, found.topics, translations)
        if in_left.name in named and not (in_left.offsets or in_left.errors or in_left.error):
            absent.append(in_left.name)
    positions = committed.positions()
    translations.require_matches({tp.topic for tp in positions})
    if rules.lost:
        positions = {**_ends(pair.clusters()[0], committed.topics, found.topics), **positions}
    for one in translations.translate(positions, committed.earliest()):
        found.errors += [] if one.error is None else [one.error]
        committed.compare(one)
    if committed.no_copies:
        topics = list_of(sorted(committed.no_copies), _MAX_NAMED)
        connections.ui.note(f"not compared: offsets in topics of the target that are no copies: {topics}")
    if absent:
        text = "hint: group {} has no offset in {}; {from} names another store"
        connections.ui.note(Advice(text, list_of(absent, _MAX_NAMED), pair.source.uri))
    found.counts, found.of_groups, found.lacking = committed.counts, committed.of_groups, committed.lacking
    yield from committed.differences()
    if committed.enough:
        connections.ui.note(Advice("hint: {}", enough_text(committed.enough)))
    before = len(found.errors)
    found.check_topics(f"{pair.source.uri} and {pair.target.uri}")
    for missing in found.errors[before:]:
        missing.hint = Advice.joined([Advice("{topic} selects names in the source"), missing.hint])
    if not (found.counts.total or found.errors):
        found.errors.append(OffsetMgrError("nothing to compare", "no selected group has an offset"))


def _ends(
    source: KafkaCluster, topics: Collection[str], selected: TopicMatches
) -> Mapping[TopicPartition, Collection[int]]:
    """Returns the end of the log of each selected partition of these topics."""
    found = (TopicPartition(topic, n) for topic, count in source.topics(topics).items() for n in range(count))
    ranges = source.log_ranges([tp for tp in found if selected.matches(tp)])
    return {tp: () if isinstance(log, OffsetMgrError) else (log.end,) for tp, log in sorted(ranges.items())}


def _add_group(
    committed: CommittedPositions,
    in_left: GroupOffsets,
    in_right: GroupOffsets,
    topics: TopicMatches,
    translations: Translations,
) -> list[OffsetMgrError]:
    """Adds the offsets of a group in both stores. Returns the errors of those that cannot be compared."""
    from offsetmgr.core.model import state_in
    from offsetmgr.groups.lag import state_of
    from offsetmgr.translation.comparison import ONLY_TO, REFUSED, UNREADABLE, PositionDifference

    group = in_left.name
    if (error := in_left.error or in_right.error or in_left.hidden or in_right.hidden) is not None:
        topics.incomplete = True
        committed.add_difference(PositionDifference(group, None, None, UNREADABLE, note=error.why, error=error))
        return [error]
    errors: dict[str, OffsetMgrError] = {}
    listed = set(filter(topics.matches, (*in_left.offsets, *in_left.errors)))
    known = {translations.target(tp): tp for tp in listed}
    found = {tp: known.get(tp) or translations.source(tp) for tp in (*in_right.offsets, *in_right.errors)}
    committed.no_copies.update(tp.topic for tp, source in found.items() if source is None and topics.matches(tp))
    copies = {source: tp for tp, source in found.items() if source is not None and topics.matches(source)}
    for tp in sorted({*listed, *copies}):
        copy = copies.get(tp)
        left, right = in_left.offsets.get(tp), None if copy is None else in_right.offsets.get(copy)
        offsets = left and left.offset, right and right.offset
        if (error := in_left.errors.get(tp) or (in_right.errors.get(copy) if copy else None)) is not None:
            verdict = state_of(error)
            error = with_hint(error, tp, translations.target(tp), renamed=bool(translations.rename))
        elif left is None:
            verdict = ONLY_TO
        elif (form := state_in(left.metadata)) is not None:
            verdict, why = REFUSED, f"its commit metadata is {form}, which is valid for this offset and log alone"
            error = UnsupportedOperation(f"group {group!r}", why, "move it with the tools of its client")
        else:
            committed.add(group, tp, left.offset, right and right.offset)
            continue
        note = "" if error is None else error.why
        committed.add_difference(PositionDifference(group, tp, copy, verdict, *offsets, note=note, error=error))
        if error is not None:
            errors.setdefault(str(error), error)
    return list(errors.values())


FilePath: TypeAlias = str | os.PathLike[str]


def reset(
    connections: Connections,
    groups: GroupSelection,
    to: Scenario | FromFile | PastRecords,
    topics: TopicSelection = ALL_TOPICS,
    *,
    create: bool = False,
    active: RunningEdit | float = 0.0,
) -> PlannedEdit:
    """Plans a reset; see `OffsetAdmin.plan_reset`. ``active`` says how to treat groups with members: a `RunningEdit`
    edits them while their consumers run, and a number waits up to so many seconds until they have none. Groups that
    still have members are rejected. Raises `GroupActive` after a wait in vain."""
    from offsetmgr.app.edits import PlannedEdit
    from offsetmgr.groups.reset import only_partition, plan_reset, unless_moved

    if not isinstance(to, (*get_args(Scenario), FromFile, PastRecords)):
        raise UsageError("offsets reset", f"{to!r} is not a position", "as in ToEarliest() or ToOffset(5)")
    store = connections.selected()
    scenario = _from_file(connections, store, to, groups) if isinstance(to, FromFile) else to
    cluster = connections.cluster_for_edit("offsets reset", store)
    topics = TopicMatches(topics)
    if isinstance(to, FromFile) and isinstance(scenario, ToOffsets) and groups.patterns is None:
        chosen = groups.within(scenario.offsets, f"file {os.fspath(to.path)}", hint="")
        store = _with_share_groups(connections, store, chosen, chosen, create=create)
    else:
        chosen = choose_groups(store, groups)
        store = _with_share_groups(connections, store, chosen, groups.named(chosen), create=create)
    create = create or store.describe_groups is not None  # the share groups exist
    running = _wait(connections, store, chosen, active)
    if isinstance(scenario, PastRecords):
        from offsetmgr.consumer.simple import SimpleConsumer, offset_after

        group, partition, committed = only_partition(store, chosen, topics)
        with SimpleConsumer(connections.bootstrap() or "", config=connections.resolved.connection) as log:
            end = offset_after(log, partition, committed, scenario.number)
        running = running and running._replace(conditional=True)
        found = plan_reset(store, cluster, chosen, topics, ToOffsets({group: {partition: end}}), create=create)
        found = (unless_moved(plan, committed) for plan in found)
    else:
        found = plan_reset(store, cluster, chosen, topics, scenario, create=create)
    plans = require_topics(found, topics, store.uri)
    return PlannedEdit(connections, "offsets reset", store, plans, running=running)


def set_(
    connections: Connections,
    group: str,
    to: OffsetAndMetadata | Mapping[TopicPartition, int | OffsetAndMetadata],
    topics: TopicSelection = ALL_TOPICS,
    *,
    keeps_metadata: bool = True,
    create: bool = False,
    active: RunningEdit | float = 0.0,
) -> PlannedEdit:
    """Plans to commit exact offsets: one for all partitions of ``topics``, or one for each partition. Partitions of
    topics without partition numbers are set if they have a commit. See `OffsetAdmin.plan_set`, and `reset` for
    ``active``. With ``keeps_metadata``, an offset that stays keeps its metadata, unless ``to`` has metadata. Raises
    `UsageError` for one offset of all topics or a value that is not an offset, and the errors of
    `OffsetAdmin.plan_set`."""
    from offsetmgr.app.edits import PlannedEdit
    from offsetmgr.groups.edits import OutsideLogChecks
    from offsetmgr.groups.reset import plan_set

    topics = TopicMatches(topics)
    if not isinstance(to, OffsetAndMetadata):
        to = checked_offsets(to)
        for tp in to:
            topics.matches(tp)
    elif not topics.patterns:
        raise UsageError(Advice("{topic}"), "no topic is named", Advice("as in {topic=orders:0,1}"))
    if not to:
        raise UsageError("offsets set", "no offset is given")
    for what, one in to.items() if isinstance(to, dict) else [("offsets set", to)]:
        if not is_valid_offset(one.offset):
            raise UsageError(str(what), f"{one.offset} is not an offset", f"offsets go from 0 to {MAX_OFFSET}")
    store = connections.selected()
    running = _wait(connections, store, [group], active)
    with connections.refusing("offsets set"):
        found = plan_set(store, group, to, topics, create=create, keeps_metadata=keeps_metadata)
    checked = OutsideLogChecks(_log_ranges(connections, "offsets set", store), "set")
    plans = require_topics(checked.noted([found]), topics, store.uri)
    edit = PlannedEdit(connections, "offsets set", store, plans, running=running)
    edit.warnings = checked.warnings
    return edit


def delete(
    connections: Connections,
    groups: GroupSelection,
    topics: TopicSelection = ALL_TOPICS,
    *,
    active: RunningEdit | float = 0.0,
) -> PlannedEdit:
    """Plans to delete committed offsets; see `OffsetAdmin.plan_delete`, and `reset` for ``active``. Raises the errors
    of `OffsetAdmin.plan_delete`."""
    from offsetmgr.app.edits import PlannedEdit
    from offsetmgr.groups.edits import plan_delete

    store = connections.selected()
    topics = TopicMatches(topics.within(store.capabilities.partitions))
    chosen = choose_groups(store, groups)
    running = _wait(connections, store, chosen, active)
    plans = require_topics(plan_delete(store, chosen, topics), topics, store.uri)
    return PlannedEdit(connections, "offsets delete", store, plans, running=running)


class ImportOptions(NamedTuple):
    """How to import a file. ``format`` names its format, if the suffix does not. ``accept_unterminated`` accepts a text
    file whose last line has no line end. ``translate`` states that offsets of another Kafka cluster are valid in the
    store. ``allow_rewind`` allows offsets that move backward, and for before-images those that have changed since the
    edit. ``unchecked`` leaves out the comparison with topics and logs."""

    format: str | None = None
    accept_unterminated: bool = False
    translate: OffsetTranslation | None = None
    allow_rewind: bool = False
    unchecked: bool = False


DEFAULTS: Final = ImportOptions()
_UNDO: Final = ("offsets import undo", "holds before-images: undoing that edit", "restored")
_PLAN: Final = ("offsets import plan", "is a plan of an edit: making that edit", "set")
"""The name of an operation, and texts for messages."""


def import_(
    connections: Connections,
    path: FilePath,
    groups: GroupSelection = ALL_GROUPS,
    topics: TopicSelection = ALL_TOPICS,
    options: ImportOptions = DEFAULTS,
    *,
    into: OffsetStore | None = None,
    active: RunningEdit | float = 0.0,
) -> PlannedEdit:
    """Plans to load the offsets of a snapshot file into the selected store, or into the open store ``into``; see
    `OffsetAdmin.plan_import`, and `reset` for ``active``. ``path`` may be ``-``, the standard input.

    A file of before-images undoes its edit; see `OffsetAdmin.plan_undo`. A plan that `PlannedEdit.save` wrote is
    executed as a whole, or rejected if one of its offsets has changed or left its log. Of an undo, such an offset gets
    a note. Raises the errors of both methods, and `UsageError` for an unknown format or a part of a plan.
    """
    from offsetmgr.app.edits import PlannedEdit
    from offsetmgr.groups.before_images import load_images
    from offsetmgr.groups.export import name_of, open_file, seekable
    from offsetmgr.snapshots.group_images import images_kind
    from offsetmgr.snapshots.registry import format_name

    file, selected = os.fspath(path), connections.selected()
    store = into or selected
    uri = None if store in (selected, *selected.parts) else store.uri
    topics = TopicMatches(topics.within(store.capabilities.partitions))
    if file == "-" and options.format is None:
        format_name(file)  # raises an error, because the format of standard input is unknown
    where, checked = name_of(file) if file == "-" else f"file {file}", None
    with seekable(file) as copy:
        kind = images_kind(copy)
        # For before-images: whether the undone edit has created the offsets of each group.
        images = None if kind is None else {one.group: not (one.before or one.nodes) for one in load_images(copy)}
        elsewhere = _require_whole(file, groups, topics, options) if kind is not None and kind.is_plan else ""
        as_ = None if kind else options.format  # before-images are recognised by their content
        accepts, note = options.accept_unterminated, connections.ui.note
        with open_file(copy, as_, groups.single, unterminated=accepts, shown=file, note=note) as snapshot:
            chosen = groups.within(snapshot.groups() if images is None else images, where, hint="")
            if images is not None and snapshot.header is not None and snapshot.header.source_kind == "kafka-share":
                store = connections.share_groups(store, snapshot.header.source_uri)
            if not chosen and images is None:  # the images of an edit that wrote nothing undo nothing
                raise GroupNotFound(where, "holds no groups")
            running, names = _wait(connections, store, chosen, active), set(chosen)
            crossing = connections.check_crossing("offsets import", snapshot, store, options.translate, elsewhere)
            if kind is None:
                operation = "offsets import"
                found = _imported(connections, store, snapshot.read(names), topics, options, crossing)
            else:
                saved = (one for one in load_images(copy) if one.group in names)
                operation, found, checked = _undo(connections, store, file, kind, saved, topics, options, crossing)
            plans, comparison = require_topics(found, topics, file), crossing.text()
            edit = PlannedEdit(connections, operation, store, plans, uri, running=running, comparison=comparison)
    if store.describe_groups is None and operation == _UNDO[0]:
        edit.created = [name for name in chosen if images is not None and images[name]]
    if checked is not None:
        edit.warnings = checked.warnings
    return edit


def _imported(
    connections: Connections,
    store: OffsetStore,
    sources: Iterable[GroupOffsets],
    topics: TopicSelection,
    options: ImportOptions,
    crossing: CrossClusterCheck,
) -> Iterator[GroupEditPlan]:
    from offsetmgr.groups.edits import LogChecks, plan_import

    fetch = None if options.unchecked else _log_ranges(connections, "offsets import", store)
    checks, rewind = None if fetch is None else LogChecks(fetch), options.allow_rewind
    return plan_import(store, sources, topics, allow_rewind=rewind, crossing=crossing, checks=checks)


def _undo(
    connections: Connections,
    store: OffsetStore,
    file: str,
    kind: ImagesKind,
    saved: Iterable[GroupImages],
    topics: TopicSelection,
    options: ImportOptions,
    crossing: CrossClusterCheck,
) -> tuple[str, Iterator[GroupEditPlan], OutsideLogChecks]:
    """Plans to undo the edit of the before-images ``saved``, or to execute the plan there. Returns the name of the
    operation, the plans, and the comparison with the logs. ``file`` is the name of the file for messages."""
    from offsetmgr.groups.edits import OutsideLogChecks, as_a_whole, plan_undo

    operation, does, verb = _PLAN if kind.is_plan else _UNDO
    connections.ui.note(f"{file} {does}")
    plan = kind if kind.is_plan else None
    found = plan_undo(store, saved, topics, allow_rewind=options.allow_rewind, crossing=crossing, plan=plan)
    fetch = None if options.unchecked else _log_ranges(connections, operation, store)
    shared = store.capabilities.acknowledges
    checked = OutsideLogChecks(fetch, verb, rejects=kind.is_plan and kind.copied is None, shared=shared)
    noted = checked.noted(found)
    return operation, as_a_whole(noted) if kind.is_plan else noted, checked


def _require_whole(file: str, groups: GroupSelection, topics: TopicSelection, options: ImportOptions) -> str:
    """Raises `UsageError` for an argument that changes what a plan does. Returns the hint for another cluster."""
    given = {"{group}": groups.patterns, "{exclude_group}": groups.excluded, "{topic}": not topics.everything}
    given |= {"{allow_rewind}": options.allow_rewind, "{translate}": options.translate is not None}
    given |= {"{unchecked}": options.unchecked}
    for argument in filter(given.get, given):
        why = f"cannot be used with the plan {file}, which is executed as a whole or not at all"
        raise UsageError(Advice(argument), why, "leave it out, or make a new plan")
    return "a plan is valid only in the cluster for which it was made; make a new plan"


def export(
    connections: Connections,
    path: FilePath,
    groups: GroupSelection,
    topics: TopicSelection = ALL_TOPICS,
    *,
    format: str | None = None,
    header: bool = False,
    overwrite: bool = False,
    on_error: Callable[[OffsetMgrError], None] | None = None,
) -> SnapshotReport:
    """Writes the committed offsets of groups to a snapshot file, or to the standard output if ``path`` is ``-``. The
    suffix of ``path`` (``.avro``, ``.csv``, ``.json``, ``.zk``) or ``format`` names the format. With ``header``, the
    first line of CSV names the columns. The file is complete or absent.

    With ``on_error``, an offset that cannot be read does not end the call: ``on_error`` receives its error, and the
    file records it if the format can. Returns the counts, and the data that the format cannot hold (``lost``). Raises
    `GroupNotFound`, `UnknownTopicOrPartition`, `FileFailure`, and the error of an offset that cannot be read.
    """
    from offsetmgr.groups.before_images import header_for
    from offsetmgr.groups.export import export_groups, written_to
    from offsetmgr.snapshots.csv import CsvFormat
    from offsetmgr.snapshots.registry import format_name
    from offsetmgr.stores.snapshot import write_snapshot

    name = format_name(os.fspath(path), format)
    if header and name != "csv":
        raise UsageError(Advice("{header}"), f"is for CSV, and not for {name}")
    store = connections.store_to_read(groups)
    chosen = choose_groups(store, groups)
    topics = topics.within(store.capabilities.partitions)
    ids = {topic: topic_id for topic, topic_id in store.topic_ids().items() if topics.matches_topic(topic)}
    origin = header_for(store, ids)
    found = export_groups(store, chosen, topics, strict=groups.patterns is not None)

    def noted(found: GroupOffsets) -> GroupOffsets:
        connections.warn_of_unrecognised(found.unrecognised)
        return found

    with written_to(os.fspath(path)) as file:
        return write_snapshot(
            file,
            origin,
            connections.ui.progress(map(noted, found), "exporting", len(chosen)),
            format=CsvFormat(titled=True) if header else name,
            group=chosen[0] if name == "spark" and len(chosen) == 1 else None,
            overwrite=overwrite,
            keep_errors=on_error is not None,
            on_error=on_error,
        )


def _with_share_groups(
    connections: Connections, store: OffsetStore, groups: Sequence[str], named: Iterable[str], *, create: bool
) -> OffsetStore:
    """Returns the share groups of the cluster if ``groups`` are share groups, otherwise ``store``. Only groups of
    ``named`` can be share groups. Raises `UsageError` for share groups with others, and `GroupNotFound`."""
    from offsetmgr.groups.reset import NEW_GROUP

    scanned = store.scan(sorted(named)) if store.uri.startswith("kafka:") else ()
    kinds = {one.name: one.error.type for one in scanned if isinstance(one.error, OtherGroupKind)}
    shares, others = ([one for one in groups if (kinds.get(one) == "share") is share] for share in (True, False))
    if not shares:
        return store
    if others:
        with connections.refusing("offsets reset"):
            require_known([store], () if create else {*others} - {*kinds}, NEW_GROUP)
        why = f"group {shares[0]!r} is a share group, and group {others[0]!r} is not"
        raise UsageError("offsets reset", why, "reset share groups in a command of their own")
    return connections.share_groups(store)


def _wait(
    connections: Connections, store: OffsetStore, groups: Iterable[str], active: RunningEdit | float
) -> RunningEdit | None:
    """Waits up to ``active`` seconds until the groups have no members, and raises `GroupActive` after that time. If
    ``active`` is a `RunningEdit`, returns it without a wait; raises `UnsupportedOperation` for share groups."""
    if not isinstance(active, float | int):
        if store.describe_groups is not None:
            why = "brokers change the start offsets of share groups only while they have no members"
            hint = Advice("stop the consumers, or use {wait_empty_s:wait_empty} SECONDS")
            raise UnsupportedOperation("offsets reset", why, hint)
        return active
    if active:
        from offsetmgr.groups.describe import wait_until_empty

        describer = store.describe_groups or connections.group_describer_for_edit()
        wait_until_empty(describer, groups, active, SystemClock(), connections.waits.for_members)
    return None


def _log_ranges(connections: Connections, operation: str, store: OffsetStore) -> FetchLogRanges | None:
    """Returns the function with which ``operation`` reads the log ranges of the offsets that it writes to ``store``;
    None if no brokers are known, or if the store holds positions of Kafka 0.7, which belong to no log. Tells the user
    if ZooKeeper is not compared because no brokers are known. The cluster is opened late, because brokers that do not
    respond must not prevent an edit in ZooKeeper."""
    from offsetmgr.core.offset_store import PartitionKinds

    if store.capabilities.partitions is PartitionKinds.OF_BROKERS:
        return None
    if connections.bootstrap() is None:
        if store.uri.startswith("zookeeper:"):
            unchecked = "not checked: topics and log ranges, because no brokers are known; add {bootstrap_server}"
            connections.ui.note(Advice(unchecked))
        return None
    return lambda partitions: connections.cluster_for_edit(operation, store).log_ranges(partitions)


def _from_file(connections: Connections, store: OffsetStore, to: FromFile, groups: GroupSelection) -> ToOffsets:
    from offsetmgr.groups.export import open_file, seekable
    from offsetmgr.groups.reset import offsets_of

    file = os.fspath(to.path)
    name = None if Path(file).suffix.lower() in (".avro", ".csv", ".zk", ".json") else "csv"
    unterminated, note = to.accept_unterminated, connections.ui.note
    with (
        seekable(file) as path,
        open_file(path, name, groups.single, unterminated=unterminated, shown=file, note=note) as snapshot,
    ):
        crossed = connections.check_crossing("offsets reset", snapshot, store, to.translate)
        scenario, dropped = offsets_of(snapshot.read(), crossed, groups)
        if dropped:
            connections.warn(f"a reset does not write {dropped_text(dropped)} that are in {file}; offsets import does")
        return scenario


accept_names(globals())
