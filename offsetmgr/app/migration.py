"""`Migration`: moves the committed offsets of groups from one store to another, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Self, TypeAlias

from offsetmgr.app.connections import Connections
from offsetmgr.app.endpoints import SourceAndTarget
from offsetmgr.app.offset_admin import GroupsArgument
from offsetmgr.config.connection import ConnectionConfig, ResolvedConnection
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.closeable import Closeable
from offsetmgr.core.errors import GroupNotFound
from offsetmgr.core.log_origin import OffsetTranslation
from offsetmgr.core.selection import GroupSelection, is_pattern
from offsetmgr.groups.topic_matches import TopicMatches
from offsetmgr.migration.apply import apply, require_comparison
from offsetmgr.migration.fleet import select_groups
from offsetmgr.migration.group_observer import ObservationWindow
from offsetmgr.migration.journaled_writer import Report
from offsetmgr.migration.partition_map import PartitionMap
from offsetmgr.migration.plan import AheadPolicy, GroupPlan, GroupScope, PlanHeader, PlanOptions
from offsetmgr.migration.plan_file import PlanFile, PlanSummary, write_plan
from offsetmgr.migration.plan_run import PlanRun, journaled_writer, open_plan
from offsetmgr.migration.planner import Planner, no_groups_hint
from offsetmgr.migration.progress import MigrationState
from offsetmgr.migration.reverse_plan import ReversePlanner, reverse_options
from offsetmgr.migration.rollback import RollbackDifference, differences, rollback
from offsetmgr.migration.waves import Waves

if TYPE_CHECKING:
    from offsetmgr.migration.finalize import FinalizeReport
    from offsetmgr.migration.finalize_groups import GroupFinalizeReport
    from offsetmgr.migration.verify import PartitionResult, VerifySummary


ShownPlans: TypeAlias = Callable[[Iterable[GroupPlan], int], Iterable[GroupPlan]]
"""Receives plans and their number, and yields the plans."""


class WrittenPlan(NamedTuple):
    """A plan that was written to a file: its header, the number of selected groups, its summary, and the SHA-256 of the
    file. ``one_behind`` tells whether the source is exactly one behind its log's end in every planned partition."""

    header: PlanHeader
    groups: int
    summary: PlanSummary
    sha256: str
    one_behind: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether no selected group has an offset, and none failed."""
        return not self.summary.actions and not self.summary.failed_groups


def applicable_options(sides: SourceAndTarget, options: PlanOptions) -> PlanOptions:
    """Returns the options. A pattern that equals the name of a group in the source selects only that group.

    Raises `UsageError` if a selected topic cannot exist in one of the stores.
    """
    options.selection.within(sides.source.capabilities.partitions, sides.target.capabilities.partitions)
    selection = options.group_selection
    has_globs = any(map(is_pattern, (*(selection.patterns or ()), *selection.excluded)))
    return options.literal_first(sides.source.groups()) if has_globs else options


def write_plan_file(
    sides: SourceAndTarget,
    options: PlanOptions,
    path: Path,
    *,
    partition_map: PartitionMap | None,
    translate: OffsetTranslation | None,
    waves: Waves | None = None,
    shown: ShownPlans = lambda plans, _count: plans,
    window: ObservationWindow | None = None,
) -> WrittenPlan:
    """Plans the selected groups and writes the plan to the new file ``path``. ``waves`` gives groups their waves and
    owners; ``window`` is as in `Planner`.

    ``shown`` receives the plans and their number, and yields the plans, for example with progress. Raises
    `UnknownTopicOrPartition` if a selected topic is in no plan, `GroupNotFound` if a row of ``waves`` matches no
    selected group, and the errors of `Planner` and `write_plan`.
    """
    with sides.legacy_members() as members:
        planner = Planner(
            sides.source,
            sides.target,
            options,
            SystemClock(),
            sides.cluster(),
            members,
            partition_map=partition_map,
            translate=translate,
            window=window or ObservationWindow(0),
        )
        names = (
            planner.selected_groups()
        )  # without groups, the address is wrong, and the comparison of clusters misleads
        if not names:
            raise GroupNotFound(
                f"nothing to plan in {sides.source.uri}", "it has no groups", no_groups_hint(sides.source)
            )
        header = planner.header()
        if waves is not None:
            waves.require_all(names, options.group_selection)
        planned = require_planned_topics(planner.plan(names), options, f"{sides.source.uri} and {sides.target.uri}")
        if waves is not None:
            planned = waves.assigned(planned)
        summary, sha256 = write_plan(path, header, shown(planned, len(names)), planner.target.topic_ids)
    return WrittenPlan(header, len(names), summary, sha256, set(planner.tails) == {True})


def write_reverse_plan_file(
    back: SourceAndTarget,
    plan: PlanFile,
    state: MigrationState,
    path: Path,
    *,
    allow_rewind: bool,
    if_ahead: AheadPolicy | None = None,
    only: GroupScope | None = None,
    shown: ShownPlans = lambda plans, _count: plans,
) -> WrittenPlan:
    """Plans the way back from ``plan``, and writes it to the new file ``path``. ``back`` is the reverse migration.

    ``allow_rewind`` also copies offsets that were rewound in the target, and ``if_ahead`` is the caller's word for
    offsets that are ahead in the old store. ``only`` limits the groups. ``shown`` is as in `write_plan_file`. Raises
    the errors of `ReversePlanner` and `write_plan`.
    """
    with back.legacy_members() as members:
        planner = Planner(
            back.source,
            back.target,
            reverse_options(plan, only, if_ahead),
            SystemClock(),
            back.cluster(),
            members,
            translate=plan.header.translate,
        )
        reverse = ReversePlanner(plan, state, planner, allow_rewind, only)
        header = planner.header()
        steps = shown(reverse.steps(), len(reverse.groups))
        summary, sha256 = write_plan(path, header, steps, planner.target.topic_ids)
    return WrittenPlan(header, len(reverse.groups), summary, sha256)


def require_planned_topics(plans: Iterable[GroupPlan], options: PlanOptions, where: str) -> Iterator[GroupPlan]:
    """Yields the plans. After the last plan, raises `UnknownTopicOrPartition` if a selected topic is in none of the
    plans."""
    topic_matches = TopicMatches(options.selection)
    for group in plans:
        topic_matches.record((step.source_tp for step in group.steps), incomplete=bool(group.error))
        yield group
    topic_matches.require_all(where)


MAX_DIFFERENCES: Final = 1000
"""The number of differences that a `RollbackReport` lists."""


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


@dataclass(slots=True)
class RollbackReport(Report):
    """The result of `Migration.rollback`: a `Report`, and the partitions that it left alone although they do not hold
    their before-image.

    ``differing`` counts the planned partitions whose write the journal does not record, and whose offset is not the
    before-image. If there are any, the journal may be truncated, or another client has committed. ``differences`` has
    the first of them.

    >>> RollbackReport(groups=1, written=4, differing=1).ok
    False
    """

    differing: int = 0
    differences: tuple[RollbackDifference, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every offset that `Migration.apply` wrote is as it was before, and no other planned offset differs
        from its before-image."""
        return not self.failed and not self.interrupted and not self.closed and not self.differing


