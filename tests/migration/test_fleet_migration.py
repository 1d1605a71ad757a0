"""Single groups of a plan are applied, finalized and rolled back, and the others stay as they are."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from one_migration import ORDERS, Migration, commit

from offsetmgr import AheadPolicy, OffsetAndMetadata, PlanOptions
from offsetmgr.app.connections import SourceAndTarget
from offsetmgr.core.errors import JournalError
from offsetmgr.migration.plan import PlanFile

FLEET = [f"group-{n:02d}" for n in range(8)]
PLANNED = dict.fromkeys(FLEET, "planned")
APPLIED = dict.fromkeys(FLEET, "applied")


class Fleet(Migration):
    """A migration of eight groups. ``old`` are the groups with members that still commit to the source."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.old: set[str] = set()
        for number, name in enumerate(FLEET):
            commit(self.source, name, 10 + number, 20 + number)
        self.plan()

    def finalize(self, *groups: str, accept_refused: bool = False, delete: bool = False) -> Any:
        with self.opened() as library, patch.object(SourceAndTarget, "member_gate", lambda *_: self.gate):
            return library.finalize_groups(groups, accept_refused=accept_refused, delete_source=delete)

    def gate(self, groups: list[Any]) -> Iterator[Any]:
        for group in groups:
            late = group.name in self.old
            detail = "member m-1 commits to the source alone" if late else "no old consumer is registered"
            seen = SimpleNamespace(value="seen")
            yield SimpleNamespace(group=group.name, passed=not late, evidence=seen, detail=detail, hint="", live=False)

    def blocked(self) -> dict[str, str]:
        return {group: row["blocked_by"] for group, row in self.status().items() if row["blocked_by"]}


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def test_apply_writes_and_verify_checks_only_the_selected_groups(fleet: Fleet) -> None:
    report = fleet.apply(("group-00", "group-0[56]"))
    assert (report.ok, report.changed) == (True, 3)
    selected = {"group-00", "group-05", "group-06"}
    assert set(fleet.target_offsets()) == selected
    assert fleet.states() == PLANNED | dict.fromkeys(selected, "applied")
    commit(fleet.source, "never-planned", 1)
    assert {result.group for result in fleet.results(groups="group-00")} == {"group-00"}
    assert fleet.verified.ok
    assert fleet.apply("group-00").skipped == 1
    assert not fleet.state().apply.complete  # a run over some groups does not complete the plan
    rest = fleet.apply()
    assert (rest.ok, rest.changed, rest.skipped) == (True, 5, 3)
    assert fleet.states() == APPLIED
    assert fleet.state().apply.complete
    fleet.apply("group-01")
    assert fleet.state().apply.complete


def test_a_group_that_is_not_ready_holds_up_no_other(fleet: Fleet) -> None:
    fleet.apply()
    fleet.old = {"group-03"}
    commit(fleet.source, "group-04", 500)  # moved on after the copy
    done = fleet.finalize("*")
    ready = set(FLEET) - {"group-03", "group-04"}
    assert {gate.group for gate in done.gates} == ready
    assert set(done.blocked) == {"group-03", "group-04"}
    assert "commits to the source alone" in done.blocked["group-03"].why
    assert "source-ahead" in done.blocked["group-04"].why
    assert fleet.states() == APPLIED | dict.fromkeys(ready, "finalized")
    assert set(fleet.blocked()) == {"group-03", "group-04"}
    assert fleet.blocked()["group-03"].startswith("finalize: some members may still commit")
    fleet.old.clear()
    assert [gate.group for gate in fleet.finalize("group-03").gates] == ["group-03"]
    assert set(fleet.blocked()) == {"group-04"}


def test_a_group_that_was_not_applied_is_not_finalized(fleet: Fleet) -> None:
    fleet.apply("group-00")
    done = fleet.finalize("group-00", "group-01")
    assert [gate.group for gate in done.gates] == ["group-00"]
    assert done.blocked["group-01"].why == "it was not applied completely"
    # Without the group the command would also apply the groups of all other waves.
    assert done.blocked["group-01"].hint == f"run: migrate.apply('{fleet.path.name}', groups='group-01')"


def test_refused_partitions_of_one_group_hold_up_no_other(fleet: Fleet) -> None:
    commit(fleet.source, "group-02", 1)
    commit(fleet.target, "group-02", 900)
    fleet.options = PlanOptions(if_ahead=AheadPolicy.REFUSE)
    fleet.plan_again()
    fleet.apply()
    assert "the plan refused 1 partition (1 rewind): orders-0" in fleet.blocked()["group-02"]
    done = fleet.finalize("*")
    assert set(done.blocked) == {"group-02"}
    assert "accept_refused=" in done.blocked["group-02"].hint
    assert not fleet.finalize("group-02", accept_refused=True).blocked
    assert set(fleet.states().values()) == {"finalized"}


