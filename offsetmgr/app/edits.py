"""Planned edits: `PlannedEdit` is the one place that executes an edit, for the command line and for programs. Also the
operation log of edits and migrations (``offsetmgr edits``)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from offsetmgr.app.ui import Interrupted, Ui, interrupted_as
from offsetmgr.core.advice import Advice, Invocation
from offsetmgr.core.closeable import Closeable
from offsetmgr.core.errors import GroupsFailed, OffsetMgrError, UnsupportedOperation, UsageError
from offsetmgr.core.model import DELETES_OFFSETS
from offsetmgr.core.offset_store import GroupTreeStore, OffsetStore, RunningEdit
from offsetmgr.core.plurals import count_of
from offsetmgr.core.selection import TopicSelection, deletion_of
from offsetmgr.groups.before_images import default_image_path, save_plan
from offsetmgr.groups.describe import refused_kind, reject_active, require_idle
from offsetmgr.groups.edit_plan import Counts, EditPlan
from offsetmgr.groups.edit_plan import GroupEditPlan as GroupEditPlan
from offsetmgr.groups.edits import (
    groups_left_without_offsets,
    plan_copy,
    plan_removal,
    remove_groups,
    start_deletion,
    verify_copy,
    with_trees,
)
from offsetmgr.groups.execute import EditOrigin, SavedEdit, recorded, start_edit, undo_of
from offsetmgr.groups.execute import EditReport as EditReport
from offsetmgr.groups.operation_log import SWITCH_NOTE as SWITCH_NOTE
from offsetmgr.groups.operation_log import OperationLog, OperationProgress, OperationStart, first_groups
from offsetmgr.groups.operation_log import RecordedOperation as RecordedOperation
from offsetmgr.groups.operation_log import undoing as undoing
from offsetmgr.groups.running_groups import (
    UNDO_OPTIONS,
    RunningChecks,
    check_running,
    execute_running,
    notice,
    require_running_store,
)

if TYPE_CHECKING:
    from offsetmgr.app.connections import Connections
    from offsetmgr.core.model import Weakness


class EditListener:
    """Follows `PlannedEdit.execute`. The base class does nothing."""

    def planned(self, edit: PlannedEdit) -> None:
        """Receives a further edit that the execution has planned, before it begins to write."""

    def written(self, edit: PlannedEdit, report: EditReport) -> None:
        """Receives the report of the edit, or of a further one, after its last write."""


class _Execution(NamedTuple):
    """The arguments of `PlannedEdit.execute`."""

    before_images: Path | str | None
    reason: str
    on_durable: Callable[[Path], None] | None
    listener: EditListener


class PlannedEdit(Closeable):
    """The changes that one method of `OffsetAdmin` planned. A plan changes nothing until `execute`.

    Iterate over the plan for its groups: each `GroupEditPlan` has a ``name``, its ``changes`` and a ``problem``. Each
    change has a ``partition``, ``before``, ``after``, a ``note`` and a ``problem``. The plan is valid until the
    `OffsetAdmin` is closed.

    Example::

        from offsetmgr import OffsetAdmin, ToEarliest

        with OffsetAdmin("kafka://h1:9092") as admin:
            plan = admin.plan_reset("shop", ToEarliest(), topics="orders")
            for proposal in plan:
                for change in proposal.changes:
                    print(proposal.name, change.partition, change.before, "->", change.after, change.note)
            if not plan.problems:
                report = plan.execute()
                print(report.written, "written; undo with", report.before_images)
    """

    _tree_verb: ClassVar[str] = "restore"

    def __init__(
        self,
        connections: Connections,
        operation: str,
        store: OffsetStore,
        found: Iterable[GroupEditPlan],
        uri: str | None = None,
        *,
        running: RunningEdit | None = None,
        comparison: str = "",
    ) -> None:
        """Reads ``found`` completely, and rejects the changes of groups with members, unless ``running``. ``store`` is
        the selected store, or the one at ``uri``."""
        self._connections = connections
        self._uri = uri
        self._running = running
        self._checks = None if running is None else _running_checks(connections, operation, store, uri)
        self._weaknesses: tuple[Weakness, ...] = ()
        self.report: EditReport | None = None
        """The report of `execute`; None before it starts to write. If `execute` raised an error or was interrupted, the
        report counts the changes that the store had confirmed, and names the before-images for the undo. Changes that
        are in neither count may have been made."""
        self.is_confirmed = False
        """Whether the user has agreed to the edit already."""
        self.warnings: Callable[[], Iterable[str]] = lambda: ()
        """Returns warnings about the plan, besides the weaknesses of the store."""
        self.created: Sequence[str] = ()
        """For an undo: the groups whose offsets the undone edit had created."""
        self.operation = operation
        """The name of the command of this edit."""
        self.store = store
        """The store that the edit changes."""
        self.comparison = comparison
        """For a copy, an import or an undo: whether the offsets belong to the logs of the target's Kafka cluster, and
        how that is known. Empty for other edits."""
        self.saved: Invocation | None = None
        """The call that executes the plan that `save` has written."""
        self.copied: tuple[str, TopicSelection] | None = None
        """For a copy: the group whose offsets are copied, and the topics."""
        self.undoes = ""
        """The id of the operation that this edit undoes, in the operation log."""
        with interrupted_as("nothing was changed"), connections.refusing(operation, uri):
            self._plan = EditPlan.of(self._checked(connections.ui.progress(found, "reading")))
        self._close = weakref.finalize(self, self._plan.close)
        connections.plans.add(self)

    def _checked(self, found: Iterable[GroupEditPlan]) -> Iterator[GroupEditPlan]:
        """Yields the plans, with a problem for each group that cannot be edited now. Warns of data that offsetmgr does
        not understand."""
        if self._checks is not None:
            found = check_running(self._checks, found)
        else:
            describer = self.store.describe_groups or self._connections.group_describer_for_edit(self._uri)
            found = reject_active(describer, found)
        for plan in found:
            self._connections.warn_of_unrecognised(plan.unrecognised)
            refused = refused_kind(plan.problem, self.operation)
            yield plan if refused is None else replace(plan, problem=refused)

    def __iter__(self) -> Iterator[GroupEditPlan]:
        self._connections.require_open()
        return iter(self._plan)

    def __repr__(self) -> str:
        return f"<PlannedEdit {self.operation}: {self.counts!r}>"

    def close(self) -> None:
        """Deletes the plan's temporary file. `OffsetAdmin.close` does this, too."""
        self._close()

    @property
    def counts(self) -> Counts:
        """How many ``groups`` change, and how many partitions are ``writes``, are ``unchanged`` or have a problem."""
        return self._plan.counts

    @property
    def problems(self) -> Mapping[str, OffsetMgrError]:
        """The groups with a rejected change, each with the first reason."""
        found: dict[str, OffsetMgrError] = {}
        for group in self:
            reasons = [group.problem, *(change.problem for change in group.changes)]
            if (reason := next((one for one in reasons if one is not None), None)) is not None:
                found[group.name] = reason
        return found

    def weaknesses(self) -> tuple[Weakness, ...]:
        """Returns the guarantees that the store cannot give for this edit, such as immediate deletion on brokers before
        2.4. Each has a ``text``. Empty for current servers. Raises `Unreachable`, `TimedOut`."""
        self._connections.require_open()
        return self.store.weaknesses()

    @property
    def is_running(self) -> bool:
        """Whether the edit includes groups whose consumers run (`RunningEdit`)."""
        return self._running is not None

    @property
    def has_work(self) -> bool:
        """Whether `execute` would change something."""
        return bool(self.counts.writes or self.counts.trees)

    def preview(self) -> None:
        """Tells the user what `execute` would change. Raises `Unreachable`, `TimedOut`."""
        self._note_warnings()
        note = self._connections.ui.note
        note(f"dry run: would change {self.counts}{self._trees()} in {self.store.uri}; nothing was changed")

    def save(self, path: Path | str) -> None:
        """Writes the plan to the new file ``path``. `OffsetAdmin.plan_undo` of the file plans the same edit later. It
        rejects everything if an offset of the plan, or an offset that it copies, has changed until then.

        Raises `UnsupportedOperation` if the plan has a problem, for an edit of running groups, of two stores or of
        whole groups, and for a copy to another store, and `FileFailure` if the file exists or cannot be written.
        """
        self._connections.require_open()
        store, path = self.store, Path(path).absolute()
        other_kind = type(self) is not PlannedEdit or self.is_running or self._uri is not None or len(store.parts) > 1
        if other_kind or self.counts.problems:
            why = "the plan cannot be saved: only an edit of offsets in one store, without a problem, can be made later"
            raise UnsupportedOperation(self.operation, why, "migrations between stores have plans of their own")
        save_plan(path, store, self, self.copied)
        self._connections.warn_of_lost(path)
        options = self._connections.undo_options(store.uri)
        self.saved = Invocation("offsets import", (str(path),), {"store": store.uri, **options, "execute": True})

    def execute(
        self,
        before_images: Path | str | None = None,
        *,
        reason: str = "",
        on_durable: Callable[[Path], None] | None = None,
        listener: EditListener | None = None,
        raise_on_failure: bool = True,
    ) -> EditReport:
        """Writes the changes that have no problem, each on the condition that the store still holds the value that the
        plan read.

        ``before_images`` is the path of a new file that receives the previous offsets before the first write; without
        it, the method creates one in the state directory (``XDG_STATE_HOME``). ``reason`` is for the operation log
        (``offsetmgr edits list``). ``on_durable`` is called with each such path before the first write.

        Raises `GroupsFailed`, a `PartialFailure` with the ``report``, if a change was rejected or failed; without
        ``raise_on_failure``, the report has the failed changes, and `problems` the rejected ones. Raises `UsageError`
        if the plan was executed before, the file exists, or the `OffsetAdmin` is closed. Raises `OffsetMgrError` if the
        file cannot be written or the whole store is unreachable; see `report` for the changes before that.
        """
        self._connections.require_open()
        if self.report is not None:
            raise UsageError(self.operation, "the plan was executed already", "plan the edit again")
        report = EditReport(unchanged=self.counts.unchanged, rejected=self.counts.problems)
        call = _Execution(before_images, reason, on_durable, listener or EditListener())
        if self.has_work:
            self._execute(report, call)
        else:
            self.report = report
            self._connections.ui.note(f"nothing to change in {self.store.uri}")
        self._finish(report, call)
        if raise_on_failure and not report.ok:
            failed = {group: next(iter(errors.values())) for group, errors in report.failed.items()}
            raise GroupsFailed(self.operation, report, {**report.failed_groups, **failed, **self.problems}, {})
        return report

    def _execute(self, report: EditReport, call: _Execution) -> None:
        ui = self._connections.ui
        self._note_warnings()
        ui.note(f"about to change {self.counts} in {self.store.uri}")
        if self._checks is not None and any(group.members for group in self._checks.found.values()):
            assert self._running is not None  # has the checks
            for line in notice(self._checks.found, self._running.wait_s):
                ui.note(line)
        if not self.is_confirmed:
            ui.confirm(f"{self.operation}: change {self.counts}{self._trees()}?")

        def durable(path: Path) -> None:
            # The plan stays executable until its before-images exist: no write precedes them.
            self.report = report
            report.before_images += (path,)
            if call.on_durable is not None:
                call.on_durable(path)
            ui.note(f"before-images: {path}")

        given = call.before_images
        path = Path(given) if given is not None else default_image_path(self.operation)
        self._write(report, path, call.reason, durable)
        call.listener.written(self, report)

    def _finish(self, report: EditReport, call: _Execution) -> None:  # noqa: ARG002
        """Does what follows the writes of the plan. An undo tells the user which groups exist without offsets, because
        the undone edit had created their offsets. They may have existed without offsets before. Raises `Unreachable`,
        `TimedOut`."""
        if not (self.created and report.before_images):
            return
        if stay := groups_left_without_offsets(self.store, self.created):
            note, options = self._connections.ui.note, self._connections.undo_options(self.store.uri)
            others = f" and {count_of(len(stay) - 1, 'other')}" if len(stay) > 1 else ""
            note(f"group {stay[0]!r}{others} {'stay' if others else 'stays'}, empty")
            note(Advice("to remove: {}", deletion_of(self.store.uri, stay, options)))

    def _write(self, report: EditReport, path: Path, reason: str, on_durable: Callable[[Path], None]) -> None:
        options = {**self._connections.undo_options(self.store.uri), **(UNDO_OPTIONS if self._running else {})}
        started = self._start(path, on_durable)
        undo = tuple(undo_of(image, options, execute=True) for image in started.images)
        report.operations = (OperationLog().new_id(),)
        written = recorded(started, self._plan, EditOrigin(self.operation, reason, options), *report.operations)
        ui, counts = self._connections.ui, self.counts
        try:
            undone = undoing(self.undoes) if self.undoes else nullcontext()
            with undone, closing(written) as results:
                for result in ui.progress(results, self.operation, counts.groups):
                    report.count(result)
                    if self._running is not None and result.how:
                        report.evidence[result.group] = result.how
                        if result.atomic:
                            ui.note(f"group {result.group}: {result.how}")
        except KeyboardInterrupt as error:
            known = report.written + report.unchanged - counts.unchanged + sum(map(len, report.failed.values()))
            changed, calls = count_of(report.written, "offset"), "; ".join("{}" for _ in undo)
            text = "{} changed, {} not confirmed; undo: " + calls
            raise Interrupted(Advice(text, changed, f"{counts.writes - known:,}", *undo)) from error
        if report.may_have_written or counts.trees:
            report.undo = undo
        if any(weakness.subject == DELETES_OFFSETS for weakness in self._weaknesses):
            report.kept_deletions = report.deleted(self._plan)

    def _start(self, path: Path, on_durable: Callable[[Path], None]) -> SavedEdit:
        """Starts the edit with its before-images at ``path``. See `start_edit`."""
        if self._running is None:
            return start_edit(self.store, self._plan, path, on_durable)
        given, note = self._running.on_step, self._connections.ui.note

        def on_step(text: str) -> None:
            given(text)
            note(text)

        return execute_running(self.store, self._plan, path, on_durable, self._running._replace(on_step=on_step))

    def _note_warnings(self) -> None:
        self._weaknesses = self.store.weaknesses() if self.has_work else ()
        for text in (*(weakness.text for weakness in self._weaknesses), *self.warnings()):
            self._connections.ui.note(text, warning=True)

    def _trees(self) -> str:
        trees = self.counts.trees
        return f" and {self._tree_verb} the znodes of {count_of(trees, 'group')}" if trees else ""


