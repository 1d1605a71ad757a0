"""The undo of one run of `migrate apply`: it restores what this run wrote, and nothing of the plan's other runs."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from one_migration import ORDERS, Migration, commit

from offsetmgr.cli.app import run
from offsetmgr.cli.connect_flags import ConnectFlags
from offsetmgr.config.connection import SettingsLayer
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import UsageError
from offsetmgr.core.model import Committed, OffsetAndMetadata
from offsetmgr.groups.operation_log import OperationLog
from offsetmgr.migration.apply import apply
from offsetmgr.migration.fleet import GroupState, group_statuses
from offsetmgr.migration.journal import Journal, JournalRecord, journal_path
from offsetmgr.migration.journaled_writer import JournaledWriter, Report
from offsetmgr.migration.plan import GroupScope
from offsetmgr.migration.plan_file import PlanFile
from offsetmgr.migration.plan_run import PlanRun, journaled_writer
from offsetmgr.migration.rollback import groups_of_run, preview, rollback
from offsetmgr.stores.snapshot import SnapshotStore
from offsetmgr.testing.memory import MemoryStore


def migration_of_two(tmp_path: Path) -> Migration:
    migration = Migration(tmp_path)
    for group in ("audit", "shop"):
        commit(migration.source, group, 42, 7)
        commit(migration.target, group, 40)
    migration.plan()
    return migration


def apply_run(
    migration: Migration, operation: str, only: GroupScope | None = None, journal: type[Journal] = Journal
) -> Report:
    plan, state = PlanFile(migration.path), migration.state()
    with journal(journal_path(migration.path), plan_sha256=plan.sha256, clock=SystemClock()) as opened:
        identity = {"operation": operation}
        writer = JournaledWriter("apply", migration.target, opened, SystemClock(), only=only, identity=identity)
        return apply(plan, state, writer)


def undo_run(migration: Migration, operation: str, *, force: bool = False) -> Report:
    plan, state = PlanFile(migration.path), migration.state()
    one = state.run(operation)
    with Journal(journal_path(migration.path), plan_sha256=plan.sha256, clock=SystemClock()) as opened:
        identity = {"run": operation}
        writer = JournaledWriter(
            "undo", migration.target, opened, SystemClock(), only=groups_of_run(one), identity=identity
        )
        return rollback(plan, state, writer, force=force, run=one)


def states(migration: Migration) -> dict[str, GroupState]:
    return {one.group: one.state for one in group_statuses(PlanFile(migration.path), migration.state())}


BEFORE, AFTER = {ORDERS[0]: 40}, {ORDERS[0]: 42, ORDERS[1]: 7}


def test_the_undo_of_a_run_leaves_the_groups_of_other_runs(tmp_path: Path) -> None:
    migration = migration_of_two(tmp_path)
    apply_run(migration, "first", frozenset({"audit"}))
    apply_run(migration, "second", frozenset({"shop"}))

    report = undo_run(migration, "second")

    assert (report.ok, report.written) == (True, 2)
    assert migration.target_offsets() == {"audit": AFTER, "shop": BEFORE}
    assert states(migration) == {"audit": GroupState.APPLIED, "shop": GroupState.ROLLED_BACK}


def test_the_undo_of_a_retry_leaves_the_partitions_of_the_first_run(tmp_path: Path) -> None:
    migration = migration_of_two(tmp_path)
    apply_run(migration, "first", frozenset({"audit"}))
    commit(migration.target, "shop", None, 3)  # changed since the plan: the first run refuses this partition
    assert not apply_run(migration, "second").ok
    del migration.target.data["shop"][ORDERS[1]]
    assert apply_run(migration, "third").ok

    report = undo_run(migration, "third")

    assert (report.ok, report.written) == (True, 1)
    assert migration.target_offsets() == {"audit": AFTER, "shop": {ORDERS[0]: 42}}
    assert states(migration)["shop"] is GroupState.ROLLED_BACK_IN_PART
    assert migration.rollback().ok  # a rollback of all runs restores the rest
    assert migration.target_offsets() == {"audit": BEFORE, "shop": BEFORE}
    assert states(migration)["shop"] is GroupState.ROLLED_BACK


def test_an_offset_that_has_changed_since_is_not_restored(tmp_path: Path) -> None:
    migration = migration_of_two(tmp_path)
    apply_run(migration, "first")
    migration.target.data["shop"][ORDERS[0]] = Committed(50, version=0)
    plan, state = PlanFile(migration.path), migration.state()

    shown = list(preview(plan, state, migration.target, run=state.run("first")))
    report = undo_run(migration, "first")

    assert [(one.group, one.tp, one.now, one.problem) for one in shown if one.problem] == [
        ("shop", ORDERS[0], 50, "it has changed since apply")
    ]
    assert len(shown) == 4
    assert not report.ok and set(report.failed) == {"shop"}
    assert migration.target_offsets() == {"audit": BEFORE, "shop": {ORDERS[0]: 50}}


class WithoutOutcomes(Journal):
    """A journal of a run that is killed after its writes."""

    def append(self, records: object) -> None:
        kept: list[JournalRecord] = [one for one in records if not one["kind"].endswith(("outcome", "complete"))]  # type: ignore[attr-defined]
        super().append(kept)


def test_a_partition_of_two_runs_is_refused_by_name(tmp_path: Path) -> None:
    migration = migration_of_two(tmp_path)
    apply_run(migration, "killed", frozenset({"shop"}), journal=WithoutOutcomes)
    apply_run(migration, "second")

    for operation in ("killed", "second"):
        report = undo_run(migration, operation)
        (error, _) = report.failed["shop"].failed.values()
        other = "second" if operation == "killed" else "killed"
        assert f"the run {other} may have written it too" in str(error)
        assert str(error).endswith("leave out --run to undo all runs of the group")

    assert migration.target_offsets() == {"audit": BEFORE, "shop": AFTER}
    assert migration.rollback().ok
    assert migration.target_offsets() == {"audit": BEFORE, "shop": BEFORE}


def test_the_undo_of_a_killed_run_restores_what_it_may_have_written(tmp_path: Path) -> None:
    migration = migration_of_two(tmp_path)
    apply_run(migration, "killed", frozenset({"shop"}), journal=WithoutOutcomes)

    assert undo_run(migration, "killed").ok
    assert migration.target_offsets() == {"audit": BEFORE, "shop": BEFORE}


def test_an_unknown_run_is_an_error(tmp_path: Path) -> None:
    migration = migration_of_two(tmp_path)
    apply_run(migration, "")
    for operation in ("other", ""):
        with pytest.raises(UsageError, match="no run of `migrate apply`"):
            migration.state().run(operation)


def test_the_recorded_undo_names_the_run_and_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    migration_of_two(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("OFFSETMGR_CONFIG", str(tmp_path / "own.toml"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.toml").write_text("[context.prod]\ntimeout = 1000\n")
    (tmp_path / "client.properties").write_text("client.id=me\n")

    plan = PlanFile(tmp_path / "plan.json")
    with ConnectFlags(SettingsLayer(command_config="client.properties"), "prod") as connect:
        options = connect.repeated_options(None, "to.properties")
    store = MemoryStore("target")
    with journaled_writer(plan, PlanRun("apply", frozenset({"shop"}), undo_options=options), store):
        pass
    (recorded,) = OperationLog().operations()
    assert shlex.split(recorded.start.undo[0]) == [
        *("offsetmgr", "migrate", "rollback", str(tmp_path / "plan.json"), "--run", recorded.id),
        *("--command-config", str(tmp_path / "client.properties")),
        *("--to-command-config", str(tmp_path / "to.properties"), "--context", "prod"),
    ]


def test_a_finalize_that_leaves_out_a_group_is_recorded_as_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    source, target, plan = tmp_path / "source.csv", tmp_path / "target.avro", tmp_path / "plan.json"
    source.write_text("audit,orders,0,5\nshop,orders,0,6\n")
    with SnapshotStore(target) as store:
        store.commit("other", {ORDERS[0]: OffsetAndMetadata(1)})
    assert (
        run(["migrate", "plan", "--from", f"file:{source}", "--to", f"file:{target}", "--all-groups", "-o", str(plan)])
        == 0
    )
    assert run(["migrate", "apply", str(plan), "--group", "shop", "--yes"]) == 0
    assert run(["migrate", "finalize", str(plan), "shop", "audit", "--yes"]) == 1
    assert OperationLog().operations()[-1].outcome == "failed"
    assert run(["migrate", "finalize", str(plan), "shop", "--yes"]) == 0
    assert OperationLog().operations()[-1].outcome == "done"
    assert run(["migrate", "rollback", str(plan), "--group", "shop", "--yes"]) == 1
    assert OperationLog().operations()[-1].outcome == "failed"
