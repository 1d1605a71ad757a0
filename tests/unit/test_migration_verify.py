"""Verify and finalize between two in-memory stores."""

from __future__ import annotations

import pytest
from one_migration import ORDERS, OneLog, commit

from offsetmgr.core.errors import CorruptData, GateRefused
from offsetmgr.core.model import Committed, LogRange
from offsetmgr.migration.finalize import GroupGate, check_gates
from offsetmgr.migration.plan_file import PlanFile
from offsetmgr.migration.verify import MigrationVerifier, Status, VerifyEvidence

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