def _running_checks(connections: Connections, operation: str, store: OffsetStore, uri: str | None) -> RunningChecks:
    """Returns the checks of edits of running groups in ``store``, the selected store or the one at ``uri``. Raises
    `UnsupportedOperation` if the store cannot edit such groups."""
    from offsetmgr.stores.uri import bootstrap_of

    inspect = require_running_store(store).inspect_running
    connection = connections.resolved.connection
    bootstrap = bootstrap_of(uri, connection) if uri is not None else None
    cluster = (
        connections.cluster_at(bootstrap, connection) if bootstrap else connections.cluster_for_edit(operation, store)
    )
    members, registered = connections.group_describer(uri, edits=True), connections.group_describer_for_edit(uri)
    return RunningChecks(registered, members, cluster.log_ranges, inspect, {})


def list_(ui: Ui, group: str | None = None, last: int | None = None) -> list[RecordedOperation]:
    """Returns the edits and migrations in the operation log of this account, the oldest first; with ``group``, only
    those that may include this group, and with ``last``, only the newest ones. Raises `FileFailure`."""
    log = OperationLog()
    found = [one for one in log.operations() if group is None or one.start.may_include([group])]
    for text in log.left_out():
        ui.note(text, warning=True)
    if not found:
        of_group = "" if group is None else f" of group {group!r}"
        ui.note(
            f"no edit or migration{of_group} is recorded in {log.path}; another XDG_STATE_HOME has a log of its own"
        )
    return found if last is None else found[-last:]


