"""Single groups of a plan are applied, finalized and rolled back, and the others stay as they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from one_migration import ORDERS, Migration, commit

from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import GroupNotFound, JournalError, UsageError
from offsetmgr.core.model import OffsetAndMetadata
from offsetmgr.migration.apply import apply
from offsetmgr.migration.finalize import GroupGate
from offsetmgr.migration.finalize_groups import GroupFinalizeReport, finalize_groups
from offsetmgr.migration.fleet import GroupState, group_statuses, select_groups
from offsetmgr.migration.journal import Journal, journal_path
from offsetmgr.migration.journaled_writer import JournaledWriter, Report
from offsetmgr.migration.plan import GroupPlan
from offsetmgr.migration.plan_file import PlanFile
from offsetmgr.migration.progress import MigrationState
from offsetmgr.migration.rollback import rollback
from offsetmgr.migration.verify import MigrationVerifier
from offsetmgr.migration.verify_rules import Status, VerifyEvidence

FLEET = [f"group-{n:02d}" for n in range(8)]


class Fleet(Migration):
    """A migration of eight groups, whose steps can be limited to some of them. ``old`` are the groups with members that
    still commit to the source."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.old: set[str] = set()
        for number, name in enumerate(FLEET):
            commit(self.source, name, 10 + number, 20 + number)
        self.plan()

    @contextmanager
    def writer(self, name: str, *groups: str) -> Iterator[tuple[PlanFile, MigrationState, JournaledWriter]]:
        plan, store = PlanFile(self.path), self.source if name == "delete" else self.target
        with Journal(journal_path(self.path), plan_sha256=plan.sha256, clock=SystemClock()) as journal:
            writer = JournaledWriter(name, store, journal, SystemClock(), only=select_groups(plan, groups))
            yield plan, self.state(), writer

    def apply_only(self, *groups: str) -> Report:
        with self.writer("apply", *groups) as (plan, state, writer):
            return apply(plan, state, writer)

    def rollback_only(self, *groups: str) -> Report:
        with self.writer("undo", *groups) as (plan, state, writer):
            return rollback(plan, state, writer)

    def finalize_only(self, *groups: str, accept: tuple[Status, ...] = (), delete: bool = False) -> GroupFinalizeReport:
        with self.writer("delete", *groups) as (plan, state, writer):
            verifier = MigrationVerifier(plan, self.source, self.target, state=state, only=writer.only)
            return finalize_groups(verifier, state, writer.journal, self.gate, writer if delete else None, accept)

    def gate(self, groups: list[GroupPlan]) -> Iterator[GroupGate]:
        for group in groups:
            late = group.group in self.old
            detail = "member m-1 commits to the source alone" if late else "no old consumer is registered"
            yield GroupGate(group.group, not late, VerifyEvidence.SEEN, detail)

    def states(self) -> dict[str, GroupState]:
        return {one.group: one.state for one in group_statuses(PlanFile(self.path), self.state())}

    def blocked(self) -> dict[str, str]:
        found = group_statuses(PlanFile(self.path), self.state())
        return {one.group: one.blocked_by for one in found if one.blocked_by}


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def states(**others: GroupState) -> dict[str, GroupState]:
    return dict.fromkeys(FLEET, GroupState.PLANNED) | {f"group-{name[1:]}": state for name, state in others.items()}


def test_apply_writes_only_the_selected_groups(fleet: Fleet) -> None:
    report = fleet.apply_only("group-00", "group-0[56]")
    assert (report.ok, report.changed) == (True, 3)
    assert set(fleet.target_offsets()) == {"group-00", "group-05", "group-06"}
    applied = GroupState.APPLIED
    assert fleet.states() == states(g00=applied, g05=applied, g06=applied)
    assert fleet.apply_only("group-00").skipped == 1
    rest = fleet.apply()
    assert (rest.ok, rest.changed, rest.skipped) == (True, 5, 3)
    assert set(fleet.states().values()) == {GroupState.APPLIED}


def test_a_run_over_some_groups_does_not_complete_the_plan(fleet: Fleet) -> None:
    fleet.apply_only("group-00")
    assert not fleet.state().apply.complete
    fleet.apply()
    assert fleet.state().apply.complete
    fleet.apply_only("group-01")
    assert fleet.state().apply.complete


def test_a_group_that_is_not_ready_holds_up_no_other(fleet: Fleet) -> None:
    fleet.apply()
    fleet.old = {"group-03"}
    commit(fleet.source, "group-04", 500)  # moved on after the copy
    done = fleet.finalize_only("*")
    assert {gate.group for gate in done.finalized} == set(FLEET) - {"group-03", "group-04"}
    assert set(done.blocked) == {"group-03", "group-04"}
    assert "commits to the source alone" in done.blocked["group-03"].why
    assert "source-ahead" in done.blocked["group-04"].why
    finalized = dict.fromkeys(set(FLEET) - {"group-03", "group-04"}, GroupState.FINALIZED)
    assert fleet.states() == states() | finalized | dict.fromkeys(("group-03", "group-04"), GroupState.APPLIED)
    assert set(fleet.blocked()) == {"group-03", "group-04"}
    assert fleet.blocked()["group-03"].startswith("finalize: some members may still commit")
    fleet.old.clear()
    again = fleet.finalize_only("group-03")
    assert [gate.group for gate in again.finalized] == ["group-03"]
    assert set(fleet.blocked()) == {"group-04"}


