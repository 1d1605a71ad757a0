"""A plan that is weeks old: apply refuses old offsets; a renewed plan keeps waves, owners, states and before-images."""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from one_migration import ORDERS, Migration, commit

from offsetmgr.cli.runbook_groups import PlanOfGroups
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import FileFailure, JournalError, MalformedData, PlanError, UsageError
from offsetmgr.groups.operation_log import OperationLog, OperationStart
from offsetmgr.migration import renewal
from offsetmgr.migration.apply import apply
from offsetmgr.migration.copied_offsets import CopiedOffsets
from offsetmgr.migration.fleet import GroupState, group_statuses
from offsetmgr.migration.journal import Journal, journal_path
from offsetmgr.migration.journaled_writer import JournaledWriter
from offsetmgr.migration.plan import Action
from offsetmgr.migration.plan_file import PlanFile, write_plan
from offsetmgr.migration.plan_run import PlanRun, append_to_journal, journaled_writer, open_plan
from offsetmgr.migration.planner import Planner
from offsetmgr.migration.renewal import RenewedPlan, finish_renewal, moved_groups, renew
from offsetmgr.migration.rollback import preview
from offsetmgr.testing.memory import MemoryStore


@pytest.fixture
def fleet(tmp_path: Path) -> Migration:
    """Three groups in three waves. Wave 1 is applied and dual; two weeks later, all groups have moved on."""
    migration = Migration(tmp_path)
    for group in ("a1", "b2", "c3"):
        commit(migration.source, group, 10, 20)
        commit(migration.target, group, 1)
    plan = migration.plan()
    groups = [replace(group, wave=int(group.group[1]), owner=f"team-{group.group}") for group in plan.groups()]
    migration.path.unlink()
    write_plan(migration.path, plan.header, groups)
    apply_group(migration, "a1")
    phase = {"kind": "group-phase", "group": "a1", "phase": "dual", "why": "2 members committed"}
    append_to_journal(PlanFile(migration.path), [phase])
    for group in ("a1", "b2", "c3"):
        commit(migration.source, group, 1000, 2000)
    return migration


def apply_group(migration: Migration, group: str) -> None:
    plan = PlanFile(migration.path)
    with Journal(journal_path(migration.path), plan_sha256=plan.sha256, clock=SystemClock()) as journal:
        writer = JournaledWriter("apply", migration.target, journal, SystemClock(), only=frozenset([group]))
        assert apply(plan, migration.state(), writer).ok


def renewed(migration: Migration, only: frozenset[str] | None = None) -> RenewedPlan:
    planner = Planner(migration.source, migration.target, migration.options, SystemClock())
    return renew(PlanFile(migration.path), planner, migration.directory / "second.json", only)


def second(migration: Migration) -> Migration:
    class Second(Migration):
        @property
        def path(self) -> Path:
            return self.directory / "second.json"

    return Second(migration.directory, migration.source, migration.target, migration.options)


def test_the_groups_that_moved_since_the_plan_are_named_but_not_those_that_were_applied(fleet: Migration) -> None:
    assert moved_groups(PlanFile(fleet.path), fleet.state(), fleet.source) == {"b2": 2, "c3": 2}
    assert moved_groups(PlanFile(fleet.path), fleet.state(), fleet.source, frozenset(["c3"])) == {"c3": 2}


@pytest.mark.parametrize("broken", ["b2", ("b2", ORDERS[1])])
def test_a_failed_read_does_not_show_that_a_group_has_not_moved(fleet: Migration, broken: object) -> None:
    commit(fleet.source, "b2", 10, 20)  # as the plan has them
    assert moved_groups(PlanFile(fleet.path), fleet.state(), fleet.source) == {"c3": 2}
    fleet.source.broken[broken] = MalformedData("znode /consumers/b2", "it cannot be read")  # type: ignore[index]
    with pytest.raises(PlanError, match=r"source of group b2 cannot be compared with it: .*cannot be read") as caught:
        moved_groups(PlanFile(fleet.path), fleet.state(), fleet.source)
    assert "--accept-stale" in caught.value.hint
    assert moved_groups(PlanFile(fleet.path), fleet.state(), fleet.source, frozenset(["c3"])) == {"c3": 2}


def test_an_offset_that_is_gone_from_the_source_has_changed(fleet: Migration) -> None:
    commit(fleet.source, "b2", 10, 20)
    del fleet.source.data["b2"][ORDERS[0]]
    del fleet.source.data["c3"]
    assert moved_groups(PlanFile(fleet.path), fleet.state(), fleet.source) == {"b2": 1, "c3": 2}


