"""Rollback between two in-memory stores: it restores only what apply wrote."""

from __future__ import annotations

import pytest
from one_migration import ORDERS, commit

from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import CorruptData, GateRefused, JournalError, TopicNotAuthorized
from offsetmgr.migration.journal import Journal, journal_path, read_journal

pytest_plugins = ["migration_fixtures"]


def test_rollback_refuses_offsets_that_changed_since_unless_forced(migration):
    commit(migration.source, "g", 10, 20)
    commit(migration.target, "g", 1, 2)
    migration.plan()
    migration.apply()
    commit(migration.target, "g", 11)
    report = migration.rollback()
    assert list(report.failed["g"].failed) == [ORDERS[0]]
    assert migration.target_offsets() == {"g": {ORDERS[0]: 11, ORDERS[1]: 2}}
    assert migration.rollback(force=True).ok
    assert migration.target_offsets() == {"g": {ORDERS[0]: 1, ORDERS[1]: 2}}
    intents = [r for _, r in read_journal(journal_path(migration.path)) if r["kind"] == "undo-intent"]
    assert [(step["target"], step["after"]) for step in intents[-1]["topics"]["orders"]] == [(11, 1)]


def test_a_forced_rollback_does_not_overwrite_what_it_cannot_read(migration):
    commit(migration.source, "g", 10, 20)
    commit(migration.target, "g", 1, 2)
    migration.plan()
    migration.apply()
    migration.target.broken = {("g", ORDERS[0]): CorruptData("node", "junk")}
    report = migration.rollback(force=True)
    migration.target.broken.clear()
    assert list(report.failed["g"].failed) == [ORDERS[0]]
    assert migration.target_offsets() == {"g": {ORDERS[0]: 10, ORDERS[1]: 2}}
    assert migration.rollback().ok
    assert migration.target_offsets() == {"g": {ORDERS[0]: 1, ORDERS[1]: 2}}


def test_a_group_that_apply_refused_is_not_rolled_back(migration):
    commit(migration.source, "g", 50, 50)
    commit(migration.target, "g", 10)
    migration.plan()
    migration.target.active["g"] = ("a consumer",)
    assert not migration.apply().ok
    migration.target.active.clear()
    commit(migration.target, "g", 95, 95)  # the consumer went on, and left
    with pytest.raises(JournalError, match="apply wrote nothing"):
        migration.rollback(force=True)
    assert migration.target_offsets() == {"g": {ORDERS[0]: 95, ORDERS[1]: 95}}


def test_another_clients_commit_of_the_planned_offset_after_a_conflict_is_not_rolled_back(migration):
    commit(migration.source, "g", 80)
    commit(migration.target, "g", 50)
    migration.plan()
    commit(migration.target, "g", 70)
    assert not migration.apply().ok
    commit(migration.target, "g", 80)
    report = migration.apply()
    assert (report.written, report.unchanged) == (0, 1)
    with pytest.raises(JournalError, match="apply wrote nothing"):
        migration.rollback()
    assert migration.target_offsets() == {"g": {ORDERS[0]: 80}}


def test_a_rollback_that_was_refused_does_not_close_the_plan(migration):
    commit(migration.source, "g", 50)
    migration.plan()
    migration.apply()
    migration.target.active["g"] = ("a consumer",)
    assert not migration.rollback().ok
    migration.target.active.clear()
    assert migration.apply().ok
    assert migration.rollback().ok
    assert migration.target_offsets() == {}


def test_another_clients_commit_of_the_planned_offset_before_apply_is_not_rolled_back(migration):
    commit(migration.source, "g", 10, 20)
    migration.plan()
    commit(migration.target, "g", 10)
    report = migration.apply()
    assert (report.written, report.unchanged) == (1, 1)
    assert migration.rollback().ok
    assert migration.target_offsets() == {"g": {ORDERS[0]: 10}}


def test_another_clients_commit_of_the_planned_offset_after_a_topic_error_is_not_rolled_back(migration):
    commit(migration.source, "g", 10, 20)
    migration.plan()
    migration.target.broken = {("g", ORDERS[0]): TopicNotAuthorized("t", "no")}
    assert not migration.apply().ok
    migration.target.broken.clear()
    commit(migration.target, "g", 10)
    assert migration.apply().ok
    assert migration.rollback().ok
    assert migration.target_offsets() == {"g": {ORDERS[0]: 10}}


def test_a_plan_that_was_rolled_back_is_not_applied_again(migration):
    commit(migration.source, "g", 10)
    migration.plan()
    migration.apply()
    migration.rollback()
    with pytest.raises(JournalError, match="rolled back"):
        migration.apply()


def test_a_rollback_before_any_apply_is_an_error(migration):
    commit(migration.source, "g", 10)
    migration.plan()
    with pytest.raises(JournalError, match="nothing was applied"):
        migration.rollback()


def test_a_finalized_plan_is_not_rolled_back(migration):
    commit(migration.source, "g", 10)
    plan = migration.plan()
    migration.apply()
    with Journal(journal_path(migration.path), plan_sha256=plan.sha256, clock=SystemClock()) as journal:
        journal.append([{"kind": "finalized", "verified": 1, "gates": []}])
    with pytest.raises(GateRefused, match="would rewind"):
        migration.rollback()
