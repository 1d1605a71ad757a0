"""`PlannedEdit`: the planned changes of an edit, which a program can read before it executes them. Also the checks of
the stores that an edit concerns."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from offsetmgr.core.errors import OffsetMgrError, UsageError
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.offset_store import EditStatus, OffsetStore
from offsetmgr.groups.before_images import default_image_path
from offsetmgr.groups.dual_execute import StorePair
from offsetmgr.groups.edit_plan import Counts, EditPlan, GroupEditPlan
from offsetmgr.groups.running_groups import UNDO_OPTIONS, RunningEdit, execute_running
from offsetmgr.groups.saved_edit import EditOrigin, SavedEdit, execute_saved, record_operation
from offsetmgr.stores.cross_cluster_check import CrossClusterCheck

if TYPE_CHECKING:
    from offsetmgr.app.connections import Connections
    from offsetmgr.core.log_origin import OffsetTranslation
    from offsetmgr.core.model import Weakness
    from offsetmgr.groups.edit_plan import GroupEditPlan
    from offsetmgr.groups.log_checks import LogChecks
    from offsetmgr.groups.running_groups import RunningChecks
    from offsetmgr.snapshots.base import SnapshotHeader
    from offsetmgr.stores.cross_cluster_check import OriginStore


def store_of_images(
    path: Path, header: SnapshotHeader | None, store: OffsetStore, others: Iterable[OffsetStore]
) -> OffsetStore:
    """Returns the store whose edit wrote the file ``path``: ``store``, one of the two stores of ``store`` if it is a
    pair, or one of ``others``.

    The URI in the file decides. If no store has this URI, for example because a broker has another address now, the
    identity of the stores decides. Raises `UsageError` if no store fits, because the undo would change nothing, or
    other offsets.
    """
    own = [store.primary, store.secondary] if isinstance(store, StorePair) else [store]
    known = [*own, *others]
    if header is None or not header.source_uri:
        return store
    for one in known:
        if one.uri == header.source_uri:
            return one
    identities = [(one, one.identity()) for one in known]
    same = [
        one
        for one, found in identities
        if found.kind == header.source_kind and header.cluster_id in (found.id, *found.former)
    ]
    if len(same) == 1:
        return same[0]
    raise UsageError(
        f"undo of {path}",
        f"the edit was made in {header.source_uri}, which is not {store.uri}",
        f"use OffsetAdmin({header.source_uri!r})",
    )


def checked_crossing(
    what: str, source: OriginStore, target: OffsetStore, translate: OffsetTranslation | None
) -> CrossClusterCheck:
    """Compares the Kafka clusters of ``source`` and ``target`` before the operation ``what`` writes offsets of
    ``source`` to ``target``. Returns the comparison. Raises `OtherCluster` if the clusters differ and ``translate`` is
    None."""
    crossing = CrossClusterCheck(source, target, translate)
    crossing.check(what)
    return crossing


def log_checks(
    connections: Connections, store: OffsetStore, warn: Callable[[str], None] = lambda _text: None
) -> LogChecks | None:
    """Returns the object that compares the offsets of an import into ``store`` with the logs; None if there are no logs
    to compare them with (see `Connections.has_logs`)."""
    from offsetmgr.groups.log_checks import LogChecks

    if not connections.has_logs(store, warn):
        return None
    return LogChecks(connections.cluster_for_edit("offsets import", store).log_ranges)


def without_active_groups(
    connections: Connections,
    plans: Iterable[GroupEditPlan],
    operation: str,
    store: OffsetStore,
    uri: str | None,
    *,
    running: bool,
) -> Iterator[GroupEditPlan]:
    """Returns the plans for ``store``, the selected store or the one at ``uri``. Rejects the changes of groups that
    have members; with ``running``, only those of groups that cannot be edited while their members run. Raises
    `UnsupportedOperation` if the store cannot edit running groups."""
    from offsetmgr.groups.describe import reject_active
    from offsetmgr.groups.running_groups import check_running

    if running:
        return check_running(running_checks(connections, operation, store, uri), plans)
    return reject_active(connections.group_describer_for_edit(uri), plans)


def running_checks(
    connections: Connections, operation: str, store: OffsetStore, uri: str | None = None
) -> RunningChecks:
    """Returns the checks of edits of running groups in ``store``, the selected store or the one at ``uri``. Raises
    `UnsupportedOperation` if the store cannot edit such groups."""
    from offsetmgr.groups.running_groups import RunningChecks, require_running_store
    from offsetmgr.stores.uri import bootstrap_of

    inspect = require_running_store(store).inspect_running
    connection = connections.resolved.connection
    bootstrap = bootstrap_of(uri, connection) if uri is not None else None
    cluster = (
        connections.cluster_at(bootstrap, connection) if bootstrap else connections.cluster_for_edit(operation, store)
    )
    members, registered = connections.group_describer(uri, edits=True), connections.group_describer_for_edit(uri)
    return RunningChecks(registered, members, cluster.log_ranges, inspect, {})


@dataclass(slots=True)
class EditReport:
    """The result of an executed edit.

    ``written`` and ``unchanged`` count partitions. ``rejected`` counts the partitions that the plan had already
    rejected. ``failed`` maps each group to its partitions whose write failed, with the error of each.
    ``before_images`` are the files with which `OffsetAdmin.plan_undo` undoes the edit: one file, or two for a
    ``dual:`` store; empty if nothing was to be written. ``not_atomic`` has the reasons for which some groups were
    written without a lock, so that a consumer could have committed between the comparison and the write. For each group
    that was edited while its consumers ran (`RunningEdit`), ``evidence`` describes the commits after the edit.

    >>> report = EditReport(written=3, rejected=1)
    >>> report.ok
    False
    """

    before_images: tuple[Path, ...] = ()
    written: int = 0
    unchanged: int = 0
    rejected: int = 0
    failed: dict[str, dict[TopicPartition, OffsetMgrError]] = field(default_factory=dict)
    not_atomic: tuple[str, ...] = ()
    evidence: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether every planned change was made or was already in the store."""
        return not self.rejected and not self.failed


