"""Plan, apply, resume, verify and roll back between two in-memory stores: the state machine without servers."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_migration import ORDERS, Migration, OneLog, commit

from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import (
    CorruptData,
    GateRefused,
    GroupNotFound,
    JournalError,
    OffsetOutOfRange,
    PlanError,
    TopicNotAuthorized,
    UsageError,
)
from offsetmgr.core.model import ABSENT, Committed, LogRange, OffsetAndMetadata, TopicPartition
from offsetmgr.migration.finalize import GroupGate, check_gates
from offsetmgr.migration.journal import Journal, journal_path, read_journal
from offsetmgr.migration.plan import Action, AheadPolicy, MissingTopic, PlanOptions, PlanStep, decide
from offsetmgr.migration.plan_file import PlanFile
from offsetmgr.migration.reverse_plan import reverse_options
from offsetmgr.migration.verify import MigrationVerifier, Status, VerifyEvidence


@pytest.fixture
def migration(tmp_path: Path) -> Migration:
    return Migration(tmp_path)


def steps(plan: PlanFile) -> dict[TopicPartition, Action]:
    return {step.tp: step.action for group in plan.groups() for step in group.steps}


# --- deciding ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "target", "log", "options", "action", "after"),
    [
        (OffsetAndMetadata(42), ABSENT, LogRange(0, 100), PlanOptions(), Action.COPY, 42),
        (OffsetAndMetadata(42), Committed(40), LogRange(0, 100), PlanOptions(), Action.COPY, 42),
        (OffsetAndMetadata(42), Committed(42), LogRange(0, 100), PlanOptions(), Action.SKIP_EQUAL, 42),
        (OffsetAndMetadata(42), Committed(43), LogRange(0, 100), PlanOptions(), Action.KEEP_NEWER, 43),
        (
            OffsetAndMetadata(42),
            Committed(43),
            None,
            PlanOptions(if_ahead=AheadPolicy.REFUSE),
            Action.REFUSE_REWIND,
            None,
        ),
        (OffsetAndMetadata(42), Committed(43), None, PlanOptions(if_ahead=AheadPolicy.REWIND), Action.REWIND, 42),
        (OffsetAndMetadata(0), ABSENT, LogRange(0, 0), PlanOptions(), Action.COPY, 0),
        (OffsetAndMetadata(100), ABSENT, LogRange(0, 100), PlanOptions(), Action.COPY, 100),
        (OffsetAndMetadata(101), ABSENT, LogRange(0, 100), PlanOptions(), Action.REFUSE_OUT_OF_RANGE, None),
        (OffsetAndMetadata(4), ABSENT, LogRange(5, 100), PlanOptions(), Action.REFUSE_OUT_OF_RANGE, None),
        (OffsetAndMetadata(4), ABSENT, LogRange(5, 100), PlanOptions(clamp=True), Action.COPY, 5),
        (OffsetAndMetadata(101), ABSENT, LogRange(5, 100), PlanOptions(clamp=True), Action.COPY, 100),
        (OffsetAndMetadata(101), Committed(100), LogRange(5, 100), PlanOptions(clamp=True), Action.SKIP_EQUAL, 100),
        (None, Committed(7), None, PlanOptions(), Action.TARGET_ONLY, 7),
        (CorruptData("node", "junk"), ABSENT, None, PlanOptions(), Action.REFUSE_UNREADABLE, None),
        (OffsetAndMetadata(1), CorruptData("group", "no answer"), None, PlanOptions(), Action.REFUSE_UNREADABLE, None),
        (OffsetAndMetadata(1), ABSENT, CorruptData("log", "no answer"), PlanOptions(), Action.REFUSE_UNREADABLE, None),
    ],
)
def test_each_step_is_decided_by_both_sides_and_the_log(source, target, log, options, action, after):
    step = decide(ORDERS[0], source, target, log, options)
    assert (step.action, step.after.offset if step.after else None) == (action, after)


def at(offset):
    """The source's commit, with metadata and a leader epoch."""
    return OffsetAndMetadata(offset, "of the source", 3)