def test_a_rollback_of_a_group_that_was_deleted_in_the_target_is_recorded(fleet: Fleet) -> None:
    fleet.apply_only("group-00")
    fleet.target.delete("group-00")
    assert fleet.rollback_only("group-00").changed == 0
    assert fleet.states()["group-00"] is GroupState.ROLLED_BACK
    assert fleet.finalize_only("group-00").blocked["group-00"].why == "it was rolled back"


def test_a_group_that_was_not_applied_is_not_finalized(fleet: Fleet) -> None:
    fleet.apply_only("group-00")
    done = fleet.finalize_only("group-00", "group-01")
    assert [gate.group for gate in done.finalized] == ["group-00"]
    assert done.blocked["group-01"].why == "it was not applied completely"
    # Without --group the command would also apply the groups of all other waves.
    assert done.blocked["group-01"].hint == f"run: offsetmgr migrate apply {fleet.path.name} --group group-01"


def test_refused_partitions_of_one_group_hold_up_no_other(fleet: Fleet) -> None:
    fleet.path.unlink()
    commit(fleet.source, "group-02", 1)
    commit(fleet.target, "group-02", 900)
    from offsetmgr.migration.plan import AheadPolicy, PlanOptions

    fleet.options = PlanOptions(if_ahead=AheadPolicy.REFUSE)
    fleet.plan()
    fleet.apply()
    assert "the plan refused 1 partition (1 rewind): orders-0" in fleet.blocked()["group-02"]
    done = fleet.finalize_only("*")
    assert set(done.blocked) == {"group-02"}
    assert "--accept-refused" in done.blocked["group-02"].hint
    assert not fleet.finalize_only("group-02", accept=(Status.REFUSED,)).blocked
    assert set(fleet.states().values()) == {GroupState.FINALIZED}


def test_a_rollback_of_one_group_leaves_the_others(fleet: Fleet) -> None:
    commit(fleet.target, "group-07", 3)
    fleet.path.unlink()
    fleet.plan()
    fleet.apply()
    assert fleet.rollback_only("group-07").written == 2
    assert fleet.target_offsets()["group-07"] == {ORDERS[0]: 3}
    assert fleet.target_offsets()["group-06"] == {ORDERS[0]: 16, ORDERS[1]: 26}
    assert fleet.states() == dict.fromkeys(FLEET, GroupState.APPLIED) | {"group-07": GroupState.ROLLED_BACK}
    report = fleet.apply()
    assert (report.ok, set(report.closed)) == (False, {"group-07"})
    assert fleet.target_offsets()["group-07"] == {ORDERS[0]: 3}
    done = fleet.finalize_only("*")
    assert (set(done.blocked), len(done.finalized)) == ({"group-07"}, 7)


def test_a_finalized_group_is_neither_rolled_back_nor_applied_again(fleet: Fleet) -> None:
    fleet.apply_only("group-00")
    fleet.finalize_only("group-00")
    report = fleet.rollback_only("group-00")
    assert set(report.closed) == {"group-00"}
    assert fleet.target_offsets()["group-00"] == {ORDERS[0]: 10, ORDERS[1]: 20}
    assert fleet.apply().skipped == 1
    assert fleet.states()["group-00"] is GroupState.FINALIZED
    # A rollback of the whole plan restores the others, and names the finalized group.
    report = fleet.rollback()
    assert (set(report.closed), report.changed) == ({"group-00"}, 7)
    assert set(fleet.target_offsets()) == {"group-00"}


def test_the_sources_offsets_of_finalized_groups_are_deleted(fleet: Fleet) -> None:
    fleet.apply()
    fleet.old = {"group-01"}
    done = fleet.finalize_only("group-00", "group-01", delete=True)
    assert done.deleted is not None
    assert done.deleted.written == 2
    assert fleet.source.data["group-00"] == {}
    assert fleet.source.data["group-01"]
    assert fleet.source.data["group-02"]


def test_a_rollback_of_the_whole_plan_closes_it(fleet: Fleet) -> None:
    fleet.apply_only("group-00", "group-01")
    fleet.rollback()
    with pytest.raises(JournalError, match="rolled back"):
        fleet.apply_only("group-02")
    with pytest.raises(JournalError, match="rolled back"):
        fleet.finalize_only("group-00")


def test_a_group_that_is_not_in_the_plan_is_an_error(fleet: Fleet) -> None:
    plan = PlanFile(fleet.path)
    with pytest.raises(GroupNotFound, match="nosuch-"):
        select_groups(plan, ["group-00", "nosuch-*"])
    with pytest.raises(UsageError, match="the plan has no waves"):
        select_groups(plan, waves=[2])


def test_verify_checks_only_the_selected_groups(fleet: Fleet) -> None:
    fleet.apply_only("group-00")
    plan = PlanFile(fleet.path)
    verifier = MigrationVerifier(plan, fleet.source, fleet.target, only=frozenset(["group-00"]))
    commit(fleet.source, "never-planned", 1)
    assert {result.group for result in verifier.results()} == {"group-00"}
    assert verifier.summary.ok


def test_an_interrupted_write_is_a_group_applied_in_part(fleet: Fleet) -> None:
    fleet.target.active["group-01"] = ("consumer-1",)
    fleet.apply_only("group-0[01]")
    assert fleet.states() == states(g00=GroupState.APPLIED)
    assert "it has active members" in fleet.blocked()["group-01"]
    fleet.target.active.clear()
    fleet.target.commit("group-01", {ORDERS[1]: OffsetAndMetadata(99)})
    fleet.apply_only("group-01")
    assert fleet.states()["group-01"] is GroupState.APPLIED
