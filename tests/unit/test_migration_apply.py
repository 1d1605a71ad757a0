"""Apply between two in-memory stores: which offsets it writes, keeps and refuses."""

from __future__ import annotations

import pytest
from one_migration import ORDERS, OneLog, commit

from offsetmgr.core.errors import CorruptData, OffsetOutOfRange, PlanError
from offsetmgr.core.model import LogRange, TopicPartition
from offsetmgr.migration.plan import Action, AheadPolicy, PlanOptions
from offsetmgr.migration.plan_file import PlanFile
from offsetmgr.migration.reverse_plan import reverse_options
from offsetmgr.migration.verify_rules import Status

pytest_plugins = ["migration_fixtures"]


def steps(plan: PlanFile) -> dict[TopicPartition, Action]:
    return {step.tp: step.action for group in plan.groups() for step in group.steps}


def test_apply_writes_offsets_that_are_behind_and_keeps_those_that_are_ahead(migration):
    commit(migration.source, "g", 10, 20, 30)
    commit(migration.target, "g", 5, 25, None, 7)
    migration.options = PlanOptions(AheadPolicy.KEEP)
    plan = migration.plan()
    assert steps(plan) == dict(
        zip(ORDERS, [Action.COPY, Action.KEEP_NEWER, Action.COPY, Action.TARGET_ONLY], strict=True)
    )
    report = migration.apply()
    assert (report.ok, report.written) == (True, 2)
    assert migration.target_offsets() == {"g": dict(zip(ORDERS, [10, 25, 30, 7], strict=True))}


def test_a_group_arrives_under_its_new_name_and_rolls_back_to_nothing(migration):
    commit(migration.source, "old", 10, 20)
    migration.options = PlanOptions(rename={"old": "new"})
    migration.plan()
    migration.apply()
    assert migration.target_offsets() == {"new": {ORDERS[0]: 10, ORDERS[1]: 20}}
    assert set(migration.verify().values()) == {Status.EQUAL}
    assert migration.rollback().written == 2
    assert migration.target_offsets() == {}


def test_one_bad_group_does_not_stop_the_others(migration):
    for group in ("g1", "g2", "g3"):
        commit(migration.source, group, 10)
    migration.plan()
    migration.target.active["g2"] = ("consumer-1 at /host",)
    report = migration.apply()
    assert list(report.failed) == ["g2"]
    assert report.failed["g2"].active_members == ("consumer-1 at /host",)
    assert set(migration.target_offsets()) == {"g1", "g3"}
    migration.target.active.clear()
    assert migration.apply().ok  # the same command again writes only the rest
    assert set(migration.target_offsets()) == {"g1", "g2", "g3"}


def test_an_unreadable_source_is_never_treated_as_absent(migration):
    commit(migration.source, "g1", 10)
    commit(migration.source, "g2", 10, 20)
    migration.source.broken = {"g1": CorruptData("g1", "no answer"), ("g2", ORDERS[1]): CorruptData("node", "junk")}
    plan = migration.plan()
    assert [g.error for g in plan.groups()] == ["source: g1: no answer", ""]
    migration.apply()
    assert migration.target_offsets() == {"g2": {ORDERS[0]: 10}}
    migration.source.broken.clear()
    assert migration.verify() == {
        "g1 None": Status.REFUSED,
        "g1 orders-0": Status.NOT_IN_PLAN,
        "g2 orders-0": Status.EQUAL,
        "g2 orders-1": Status.REFUSED,
    }


def test_a_target_that_changed_since_the_plan_is_not_overwritten(migration):
    commit(migration.source, "g", 10, 20, 30)
    commit(migration.target, "g", 5, 5, 5)
    migration.plan()
    commit(migration.target, "g", 7, 21)  # 0: changed, still behind; 1: beyond the plan
    report = migration.apply()
    assert list(report.failed["g"].failed) == [ORDERS[0]]
    assert migration.target_offsets() == {"g": {ORDERS[0]: 7, ORDERS[1]: 21, ORDERS[2]: 30}}


def test_a_rewind_happens_only_if_allowed(migration):
    commit(migration.source, "g", 10)
    commit(migration.target, "g", 15)
    migration.options = PlanOptions(AheadPolicy.REWIND)
    migration.plan()
    migration.apply()
    assert migration.target_offsets() == {"g": {ORDERS[0]: 10}}
    migration.rollback()
    assert migration.target_offsets() == {"g": {ORDERS[0]: 15}}


def test_a_plan_for_another_cluster_is_refused(migration):
    commit(migration.source, "g", 10)
    migration.plan()
    migration.target.id = "another"
    with pytest.raises(PlanError, match="the plan was made for memory target"):
        migration.apply()


def test_a_planned_rewind_of_an_offset_that_moved_is_a_conflict_and_never_reported_as_done(migration):
    commit(migration.source, "g", 10)
    commit(migration.target, "g", 50)
    migration.options = PlanOptions(AheadPolicy.REWIND)
    migration.plan()
    commit(migration.target, "g", 60)
    assert list(migration.apply().failed) == ["g"]
    assert migration.verify() == {"g orders-0": Status.NOT_REWOUND}