class Migration(Closeable):
    """A migration on disk: a plan file, and a journal in the same directory. ``with Migration(path) as migration:``
    opens an existing migration, and `Migration.plan` creates one.

    Example::

        from offsetmgr import Migration, PlanOptions

        options = PlanOptions(groups=("shop",))
        with Migration.plan("zookeeper://h1:2181", "kafka://h1:9092", "shop.plan", options) as migration:
            print(migration.summary.writes, "offsets to write")
            migration.apply()
            print(migration.verify().ok)  # migration.rollback() restores what apply overwrote

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
        config = config or MigrationConfig()
        self._config = config
        self._plan, _ = open_plan(Path(path))
        self._connections = config.connections()
        self._sides = SourceAndTarget.of_plan(self._connections, self._plan.header, *config.of_sides())

    @classmethod
    def plan(
        cls,
        source: str,
        target: str,
        path: str | Path,
        options: PlanOptions | None = None,
        *,
        translate: OffsetTranslation | None = None,
        partition_map: str | Path | None = None,
        config: MigrationConfig | None = None,
    ) -> Self:
        """Reads both stores (URIs), decides which offsets a migration writes, and writes the plan to the new file
        ``path``. Nothing else is changed.

        ``options`` select groups and topics, rename groups, and define how the plan treats offsets outside the log and
        targets that are ahead. ``translate`` states that the offsets of another Kafka cluster are valid in the
        target. ``partition_map`` is a confirmed file that ``migrate plan --draft-partition-map`` wrote, for byte
        positions of Kafka 0.7. Look at ``summary.refused`` and ``summary.failed_groups``: `apply` does not write these.

        Raises `GroupNotFound` if the groups have no offsets, `PlanError` if the file exists, `OtherCluster`,
        `UnknownTopicOrPartition`, `UsageError`, `Unreachable`, `TimedOut`.
        """
        from offsetmgr.migration.partition_map import read_map

        options, config = (options or PlanOptions()).for_source(source), config or MigrationConfig()
        confirmed = None if partition_map is None else read_map(Path(partition_map))
        with config.connections() as connections:
            sides = SourceAndTarget(connections, source, target, *config.of_sides())
            options = applicable_options(sides, options)
            written = write_plan_file(sides, options, Path(path), partition_map=confirmed, translate=translate)
        if written.is_empty:
            Path(path).unlink()
            raise GroupNotFound(f"nothing to plan in {source}", "no offset is committed in the selected groups")
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

    def _only(self, groups: GroupsArgument | None) -> GroupScope | None:
        return select_groups(self._plan, GroupSelection.of(groups))

    def apply(
        self,
        *,
        groups: GroupsArgument | None = None,
        accept_stale: bool = False,
        wait_empty_s: float = 0.0,
        stop: Callable[[], bool] = lambda: False,
    ) -> Report:
        """Writes the plan's offsets. A target offset that has changed since the plan is not overwritten.

        If the plan is older than a day, the method first compares the source, and raises `PlanError` if a group has
        moved on. ``accept_stale`` writes the old offsets.

        ``groups`` are names or globs of the plan's groups, to which the step is limited; None means all groups.

        ``wait_empty_s`` is the time in seconds that the method waits for groups with members to become empty. Once
        ``stop`` returns True, groups under way are finished and no others begin. Returns the counts and the failed
        groups. ``Report.ok`` concerns the planned writes; the partitions that the plan itself refused are in
        ``summary.refused``. Raises `PlanError` if a store is not the planned one, `JournalError` if the plan was rolled
        back or finalized, or another process executes it, `Unreachable`, `TimedOut`.
        """
        self._connections.require_open()
        require_comparison(self._plan)
        if not accept_stale:
            from offsetmgr.migration.renewal import reject_stale

            hint = "plan them again: offsetmgr migrate renew; or write the old offsets with accept_stale=True"
            reject_stale(self._plan, self.state(), self._sides.source, self._only(groups), hint)
        logs = self._sides.logs()
        with journaled_writer(
            self._plan, PlanRun("apply", self._only(groups)), self._sides.target, stop=stop, wait_empty_s=wait_empty_s
        ) as (
            writer,
            state,
        ):
            return apply(self._plan, state, writer, lambda: logs)

    def verify(
        self,
        on_result: Callable[[PartitionResult], None] = lambda _result: None,
        *,
        groups: GroupsArgument | None = None,
    ) -> VerifySummary:
        """Reads both stores again, and compares every partition with the plan. Changes nothing. ``groups`` is as in
        `apply`.

        ``on_result`` is called with the result of each partition. ``VerifySummary.ok`` is True only if every partition
        passed. Raises `PlanError` if a store is not the planned one, `Unreachable`, `TimedOut`.
        """
        self._connections.require_open()
        verifier = self._sides.verifier(self._plan, self.state())
        verifier.only = self._only(groups)
        for result in verifier.results():
            on_result(result)
        return verifier.summary

    def rollback(
        self,
        *,
        groups: GroupsArgument | None = None,
        force: bool = False,
        wait_empty_s: float = 0.0,
        stop: Callable[[], bool] = lambda: False,
    ) -> RollbackReport:
        """Restores the offsets that `apply` overwrote, and deletes those that it created. An offset that has changed
        since is rejected unless ``force``. The other arguments are those of `apply`. Afterwards compares the offsets
        that the journal does not record as written with their before-images, because the journal may be truncated.

        Raises `JournalError` if nothing was applied, `GateRefused` if the migration was finalized (see `plan_reverse`),
        `PlanError`, `Unreachable`, `TimedOut`.
        """
        self._connections.require_open()
        with journaled_writer(
            self._plan, PlanRun("undo", self._only(groups)), self._sides.target, stop=stop, wait_empty_s=wait_empty_s
        ) as (
            writer,
            state,
        ):
            done = rollback(self._plan, state, writer, force=force)
        report = RollbackReport(**{one.name: getattr(done, one.name) for one in fields(done)})
        if not report.interrupted:
            for found in differences(self._plan, state, self._sides.target, self._only(groups)):
                report.differing += 1
                if report.differing <= MAX_DIFFERENCES:
                    report.differences += (found,)
        return report

    def plan_reverse(
        self, path: str | Path, *, allow_rewind: bool = False, if_ahead: AheadPolicy | None = None
    ) -> Migration:
        """Plans the way back after the groups have consumed from the target: writes a plan to the new file ``path``
        that copies the target's present offsets to the source (``migrate rollback --reverse-plan``).

        ``allow_rewind`` also copies offsets that were rewound in the target. ``if_ahead`` is as in `PlanOptions`, for
        offsets that are ahead in the source. Returns the reverse migration; its ``apply`` writes the offsets. Raises
        `PlanError` if the file exists, `OtherCluster`, `Unreachable`, `TimedOut`.
        """
        self._connections.require_open()
        config = self._config
        back = SourceAndTarget.reversed(self._connections, self._plan.header, *config.of_sides())
        state, path = self.state(), Path(path)
        write_reverse_plan_file(back, self._plan, state, path, allow_rewind=allow_rewind, if_ahead=if_ahead)
        swapped = replace(config, source=config.target, target=config.source)
        return Migration(path, swapped)

    def finalize_groups(
        self,
        groups: GroupsArgument,
        *,
        window_s: float = 60.0,
        accept_idle: bool = False,
        accept_refused: bool = False,
        delete_source: bool = False,
        accept_unseen: bool = False,
    ) -> GroupFinalizeReport:
        """Finalizes each of the groups by itself, as ``migrate finalize GROUP``: those that pass the checks of
        `finalize` are finalized, and ``blocked`` has the reason of each other group. The arguments are those of
        `finalize`. Raises `JournalError` if the plan was rolled back, `PlanError`, `Unreachable`, `TimedOut`."""
        self._connections.require_open()
        from offsetmgr.migration.evidence import EvidenceThresholds
        from offsetmgr.migration.finalize_groups import finalize_groups
        from offsetmgr.migration.group_observer import ObservationWindow
        from offsetmgr.migration.verify_rules import Status

        rules = EvidenceThresholds(accept_idle=accept_idle)
        gate = self._sides.member_gate(self._plan, delete_source, rules, ObservationWindow(window_s))
        verifier = self._sides.verifier(self._plan, self.state())
        verifier.only = self._only(groups)
        accept = (Status.REFUSED,) if accept_refused else ()
        with journaled_writer(self._plan, PlanRun("delete", verifier.only), self._sides.source) as (writer, state):
            remover = writer if delete_source else None
            done = finalize_groups(verifier, state, writer.journal, gate, remover, accept, accept_unseen=accept_unseen)
            writer.incomplete = bool(done.blocked or done.kept)
            return done

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
        that may have offsets in the source that the login may not see. Raises `GateRefused` if a check fails,
        `JournalError` if the plan was not applied completely, `PlanError`, `Unreachable`, `TimedOut`.
        """
        self._connections.require_open()
        from offsetmgr.migration.evidence import EvidenceThresholds
        from offsetmgr.migration.finalize import finalize
        from offsetmgr.migration.group_observer import ObservationWindow
        from offsetmgr.migration.verify_rules import Status

        rules = EvidenceThresholds(accept_idle=accept_idle)
        gate = self._sides.member_gate(self._plan, delete_source, rules, ObservationWindow(window_s))
        verifier = self._sides.verifier(self._plan, self.state())
        with journaled_writer(self._plan, PlanRun("delete"), self._sides.source) as (writer, state):
            done = finalize(
                verifier,
                state,
                writer.journal,
                gate,
                writer if delete_source else None,
                (Status.REFUSED,) if accept_refused else (),
                accept_unseen=accept_unseen,
            )
            writer.incomplete = bool(done.kept)
            return done
