"""``log offsets``: the printed rows, the target files, and the rejected options."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from savedlogs import KAFKA, NOON, ORDERS, entry, write

from offsetmgr.cli.app import run
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.segments.batch_builder import batch
from offsetmgr.segments.batch_reader import Record
from offsetmgr.stores.snapshot import SnapshotStore


def test_rows_for_programs_and_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "__consumer_offsets-0", (0, entry(0, "a", 4) + entry(1, "b", 7) + entry(2, "b", None)))

    assert run(["log", "offsets", str(tmp_path), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {
            "group": "a",
            "topic": "orders",
            "partition": 0,
            "state": "committed",
            "offset": 4,
            "metadata": "",
            "leader_epoch": None,
            "commit_timestamp": NOON,
            "expire_timestamp": None,
            "log_offset": 0,
        }
    ]
    assert run(["log", "offsets", str(tmp_path), "--group", "b"]) == 1
    assert "error: group 'b': has no committed offsets" in capsys.readouterr().err
    assert run(["log", "offsets", str(tmp_path), "--expired-at", "2030-01-01T00:00:00", "--format", "csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["missing"], "directory missing: does not exist"),
        (["{tmp}/empty"], "holds no directory of topic __consumer_offsets"),
        (["{tmp}", "--offsets-topic", "others"], "holds no directory of topic others"),
        (["{tmp}", "--store", "file:x.avro"], "log offsets: reads no server"),
        (["{tmp}", "--expired-at", "noon"], "--expired-at: 'noon' is not a time of the form"),
        (["{tmp}", "--retention-minutes", "5"], "--retention-minutes: has no effect without --expired-at"),
        (["{tmp}", "--execute"], "--execute: nothing is written"),
        (["{tmp}", "--overwrite"], "--overwrite: nothing is written"),
        (
            ["{tmp}", "--allow-rewind", "--to", "file:s.avro"],
            "--allow-rewind: needs a store as the target: s.avro is a file",
        ),
        (["{tmp}", "--execute", "--to", "file:s.avro"], "--execute: needs a store as the target: s.avro is a file"),
        (["{tmp}", "--yes", "--to", "file:s.avro"], "--yes: needs a store as the target: s.avro is a file"),
        (
            ["{tmp}", "--before-image", "b.avro", "--to", "file:s.avro"],
            "--before-image: needs a store as the target: s.avro is a file",
        ),
        (
            ["{tmp}", "--overwrite", "--to", "kafka://localhost:1"],
            "--overwrite: is for a file, and the target is of kind kafka",
        ),
    ],
)
def test_options_without_effect_are_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], why: str
) -> None:
    (tmp_path / "empty").mkdir()
    write(tmp_path / "__consumer_offsets-0", (0, entry(0, "a", 4)))

    assert run(["log", "offsets", *(argument.format(tmp=tmp_path) for argument in arguments)]) == 2
    assert why in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["__consumer_offsets-0", "empty"]


def test_a_topic_without_offsets_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = write(tmp_path / "orders-0", (0, batch([Record(0, NOON, b"\x77key", b"value")])))

    assert run(["log", "offsets", str(directory)]) == 1
    assert "none of its keys is the key of an offset" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["saved.avro", "saved.json", "saved.csv", "saved.zk"])
def test_a_negative_offset_is_reported_and_the_saved_file_is_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    write(tmp_path / "__consumer_offsets-0", (0, entry(0, "a", 4) + entry(1, "a", -2, partition=1)))
    target, saved = f"file:{tmp_path / 'target.avro'}", tmp_path / name
    with SnapshotStore(tmp_path / "target.avro") as store:
        store.commit("other", {ORDERS: OffsetAndMetadata(1)})

    assert run(["log", "offsets", str(tmp_path), "--format", "json"]) == 1
    printed = capsys.readouterr()
    assert [(row["partition"], row["state"], row["offset"]) for row in json.loads(printed.out)] == [
        (0, "committed", 4),
        (1, "unreadable", None),
    ]
    assert "error: group a, orders-1: offset -2: a negative number is not a committed offset" in printed.err
    assert run(["log", "offsets", str(tmp_path), "--to", f"file:{saved}"]) == 1
    imported = run(["offsets", "import", str(saved), "--store", target, "--execute", "--yes", "--translate", "none"])

    refused = name == "saved.avro"  # Avro records the offset that was not saved, so the group is not complete
    assert imported == int(refused)
    with SnapshotStore(tmp_path / "target.avro") as store:
        found = next(store.scan(["a"])).offsets
    assert {tp: one.offset for tp, one in found.items()} == ({} if refused else {ORDERS: 4})


@pytest.mark.parametrize("name", ["saved.avro", "saved.json", "saved.csv", "saved.zk"])
def test_a_snapshot_file_of_any_format_is_written_without_execute(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    disk = tmp_path / "disk"
    key, _ = KAFKA.encode_commit("a", "orders", [(1, 4, -1, "")], NOON, None)[0]
    newer = batch([Record(2, NOON, key, b"\x00\x63")])
    write(disk / "__consumer_offsets-0", (0, entry(0, "a", 4) + entry(1, "b", 7) + newer))
    (disk / "meta.properties").write_text("version=0\ncluster.id=the-lost-one\n")
    target = tmp_path / name

    assert run(["log", "offsets", str(disk), "--to", f"file:{target}"]) == 1, "one value was of an unknown version"
    stderr = capsys.readouterr().err
    assert "error: group a, orders-1: " in stderr
    assert f"saved 2 offsets of 2 groups to {target}" in stderr
    with SnapshotStore(target) as store:
        found = {one.group: one for one in store.scan(["a", "b"])}
        assert {name: one.offsets[ORDERS].offset for name, one in found.items()} == {"a": 4, "b": 7}
        assert list(found["a"].errors) == ([TopicPartition("orders", 1)] if name == "saved.avro" else [])
        if store.header is not None:
            assert store.header.cluster_id == "the-lost-one"

    before = target.read_bytes()
    assert run(["log", "offsets", str(disk), "--to", f"file:{target}"]) == 1
    assert "exists already" in capsys.readouterr().err
    assert target.read_bytes() == before


@pytest.mark.parametrize("arguments", [[], ["--group", "n*"], ["--topic", "other"]], ids=["all", "group", "topic"])
def test_saving_nothing_fails_and_leaves_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    disk = tmp_path / "disk"
    write(disk / "__consumer_offsets-0", (0, entry(0, "a", 4) + (b"" if arguments else entry(1, "a", None))))
    target, before = tmp_path / "saved.avro", tmp_path / "before.avro"
    before.write_bytes(b"of yesterday")

    assert run(["log", "offsets", str(disk), *arguments, "--to", f"file:{target}"]) == 1
    why = f"none of the selected offsets can be read in {disk}"
    assert f"error: file {target} was not written: {why}" in capsys.readouterr().err
    assert not target.exists()

    assert run(["log", "offsets", str(disk), *arguments, "--to", f"file:{before}", "--overwrite"]) == 1
    assert before.read_bytes() == b"of yesterday"


def test_no_file_is_written_into_a_running_brokers_log_dir(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = write(tmp_path / "__consumer_offsets-0", (0, entry(0, "a", 4)))
    (tmp_path / "meta.properties").touch()
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    program = "import sys; file = open(sys.argv[1], 'ab'); print('ready', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", program, str(directory / f"{0:020}.log")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        code = run(["log", "offsets", str(tmp_path), "--to", f"file:{tmp_path / 'saved.avro'}"])
        process.communicate()

    stderr = capsys.readouterr().err
    assert code == 1
    assert f"error: directory {tmp_path}: a running broker uses it (seen: " in stderr
    assert "hint: stop the broker, or name another file with --to" in stderr
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before
