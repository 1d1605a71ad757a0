"""The executor of planned edits, for everyday edits and for migrations.

    sink.intend(batch) -> store.edit(...) -> sink.record(outcome)

Ordering contract: the store receives an edit only after the sink has made the before-images of the edit durable. Each
change in the edit is conditional on its before-image. The sink records the outcome after the write. The sink is a file
of before-images (`offsetmgr.groups.before_images`) or the journal of a migration.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeVar

from offsetmgr.core.advice import Argument, Invocation
from offsetmgr.core.batches import batched
from offsetmgr.core.errors import (
    AuthenticationFailed,
    Conflict,
    CorruptData,
    GroupActive,
    GroupNotFound,
    NotAuthorized,
    OffsetMetadataTooLarge,
    OffsetMgrError,
    OffsetOutOfRange,
    Overwritten,
    RecreatedTopic,
    RewindRefused,
    UnknownTopicOrPartition,
    UnsupportedOperation,
    UsageError,
)
from offsetmgr.core.evaluation import same_value
from offsetmgr.core.model import ABSENT, Offset, TopicPartition
from offsetmgr.core.offset_store import (
    GROUPS_IN_FLIGHT,
    Change,
    ChangeOutcome,
    EditStatus,
    GroupEdit,
    GroupEditResult,
    GroupOffsets,
    GroupTreeStore,
    OffsetStore,
    edit_store,
)
from offsetmgr.groups.before_images import BeforeImageFile, image_file
from offsetmgr.groups.edit_plan import EditPlan, GroupEditPlan, PlannedChange, holds_offset
from offsetmgr.groups.operation_log import OperationLog, OperationStart, first_groups
from offsetmgr.groups.scan import scan_in_order
from offsetmgr.stores.dual_policy import accepted_by_primary, dual_rejection, outcome_of

_REFUSALS: Final = (
    GroupActive,
    Conflict,
    RewindRefused,
    UnknownTopicOrPartition,
    OffsetOutOfRange,
    OffsetMetadataTooLarge,
    RecreatedTopic,
    CorruptData,
    UsageError,
    NotAuthorized,
    AuthenticationFailed,
    GroupNotFound,
    UnsupportedOperation,
)
"""The errors after which nothing was written."""
_REFUSAL_NAMES: Final = frozenset(kind.__name__ for error in _REFUSALS for kind in (error, *error.__subclasses__()))


def may_have_written(error: str) -> bool:
    """Returns whether the store may have changed an offset although the change failed with an error of this class.
    ``error`` is the name of the class, because journals contain names."""
    return error not in _REFUSAL_NAMES


class PlannedGroup(Protocol):
    def edit(self) -> GroupEdit | None:
        """Returns the edit, with each change conditional on its before-image; None if there is nothing to write."""


Planned = TypeVar("Planned", bound=PlannedGroup)
_Planned_contra = TypeVar("_Planned_contra", bound=PlannedGroup, contravariant=True)
Outcome = TypeVar("Outcome")
_Outcome_co = TypeVar("_Outcome_co", covariant=True)


class EditSink(Protocol[_Planned_contra, _Outcome_co]):
    """Keeps the before-images and the outcomes of edits. Several threads may call the methods, because a store may
    consume the edits in its own thread."""

    def intend(self, batch: Iterable[_Planned_contra]) -> None:
        """Makes the before-images of a batch durable. Raises `OffsetMgrError` if this fails. In this case the store
        receives no edit of the batch."""

    def record(self, planned: _Planned_contra, result: GroupEditResult | None) -> _Outcome_co | None:
        """Records the outcome of one group. ``result`` is None if there was nothing to write. Returns the value that
        `execute` yields for the group; None if `execute` yields nothing for the group. A later `intend` or `close`
        makes the record durable."""

    def close(self) -> None:
        """Makes the recorded outcomes durable. Called once, after the last edit or an error."""


def execute(
    edit: Callable[[Iterable[GroupEdit]], Iterator[GroupEditResult]],
    batches: Iterable[Iterable[Planned]],
    sink: EditSink[Planned, Outcome],
) -> Generator[Outcome, None, None]:
    """Executes planned edits of different groups with ``edit``, such as `OffsetStore.edit`. Yields the outcomes that
    the sink returns, in the order in which the store returns the results.

    All before-images of a batch are made durable together. The first batch is made durable before the store is called.
    Each later batch is made durable before the store receives the first edit of the batch. Edits of earlier batches may
    be in flight at that time. The function iterates over each batch twice, and memory grows only with the number of
    groups in flight. The error of a failed change is part of the outcome of the group. Raises the errors of ``sink``,
    and the error of the store if the whole store is unreachable.
    """
    in_flight: dict[str, Planned] = {}
    without_edit: deque[Outcome] = deque()

    def edits() -> Iterator[GroupEdit]:
        for batch in batches:
            sink.intend(batch)
            for planned in batch:
                if (writes := planned.edit()) is not None:
                    in_flight[writes.group] = planned
                    yield writes
                elif (outcome := sink.record(planned, None)) is not None:
                    without_edit.append(outcome)

    waiting = edits()
    try:
        first = next(waiting, None)
        for result in edit(chain((first,), waiting)) if first is not None else ():
            outcome = sink.record(in_flight.pop(result.group), result)
            if outcome is not None:
                yield outcome
            while without_edit:
                yield without_edit.popleft()
        yield from without_edit
    finally:
        sink.close()


# Edits a dual store so that the edit can be undone in each of its two stores. A dual store returns the larger of its
# two stores' offsets, so a single before-image cannot restore both stores. Therefore each of the two stores has its
# own plan and its own before-images. Ordering contract: both files of before-images are complete and fsynced before
# the first edit. The primary store is written before the secondary store. If the primary store rejects a partition,
# the partition is not written to the secondary store (data rule "dual commit: Kafka first"). Every write is
# conditional on the value in its before-image.


def execute_dual(
    stores: tuple[OffsetStore, ...], plan: EditPlan, images: tuple[BeforeImageFile, ...]
) -> Generator[GroupEditResult, None, None]:
    """Executes a plan like `execute` in two stores, with one file of before-images for the primary store and one for
    the secondary.

    If the write of a partition fails only in the secondary store, the status of the partition is FAILED, and the error
    says whether the primary store was changed.
    """
    primary, secondary = stores
    names = [p.name for p in plan if _has_work(p)]
    with EditPlan() as first, EditPlan() as second:
        both = zip(scan_in_order(primary, names), scan_in_order(secondary, names), strict=True)
        for group_plan, (in_primary, in_secondary) in zip(filter(_has_work, plan), both, strict=True):
            changed = _changed_since_plan(group_plan, in_primary, in_secondary)
            first.add(_plan_for_store(group_plan, in_primary, changed, primary))
            second.add(_plan_for_store(group_plan, in_secondary, changed, secondary))
        for image, store_plan in zip(images, (first, second), strict=True):
            image.intend(store_plan)
        pairs = zip(first, second, strict=True)
        for batch in batched(pairs, GROUPS_IN_FLIGHT):
            yield from _execute_batch(primary, secondary, batch)


def _has_work(plan: GroupEditPlan) -> bool:
    return plan.edit() is not None or (bool(plan.removes) and plan.problem is None)


def _changed_since_plan(
    plan: GroupEditPlan, in_primary: GroupOffsets, in_secondary: GroupOffsets
) -> Mapping[TopicPartition, OffsetMgrError]:
    """Returns the partitions that must not be changed, each with its error. These are the partitions that one of the
    stores cannot read, and the partitions whose offset has changed since the plan was made. If the plan deletes the
    znodes, the secondary's value may be unreadable."""
    found: dict[TopicPartition, OffsetMgrError] = {}
    for change in plan.changes:
        tp = change.partition
        before = None if plan.removes and change.before is ABSENT else change.before
        unchanged = Change(change.after, before, allow_rewind=True)
        outcome = dual_rejection(
            plan.name, tp, unchanged, outcome_of(in_primary, tp), outcome_of(in_secondary, tp), None
        )
        if outcome is not None and outcome.error is not None:
            found[tp] = outcome.error
    return found


