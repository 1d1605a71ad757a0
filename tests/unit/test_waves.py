"""The waves file: CSV and JSON, precedence of names over globs, and errors that name the line."""

from __future__ import annotations

from pathlib import Path

import pytest
from one_migration import Migration, commit

from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import GroupNotFound, MalformedData, UsageError
from offsetmgr.migration.fleet import group_statuses, select_groups
from offsetmgr.migration.plan_file import PlanFile, write_plan
from offsetmgr.migration.planner import Planner
from offsetmgr.migration.waves import Wave, read_waves


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "waves"
    path.write_text(text)
    return path


CSV = "group,wave,owner\nbilling-*,2,billing team\nbilling-core,3,\n'odd',1,x\n"
JSON = (
    '[{"group": "billing-*", "wave": 2, "owner": "billing team"}, {"group": "billing-core", "wave": 3},'
    ' {"group": "\'odd\'", "wave": 1, "owner": "x"}]'
)


@pytest.mark.parametrize("text", [CSV, "\ufeff" + CSV.replace("\n", "\r\n"), JSON])
def test_both_forms_are_read(tmp_path: Path, text: str) -> None:
    waves = read_waves(written(tmp_path, text))
    assert waves.rows == (Wave("billing-*", 2, "billing team"), Wave("billing-core", 3), Wave("'odd'", 1, "x"))
    found = [waves.of(name) for name in ("billing-core", "billing-eu", "other")]
    assert [row and row.number for row in found] == [3, 2, None]


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
    ],
)
def test_an_invalid_file_names_the_row(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(MalformedData, match=why):
        read_waves(written(tmp_path, text))


def test_a_plan_keeps_waves_and_owners(tmp_path: Path) -> None:
    migration = Migration(tmp_path)
    for name in ("billing-eu", "billing-core", "audit"):
        commit(migration.source, name, 1)
    waves = read_waves(written(tmp_path, "group,wave,owner\nbilling-*,2,billing team\nbilling-core,1,core\n"))
    planner = Planner(migration.source, migration.target, migration.options, SystemClock())
    waves.require_all(planner.selected_groups())
    write_plan(migration.path, planner.header(), waves.assigned(planner.plan(planner.selected_groups())))
    plan = PlanFile(migration.path)
    found = group_statuses(plan, migration.state())
    assert [(one.group, one.wave, one.owner) for one in found] == [
        ("billing-core", 1, "core"),
        ("billing-eu", 2, "billing team"),
        ("audit", None, ""),
    ]
    assert select_groups(plan, waves=[1, 2]) == {"billing-core", "billing-eu"}
    assert select_groups(plan, ["billing-*"], [1]) == {"billing-core"}
    with pytest.raises(GroupNotFound, match="no group of this name is in this wave"):
        select_groups(plan, ["aud*"], [1])
    with pytest.raises(UsageError, match=r"no such wave \(its waves: 1, 2\)"):
        select_groups(plan, waves=[3])


def test_a_row_that_matches_no_group_is_an_error(tmp_path: Path) -> None:
    waves = read_waves(written(tmp_path, "group,wave\nbilling-*,2\n"))
    with pytest.raises(GroupNotFound, match=r"billing-\*: matches no group of the plan"):
        waves.require_all(["audit"])
