"""Edit plans: planned changes, counts, the edits that a plan consists of, and large plans on disk."""

from __future__ import annotations

import io
import tempfile

import pytest

from offsetmgr.core.errors import RewindRefused, UnknownTopicOrPartition, UsageError
from offsetmgr.core.model import ABSENT, Committed, Offset, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Capabilities, Change, GroupEdit
from offsetmgr.groups import edit_plan as edit_plans
from offsetmgr.groups.edit_plan import Counts, EditPlan, GroupEditPlan, PlannedChange, plan_change

T0, T1, T2 = (TopicPartition("t", n) for n in range(3))


def test_a_large_plan_moves_to_disk_and_is_read_back_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edit_plans, "MAX_CHANGES_IN_MEMORY", 3)
    refused = RewindRefused("what", "why", "hint")
    given = [
        GroupEditPlan(
            f"g{n}", (PlannedChange(T0, Committed(n), OffsetAndMetadata(n + 1)), PlannedChange(T1, ABSENT, None))
        )
        for n in range(10)
    ]
    given.append(GroupEditPlan("refused", (PlannedChange(T0, ABSENT, None, problem=refused, writes=False),)))
    with EditPlan.of(given) as plan:
        for _ in range(2):
            found = list(plan)
            assert [g.group for g in found] == [g.group for g in given]
            assert found[:10] == given[:10]
            problem = found[10].changes[0].problem
            assert problem is not None
            assert (str(problem), problem.hint) == ("what: why", "hint")
        assert (plan.counts.groups, plan.counts.writes, plan.counts.problems) == (10, 20, 1)


def test_an_edit_contains_only_writes_each_conditional_on_its_before_image() -> None:
    changes = (
        PlannedChange(T0, Committed(1, version=7), OffsetAndMetadata(2)),
        PlannedChange(T1, Committed(5), OffsetAndMetadata(5), writes=False),
        PlannedChange(T2, ABSENT, OffsetAndMetadata(0), problem=UsageError("no")),
    )
    edit = GroupEditPlan("g", changes).edit()
    assert edit is not None
    assert {tp: (c.expected, c.after) for tp, c in edit.changes.items()} == {
        T0: (Committed(1, version=7), OffsetAndMetadata(2))
    }
    assert GroupEditPlan("g", changes, problem=UsageError("no")).edit() is None


def test_an_edit_is_based_on_the_scan_of_its_plan_and_allows_rewinds() -> None:
    change = PlannedChange(T0, Committed(5), OffsetAndMetadata(2))
    assert GroupEditPlan("g", (change,), as_of=7).edit() == GroupEdit(
        "g", {T0: Change(OffsetAndMetadata(2), Committed(5), True)}, as_of=7, whole=True
    )


def test_a_plan_counts_what_it_writes_what_stays_and_what_has_a_problem() -> None:
    problem = UsageError("no")
    written = PlannedChange(T0, ABSENT, OffsetAndMetadata(1))
    unchanged = PlannedChange(T1, Committed(1), OffsetAndMetadata(1), writes=False)
    refused = PlannedChange(T2, Committed(1), None, problem=problem, writes=False)
    missing = refused._replace(problem=UnknownTopicOrPartition("t", "does not exist"))
    counted = {
        GroupEditPlan("mixed", (written, unchanged, refused)): Counts(0, 0, 0, 3),
        GroupEditPlan("without-its-topic", (written, unchanged, missing)): Counts(1, 1, 1, 1),
        GroupEditPlan("unchanged", (unchanged, unchanged)): Counts(0, 0, 2, 0),
        GroupEditPlan("refused", (written, unchanged), problem): Counts(0, 0, 0, 2),
        GroupEditPlan("refused-without-changes", (), problem): Counts(0, 0, 0, 1),
        GroupEditPlan("empty", ()): Counts(0, 0, 0, 0),
    }
    for group, expected in counted.items():
        assert EditPlan.of([group]).counts == expected, group.group
    assert EditPlan.of(counted).counts == Counts(1, 1, 3, 7)


def test_a_plan_moves_its_changes_to_disk_each_time_that_too_many_are_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files: list[io.BytesIO] = []

    def temporary_file(**_: object) -> io.BytesIO:
        files.append(io.BytesIO())
        return files[-1]

    monkeypatch.setattr(edit_plans, "MAX_CHANGES_IN_MEMORY", 3)
    monkeypatch.setattr(tempfile, "TemporaryFile", temporary_file)
    sizes = []
    with EditPlan() as plan:
        for n in range(8):
            plan.add(GroupEditPlan(f"g{n}", (PlannedChange(T0, ABSENT, OffsetAndMetadata(n)),)))
            sizes.append(len(files[0].getvalue()) if files else 0)
        assert len(list(plan)) == 8
    assert sizes[:3] == [0] * 3 and 0 < sizes[3] == sizes[6] < sizes[7]
    assert len(files) == 1


@pytest.mark.parametrize(
    ("before", "after", "note", "planned_note", "writes"),
    [
        (ABSENT, OffsetAndMetadata(5), "", "", True),
        (ABSENT, None, "", "", False),
        (Committed(5, "m"), OffsetAndMetadata(6, "m"), "clamped", "clamped", True),
        (Committed(5, "m"), OffsetAndMetadata(5, "m"), "", "unchanged", False),
        (Committed(5, "m"), OffsetAndMetadata(5, "m"), "clamped", "clamped", False),
        (Committed(5, "m"), OffsetAndMetadata(5, "n"), "", "", True),
        (Committed(5, "m"), OffsetAndMetadata(4, "m"), "", "rewinds", True),
        (Committed(5, "m"), OffsetAndMetadata(4, "m"), "clamped", "clamped; rewinds", True),
        (Committed(5, "m"), None, "", "", True),
    ],
)
def test_a_planned_change_notes_a_rewind_and_writes_only_another_value(
    before: Offset, after: OffsetAndMetadata | None, note: str, planned_note: str, writes: bool
) -> None:
    capabilities = Capabilities(metadata=True, leader_epoch=True, commit_timestamp=True, conditional="version")
    assert plan_change(T0, before, after, capabilities, note=note) == PlannedChange(
        T0, before, after, planned_note, None, writes
    )
