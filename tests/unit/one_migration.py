"""One migration between two in-memory stores, for tests of the state machine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import Committed, LogRange, TopicPartition
from offsetmgr.kafka.cluster.base import Cluster, Logs
from offsetmgr.migration.apply import apply
from offsetmgr.migration.journal import Journal, journal_path
from offsetmgr.migration.journaled_writer import JournaledWriter, Report
from offsetmgr.migration.plan import PlanOptions
from offsetmgr.migration.plan_file import PlanFile, write_plan
from offsetmgr.migration.planner import Planner
from offsetmgr.migration.progress import MigrationState
from offsetmgr.migration.rollback import rollback
from offsetmgr.migration.verify import MigrationVerifier
from offsetmgr.migration.verify_rules import Status
from offsetmgr.testing.memory import MemoryStore

ORDERS = [TopicPartition("orders", p) for p in range(4)]


@dataclass
class Migration:
    """One plan between two stores. Each command is a method."""

    directory: Path
    source: MemoryStore = field(default_factory=lambda: MemoryStore("source"))
    target: MemoryStore = field(default_factory=lambda: MemoryStore("target"))
    options: PlanOptions = field(default_factory=PlanOptions)

    @property
    def path(self) -> Path:
        return self.directory / "plan.json"

    def plan(self, cluster: Cluster | None = None) -> PlanFile:
        planner = Planner(self.source, self.target, self.options, SystemClock(), cluster)
        write_plan(self.path, planner.header(), planner.plan(planner.selected_groups()))
        return PlanFile(self.path)

    def state(self) -> MigrationState:
        return MigrationState.read(journal_path(self.path), PlanFile(self.path).sha256)

    def apply(self, journal: type[Journal] = Journal, *, logs: Logs | None = None) -> Report:
        plan, state = PlanFile(self.path), self.state()
        with journal(journal_path(self.path), plan_sha256=plan.sha256, clock=SystemClock()) as opened:
            return apply(plan, state, JournaledWriter("apply", self.target, opened, SystemClock()), lambda: logs)

    def rollback(self, journal: type[Journal] = Journal, *, force: bool = False) -> Report:
        plan, state = PlanFile(self.path), self.state()
        with journal(journal_path(self.path), plan_sha256=plan.sha256, clock=SystemClock()) as opened:
            return rollback(plan, state, JournaledWriter("undo", self.target, opened, SystemClock()), force=force)

    def verify(self) -> dict[str, Status]:
        verifier = MigrationVerifier(PlanFile(self.path), self.source, self.target)
        return {f"{v.target_group} {v.tp}": v.status for v in verifier.results()}

    def target_offsets(self) -> dict[str, dict[TopicPartition, int]]:
        return {g: {tp: c.offset for tp, c in stored.items()} for g, stored in self.target.data.items() if stored}


def commit(store: MemoryStore, group: str, *offsets: int | None) -> None:
    """Sets ``orders`` 0, 1, ... of a group; None leaves a partition without a commit."""
    committed = {tp: Committed(o, version=0) for tp, o in zip(ORDERS, offsets, strict=False) if o is not None}
    store.data.setdefault(group, {}).update(committed)


@dataclass
class LockableMemoryStore(MemoryStore):
    """A store whose groups a mirror and a refresh lock, unless the lock of a group fails (``unlockable``).
    ``refreshed`` has the partitions that were committed again."""

    unlockable: dict[str, OffsetMgrError] = field(default_factory=dict)
    refreshed: dict[str, set[TopicPartition]] = field(default_factory=dict)

    def lock(self, group, *, holder):
        return SimpleNamespace(group=group, lost=None, replaced=False)

    def lock_many(self, groups, *, holder):
        return ((group, self.unlockable.get(group) or self.lock(group, holder=holder)) for group in groups)

    def refresh_locked(self, held, leave_out):
        for lock in held:
            self.refreshed[lock.group] = {*self.data[lock.group]}.difference(leave_out.get(lock.group, ()))
            yield lock.group, None

    def commit_locked(self, commits):
        return ()

    release_locks = commit_locked


@dataclass
class OneLog:
    """A cluster whose partitions all have one log range."""

    log: LogRange | OffsetMgrError
    id: str = "one-log"
    requested: list[TopicPartition] = field(default_factory=list)

    def cluster_id(self) -> str:
        return self.id

    def brokers(self) -> frozenset[str]:
        return frozenset({"one-log:9092"})

    def topics(self, names: Iterable[str] | None = None) -> dict[str, int]:
        return dict.fromkeys(names or (), 8)

    def log_ranges(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LogRange | OffsetMgrError]:
        new = list(partitions)
        self.requested += new
        return dict.fromkeys(new, self.log)
