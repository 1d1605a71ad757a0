"""The operation log: the records of operations, also of those that were killed."""

import getpass
import json
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from in_process import command, rows
from memory_stores import in_memory
from processes import OFFSETMGR, own_environment, run_command

from offsetmgr.core.errors import TimedOut
from offsetmgr.core.model import Committed, TopicPartition
from offsetmgr.core.offset_store import GroupEdit, GroupEditResult
from offsetmgr.testing.memory import MemoryStore

T0 = TopicPartition("t", 0)
SET = ("offsets", "set", "-g", "shop", "--topic", "t:0", "--store", "memory:store", "--execute", "--yes")


class Log:
    """The log of an account, with an edit of one group in memory. A test may also write lines of its own."""

    def __init__(self, state: Path) -> None:
        self.path = state / "offsetmgr" / "operations.jsonl"
        self.set_store(MemoryStore("store"))

    def set_store(self, store: MemoryStore) -> None:
        store.data["shop"] = {T0: Committed(5)}
        in_memory(store=store)

    def edit(self, offset: int, code: int = 0) -> str:
        """Sets the offset, and returns the id of the operation."""
        command(*SET, "--to-offset", offset, code=code)
        return str(self.operations()[-1]["id"])

    def write(self, id_: str, *, undoes: str = "", undo: Iterable[str] = ("offsetmgr undo",), **changed: Any) -> None:
        """Writes the lines of a complete operation."""
        start = {"kind": "start", "version": 1, "id": id_, "at_ms": 1, "user": "u", "host": "h", "pid": 1}
        start |= {"process_start": "", "command": "offsetmgr", "undoes": undoes, "name": "offsets reset"}
        start |= {"stores": ["kafka://h:1"], "groups": ["shop"], "group_count": 1, "changes": 2, "files": ["/b.avro"]}
        end = {"kind": "end", "id": id_, "at_ms": 2, "outcome": "done", "written": 2, "failed": 0}
        self.path.parent.mkdir(exist_ok=True, parents=True)
        with self.path.open("a") as stream:
            for line in (start | {"undo": list(undo), "reason": ""} | changed, end):
                stream.write(json.dumps(line) + "\n")

    def operations(self) -> list[dict[str, Any]]:
        return list(rows("edits", "list"))

    def show(self, id_: str) -> dict[str, Any]:
        (one,) = rows("edits", "show", id_)
        return dict(one)

    def undone_by(self, id_: str) -> str | None:
        return next(one["undone_by"] for one in self.operations() if one["id"] == id_)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Log:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return Log(tmp_path)


def test_an_operation_has_its_counts_and_its_outcome(log: Log) -> None:
    one = log.show(log.edit(7))
    expected = {"operation": "offsets set", "stores": "memory:store", "groups": "shop", "outcome": "done"}
    assert one | expected | {"changes": 1, "written": 1, "failed": 0} == one
    assert one["ended_ms"] >= one["at_ms"]


class Broken(MemoryStore):
    """A store that raises an error instead of an edit."""

    error: BaseException

    def edit(self, edits: Iterable[GroupEdit]) -> Iterator[GroupEditResult]:
        list(edits)
        raise self.error


@pytest.mark.parametrize(
    ("error", "outcome", "code"), [(TimedOut("broker"), "failed", 1), (KeyboardInterrupt(), "interrupted", 130)]
)
def test_errors_and_interruptions_are_outcomes(log: Log, error: BaseException, outcome: str, code: int) -> None:
    store = Broken("store")
    store.error = error
    log.set_store(store)
    assert log.show(log.edit(7, code))["outcome"] == outcome


def test_an_operation_with_a_failed_offset_has_failed(log: Log) -> None:
    class Raced(MemoryStore):
        """Another client commits before the edit."""

        def edit(self, edits: Iterable[GroupEdit]) -> Iterator[GroupEditResult]:
            self.data["shop"][T0] = Committed(6, version=9)
            return super().edit(edits)

    log.set_store(Raced("store"))
    one = log.show(log.edit(7, code=1))
    assert (one["outcome"], one["failed"]) == ("failed", 1)


def test_an_operation_is_undone_when_all_its_undo_commands_are_done(log: Log) -> None:
    log.write("single")
    log.write("double", undo=("a", "b"))
    log.write("first", undoes="single")
    log.write("second", undoes="double")
    assert (log.undone_by("single"), log.undone_by("double")) == ("first", None)
    log.write("third", undoes="double")
    assert log.undone_by("double") == "third"


