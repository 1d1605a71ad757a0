"""The ways back, between two stores in memory: a rollback, the undo of one run of apply, and the reverse plan."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from in_process import command
from memory_stores import StoreWithTopicIds
from one_migration import ORDERS, Migration, commit

from offsetmgr import AheadPolicy, OffsetAndMetadata, PlanOptions
from offsetmgr import Migration as Library
from offsetmgr.core.errors import CorruptData, GateRefused, JournalError, TopicNotAuthorized, UsageError
from offsetmgr.core.model import Committed
from offsetmgr.migration.progress import Journal
from offsetmgr.testing.memory import MemoryStore


def test_rollback_refuses_offsets_that_changed_since_unless_forced(migration):
    migration.start([10, 20], [1, 2])
    commit(migration.target, "g", 11)
    report = migration.rollback()
    assert list(report.failed["g"].failed) == [ORDERS[0]]
    assert migration.target_offsets() == {"g": {ORDERS[0]: 11, ORDERS[1]: 2}}
    assert migration.rollback(force=True).ok
    assert migration.target_offsets() == {"g": {ORDERS[0]: 1, ORDERS[1]: 2}}
    intents = [r for r in map(json.loads, migration.journal.read_text().splitlines()) if r["kind"] == "undo-intent"]
    assert [(step["target"], step["after"]) for step in intents[-1]["topics"]["orders"]] == [(11, 1)]


def test_a_forced_rollback_does_not_overwrite_what_it_cannot_read(migration):
    migration.start([10, 20], [1, 2])
    migration.target.broken = {("g", ORDERS[0]): CorruptData("node", "junk")}
    report = migration.rollback(force=True)
    migration.target.broken.clear()
    assert list(report.failed["g"].failed) == [ORDERS[0]]
    assert migration.target_offsets() == {"g": {ORDERS[0]: 10, ORDERS[1]: 2}}
    assert migration.rollback().ok
    assert migration.target_offsets() == {"g": {ORDERS[0]: 1, ORDERS[1]: 2}}


def test_a_group_that_apply_refused_is_not_rolled_back(migration):
    migration.start([50, 50], [10], apply=False)
    migration.target.active["g"] = ("a consumer",)
    assert not migration.apply().ok
    migration.target.active.clear()
    commit(migration.target, "g", 95, 95)  # the consumer went on, and left
    with pytest.raises(JournalError, match="apply wrote nothing"):
        migration.rollback(force=True)
    shown = migration.run("rollback", "--yes", code=1)
    assert "restores" not in shown and "hint: another client has committed" in shown
    assert migration.target_offsets() == {"g": {ORDERS[0]: 95, ORDERS[1]: 95}}


def test_another_clients_commit_of_the_planned_offset_after_a_conflict_is_not_rolled_back(migration):
    migration.start([80], [50], apply=False)
    commit(migration.target, "g", 70)
    assert not migration.apply().ok
    commit(migration.target, "g", 80)
    report = migration.apply()
    assert (report.written, report.unchanged) == (0, 1)
    with pytest.raises(JournalError, match="apply wrote nothing"):
        migration.rollback()
    assert migration.target_offsets() == {"g": {ORDERS[0]: 80}}


def test_a_rollback_that_was_refused_does_not_close_the_plan(migration):
    migration.start([50])
    migration.target.active["g"] = ("a consumer",)
    assert not migration.rollback().ok
    migration.target.active.clear()
    assert migration.apply().ok
    assert migration.rollback().ok
    assert migration.target_offsets() == {}


@pytest.mark.parametrize("refused", [False, True])
def test_another_clients_commit_of_the_planned_offset_is_not_rolled_back(migration, refused):
    """The commit is made before apply, or after a run of apply that was refused for the topic."""
    migration.start([10, 20], apply=False)
    if refused:
        migration.target.broken = {("g", ORDERS[0]): TopicNotAuthorized("t", "no")}
        assert not migration.apply().ok
        migration.target.broken.clear()
    commit(migration.target, "g", 10)
    report = migration.apply()
    assert (report.ok, report.written, report.unchanged) == (True, 0 if refused else 1, 1)
    assert migration.rollback().ok
    assert migration.target_offsets() == {"g": {ORDERS[0]: 10}}


def test_a_rollback_before_any_apply_and_an_apply_after_it_are_errors(migration):
    migration.start([10], apply=False)
    with pytest.raises(JournalError, match="nothing was applied"):
        migration.rollback()
    migration.apply()
    migration.rollback()
    with pytest.raises(JournalError, match="rolled back"):
        migration.apply()


def test_a_finalized_plan_is_not_rolled_back(migration):
    migration.source = MemoryStore("source", kind="file")
    migration.start([10])
    with migration.opened() as library:
        assert library.finalize().verified == 1
    with pytest.raises(GateRefused, match="would rewind"):
        migration.rollback()


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_a_rollback_does_not_restore_an_offset_of_a_deleted_log(tmp_path: Path, force: tuple[str, ...]) -> None:
    target = StoreWithTopicIds("target")
    migration = Migration(tmp_path, target=target)
    commit(migration.source, "g", 10, 20)
    commit(target, "g", 1)
    migration.plan()
    migration.apply()
    target.topic_id = "after"
    shown = migration.run("rollback", "--dry-run", *force, code=1)
    assert "dry run: would restore 1 offset, and refuse 1; nothing was changed" in shown
    with migration.stores():
        table = command("migrate", "rollback", migration.path, "--dry-run", *force, code=1).stdout
    assert table.splitlines()[2].split()[-2:] == ["-", "-"]  # it is deleted, and there is no note
    report = migration.rollback(force=bool(force))
    assert migration.target_offsets() == {"g": {ORDERS[0]: 10}}  # the offset that apply created is deleted
    refused = report.failed["g"].failed[ORDERS[0]]
    assert "recreated" in str(refused)
    assert "set a new one with offsets reset" in refused.hint


def test_a_rollback_prints_the_command_that_removes_the_groups_that_are_empty_after_it(migration):
    for group in ("new*", "new 2", "existing"):
        commit(migration.source, group, 10)
    commit(migration.target, "existing", 5)
    migration.plan()
    migration.apply()
    *_, count, line = migration.run("rollback", "--yes").splitlines()
    assert count == "2 groups that had no offset before are empty now"
    command = shlex.split(line.removeprefix("to remove: offsetmgr "))
    migration.command(*command, "--yes")
    assert command[-5:] == ["--group", "new 2", "--group", "new[*]", "--execute"]


BEFORE, AFTER = {ORDERS[0]: 40}, {ORDERS[0]: 42, ORDERS[1]: 7}


@pytest.fixture
def two(tmp_path: Path) -> Migration:
    """A plan of the groups audit and shop."""
    migration = Migration(tmp_path)
    for group in ("audit", "shop"):
        commit(migration.source, group, 42, 7)
        commit(migration.target, group, 40)
    migration.plan()
    return migration


def apply_run(migration: Migration, groups: str | None = None, *, ok: bool = True) -> str:
    """Applies the plan, and returns the id of the run."""
    assert migration.apply(groups).ok is ok
    return str(migration.edits()[-1]["id"])


def undo(migration: Migration, run: str, *options: str, code: int = 0) -> str:
    return migration.run("rollback", "--run", run, "--yes", *options, code=code)


def test_the_undo_of_a_run_leaves_the_groups_of_other_runs(two: Migration) -> None:
    apply_run(two, "audit")
    second = apply_run(two, "shop")
    assert "2 offsets restored in 1 group" in undo(two, second)
    assert two.target_offsets() == {"audit": AFTER, "shop": BEFORE}
    assert two.states() == {"audit": "applied", "shop": "rolled back"}


def test_the_undo_of_a_retry_leaves_the_partitions_of_the_first_run(two: Migration) -> None:
    apply_run(two, "audit")
    commit(two.target, "shop", None, 3)  # changed since the plan: the second run refuses this partition
    apply_run(two, ok=False)
    del two.target.data["shop"][ORDERS[1]]
    assert "1 offset restored in 1 group" in undo(two, apply_run(two))
    assert two.target_offsets() == {"audit": AFTER, "shop": {ORDERS[0]: 42}}
    assert two.states()["shop"] == "rolled back in part"
    assert two.rollback().ok  # a rollback of all runs restores the rest
    assert two.target_offsets() == {"audit": BEFORE, "shop": BEFORE}
    assert two.states()["shop"] == "rolled back"


def test_an_offset_that_has_changed_since_is_not_restored(two: Migration) -> None:
    run = apply_run(two)
    two.target.data["shop"][ORDERS[0]] = Committed(50, version=0)
    assert "would restore 3 offsets, and refuse 1" in undo(two, run, "--dry-run", code=1)
    assert "shop orders-0: " in undo(two, run, code=1)
    assert two.target_offsets() == {"audit": BEFORE, "shop": {ORDERS[0]: 50}}


@pytest.fixture
def killed(two: Migration, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of a run over group shop that was killed after its writes."""
    append = Journal.append

    def without_outcomes(journal, records):
        append(journal, [one for one in records if not one["kind"].endswith(("outcome", "complete"))])

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", without_outcomes)
        return apply_run(two, "shop")


