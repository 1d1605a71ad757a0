"""``log recover``: its cuts and copies, and the removed bytes that it keeps."""

import os
import sys
from pathlib import Path

import pytest
from damaged_log import JUNK, NEWEST, SOUND, tree

from offsetmgr.segments.batch_builder import batch
from offsetmgr.segments.batch_reader import Record


@pytest.mark.parametrize("how", [["--in-place"], ["--to", "OUT"]])
def test_without_execute_nothing_is_written(log_dir, tmp_path, offsetmgr, how) -> None:
    before = tree(tmp_path)

    done = offsetmgr("log", "recover", log_dir, *(str(tmp_path / "out") if word == "OUT" else word for word in how))

    assert (done.code, tree(tmp_path)) == (0, before)
    assert "dry run: nothing was written" in done.err
    assert "would be" in done.out


def test_a_copy_is_cut_and_the_log_is_unchanged(log_dir, tmp_path, offsetmgr) -> None:
    before = tree(log_dir)
    out = tmp_path / "out"

    done = offsetmgr("log", "recover", log_dir, "--to", out, "--execute", "--format", "json")

    (row,) = done.rows
    assert (done.code, row["action"], row["copy"]) == (0, "copied", str(out / "orders-0"))
    assert (row["cut"], row["next_offset"]) == (1000, 45)
    assert tree(log_dir) == before
    # A broker builds the missing indexes from the log.
    assert tree(out) == {
        "orders-0/00000000000000000000.log": before["orders-0/00000000000000000000.log"],
        "orders-0/00000000000000000000.index": b"",
        f"orders-0/{NEWEST}.log": SOUND,
        "orders-0/leader-epoch-checkpoint": b"0\n1\n0 0\n",
    }


def test_segments_before_the_recovery_point_are_not_checked(log_dir, tmp_path, offsetmgr) -> None:
    (log_dir / "recovery-point-offset-checkpoint").write_text("0\n1\norders 0 40\n")

    done = offsetmgr("log", "recover", log_dir, "--to", tmp_path / "out", "--execute")

    assert done.code == 0
    assert "1 segment before the recovery points not checked; log verify checks all" in done.err


def test_a_single_file_is_copied_by_itself(log, tmp_path, offsetmgr) -> None:
    done = offsetmgr("log", "recover", log, "--to", tmp_path / "out", "--execute")

    assert (done.code, tree(tmp_path / "out")) == (0, {f"{NEWEST}.log": SOUND})


def test_a_directory_is_copied_under_its_own_name_from_within(log_dir, tmp_path, offsetmgr, monkeypatch) -> None:
    monkeypatch.chdir(log_dir / "orders-0")

    assert offsetmgr("log", "recover", ".", "--to", tmp_path / "out", "--execute").code == 0
    assert (tmp_path / "out" / "orders-0" / f"{NEWEST}.log").read_bytes() == SOUND


def test_two_copies_of_one_name_are_rejected_before_anything_is_written(log_dir, log, tmp_path, offsetmgr) -> None:
    other = tmp_path / "other" / "orders-0" / log.name
    other.parent.mkdir(parents=True)
    other.write_bytes(SOUND)

    done = offsetmgr("log", "recover", log_dir / "orders-0", other.parent, "--to", tmp_path / "out")

    assert done.code == 1
    assert f"{tmp_path}/out/orders-0: {log_dir}/orders-0 would be copied to the same path" in done.err


def test_a_copy_never_replaces_anything(log, tmp_path, offsetmgr) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / log.name).write_bytes(b"mine")

    done = offsetmgr("log", "recover", log, "--to", out, "--execute")

    assert (done.code, tree(out)) == (1, {log.name: b"mine"})
    assert "exists already" in done.err


def test_in_place_keeps_the_removed_bytes_and_renames_the_indexes(log_dir, offsetmgr) -> None:
    before = tree(log_dir)

    done = offsetmgr("log", "recover", log_dir / "orders-0", "--in-place", "--execute", "--yes", "--format", "json")

    (row,) = done.rows
    copy = f"orders-0/{NEWEST}.log.cut-from-{len(SOUND)}"
    assert (done.code, row["action"], row["copy"]) == (0, "cut", str(log_dir / copy))
    logged = offsetmgr("edits", "list", "--format", "json").rows[-1]
    (shown,) = offsetmgr("edits", "show", logged["id"], "--format", "json").rows
    assert (shown["operation"], shown["files"], shown["written"]) == ("log recover", str(log_dir / copy), 1)
    assert tree(log_dir) == {
        **{name: data for name, data in before.items() if NEWEST not in name},
        f"orders-0/{NEWEST}.log": SOUND,
        copy: JUNK,
        f"orders-0/{NEWEST}.index.before-cut-{len(SOUND)}": b"index",
        f"orders-0/{NEWEST}.timeindex.before-cut-{len(SOUND)}": b"times",
    }
    assert f"no running broker uses it (seen: no process holds the lock of {log_dir}/.lock" in done.err

    again = offsetmgr("log", "recover", log_dir, "--in-place", "--execute", "--yes", "--format", "json")
    assert (again.code, [row["action"] for row in again.rows]) == (0, ["nothing to cut"])