@pytest.mark.parametrize(
    ("source", "target", "log", "options", "action", "after", "note"),
    [
        (at(42), 42, LogRange(0, 99), PlanOptions(), Action.SKIP_EQUAL, Committed(42).value(), ""),
        (at(42), 40, LogRange(0, 99), PlanOptions(), Action.COPY, at(42), ""),
        (at(42), 45, None, PlanOptions(), Action.KEEP_NEWER, Committed(45).value(), "target is ahead by 3"),
        (at(42), 45, LogRange(50, 99), PlanOptions(), Action.KEEP_NEWER, Committed(45).value(), "target is ahead by 3"),
        (at(42), 45, None, PlanOptions(AheadPolicy.REWIND), Action.REWIND, at(42), "moves back by 3"),
        (
            *(at(42), 45, None, PlanOptions(AheadPolicy.REFUSE), Action.REFUSE_REWIND, None),
            "would move back by 3; --allow-rewind allows it",
        ),
        (
            *(at(42), 40, LogRange(50, 99), PlanOptions(clamp=True), Action.COPY),
            *(OffsetAndMetadata(50, "of the source"), "clamped from 42 to 50 (the log start)"),
        ),
        (
            *(at(42), 30, LogRange(0, 30), PlanOptions(AheadPolicy.REWIND, clamp=True), Action.SKIP_EQUAL),
            *(Committed(30).value(), "clamped from 42 to 30 (the log end)"),
        ),
        (
            *(at(42), 40, LogRange(0, 30), PlanOptions(AheadPolicy.REWIND, clamp=True), Action.REWIND),
            *(OffsetAndMetadata(30, "of the source"), "clamped from 42 to 30 (the log end)"),
        ),
        (
            *(at(42), 40, LogRange(0, 30), PlanOptions(), Action.REFUSE_OUT_OF_RANGE, None),
            "log holds 0 to 30; clamping would give 30 (the log end)",
        ),
        (
            *(at(42), 40, MissingTopic.TOPIC, PlanOptions(), Action.REFUSE_TOPIC_MISSING, None),
            "the topic does not exist in the Kafka cluster",
        ),
        (
            *(at(42), 40, MissingTopic.PARTITION, PlanOptions(), Action.REFUSE_PARTITION_MISSING, None),
            "the partition does not exist in the Kafka cluster",
        ),
        (
            *(at(42), 40, CorruptData("log", "no answer"), PlanOptions(), Action.REFUSE_UNREADABLE, None),
            "log: log: no answer",
        ),
        (None, 40, None, PlanOptions(), Action.TARGET_ONLY, Committed(40).value(), ""),
    ],
)
def test_a_step_has_both_offsets_the_offset_after_apply_and_the_reason(
    source, target, log, options, action, after, note
):
    step = decide(ORDERS[0], source, Committed(target), log, options)
    assert step == PlanStep(ORDERS[0], action, source, Committed(target).value(), after, note)


def test_a_step_names_the_side_that_cannot_be_read_and_has_the_offset_of_the_other_side():
    unreadable = CorruptData("node", "junk")
    assert decide(ORDERS[0], unreadable, Committed(40), None, PlanOptions()) == PlanStep(
        ORDERS[0], Action.REFUSE_UNREADABLE, None, Committed(40).value(), None, "source: node: junk"
    )
    assert decide(ORDERS[0], at(42), unreadable, None, PlanOptions()) == PlanStep(
        ORDERS[0], Action.REFUSE_UNREADABLE, at(42), None, None, "target: node: junk"
    )


def test_an_offset_out_of_range_is_refused_with_the_clamped_offset():
    step = decide(ORDERS[0], OffsetAndMetadata(4), ABSENT, LogRange(5, 100), PlanOptions())
    assert step.note == "log holds 5 to 100; clamping would give 5 (the log start)"


