"""Properties of snapshot files alone: atomic replacement, identity, one writer, memory, formats without a group."""

import errno
import fcntl
import os
import re
import stat
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from offsetmgr.cli.app import run
from offsetmgr.core import errors
from offsetmgr.core.log_origin import Relation
from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, EditStatus, GroupEdit, GroupOffsets, OtherGroupKind
from offsetmgr.snapshots.base import SnapshotHeader
from offsetmgr.stores.cross_cluster_check import CrossClusterCheck
from offsetmgr.stores.snapshot import SnapshotStore, write_snapshot
from offsetmgr.stores.uri import open_store

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
HEADER = SnapshotHeader("6a1f3a52-4c1d-4a3c-9f6e-5a8f0a1b2c3d", 1_700_000_000_000, "kafka://h:9092", "kafka", "abc")


def one_group(offset: int = 5) -> list[GroupOffsets]:
    return [GroupOffsets("g", {T0: Committed(offset, "m", 3, 9)})]


def leftovers(directory: Path) -> list[str]:
    return sorted(p.name for p in directory.iterdir())


# --- writing a snapshot -----------------------------------------------------------------------------


def test_a_snapshot_is_written_from_a_stores_scan_and_its_content_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    report = write_snapshot(path, HEADER, [GroupOffsets("g", {T0: Committed(5, "m")}), GroupOffsets("h", {})])
    assert path.read_bytes() == b"g,t,0,5\n\n"
    assert (report.groups, report.offsets, report.errors, report.size) == (2, 1, 0, 9)
    assert report.lost == (
        "metadata of 1 offset (a client's own text)",
        "snapshot id, time and source (kafka://h:9092)",
    )
    assert leftovers(tmp_path) == ["s.csv"]


def test_an_existing_file_is_rejected_before_the_source_is_read_unless_it_may_be_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_bytes(b"precious")
    reads = []

    def source() -> Iterator[GroupOffsets]:
        reads.append(True)
        yield from one_group()

    with pytest.raises(errors.FileFailure, match="exists already"):
        write_snapshot(path, HEADER, source())
    assert (path.read_bytes(), reads) == (b"precious", [])
    write_snapshot(path, HEADER, source(), overwrite=True)
    assert path.read_bytes() == b"g,t,0,5\n\n"


def test_a_failing_source_creates_no_file_and_leaves_an_old_one_unchanged(tmp_path: Path) -> None:
    def failing(*items: Any) -> Iterator[Any]:
        yield from items
        raise errors.TimedOut("the source", "no answer")

    def share_group() -> Iterator[GroupOffsets]:
        yield from one_group()
        raise OtherGroupKind("group 's'", "it is a share group")

    with pytest.raises(OtherGroupKind, match=r"^group 's': it is a share group$"):
        write_snapshot(tmp_path / "new.avro", HEADER, share_group())
    old = tmp_path / "old.avro"
    with pytest.raises(errors.TimedOut):
        write_snapshot(tmp_path / "new.avro", HEADER, failing(*one_group()))
    write_snapshot(old, HEADER, one_group())
    with pytest.raises(errors.TimedOut):
        write_snapshot(old, HEADER, failing(*one_group(6)), overwrite=True)
    with pytest.raises(errors.TimedOut):
        list(SnapshotStore(old).edit(failing(GroupEdit("g", {T0: Change(OffsetAndMetadata(7))}))))
    assert leftovers(tmp_path) == ["old.avro"]
    assert SnapshotStore(old).fetch("g")[T0] == Committed(5, "m", 3, 9)