def show(ui: Ui, operation_id: str) -> RecordedOperation:
    """Returns one edit or migration. Raises `OperationNotFound`, and `UnknownVersion` if a newer offsetmgr recorded
    it."""
    log = OperationLog()
    one = log.find(operation_id)
    for text in log.left_out():
        ui.note(text, warning=True)
    return one


class Undo(NamedTuple):
    """The undo of an operation: the calls that undo it, one for each store that it wrote."""

    operation: RecordedOperation
    calls: tuple[Invocation, ...]


def undo(ui: Ui, operation_id: str, *, allow_rewind: bool = False, execute: bool = False) -> Undo:
    """Returns the calls that undo an edit or a run of ``migrate apply``. With ``allow_rewind``, they also restore
    offsets that have changed since.

    With ``execute``, raises `UsageError` if the operation still runs, because it would write again what the undo
    restores. Raises `UsageError` if the operation has no undo or is undone already, and the errors of `show`.
    """
    one = show(ui, operation_id)
    calls = one.undo_calls(allow_rewind=allow_rewind)
    if one.is_running and execute:
        why = f"{one.start.name} still runs, as process {one.pid}"
        raise UsageError(f"undo of {one.id}", why, "wait until it ends, or stop it with Ctrl-C, and run the undo then")
    if one.is_running:
        text = f"{one.start.name} still runs, as process {one.pid}; " + "{execute} works only after its end"
        ui.note(Advice(text), warning=True)
    elif one.ended_ms is None:
        text = f"the log has no end of {one.start.name}: check that it does not run on {one.host} any more"
        ui.note(text, warning=True)
    return Undo(one, calls)


