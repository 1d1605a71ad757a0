"""Real processes killed (SIGKILL) at every journal step of apply and rollback, on a real ZooKeeper and broker."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from offsetmgr.core.clock import SystemClock
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.migration.apply import apply
from offsetmgr.migration.journal import Journal, journal_path
from offsetmgr.migration.journaled_writer import JournaledWriter, Report
from offsetmgr.migration.plan import PlanOptions
from offsetmgr.migration.plan_file import PlanFile, write_plan
from offsetmgr.migration.planner import Planner
from offsetmgr.migration.progress import MigrationState
from offsetmgr.migration.rollback import rollback
from offsetmgr.stores.uri import open_store

pytestmark = [pytest.mark.servers, pytest.mark.matrix]

SIGKILL = -9
CHILD = Path(__file__).with_name("dying_migration.py")


@dataclass
class Migration:
    """The two stores, and one topic of three partitions that exists in Kafka."""

    source: OffsetStore
    target: OffsetStore
    topic: str
    directory: Path

    def tp(self, partition: int) -> TopicPartition:
        return TopicPartition(self.topic, partition)

    def prepare(self, prefix: str) -> PlanFile:
        """Creates three groups (one is new in Kafka, one is behind there, one is ahead in one partition) and their
        plan."""
        for number in range(3):
            offsets = {self.tp(p): OffsetAndMetadata(0) for p in range(3)}
            self.source.commit(f"{prefix}-{number}", offsets)
        self.target.commit(f"{prefix}-1", {self.tp(0): OffsetAndMetadata(0, "mine"), self.tp(1): OffsetAndMetadata(0)})
        for number in range(3):
            values = {self.tp(p): OffsetAndMetadata(10 * number + p + 1) for p in range(3)}
            self.source.commit(f"{prefix}-{number}", values)
        self.target.commit(f"{prefix}-2", {self.tp(2): OffsetAndMetadata(40)})
        path = self.directory / f"{prefix}.json"
        planner = Planner(self.source, self.target, PlanOptions(groups=(f"{prefix}-*",)), SystemClock())
        write_plan(path, planner.header(), planner.plan(planner.selected_groups()))
        return PlanFile(path)

    def offsets_in(self, store: OffsetStore, prefix: str) -> dict[str, dict[int, tuple[int, str, int | None]]]:
        """Offset, metadata and version of every commit, by group number and partition."""
        found = store.scan([f"{prefix}-{n}" for n in range(3)])
        return {
            group.group[-1]: {
                tp.partition: (c.offset, c.metadata, c.version) for tp, c in sorted(group.offsets.items())
            }
            for group in found
        }

    def run(self, command: str, plan: PlanFile) -> Report:
        state = MigrationState.read(journal_path(plan.path), plan.sha256)
        with Journal(journal_path(plan.path), plan_sha256=plan.sha256, clock=SystemClock()) as journal:
            writer = JournaledWriter(command, self.target, journal, SystemClock())
            return apply(plan, state, writer) if command == "apply" else rollback(plan, state, writer)


@pytest.fixture
def migration(zookeeper, kafka, make_topic, unique, tmp_path) -> Iterator[Migration]:
    topic = make_topic(unique, 3)
    with (
        open_store(f"zookeeper://{zookeeper.connect}/kafka") as source,
        open_store(f"kafka://{kafka.bootstrap}") as target,
    ):
        yield Migration(source, target, topic, tmp_path)


def kill_at(command: str, plan: PlanFile, step: int, moment: str) -> bool:
    """Runs the command in a process that kills itself at this step. Returns False if the command ended before it."""
    child = subprocess.run(
        [sys.executable, str(CHILD), command, str(plan.path), str(step), moment],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    assert child.returncode in (0, SIGKILL), child.stderr
    return child.returncode == SIGKILL


AFTER = {
    "0": {0: (1, "", None), 1: (2, "", None), 2: (3, "", None)},
    "1": {0: (11, "", None), 1: (12, "", None), 2: (13, "", None)},
    "2": {0: (21, "", None), 1: (22, "", None), 2: (40, "", None)},
}
BEFORE = {
    "0": {},
    "1": {0: (0, "mine", None), 1: (0, "", None)},
    "2": {2: (40, "", None)},
}


def test_undisturbed_apply_and_rollback(migration, unique):
    plan = migration.prepare(unique)
    source = migration.offsets_in(migration.source, unique)
    assert migration.offsets_in(migration.target, unique) == BEFORE
    assert migration.run("apply", plan).ok
    assert migration.offsets_in(migration.target, unique) == AFTER
    assert migration.run("undo", plan).ok
    assert migration.offsets_in(migration.target, unique) == BEFORE
    assert migration.offsets_in(migration.source, unique) == source


@pytest.mark.parametrize("moment", ["before", "torn", "after"])
def test_apply_killed_at_every_step_and_resumed_ends_as_undisturbed(migration, unique, moment):
    for step in itertools.count():
        prefix = f"{unique}-{step}"
        plan = migration.prepare(prefix)
        source = migration.offsets_in(migration.source, prefix)
        killed = kill_at("apply", plan, step, moment)
        if killed:
            assert migration.run("apply", plan).ok
        assert migration.offsets_in(migration.target, prefix) == AFTER
        assert migration.offsets_in(migration.source, prefix) == source
        if not killed:
            break
    assert step >= 6


@pytest.mark.parametrize("moment", ["before", "torn", "after"])
def test_rollback_killed_at_every_step_and_resumed_ends_as_undisturbed(migration, unique, moment):
    for step in itertools.count():
        prefix = f"{unique}-{step}"
        plan = migration.prepare(prefix)
        source = migration.offsets_in(migration.source, prefix)
        assert migration.run("apply", plan).ok
        killed = kill_at("undo", plan, step, moment)
        if killed:
            assert migration.run("undo", plan).ok
        assert migration.offsets_in(migration.target, prefix) == BEFORE
        assert migration.offsets_in(migration.source, prefix) == source
        if not killed:
            break
    assert step >= 6


def test_apply_killed_and_then_rolled_back_leaves_the_target_as_it_was(migration, unique):
    for step in itertools.count():
        prefix = f"{unique}-{step}"
        plan = migration.prepare(prefix)
        if not kill_at("apply", plan, step, "after"):
            break
        if MigrationState.read(journal_path(plan.path), plan.sha256).apply.intents:
            assert migration.run("undo", plan).ok
        assert migration.offsets_in(migration.target, prefix) == BEFORE
    assert step >= 6