@pytest.mark.parametrize("hard_links", [True, False])
def test_a_file_that_appears_while_we_write_is_not_overwritten(hard_links, tmp_path, monkeypatch):
    """The lock file and the temporary file are in the same directory."""

    def refuse(*_: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    if not hard_links:
        monkeypatch.setattr(os, "link", refuse)
    path, seen = tmp_path / "s.csv", list[str]()

    def source() -> Iterator[GroupOffsets]:
        seen.extend(leftovers(tmp_path))
        path.write_bytes(b"theirs")
        yield from one_group()

    with pytest.raises(errors.FileFailure, match="exists already"):
        write_snapshot(path, HEADER, source())
    assert path.read_bytes() == b"theirs"
    assert leftovers(tmp_path) == ["s.csv"]
    assert re.fullmatch(r"\.s\.csv\.[0-9a-f]{8}\.tmp", seen[0])
    assert seen[1:] == [".s.csv.lock"]


def test_the_content_is_on_disk_before_the_rename_and_the_directory_after_it(tmp_path, monkeypatch):
    path = tmp_path / "s.csv"
    path.write_bytes(b"old")
    seen: list[tuple[str, bytes]] = []

    def fsync(descriptor: int) -> None:
        kind = "directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        seen.append((kind, path.read_bytes()))
        if kind == "directory" and len(seen) > 2:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    write_snapshot(path, HEADER, one_group(), overwrite=True)
    assert seen == [("file", b"old"), ("directory", b"g,t,0,5\n\n")]
    with pytest.raises(errors.FileFailure, match="written, but may not survive a power failure: input/output error"):
        write_snapshot(path, HEADER, one_group(6), overwrite=True)
    assert path.read_bytes() == b"g,t,0,6\n\n"


def test_a_write_removes_the_temporary_files_of_killed_writers_only(tmp_path: Path) -> None:
    names = (".s.csv.0badcafe.tmp", ".s.csv.0b5e55ed.tmp", ".s.csv.backup.tmp")
    killed, slow, other = (tmp_path / name for name in names)
    for path in (killed, slow, other):
        path.write_bytes(b"half")
        os.utime(path, (time.time() - 3600,) * 2)
    with slow.open("rb") as living:
        fcntl.flock(living, fcntl.LOCK_EX)
        write_snapshot(tmp_path / "s.csv", HEADER, one_group())
    assert leftovers(tmp_path) == [slow.name, other.name, "s.csv"]


def test_unreadable_offsets_are_recorded_only_on_request_stay_unreadable_and_are_not_overwritten(tmp_path):
    path = tmp_path / "s.avro"
    groups = [
        GroupOffsets("partly", {T0: Committed(5)}, {T1: errors.CorruptData("t-1", "not a number")}),
        GroupOffsets("wholly", {}, error=errors.TimedOut("group wholly", "no answer")),
    ]
    with pytest.raises(errors.UnsupportedOperation, match="t-1: not a number"):
        write_snapshot(path, HEADER, groups)
    assert not path.exists()
    assert write_snapshot(path, HEADER, groups, keep_errors=True).errors == 2
    store = SnapshotStore(path)
    with pytest.raises(errors.PartialFailure) as fetched:
        store.fetch("partly")
    with pytest.raises(errors.PartialFailure) as committed:
        store.commit("partly", {T0: OffsetAndMetadata(6), T1: OffsetAndMetadata(6)})
    assert fetched.value.successes == {T0: Committed(5)}
    assert committed.value.successes[T0].status is EditStatus.WRITTEN
    for caught in (fetched, committed):
        assert isinstance(caught.value.failures[T1], errors.CorruptData)
    assert dict(store.fetch("partly", [T0])) == {T0: Committed(6)}
    with pytest.raises(errors.TimedOut, match="group wholly: no answer"):
        store.fetch("wholly")
    partly, wholly = store.scan(["partly", "wholly"])
    assert (dict(partly.offsets), set(partly.errors)) == ({T0: Committed(6)}, {T1})
    assert isinstance(wholly.error, errors.TimedOut)


def test_a_full_disk_is_one_clear_error_and_the_old_file_is_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_bytes(b"g,t,0,5\n\n")
    program = """
import resource, sys
from offsetmgr.core.errors import FileFailure
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.stores.snapshot import SnapshotStore
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    SnapshotStore(sys.argv[1]).commit("g", {TopicPartition("t", p): OffsetAndMetadata(9) for p in range(5000)})
except FileFailure as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == f"file {path} not written: file too large\n"
    assert path.read_bytes() == b"g,t,0,5\n\n"
    assert leftovers(tmp_path) == ["s.csv"]


# --- missing and broken files ------------------------------------------------------------


def test_reading_a_missing_file_is_an_error_and_an_edit_creates_it(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path / "s.avro")
    for read in (store.identity, lambda: list(store.groups()), lambda: store.fetch("g"), lambda: list(store.scan("g"))):
        with pytest.raises(errors.FileFailure, match="no such file"):
            read()
    (nothing,) = store.edit([GroupEdit("g", {T0: Change(None)})])
    assert (nothing.outcomes[T0].status, leftovers(tmp_path)) == (EditStatus.UNCHANGED, [])
    store.commit("g", {T0: OffsetAndMetadata(5, "m", 3, 9)})
    assert store.fetch("g")[T0] == Committed(5, "m", 3, 9)
    assert store.header is not None
    assert store.header.source_uri == f"file:{quote(str(tmp_path))}/s.avro"
    (tmp_path / "directory.csv").mkdir()
    with pytest.raises(errors.FileFailure, match="is a directory"):
        SnapshotStore(tmp_path / "directory.csv").fetch("g")
    with pytest.raises(errors.FileFailure, match="no such file"):
        SnapshotStore(tmp_path / "nowhere" / "s.csv").commit("g", {T0: OffsetAndMetadata(1)})


def test_a_broken_file_is_never_partly_used_and_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_bytes(b"g,t,0,5\ng,t,1,oops\n")
    store = SnapshotStore(path)
    for use in (
        lambda: next(iter(store.groups())),
        lambda: store.fetch("g"),
        lambda: next(store.scan(["g"])),
        lambda: store.commit("g", {T0: OffsetAndMetadata(6)}),
    ):
        with pytest.raises(errors.MalformedData, match="line 2: offset is not a number in 'g,t,1,oops'"):
            use()
    assert path.read_bytes() == b"g,t,0,5\ng,t,1,oops\n"


def test_a_file_replaced_by_others_is_reloaded_and_a_running_scan_continues_with_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_bytes(b"g,t,0,5\nh,t,0,5\n")
    store = SnapshotStore(path)
    scan = store.scan(["g", "h"])
    next(scan)
    other = tmp_path / "other"
    other.write_bytes(b"g,t,0,7\nh,t,0,7\n")
    other.replace(path)
    assert store.fetch("g")[T0] == Committed(7)
    assert next(scan).offsets == {T0: Committed(5)}


# --- edits ------------------------------------------------------------------------------------------


def test_an_edit_keeps_the_order_of_the_groups_the_mode_of_the_file_and_a_symbolic_link_to_it(tmp_path: Path) -> None:
    path, link = tmp_path / "s.csv", tmp_path / "link.csv"
    path.write_bytes(b"b,t,0,1\na,t,0,1\nc,t,0,1\n")
    path.chmod(0o640)
    link.symlink_to("s.csv")
    edits = [
        GroupEdit("new", {T0: Change(OffsetAndMetadata(1))}),
        GroupEdit("c", {T0: Change(None)}),
        GroupEdit("a", {T1: Change(OffsetAndMetadata(2))}),
        GroupEdit("a", {T0: Change(OffsetAndMetadata(3), expected=Committed(1))}),
    ]
    list(SnapshotStore(link).edit(edits))
    assert path.read_bytes() == b"b,t,0,1\na,t,0,3\na,t,1,2\nnew,t,0,1\n\n"
    assert path.stat().st_mode & 0o777 == 0o640
    assert link.is_symlink()


def test_a_name_that_the_format_cannot_carry_is_that_partitions_failure(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path / "s.zk")
    odd = TopicPartition("a:b", 0)
    with pytest.raises(errors.PartialFailure) as caught:
        store.commit("g", {T0: OffsetAndMetadata(1), odd: OffsetAndMetadata(1)})
    assert str(caught.value.failures[odd]) == (
        "topic 'a:b': ExportZkOffsets' format cannot contain a name that holds ':'"
    )
    assert dict(store.fetch("g")) == {T0: Committed(1)}


def test_an_edit_waits_for_another_writer_and_then_fails(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_bytes(b"g,t,0,1\n")
    store = SnapshotStore(path, lock_timeout_ms=50)
    with (tmp_path / ".s.csv.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(errors.FileFailure, match="another process is writing it"):
            store.commit("g", {T0: OffsetAndMetadata(2)})
    store.commit("g", {T0: OffsetAndMetadata(2)})  # a lock file left by a dead process blocks no writer
    assert leftovers(tmp_path) == ["s.csv"]


def test_concurrent_edits_of_two_processes_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    program = """
import sys
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.stores.snapshot import SnapshotStore
for n in range(20):
    SnapshotStore(sys.argv[1]).commit(f"{sys.argv[2]}-{n}", {TopicPartition("t", 0): OffsetAndMetadata(n)})
"""
    writers = [subprocess.Popen([sys.executable, "-c", program, str(path), name]) for name in ("a", "b")]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    store = SnapshotStore(path)
    assert sorted(store.groups()) == sorted(f"{name}-{n}" for name in "ab" for n in range(20))


# --- identity and URIs ------------------------------------------------------------------------------


def test_the_identity_is_the_snapshots_own_id_which_survives_edits_or_the_content_of_text(tmp_path: Path) -> None:
    write_snapshot(tmp_path / "s.avro", HEADER, one_group())
    store = SnapshotStore(tmp_path / "s.avro")
    store.commit("g", {T0: OffsetAndMetadata(6)})
    identity = store.identity()
    assert (identity.kind, identity.id, identity.how) == ("file", HEADER.snapshot_id, "the snapshot's own id")
    assert store.header == HEADER
    (tmp_path / "s.csv").write_bytes(b"g,t,0,5\n")
    text = SnapshotStore(tmp_path / "s.csv").identity()
    assert text.id == "sha256:8e2863d9435783fa598513d459270f8a81705acab394767dfb90e66b55c8acbc"
    assert "SHA-256" in text.how


def test_a_uri_opens_and_names_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "my offsets?.txt"
    path.write_bytes(b"t,0,5\n")
    uri = f"file:{quote(str(tmp_path))}/my%20offsets%3F.txt?format=csv&group=a%26b"
    with open_store(uri) as store:
        assert dict(store.fetch("a&b")) == {T0: Committed(5)}
        assert store.uri == uri


# --- formats without a group -----------------------------------------------------------------------


def test_an_edit_keeps_a_csv_without_a_group_column_whose_group_must_be_given(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_bytes(b"t,0,5\n")
    with pytest.raises(errors.UsageError) as caught:
        SnapshotStore(path).fetch("g")
    assert caught.value.hint == "name it with groups= (in a URI: group=)"
    store = SnapshotStore(path, group="g")
    store.commit("g", {T0: OffsetAndMetadata(6)})
    with pytest.raises(errors.PartialFailure, match="has no column for groups"):
        store.commit("other", {T0: OffsetAndMetadata(6)})
    assert path.read_bytes() == b"t,0,6\n\n"
    assert list(store.groups()) == ["g"]
    assert dict(store.fetch("other")) == {}


def test_an_edit_of_sparks_json_keeps_its_form_and_its_symbols(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_bytes(b'{"t":{"0":5,"1":-1}}')
    store = SnapshotStore(path, group="g")
    store.commit("g", {T0: OffsetAndMetadata(6)})
    assert path.read_bytes() == b'{"t": {"0": 6, "1": -1}}\n'
    with pytest.raises(errors.PartialFailure) as caught:
        store.fetch("g")
    assert "-1 means the latest offset" in str(caught.value.failures[T1])
    store.delete("g", [T0])
    assert path.read_bytes() == b'{"t": {"1": -1}}\n'


# --- size -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["avro", "csv", "zk", "json"])
def test_memory_grows_with_the_groups_and_not_with_the_offsets(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"s.{suffix}"
    groups, partitions = 100, 400
    tracemalloc.start()
    try:
        write_snapshot(
            path,
            HEADER,
            (
                GroupOffsets(f"group-{g}", {TopicPartition("t", p): Committed(g + p) for p in range(partitions)})
                for g in range(groups)
            ),
        )
        with SnapshotStore(path) as store:
            read = sum(len(found.offsets) for found in store.scan(store.groups()))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert read == 40_000
    assert peak < 6_000_000  # 40,000 offsets as Python objects take over 12 MB


def test_a_file_that_an_edit_creates_names_the_cluster_of_the_source(tmp_path: Path) -> None:
    source = SnapshotStore(tmp_path / "a.avro")
    named = replace(HEADER, log_cluster_id="A" * 22, topic_ids={"orders": "an-id"})
    write_snapshot(tmp_path / "a.avro", named, [])
    target = SnapshotStore(tmp_path / "b.avro")
    crossing = CrossClusterCheck(source, target)
    assert crossing.comparison.relation is Relation.NEW
    assert crossing.adapt(OffsetAndMetadata(5, leader_epoch=3)).leader_epoch == 3
    tp = TopicPartition("orders", 0)
    list(target.edit([GroupEdit("g", {tp: Change(OffsetAndMetadata(5, leader_epoch=3))})]))
    again = SnapshotStore(tmp_path / "b.avro")
    assert again.log_origin().cluster_id == "A" * 22
    assert again.topic_ids() == {"orders": "an-id"}


# --- pipes ------------------------------------------------------------------------------------------


@pytest.fixture
def fed(tmp_path: Path) -> Iterator[Path]:
    """A named pipe into which a writer writes one group once."""
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    feeding = threading.Thread(target=pipe.write_bytes, args=(b"g,t,0,5\n",), daemon=True)
    feeding.start()
    yield pipe
    feeding.join(90)
    assert not feeding.is_alive()


def test_a_pipe_is_read_once_and_the_store_can_be_read_repeatedly(fed: Path) -> None:
    with SnapshotStore(fed) as store:
        identity = store.identity()
        assert list(store.groups()) == ["g"]
        assert store.fetch("g") == {T0: Committed(5)}
        assert [found.offsets for found in store.scan(["g"])] == [{T0: Committed(5)}]
        assert store.identity() == identity


def test_a_pipe_is_not_edited(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    with (
        SnapshotStore(pipe) as store,
        pytest.raises(errors.FileFailure, match="is a pipe or a device, which can only be"),
    ):
        store.commit("g", {T0: OffsetAndMetadata(5)})
    assert pipe.is_fifo()
    assert leftovers(tmp_path) == ["pipe.csv"]


def test_a_pipe_is_planned_and_applied(fed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_snapshot(tmp_path / "there.avro", HEADER, one_group(4))
    sides = ["--from", f"file:{fed}", "--to", f"file:{tmp_path}/there.avro"]
    plan = str(tmp_path / "plan.json")
    assert run(["migrate", "plan", *sides, "--all-groups", "-o", plan]) == 0, capsys.readouterr().err
    assert run(["migrate", "apply", plan, "--yes"]) == 0, capsys.readouterr().err
    with SnapshotStore(tmp_path / "there.avro") as there:
        assert there.fetch("g")[T0] == Committed(5)


# --- the file name "-" --------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["offsets", "import", "here.csv", "--store", "file:there.csv", "--before-image", "-"], "--before-image -"),
        (
            ["migrate", "plan", "--from", "file:here.csv", "--to", "file:t.avro", "--all-groups", "-o", "-"],
            "--output -",
        ),
        (["migrate", "rollback", "plan.json", "--reverse-plan", "-"], "--reverse-plan -"),
        (["log", "offsets", ".", "--to", "file:-?format=csv"], "store 'file:-?format=csv'"),
    ],
)
def test_a_file_named_dash_is_rejected(arguments, what, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.csv").write_bytes(b"g,t,0,5\n")
    assert run(arguments) == 2
    errors = capsys.readouterr().err
    assert f"error: {what}: - is not standard input or output here\nhint: name a file" in errors
    assert leftovers(tmp_path) == ["here.csv"]
