"""The groups of a wave that a bounce restarts, leaves out, or only reports."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from one_migration import Migration, commit
from test_bounce_waits import ScriptedGroup, member

from offsetmgr.cli.connect_flags import ConnectFlags
from offsetmgr.cli.runbook_bounce import warn_of_unapplied
from offsetmgr.cli.runbook_groups import PlanOfGroups, groups_of
from offsetmgr.cli.runbook_options import PhaseName, RestartFlags
from offsetmgr.config.connection import SettingsLayer
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import MalformedData
from offsetmgr.migration.group_observer import GroupView
from offsetmgr.migration.journal import Journal, journal_path
from offsetmgr.migration.journaled_writer import JournaledWriter
from offsetmgr.migration.plan_file import PlanFile, write_plan
from offsetmgr.migration.rollback import rollback

GROUPS = ("a-applied", "b-rolled-back", "c-unread", "d-planned")


@pytest.fixture
def migration(tmp_path: Path) -> Migration:
    """One wave: a group is applied, one was rolled back, one could not be planned, and one is not applied."""
    found = Migration(tmp_path)
    for group in GROUPS:
        commit(found.source, group, 10)
        commit(found.target, group, 1)
    found.source.broken["c-unread"] = MalformedData("znode", "it cannot be read")
    plan = found.plan()
    header = replace(plan.header, source=replace(plan.header.source, kind="zookeeper"))
    groups = [replace(group, wave=1) for group in plan.groups()]
    found.path.unlink()
    write_plan(found.path, header, groups)
    return found


def planned(migration: Migration) -> PlanOfGroups:
    """The plan after an apply of two groups and a rollback of one of them."""
    from offsetmgr.migration.apply import apply

    plan = PlanFile(migration.path)
    for name, only in (("apply", GROUPS[:2]), ("undo", GROUPS[1:2])):
        with Journal(journal_path(migration.path), plan_sha256=plan.sha256, clock=SystemClock()) as journal:
            writer = JournaledWriter(name, migration.target, journal, SystemClock(), only=frozenset(only))
            run = apply if name == "apply" else rollback
            assert run(plan, migration.state(), writer).ok
    found = PlanOfGroups.open(migration.path)
    assert found is not None
    return found


def view() -> GroupView:
    group = ScriptedGroup(lambda _: [member("h1", 1)], lambda _: {}, lambda _: 10, lambda _: None)
    return cast("GroupView", group)


def test_a_wave_leaves_out_groups_that_were_rolled_back_or_not_planned(
    migration: Migration, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = planned(migration)
    selected = groups_of(view(), plan, None, [1], PhaseName.DUAL)
    assert selected == ["a-applied", "d-planned"]
    warn_of_unapplied(plan, selected, PhaseName.DUAL)
    shown = capsys.readouterr().err
    assert "left out by the plan: b-rolled-back (rolled back), c-unread (not planned); name a group" in shown
    assert "warning: 1 group not applied, see `migrate apply`: d-planned" in shown
    assert groups_of(view(), plan, ["*"], None, PhaseName.KAFKA) == ["a-applied", "d-planned"]
    assert groups_of(view(), plan, ["b-rolled-back"], None, PhaseName.DUAL) == ["b-rolled-back"]


def test_the_command_of_the_way_back_has_all_options(migration: Migration, tmp_path: Path) -> None:
    login = tmp_path / "k.properties"
    login.write_text("client.id=me\n")
    plan = planned(migration)
    restart = RestartFlags(command="ssh {host} restart").restart(["c1=h1"])
    connect = ConnectFlags(SettingsLayer(command_config=str(login)), None)
    shown = shlex.split(plan.way_back(connect, restart, "a-applied"))
    assert shown == [
        *("offsetmgr", "runbook", "bounce", "--plan", str(migration.path), "--group", "a-applied"),
        *("--to-phase", "dual", "--from-phase", "kafka", "--command", "ssh {host} restart", "--host", "c1=h1"),
        *("--command-config", str(login), "--execute"),
    ]


def test_members_of_a_group_that_was_rolled_back_go_back_with_their_wave(
    migration: Migration, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = planned(migration)
    found = groups_of(view(), plan, None, [1], PhaseName.ZOOKEEPER)
    assert found == ["a-applied", "b-rolled-back", "d-planned"]
    warn_of_unapplied(plan, found, PhaseName.ZOOKEEPER)
    assert "not applied" not in capsys.readouterr().err
