"""Edit plans and their executor: planned changes and counts, and the order of durable records and writes."""

import errno
import io
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from offsetmgr.core.errors import (
    Conflict,
    CoordinatorNotAvailable,
    GroupActive,
    NotAuthorized,
    OffsetMgrError,
    RewindRefused,
    RunEnded,
    SessionExpired,
    TimedOut,
    TopicNotAuthorized,
    UnknownTopicOrPartition,
    Unreachable,
    UsageError,
)
from offsetmgr.core.model import ABSENT, Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Capabilities, Change, GroupEdit, GroupEditResult
from offsetmgr.groups import edit_plan as edit_plans
from offsetmgr.groups.before_images import BeforeImageFile, header_for, load_images
from offsetmgr.groups.edit_plan import Counts, EditPlan, GroupEditPlan, PlannedChange, plan_change
from offsetmgr.groups.execute import execute, may_have_written
from offsetmgr.testing.memory import MemoryStore

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
            assert [g.name for g in found] == [g.name for g in given]
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
    change = PlannedChange(T0, Committed(5), OffsetAndMetadata(2))  # an edit allows rewinds
    assert GroupEditPlan("g", (change,)).edit() == GroupEdit(
        "g", {T0: Change(OffsetAndMetadata(2), Committed(5), True)}, whole=True
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
        assert EditPlan.of([group]).counts == expected, group.name
    assert EditPlan.of(counted).counts == Counts(1, 1, 3, 7)


def test_a_plan_moves_its_changes_to_disk_each_time_that_too_many_are_in_memory(monkeypatch) -> None:
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
def test_a_planned_change_notes_a_rewind_and_writes_only_another_value(before, after, note, planned_note, writes):
    capabilities = Capabilities(metadata=True, leader_epoch=True, commit_timestamp=True, conditional="version")
    assert plan_change(T0, before, after, capabilities, note=note) == PlannedChange(
        T0, before, after, planned_note, None, writes
    )


def move(group: str, offset: int = 5) -> GroupEditPlan:
    return GroupEditPlan(group, (PlannedChange(T0, ABSENT, OffsetAndMetadata(offset)),))


def rejected(group: str) -> GroupEditPlan:
    return GroupEditPlan(group, (PlannedChange(T0, ABSENT, None, problem=UsageError("no"), writes=False),))


@dataclass
class Log:
    """A sink that records its calls, and fails at one batch."""

    calls: list[str] = field(default_factory=list)
    fails_at: int | None = None
    batches: int = 0

    def intend(self, batch: Iterable[GroupEditPlan]) -> None:
        self.batches += 1
        if self.batches == self.fails_at:
            raise OffsetMgrError("sink", "full")
        self.calls.append(f"intend {' '.join(plan.name for plan in batch)}")

    def record(self, planned: GroupEditPlan, result: GroupEditResult | None) -> str:
        self.calls.append(f"record {planned.name}")
        return f"{planned.name} {'not written' if result is None else len(result.failures)}"

    def close(self) -> None:
        self.calls.append("close")


class LoggingStore(MemoryStore):
    """A store that consumes every edit before it writes the first, as a store with many groups in flight does."""

    def __init__(self, log: Log, error: OffsetMgrError | None = None) -> None:
        super().__init__("target")
        self.log, self.error = log, error

    def edit(self, edits: Iterable[GroupEdit]) -> Iterator[GroupEditResult]:
        taken = []
        for edit in edits:
            self.log.calls.append(f"edit {edit.group}")
            taken.append(edit)
        if self.error is not None:
            raise self.error
        yield from super().edit(taken)


def test_a_batch_is_durable_before_the_store_gets_an_edit_of_it_and_outcomes_follow() -> None:
    log = Log()
    batches = [[move("a"), move("b")], [move("c")]]
    assert list(execute(LoggingStore(log).edit, batches, log)) == ["a 0", "b 0", "c 0"]
    assert log.calls == [
        *("intend a b", "edit a", "edit b", "intend c", "edit c"),
        *("record a", "record b", "record c", "close"),
    ]


def test_groups_without_a_write_are_recorded_and_do_not_reach_the_store() -> None:
    log = Log()
    found = list(execute(LoggingStore(log).edit, [[rejected("a"), move("b")], [rejected("c")]], log))
    assert sorted(found) == ["a not written", "b 0", "c not written"]
    assert [call for call in log.calls if call.startswith("edit")] == ["edit b"]


@pytest.mark.parametrize("batches", [[], [[rejected("a")]]])
def test_without_any_write_the_store_is_not_called(batches: list[list[GroupEditPlan]]) -> None:
    log = Log()
    store = LoggingStore(log, Unreachable("target", "down"))
    assert list(execute(store.edit, batches, log)) == ["a not written"] * len(batches)
    assert log.calls[-1] == "close"


@pytest.mark.parametrize(("fails_at", "edits"), [(1, []), (2, ["edit a"])])
def test_an_edit_is_not_written_before_its_batch_is_durable(fails_at: int, edits: list[str]) -> None:
    log = Log(fails_at=fails_at)
    store = LoggingStore(log)
    with pytest.raises(OffsetMgrError, match="full"):
        list(execute(store.edit, [[move("a")], [move("b")]], log))
    assert [call for call in log.calls if call.startswith("edit")] == edits
    assert log.calls[-1] == "close"
    assert "b" not in store.data


def test_the_sink_is_closed_when_the_store_fails_as_a_whole() -> None:
    log = Log()
    with pytest.raises(Unreachable):
        list(execute(LoggingStore(log, Unreachable("target", "down")).edit, [[move("a")]], log))
    assert log.calls == ["intend a", "edit a", "close"]


def test_a_file_of_before_images_is_complete_before_the_first_edit(tmp_path: Path) -> None:
    log, durable = Log(), []
    store = LoggingStore(log)
    path = tmp_path / "new" / "images.avro"

    def kept(path: Path) -> None:
        durable.extend(one.group for one in load_images(path))
        log.calls.append("durable")

    with EditPlan.of([move("a"), rejected("b"), move("c")]) as plan:
        results = list(execute(store.edit, [plan], BeforeImageFile(path, header_for(store), kept)))
    assert [(result.group, result.failures) for result in results] == [("a", {}), ("c", {})]
    assert durable == ["a", "c"]
    assert log.calls == ["durable", "edit a", "edit c"]


def test_a_full_disk_during_an_edit_is_an_error_of_its_group_only(tmp_path, monkeypatch) -> None:
    image = BeforeImageFile(tmp_path / "images.avro", header_for(LoggingStore(Log())))
    image.intend(())

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("offsetmgr.groups.before_images.write_atomically", full)
    with pytest.raises(OffsetMgrError, match="No space left on device; nothing of this group was changed") as raised:
        image.rewrite([move("a")])
    assert raised.value.hint == "free disk space, then run the same command again"
    with pytest.raises(OffsetMgrError, match="No space left on device; nothing was changed"):
        BeforeImageFile(tmp_path / "other.avro", image.header).intend([move("a")])


def test_only_after_some_errors_the_store_may_have_written() -> None:
    for error in (TimedOut, Unreachable, SessionExpired, CoordinatorNotAvailable, OffsetMgrError):
        assert may_have_written(error.__name__)
    for error in (Conflict, RunEnded, GroupActive, RewindRefused, UsageError, NotAuthorized, TopicNotAuthorized):
        assert not may_have_written(error.__name__)