def test_a_later_wave_is_applied_with_the_offsets_of_its_day(fleet: Migration) -> None:
    done = renewed(fleet)
    assert (done.renewed, done.kept) == (2, 1)
    later = second(fleet)
    rows = group_statuses(PlanFile(later.path), later.state())
    assert [(one.group, one.wave, one.owner, one.state) for one in rows] == [
        ("a1", 1, "team-a1", GroupState.DUAL),
        ("b2", 2, "team-b2", GroupState.PLANNED),
        ("c3", 3, "team-c3", GroupState.PLANNED),
    ]
    assert rows[0].evidence == "2 members committed"

    apply_group(later, "c3")
    assert later.target_offsets()["c3"] == {ORDERS[0]: 1000, ORDERS[1]: 2000}
    assert later.target_offsets()["b2"] == {ORDERS[0]: 1}
    assert later.rollback().ok  # also the wave that was applied with the old plan
    assert later.target_offsets() == {group: {ORDERS[0]: 1} for group in ("a1", "b2", "c3")}


class Later(SystemClock):
    """The clock of ten minutes later."""

    def now_ms(self) -> int:
        return super().now_ms() + 600_000


class StoreAt(MemoryStore):
    """A store whose id is its URI."""

    @property
    def uri(self) -> str:
        return self.id


class RecreatedTopics(MemoryStore):
    """A target in which the topic was recreated after the plan."""

    def topic_ids(self, topics: Iterable[str] | None = None) -> Mapping[str, str]:
        return dict.fromkeys(topics or ("orders",), "after")


def test_an_offset_that_stays_although_its_topic_was_recreated_is_refused(fleet: Migration) -> None:
    plan = PlanFile(fleet.path)
    header, groups = plan.header, list(plan.groups())
    fleet.path.unlink()
    journal_path(fleet.path).unlink()
    write_plan(fleet.path, header, groups, lambda topics: dict.fromkeys(topics, "before"))
    apply_group(fleet, "a1")
    fleet.target = RecreatedTopics("target", data=fleet.target.data)
    commit(fleet.source, "b2", 10, 2000)  # the first offset is that of the plan

    renewed(fleet)

    plan = PlanFile(second(fleet).path)
    steps = {group.group: [step.action for step in group.steps] for group in plan.groups()}
    assert steps == {
        "a1": [Action.COPY, Action.COPY],
        "b2": [Action.REFUSE_RECREATED, Action.COPY],
        "c3": [Action.COPY, Action.COPY],
    }
    assert plan.summary.topic_ids == {"orders": "before"}  # a1 has offsets of the deleted log


def test_a_refresh_that_did_not_renew_a_group_is_no_copy_of_it(tmp_path: Path) -> None:
    """A commit between the copy and the refresh is a commit after the copy."""
    migration = Migration(tmp_path)
    for group in ("g", "h"):
        commit(migration.source, group, 10)
    migration.plan()
    migration.apply()
    plan, later = PlanFile(migration.path), Later()
    with Journal(journal_path(migration.path), plan_sha256=plan.sha256, clock=later) as journal:
        journal.append([{"kind": "refreshed", "groups": 1, "not_renewed": ["h"]}])

    copies = CopiedOffsets(migration.source, migration.target, (plan, migration.state()))

    at_ms = [copies.of(group, group)[ORDERS[0]].at_ms or 0 for group in ("g", "h")]
    assert at_ms[0] >= later.now_ms() - 60_000 > at_ms[1]


def test_the_time_of_a_commit_that_may_be_offsetmgrs_own_is_no_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    migration = Migration(tmp_path)
    commit(migration.source, "g", 10)
    commit(migration.target, "g", 1)
    migration.plan()
    now = SystemClock().now_ms()

    def own_write(side: int, group: str, at_ms: int) -> str:
        return CopiedOffsets(migration.source, migration.target).own_write(side, group, at_ms)

    def record(name: str) -> None:
        start = OperationStart(name, (migration.target.uri,), ("g",), 1, 1, (str(migration.path),))
        with OperationLog().recorded(start):
            pass

    record("migrate apply")
    assert own_write(1, "g", now) == ""  # the journal shows which offsets were copied
    moved = migration.path.rename(tmp_path / "moved.json")
    assert "whose plan cannot be read" in own_write(1, "g", now)
    moved.rename(migration.path)
    record("migrate rollback")
    assert "offsetmgr restored an older offset then" in own_write(1, "g", now)
    assert [own_write(0, "g", now), own_write(1, "h", now), own_write(1, "g", now - 3_600_000)] == ["", "", ""]
    with OperationLog().path.open("a") as log:
        log.write("no record\n")
    assert "its operation log cannot be read" in own_write(0, "h", 0)