def test_a_rollback_of_one_group_leaves_the_others(fleet: Fleet) -> None:
    commit(fleet.target, "group-07", 3)
    fleet.plan_again()
    fleet.apply()
    assert fleet.rollback("group-07").written == 2
    assert fleet.target_offsets()["group-07"] == {ORDERS[0]: 3}
    assert fleet.target_offsets()["group-06"] == {ORDERS[0]: 16, ORDERS[1]: 26}
    assert fleet.states() == APPLIED | {"group-07": "rolled back"}
    report = fleet.apply()
    assert (report.ok, set(report.closed)) == (False, {"group-07"})
    assert fleet.target_offsets()["group-07"] == {ORDERS[0]: 3}
    done = fleet.finalize("*")
    assert (set(done.blocked), len(done.gates)) == ({"group-07"}, 7)


def test_a_finalized_group_is_neither_rolled_back_nor_applied_again(fleet: Fleet) -> None:
    fleet.apply("group-00")
    fleet.finalize("group-00")
    assert set(fleet.rollback("group-00").closed) == {"group-00"}
    assert fleet.target_offsets()["group-00"] == {ORDERS[0]: 10, ORDERS[1]: 20}
    assert fleet.apply().skipped == 1
    assert fleet.states()["group-00"] == "finalized"
    # A rollback of the whole plan restores the others, and names the finalized group.
    report = fleet.rollback()
    assert (set(report.closed), report.changed) == ({"group-00"}, 7)
    assert set(fleet.target_offsets()) == {"group-00"}


def test_the_sources_offsets_of_finalized_groups_are_deleted(fleet: Fleet) -> None:
    fleet.apply()
    fleet.old = {"group-01"}
    done = fleet.finalize("group-00", "group-01", delete=True)
    assert done.deleted.written == 2
    assert fleet.source.data["group-00"] == {}
    assert fleet.source.data["group-01"]
    assert fleet.source.data["group-02"]


def test_a_rollback_of_the_whole_plan_closes_it_also_for_a_group_that_was_deleted_in_the_target(fleet: Fleet) -> None:
    fleet.apply(("group-00", "group-01"))
    fleet.target.delete("group-00")
    assert fleet.rollback("group-00").changed == 0
    assert fleet.states()["group-00"] == "rolled back"
    assert fleet.finalize("group-00").blocked["group-00"].why == "it was rolled back"
    fleet.rollback()
    for step in (fleet.apply, fleet.finalize):
        with pytest.raises(JournalError, match="rolled back"):
            step("group-02")


def test_a_group_or_a_wave_that_is_not_in_the_plan_is_an_error(fleet: Fleet) -> None:
    assert "nosuch-" in fleet.run("apply", "--group", "group-00", "--group", "nosuch-*", "--yes", code=1)
    assert "has no waves" in fleet.run("apply", "--wave", "2", "--yes", code=2)


def test_an_interrupted_write_is_a_group_applied_in_part(fleet: Fleet) -> None:
    fleet.target.active["group-01"] = ("consumer-1",)
    fleet.apply("group-0[01]")
    assert fleet.states() == PLANNED | {"group-00": "applied"}
    assert "it has active members" in fleet.blocked()["group-01"]
    fleet.target.active.clear()
    fleet.target.commit("group-01", {ORDERS[1]: OffsetAndMetadata(99)})
    fleet.apply("group-01")
    assert fleet.states()["group-01"] == "applied"


GROUPS = ("billing-eu", "billing-core", "audit", "'odd'")
CSV = "group,wave,owner\nbilling-*,2,billing team\nbilling-core,3,\n'odd',1,x\n"
JSON = (
    '[{"group": "billing-*", "wave": 2, "owner": "billing team"}, {"group": "billing-core", "wave": 3},'
    ' {"group": "\'odd\'", "wave": 1, "owner": "x"}]'
)


def planned(tmp_path: Path, text: str, *options: str, code: int = 0) -> tuple[Migration, str]:
    """A plan of all groups with this waves file, and what the command prints on standard error."""
    migration = Migration(tmp_path)
    for name in GROUPS:
        commit(migration.source, name, 1)
        commit(migration.target, name)
    waves = tmp_path / "waves"
    waves.write_text(text)
    sides = ("--from", "memory:source", "--to", "memory:target", "--all-groups")
    plan = ("migrate", "plan", *sides, "--waves", waves, "-o", migration.path, *options)
    return migration, migration.command(*plan, code=code)