def test_segments_after_a_damaged_one_are_removed_as_by_a_broker(log_dir, older, tmp_path, offsetmgr) -> None:
    before = tree(log_dir)
    old, new = older.read_bytes(), SOUND + JUNK
    at = len(old) // 4

    shown = offsetmgr("log", "recover", log_dir, "--in-place", "--format", "json")
    (row,) = shown.rows
    assert (row["base_offset"], row["cut"], row["removed"]) == (0, len(old) - at + len(new), 1)
    assert (row["next_offset"], row["action"]) == (10, "would be cut")
    assert tree(log_dir) == before

    out = tmp_path / "out"
    assert offsetmgr("log", "recover", log_dir, "--to", out, "--execute").code == 0
    assert tree(out) == {
        "orders-0/00000000000000000000.log": old[:at],
        "orders-0/leader-epoch-checkpoint": b"0\n1\n0 0\n",
    }
    assert tree(log_dir) == before

    assert offsetmgr("log", "recover", log_dir, "--in-place", "--execute", "--yes").code == 0
    assert tree(log_dir / "orders-0") == {
        "00000000000000000000.log": old[:at],
        f"00000000000000000000.log.cut-from-{at}": old[at:],
        f"00000000000000000000.index.before-cut-{at}": b"",
        f"{NEWEST}.log.cut-from-0": new,
        f"{NEWEST}.index.before-cut-0": b"index",
        f"{NEWEST}.timeindex.before-cut-0": b"times",
        "leader-epoch-checkpoint": b"0\n1\n0 0\n",
    }


def test_the_removed_bytes_of_all_segments_are_kept_in_the_given_directory(log_dir, older, tmp_path, offsetmgr) -> None:
    keep = tmp_path / "keep"
    keep.mkdir()
    old = older.read_bytes()
    at = len(old) // 4

    assert offsetmgr("log", "recover", log_dir, "--in-place", "--keep", keep, "--execute", "--yes").code == 0

    assert older.read_bytes() == old[:at]
    assert sorted(file.name for file in older.parent.glob("*.log*")) == [older.name]
    assert tree(keep) == {
        f"orders-0.{older.name}.cut-from-{at}": old[at:],
        f"orders-0.{NEWEST}.log.cut-from-0": SOUND + JUNK,
    }


def test_a_single_file_is_cut_by_itself(older, log, offsetmgr) -> None:
    assert offsetmgr("log", "recover", older, "--in-place", "--execute", "--yes").code == 0

    assert log.read_bytes() == SOUND + JUNK


def test_the_removed_bytes_of_one_file_are_kept_in_the_given_directory(log_dir, log, tmp_path, offsetmgr) -> None:
    keep = tmp_path / "keep"
    keep.mkdir()

    done = offsetmgr("log", "recover", log, "--in-place", "--keep", keep, "--execute", "--yes")

    assert (done.code, log.read_bytes()) == (0, SOUND)
    assert tree(keep) == {f"orders-0.{NEWEST}.log.cut-from-{len(SOUND)}": JUNK}


def test_in_place_prompts_first(log, offsetmgr, monkeypatch) -> None:
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        done = offsetmgr("log", "recover", log, "--in-place", "--execute")

    assert (done.code, log.read_bytes()) == (2, SOUND + JUNK)
    assert done.err.endswith(
        "error: log recover: cut 1,000 bytes from 1 log in place: stdin is not a terminal, so the prompt "
        "cannot be answered\n"
        "hint: add --yes\n"
    )


def test_another_file_with_the_name_of_the_copy_is_never_overwritten(log_dir, log, offsetmgr) -> None:
    other = log.with_name(f"{log.name}.cut-from-{len(SOUND)}")
    other.write_bytes(b"of another day")
    before = tree(log_dir)

    done = offsetmgr("log", "recover", log, "--in-place", "--execute", "--yes")

    assert (done.code, tree(log_dir)) == (1, before)
    assert f"error: file {other}: already exists, and its content is not a copy of the bytes to remove\n" in done.err


def test_a_cut_where_a_broker_would_discard_the_segment_needs_strict(log, offsetmgr) -> None:
    block = b"".join(batch([Record(40 + n, None, None, b"x" * 1000)]) for n in range(20))
    log.write_bytes(block + block)

    refused = offsetmgr("log", "recover", log, "--in-place", "--execute", "--yes", "--format", "json")
    assert (refused.code, [row["action"] for row in refused.rows]) == (1, ["refused"])
    assert "a broker would discard the whole segment" in refused.err
    assert log.read_bytes() == block + block

    done = offsetmgr("log", "recover", log, "--in-place", "--strict", "--execute", "--yes", "--format", "json")
    assert (done.code, [(row["cut"], row["next_offset"]) for row in done.rows]) == (0, [(len(block), 60)])
    assert log.read_bytes() == block


def test_exactly_one_of_in_place_and_to_is_required(log, tmp_path, offsetmgr) -> None:
    for how in ([], ["--in-place", "--to", tmp_path / "out"], ["--to", tmp_path / "out", "--keep", tmp_path]):
        assert offsetmgr("log", "recover", log, *how).code == 2
