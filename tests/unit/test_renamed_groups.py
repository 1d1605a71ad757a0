"""Commands that take a plan accept both names of a group that the plan renames, also on the way back to ZooKeeper."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from one_migration import Migration, commit

from offsetmgr.cli.runbook_groups import PlanOfGroups
from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.core.errors import GroupNotFound, UsageError
from offsetmgr.migration.fleet import GroupStatus, LiveGroup, StateOrigin, group_statuses
from offsetmgr.migration.plan import PlanOptions
from offsetmgr.migration.plan_file import PlanFile, write_plan

PLAN_NAME, ZOOKEEPER_NAME = "shop-new", "shop"


@pytest.fixture
def migration(tmp_path: Path) -> Migration:
    """A plan from Kafka to ZooKeeper that renames ``shop-new`` to ``shop``."""
    found = Migration(tmp_path, options=PlanOptions(rename={PLAN_NAME: ZOOKEEPER_NAME}))
    for group in (PLAN_NAME, "audit"):
        commit(found.source, group, 10)
    plan = found.plan()
    header = replace(plan.header, target=replace(plan.header.target, kind="zookeeper"))
    groups = list(plan.groups())
    found.path.unlink()
    write_plan(found.path, header, groups)
    return found


def opened(migration: Migration) -> PlanOfGroups:
    found = PlanOfGroups.open(migration.path)
    assert found is not None
    return found


@pytest.mark.parametrize("given", [PLAN_NAME, ZOOKEEPER_NAME])
def test_both_names_select_the_group_and_the_journal_gets_the_name_in_the_plan(
    migration: Migration, given: str
) -> None:
    planned = opened(migration)
    assert planned.select([given], ()) == [ZOOKEEPER_NAME]
    name = planned.select_one(given)
    assert (name, planned.names[name]) == (ZOOKEEPER_NAME, PLAN_NAME)


def test_a_pattern_selects_the_names_in_the_plan(migration: Migration) -> None:
    planned = opened(migration)
    assert planned.select(["shop-*"], ()) == [ZOOKEEPER_NAME]
    with pytest.raises(UsageError, match="matches 2 groups of the plan"):
        planned.select_one("*")
    with pytest.raises(GroupNotFound):
        planned.select(["other"], ())


def test_the_next_command_selects_the_group_in_the_plan(migration: Migration) -> None:
    plan = PlanFile(migration.path)
    live = LiveGroup(CommitMode.KAFKA, StateOrigin.SEEN, "", ("m-1",))
    state = migration.state()
    state.apply.opened = True
    state.apply.done.add(PLAN_NAME)

    found: dict[str, GroupStatus] = {one.group: one for one in group_statuses(plan, state, live={PLAN_NAME: live})}
    words = found[PLAN_NAME].next_command.split()
    given = words[words.index("--group") + 1]
    assert words[1:3] == ["runbook", "bounce"]
    assert opened(migration).select([given], ()) == [ZOOKEEPER_NAME]