def _plan_for_store(
    plan: GroupEditPlan, found: GroupOffsets, changed: Mapping[TopicPartition, OffsetMgrError], store: OffsetStore
) -> GroupEditPlan:
    """Returns the plan for one of the two stores: the changes in ``plan``, with before-images from this store."""

    def for_store(planned: PlannedChange) -> PlannedChange:
        before: Offset = found.offsets.get(planned.partition, ABSENT)
        after, problem = planned.after, changed.get(planned.partition)
        differs = not same_value(before, after, store.capabilities)
        if after is not None and not after.metadata and holds_offset(before, after.offset):
            differs = differs and holds_offset(planned.before, after.offset)  # this store keeps its offset and metadata
        return planned._replace(before=before, problem=problem, writes=differs and problem is None)

    changes = tuple(for_store(c) for c in plan.changes if c.writes and c.problem is None)
    return GroupEditPlan(plan.name, changes, removes=plan.removes if isinstance(store, GroupTreeStore) else ())


def _execute_batch(
    primary: OffsetStore, secondary: OffsetStore, batch: list[tuple[GroupEditPlan, GroupEditPlan]]
) -> Iterator[GroupEditResult]:
    """Writes a batch of groups first to the primary store, and then to the secondary store."""
    done = edit_store(primary, [edit for first, _ in batch if (edit := first.edit()) is not None])
    secondary_edits: list[GroupEdit] = []
    for _, second in batch:
        edit = second.edit()
        if edit is None:
            continue
        outcomes = done[second.name].outcomes if second.name in done else {}
        accepted = {
            tp: change
            for tp, change in edit.changes.items()
            if tp not in outcomes or accepted_by_primary(change, outcomes[tp])
        }
        if accepted:
            secondary_edits.append(GroupEdit(second.name, accepted))
    secondary_done = edit_store(secondary, secondary_edits)
    for first, _ in batch:
        yield _combined(first, done.get(first.name), secondary_done.get(first.name))


