"""Before-images of edits: the undo of an edit, and the files that hold the images."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable
from pathlib import Path

import pytest
from executed_plans import execute_plans

from offsetmgr.core.errors import Conflict, MalformedData, UnknownVersion, UsageError
from offsetmgr.core.group_tree import SavedNode
from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.groups.before_images import BeforeImageFile, header_for, holds_images, load_images, new_path
from offsetmgr.groups.edits import plan_delete, plan_undo
from offsetmgr.groups.reset import plan_set
from offsetmgr.groups.selection import ALL_TOPICS
from offsetmgr.snapshots import group_images
from offsetmgr.snapshots.base import SnapshotHeader
from offsetmgr.snapshots.group_images import IMAGES_SCHEMA
from offsetmgr.stores.snapshot import SnapshotStore

pytest_plugins = ["snapshot_store_fixtures"]

T0, T1, T2 = (TopicPartition("t", n) for n in range(3))


def test_an_edit_that_creates_and_deletes_offsets_can_be_undone(saved: SnapshotStore, tmp_path: Path) -> None:
    before = {g: dict(saved.fetch(g)) for g in ("a", "b", "new")}
    image = tmp_path / "images" / "i.avro"

    def new_offsets(_: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        return {T0: OffsetAndMetadata(3, "x"), T2: OffsetAndMetadata(0)}

    edits = [
        plan_set(saved, "a", new_offsets),
        plan_set(saved, "new", new_offsets, create=True),
        *plan_delete(saved, ["b"], ALL_TOPICS),
    ]
    assert execute_plans(saved, edits, image) == 0
    assert {tp: c.offset for tp, c in saved.fetch("a").items() if isinstance(c, Committed)} == {T0: 3, T1: 20, T2: 0}
    assert saved.fetch("b") == {}
    assert holds_images(image)

    assert execute_plans(saved, plan_undo(saved, load_images(image)), tmp_path / "undo.avro") == 0

    assert {g: dict(saved.fetch(g)) for g in ("a", "b", "new")} == before
    # The undo can be undone.
    assert execute_plans(saved, plan_undo(saved, load_images(tmp_path / "undo.avro")), tmp_path / "redo.avro") == 0
    assert saved.fetch("new", [T0])[T0] == Committed(3, "x")


def test_before_images_are_a_snapshot_that_any_reader_can_read(saved: SnapshotStore, tmp_path: Path) -> None:
    image = tmp_path / "i.avro"
    execute_plans(saved, plan_delete(saved, ["a"], ALL_TOPICS), image)
    with SnapshotStore(image) as snapshot:
        assert snapshot.fetch("a") == {T0: Committed(10), T1: Committed(20, "m", 3, 99)}


def test_an_offset_that_changed_since_is_not_undone_unless_forced(saved: SnapshotStore, tmp_path: Path) -> None:
    image = tmp_path / "i.avro"
    execute_plans(saved, [plan_set(saved, "a", lambda _: {T0: OffsetAndMetadata(3), T1: OffsetAndMetadata(4)})], image)
    saved.commit("a", {T0: OffsetAndMetadata(8)})

    (plan,) = plan_undo(saved, load_images(image))

    assert [type(c.problem) for c in plan.changes] == [Conflict, type(None)]
    assert "has changed since: 8 now, the edit wrote 3" in str(plan.changes[0].problem)
    (forced,) = plan_undo(saved, load_images(image), force=True)
    assert [(c.problem, c.after and c.after.offset) for c in forced.changes] == [(None, 10), (None, 20)]


def test_before_images_never_replace_a_file(saved: SnapshotStore, tmp_path: Path) -> None:
    image = tmp_path / "i.avro"
    image.write_text("precious")
    with pytest.raises(UsageError, match="exists already"):
        execute_plans(saved, plan_delete(saved, ["a"], ALL_TOPICS), image)
    assert image.read_text() == "precious"
    assert saved.fetch("a", [T0])[T0] == Committed(10)


def test_damaged_before_images_are_an_error_before_anything_is_planned(saved: SnapshotStore, tmp_path: Path) -> None:
    image = tmp_path / "i.avro"
    execute_plans(saved, plan_delete(saved, ["a"], ALL_TOPICS), image)
    image.write_bytes(image.read_bytes()[:-20])
    with pytest.raises(MalformedData):
        list(plan_undo(saved, load_images(image)))


def test_before_images_of_an_unknown_version_are_rejected_with_it(
    saved: SnapshotStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_images, "VERSION", 9)
    image = tmp_path / "i.avro"
    execute_plans(saved, plan_delete(saved, ["a"], ALL_TOPICS), image)
    monkeypatch.undo()

    assert holds_images(image)
    with pytest.raises(UnknownVersion, match=r"version 9 is not known \(known: 2, 3\)"):
        list(load_images(image))


def test_a_znode_whose_data_is_lost_is_kept_as_the_parent_of_others(tmp_path: Path) -> None:
    saved = [
        SavedNode(path, data) for path, data in (("", None), ("/a", None), ("/b", b"1"), ("/c", None), ("/c/d", b""))
    ]
    image = tmp_path / "i.avro"
    with image.open("wb") as stream:
        group_images.write_images(stream, SnapshotHeader.new(), [("g", [], saved, {})], with_nodes=True)
    (found,) = load_images(image)
    assert [(one.path, one.data) for one in found.nodes] == [("", b""), ("/b", b"1"), ("/c", b""), ("/c/d", b"")]


def test_other_files_hold_no_before_images(saved: SnapshotStore, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,t,0,1\n")
    assert [holds_images(tmp_path / name) for name in ("x.csv", "store.avro", "none")] == [False, False, False]


def test_the_schema_of_before_images_is_published() -> None:
    published = Path(__file__).parents[2] / "schemas" / "before-images.avsc"
    assert json.loads(published.read_text()) == IMAGES_SCHEMA


def test_names_of_before_images_sort_by_time(tmp_path: Path) -> None:
    early, late = new_path(tmp_path, "offsets reset", 1_000), new_path(tmp_path, "offsets reset", 2_000_000_000_123)
    assert early.name.startswith("19700101T000001.000Z-offsets-reset-")
    assert late.name.startswith("20330518T033320.123Z-")


def test_new_before_images_remove_the_temporary_files_of_killed_edits(saved: SnapshotStore, tmp_path: Path) -> None:
    """A living writer holds a lock on its temporary file. Other files stay."""
    directory = tmp_path / "before-images"
    directory.mkdir()
    killed = directory / ".20261121T111115.941Z-offsets-reset-25778.avro.0123abcd.tmp"
    living = directory / ".20261121T111115.942Z-migrate-mirror-25779.avro.0123abcd.tmp"
    fresh = directory / ".20261121T111115.943Z-offsets-set-25780.avro.0123abcd.tmp"
    other = directory / ".backup.avro.0123abcd.tmp"
    for path in (killed, living, fresh, other):
        path.write_bytes(b"half")
    for path in (killed, living, other):
        os.utime(path, (0, 0))
    with living.open("rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        BeforeImageFile(new_path(directory, "offsets set", 1_000), header_for(saved)).intend([])
    assert {path for path in (killed, living, fresh, other) if path.exists()} == {living, fresh, other}
