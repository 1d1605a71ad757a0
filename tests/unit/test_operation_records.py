"""`groups.operation_log`: the records of operations, also of those that were killed."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from offsetmgr.core.atomic_file import append_line
from offsetmgr.core.errors import MalformedData, TimedOut, UnknownVersion
from offsetmgr.groups.operation_log import OperationLog, OperationNotFound, OperationStart, undoing

START = OperationStart("offsets reset", ("kafka://h:1",), ("shop",), 1, 2, ("/before.avro",), ("offsetmgr undo",))


@pytest.fixture
def log(tmp_path: Path) -> OperationLog:
    return OperationLog(tmp_path / "state" / "operations.jsonl")


def test_an_operation_has_its_counts_and_its_outcome(log: OperationLog) -> None:
    with log.recorded(START) as progress:
        progress.written = 2

    (one,) = log.operations()
    assert (one.id, one.start, one.outcome, one.written, one.failed) == (progress.id, START, "done", 2, 0)
    assert one.ended_ms is not None and one.ended_ms >= one.at_ms
    assert log.find(one.id) == one


def test_an_operation_without_an_end_has_an_unknown_outcome(log: OperationLog) -> None:
    with log.recorded(START):
        (one,) = log.operations()
        assert (one.outcome, one.written, one.ended_ms) == ("unknown", None, None)


def test_errors_failures_and_interruptions_are_outcomes(log: OperationLog) -> None:
    with pytest.raises(TimedOut), log.recorded(START):
        raise TimedOut("broker")
    with pytest.raises(KeyboardInterrupt), log.recorded(START):
        raise KeyboardInterrupt
    with log.recorded(START) as progress:
        progress.failed = 1
    with log.recorded(START) as progress:
        progress.interrupted = True

    assert [one.outcome for one in log.operations()] == ["failed", "interrupted", "failed", "interrupted"]


def test_an_operation_is_undone_when_all_its_undo_commands_are_done(log: OperationLog) -> None:
    with log.recorded(START) as single:
        pass
    with log.recorded(OperationStart("offsets set", (), (), 0, 0, undo=("a", "b"))) as double:
        pass
    for id_ in (single.id, double.id):
        with undoing(id_), log.recorded(START) as undo:
            pass

    assert log.find(single.id).undone_by
    assert not log.find(double.id).undone_by
    with undoing(double.id), log.recorded(START) as undo:
        pass
    assert log.find(double.id).undone_by == undo.id


def test_the_line_of_a_killed_writer_is_ignored_and_then_removed(log: OperationLog) -> None:
    with log.recorded(START):
        pass
    whole = log.path.read_bytes()
    log.path.write_bytes(whole + b'{"kind": "sta')

    assert len(log.operations()) == 1
    with log.recorded(START):
        pass

    assert len(log.operations()) == 2
    assert log.path.read_bytes().startswith(whole + b'{"kind": "start"')


def test_lines_of_concurrent_writers_do_not_mix(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: append_line(file, str(n).encode() * 1000), range(200)))

    assert sorted(file.read_text().split()) == sorted(str(n) * 1000 for n in range(200))


@pytest.mark.parametrize("damage", [b"junk", b'{"kind": "start"}', b"\xff", b"[]"])
def test_a_damaged_line_is_named_and_hides_no_other_record(log: OperationLog, damage: bytes) -> None:
    with log.recorded(START) as one:
        pass
    log.path.write_bytes(damage + b"\n" + log.path.read_bytes())
    assert [found.id for found in log.operations()] == [one.id]
    assert log.find(one.id).outcome == "done"
    (error,) = log.damaged
    assert isinstance(error, MalformedData)
    assert "line 1" in str(error)


def test_an_unknown_id_is_an_error_with_a_hint(log: OperationLog) -> None:
    with pytest.raises(OperationNotFound) as caught:
        log.find("20260101-000000-abcd")
    assert caught.value.hint == "offsetmgr edits list shows the ids of this log"


def test_the_command_line_has_no_credentials(log: OperationLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/offsetmgr", "--store", "zookeeper://user:secret@h:1/kafka"])
    with log.recorded(START):
        pass
    assert "secret" not in log.path.read_text()
    assert log.operations()[0].command.startswith("offsetmgr --store ")


def test_an_undo_that_was_undone_does_not_count(log: OperationLog) -> None:
    with log.recorded(START) as edit:
        pass
    with undoing(edit.id), log.recorded(START) as undo:
        pass
    with undoing(undo.id), log.recorded(START) as redo:
        pass
    assert (log.find(edit.id).undone_by, log.find(undo.id).undone_by) == ("", redo.id)
    with undoing(edit.id), log.recorded(START) as second:
        pass
    assert log.find(edit.id).undone_by == second.id


def test_an_operation_runs_as_long_as_its_process_and_has_no_end(log: OperationLog) -> None:
    with log.recorded(START):
        (one,) = log.operations()
        assert one.is_running
        assert not replace(one, process_start="of an earlier process").is_running
        assert not replace(one, host="another").is_running
        older = replace(one, pid=None, process_start="")
        assert not older.is_running
    assert not log.operations()[0].is_running


def test_a_record_of_a_newer_version_hides_no_other_record(log: OperationLog) -> None:
    with log.recorded(START) as newer:
        pass
    first, end = log.path.read_bytes().splitlines()
    log.path.write_bytes(json.dumps(json.loads(first) | {"version": 9}).encode() + b"\n" + end + b"\n")
    with log.recorded(START) as known:
        pass

    assert [one.id for one in log.operations()] == [known.id]
    assert list(log.newer) == [newer.id]
    assert log.find(known.id).outcome == "done"
    with pytest.raises(UnknownVersion, match="line 1: is of version 9; known: 1"):
        log.find(newer.id)
