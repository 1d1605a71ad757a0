"""`Migration`: moves the committed offsets of groups from one store to another, step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from offsetmgr.api.connections import Connections
from offsetmgr.api.endpoints import SourceAndTarget
from offsetmgr.config.connection import ConnectionConfig, ResolvedConnection
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import GroupNotFound
from offsetmgr.core.log_origin import OffsetTranslation
from offsetmgr.groups.topic_matches import TopicMatches
from offsetmgr.migration.apply import apply
from offsetmgr.migration.plan import GroupPlan, PlanHeader, PlanOptions
from offsetmgr.migration.plan_file import PlanSummary, write_plan
from offsetmgr.migration.plan_run import journaled_writer, open_plan
from offsetmgr.migration.planner import Planner
from offsetmgr.migration.progress import MigrationState
from offsetmgr.migration.rollback import rollback

if TYPE_CHECKING:
    from offsetmgr.migration.finalize import FinalizeReport
    from offsetmgr.migration.journaled_writer import Report
    from offsetmgr.migration.verify import PartitionResult, VerifySummary


@dataclass(frozen=True, slots=True)
class MigrationConfig:
    """How a `Migration` connects.

    ``bootstrap_server`` names the brokers whose logs the offsets refer to, if neither store's URI names any. ``both``
    has credentials and timeouts; ``source`` and ``target`` replace it for one side.
    """

    bootstrap_server: str | None = None
    both: ConnectionConfig = field(default_factory=ConnectionConfig)
    source: ConnectionConfig | None = None
    target: ConnectionConfig | None = None

    def connections(self) -> Connections:
        """Returns new connections, which nothing has opened yet."""
        return Connections(ResolvedConnection(self.both, None, self.bootstrap_server))

    def of_sides(self) -> tuple[ConnectionConfig, ConnectionConfig]:
        """Returns the settings of the source and of the target."""
        return self.source or self.both, self.target or self.both


class Migration:
    """A migration on disk: a plan file, and a journal in the same directory. ``with Migration(path) as migration:``
    opens an existing one, `Migration.plan` makes a new one.

    Example::

        from offsetmgr import Migration, PlanOptions

        options = PlanOptions(groups=("shop",))
        with Migration.plan("zookeeper://h1:2181", "kafka://h1:9092", "shop.plan", options) as migration:
            print(migration.summary.writes, "offsets to write")
            migration.apply()
            print(migration.verify().ok)  # migration.rollback() restores what apply overwrote

    Every step can be interrupted and called again, by this or another process. A step raises `JournalError` if another
    process executes one. One thread at a time may use an object. All methods block; call them in a thread
    (``asyncio.to_thread``) from asynchronous programs.
    """

    def __init__(self, path: str | Path, config: MigrationConfig | None = None) -> None:
        """Opens the plan file ``path``. Servers are contacted on first use.

        Raises `PlanError` if the file is not a valid plan, and `JournalError` if its journal is damaged.
        """
        config = config or MigrationConfig()
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
        config: MigrationConfig | None = None,
    ) -> Self:
        """Reads both stores (URIs), decides which offsets a migration writes, and writes the plan to the new file
        ``path``. Nothing else is changed.

        ``options`` select groups and topics, rename groups, and say what the plan does with offsets outside the log and
        with targets that are ahead. ``translate`` states that the offsets of another Kafka cluster are valid in the
        target.

        Raises `GroupNotFound` if the groups have no offsets, `OtherCluster`, `UnknownTopicOrPartition`, `UsageError`,
        `Unreachable`, `TimedOut`.
        """
        options, config = options or PlanOptions(), config or MigrationConfig()
        with config.connections() as connections:
            sides = SourceAndTarget(connections, source, target, *config.of_sides())
            options.selection.within(sides.source.capabilities.partitions, sides.target.capabilities.partitions)
            options = options.literal_first(sides.source.groups())
            with sides.legacy_members() as members:
                planner = Planner(
                    sides.source, sides.target, options, SystemClock(), sides.cluster(), members, translate=translate
                )
                header, names = planner.header(), planner.selected_groups()
                planned = require_planned_topics(planner.plan(names), options, f"{source} and {target}")
                summary, _ = write_plan(Path(path), header, planned, planner.target.topic_ids)
        if not summary.actions and not summary.failed_groups:
            Path(path).unlink()
            raise GroupNotFound(f"nothing to plan in {source}", "no offset is committed in the selected groups")
        return cls(path, config)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections. The plan and the journal stay on disk."""
        self._connections.close()

    @property
    def header(self) -> PlanHeader:
        """When the plan was made, its options, and the identities of its source and target."""
        return self._plan.header

    @property
    def summary(self) -> PlanSummary:
        """How many groups and offsets the plan writes, keeps and rejects, by action."""
        return self._plan.summary

    def groups(self) -> Iterator[GroupPlan]:
        """Yields the planned steps of each group."""
        return self._plan.groups()

    def state(self) -> MigrationState:
        """Returns what the journal records: which groups were applied, undone and deleted, and when the migration was
        finalized. Contacts no server. Raises `JournalError`."""
        return open_plan(self._plan.path)[1]

    def apply(self, *, wait_empty_s: float = 0.0, stop: Callable[[], bool] = lambda: False) -> Report:
        """Writes the plan's offsets. A target offset that has changed since the plan is not overwritten.

        ``wait_empty_s`` is the time in seconds that the method waits for groups with members to become empty. Once
        ``stop`` returns True, groups under way are finished and no others begin. Returns the counts and the failed
        groups. Raises `PlanError` if a store is not the planned one, `JournalError`, `Unreachable`, `TimedOut`.
        """
        logs = self._sides.logs()
        with journaled_writer(self._plan, "apply", self._sides.target, stop=stop, wait_empty_s=wait_empty_s) as (
            writer,
            state,
        ):
            return apply(self._plan, state, writer, lambda: logs)

    def verify(self, on_result: Callable[[PartitionResult], None] = lambda _result: None) -> VerifySummary:
        """Reads both stores again, and compares every partition with the plan. Changes nothing.

        ``on_result`` is called with the result of each partition. ``VerifySummary.ok`` is True only if every partition
        passed. Raises `PlanError` if a store is not the planned one, `Unreachable`, `TimedOut`.
        """
        verifier = self._sides.verifier(self._plan, self.state())
        for result in verifier.results():
            on_result(result)
        return verifier.summary

    def rollback(
        self, *, force: bool = False, wait_empty_s: float = 0.0, stop: Callable[[], bool] = lambda: False
    ) -> Report:
        """Restores the offsets that `apply` overwrote, and deletes those that it created. An offset that has changed
        since is rejected unless ``force``. The other arguments are those of `apply`.

        Raises `JournalError` if nothing was applied, `GateRefused` if the migration was finalized, `PlanError`,
        `Unreachable`, `TimedOut`.
        """
        with journaled_writer(self._plan, "undo", self._sides.target, stop=stop, wait_empty_s=wait_empty_s) as (
            writer,
            state,
        ):
            return rollback(self._plan, state, writer, force=force)

    def finalize(
        self,
        *,
        window_s: float = 60.0,
        accept_idle: bool = False,
        accept_refused: bool = False,
        delete_source: bool = False,
    ) -> FinalizeReport:
        """Verifies again, proves that no member commits to the source alone, and records the end in the journal.

        ``window_s`` is the longest time in seconds to watch live members. ``accept_idle`` accepts partitions without
        traffic if no message can be lost, ``accept_refused`` those that the plan rejected. ``delete_source`` also
        deletes the copied offsets from the source; the journal keeps them. Raises `GateRefused` if a check fails,
        `JournalError` if the plan was not applied completely, `PlanError`, `Unreachable`, `TimedOut`.
        """
        from offsetmgr.migration.evidence import EvidenceThresholds
        from offsetmgr.migration.finalize import finalize
        from offsetmgr.migration.group_observer import ObservationWindow
        from offsetmgr.migration.verify import Status

        rules = EvidenceThresholds(accept_idle=accept_idle)
        gate = self._sides.member_gate(self._plan, delete_source, rules, ObservationWindow(window_s))
        verifier = self._sides.verifier(self._plan, self.state())
        with journaled_writer(self._plan, "delete", self._sides.source) as (writer, state):
            return finalize(
                verifier,
                state,
                writer.journal,
                gate,
                writer if delete_source else None,
                (Status.REFUSED,) if accept_refused else (),
            )


def require_planned_topics(plans: Iterable[GroupPlan], options: PlanOptions, where: str) -> Iterator[GroupPlan]:
    """Yields the plans. After the last plan, raises `UnknownTopicOrPartition` if a selected topic is in none of the
    plans."""
    topic_matches = TopicMatches(options.selection)
    for group in plans:
        topic_matches.record((step.source_tp for step in group.steps), incomplete=bool(group.error))
        yield group
    topic_matches.require_all(where)
