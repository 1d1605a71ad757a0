"""``log offsets``: the printed rows, the target files, and the rejected options."""

import subprocess
import sys
from pathlib import Path

import pytest
from damaged_log import CommandResult, command
from savedlogs import KAFKA, NOON, ORDERS, entry, write

from offsetmgr.app import log
from offsetmgr.app.connections import connect
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.segments.batch_builder import batch
from offsetmgr.segments.batch_reader import Record
from offsetmgr.stores.uri import open_store


def saved(*arguments: object, code: int = 0) -> CommandResult:
    done = command("log", "offsets", *arguments)
    assert done.code == code, done.err
    return done


def test_rows_for_programs_and_the_exit_code(tmp_path: Path) -> None:
    write(tmp_path / "__consumer_offsets-0", (0, entry(0, "a", 4) + entry(1, "b", 7) + entry(2, "b", None)))

    committed = {"group": "a", "topic": "orders", "partition": 0, "state": "committed", "offset": 4, "metadata": ""}
    unknown = {"leader_epoch": None, "expire_timestamp": None}
    assert saved(tmp_path, "--format", "json").rows == [
        committed | unknown | {"commit_timestamp": NOON, "log_offset": 0}
    ]
    assert "error: group 'b': has no committed offsets" in saved(tmp_path, "--group", "b", code=1).err
    assert saved(tmp_path, "--exclude-group", "a", "--format", "json").rows == []
    assert (
        "error: excluded group 'typo': has no committed offsets"
        in saved(tmp_path, "--exclude-group", "typo", code=1).err
    )
    expired = saved(tmp_path, "--expired-at", "2030-01-01T00:00:00", "--format", "csv")
    assert len(expired.out.splitlines()) == 1
    with connect(f"file:{tmp_path}/x.csv") as connections:
        found = log.offsets(connections, [tmp_path], options=log.SaveOptions("a", processes=1))
        assert [one.name for one in found.groups] == ["a"]


NEEDS_A_STORE = {option.split()[0]: option for option in ("--allow-rewind", "--execute", "--yes", "--before-image b")}


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
        *(
            (["{tmp}", *option.split(), "--to", "file:s.avro"], f"{why}: needs a store as the target: s.avro is a file")
            for why, option in NEEDS_A_STORE.items()
        ),
        (
            ["{tmp}", "--overwrite", "--to", "kafka://h:1"],
            "--overwrite: is for a file, and the target is of kind kafka",
        ),
    ],
)
def test_options_without_effect_are_rejected(tmp_path: Path, arguments: list[str], why: str) -> None:
    (tmp_path / "empty").mkdir()
    write(tmp_path / "__consumer_offsets-0", (0, entry(0, "a", 4)))

    assert why in saved(*(argument.format(tmp=tmp_path) for argument in arguments), code=2).err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["__consumer_offsets-0", "empty"]


def test_a_topic_without_offsets_is_an_error(tmp_path: Path) -> None:
    directory = write(tmp_path / "orders-0", (0, batch([Record(0, NOON, b"\x77key", b"value")])))

    assert "none of its keys is the key of an offset" in saved(directory, code=1).err


@pytest.mark.parametrize("name", ["saved.avro", "saved.json", "saved.csv", "saved.zk"])
def test_a_negative_offset_is_reported_and_the_saved_file_is_imported(tmp_path: Path, name: str) -> None:
    write(tmp_path / "__consumer_offsets-0", (0, entry(0, "a", 4) + entry(1, "a", -2, partition=1)))
    target, snapshot = f"file:{tmp_path / 'target.avro'}", tmp_path / name
    with open_store(target) as store:
        store.commit("other", {ORDERS: OffsetAndMetadata(1)})

    printed = saved(tmp_path, "--format", "json", code=1)
    assert [(row["state"], row["offset"]) for row in printed.rows] == [("committed", 4), ("unreadable", None)]
    assert "error: group a, orders-1: offset -2: a negative number is not a committed offset" in printed.err
    saved(tmp_path, "--to", f"file:{snapshot}", code=1)
    imported = command("offsets", "import", snapshot, "--store", target, "--execute", "--yes", "--translate", "none")

    refused = name == "saved.avro"  # Avro records the offset that was not saved, so the group is not complete
    assert imported.code == int(refused)
    with open_store(target) as store:
        found = next(iter(store.scan(["a"]))).offsets
    assert {tp: one.offset for tp, one in found.items()} == ({} if refused else {ORDERS: 4})


@pytest.mark.parametrize("name", ["saved.avro", "saved.json", "saved.csv", "saved.zk"])
def test_a_snapshot_file_of_any_format_is_written_without_execute(tmp_path: Path, name: str) -> None:
    disk = tmp_path / "disk"
    key, _ = KAFKA.encode_commit("a", "orders", [(1, 4, -1, "")], NOON, None)[0]
    newer = batch([Record(2, NOON, key, b"\x00\x63")])
    write(disk / "__consumer_offsets-0", (0, entry(0, "a", 4) + entry(1, "b", 7) + newer))
    (disk / "meta.properties").write_text("version=0\ncluster.id=the-lost-one\n")
    target = tmp_path / name

    stderr = saved(disk, "--to", f"file:{target}", code=1).err  # one value was of an unknown version
    assert "error: group a, orders-1: " in stderr
    assert f"saved 2 offsets of 2 groups to {target}" in stderr
    with open_store(f"file:{target}") as store:
        found = {one.name: one for one in store.scan(["a", "b"])}
    assert {name: one.offsets[ORDERS].offset for name, one in found.items()} == {"a": 4, "b": 7}
    assert list(found["a"].errors) == ([TopicPartition("orders", 1)] if name == "saved.avro" else [])
    if name == "saved.avro":
        assert b"the-lost-one" in target.read_bytes()

    before = target.read_bytes()
    assert "exists already" in saved(disk, "--to", f"file:{target}", code=1).err
    assert target.read_bytes() == before


@pytest.mark.parametrize("arguments", [[], ["--group", "n*"], ["--topic", "other"]], ids=["all", "group", "topic"])
def test_saving_nothing_fails_and_leaves_no_file(tmp_path: Path, arguments: list[str]) -> None:
    disk = tmp_path / "disk"
    write(disk / "__consumer_offsets-0", (0, entry(0, "a", 4) + (b"" if arguments else entry(1, "a", None))))
    target, before = tmp_path / "saved.avro", tmp_path / "before.avro"
    before.write_bytes(b"of yesterday")

    why = f"none of the selected offsets can be read in {disk}"
    printed = saved(disk, *arguments, "--to", f"file:{target}", code=1)
    assert f"error: file {target} was not written: {why}" in printed.err
    assert not target.exists()

    saved(disk, *arguments, "--to", f"file:{before}", "--overwrite", code=1)
    assert before.read_bytes() == b"of yesterday"


def test_no_file_is_written_into_a_running_brokers_log_dir(tmp_path: Path) -> None:
    directory = write(tmp_path / "__consumer_offsets-0", (0, entry(0, "a", 4)))
    (tmp_path / "meta.properties").touch()
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    program = "import sys; file = open(sys.argv[1], 'ab'); print('ready', flush=True); sys.stdin.read()"
    holder = [sys.executable, "-c", program, str(directory / f"{0:020}.log")]
    with subprocess.Popen(holder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        stderr = saved(tmp_path, "--to", f"file:{tmp_path / 'saved.avro'}", code=1).err
        process.communicate()

    assert f"error: directory {tmp_path}: a running broker uses it (seen: " in stderr
    assert "hint: stop the broker, or name another file with --to" in stderr
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before
