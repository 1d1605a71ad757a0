"""Verify and finalize between two in-memory stores."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, cast

import pytest
from one_migration import ORDERS, OneLog, commit

from offsetmgr.cli.app import run
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import CorruptData, GateRefused
from offsetmgr.core.group_tree import UnrecognisedData
from offsetmgr.core.model import Committed, GroupDescription, LogRange
from offsetmgr.core.offset_store import GroupOffsets
from offsetmgr.migration.evidence import Confidence
from offsetmgr.migration.finalize import GroupGate, check_gates
from offsetmgr.migration.group_locator import ConfiguredStore, GroupLocator
from offsetmgr.migration.group_observer import ObservationWindow
from offsetmgr.migration.plan import Action, AheadPolicy, PlanOptions
from offsetmgr.migration.plan_file import PlanFile, write_plan
from offsetmgr.migration.planner import Planner
from offsetmgr.migration.reverse_plan import ReversePlanner, reverse_options
from offsetmgr.migration.verify import MigrationVerifier
from offsetmgr.migration.verify_rules import Status, VerifyEvidence
from offsetmgr.testing.memory import MemoryStore

pytest_plugins = ["migration_fixtures"]


@pytest.mark.parametrize(("partition", "offset"), [(0, 10), (1, 9999)])
def test_verify_compares_equal_and_unplanned_offsets_with_the_log(migration, partition, offset):
    commit(migration.source, "g", 10)
    migration.plan()
    migration.apply()
    migration.target.data["g"][ORDERS[partition]] = Committed(offset)
    log = OneLog(LogRange(0, 5)) if partition == 0 else OneLog(LogRange(0, 100))
    verifier = MigrationVerifier(PlanFile(migration.path), migration.source, migration.target, lambda: log)
    assert {v.tp: v.status for v in verifier.results()}[ORDERS[partition]] is Status.BEYOND_LOG_END


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
    migration.options = PlanOptions(AheadPolicy.KEEP)
    migration.plan()
    migration.apply()
    assert set(migration.verify().values()) == {Status.KEPT_AHEAD}
    commit(migration.source, "g", 500)
    assert migration.verify() == {"g orders-0": Status.EQUAL, "g orders-1": Status.KEPT_AHEAD}


def test_an_offset_kept_ahead_by_an_old_plan_without_a_word_is_neither_verified_nor_kept_by_its_renewal(opened):
    migration, path = opened, opened.path
    commit(migration.source, "g", 40, 40)
    commit(migration.target, "g", 90, 40)
    migration.options = PlanOptions(AheadPolicy.KEEP)
    plan = migration.plan()
    old_header = replace(plan.header, options=PlanOptions())
    groups = [replace(g, steps=tuple(s._replace(proven=False) for s in g.steps)) for g in plan.groups()]
    migration.path.unlink()
    write_plan(migration.path, old_header, groups)
    migration.apply()
    (found,) = [
        result
        for result in MigrationVerifier(PlanFile(migration.path), migration.source, migration.target).results()
        if result.tp == ORDERS[0]
    ]
    assert (found.status, found.status.ok) == (Status.AHEAD_UNPROVEN, False)
    assert found.detail.startswith("keeps 90; a start there skips 50 messages if the consumers are at 40 (")
    assert found.detail.endswith("to accept it, plan it again with --if-ahead keep")
    for action, *words in ((Action.REFUSE_REWIND,), (Action.KEEP_NEWER, "--if-ahead", "keep")):
        new = path.with_stem(action.name)
        assert run(["migrate", "renew", str(path), "-o", str(new), *words]) == 0
        (group,), path = PlanFile(new).groups(), new
        assert [step.action for step in group.steps] == [action, Action.SKIP_EQUAL]


@pytest.mark.parametrize(
    ("partition", "source", "target", "status"),
    [
        (1, 10, 90, Status.AHEAD_UNPROVEN),
        (1, 10, 95, Status.PROGRESS),
        (1, 90, 90, Status.EQUAL),
        (1, 95, 90, Status.SOURCE_AHEAD),
        (2, 10, 90, Status.AHEAD_UNPROVEN),
        (2, 90, 90, Status.PROGRESS),
    ],
)
def test_a_source_that_was_committed_after_the_plan_is_compared_with_a_target_that_is_ahead(
    migration, partition, source, target, status
):
    """When the plan is made, only the target has partition 1, and neither store has partition 2."""
    commit(migration.source, "g", 5)
    commit(migration.target, "g", 5, 90)
    migration.plan()
    commit(migration.source, "g", 5, *(None,) * (partition - 1), source)
    commit(migration.target, "g", 5, *(None,) * (partition - 1), target)
    log = OneLog(LogRange(0, 1000))
    verifier = MigrationVerifier(PlanFile(migration.path), migration.source, migration.target, lambda: log)
    assert {result.tp: result.status for result in verifier.results()}[ORDERS[partition]] is status


class MovingStore(MemoryStore):
    """A store in which a consumer commits partition 1 before each read after the first."""

    parallel_calls = 2
    reads = -1

    def scan(self, groups: Iterable[str]) -> Iterator[GroupOffsets]:
        self.reads += 1
        if self.reads and self.uri == self.moving:
            self.data["g"][ORDERS[1]] = Committed(self.data["g"][ORDERS[1]].offset + self.reads)
        return super().scan(groups)

    moving = ""


@pytest.mark.parametrize(
    ("moving", "planned", "target", "status"),
    [
        ("", False, 90, Status.AHEAD_UNPROVEN),
        ("target", False, 90, Status.KEPT_AHEAD),
        ("source", False, 90, Status.AHEAD_UNPROVEN),
        ("", True, 95, Status.PROGRESS),
        ("target", True, 95, Status.PROGRESS),
        ("source", True, 95, Status.AHEAD_UNPROVEN),
    ],
)
def test_commits_that_are_seen_during_verify_show_whether_a_target_that_is_ahead_was_written_last(
    migration, moving, planned, target, status
):
    commit(migration.source, "g", 5, 5 if planned else None)
    commit(migration.target, "g", 5, None if planned else 90)
    migration.plan()
    migration.apply()
    commit(migration.source, "g", 5, 10)
    commit(migration.target, "g", 5, target)
    source, target_store = (MovingStore(one.id, data=one.data) for one in (migration.source, migration.target))
    source.moving = target_store.moving = f"memory:{moving}"
    plan = PlanFile(migration.path)
    verifier = MigrationVerifier(plan, source, target_store, lambda: OneLog(LogRange(0, 1000)))
    assert {result.tp: result.status for result in verifier.results()}[ORDERS[1]] is status


class WithoutRead(MovingStore):
    """A Kafka store whose brokers do not show the offsets topic to this login."""

    def commit_times(self, _groups: list[str], _limit_s: float | None) -> dict[str, object]:
        return {}


@pytest.mark.parametrize(("moving", "action"), [("zookeeper", Action.REFUSE_REWIND), ("kafka", Action.KEEP_NEWER)])
def test_movement_decides_although_read_on_the_offsets_topic_is_missing(monkeypatch, moving, action):
    monkeypatch.setattr("offsetmgr.stores.kafka.KafkaStore", WithoutRead)
    monkeypatch.setattr("offsetmgr.migration.group_watch.owners_many", lambda *_: [])
    monkeypatch.setattr("offsetmgr.migration.group_locator.modes", lambda *_: {})
    old, new = MovingStore("zookeeper"), WithoutRead("kafka")
    for store, offset in ((old, 10), (new, 90)):
        commit(store, "g", None, offset)
        store.moving = f"memory:{moving}"
    ((step,),) = (group.steps for group in Planner(old, new, PlanOptions(), SystemClock()).plan(["g"]))
    assert (step.action, " changed while it was watched (" in step.note) == (action, True)
    empty, session = GroupDescription("", "EMPTY"), cast(Any, object())
    stores = [ConfiguredStore(s.id, s, lambda g: dict.fromkeys(g, empty), session) for s in (old, new)]
    (found,) = GroupLocator(stores, None).locate(["g"], ObservationWindow(0.3, poll_s=0.01))
    assert (found.phase.confidence, found.phase.phase) == (Confidence.SEEN, moving)


def test_verify_and_the_reverse_plan_know_the_shift(migration):
    commit(migration.source, "g", 40, 7)
    migration.options = PlanOptions(shift=1)
    assert migration.plan().header.version == 5
    migration.apply()
    assert migration.target_offsets() == {"g": {ORDERS[0]: 41, ORDERS[1]: 8}}
    assert set(migration.verify().values()) == {Status.EQUAL}
    commit(migration.source, "g", 44)
    (moved,) = [
        result
        for result in MigrationVerifier(PlanFile(migration.path), migration.source, migration.target).results()
        if result.tp == ORDERS[0]
    ]
    assert (moved.status, moved.source, moved.target) == (Status.SOURCE_AHEAD, 44, 41)
    assert moved.detail.endswith("would repeat 4 messages")
    commit(migration.source, "g", 40)
    commit(migration.target, "g", 50)
    plan = PlanFile(migration.path)
    back = Planner(migration.target, migration.source, reverse_options(plan), SystemClock())
    (group,) = ReversePlanner(plan, migration.state(), back).steps()
    assert [(step.action, step.after and step.after.offset) for step in group.steps] == [
        (Action.COPY, 49),
        (Action.SKIP_EQUAL, 7),
    ]
    commit(migration.target, "g", 41)
    assert migration.rollback().ok
    assert migration.target_offsets() == {}


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


class _Hiding(MemoryStore):
    """A store with data that may be offsets."""

    def scan(self, groups: Iterable[str]) -> Iterator[GroupOffsets]:
        for found in super().scan(groups):
            hidden = CorruptData(f"group {found.group!r}", "its offsets may be incomplete")
            yield replace(found, hidden=hidden, unrecognised=(UnrecognisedData("/consumers/g/x", "holds '7'"),))


def test_a_target_with_data_that_may_be_offsets_is_neither_written_nor_verified_nor_called_empty(opened, capsys):
    migration = opened
    commit(migration.source, "g", 5)
    (planned,) = migration.plan().groups()
    migration.apply()
    assert (planned.error, set(migration.verify().values())) == ("", {Status.EQUAL})

    migration.target = _Hiding("target", data=migration.target.data)
    assert set(migration.verify().values()) == {Status.UNREADABLE}
    commit(migration.source, "g", 9)
    assert run(shlex.split("migrate mirror --from memory:source --to memory:target --group g --once --yes")) == 1
    assert migration.target_offsets() == {"g": {ORDERS[0]: 5}}
    assert run(["migrate", "rollback", str(migration.path), "--yes"]) == 0
    assert (migration.target_offsets(), "to remove:" in capsys.readouterr().err) == ({}, False)
    migration.path.unlink()
    (planned,) = migration.plan().groups()
    assert planned.error == "target: group 'g': its offsets may be incomplete"