def test_an_edit_of_two_stores_is_undone_when_both_are(log: Log) -> None:
    log.write("pair", undo=("a", "b"), stores=["kafka://h:1", "kafka://h:2"])
    log.write("half", undoes="pair")
    log.write("same half", undoes="pair")
    assert log.undone_by("pair") is None
    log.write("other half", undoes="pair", stores=["kafka://h:2"])
    assert log.undone_by("pair") == "other half"


def test_the_line_of_a_killed_writer_is_ignored_and_then_removed(log: Log) -> None:
    log.edit(7)
    whole = log.path.read_bytes()
    log.path.write_bytes(whole + b'{"kind": "sta')
    assert len(log.operations()) == 1
    log.edit(8)
    assert len(log.operations()) == 2
    assert log.path.read_bytes().startswith(whole + b'{"kind": "start"')


def test_lines_of_concurrent_writers_do_not_mix(log: Log) -> None:
    writers = []
    for _ in range(4):
        if (pid := os.fork()) == 0:
            signal.alarm(300)  # a fork of a process with threads can hang
            for number in range(6):
                command(*SET, "--to-offset", number + 6, "--reason", "r" * 5000, code=None)
            os._exit(0)
        writers.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in writers] == [0] * 4
    found = command("edits", "list", "--format", "json")
    assert (len(json.loads(found.stdout)), found.stderr) == (24, "")


@pytest.mark.parametrize("damage", [b"junk", b'{"kind": "start"}', b"\xff", b"[]"])
def test_a_damaged_line_is_named_and_hides_no_other_record(log: Log, damage: bytes) -> None:
    one = log.edit(7)
    log.path.write_bytes(damage + b"\n" + log.path.read_bytes())
    assert [found["id"] for found in log.operations()] == [one]
    assert log.show(one)["outcome"] == "done"
    assert "1 damaged line of the log left out: " in (shown := command("edits", "list").stderr) and "line 1" in shown