@given(
    st.none() | st.integers(0, 50),
    st.none() | st.integers(0, 50),
    st.integers(0, 50),
    st.integers(0, 50),
    st.booleans(),
    st.sampled_from(AheadPolicy),
)
def test_nothing_moves_backwards_or_out_of_the_log_unless_the_caller_allows_it(
    source, target, start, size, clamp, mode
):
    log = LogRange(start, start + size)
    there = None if source is None else OffsetAndMetadata(source)
    here = ABSENT if target is None else Committed(target)
    step = decide(ORDERS[0], there, here, log, PlanOptions(mode, clamp))
    if step.action.writes:
        assert step.after is not None
        assert log.start <= step.after.offset <= log.end
        assert clamp or step.after.offset == source
        assert target is None or step.after.offset > target or mode is AheadPolicy.REWIND


# --- the plan file -------------------------------------------------------------------------------


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


# --- apply, verify, roll back --------------------------------------------------------------------


def test_apply_writes_offsets_that_are_behind_and_keeps_those_that_are_ahead(migration):
    commit(migration.source, "g", 10, 20, 30)
    commit(migration.target, "g", 5, 25, None, 7)
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


@pytest.mark.parametrize(("partition", "offset"), [(0, 10), (1, 9999)])
def test_verify_compares_equal_and_unplanned_offsets_with_the_log(migration, partition, offset):
    commit(migration.source, "g", 10)
    migration.plan()
    migration.apply()
    migration.target.data["g"][ORDERS[partition]] = Committed(offset)
    log = OneLog(LogRange(0, 5)) if partition == 0 else OneLog(LogRange(0, 100))
    verifier = MigrationVerifier(PlanFile(migration.path), migration.source, migration.target, lambda: log)
    assert {v.tp: v.status for v in verifier.results()}[ORDERS[partition]] is Status.BEYOND_LOG_END


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


@pytest.mark.parametrize(
    ("source", "target", "status"),
    [
        ((10,), (10,), Status.EQUAL),
        ((10,), (50,), Status.PROGRESS),
        ((10,), (100,), Status.PROGRESS),
        ((10,), (101,), Status.BEYOND_LOG_END),
        ((10,), (9,), Status.BEHIND),
        ((10,), (None,), Status.MISSING),
        ((12,), (10,), Status.SOURCE_AHEAD),
        ((12,), (12,), Status.PROGRESS),
        ((8,), (10,), Status.SOURCE_REWOUND),
        ((None,), (10,), Status.SOURCE_GONE),
        ((10, 3), (10,), Status.NOT_IN_PLAN),
        ((10,), (10, 3), Status.NEW_IN_TARGET),
    ],
)
def test_verify_checks_a_fresh_read_of_both_sides(migration, source, target, status):
    commit(migration.source, "g", 10)
    migration.plan()
    migration.apply()
    migration.source.data["g"].clear()
    migration.target.data["g"].clear()
    commit(migration.source, "g", *source)
    commit(migration.target, "g", *target)
    verifier = MigrationVerifier(
        PlanFile(migration.path), migration.source, migration.target, lambda: OneLog(LogRange(0, 100))
    )
    results = {v.tp: v for v in verifier.results()}
    result = results[ORDERS[1]] if len(source) + len(target) == 3 else results[ORDERS[0]]
    assert result.status is status
    assert verifier.summary.ok is status.ok


def test_progress_without_a_known_log_end_is_unknown_and_does_not_pass(migration):
    commit(migration.source, "g", 10)
    migration.plan()
    migration.apply()
    commit(migration.target, "g", 11)
    assert migration.verify() == {"g orders-0": Status.UNKNOWN}


# --- killed at any step --------------------------------------------------------------------------


class Killed(BaseException):
    """Simulates SIGKILL at a journal step. The tests in tests/chaos send the real signal."""


