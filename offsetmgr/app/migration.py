"""`Migration`: moves the committed offsets of groups from one store to another, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from offsetmgr.app import migrate
from offsetmgr.app.connections import Connections
from offsetmgr.app.ui import Ui
from offsetmgr.config.connection import ConnectionConfig, ResolvedConnection
from offsetmgr.core.closeable import Closeable
from offsetmgr.core.errors import GroupsFailed
from offsetmgr.core.log_origin import TranslationChoice
from offsetmgr.core.offset_store import AheadPolicy
from offsetmgr.core.selection import GroupsArgument
from offsetmgr.migration.journaled_writer import open_plan
from offsetmgr.migration.plan import GroupPlan, PlanHeader, PlanOptions, PlanSummary
from offsetmgr.migration.progress import MigrationState

if TYPE_CHECKING:
    from offsetmgr.migration.apply import ApplyReport
    from offsetmgr.migration.finalize import FinalizeReport
    from offsetmgr.migration.rollback import RollbackReport
    from offsetmgr.migration.verify import VerifyResults


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class MigrationConfig:
    """How a `Migration` connects.

    ``bootstrap_server`` names the brokers whose logs the offsets refer to, if neither store's URI names any. ``both``
    has credentials and timeouts; ``source`` and ``target`` replace it for one side.

    >>> config = MigrationConfig("h1:9092", ConnectionConfig(timeout_ms=5_000))
    >>> [side.timeout_ms for side in config.of_sides()]
    [5000, 5000]
    """

    bootstrap_server: str | None = None
    both: ConnectionConfig = field(default_factory=ConnectionConfig)
    source: ConnectionConfig | None = None
    target: ConnectionConfig | None = None

    def connections(self) -> Connections:
        """Returns a new `Connections` object. It contacts no server before its first use."""
        return Connections(ResolvedConnection(self.both, None, self.bootstrap_server))

    def of_sides(self) -> tuple[ConnectionConfig, ConnectionConfig]:
        """Returns the settings of the source and of the target."""
        return self.source or self.both, self.target or self.both


class Migration(Closeable):
    """A migration on disk: a plan file, and a journal in the same directory. ``with Migration(path) as migration:``
    opens an existing migration, and `Migration.plan` creates one.

    Example::

        from offsetmgr import Migration, PlanOptions

        options = PlanOptions(groups=("shop",))
        with Migration.plan("zookeeper://h1:2181", "kafka://h1:9092", "shop.plan", options) as migration:
            print(migration.summary.writes, "offsets to write")
            migration.apply()
            print(migration.verify().summary.ok)  # migration.rollback() restores what apply overwrote

    Every step can be interrupted and called again, by this or another process. A step raises `JournalError` if another
    process executes one. If Ctrl-C interrupts a step, the outcome of the writes in progress is not in the journal; the
    next call reads the store to determine it. Pass ``stop`` for a clean end. One thread at a time may use an object.
    All methods block; call them in a thread (``asyncio.to_thread``) from asynchronous programs. After `close`, the
    steps raise `UsageError`.
    """

    def __init__(self, path: str | Path, config: MigrationConfig | None = None) -> None:
        """Opens the plan file ``path``. Servers are contacted on first use.

        Raises `PlanError` if the file is not a valid plan, and `JournalError` if its journal is damaged.
        """
        self._config = config or MigrationConfig()
        self._plan, _ = open_plan(Path(path))
        self._connections, self._sides = self._config.connections(), migrate.SideSettings(*self._config.of_sides())

    @classmethod
    def plan(
        cls,
        source: str,
        target: str,
        path: str | Path,
        options: PlanOptions | None = None,
        *,
        translate: TranslationChoice | None = None,
        partition_map: str | Path | None = None,
        config: MigrationConfig | None = None,
    ) -> Self:
        """Reads both stores (URIs), decides which offsets a migration writes, and writes the plan to the new file
        ``path``. Nothing else is changed.

        ``options`` select groups and topics, rename groups, and define how the plan treats offsets outside the log and
        targets that are ahead. ``translate`` states that the offsets of another Kafka cluster are valid in the target,
        or has the rules by which the records show the right offsets (`TranslationRules`). ``partition_map`` is a
        confirmed file that ``migrate plan --draft-partition-map`` wrote, for byte positions of Kafka 0.7. Look at
        ``summary.refused`` and ``summary.failed_groups``: `apply` does not write these.

        Raises `GroupNotFound` if the groups have no offsets, `PlanError` if the file exists, `OtherCluster`,
        `UnknownTopicOrPartition`, `UsageError`, `Unreachable`, `TimedOut`.
        """
        config, path = config or MigrationConfig(), Path(path)
        inputs = migrate.PlanInputs(None if partition_map is None else Path(partition_map), translate=translate)
        with config.connections() as connections:
            options, sides = options or PlanOptions(), migrate.SideSettings(*config.of_sides())
            migrate.plan(connections, source, target, path, options, sides=sides, inputs=inputs)
        return cls(path, config)

    def close(self) -> None:
        """Closes the connections. The plan and the journal stay on disk. A second call does nothing."""
        self._connections.close()

    @property
    def header(self) -> PlanHeader:
        """The creation time of the plan, its options, and the identities of its source and target."""
        return self._plan.header

    @property
    def summary(self) -> PlanSummary:
        """The numbers of groups, and of partitions for each action of the plan (such as copy, keep and refuse)."""
        return self._plan.summary

    def groups(self) -> Iterator[GroupPlan]:
        """Yields each planned group with its steps. Raises `PlanError` if the plan file was deleted."""
        return self._plan.groups()

    def state(self) -> MigrationState:
        """Returns what the journal records: which groups were applied, undone and deleted, and when the migration was
        finalized. Contacts no server. Raises `JournalError`."""
        return open_plan(self._plan.path)[1]

    def apply(
        self,
        *,
        groups: GroupsArgument | None = None,
        accept_stale: bool = False,
        wait_empty_s: float = 0.0,
        stop: Callable[[], bool] = lambda: False,
        raise_on_failure: bool = True,
    ) -> ApplyReport:
        """Writes the plan's offsets. A target offset that has changed since the plan is not overwritten.

        If the plan is older than a day, the method first compares the source, and raises `PlanError` if a group has
        moved on. ``accept_stale`` writes the old offsets.

        ``groups`` are names or globs of the plan's groups, to which the step is limited; None means all groups.

        ``wait_empty_s`` is the time in seconds that the method waits for groups with members to become empty. Once
        ``stop`` returns True, groups under way are finished and no others begin. Returns the counts. The report
        concerns the planned writes; the partitions that the plan itself refused are in ``summary.refused``.

        Raises `GroupsFailed`, a `PartialFailure` with the ``report``, if a group failed; without ``raise_on_failure``,
        the report has the failed groups. Raises `PlanError` if a store is not the planned one, `JournalError` if the
        plan was rolled back or finalized, or another process executes it, `Unreachable`, `TimedOut`.
        """
        report = self._step(migrate.apply, groups, stop, wait_empty_s=wait_empty_s, accept_stale=accept_stale)
        if raise_on_failure and (report.failed or report.closed):
            failures = {group: next(iter(found.failed.values())) for group, found in report.failed.items()}
            raise GroupsFailed(f"apply of {self._plan.path}", report, failures, report.closed)
        return report

    def _step(
        self,
        step: Callable[..., _T],
        groups: GroupsArgument | None = None,
        stop: Callable[[], bool] = lambda: False,
        **options: Any,
    ) -> _T:
        """Executes a step with the given groups of the plan, until ``stop`` returns True."""
        self._connections.ui = ui = Ui()
        ui.wants_stop = stop
        scope = migrate.StepScope(self._plan.path, migrate.PlanSelection.of(groups), self._sides)
        return step(self._connections, scope, **options)

    def verify(self, *, groups: GroupsArgument | None = None) -> VerifyResults:
        """Reads both stores again, and compares every partition with the plan. Changes nothing. ``groups`` is as in
        `apply`.

        Returns an iterator of the result of each partition. Its ``summary`` reads the rest of the results;
        ``summary.ok`` is True only if every partition passed. Raises `PlanError` if a store is not the planned one,
        `Unreachable`, `TimedOut`, also during the iteration.
        """
        return self._step(migrate.verify, groups)

    def rollback(
        self,
        *,
        groups: GroupsArgument | None = None,
        allow_rewind: bool = False,
        wait_empty_s: float = 0.0,
        stop: Callable[[], bool] = lambda: False,
    ) -> RollbackReport:
        """Restores the offsets that `apply` overwrote, and deletes those that it created. An offset that has changed
        since is rejected unless ``allow_rewind``. The other arguments are those of `apply`. Afterwards compares the
        offsets that the journal does not record as written with their before-images, because the journal may be
        truncated.

        Raises `JournalError` if nothing was applied, `GateRefused` if the migration was finalized (see `plan_reverse`),
        `PlanError`, `Unreachable`, `TimedOut`.
        """
        return self._step(migrate.rollback, groups, stop, allow_rewind=allow_rewind, wait_empty_s=wait_empty_s)

    def plan_reverse(
        self, path: str | Path, *, allow_rewind: bool = False, if_ahead: AheadPolicy | None = None
    ) -> Migration:
        """Plans the way back after the groups have consumed from the target: writes a plan to the new file ``path``
        that copies the target's present offsets to the source (``migrate rollback --reverse-plan``).

        ``allow_rewind`` also copies offsets that were rewound in the target. ``if_ahead`` is as in `PlanOptions`, for
        offsets that are ahead in the source. Returns the reverse migration; its ``apply`` writes the offsets. Raises
        `PlanError` if the file exists, `OtherCluster`, `Unreachable`, `TimedOut`.
        """
        sides, path = self._sides, Path(path)
        scope = migrate.StepScope(self._plan.path, sides=sides)
        migrate.plan_reverse(self._connections, scope, path, allow_rewind=allow_rewind, if_ahead=if_ahead)
        return Migration(path, replace(self._config, source=sides.target, target=sides.source))

    def finalize_groups(
        self,
        groups: GroupsArgument,
        *,
        window_s: float = 60.0,
        accept_idle: bool = False,
        accept_refused: bool = False,
        delete_source: bool = False,
        accept_unseen: bool = False,
    ) -> FinalizeReport:
        """Finalizes each of the groups by itself, as ``migrate finalize GROUP``: those that pass the checks of
        `finalize` are finalized, and ``blocked`` has the reason of each other group. The arguments are those of
        `finalize`. Raises `JournalError` if the plan was rolled back, `PlanError`, `Unreachable`, `TimedOut`."""
        rules = migrate.FinalizeRules(window_s, accept_idle, accept_refused, accept_unseen, delete_source)
        return self._step(migrate.finalize, groups, rules=rules)

    def finalize(
        self,
        *,
        window_s: float = 60.0,
        accept_idle: bool = False,
        accept_refused: bool = False,
        delete_source: bool = False,
        accept_unseen: bool = False,
    ) -> FinalizeReport:
        """Verifies again, checks for members that commit to the source alone, and records the end in the journal.

        ``window_s`` is the longest time in seconds to watch live members. ``accept_idle`` accepts partitions without
        traffic if no message can be lost, ``accept_refused`` those that the plan rejected. ``delete_source`` also
        deletes the copied offsets from the source; the journal keeps them. ``accept_unseen`` also does this for groups
        that may have offsets in the source that the login may not see. If single groups were finalized or rolled back
        before, each of the others passes or fails by itself, and ``blocked`` has the reasons. Raises `GateRefused` if a
        check fails, `JournalError` if the plan was not applied completely, `PlanError`, `Unreachable`, `TimedOut`.
        """
        rules = migrate.FinalizeRules(window_s, accept_idle, accept_refused, accept_unseen, delete_source)
        return self._step(migrate.finalize, rules=rules)