def _combined(plan: GroupEditPlan, first: GroupEditResult | None, second: GroupEditResult | None) -> GroupEditResult:
    outcomes: dict[TopicPartition, ChangeOutcome] = {}
    for change in plan.changes:
        tp = change.partition
        in_primary = first.outcomes.get(tp) if first is not None else None
        in_secondary = second.outcomes.get(tp) if second is not None else None
        if (problem := change.problem or plan.problem) is not None:
            outcomes[tp] = ChangeOutcome(EditStatus.FAILED, change.before, problem)
        elif in_primary is not None and in_primary.error is not None:
            outcomes[tp] = in_primary
        elif in_secondary is not None and in_secondary.error is not None:
            written = "written to the primary" if in_primary is not None else "unchanged in the primary"
            error = OffsetMgrError(
                f"group {plan.name}, {tp}",
                f"{written}, but not to the secondary: {in_secondary.error}",
                in_secondary.error.hint,
            )
            outcomes[tp] = ChangeOutcome(EditStatus.FAILED, change.before, error)
        else:
            wrote = any(o is not None and o.status is EditStatus.WRITTEN for o in (in_primary, in_secondary))
            outcomes[tp] = ChangeOutcome(EditStatus.WRITTEN if wrote else EditStatus.UNCHANGED, change.before)
    both = "the two stores are written one after the other, each with its own condition"
    return GroupEditResult(plan.name, outcomes, atomic=False, how=both)


# Executes a planned edit in any store, with its before-images in a file or, for a dual store, in two files.


class EditOrigin(NamedTuple):
    """The part of an edit's record in the operation log that the caller knows: the command (``offsets reset``), the
    user's reason, and the arguments for the connection that the call of the undo needs."""

    operation: str
    reason: str = ""
    undo_options: Mapping[str, Argument] = {}


_cause: ContextVar[EditOrigin | None] = ContextVar("cause", default=None)


@contextmanager
def caused_by(origin: EditOrigin) -> Iterator[None]:
    """Marks the edits within the context as parts of a larger operation; see `part`."""
    token = _cause.set(origin)
    try:
        yield
    finally:
        _cause.reset(token)


def part(operation: str) -> EditOrigin:
    """Returns the origin of an edit that is a part of the larger operation of `caused_by`, with its reason and
    connection options."""
    return (_cause.get() or EditOrigin(operation))._replace(operation=operation)


class SavedEdit(NamedTuple):
    """An edit whose before-images are saved before its first write.

    ``images`` are the files of before-images, one for each store that is written. ``results`` executes the edit: each
    ``next`` returns the result of one group. Close ``results`` if you do not exhaust it, because the edit in progress
    may hold group locks.
    """

    images: tuple[BeforeImageFile, ...]
    results: Generator[GroupEditResult, None, None]