def killing_journal(at: int, when: str) -> type[Journal]:
    """A journal that dies at its ``at``-th append: before the write, or after its fsync."""
    count = itertools.count()

    class Dying(Journal):
        def append(self, records):
            records = list(records)
            if records and next(count) == at:
                if when == "after":
                    super().append(records)
                raise Killed
            super().append(records)

    return Dying


def scenario(directory: Path) -> Migration:
    migration = Migration(directory)
    for n in range(5):
        commit(migration.source, f"g{n}", 10 + n, 20 + n, 30 + n)
        commit(migration.target, f"g{n}", *[None, 5, 99][: n % 4])
    return migration


def run_with_kill(migration: Migration, command: str, at: int, when: str, monkeypatch) -> bool:
    """Runs a command that is killed at one journal step, and then again to its end. Returns False if the journal has
    fewer steps."""
    monkeypatch.setattr("offsetmgr.migration.journaled_writer.BATCH_GROUPS", 1)
    killed = True
    try:
        getattr(migration, command)(killing_journal(at, when))
        killed = False
    except Killed:
        if command == "rollback" and not migration.state().apply.intents:
            return killed
        assert getattr(migration, command)().ok
    return killed


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("command", ["apply", "rollback"])
def test_a_command_killed_at_any_journal_step_resumes_to_the_same_end(tmp_path, command, when, monkeypatch):
    undisturbed = scenario(tmp_path / "undisturbed")
    undisturbed.directory.mkdir()
    untouched = undisturbed.target_offsets()
    undisturbed.plan()
    assert undisturbed.apply().ok
    applied = undisturbed.target_offsets()
    for at in itertools.count():
        migration = scenario(tmp_path / f"{at}")
        migration.directory.mkdir()
        migration.plan()
        if command == "rollback":
            migration.apply()
        if not run_with_kill(migration, command, at, when, monkeypatch):
            break
        assert migration.target_offsets() == (applied if command == "apply" else untouched)
        if command == "apply":
            assert migration.rollback().ok
            assert migration.target_offsets() == untouched
    assert at >= 8


def test_a_torn_last_line_is_cut_and_damage_in_the_middle_is_an_error(migration):
    commit(migration.source, "g", 10)
    migration.plan()
    migration.apply()
    path = journal_path(migration.path)
    whole = path.read_bytes()
    records = [record for _, record in read_journal(path)]
    for cut in range(whole.rstrip(b"\n").rfind(b"\n") + 2, len(whole)):
        path.write_bytes(whole[:cut])
        assert [record for _, record in read_journal(path)] == records[:-1]
    middle = whole.index(b"\n") + 10
    path.write_bytes(whole[:middle] + b"#" + whole[middle + 1 :])
    with pytest.raises(JournalError, match="before its end"):
        list(read_journal(path))


def test_two_processes_never_work_on_one_plan(migration):
    plan = migration.plan()
    path = journal_path(migration.path)
    with (
        Journal(path, plan_sha256=plan.sha256, clock=SystemClock()),
        pytest.raises(JournalError, match="another process"),
        Journal(path, plan_sha256=plan.sha256, clock=SystemClock()),
    ):
        pass


def test_a_journal_of_another_plan_is_refused(migration):
    commit(migration.source, "g", 10)
    migration.plan()
    migration.apply()
    migration.path.unlink()
    migration.plan()
    with pytest.raises(JournalError, match="another plan"):
        migration.apply()


def test_a_finalized_plan_is_not_rolled_back(migration):
    commit(migration.source, "g", 10)
    plan = migration.plan()
    migration.apply()
    with Journal(journal_path(migration.path), plan_sha256=plan.sha256, clock=SystemClock()) as journal:
        journal.append([{"kind": "finalized", "verified": 1, "gates": []}])
    with pytest.raises(GateRefused, match="would rewind"):
        migration.rollback()


# --- logs that have changed -----------------------------------------------------------------------


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