class PlannedEdit:
    """The changes that one method of `OffsetAdmin` planned. A plan changes nothing until `execute`.

    Iterate over the plan for its groups: each `GroupEditPlan` has a ``group``, its ``changes`` and a ``problem``. Each
    change has a ``partition``, ``before``, ``after``, a ``note`` and a ``problem``. The plan is valid until the
    `OffsetAdmin` is closed.

    Example::

        from offsetmgr import OffsetAdmin, ToEarliest

        with OffsetAdmin("kafka://h1:9092") as admin:
            plan = admin.plan_reset("shop", ToEarliest(), topics="orders")
            for proposal in plan:
                for change in proposal.changes:
                    print(proposal.group, change.partition, change.before, "->", change.after, change.note)
            if not plan.problems:
                report = plan.execute()
                print(report.written, "written; undo with", report.before_images)
    """

    def __init__(
        self,
        operation: str,
        store: OffsetStore,
        plan: EditPlan,
        require_open: Callable[[], None] = lambda: None,
        *,
        comparison: str = "",
        running: RunningEdit | None = None,
    ) -> None:
        self._operation = operation
        self._store = store
        self._plan = plan
        self._require_open = require_open
        self._running = running
        self._close = weakref.finalize(self, plan.close)
        self._executed = False
        self._report: EditReport | None = None
        self.comparison = comparison
        """For a copy, an import or an undo: whether the offsets belong to the logs of the target's Kafka cluster, and
        how that is known. Empty for other edits."""

    def __iter__(self) -> Iterator[GroupEditPlan]:
        self._require_open()
        return iter(self._plan)

    def __repr__(self) -> str:
        return f"<PlannedEdit {self._operation}: {self.counts}>"

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
                found[group.group] = reason
        return found

    def weaknesses(self) -> tuple[Weakness, ...]:
        """Returns the guarantees that the store cannot give for this edit, such as immediate deletion on brokers before
        2.4. Each has a ``text``. Empty for current servers. Raises `Unreachable`, `TimedOut`."""
        self._require_open()
        return self._store.weaknesses()

    @property
    def report(self) -> EditReport | None:
        """The report of `execute`; None before it starts to write. If `execute` raised an error or was interrupted, the
        report counts the changes that the store had confirmed, and names the before-images for the undo. Changes that
        are in neither count may have been made."""
        return self._report

    def execute(
        self,
        before_images: Path | str | None = None,
        *,
        reason: str = "",
        on_durable: Callable[[Path], None] = lambda _path: None,
    ) -> EditReport:
        """Writes the changes that have no problem, each on the condition that the store still holds the value that the
        plan read.

        ``before_images`` is the path of a new file that receives the previous offsets before the first write; without
        it, the method creates one in the state directory (``XDG_STATE_HOME``). ``reason`` is for the operation log
        (``offsetmgr edits list``). ``on_durable`` is called with each such path before the first write. A failed change
        is not raised: it is in ``EditReport.failed``.

        Raises `UsageError` if the plan was executed before, the file exists, or the `OffsetAdmin` is closed. Raises
        `OffsetMgrError` if the file cannot be written or the whole store is unreachable; see `report` for the changes
        before that.
        """
        self._require_open()
        if self._executed:
            raise UsageError(self._operation, "the plan was executed already", "plan the edit again")
        report = EditReport(unchanged=self.counts.unchanged, rejected=self.counts.problems)
        if not (self.counts.writes or self.counts.trees):
            self._executed, self._report = True, report
            return report

        def durable(path: Path) -> None:
            # The plan stays executable until its before-images exist: no write precedes them.
            self._executed, self._report = True, report
            report.before_images += (path,)
            on_durable(path)

        path = Path(before_images) if before_images is not None else default_image_path(self._operation)
        not_atomic: set[str] = set()
        with closing(self._start(path, reason, durable).results) as results:
            for result in results:
                if self._running is not None and result.how:
                    report.evidence[result.group] = result.how
                for tp, outcome in result.outcomes.items():
                    if outcome.error is not None:
                        report.failed.setdefault(result.group, {})[tp] = outcome.error
                    elif outcome.status is EditStatus.WRITTEN:
                        report.written += 1
                    else:
                        report.unchanged += 1
                if not result.atomic:
                    not_atomic.add(result.how)
                    report.not_atomic = tuple(sorted(not_atomic))
        return report

    def _start(self, path: Path, reason: str, on_durable: Callable[[Path], None]) -> SavedEdit:
        if self._running is None:
            return execute_saved(self._store, self._plan, path, EditOrigin(self._operation, reason), on_durable)
        origin = EditOrigin(self._operation, reason, UNDO_OPTIONS)
        started = execute_running(self._store, self._plan, path, on_durable, self._running)
        return record_operation(started, self._plan, origin)