# The edits of whole groups: `GroupDeletion` and `GroupRename`.


class GroupDeletion(PlannedEdit):
    """The deletion of whole groups. A group in ZooKeeper is a tree of znodes, which the before-images contain."""

    _tree_verb: ClassVar[str] = "delete"

    def __init__(
        self,
        connections: Connections,
        operation: str,
        store: OffsetStore,
        groups: Sequence[str],
        *,
        lose: Container[str],
        accept_unseen: bool,
    ) -> None:
        self._groups = groups
        self._lose = lose
        self._accept_unseen = accept_unseen
        found = plan_removal(store, groups, accept_unseen=accept_unseen)
        super().__init__(connections, operation, store, found)

    def _checked(self, found: Iterable[GroupEditPlan]) -> Iterator[GroupEditPlan]:
        return with_trees(self.store, super()._checked(found), self._lose)

    def _start(self, path: Path, on_durable: Callable[[Path], None]) -> SavedEdit:
        return start_deletion(self.store, self._plan, path, on_durable, self._connections.ui.note)

    def _finish(self, report: EditReport, call: _Execution) -> None:
        failed = {*self.problems, *report.failed, *report.failed_groups}
        if left := [name for name in self._groups if name not in failed]:
            had_offsets = bool(report.before_images)
            if not (had_offsets or self.is_confirmed):
                question = f"groups delete: remove {count_of(len(left), 'group')} without offsets?"
                self._connections.ui.confirm(question)
            self._remove(left, report, had_offsets=had_offsets, reason=call.reason)

    def _remove(self, groups: list[str], report: EditReport, *, had_offsets: bool, reason: str) -> None:
        """Deletes groups whose offsets are deleted. Does nothing in stores in which a group consists only of its
        offsets. If the groups had no offsets from the start, no edit is in the operation log, and this method records
        the deletion there."""
        ui, empty = self._connections.ui, "" if had_offsets else "empty "
        for inner in self.store.parts:
            if isinstance(inner, GroupTreeStore):
                continue  # the trees are deleted already
            start = OperationStart("groups delete", (inner.uri,), first_groups(groups), len(groups), 0, reason=reason)
            record = nullcontext(OperationProgress("")) if had_offsets else OperationLog().recorded(start)
            with record as progress:
                report.operations += () if had_offsets else (progress.id,)
                removed = remove_groups(inner, groups, accept_unseen=self._accept_unseen)
                for name, error in ui.progress(removed, "removing", len(groups)):
                    if error is None:
                        ui.note(f"removed {empty}group {name!r} from {inner.uri}")
                        continue
                    ui.note(Advice("error: {}", error.text))
                    if error.hint:
                        ui.note(Advice("hint: {}", error.hint))
                    progress.failed += 1
                    report.failed_groups[name] = error