def test_a_name_has_precedence_over_the_pattern_that_it_looks_like(migration):
    for group in ("g[1]", "g1"):
        commit(migration.source, group, 10)
    migration.options = PlanOptions(groups=("g[1]",)).literal_first(migration.source.groups())
    plan = migration.plan()
    assert [g.group for g in plan.groups()] == ["g[1]"]
    migration.apply()
    assert reverse_options(plan).selects_group("g[1]")
    assert not reverse_options(plan).selects_group("g1")


def test_a_rename_never_merges_into_an_existing_group(migration):
    commit(migration.source, "a", 80)
    commit(migration.target, "b", 50, 90)
    migration.options = PlanOptions(rename={"a": "b"})
    assert "exists, and a rename would mix the offsets of both" in next(iter(migration.plan().groups())).error
    migration.path.unlink()
    migration.options = PlanOptions(rename={"a": "b"}, onto_existing=True)
    assert next(iter(migration.plan().groups())).error == ""


def test_an_offset_that_left_its_log_since_the_plan_is_refused_and_the_others_are_written(migration):
    commit(migration.source, "g", 300, 900)
    commit(migration.source, "h", 300)
    migration.plan(OneLog(LogRange(0, 1000)))
    report = migration.apply(logs=OneLog(LogRange(800, 1000)))
    assert migration.target_offsets() == {"g": {ORDERS[1]: 900}}
    assert (report.written, sorted(report.failed)) == (1, ["g", "h"])
    refused = report.failed["g"].failed[ORDERS[0]]
    assert isinstance(refused, OffsetOutOfRange)
    assert refused.why == ("300 is outside its log now; log holds 800 to 1000; clamping would give 800 (the log start)")


def test_a_topic_recreated_since_the_plan_gets_no_offset_of_the_old_one(migration):
    commit(migration.source, "g", 900)
    migration.plan(OneLog(LogRange(0, 1000)))
    report = migration.apply(logs=OneLog(LogRange(0, 10)))
    assert migration.target_offsets() == {}
    assert "clamping would give 10 (the log end)" in str(report.failed["g"].failed[ORDERS[0]])


def test_an_offset_refused_for_its_log_is_written_once_the_log_allows_it(migration):
    commit(migration.source, "g", 900, 5)
    commit(migration.target, "g", 3)
    migration.plan(OneLog(LogRange(0, 1000)))
    assert not migration.apply(logs=OneLog(LogRange(0, 10))).ok
    assert migration.target_offsets() == {"g": {ORDERS[0]: 3, ORDERS[1]: 5}}
    assert migration.apply(logs=OneLog(LogRange(0, 1000))).ok  # the broker had reported only a part of its log
    assert migration.target_offsets() == {"g": {ORDERS[0]: 900, ORDERS[1]: 5}}
    assert migration.rollback().ok
    assert migration.target_offsets() == {"g": {ORDERS[0]: 3}}


def test_nothing_is_written_if_the_log_range_cannot_be_read(migration):
    commit(migration.source, "g", 900)
    migration.plan(OneLog(LogRange(0, 1000)))
    report = migration.apply(logs=OneLog(CorruptData("log", "no answer")))
    assert "its log range could not be read: log: no answer" in str(report.failed["g"].failed[ORDERS[0]])
    assert migration.target_offsets() == {}
    assert not migration.state().apply.written


def test_the_log_range_of_each_partition_is_requested_once_for_all_groups(migration):
    for number in range(300):
        commit(migration.source, f"g{number}", 5, 6)
    migration.plan(OneLog(LogRange(0, 1000)))
    logs = OneLog(LogRange(0, 1000))
    assert migration.apply(logs=logs).written == 600
    assert sorted(logs.requested) == ORDERS[:2]


def test_a_log_that_grows_while_the_plan_is_made_holds_the_newer_offsets(migration):
    class GrowingLog(OneLog):
        def log_ranges(self, partitions):
            found = super().log_ranges(partitions)
            self.log = LogRange(0, 1000)
            return found

    for number in range(300):
        commit(migration.source, f"g{number:03}", 900 if number == 299 else 5)
    plan = migration.plan(GrowingLog(LogRange(0, 10)))
    assert {step.action for group in plan.groups() for step in group.steps} == {Action.COPY}


def test_a_plan_is_not_applied_with_the_logs_of_another_cluster(migration):
    commit(migration.source, "g", 5)
    migration.plan(OneLog(LogRange(0, 1000)))
    with pytest.raises(PlanError, match="checked against the logs of one-log, this is another"):
        migration.apply(logs=OneLog(LogRange(0, 1000), id="another"))


def test_only_groups_in_which_something_was_written_are_counted_as_changed(migration):
    commit(migration.source, "busy", 10)
    commit(migration.source, "idle", 10)
    migration.plan()
    migration.target.active["busy"] = ("a consumer",)
    report = migration.apply()
    assert (report.written, report.changed, list(report.failed)) == (1, 1, ["busy"])