@pytest.mark.parametrize("uri", ["kafka://kafka1:9092", "kafka://localhost:9092", "kafka://kafka2:9092,kafka1:9092"])
def test_an_own_write_counts_although_the_operation_log_names_the_store_by_other_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with OperationLog().recorded(OperationStart("migrate rollback", (uri,), ("g",), 1, 1)):
        pass

    def restored(source: str, target: str) -> list[bool]:
        copies = CopiedOffsets(StoreAt(source), StoreAt(target))
        return [bool(copies.own_write(side, "g", SystemClock().now_ms())) for side in (0, 1)]

    assert restored("zookeeper://zk1:2181?layout=0.8", "kafka://kafka1:9092") == [False, True]
    assert restored(uri, "kafka://dr:9092") == [True, False]


@pytest.mark.parametrize("force", [False, True])
def test_a_rollback_does_not_restore_an_offset_of_a_deleted_log(tmp_path: Path, force: bool) -> None:
    migration = Migration(tmp_path)
    commit(migration.source, "g", 10, 20)
    commit(migration.target, "g", 1)
    plan = migration.plan()
    groups = list(plan.groups())
    migration.path.unlink()
    write_plan(migration.path, plan.header, groups, lambda topics: dict.fromkeys(topics, "before"))
    migration.apply()
    migration.target = RecreatedTopics("target", data=migration.target.data)

    (shown, created) = preview(PlanFile(migration.path), migration.state(), migration.target, force=force)
    assert ("recreated" in shown.problem, created.problem) == (True, "")
    report = migration.rollback(force=force)

    assert migration.target_offsets() == {"g": {ORDERS[0]: 10}}  # the offset that apply created is deleted
    assert "offsets reset" in report.failed["g"].failed[ORDERS[0]].hint


def test_only_the_named_groups_are_planned_again(fleet: Migration) -> None:
    renewed(fleet, frozenset(["a1", "c3"]))
    plan = PlanFile(second(fleet).path)
    steps = {group.group: [step.source and step.source.offset for step in group.steps] for group in plan.groups()}
    assert steps == {"a1": [10, 20], "b2": [10, 20], "c3": [1000, 2000]}


def test_the_old_plan_is_replaced(fleet: Migration) -> None:
    renewed(fleet)
    with pytest.raises(JournalError, match=r"it was renewed as .*second\.json"):
        open_plan(fleet.path)
    open_plan(second(fleet).path)


def test_a_bounce_that_outlasts_a_renewal_writes_nothing_to_the_old_journal(
    fleet: Migration, capsys: pytest.CaptureFixture[str]
) -> None:
    planned = PlanOfGroups.open(fleet.path)
    assert planned is not None
    renewed(fleet)
    before = journal_path(fleet.path).read_bytes()
    record = {"kind": "group-phase", "group": "a1", "phase": "kafka", "why": "2 members committed"}
    with pytest.raises(JournalError, match=r"it was renewed as .*second\.json"):
        append_to_journal(planned.plan, [record])
    planned.record([record])
    assert journal_path(fleet.path).read_bytes() == before
    shown = capsys.readouterr().err
    assert "warning: the plan's journal does not record this step: " in shown
    assert f"(use {second(fleet).path})" in shown


def test_a_group_that_is_applied_in_part_prevents_a_renewal(fleet: Migration) -> None:
    commit(fleet.target, "b2", None, 5)
    plan = PlanFile(fleet.path)
    with Journal(journal_path(fleet.path), plan_sha256=plan.sha256, clock=SystemClock()) as journal:
        writer = JournaledWriter("apply", fleet.target, journal, SystemClock(), only=frozenset(["b2"]))
        assert not apply(plan, fleet.state(), writer).ok
    with pytest.raises(JournalError, match="1 group applied in part: b2") as caught:
        renewed(fleet)
    assert caught.value.hint == f"run: offsetmgr migrate apply {shlex.quote(str(fleet.path))} --group b2"
    assert not second(fleet).path.exists()


def test_nothing_is_renewed_if_every_group_was_begun_or_a_journal_exists(fleet: Migration) -> None:
    with pytest.raises(UsageError, match="apply has begun every group"):
        renewed(fleet, frozenset(["a1"]))
    journal_path(second(fleet).path).write_bytes(b"")
    with pytest.raises(FileFailure, match="exists already"):
        renewed(fleet)


def executable(migration: Migration) -> list[Path]:
    """The plans that apply accepts."""
    found = []
    for path in (migration.path, second(migration).path):
        try:
            open_plan(path)
        except (JournalError, PlanError):
            continue
        found.append(path)
    return found