@pytest.mark.parametrize("alone", [True, False])
def test_the_undo_of_a_killed_run_restores_what_no_other_run_may_have_written(two, killed, alone):
    if alone:
        undo(two, killed)
        assert two.target_offsets() == {"audit": BEFORE, "shop": BEFORE}
        return
    second = apply_run(two)
    for run, other in ((killed, second), (second, killed)):
        shown = undo(two, run, code=1)
        assert f"the run {other} may have written it too" in shown
        assert "leave out --run to undo all runs of the group" in shown
    assert "leave out --run to undo" in two.status()["shop"]["blocked_by"]
    with two.stores():
        preview = command("migrate", "rollback", two.path, "--run", second, "--dry-run", code=1)
    assert "leave out --run to undo" in preview.stdout
    assert two.target_offsets() == {"audit": BEFORE, "shop": AFTER}
    assert two.rollback().ok
    assert two.target_offsets() == {"audit": BEFORE, "shop": BEFORE}


def test_an_unknown_run_is_an_error(two: Migration) -> None:
    apply_run(two)
    assert "no run of `migrate apply` in the plan's journal has this id" in undo(two, "other", code=2)
    with pytest.raises(UsageError, match="no run of `migrate apply`"):
        two.state().run("")


def test_the_recorded_undo_names_the_run_and_the_settings(two: Migration, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = two.directory
    monkeypatch.setenv("OFFSETMGR_CONFIG", str(directory / "own.toml"))
    monkeypatch.chdir(directory)
    (directory / "own.toml").write_text("[context.prod]\ntimeout = 1000\n")
    for name in ("client.properties", "to.properties"):
        (directory / name).write_text("client.id=me\n")
    login = ("--command-config", "client.properties", "--to-command-config", "to.properties", "--context", "prod")
    two.run("apply", "--group", "shop", "--yes", *login)
    (recorded,) = two.edits()
    (details,) = two.edits("show", recorded["id"])
    assert shlex.split(details["undo"]) == [
        *("offsetmgr", "migrate", "rollback", str(two.path), "--run", recorded["id"]),
        *("--command-config", str(directory / "client.properties")),
        *("--to-command-config", str(directory / "to.properties"), "--context", "prod"),
    ]


def test_a_finalize_that_leaves_out_a_group_is_recorded_as_failed(two: Migration) -> None:
    two.source = MemoryStore("source", kind="file", data=two.source.data)
    two.plan_again()
    for step, code, outcome in (
        (("apply", "--group", "shop"), 0, "done"),
        (("finalize", "shop", "audit"), 1, "failed"),
        (("finalize", "shop"), 0, "done"),
        (("rollback", "--group", "shop"), 1, "failed"),
    ):
        two.run(*step, "--yes", code=code)
        assert two.edits()[-1]["outcome"] == outcome, step


def test_a_rollback_of_the_rest_leaves_a_finalized_group(two: Migration) -> None:
    two.source = MemoryStore("source", kind="file", data=two.source.data)
    two.plan_again()
    two.apply()
    two.run("finalize", "shop", "--yes")
    two.rollback()
    assert two.target_offsets() == {"audit": BEFORE, "shop": AFTER}
    assert two.states() == {"audit": "rolled back", "shop": "finalized"}


def test_a_stop_ends_only_its_own_step(two: Migration) -> None:
    two.source = MemoryStore("source", kind="file", data=two.source.data)
    two.plan_again()
    stops: list[bool] = []
    with two.opened() as library:
        library.apply(stop=lambda: bool(stops))
        stops.append(True)
        deleted = library.finalize(delete_source=True).deleted
    assert deleted is not None
    assert (deleted.written, deleted.interrupted) == (4, False)


def reverse_plan_of(migration: Migration, *options: str) -> dict[str, Any]:
    """The groups of the reverse plan, read from its file, by their names in the store that they leave."""
    path = migration.directory / "back.json"
    path.unlink(missing_ok=True)
    migration.run("rollback", "--reverse-plan", str(path), *options, code=None)
    with Library(path) as back:
        return {group.name: group for group in back.groups()}


def actions(group: Any) -> list[tuple[int, str]]:
    return [(step.tp.partition, step.action.value) for step in group.steps]


def test_a_group_that_was_never_copied_is_named_and_does_not_stop_the_others(migration):
    for group in ("live", "bad"):
        commit(migration.source, group, 10)
    migration.source.data["nothing"] = {}
    migration.source.broken = {"bad": CorruptData("bad", "no answer")}
    migration.plan()
    migration.apply()
    migration.source.broken.clear()
    migration.target.data["live"][ORDERS[0]] = Committed(30)
    found = reverse_plan_of(migration)
    assert {name: (actions(group), group.note, group.error) for name, group in found.items()} == {
        "live": ([(0, "copy")], "", ""),
        "bad": ([(0, "target-only")], "left out: it was never copied (source: bad: no answer)", ""),
        "nothing": ([], "left out: there was nothing to copy, and memory:target holds none of it", ""),
    }


def test_a_reverse_plan_is_limited_to_groups_although_another_cannot_be_planned(migration):
    for group in ("shop", "audit"):
        commit(migration.source, group, 10)
    migration.options = PlanOptions(rename={"shop": "new"})
    migration.plan()
    migration.apply()
    commit(migration.target, "new", 12)
    migration.target.broken = {"audit": CorruptData("audit", "no answer")}
    assert reverse_plan_of(migration)["audit"].error
    found = reverse_plan_of(migration, "--group", "shop")
    assert found["new"].target_group == "shop"
    assert actions(found.pop("new")) == [(0, "copy")]
    assert found == {}


def test_a_copied_offset_that_was_deleted_since_is_rejected_and_the_rest_is_planned(migration):
    for group in ("kept", "deleted", "gone"):
        commit(migration.source, group, 10, 20)
    migration.plan()
    migration.apply()
    del migration.target.data["deleted"], migration.target.data["gone"], migration.source.data["gone"]
    del migration.target.data["kept"][ORDERS[1]]
    commit(migration.target, "kept", 15)
    found = reverse_plan_of(migration)
    assert actions(found["kept"]) == [(0, "copy"), (1, "refuse-lost")]
    assert actions(found["deleted"]) == actions(found["gone"]) == [(0, "refuse-lost"), (1, "refuse-lost")]
    assert "gone from there" in found["deleted"].steps[0].note
    assert found["deleted"].note == ""


def test_an_offset_that_was_lowered_in_the_target_after_the_copy_is_a_rewind_and_not_an_older_offset(migration):
    migration.start([500, 500, 500])
    commit(migration.target, "g", 100, 500, 100)
    commit(migration.source, "g", None, 510, 510)  # a consumer has continued there
    left = "the target still holds the 500 of offsetmgr's last copy, and the source has changed since"
    (refused, kept, unknown) = reverse_plan_of(migration)["g"].steps
    assert (refused.action.value, refused.note) == (
        "refuse-rewind",
        f"keeps 500; a start there skips 400 messages if the consumers are at 100 ({left}); --if-ahead keep accepts it,"
        " --if-ahead rewind writes 100",
    )
    assert (kept.action.value, kept.after, kept.proven) == ("keep-newer", OffsetAndMetadata(510), True)
    assert unknown.action.value == "refuse-rewind"  # both stores have changed since the copy
    (allowed, kept, unknown) = reverse_plan_of(migration, "--allow-rewind")["g"].steps
    assert (allowed.action.value, allowed.after) == ("rewind", OffsetAndMetadata(100))
    assert (kept.action.value, unknown.action.value) == ("keep-newer", "refuse-rewind")
    (_, _, accepted) = reverse_plan_of(migration, "--if-ahead", "keep")["g"].steps
    assert (accepted.action.value, accepted.after) == ("keep-newer", OffsetAndMetadata(510))


@pytest.mark.parametrize("applied", [True, False])
def test_only_an_offset_of_an_applied_plan_shows_a_rewind(migration, applied):
    """An applied target was ahead before the copy. Without apply, the journal is no evidence."""
    migration.start([500], [600 if applied else 100], options=PlanOptions(AheadPolicy.KEEP), apply=applied)
    commit(migration.target, "g", 100)
    (step,) = reverse_plan_of(migration)["g"].steps
    assert step.action.value == "refuse-rewind"
    assert applied or "still holds" not in step.note


def test_a_reverse_plan_takes_no_force_and_only_planned_groups(migration):
    migration.start([5])
    back = ("rollback", "--reverse-plan", str(migration.directory / "back.json"))
    assert "--force: has no effect with --reverse-plan" in migration.run(*back, "--force", code=2)
    assert "does not exist in plan" in migration.run(*back, "--group", "other", code=1)


def test_every_step_begins_with_its_cluster_stores_and_scope(two: Migration) -> None:
    for step in (("apply", "--yes"), ("status",), ("verify",), ("rollback", "--yes"), ("rollback", "--dry-run")):
        first = two.run(step[0], "shop", *step[1:], code=None).splitlines()[0]
        assert first.startswith("cluster ")
        assert "memory:source -> memory:target: 1 of the plan's 2 groups, " in first
