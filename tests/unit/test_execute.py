"""The executor of planned edits: the order of durable records and writes, with the sinks of edits and migrations."""

from __future__ import annotations

import errno
import os
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
    Unreachable,
    UsageError,
)
from offsetmgr.core.model import ABSENT, Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import GroupEdit, GroupEditResult
from offsetmgr.groups.before_images import BeforeImageFile, header_for, load_images
from offsetmgr.groups.edit_plan import EditPlan, GroupEditPlan, PlannedChange
from offsetmgr.groups.execute import execute, may_have_written
from offsetmgr.testing.memory import MemoryStore

T0 = TopicPartition("t", 0)


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
        self.calls.append(f"intend {' '.join(plan.group for plan in batch)}")

    def record(self, planned: GroupEditPlan, result: GroupEditResult | None) -> str:
        self.calls.append(f"record {planned.group}")
        return f"{planned.group} {'not written' if result is None else len(result.failures)}"

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

    assert list(execute(LoggingStore(log), batches, log)) == ["a 0", "b 0", "c 0"]

    assert log.calls == [
        *("intend a b", "edit a", "edit b", "intend c", "edit c"),
        *("record a", "record b", "record c", "close"),
    ]


def test_a_failed_change_is_an_outcome() -> None:
    log = Log()
    store = LoggingStore(log)
    store.data["a"] = {T0: Committed(7)}
    assert list(execute(store, [[move("a")], [move("b")]], log)) == ["a 1", "b 0"]


def test_groups_without_a_write_are_recorded_and_do_not_reach_the_store() -> None:
    log = Log()
    found = list(execute(LoggingStore(log), [[rejected("a"), move("b")], [rejected("c")]], log))
    assert sorted(found) == ["a not written", "b 0", "c not written"]
    assert [call for call in log.calls if call.startswith("edit")] == ["edit b"]


@pytest.mark.parametrize("batches", [[], [[rejected("a")]]])
def test_without_any_write_the_store_is_not_called(batches: list[list[GroupEditPlan]]) -> None:
    log = Log()
    store = LoggingStore(log, Unreachable("target", "down"))
    assert list(execute(store, batches, log)) == ["a not written"] * len(batches)
    assert log.calls[-1] == "close"


@pytest.mark.parametrize(("fails_at", "edits"), [(1, []), (2, ["edit a"])])
def test_an_edit_is_not_written_before_its_batch_is_durable(fails_at: int, edits: list[str]) -> None:
    log = Log(fails_at=fails_at)
    store = LoggingStore(log)
    with pytest.raises(OffsetMgrError, match="full"):
        list(execute(store, [[move("a")], [move("b")]], log))
    assert [call for call in log.calls if call.startswith("edit")] == edits
    assert log.calls[-1] == "close"
    assert "b" not in store.data


def test_the_sink_is_closed_when_the_store_fails_as_a_whole() -> None:
    log = Log()
    with pytest.raises(Unreachable):
        list(execute(LoggingStore(log, Unreachable("target", "down")), [[move("a")]], log))
    assert log.calls == ["intend a", "edit a", "close"]


def test_a_file_of_before_images_is_complete_before_the_first_edit(tmp_path: Path) -> None:
    log, durable = Log(), []
    store = LoggingStore(log)
    path = tmp_path / "new" / "images.avro"

    def kept(path: Path) -> None:
        durable.extend(one.group for one in load_images(path))
        log.calls.append("durable")

    with EditPlan.of([move("a"), rejected("b"), move("c")]) as plan:
        results = list(execute(store, [plan], BeforeImageFile(path, header_for(store), kept)))

    assert [(result.group, result.failures) for result in results] == [("a", {}), ("c", {})]
    assert durable == ["a", "c"]
    assert log.calls == ["durable", "edit a", "edit c"]


def test_a_full_disk_during_an_edit_is_an_error_of_its_group_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


# --- failures after which the store may have written -------------------------------------------------------


@pytest.mark.parametrize("error", [TimedOut, Unreachable, SessionExpired, CoordinatorNotAvailable, OffsetMgrError])
def test_after_these_errors_the_store_may_have_written(error: type[OffsetMgrError]) -> None:
    assert may_have_written(error.__name__)


@pytest.mark.parametrize(
    "error", [Conflict, RunEnded, GroupActive, RewindRefused, UsageError, NotAuthorized, TopicNotAuthorized]
)
def test_after_a_rejection_nothing_was_written(error: type[OffsetMgrError]) -> None:
    assert not may_have_written(error.__name__)