@pytest.mark.parametrize(
    ("step", "left"),
    [
        ("write_plan", ["plan.json"]),
        ("copy_journal", ["plan.json"]),
        ("Journal.append", ["plan.json"]),
        ("_publish", []),
        ("shutil.copyfileobj", []),
        ("Path.unlink", ["second.json"]),
    ],
)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_at_any_step_leaves_at_most_one_plan_and_the_same_command_ends_the_renewal(
    fleet: Migration, step: str, left: list[str], when: str
) -> None:
    """``left`` are the plans that can be executed after a kill before the step."""
    part = renewal._unpublished(PlanFile(fleet.path), second(fleet).path)
    if pid := os.fork():
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    else:
        try:
            owner, _, name = step.rpartition(".")
            where = {"": renewal, "Journal": Journal, "shutil": shutil, "Path": Path}[owner]
            done = getattr(where, name)

            def killed(*arguments: Any, **named: Any) -> None:
                if step == "Path.unlink" and arguments[0] != part:
                    return done(*arguments, **named)
                if step == "Path.unlink" and not arguments[0].exists():
                    return done(*arguments, **named)
                if when == "after":
                    done(*arguments, **named)
                os._exit(9)

            setattr(where, name, killed)
            renewed(fleet)
        finally:
            os._exit(1)
    found = [path.name for path in executable(fleet)]
    if when == "before":
        assert found == left
    assert len(found) <= 1

    if not finish_renewal(PlanFile(fleet.path), second(fleet).path) and found != ["second.json"]:
        renewed(fleet)
    if step != "shutil.copyfileobj":  # `remove_abandoned` removes the file of this kill after a minute
        assert not list(fleet.directory.glob(".second.json.*"))
    assert [path.name for path in executable(fleet)] == ["second.json"]
    assert second(fleet).state().apply.done
    apply_group(second(fleet), "b2")


def test_a_run_of_the_new_plan_removes_the_file_of_a_renewal_that_was_killed_after_it_had_published_it(
    fleet: Migration, monkeypatch: pytest.MonkeyPatch
) -> None:
    def publish(part: Path, path: Path) -> None:
        shutil.copy(part, path)

    monkeypatch.setattr(renewal, "_publish", publish)
    renewed(fleet)
    (left,) = fleet.directory.glob(".*")
    plan = PlanFile(second(fleet).path)
    for age_s, kept in ((0, [left]), (3_600, [])):
        os.utime(left, (time.time() - age_s,) * 2)
        with journaled_writer(plan, PlanRun("apply"), fleet.target):
            pass
        assert list(fleet.directory.glob(".*")) == kept


def test_a_renewal_that_was_killed_does_not_replace_another_file(fleet: Migration) -> None:
    path = second(fleet).path
    renewed(fleet)
    path.rename(renewal._unpublished(PlanFile(fleet.path), path))
    shutil.copy(fleet.path, path)
    with pytest.raises(FileFailure, match="exists already"):
        finish_renewal(PlanFile(fleet.path), path)
    path.unlink()
    assert finish_renewal(PlanFile(fleet.path), path)


def raise_interrupt(*_arguments: Any) -> None:
    raise KeyboardInterrupt


def test_the_renewal_of_an_earlier_version_is_ended_if_it_was_killed_after_it_had_replaced_the_plan(
    fleet: Migration,
) -> None:
    path, plan = second(fleet).path, PlanFile(fleet.path)
    renewed(fleet)
    former = path.rename(path.with_name(f".{path.name}.{plan.sha256[:16]}.part"))
    assert finish_renewal(plan, path)
    assert not former.exists()
    assert [one.name for one in executable(fleet)] == ["second.json"]


def test_the_renewal_of_an_earlier_version_starts_again_if_it_was_killed_before_it_had_replaced_the_plan(
    fleet: Migration, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, plan = second(fleet).path, PlanFile(fleet.path)
    with monkeypatch.context() as killed:
        killed.setattr(Journal, "append", raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            renewed(fleet)
    former = renewal._unpublished(plan, path).rename(path.with_name(f".{path.name}.{plan.sha256[:16]}.part"))
    assert not finish_renewal(plan, path)
    renewed(fleet)
    assert not former.exists()
    assert [one.name for one in executable(fleet)] == ["second.json"]


def test_a_replaced_plan_without_its_successor_names_the_command_that_ends_the_renewal(fleet: Migration) -> None:
    renewed(fleet)
    second(fleet).path.unlink()
    with pytest.raises(JournalError) as caught:
        open_plan(fleet.path)
    assert caught.value.hint.endswith(
        shlex.join(["offsetmgr", "migrate", "renew", str(fleet.path), "-o", str(second(fleet).path)])
    )


def test_the_journal_of_another_plan_is_not_removed(fleet: Migration) -> None:
    journal = journal_path(second(fleet).path)
    with Journal(journal, plan_sha256="0" * 64, clock=SystemClock()):
        pass
    with pytest.raises(FileFailure, match="exists already"):
        renewed(fleet)
    assert journal.exists()
