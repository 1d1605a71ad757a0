"""Plans the edits that can be planned without log ranges: delete, import, copy, and undo.

Each function yields one `GroupEditPlan` for each group and writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Final, TypeVar

from offsetmgr.core.advice import Advice
from offsetmgr.core.batches import batched
from offsetmgr.core.errors import (
    Conflict,
    CorruptData,
    GateRefused,
    GroupActive,
    GroupNotFound,
    NotAuthorized,
    OffsetMgrError,
    PartialFailure,
    TopicNotAuthorized,
    UnknownTopicOrPartition,
    UsageError,
)
from offsetmgr.core.evaluation import rejection, same_value
from offsetmgr.core.log_origin import FetchLogRanges, LogRangeCache
from offsetmgr.core.model import (
    ABSENT,
    Committed,
    LogRange,
    Offset,
    OffsetAndMetadata,
    TopicPartition,
    with_drop,
)
from offsetmgr.core.offset_store import (
    Capabilities,
    Change,
    ChangeOutcome,
    EditStatus,
    GroupEditResult,
    GroupOffsets,
    GroupTreeStore,
    OffsetStore,
)
from offsetmgr.core.plurals import count_of
from offsetmgr.core.selection import ALL_TOPICS, TopicSelection
from offsetmgr.groups.before_images import image_file
from offsetmgr.groups.edit_plan import (
    BY_PARTITION,
    EditPlan,
    GroupEditPlan,
    PlannedChange,
    plan_change,
    plan_replacement,
    replaced_data,
)
from offsetmgr.groups.execute import SavedEdit, start_edit
from offsetmgr.groups.reset import GROUPS_AT_ONCE, clamp, outside_log
from offsetmgr.groups.scan import require_known, scan_in_order
from offsetmgr.kafka.protocol.errors import NegativeOffset
from offsetmgr.snapshots.base import SnapshotHeader
from offsetmgr.snapshots.group_images import GroupImages, ImagesKind
from offsetmgr.stores.cross_cluster_check import CrossClusterCheck, holds_metadata

if TYPE_CHECKING:
    from offsetmgr.stores.kafka import KafkaStore

# `LogChecks`: compares the offsets that an import writes with the logs. `offsetmgr.groups.reset` decides in the same
# way: an offset outside its log is clamped to the log, with a note, and an offset of a missing topic or partition is
# an error. `OutsideLogChecks` adds notes to the offsets of an undo or of ``offsets set``, and clamps or rejects none
# of them.

_Source = TypeVar("_Source")

UNCHECKED_HINT: Final = Advice(
    "correct the topic, or leave it out with {topic}; {unchecked} writes the offset without a check"
)


class LogChecks:
    """The checks of one import. Call in this order: 1. `loaded` with the groups of the source; 2. `clamped` for each
    offset of the groups that it yields."""

    def __init__(self, fetch: FetchLogRanges) -> None:
        self._ranges = LogRangeCache(fetch)

    def loaded(self, sources: Iterable[GroupOffsets], topics: TopicSelection) -> Iterator[GroupOffsets]:
        """Yields the groups after it has fetched the log ranges of their offsets in the selected topics, for many
        groups in one request. Raises any error that concerns the whole cluster."""
        for batch in batched(sources, GROUPS_AT_ONCE):
            self._ranges.load(
                offsets=((tp, one.offset) for found in batch for tp, one in found.offsets.items() if topics.matches(tp))
            )
            yield from batch

    def clamped(
        self, tp: TopicPartition, committed: Committed, held: Offset | None, capabilities: Capabilities
    ) -> tuple[Committed, str, OffsetMgrError | None]:
        """Returns the offset clamped to its log, with a note if the offset was outside the log. The last item is an
        error if the cluster has no such log. An offset that the store already holds (``held``) is not clamped, because
        the import does not write it."""
        log = self._ranges.known.get(tp)
        if isinstance(log, OffsetMgrError):
            return committed, "", type(log)(log.what, log.why, UNCHECKED_HINT)
        offset, note = clamp(committed.offset, log) if log is not None else (committed.offset, "")
        if not note or (held is not None and same_value(held, committed.value(), capabilities)):
            return committed, "", None
        note = with_drop(note, committed.metadata)
        return committed._replace(offset=offset, metadata="", leader_epoch=None), note, None


class OutsideLogChecks:
    """Compares the offsets of one undo, or of one ``offsets set``, with the logs. Both write offsets exactly, and do
    not need the brokers, so neither an offset outside its log, a missing topic, nor an error of the brokers prevents
    them.

    The warnings contain ``verb``, a past participle.
    """

    def __init__(
        self, fetch: FetchLogRanges | None, verb: str = "restored", *, rejects: bool = False, shared: bool = False
    ) -> None:
        """Without ``fetch``, nothing is compared. With ``rejects``, an offset that would get a note gets a problem.
        ``shared`` means that the offsets are those of share groups, whose consumers do not reset their position."""
        self._verb, self._rejects, self._shared = verb, rejects, shared
        self._ranges = LogRangeCache(fetch or (lambda _partitions: {}))
        self._error: OffsetMgrError | None = None
        self.outside = 0
        """The number of offsets outside their logs that were found so far."""
        self._missing = 0
        self._unknown = 0

    def noted(self, plans: Iterable[GroupEditPlan]) -> Iterator[GroupEditPlan]:
        """Yields the plans. The note of each written offset that is outside its log, or has no log, begins with the
        reason."""
        for batch in batched(plans, GROUPS_AT_ONCE):
            self.load(
                (change.partition, change.after.offset)
                for plan in batch
                for change in plan.changes
                if change.writes and change.problem is None and change.after is not None
            )
            for plan in batch:
                yield replace(plan, changes=tuple(map(self._noted, plan.changes)))

    def load(self, offsets: Iterable[tuple[TopicPartition, int]]) -> None:
        """Fetches the log ranges of these offsets. After an error that concerns the whole cluster, the object fetches
        nothing more, and `warnings` contains the error."""
        if self._error is None:
            try:
                self._ranges.load(offsets=offsets)
            except OffsetMgrError as error:
                self._error = error

    def note(self, tp: TopicPartition, offset: int) -> str:
        """Returns a note if the offset is outside its log or could not be compared with it, and counts it; else an
        empty string. Call `load` before."""
        log = self._ranges.known.get(tp)
        if isinstance(log, UnknownTopicOrPartition):
            self._missing += 1
            return log.why
        if isinstance(log, OffsetMgrError):
            self._unknown += 1
            return f"not compared with its log: {log.why}"
        found = outside_log(offset, log) if isinstance(log, LogRange) else ""
        self.outside += bool(found)
        return found

    def count(self, offsets: Iterable[tuple[TopicPartition, int]]) -> None:
        """Fetches the log ranges, and counts the offsets that `warnings` reports."""
        counted = list(offsets)
        self.load(counted)
        for tp, offset in counted:
            self.note(tp, offset)

    def warnings(self) -> Iterator[str]:
        """Yields the warnings of the edit, for the lines before its prompt."""
        if self.outside and not self._rejects:
            follows = "a consumer that starts there follows auto.offset.reset, and with latest it skips every record"
            then = "" if self._shared else f": {follows} up to the log's end"
            yield f"{count_of(self.outside, 'offset')} would be {self._verb} outside the log{then}"
        if self._missing and not self._rejects:
            place = "a partition" if self._missing == 1 else "partitions"
            yield f"{count_of(self._missing, 'offset')} would be {self._verb} in {place} that the brokers do not have"
        if self._unknown and not self._rejects:
            its = "its log" if self._unknown == 1 else "their logs"
            yield f"{count_of(self._unknown, 'offset')} would be {self._verb} without a comparison with {its}"
        if self._error is not None:
            yield f"the {self._verb} offsets were not compared with the logs: {self._error}"

    def _noted(self, change: PlannedChange) -> PlannedChange:
        if not change.writes or change.problem is not None or change.after is None:
            return change
        found = self.note(change.partition, change.after.offset)
        if found and self._rejects:
            why = f"cannot be set to {change.after.offset}: {found}"
            return change._replace(problem=Conflict(str(change.partition), why, "make a new plan"), writes=False)
        return change._replace(note="; ".join(filter(None, (found, change.note)))) if found else change


_SAVED: Final = "unreadable: its znode is saved"
_LOST: Final = "unreadable: the data of its znode is lost"
_ACCEPT_HINT: Final = Advice("fix the cause, or add {accept_unseen} to delete it without a before-image")


def plan_delete(store: OffsetStore, groups: Iterable[str], topics: TopicSelection) -> Iterator[GroupEditPlan]:
    """Plans the deletion of the groups' committed offsets in the selected topics.

    The problem of the change of a partition that cannot be read is the read error, unless ``topics`` names it by number
    and the before-image can hold its data.
    """
    named = topics.numbered(store.capabilities.partitions)
    for found in scan_in_order(store, groups, lambda _group: named):
        if found.error is not None:
            yield GroupEditPlan(found.name, (), found.error, unrecognised=found.unrecognised)
            continue
        if not (found.offsets or found.errors):
            require_known([store], [found.name])
        changes = [
            plan_change(tp, committed, None, store.capabilities, note="deletes")
            for tp, committed in found.offsets.items()
            if topics.matches(tp)
        ]
        changes += [plan_replacement(store, tp, e, None, named) for tp, e in found.errors.items() if topics.matches(tp)]
        problem = None
        if not changes and not topics.everything:
            problem = GroupNotFound(f"group {found.name!r}", "has no committed offsets in these topics")
        rows, raw = tuple(sorted(changes, key=BY_PARTITION)), replaced_data(changes, found.errors)
        yield GroupEditPlan(found.name, rows, problem, unrecognised=found.unrecognised, raw=raw)


def store_of_images(
    path: Path, header: SnapshotHeader | None, store: OffsetStore, others: Iterable[OffsetStore]
) -> OffsetStore:
    """Returns the store whose edit wrote the file ``path``: ``store``, one of the two stores of ``store`` if it is a
    pair, or one of ``others``.

    The URI in the file decides. If no store has this URI, for example because a broker has another address now, the
    identity of the stores decides. Raises `UsageError` if no store fits, because the undo would change nothing, or
    other offsets.
    """
    known = [*store.parts, *others]
    if header is None or not header.source_uri:
        return store
    for one in known:
        if one.uri == header.source_uri:
            return one
    identities = [(one, one.identity()) for one in known]
    same = [
        one
        for one, found in identities
        if header.source_kind in (found.kind, f"{found.kind}-share") and header.cluster_id in (found.id, *found.former)
    ]
    if len(same) == 1:
        return same[0]
    raise UsageError(
        f"undo of {path}",
        f"the edit was made in {header.source_uri}, which is not {store.uri}",
        f"use OffsetAdmin({header.source_uri!r})",
    )


def tree_store(store: OffsetStore) -> GroupTreeStore | None:
    """Returns the store whose groups are trees of znodes: ``store``, or one of its two stores."""
    return next((one for one in store.parts if isinstance(one, GroupTreeStore)), None)


def with_trees(
    store: OffsetStore, plans: Iterable[GroupEditPlan], unsaved: Container[str] = ()
) -> Iterator[GroupEditPlan]:
    """Adds the whole tree of znodes to the plans of groups to delete, so that the before-images hold it. A group whose
    tree cannot be saved gets a problem. Data that cannot be decoded is no problem, because the tree contains it. In a
    pair, the offset of such a partition is deleted in the other store, unless the whole group cannot be read."""
    trees, pair = tree_store(store), len(store.parts) > 1
    for plan in plans:
        problem = None if _is_saved(plan.problem) and not pair else plan.problem
        if trees is None or isinstance(problem, GroupActive):
            yield plan
            continue
        try:
            removes = trees.saved_tree(plan.name, unsaved)
        except GroupNotFound:  # the group is only in the other store of a pair
            yield plan
            continue
        except OffsetMgrError as error:
            if problem is not None:  # names all options at once
                why, hint = (Advice("{}; {}", *both) for both in ((problem.why, error.why), (problem.hint, error.hint)))
                error = GateRefused(problem.what, why, hint)
            yield replace(plan, problem=error)
            continue
        changes = tuple(
            one._replace(note=_SAVED if isinstance(one.problem, CorruptData) else _LOST, problem=None, writes=pair)
            if _is_saved(one.problem)
            else one
            for one in plan.changes
        )
        yield plan if problem is not None else replace(plan, changes=changes, problem=None, removes=removes)


def _is_saved(error: OffsetMgrError | None) -> bool:
    """Returns whether a group or partition with this error can be in a saved tree, because the error is about a znode.
    `GroupTreeStore.saved_tree` raises an error for nodes that cannot be read."""
    return isinstance(error, CorruptData | NotAuthorized) and not isinstance(error, NegativeOffset | TopicNotAuthorized)


def unseen(
    store: OffsetStore, groups: Sequence[str], *, by_deletion: bool = True, accept: bool
) -> dict[str, OffsetMgrError]:
    """Returns the reasons of `KafkaStore.unseen`. Stores of other kinds list all offsets. In a pair, a deletion is no
    proof, because a failed proof would not restore the other store."""
    by_deletion = by_deletion and len(store.parts) == 1
    found = [one.unseen(groups, by_deletion=by_deletion, accept=accept) for one in _kafka_stores(store)]
    return {group: error for reasons in found for group, error in reasons.items()}


def _kafka_stores(store: OffsetStore) -> list[KafkaStore]:
    from offsetmgr.stores.kafka import KafkaStore

    return [one for one in store.parts if isinstance(one, KafkaStore)]


def plan_removal(store: OffsetStore, groups: Sequence[str], *, accept_unseen: bool = False) -> Iterator[GroupEditPlan]:
    """Plans the deletion of groups with all their offsets. A group in Kafka with an offset that cannot be read, or that
    may have unseen offsets, has a problem and stays whole. `with_trees` decides on data in ZooKeeper.

    With ``accept_unseen``, the plan deletes the offsets that can be read, and `remove_groups` deletes the others
    without before-images.
    """
    reasons = unseen(store, groups, accept=accept_unseen)
    stores = store.parts
    in_kafka, in_trees = bool(_kafka_stores(store)), tree_store(store) is not None
    for plan in plan_delete(store, groups, ALL_TOPICS):
        problem, changes = plan.problem or reasons.get(plan.name), list[PlannedChange]()
        if _is_saved(plan.problem) and problem is not None and len(stores) > 1:
            each = " and ".join("{store} {}" for _ in stores)
            hint = Advice(f"delete the group in each store: {each}", *(quote(one.uri) for one in stores))
            problem = GateRefused(problem.what, problem.why, hint)
        for one in plan.changes:
            error = one.problem
            if not in_kafka or error is None or (in_trees and _is_saved(error)):
                changes.append(one)
            elif accept_unseen:
                note = f"deleted without a before-image: {error.why or error.what}"
                changes.append(one._replace(problem=None, note=note))
            else:
                changes.append(one)
                problem = problem or type(error)(error.what, error.why, _ACCEPT_HINT)
        yield replace(plan, changes=tuple(changes), problem=problem)


def start_deletion(
    store: OffsetStore,
    plan: EditPlan,
    path: Path,
    on_durable: Callable[[Path], None],
    on_removed: Callable[[str], None],
) -> SavedEdit:
    """Starts the deletion of groups, like `start_edit`. A group in ZooKeeper is a tree of znodes: the store deletes it
    with its offsets in one transaction, and a pair after its offsets. ``on_removed`` receives a text about each deleted
    tree. If a tree cannot be deleted, the result of its group has an ``error``."""
    trees = tree_store(store)
    if trees is None:
        return start_edit(store, plan, path, on_durable)

    def deleted(planned: GroupEditPlan) -> GroupEditResult:
        changes = [one for one in planned.changes if one.writes]
        try:
            trees.delete_group(planned.name, planned.removes)
        except OffsetMgrError as error:
            failed = {one.partition: ChangeOutcome(EditStatus.FAILED) for one in changes}
            return GroupEditResult(planned.name, failed, error=error)
        on_removed(f"removed group {planned.name!r} with {count_of(len(planned.removes), 'znode')}")
        written = {one.partition: ChangeOutcome(EditStatus.WRITTEN, one.before) for one in changes}
        return GroupEditResult(planned.name, written)

    def removals(failed: Container[str] = ()) -> Iterator[GroupEditPlan]:
        return (one for one in plan if one.removes and one.problem is None and one.name not in failed)

    if isinstance(store, GroupTreeStore):
        image = image_file(path, store, plan, on_durable)

        def results() -> Generator[GroupEditResult, None, None]:
            image.intend(plan)
            yield from map(deleted, removals())

        return SavedEdit((image,), results())
    started = start_edit(store, plan, path, on_durable)

    def results_of_pair() -> Generator[GroupEditResult, None, None]:
        failed = {one.name for one in plan if any(change.problem for change in one.changes)}
        with closing(started.results) as written:
            for result in written:
                failed |= {result.group} if result.failures else set()
                yield result
        for planned in removals(failed):
            if (result := deleted(planned)).error is not None:
                yield replace(result, outcomes={})  # the offsets were deleted before

    return SavedEdit(started.images, results_of_pair())


def remove_groups(
    store: OffsetStore, groups: Iterable[str], *, accept_unseen: bool = False
) -> Iterator[tuple[str, OffsetMgrError | None]]:
    """Deletes groups whose offsets have already been deleted with before-images. Yields each group with an error, or
    with None if the group was deleted.

    If another client has committed to a group in the meantime, the function does not delete the group and yields the
    error `Conflict`. The same applies to a Kafka group with unseen offsets, unless ``accept_unseen``.
    In some stores a group consists only of its offsets; for these stores the function does nothing.
    """
    from offsetmgr.stores.protocol_edits import ProtocolStore

    if not isinstance(store, ProtocolStore):
        return
    for group in groups:
        try:
            (left,) = store.scan([group])
            if left.error is not None:
                raise left.error
            if left.offsets:
                yield group, Conflict(f"group {group!r}", "another client committed to it meanwhile, so it stays")
                continue
            if left.errors and not accept_unseen:
                raise next(iter(left.errors.values()))
            store.delete_group(group)
        except GroupNotFound:
            yield group, None  # the group disappeared with its last offset
        except OffsetMgrError as error:
            yield group, error
        else:
            yield group, None


def groups_left_without_offsets(store: OffsetStore, groups: Iterable[str]) -> list[str]:
    """Returns the groups that the store still lists although they have no offsets. Raises any error from reading the
    store."""
    known = set(store.groups())
    names = [group for group in groups if group in known]
    return [f.name for f in scan_in_order(store, names) if not (f.offsets or f.errors or f.error or f.unrecognised)]


def plan_import(
    store: OffsetStore,
    sources: Iterable[GroupOffsets],
    topics: TopicSelection = ALL_TOPICS,
    *,
    rename: Mapping[str, str] | None = None,
    allow_rewind: bool = False,
    crossing: CrossClusterCheck | None = None,
    checks: LogChecks | None = None,
) -> Iterator[GroupEditPlan]:
    """Plans the import of the offsets in ``sources`` (groups of a snapshot or of another store) into ``store``.

    Unless ``allow_rewind`` is True, a change that would lower a committed offset gets a problem (data rule "no
    accidental rewind"). ``crossing`` detects offsets whose topic was recreated after the commit; a change to such an
    offset gets a problem, too. If ``crossing`` is None, the function does not import leader epochs, and the caller
    guarantees that the offsets belong to the logs of the target's cluster. ``checks`` clamps offsets outside their
    logs, except those that ``store`` already holds; a change to an offset without a log gets a problem. Partitions
    without an offset in ``sources`` are not changed.
    """
    rename, new, everything = rename or {}, tuple.__new__, topics.everything
    sources = sources if checks is None else checks.loaded(sources, topics)
    keeps_epochs = crossing is not None and crossing.comparison.keeps_epochs
    named = ((rename.get(source.name, source.name), source) for source in sources)
    for source, found in _with_present(store, named, lambda source: filter(topics.matches, source.offsets)):
        if (problem := source.error or found.error) is not None:
            yield GroupEditPlan(found.name, (), problem)
            continue
        changes: list[PlannedChange] = []
        if crossing is not None:
            crossing.load_topics({tp.topic for tp in source.offsets})
        for tp, original in source.offsets.items():
            if not (everything or topics.matches(tp)):
                continue
            committed = original if keeps_epochs or original[2] is None else original._replace(leader_epoch=None)
            before, note = found.offsets.get(tp), ""
            rejected: OffsetMgrError | None = crossing.recreation_error(tp, committed) if crossing is not None else None
            if checks is not None and rejected is None:
                committed, note, rejected = checks.clamped(tp, committed, before, store.capabilities)
            if rejected is not None:
                changes.append(PlannedChange(tp, before or ABSENT, committed.value(), problem=rejected, writes=False))
            elif before is not None and committed[0] > before[0] and not (before[1] or committed[1]):  # fast path
                changes.append(
                    new(PlannedChange, (tp, before, new(OffsetAndMetadata, committed[:4]), note, None, True))
                )
            else:
                after = committed.value()
                if before is not None and before.offset == after.offset and not holds_metadata(crossing):
                    after = before.value()  # the source could not have the metadata, so it does not clear it
                changes.append(_plan_imported(store, tp, found, after, allow_rewind, note))
        changes += [plan_replacement(store, tp, e, None, ()) for tp, e in source.errors.items() if topics.matches(tp)]
        rows = tuple(sorted(changes, key=BY_PARTITION))
        yield GroupEditPlan(found.name, rows, unrecognised=found.unrecognised)


def plan_undo(
    store: OffsetStore,
    images: Iterable[GroupImages],
    topics: TopicSelection = ALL_TOPICS,
    *,
    allow_rewind: bool = False,
    crossing: CrossClusterCheck | None = None,
    plan: ImagesKind | None = None,
) -> Iterator[GroupEditPlan]:
    """Plans the undo of an edit: restores the previous offsets and deletes the offsets that the edit created.

    If a partition holds neither the offset that the edit wrote nor the previous offset, another client has committed
    since the edit. Unless ``allow_rewind`` is True, the partition gets the problem `Conflict`. An undo may rewind
    offsets. ``crossing`` detects before-images whose topic was recreated after the commit; the change to such a
    before-image gets a problem, too. If ``crossing`` is None, the caller guarantees that the before-images belong to
    the logs to which the store's offsets refer. ``plan`` is the kind of the file if it is a saved plan: errors name the
    plan, and an offset that is new in the group that it copies is a `Conflict`, too.
    """
    named = ((one.group, one) for one in images)
    for source, found in _with_present(store, named, lambda source: filter(topics.matches, source.after)):
        if found.error is not None:
            yield GroupEditPlan(found.name, (), found.error)
            continue
        changes: list[PlannedChange] = []
        if crossing is not None:
            crossing.load_topics({tp.topic for tp in source.after})
        restores = source.nodes if isinstance(store, GroupTreeStore) and topics.everything else ()
        after = source.after
        if plan is not None and plan.copied == found.name:
            after = dict.fromkeys(filter(plan.topics.matches, (*found.offsets, *found.errors))) | {**after}
        for tp, written_offset in after.items():
            if not topics.matches(tp):
                continue
            change = _plan_restored(store, tp, found, source, crossing)
            if restores and change.before is ABSENT and change.writes:
                change = change._replace(note="restored with its znode", writes=False)
            try:
                now = store.capabilities.position(change.before)
            except Conflict as unknown:
                changes.append(change if allow_rewind else change._replace(problem=unknown, writes=False))
                continue
            if change.writes and now != written_offset:
                then, data = written_offset, source.raw.get(tp)
                moved_on = _moved_on(found.name, change, now, then, data, of_plan=plan is not None)
                note = "; ".join(filter(None, (change.note, moved_on.why)))
                change = change._replace(note=note) if allow_rewind else change._replace(problem=moved_on, writes=False)
            changes.append(change)
        rows = tuple(sorted(changes, key=BY_PARTITION))
        problem = next((change.problem for change in rows if change.problem is not None), None) if restores else None
        raw = {tp: (None, data) for tp, data in source.raw.items()}
        yield GroupEditPlan(found.name, rows, problem, restores=restores, raw=raw)


def _with_present(
    store: OffsetStore, sources: Iterable[tuple[str, _Source]], named: Callable[[_Source], Iterable[TopicPartition]]
) -> Iterator[tuple[_Source, GroupOffsets]]:
    """Yields each source with the present offsets of the group whose name precedes it. ``named`` returns the
    partitions that are read if other data of the group prevents the scan."""
    pending: dict[str, _Source] = {}

    def names() -> Iterator[str]:
        for name, source in sources:
            pending[name] = source
            yield name

    for found in scan_in_order(store, names(), lambda name: named(pending[name])):
        yield pending.pop(found.name), found


def as_a_whole(found: Iterable[GroupEditPlan]) -> Iterator[GroupEditPlan]:
    """Yields the plans of the undo of a saved plan, which executes it, without the partitions that are as planned
    already. If another partition was refused, every group has a problem, because a copy is right only if its source is
    unchanged."""
    plans: list[GroupEditPlan] = []
    for plan in found:
        left = tuple(one for one in plan.changes if one.problem or one.writes)
        plans += [replace(plan, changes=left)] if left or plan.problem is not None else []
    refused = [plan.name for plan in plans if plan.problem or any(change.problem for change in plan.changes)]
    why = f"stays unchanged, because the plan has group {refused[0]!r}, which was refused" if refused else ""
    for plan in plans:
        yield replace(plan, problem=Conflict(f"group {plan.name}", why)) if why and plan.name not in refused else plan


def _plan_imported(
    store: OffsetStore, tp: TopicPartition, found: GroupOffsets, after: OffsetAndMetadata, allow_rewind: bool, note: str
) -> PlannedChange:
    if (error := found.errors.get(tp)) is not None:
        return PlannedChange(tp, ABSENT, after, note, problem=error, writes=False)
    before = found.offsets.get(tp, ABSENT)
    if isinstance(before, Committed) and (
        refused := rejection(found.name, tp, Change(after, None, allow_rewind), before)
    ):
        return PlannedChange(tp, before, after, note, problem=refused, writes=False)
    return plan_change(tp, before, after, store.capabilities, note=note)


def _plan_restored(
    store: OffsetStore, tp: TopicPartition, found: GroupOffsets, source: GroupImages, crossing: CrossClusterCheck | None
) -> PlannedChange:
    """Returns the change that restores the before-image of one partition."""
    data, before, current = source.raw.get(tp), source.before.get(tp), found.offsets.get(tp, ABSENT)
    if (error := found.errors.get(tp)) is not None:
        if isinstance(error, CorruptData) and error.data is not None and error.data == data:
            return PlannedChange(tp, ABSENT, None, "unchanged", writes=False)
        return PlannedChange(tp, ABSENT, None, problem=error, writes=False)
    if data is not None:
        return PlannedChange(tp, current, None, f"restores {data[:40]!r}")
    if before is None:
        return plan_change(tp, current, None, store.capabilities, note="deletes")
    back = before.value()
    if crossing is not None:
        back = crossing.adapt(back)
        if (rejected := crossing.recreation_error(tp, before)) is not None:
            return PlannedChange(tp, current, back, problem=rejected, writes=False)
    return plan_change(tp, current, back, store.capabilities)


def _moved_on(
    group: str, change: PlannedChange, at: int | None, wrote: int | None, data: bytes | None, *, of_plan: bool
) -> Conflict:
    """Returns the error of an undo of a partition that has changed since the edit. Its reason has the number of
    messages that the consumers repeat or skip if the undo restores the offset, or names ``data`` that is no offset."""
    tp, back = change.partition, change.after
    now, then = ("absent" if one is None else one for one in (at, wrote))
    if of_plan:
        why = f"has changed since the plan was made: {now} now, and {then} in the plan"
        return Conflict(f"group {group}, {tp}", why, "make a new plan")
    why = f"has changed since: {now} now, the edit wrote {then}"
    if data is not None:
        why += f"; the undo restores {data[:40]!r}, which is no offset"
    elif back is None:
        why += "; the undo deletes it, so auto.offset.reset decides where the consumers start"
    elif at is not None and at != back.offset:
        why += f"; the undo {'repeats' if at > back.offset else 'skips'} {count_of(abs(at - back.offset), 'message')}"
    return Conflict(f"group {group}, {tp}", why, Advice("add {allow_rewind} to restore it anyway"))


# Plans a copy of a group's offsets to another name or store, and compares the copy with the original afterwards.


def plan_copy(
    source: OffsetStore,
    group: str,
    target: OffsetStore,
    name: str,
    topics: TopicSelection = ALL_TOPICS,
    *,
    allow_rewind: bool = False,
    crossing: CrossClusterCheck | None = None,
    accept_unseen: bool = False,
) -> Iterator[GroupEditPlan]:
    """Plans to copy the committed offsets of ``group`` in ``source`` to the group ``name`` in ``target``. With
    ``accept_unseen``, leaves out the offsets that cannot be read.

    Raises `GroupNotFound` if ``group`` does not exist in ``source``, or has no offsets in ``topics``.
    """
    (found,) = scan_in_order(source, [group])
    if found.hidden is not None and not found.offsets:
        raise found.hidden
    if not (found.offsets or found.errors or found.error):
        require_known([source], [group])
        raise GroupNotFound(f"group {group!r}", "has no committed offsets to copy")
    if found.offsets and not any(topics.matches(tp) for tp in found.offsets):
        raise GroupNotFound(f"group {group!r}", "has no committed offsets in these topics")
    if accept_unseen and found.offsets:
        found = replace(found, errors={})
    rename = {group: name}
    for plan in plan_import(target, [found], topics, rename=rename, allow_rewind=allow_rewind, crossing=crossing):
        yield replace(plan, unrecognised=found.unrecognised + plan.unrecognised)


def verify_copy(source: OffsetStore, group: str, target: OffsetStore, name: str, *, accept_unseen: bool = False) -> int:
    """Reads both groups again, and compares the offset and the metadata of each partition of the original group with
    the copy. Returns the number of compared partitions.

    Raises `Conflict` if the copy differs from the original, and any error from reading the groups. With
    ``accept_unseen``, leaves out the offsets of the original that cannot be read.
    """
    try:
        original = source.fetch(group)
    except PartialFailure as partial:
        if not accept_unseen:
            raise
        original = partial.successes
    copied = target.fetch(name)
    for tp in sorted({*original, *copied}):
        expected, actual = original.get(tp), copied.get(tp)
        if not isinstance(expected, Committed):
            continue
        if not isinstance(actual, Committed) or (actual.offset, actual.metadata) != (
            expected.offset,
            expected.metadata,
        ):
            raise Conflict(
                f"copy of group {group!r} in {name!r}",
                f"{tp} is {_offset_text(actual)} in the copy and {_offset_text(expected)} in the original; "
                "the original was kept",
                "find out whether a client commits to one of the two groups",
                actual=actual,
            )
    return len(original)


def _offset_text(found: object) -> str:
    return str(found.offset) if isinstance(found, Committed) else "absent"
