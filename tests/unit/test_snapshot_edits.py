"""Sets, imports, copies and comparisons of groups in a snapshot file."""

from __future__ import annotations

from pathlib import Path

import pytest
from executed_plans import execute_plans

from offsetmgr.core.errors import (
    Conflict,
    GroupNotFound,
    OffsetMgrError,
    RewindRefused,
    UnknownTopicOrPartition,
    Unreachable,
    UsageError,
)
from offsetmgr.core.model import ABSENT, Committed, LogRange, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import GroupOffsets
from offsetmgr.groups.copy import plan_copy, verify_copy
from offsetmgr.groups.diff import diff
from offsetmgr.groups.edit_plan import PlannedChange
from offsetmgr.groups.edits import groups_left_without_offsets, plan_import
from offsetmgr.groups.log_checks import LogChecks
from offsetmgr.groups.reset import plan_set
from offsetmgr.stores.snapshot import SnapshotStore
from offsetmgr.testing.memory import MemoryStore

pytest_plugins = ["snapshot_store_fixtures"]

T0, T1, T2 = (TopicPartition("t", n) for n in range(3))


def test_an_import_rejects_a_rewind_unless_allowed(saved: SnapshotStore) -> None:
    imported = [GroupOffsets("a", {T0: Committed(9), T1: Committed(20, "m", 3), T2: Committed(1)})]
    (refused,) = plan_import(saved, imported)
    assert [(type(c.problem), c.writes) for c in refused.changes] == [
        (RewindRefused, False),
        (type(None), False),
        (type(None), True),
    ]
    (allowed,) = plan_import(saved, imported, allow_rewind=True)
    assert [(c.writes, c.note) for c in allowed.changes] == [(True, "rewinds"), (False, "unchanged"), (True, "")]


def test_an_import_clamps_offsets_to_their_logs_except_those_that_the_store_holds(saved: SnapshotStore) -> None:
    """The logs of t-0 and t-1 end at 8 and 15; the store is at 10 and 20."""
    logs: dict[TopicPartition, LogRange | OffsetMgrError] = {
        T0: LogRange(0, 8), T1: LogRange(0, 15), T2: UnknownTopicOrPartition("t-2", "does not exist")
    }  # fmt: skip

    def planned(*offsets: Committed, allow_rewind: bool = False) -> list[tuple[int | None, str, type, bool]]:
        source = [GroupOffsets("a", dict(zip((T0, T1, T2), offsets, strict=False)))]
        checks = LogChecks(lambda partitions: {tp: logs[tp] for tp in partitions})
        (plan,) = plan_import(saved, source, allow_rewind=allow_rewind, checks=checks)
        return [(c.after and c.after.offset, c.note, type(c.problem), c.writes) for c in plan.changes]

    clamped = "clamped from 11 to the log's end"
    none = type(None)
    assert planned(Committed(10), Committed(20, "m")) == [
        (10, "unchanged", none, False),
        (20, "unchanged", none, False),
    ]
    assert planned(Committed(11)) == [(8, clamped, RewindRefused, False)]
    assert planned(Committed(11), allow_rewind=True) == [(8, f"{clamped}; rewinds", none, True)]
    dropped = "clamped from 10 to the log's end; drops a client's own text"
    assert planned(Committed(10, "other")) == [(8, dropped, RewindRefused, False)]
    assert planned(Committed(10), Committed(20, "m"), Committed(1))[2] == (1, "", UnknownTopicOrPartition, False)


def test_copying_a_group_leaves_it_and_the_copy_can_be_verified(saved: SnapshotStore, tmp_path: Path) -> None:
    assert execute_plans(saved, plan_copy(saved, "a", saved, "copy"), tmp_path / "i.avro") == 0
    assert verify_copy(saved, "a", saved, "copy") == 2
    saved.commit("a", {T0: OffsetAndMetadata(11)})
    with pytest.raises(Conflict, match="t-0 is 10 in the copy and 11 in the original"):
        verify_copy(saved, "a", saved, "copy")
    with pytest.raises(GroupNotFound):
        list(plan_copy(saved, "zz", saved, "copy"))


def test_setting_an_unknown_group_is_an_error_unless_it_may_be_created(saved: SnapshotStore) -> None:
    with pytest.raises(GroupNotFound):
        plan_set(saved, "zz", lambda _: {T0: OffsetAndMetadata(1)})
    created = plan_set(saved, "zz", lambda _: {T0: OffsetAndMetadata(1)}, create=True)
    assert created.changes == (PlannedChange(T0, ABSENT, OffsetAndMetadata(1)),)


def test_existing_groups_without_offsets_are_empty() -> None:
    store = MemoryStore(data={"empty": {}, "full": {T0: Committed(5)}, "dark": {}}, broken={"dark": Unreachable("it")})
    assert groups_left_without_offsets(store, ["empty", "full", "dark", "gone"]) == ["empty"]


def test_diff_compares_the_union_of_both_sides(saved: SnapshotStore, tmp_path: Path) -> None:
    with SnapshotStore(tmp_path / "other.avro") as other:
        other.commit("a", {T0: OffsetAndMetadata(10), T1: OffsetAndMetadata(20, "other", 3), T2: OffsetAndMetadata(1)})
        other.commit("c", {T0: OffsetAndMetadata(1)})
        found = [(d.group, d.partition, d.kind) for d in diff(saved, other, ["a", "b", "c"])]
    assert found == [
        ("a", T1, "metadata"),
        ("a", T2, "only-right"),
        ("b", T0, "only-left"),
        ("c", T0, "only-right"),
    ]
    assert list(diff(saved, saved, ["a", "b"])) == []


def test_diff_does_not_call_a_group_unreadable_that_a_store_cannot_contain() -> None:
    impossible = UsageError("group ''", "an empty name cannot exist in ZooKeeper")
    kafka = MemoryStore("kafka", data={"": {TopicPartition("t", 0): Committed(5)}})
    (found,) = diff(kafka, MemoryStore("zookeeper", broken={"": impossible}), [""])
    assert (found.kind, found.right) == ("only-left", ABSENT)
