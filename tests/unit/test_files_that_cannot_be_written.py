"""Plans, journals and snapshots that cannot be written: an error of one line, no change, and a hint."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from offsetmgr.cli.app import run
from offsetmgr.core.atomic_file import replace_file
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import FileFailure, JournalError
from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.migration.journal import Journal
from offsetmgr.stores.snapshot import SnapshotStore


def test_an_unwritable_plan_gets_a_hint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("here.avro", "there.avro"):
        with SnapshotStore(tmp_path / name) as store:
            store.commit(name, {TopicPartition("orders", 0): OffsetAndMetadata(5)})
    stores = ["--from", f"file:{tmp_path / 'here.avro'}", "--to", f"file:{tmp_path / 'there.avro'}"]
    plan = tmp_path / "here.avro" / "plan.json"

    assert run(["migrate", "plan", *stores, "--all-groups", "-o", str(plan)]) == 1

    assert capsys.readouterr().err.splitlines()[-2:] == [
        f"error: plan {plan}: {os.strerror(errno.ENOTDIR)}",
        "hint: name another file, in a directory that can be written",
    ]


def test_an_unwritable_journal_gets_a_hint_to_copy_its_plan(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "no directory" / "plan.journal", plan_sha256="0" * 64, clock=SystemClock())

    with pytest.raises(JournalError, match="No such file or directory") as refused, journal:
        raise AssertionError("the journal is open")

    assert refused.value.hint.startswith("the journal is in its plan's directory: copy the plan ")


def test_an_unwritable_snapshot_gets_a_hint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here, there = tmp_path / "here.csv", tmp_path / "here.csv" / "x.avro"
    here.write_text("g,t,0,5\n")

    assert run(["offsets", "export", str(there), "--all-groups", "--store", f"file:{here}"]) == 1

    assert capsys.readouterr().err.splitlines()[-1] == "hint: name another file, in a directory that can be written"


def test_a_failed_sync_of_the_directory_is_reported_with_the_written_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def fail_for_directories(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(5, "Input/output error")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_for_directories)
    path = tmp_path / "offsets.txt"
    path.write_bytes(b"old")

    with pytest.raises(FileFailure, match="written, but may not survive a power failure: input/output error"):
        replace_file(path, lambda stream: stream.write(b"new"), overwrite=True)

    assert path.read_bytes() == b"new"