@pytest.mark.parametrize("offset", [300, 799])
def test_verify_does_not_pass_an_offset_below_the_log_start(migration, offset):
    commit(migration.source, "g", offset, 900)
    migration.plan(OneLog(LogRange(0, 1000)))
    migration.apply(logs=OneLog(LogRange(0, 1000)))
    logs = OneLog(LogRange(800, 1000))
    verifier = MigrationVerifier(PlanFile(migration.path), migration.source, migration.target, lambda: logs)
    found = {v.tp: v for v in verifier.results()}
    assert {tp: v.status for tp, v in found.items()} == {
        ORDERS[0]: Status.BELOW_LOG_START,
        ORDERS[1]: Status.EQUAL,
    }
    below = 800 - offset
    assert found[ORDERS[0]].detail == (
        f"below the log start by {below}; log holds 800 to 1000; clamping would give 800 (the log start)"
    )
    assert not verifier.summary.ok


def test_verify_distinguishes_equal_offsets_from_those_kept_ahead(migration):
    commit(migration.source, "g", 100, 100)
    commit(migration.target, "g", 500, 500)
    migration.plan()
    migration.apply()
    assert set(migration.verify().values()) == {Status.KEPT_AHEAD}
    commit(migration.source, "g", 500)
    assert migration.verify() == {"g orders-0": Status.EQUAL, "g orders-1": Status.KEPT_AHEAD}


def test_missing_offsets_are_explained_from_the_journal(migration):
    commit(migration.source, "g", 10, 20)
    migration.plan()

    def why() -> set[str]:
        verifier = MigrationVerifier(
            PlanFile(migration.path), migration.source, migration.target, state=migration.state()
        )
        return {v.detail for v in verifier.results() if v.status is Status.MISSING}

    assert why() == {"the target has no commit: not applied yet, run migrate apply"}
    migration.apply()
    assert why() == set()
    migration.target.data["g"].clear()
    assert why() == {"the target has no commit: deleted or expired since, so make a new plan"}
    commit(migration.target, "g", 10, 20)
    migration.rollback()
    assert why() == {"the target has no commit: the plan was rolled back"}


def test_only_groups_in_which_something_was_written_are_counted_as_changed(migration):
    commit(migration.source, "busy", 10)
    commit(migration.source, "idle", 10)
    migration.plan()
    migration.target.active["busy"] = ("a consumer",)
    report = migration.apply()
    assert (report.written, report.changed, list(report.failed)) == (1, 1, ["busy"])


# --- finalize ------------------------------------------------------------------------------------


class NoMembers:
    def __call__(self, groups):
        return iter(GroupGate(plan.group, True, VerifyEvidence.SEEN, "no members") for plan in groups)


def test_finalize_counts_only_partitions_that_passed_as_verified(migration):
    commit(migration.source, "g", 10, 2000)
    migration.plan(OneLog(LogRange(0, 1000)))
    migration.apply()
    verifier = MigrationVerifier(PlanFile(migration.path), migration.source, migration.target)
    done = check_gates(verifier, NoMembers(), (Status.REFUSED,))
    assert (done.verified, done.left_out) == (1, 1)


def test_unreadable_offsets_block_finalize_with_a_hint(migration):
    commit(migration.source, "g", 10, 20)
    commit(migration.source, "h", 2000)
    migration.source.broken = {("g", ORDERS[1]): CorruptData("node", "junk")}
    migration.plan(OneLog(LogRange(0, 1000)))
    migration.apply()
    for accept, wrong in (((), 2), ((Status.REFUSED,), 1)):
        verifier = MigrationVerifier(PlanFile(migration.path), migration.source, migration.target)
        with pytest.raises(GateRefused, match=f"{wrong} of 3 partitions do not verify") as refused:
            check_gates(verifier, NoMembers(), accept)
        assert refused.value.hint == (
            "unreadable offsets are never skipped silently: fix the cause, or make a new plan without them "
            "(--group, --topic)"
        )