def test_the_command_line_has_no_credentials(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/offsetmgr", "--store", "zookeeper://user:secret@h:1/kafka"])
    one = log.show(log.edit(7))
    assert "secret" not in log.path.read_text()
    assert one["command"].startswith("offsetmgr --store ")


def test_an_operation_runs_as_long_as_its_process_and_has_no_end(log: Log) -> None:
    seen: list[dict[str, Any]] = []

    class Observed(MemoryStore):
        def edit(self, edits: Iterable[GroupEdit]) -> Iterator[GroupEditResult]:
            seen.extend(log.operations())
            yield from super().edit(edits)

    log.set_store(Observed("store"))
    id_ = log.edit(7)
    assert [(one["outcome"], one["written"]) for one in seen] == [("unknown", None)]
    start = json.loads(log.path.read_bytes().splitlines()[0])
    undo = ("edits", "undo", id_, "--execute", "--yes")
    for changed, runs in [
        ({}, True),
        ({"process_start": "of an earlier process"}, False),
        ({"host": "another"}, False),
        ({"pid": None, "process_start": ""}, False),  # of an older offsetmgr
    ]:
        log.path.write_text(json.dumps(start | {"undo": ["offsetmgr edits list"]} | changed) + "\n")
        assert log.show(id_)["ended_ms"] is None
        shown = command(*undo, code=None).stderr
        assert (f"still runs, as process {os.getpid()}" in shown) is runs, changed
        assert ("the log has no end of offsets set" in shown) is not runs, changed


def test_an_edit_in_a_container_needs_a_volume(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OFFSETMGR_STATE_VOLUME", "/state")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    steps = [("migrate", step, "no.plan") for step in ("apply", "rollback", "finalize")]
    for refused in [(*SET[:-1], "--to-offset", 8, "--wait-empty", 60), *steps]:
        failed = command(*refused, code=1)
        # Without --yes: nothing is asked, shown or waited for.
        assert failed.stderr == (
            "error: file /state/offsetmgr: no volume holds this file, so it would be lost with the container\n"
            "hint: nothing was changed; mount a volume that remains, as in -v NAME:/state\n"
        ), refused
        assert not failed.stdout
    shown = command(*SET[:-2], "--to-offset", 8).stderr
    assert "warning: no edits: file /state/offsetmgr: no volume holds this file" in shown
    assert "--execute" not in shown
    copy = ("groups", "copy", "shop", "shop2", "--store", "memory:store")
    saved = command(*copy, "--plan", log.path.parent.with_name("a.plan")).stderr
    assert "a.plan: no volume holds this file, so it would be lost with the container; choose a file below /" in saved
    monkeypatch.setenv("XDG_STATE_HOME", str(log.path.parent))
    elsewhere = command(*SET, "--to-offset", 8, code=1).stderr
    assert "hint: nothing was changed; choose a file below /state, where a volume belongs" in elsewhere
    segment = log.path.parent.with_name("00000000000000000000.log")
    segment.write_bytes(bytes(10))
    recover = ("log", "recover", segment, "--execute")
    assert "no volume" in command(*recover, "--in-place", code=1).stderr
    assert "copied" in command(*recover, "--to", segment.parent / "copies").stdout  # has no undo
    assert rows("offsets", "get", "shop", "--store", "memory:store")[0]["offset"] == 5
    assert not log.path.parent.exists()


@pytest.mark.parametrize(
    ("words", "mode", "expected"),
    [
        ("offsets set G --execute --before-image x.avro", "rw", "error: file {}/x.avro: no volume holds this file"),
        ("migrate apply a.plan", "rw", "error: file {}/a.plan: no volume holds this file"),
        ("runbook bounce G --to-phase dual --command x --execute", "rw", "error: file {}/bounce-*.json: no volume"),
        ("log recover 0.log --in-place --execute", "rw", "error: file {}/0.log: no volume holds this file"),
        ("offsets set G --execute", "ro", "error: file {}/state/offsetmgr: user 0 cannot write to {}/state, or it is"),
        ("offsets set G", "ro", "warning: no edits: file {}/state/offsetmgr: user 0 cannot write to {}/state"),
        ("offsets set G --execute", "rw", "change 1 offset in 1 group: stdin is not a terminal"),
    ],
)
def test_each_file_of_an_undo_is_checked_before_a_question(words: str, mode: str, expected: str, tmp_path) -> None:
    (tmp_path / "offsets.csv").write_text("shop,orders,0,5\n")
    (tmp_path / "state").mkdir()
    edit = "shop --topic orders:0 --to-offset 8 --store file:offsets.csv"
    mount = f'mount --bind --options {mode} state state && exec "$@"'
    mounted = ["unshare", "--mount", "--map-root-user", "sh", "-c", mount, "-"]
    environ = own_environment(tmp_path) | {"XDG_STATE_HOME": f"{tmp_path}/state", "OFFSETMGR_STATE_VOLUME": "state"}
    arguments = words.replace("G", edit if "set" in words else "shop").split()
    done = run_command(*OFFSETMGR, *arguments, program=mounted, code=None, environ=environ, cwd=tmp_path)
    assert expected.replace("{}", str(tmp_path)) in done.stderr
    assert (": --state FILE" in done.stderr) == ("bounce" in words)
    assert ("hint: nothing was changed; change the owner" in done.stderr) == (mode == "ro" and "--execute" in words)
    assert (tmp_path / "offsets.csv").read_text() == "shop,orders,0,5\n"


def test_an_edit_changes_nothing_if_it_cannot_be_recorded(log: Log) -> None:
    log.path.mkdir(parents=True)
    failed = command(*SET, "--to-offset", 8, code=1).stderr
    assert "operation log" in failed
    assert "hint: set XDG_STATE_HOME to a directory that can be written" in failed
    assert rows("offsets", "get", "shop", "--store", "memory:store")[0]["offset"] == 5


def test_an_edit_of_two_stores_is_undone_in_both_by_its_id(log: Log) -> None:
    stores = {name: MemoryStore(name, data={"shop": {T0: Committed(5)}}) for name in ("first", "second")}
    in_memory(**stores)
    pair = ("--store", "dual:?primary=memory%3Afirst&secondary=memory%3Asecond")
    command(*SET[:6], *pair, *SET[8:], "--to-offset", 8, "--reason", "skip the poisoned records")
    (edit,) = log.operations()
    shown = log.show(edit["id"])
    assert shown["command"] and shown["user"].startswith(getpass.getuser())
    assert (shown["reason"], shown["groups"], shown["written"]) == ("skip the poisoned records", "shop", 1)
    assert "dry run" in command("edits", "undo", edit["id"]).stderr
    assert [store.data["shop"][T0].offset for store in stores.values()] == [8, 8]
    command("edits", "undo", edit["id"], "--execute", "--yes")
    assert [store.data["shop"][T0].offset for store in stores.values()] == [5, 5]
    undone = log.undone_by(edit["id"])
    assert undone and log.show(undone)["undoes"] == edit["id"]
    again = command("edits", "undo", edit["id"], "--execute", "--yes", code=2).stderr
    assert f"{undone} undid it already" in again