def test_a_row_of_an_excluded_group_is_no_error(tmp_path: Path) -> None:
    migration, _ = planned(tmp_path, "group,wave\nbilling-*,2\nbilling-core,1\n", "--exclude-group", "billing-core")
    assert [group.name for group in PlanFile(migration.path).groups()] == ["'odd'", "audit", "billing-eu"]
    assert "every group of these waves is excluded" in migration.command(
        "migrate", "apply", migration.path, "--wave", "2", "--exclude-group", "billing-*", "--yes", code=1
    )


def test_a_group_that_the_waves_select_may_be_excluded(tmp_path: Path) -> None:
    migration, _ = planned(tmp_path, "group,wave\nbilling-*,2\nbilling-core,1\n")
    waves = ("--waves", tmp_path / "waves", "--exclude-group", "billing-core", "-o", tmp_path / "part.json")
    migration.command("migrate", "plan", "--from", "memory:source", "--to", "memory:target", *waves)
    assert [group.name for group in PlanFile(tmp_path / "part.json").groups()] == ["billing-eu"]


def test_a_mirror_leaves_out_exactly_the_excluded_group_that_looks_like_a_glob(tmp_path: Path) -> None:
    migration = Migration(tmp_path)
    for name in ("a1", "a[1]"):
        commit(migration.source, name, 1)
    sides = ("--from", "memory:source", "--to", "memory:target", "--all-groups", "--once", "--yes")
    migration.command("migrate", "mirror", *sides, "--exclude-group", "a[1]")
    assert set(migration.target.groups()) == {"a1"}


@pytest.mark.parametrize("text", [CSV, "\ufeff" + CSV.replace("\n", "\r\n"), JSON])
def test_a_plan_keeps_waves_and_owners_of_both_forms(tmp_path: Path, text: str) -> None:
    migration, _ = planned(tmp_path, text)
    assert [(name, row["wave"], row["owner"]) for name, row in migration.status().items()] == [
        ("'odd'", 1, "x"),
        ("billing-eu", 2, "billing team"),
        ("billing-core", 3, None),
        ("audit", None, None),
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "names no group"),
        ("group,wave\n", "names no group"),
        ("group,wave\na\n", "line 2: has fewer cells"),
        ("group,wave\na,1,b\n", "line 2: has more cells"),
        ("group,wave\na,0\n", "line 2: the wave of a is not a whole number from 1"),
        ("group,wave\na,two\n", "line 2: the wave of a"),
        ("group,wave\n,1\n", "line 2: has no group"),
        ("group,wave\na,1\na,2\n", "line 3: group a occurs twice"),
        ("group,wave,team\na,1,x\n", "line 2: unknown column 'team'"),
        ('[{"group": "a", "wave": "1.5"}]', "row 1: the wave of a"),
        ('[{"group": "a", "wave": true}]', "row 1: the wave of a"),
        ('[{"group": "a", "wave": 1, "owner": 7}]', "row 1: the owner of a"),
        ('{"group": "a"}', "not a list"),
        ("[1]", "row 1 is not an object"),
        ("[", "is not JSON"),
        ("group,wave\npayment-*,2\n", "group 'payment-*': no group in the plan (waves file"),
    ],
)
def test_an_invalid_file_names_the_row(tmp_path: Path, text: str, why: str) -> None:
    migration, shown = planned(tmp_path, text, code=1)
    assert why in shown
    assert not migration.path.exists()


def test_a_step_is_limited_to_waves_and_names(tmp_path: Path) -> None:
    migration, _ = planned(tmp_path, "group,wave,owner\nbilling-*,2,billing team\nbilling-core,1,core\n")
    for options, why in (
        (("--group", "aud*", "--wave", "1"), "no group of this name is in this wave"),
        (("--wave", "3"), "no such wave (its waves: 1, 2)"),
    ):
        assert why in migration.run("apply", *options, "--yes", code=None)
    shown = migration.run("apply", "--group", "billing-*", "--wave", "1", "--yes")
    scope, count, *_ = shown.splitlines()
    assert scope.endswith("memory:source -> memory:target: in wave 1: 1 of the plan's 4 groups, 1 partition")
    assert count.split(maxsplit=2) == ["1", "copy", "will be written"]
    assert set(migration.target_offsets()) == {"billing-core"}
    migration.run("apply", "--wave", "1", "--wave", "2", "--yes")
    assert set(migration.target_offsets()) == {"billing-core", "billing-eu"}