@dataclass(slots=True)
class EditReport:
    """The result of an executed edit.

    ``written`` and ``unchanged`` count partitions. ``rejected`` counts the partitions that the plan had already
    rejected. ``before_images`` are the files with which `OffsetAdmin.plan_undo` undoes the edit: one file, or two for a
    ``dual:`` store; empty if nothing was to be written. ``undo`` are the calls that undo the edit, without their
    connections; empty if nothing was changed. ``not_atomic`` has the reasons for which some groups were written without
    a lock, so that a consumer could have committed between the comparison and the write. For each group that was edited
    while its consumers ran (`RunningEdit`), ``evidence`` describes the commits after the edit. ``failed_groups`` maps
    each group that could not be deleted to the error. ``kept_deletions`` counts the deleted offsets that a broker
    before 2.4 keeps until its next check for expired offsets. ``outcomes`` maps each group that the store has answered
    for to the outcomes of those partitions that were not written. ``operations`` are the ids of the edit in the
    operation log: one, or two for a rename; empty if nothing was to be written.

    >>> report = EditReport(written=3, rejected=1)
    >>> report.ok
    False
    """

    before_images: tuple[Path, ...] = ()
    written: int = 0
    unchanged: int = 0
    rejected: int = 0
    not_atomic: tuple[str, ...] = ()
    evidence: dict[str, str] = field(default_factory=dict)
    undo: tuple[Invocation, ...] = ()
    failed_groups: dict[str, OffsetMgrError] = field(default_factory=dict)
    kept_deletions: int = 0
    outcomes: dict[str, dict[TopicPartition, ChangeOutcome]] = field(default_factory=dict)
    operations: tuple[str, ...] = ()

    @property
    def failed(self) -> dict[str, dict[TopicPartition, OffsetMgrError]]:
        """The groups with partitions whose write failed, with the error of each partition."""
        found = ((group, {tp: o.error for tp, o in of.items() if o.error}) for group, of in self.outcomes.items())
        return {group: errors for group, errors in found if errors}

    @property
    def ok(self) -> bool:
        """Whether every planned change was made or was already in the store."""
        return not (self.rejected or self.failed or self.failed_groups)

    @property
    def may_have_written(self) -> bool:
        """Whether the edit has written an offset, or failed so that it may have."""
        errors = (*self.failed_groups.values(), *(e for of in self.failed.values() for e in of.values()))
        return bool(self.written) or any(may_have_written(type(error).__name__) for error in errors)

    def count(self, result: GroupEditResult) -> None:
        """Adds the result of one group."""
        rest = {tp: outcome for tp, outcome in result.outcomes.items() if outcome.status is not EditStatus.WRITTEN}
        self.written += len(result.outcomes) - len(rest)
        self.unchanged += sum(outcome.status is EditStatus.UNCHANGED for outcome in rest.values())
        self.outcomes.setdefault(result.group, {}).update(rest)
        if result.error is not None:
            self.failed_groups[result.group] = result.error
        if not result.atomic and result.how not in self.not_atomic:
            self.not_atomic = tuple(sorted({*self.not_atomic, result.how}))

    def deleted(self, plan: Iterable[GroupEditPlan]) -> int:
        """Returns the number of offsets of ``plan`` that the edit has deleted."""
        return sum(
            change.after is None and change.writes and change.partition not in self.outcomes[group.name]
            for group in plan
            if group.name in self.outcomes
            for change in group.changes
        )

    def add(self, later: EditReport) -> None:
        """Adds the report of a later edit of the same operation, which must be undone first."""
        self.before_images += later.before_images
        self.rejected += later.rejected
        self.not_atomic = tuple(sorted({*self.not_atomic, *later.not_atomic}))
        self.undo = (*later.undo, *self.undo)
        self.failed_groups |= later.failed_groups
        self.kept_deletions += later.kept_deletions
        self.outcomes |= later.outcomes
        self.operations += later.operations


def start_edit(
    store: OffsetStore, plan: EditPlan, path: Path, on_durable: Callable[[Path], None] = lambda _path: None
) -> SavedEdit:
    """Starts an edit. For a pair of stores, ``path`` gets the suffixes ``.primary`` and ``.secondary``.

    ``on_durable`` is called with the path of each file as soon as the file is durable. Raises any error of a store that
    does not report its identity.
    """
    paths = [path] if len(store.parts) == 1 else [path.with_stem(f"{path.stem}.{n}") for n in ("primary", "secondary")]
    images = tuple(image_file(at, one, plan, on_durable) for at, one in zip(paths, store.parts, strict=True))
    results = execute(store.edit, [plan], *images) if len(images) == 1 else execute_dual(store.parts, plan, images)
    return SavedEdit(images, results)


def recorded(
    started: SavedEdit, plan: EditPlan, origin: EditOrigin, id_: str | None = None
) -> Generator[GroupEditResult, None, None]:
    """Yields the results of the edit, which the operation log records under ``id_`` (default: a new id). The first
    ``next`` raises `FileFailure` if the operation log cannot be written; nothing was changed then."""
    start = OperationStart(
        name=origin.operation,
        stores=tuple(image.header.source_uri for image in started.images),
        groups=first_groups(group.name for group in plan if group.problem is None),
        group_count=plan.counts.groups,
        changes=plan.counts.writes,
        files=tuple(str(image.path.absolute()) for image in started.images),
        undo=tuple(undo_of(image, origin.undo_options) for image in started.images),
        reason=origin.reason,
    )
    with closing(started.results) as results, OperationLog().recorded(start, id_) as progress:
        progress.failed = plan.counts.problems
        for result in results:
            progress.failed += len(result.failures) + (result.error is not None)
            progress.written += sum(
                found.status is EditStatus.WRITTEN or isinstance(found.error, Overwritten)
                for found in result.outcomes.values()
            )
            yield result


def undo_of(image: BeforeImageFile, options: Mapping[str, Argument], **more: Argument) -> Invocation:
    """Returns the call that undoes the edit of one store."""
    named = {"store": image.header.source_uri, **options, **more}
    return Invocation("offsets import", (str(image.path.absolute()),), named)