class GroupRename(PlannedEdit):
    """The copy of a group, which is verified before the original group is deleted."""

    def __init__(
        self,
        connections: Connections,
        store: OffsetStore,
        names: tuple[str, str],
        deletion: Callable[[], GroupDeletion],
        *,
        accept_unseen: bool,
    ) -> None:
        """``deletion`` plans the deletion of the original group."""
        self._names = names
        self._deletion = deletion
        self._accept_unseen = accept_unseen
        source, target = names
        crossing = connections.check_crossing("groups rename", store, store, None)
        found = plan_copy(store, source, store, target, crossing=crossing, accept_unseen=accept_unseen)
        super().__init__(connections, "groups rename", store, found)

    def preview(self) -> None:
        super().preview()
        if not self.counts.problems:
            self._connections.ui.note(f"then: verify the copy, and delete group {self._names[0]!r}")

    def _finish(self, report: EditReport, call: _Execution) -> None:
        if not report.ok:
            return
        (source, target), store = self._names, self.store
        count = verify_copy(store, source, store, target, accept_unseen=self._accept_unseen)
        verified = f"verified: group {target!r} has the {count_of(count, 'offset')} that were read from {source!r}"
        self._connections.ui.note(verified)
        require_idle(self._connections.group_describer_for_edit(), [source], "deletion")
        path = f"{call.before_images}.deleted" if call.before_images else None
        try:
            deletion = self._deletion()
        except Interrupted as error:
            done = "group {} was copied to {}, and was not deleted; undo: {}"
            raise Interrupted(Advice(done, source, target, *report.undo[:1])) from error
        deletion.is_confirmed = True
        call.listener.planned(deletion)
        try:
            deletion.execute(**call._replace(before_images=path)._asdict(), raise_on_failure=False)
        finally:
            if deletion.report is not None:
                report.add(deletion.report)
                report.failed_groups |= deletion.problems
