"""Compares the positions of groups in two clusters, for `offsetmgr.app.offsets.diff_translated`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from offsetmgr.app.connections import Connections
from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import (
    OffsetMgrError,
    TopicNotAuthorized,
    UnknownTopicOrPartition,
    UnsupportedOperation,
    UsageError,
)
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.plurals import count_of, list_of
from offsetmgr.core.topic_renames import TopicRenames

if TYPE_CHECKING:
    from offsetmgr.core.offset_store import GroupOffsets, OffsetStore
    from offsetmgr.groups.scan import TopicMatches
    from offsetmgr.kafka.cluster import KafkaCluster
    from offsetmgr.translation.comparison import CommittedPositions, PositionCounts, PositionDifference
    from offsetmgr.translation.translator import TranslationOptions


class RecordComparison(NamedTuple):
    """How `offsetmgr.app.offsets.diff_translated` finds the right records.

    ``topics`` are rules ``PATTERN=REPLACEMENT``, which give the names of topics in the target: the first rule whose
    regular expression matches a whole name counts. ``groups`` maps groups to their names in the target. With
    ``accept_inferred``, a position that is only inferred counts as known. The others limit the reading: ``max_read``
    bytes of a partition in both logs together (default: 256 MiB), and ``throttle`` bytes in a second (default: no
    limit). Headers with the names ``ignored_headers`` are ignored, besides those of known copiers.
    """

    topics: tuple[str, ...] = ()
    groups: Mapping[str, str] = MappingProxyType({})
    accept_inferred: bool = False
    max_read: int | None = None
    throttle: int | None = None
    ignored_headers: tuple[str, ...] = ()


ALL_RECORDS: Final = RecordComparison()


class PositionsFound(Protocol):
    """The parts of `offsetmgr.app.offsets.FoundPositions` that `differences` uses."""

    groups: list[str]
    errors: list[OffsetMgrError]
    topics: TopicMatches
    counts: PositionCounts

    def check_topics(self, where: str) -> None: ...


def require_two_logs(left: OffsetStore, right: OffsetStore, *, renamed: bool) -> None:
    from offsetmgr.core.log_origin import compare_origins
    from offsetmgr.core.offset_store import PartitionKinds

    for store in (left, right):
        if store.uri.startswith("file:") or store.capabilities.partitions is PartitionKinds.OF_BROKERS:
            why = "has no logs of Kafka 0.8 or later: translation reads the records at the committed offsets"
            raise UnsupportedOperation(store.uri, why, "name the Kafka cluster or the ZooKeeper of the groups")
    compared = compare_origins(left.log_origin(), right.log_origin())
    if compared.keeps_epochs and not renamed:
        why = f"both stores belong to one cluster ({compared.how}), in which equal offsets are the same records"
        raise UsageError(Advice("{translate=auto}"), why, Advice("compare the offsets: leave out {translate}"))


def differences(
    connections: Connections,
    found: PositionsFound,
    stores: tuple[OffsetStore, OffsetStore],
    clusters: tuple[KafkaCluster, KafkaCluster],
    how: RecordComparison,
    named: Collection[str],
) -> Iterator[PositionDifference]:
    """``named`` are the groups that are selected by name."""
    from offsetmgr.groups.diff import NamesInRight, read_both
    from offsetmgr.translation.alignment import Verdict
    from offsetmgr.translation.comparison import CommittedPositions
    from offsetmgr.translation.translator import PositionTranslator

    rename, (source, target), absent = TopicRenames(how.topics), clusters, []
    existing = source.topics() if rename else ()
    old = rename.inverse(existing)

    def back(tp: TopicPartition) -> TopicPartition | None:
        name = old.get(tp.topic) if rename else tp.topic
        return None if name is None else TopicPartition(name, tp.partition)

    accepted = [Verdict.SEEN, *([Verdict.INFERRED] if how.accept_inferred else [])]
    committed = CommittedPositions(rename, accepted)
    names = NamesInRight(lambda group: how.groups.get(group, group), rename.partition, back)
    for in_left, in_right in read_both(
        *stores, connections.ui.progress(found.groups, "reading", len(found.groups)), names
    ):
        found.errors += _add_group(committed, in_left, in_right, found.topics, back)
        if in_left.name in named and not (in_left.offsets or in_left.errors or in_left.error):
            absent.append(in_left.name)
    positions = committed.positions()
    compared = {tp.topic for tp in positions}
    rename.require_matches({*existing, *compared}, compared)
    options = _translation_options(connections, how, len(positions))
    _note_reading(connections, source, positions, options.max_read)
    translator = PositionTranslator(source, target, options)
    translated = translator.translate(positions, rename, committed.earliest())
    for one in connections.ui.progress(translated, "translating", len(positions)):
        if one.error is not None:
            no_copies = committed.no_copies if rename else None
            found.errors.append(_with_hint(one.error, one.source, one.target, no_copies))
        committed.compare(one)
    if committed.no_copies:
        topics = list_of(sorted(committed.no_copies), _MAX_NAMED)
        connections.ui.note(f"not compared: offsets in topics of the target that are no copies: {topics}")
    if absent:
        text = "hint: group {} has no offset in {}; {from} names another store"
        connections.ui.note(Advice(text, list_of(absent, _MAX_NAMED), stores[0].uri))
    found.counts = committed.counts
    yield from committed.differences()
    if committed.was_cut:
        connections.ui.note(Advice("hint: a larger {max_read} reads further back"))
    errors = len(found.errors)
    found.check_topics(" and ".join(store.uri for store in stores))
    for missing in found.errors[errors:]:
        missing.hint = Advice.joined([Advice("{topic} selects names in the source"), missing.hint])
    if not (found.counts.total or found.errors):
        found.errors.append(OffsetMgrError("nothing to compare", "no selected group has an offset"))


_MIN_PROGRESS: Final = 16
"""The progress of so many partitions is shown by their number, and that of fewer ones by the bytes read."""
_KIB: Final = 1024


def _translation_options(connections: Connections, how: RecordComparison, partitions: int) -> TranslationOptions:
    """Returns the options, with which a reading of few partitions shows the number of bytes read."""
    from offsetmgr.translation.fingerprints import COPIERS_HEADERS
    from offsetmgr.translation.translator import TranslationOptions

    given = TranslationOptions(ignored_headers=(*COPIERS_HEADERS, *how.ignored_headers), throttle=how.throttle)
    given = given._replace(max_read=how.max_read or given.max_read)
    if partitions >= _MIN_PROGRESS:
        return given
    show, total = connections.ui.meter("reading both logs, KiB", _KIB), 0

    def on_read(read: int) -> None:
        nonlocal total
        total += read
        show(total, None)

    return given._replace(on_read=on_read)


def _with_hint(
    error: OffsetMgrError, source: TopicPartition, target: TopicPartition, no_copies: Collection[str] | None = None
) -> OffsetMgrError:
    """Adds a hint at what a translation needs, if the error is that something is missing. ``no_copies`` are the topics
    with offsets in the target that are no copies, if topics are renamed."""
    from offsetmgr.translation.translator import TooMuch

    if isinstance(error, TopicNotAuthorized):
        topics = f"topic {source.topic} in the source, and on topic {target.topic} in the target"
        error.hint = f"a translation reads the logs of both clusters: grant Read on {topics}"
    elif isinstance(error, UnknownTopicOrPartition) and no_copies is not None:
        there = f"; the groups have offsets there in {list_of(sorted(no_copies), _MAX_NAMED)}" * bool(no_copies)
        error.hint = Advice("check the name that {rename_topic} gives in the target{}", there)
    elif isinstance(error, UnknownTopicOrPartition) and not error.hint:
        error.hint = Advice("if the target's topic has another name: {rename_topic} {}", r"'(.*)=PREFIX.\1'")
    elif isinstance(error, TooMuch):
        error.hint = Advice("a larger {max_read} reads further back")
    return error


def _add_group(
    committed: CommittedPositions,
    in_left: GroupOffsets,
    in_right: GroupOffsets,
    topics: TopicMatches,
    back: Callable[[TopicPartition], TopicPartition | None],
) -> list[OffsetMgrError]:
    """Adds the offsets of a group in both stores. Returns the errors of those that cannot be compared."""
    from offsetmgr.core.model import state_in
    from offsetmgr.groups.lag import state_of
    from offsetmgr.translation.comparison import ONLY_TO, REFUSED, UNREADABLE, PositionDifference

    committed.begin(in_left.name)
    if (error := in_left.error or in_right.error or in_left.hidden or in_right.hidden) is not None:
        topics.incomplete = True
        committed.add_difference(PositionDifference("", None, None, UNREADABLE, note=error.why, error=error))
        return [error]
    errors: dict[str, OffsetMgrError] = {}
    listed = set(filter(topics.matches, (*in_left.offsets, *in_left.errors)))
    known = {committed.target(tp): tp for tp in listed}
    found = {tp: known.get(tp) or back(tp) for tp in (*in_right.offsets, *in_right.errors)}
    committed.no_copies.update(tp.topic for tp, source in found.items() if source is None and topics.matches(tp))
    copies = {source: tp for tp, source in found.items() if source is not None and topics.matches(source)}
    for tp in sorted({*listed, *copies}):
        copy = copies.get(tp)
        left, right = in_left.offsets.get(tp), None if copy is None else in_right.offsets.get(copy)
        offsets = left and left.offset, right and right.offset
        if (error := in_left.errors.get(tp) or (in_right.errors.get(copy) if copy else None)) is not None:
            verdict = state_of(error)
            error = _with_hint(error, tp, committed.target(tp))
        elif left is None:
            verdict = ONLY_TO
        elif (form := state_in(left.metadata)) is not None:
            verdict, why = REFUSED, f"its commit metadata is {form}, which is valid for this offset and log alone"
            error = UnsupportedOperation(f"group {in_left.name!r}", why, "move it with the tools of its client")
        else:
            committed.add(tp, left.offset, right and right.offset)
            continue
        note = "" if error is None else error.why
        committed.add_difference(PositionDifference("", tp, copy, verdict, *offsets, note=note, error=error))
        if error is not None:
            errors.setdefault(str(error), error)
    return list(errors.values())


_MAX_NAMED: Final = 5
_LARGE_READ: Final = 1_000_000_000
"""The command notes a read that may be larger than this number of bytes, if it has at least `_MANY_RECORDS`."""
_MANY_RECORDS: Final = 100_000


def _note_reading(
    connections: Connections, source: KafkaCluster, positions: Mapping[TopicPartition, Collection[int]], max_read: int
) -> None:
    """Tells the user how much a translation reads, if it may be much."""
    limit = len(positions) * max_read
    if limit <= _LARGE_READ:
        return
    from offsetmgr.core.model import LogRange

    ranges = source.log_ranges(positions)
    records = sum(
        max(0, log.end - max(log.start, min(positions[tp]))) for tp, log in ranges.items() if isinstance(log, LogRange)
    )
    if records > _MANY_RECORDS:
        most = f"{limit / 1_000_000_000:,.0f} GB of {count_of(len(positions), 'partition')}"
        text = "reading about {} in each cluster, at most {}; {max_read} and {throttle} limit it"
        connections.ui.note(Advice(text, count_of(records, "record"), most))
