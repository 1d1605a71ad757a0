"""The groups of a plan, and its file: it is written once, and a changed file is rejected."""

from __future__ import annotations

import json

import pytest
from one_migration import ORDERS, commit

from offsetmgr.core.errors import GroupNotFound, PlanError, UsageError
from offsetmgr.core.model import Committed, OffsetAndMetadata
from offsetmgr.migration.plan import Action, PlanOptions, PlanStep
from offsetmgr.migration.plan_file import PlanFile

pytest_plugins = ["migration_fixtures"]


def test_a_plan_reads_back_as_it_was_written_and_is_valid_json(migration):
    commit(migration.source, "g1", 1, 2)
    commit(migration.source, "g2", 3)
    migration.source.data["g2"][ORDERS[1]] = Committed(9, "métadata", 4)
    plan = migration.plan()
    assert [g.group for g in plan.groups()] == ["g1", "g2"]
    assert list(plan.groups())[1].steps[1] == PlanStep(
        ORDERS[1], Action.COPY, OffsetAndMetadata(9, "métadata", 4), None, OffsetAndMetadata(9, "métadata", 4)
    )
    assert json.loads(migration.path.read_text())["summary"]["actions"] == {"copy": 4}
    assert [plan.group_at(p) for p, _ in plan.positioned_groups()] == list(plan.groups())


def test_a_plan_that_was_changed_or_cut_is_refused(migration):
    commit(migration.source, "g1", 10, 20)
    migration.plan()
    good = migration.path.read_bytes()
    for bad in (good.replace(b'"after":20', b'"after":21'), good[:-20], good[:-2], b"", b"{}", good + b"x"):
        assert bad != good
        migration.path.write_bytes(bad)
        with pytest.raises(PlanError):
            PlanFile(migration.path)


def test_a_plan_file_that_disappears_is_a_plan_error(migration):
    commit(migration.source, "g1", 1, 2)
    plan = migration.plan()
    (position,) = [position for position, _ in plan.positioned_groups()]
    migration.path.unlink()
    for read in (lambda: list(plan.groups()), lambda: list(plan.positioned_groups()), lambda: plan.group_at(position)):
        with pytest.raises(PlanError, match="No such file"):
            read()


def test_a_plan_is_never_overwritten(migration):
    migration.plan()
    with pytest.raises(PlanError, match="never overwritten"):
        migration.plan()


def test_two_groups_never_become_one_by_a_rename(migration):
    commit(migration.source, "a", 1)
    commit(migration.source, "b", 2)
    migration.options = PlanOptions(rename={"a": "b"})
    with pytest.raises(UsageError, match="groups a and b would both become b"):
        migration.plan()


def test_an_unknown_group_is_an_error_and_not_an_empty_plan(migration):
    migration.options = PlanOptions(groups=("missing",))
    with pytest.raises(GroupNotFound, match="missing: not found"):
        migration.plan()
