"""``log verify`` and ``log recover``: their reports, their cuts and copies, and the directories that they protect."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from offsetmgr.cli.app import run
from offsetmgr.core.errors import Conflict
from offsetmgr.groups.operation_log import OperationLog
from offsetmgr.segments import broker_lock
from offsetmgr.segments.batch_builder import batch
from offsetmgr.segments.batch_reader import Record
from offsetmgr.segments.broker_lock import Use, detect_broker
from offsetmgr.segments.log_appender import LogAppender
from offsetmgr.segments.segment import Segment
from offsetmgr.segments.truncation import examine_segment, truncation_point

SOUND = b"".join(batch([Record(40 + n, None, b"k", b"v" * 90)]) for n in range(5))
JUNK = bytes(1000)
NEWEST = "00000000000000000040"


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """A broker's log directory: one partition with two segments, of which the newer one ends with invalid bytes."""
    directory = tmp_path / "kafka" / "orders-0"
    directory.mkdir(parents=True)
    (directory / "00000000000000000000.log").write_bytes(
        b"".join(batch([Record(n, None, None, b"old")]) for n in range(40))
    )
    (directory / "00000000000000000000.index").write_bytes(b"")
    (directory / f"{NEWEST}.log").write_bytes(SOUND + JUNK)
    (directory / f"{NEWEST}.index").write_bytes(b"index")
    (directory / f"{NEWEST}.timeindex").write_bytes(b"times")
    (directory / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    (tmp_path / "kafka" / "meta.properties").write_text("version=0\nbroker.id=0\n")
    (tmp_path / "kafka" / ".lock").touch()
    return tmp_path / "kafka"


@pytest.fixture
def log(log_dir: Path) -> Path:
    """The segment with the invalid bytes."""
    return log_dir / "orders-0" / f"{NEWEST}.log"


def tree(directory: Path) -> dict[str, bytes]:
    """Returns the content of every file below a directory, by path."""
    return {str(file.relative_to(directory)): file.read_bytes() for file in directory.rglob("*") if file.is_file()}


class CommandResult:
    """The exit code and the output of a command."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def rows(self) -> list[dict[str, object]]:
        rows: list[dict[str, object]] = json.loads(self.out)
        return rows


@pytest.fixture
def offsetmgr(capsys: pytest.CaptureFixture[str]):
    def call(*arguments: object) -> CommandResult:
        code = run([str(argument) for argument in arguments])
        return CommandResult(code, *capsys.readouterr())

    return call


# --- verify ---------------------------------------------------------------------------------------


def test_verify_reports_the_sound_part_and_the_recovery_of_a_broker(log_dir, offsetmgr) -> None:
    before = tree(log_dir)

    done = offsetmgr("log", "verify", log_dir, "--format", "json")

    assert done.code == 1
    first, second = done.rows
    assert {name: first[name] for name in ("partition", "base_offset", "entries", "next_offset", "state", "why")} == {
        "partition": "orders-0",
        "base_offset": 0,
        "entries": 40,
        "next_offset": 40,
        "state": "sound",
        "why": None,
    }
    assert second == {
        "path": str(log_dir / "orders-0" / f"{NEWEST}.log"),
        "partition": "orders-0",
        "base_offset": 40,
        "size": len(SOUND) + 1000,
        "entries": 5,
        "next_offset": 45,
        "state": "invalid entry",
        "sound": len(SOUND),
        "broker": "cut",
        "suspicious_entries": 0,
        "why": f"position {len(SOUND)}: an entry cannot have 0 bytes",
    }
    assert done.err == "2 segments, 1 not sound\n"
    assert tree(log_dir) == before


def test_verify_exits_with_0_if_all_is_sound_and_can_omit_sound_segments(log_dir, log, offsetmgr) -> None:
    log.write_bytes(SOUND)

    done = offsetmgr("log", "verify", log_dir / "orders-0", "--only-damaged", "--format", "json")

    assert (done.code, done.rows, done.err) == (0, [], "2 segments, 0 not sound\n")


def test_verify_of_one_file_finds_a_missing_tail(log, offsetmgr) -> None:
    log.write_bytes(SOUND[:-1])

    done = offsetmgr("log", "verify", log, "--format", "json")

    (row,) = done.rows
    assert (done.code, row["state"], row["next_offset"]) == (1, "missing tail", 44)


def test_offsets_in_doubt_are_a_difference(log, offsetmgr) -> None:
    log.write_bytes(SOUND + SOUND)

    done = offsetmgr("log", "verify", log, "--format", "json")

    (row,) = done.rows
    assert (done.code, row["state"], row["broker"], row["suspicious_entries"], row["sound"]) == (
        1,
        "in doubt",
        "kept",
        1,
        2 * len(SOUND),
    )
    assert row["why"] == f"position {len(SOUND)}: offset 40 comes after 44: one of the two entries was altered"


def test_a_path_that_is_no_log_is_rejected_by_name(tmp_path, log_dir, offsetmgr) -> None:
    (tmp_path / "empty").mkdir()
    old = tmp_path / "orders_0"
    old.mkdir()
    (old / "00000000000.kafka").write_bytes(b"")

    for path, code, words in (
        (tmp_path / "nowhere", 2, "does not exist"),
        (tmp_path / "empty", 2, "holds no log"),
        (log_dir / "meta.properties", 1, "name is not that of a log segment"),
        (old, 1, "Kafka 0.7"),
    ):
        done = offsetmgr("log", "verify", path)
        assert (done.code, words in done.err) == (code, True), done.err


# --- recover --------------------------------------------------------------------------------------


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
    assert (done.code, row["action"], row["cut"], row["next_offset"], row["copy"]) == (
        0,
        "copied",
        1000,
        45,
        str(out / "orders-0"),
    )
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
    logged = OperationLog().operations()[-1]
    assert (logged.start.name, logged.start.files, logged.written) == ("log recover", (str(log_dir / copy),), 1)
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


@pytest.fixture
def older(log_dir: Path) -> Path:
    """The older segment, damaged in the middle. The valid part of the log ends there."""
    file = log_dir / "orders-0" / f"{0:020}.log"
    data = bytearray(file.read_bytes())
    data[10 * len(data) // 40 + 30] ^= 1  # in the eleventh entry
    file.write_bytes(data)
    return file


def test_segments_after_a_damaged_one_are_removed_as_by_a_broker(log_dir, older, tmp_path, offsetmgr) -> None:
    before = tree(log_dir)
    old, new = older.read_bytes(), SOUND + JUNK
    at = len(old) // 4

    shown = offsetmgr("log", "recover", log_dir, "--in-place", "--format", "json")
    (row,) = shown.rows
    assert [row[name] for name in ("base_offset", "cut", "removed", "next_offset", "action")] == [
        0,
        len(old) - at + len(new),
        1,
        10,
        "would be cut",
    ]
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


# --- running brokers ------------------------------------------------------------------------------

HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "rb" if sys.argv[2] == "read" else "r+b")
if sys.argv[2] == "lock":
    fcntl.lockf(file, fcntl.LOCK_EX)
print("ready", flush=True)
sys.stdin.read()
"""


def process_holding(file: Path, how: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has a file open, or holds its lock as Java's FileChannel.tryLock does."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(file), how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.communicate()


@pytest.fixture
def broker(log_dir: Path) -> Iterator[subprocess.Popen[str]]:
    yield from process_holding(log_dir / ".lock", "lock")


def test_a_running_brokers_logs_are_never_cut(log_dir, log, broker, offsetmgr) -> None:
    before = tree(log_dir)

    done = offsetmgr("log", "recover", log_dir, "--in-place", "--execute", "--yes", "--format", "json")

    assert (done.code, [row["action"] for row in done.rows], tree(log_dir)) == (1, ["refused"], before)
    how = f"a running broker uses it (seen: process {broker.pid} holds the lock of {log_dir}/.lock)"
    assert f"error: directory {log_dir}/orders-0: {how}\n" in done.err


def test_a_running_brokers_logs_are_verified_and_copied_and_the_broker_is_reported(
    log_dir, tmp_path, broker, offsetmgr
) -> None:
    seen = offsetmgr("log", "verify", log_dir)
    assert f"process {broker.pid} holds the lock" in seen.err

    assert offsetmgr("log", "recover", log_dir, "--to", tmp_path / "out", "--execute").code == 0


@pytest.mark.parametrize("inside", [".", "deep/er"])
def test_no_copy_is_written_into_a_running_brokers_log_directory(log_dir, log, broker, offsetmgr, inside) -> None:
    before = tree(log_dir)

    done = offsetmgr("log", "recover", log, "--to", log_dir / inside, "--execute")

    assert (done.code, tree(log_dir)) == (1, before)
    assert "a running broker uses it" in done.err


@pytest.mark.parametrize("more", [[], ["--execute", "--yes"]], ids=["dry", "executed"])
def test_removed_bytes_are_not_kept_in_a_running_brokers_log_directory(log, tmp_path, broker, offsetmgr, more) -> None:
    mine = tmp_path / "orders-0" / log.name
    mine.parent.mkdir()
    mine.write_bytes(SOUND + JUNK)
    before = tree(tmp_path)

    done = offsetmgr("log", "recover", mine, "--in-place", "--keep", log.parent.parent, *more)

    assert (done.code, tree(tmp_path)) == (1, before)
    assert "a running broker uses it" in done.err
    assert "hint: stop the broker, or name another directory with --keep" in done.err


def test_a_dry_run_is_rejected_like_the_run(log_dir, log, broker, offsetmgr) -> None:
    done = offsetmgr("log", "recover", log, "--to", log_dir / "copies", "--format", "json")

    assert (done.code, [row["action"] for row in done.rows]) == (1, ["refused"])
    assert "a running broker uses it" in done.err


def test_a_new_partition_is_not_created_in_a_running_brokers_log_directory(log_dir, broker) -> None:
    with pytest.raises(Conflict, match="a running broker uses it"), LogAppender(log_dir / "new-0"):
        raise AssertionError("the appender has opened a log")

    assert not (log_dir / "new-0").exists(), "a broker would find a partition"


def test_without_a_lock_file_a_process_that_has_a_log_open_for_writing_is_a_running_broker(log_dir, log) -> None:
    (log_dir / ".lock").unlink()
    for process in process_holding(log, "open"):
        found = detect_broker(log)
        assert (found.use, found.known) == (Use.RUNNING, "seen")
        assert found.how == f"no .lock in {log_dir}, but process {process.pid} has {log} open for writing"


def test_a_process_that_only_reads_a_log_is_no_broker(log_dir, log) -> None:
    (log_dir / ".lock").unlink()
    for process in process_holding(log, "read"):
        assert f"process {process.pid} " not in detect_broker(log).how


def test_nothing_is_cut_if_the_existence_of_a_running_broker_is_unknown(
    log_dir, log, tmp_path, offsetmgr, monkeypatch
) -> None:
    (log_dir / ".lock").unlink()
    monkeypatch.setattr(broker_lock, "_PROC", tmp_path / "no-proc")

    done = offsetmgr("log", "recover", log, "--in-place", "--execute", "--yes")

    assert (done.code, log.read_bytes()) == (1, SOUND + JUNK)
    assert "it is unknown whether a running broker uses it (unknown: no .lock in" in done.err
    assert offsetmgr("log", "recover", log, "--to", tmp_path / "out", "--execute").code == 0


def test_processes_that_cannot_be_read_make_the_result_unknown(log_dir, log, monkeypatch) -> None:
    (log_dir / ".lock").unlink()
    monkeypatch.setattr(broker_lock, "_writes_to", lambda process, files: None)

    found = detect_broker(log)

    assert (found.use, found.known) == (Use.UNKNOWN, "unknown")
    assert "processes cannot be read" in found.how


def test_no_broker_can_start_during_a_repair(log_dir) -> None:
    program = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    command = [sys.executable, "-c", program, str(log_dir / ".lock")]
    with broker_lock.require_unused(log_dir / "orders-0"):
        refused = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "BlockingIOError" in refused.stderr
    subprocess.run(command, timeout=60, check=True)


def test_a_second_check_does_not_release_the_lock_of_the_first(log_dir) -> None:
    program = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    command = [sys.executable, "-c", program, str(log_dir / ".lock")]
    with broker_lock.require_unused(log_dir / "orders-0"):
        with broker_lock.require_unused(log_dir):
            assert detect_broker(log_dir).how == f"this process itself holds the lock of {log_dir}/.lock"
        refused = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "BlockingIOError" in refused.stderr
    subprocess.run(command, timeout=60, check=True)


# --- failures -------------------------------------------------------------------------------------


def limit_file_size() -> None:
    """Simulates a full disk: a write beyond the limit writes the bytes that fit, and fails."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))


@pytest.mark.parametrize("how", ["--in-place", "--to"])
def test_a_full_disk_is_one_clear_error_and_nothing_is_lost(log_dir, log, tmp_path, how) -> None:
    log.write_bytes(SOUND + 9 * JUNK)
    before = tree(log_dir)
    out = [] if how == "--in-place" else [str(tmp_path / "out")]

    done = subprocess.run(
        [sys.executable, "-m", "offsetmgr", "log", "recover", str(log_dir), how, *out, "--execute", "--yes"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")},  # a short operation log
        preexec_fn=limit_file_size,
    )

    assert (done.returncode, tree(log_dir)) == (1, before)
    assert ": File too large\nhint: " in done.stderr
    assert "free disk space" in done.stderr
    assert tree(tmp_path / "out") == {}


def run_killed_at_each_step(command: str, log: Path, directory: Path, moment: str) -> int:
    script = Path(__file__).with_name("killed_recovery.py")
    arguments = [sys.executable, str(script), command, str(log), str(directory), moment]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "torn", "after"])
def test_a_cut_killed_at_any_step_leaves_the_old_log_or_the_new_one_and_the_copy(
    log, tmp_path, offsetmgr, moment
) -> None:
    steps = run_killed_at_each_step("cut", log, tmp_path / "dead", moment)

    outcomes = []
    for step in range(steps + 1):
        directory = tmp_path / "dead" / str(step) / "orders-0"
        mine, copy = directory / log.name, directory / f"{log.name}.cut-from-{len(SOUND)}"
        was_cut = mine.read_bytes() == SOUND
        if was_cut:
            assert copy.read_bytes() == JUNK
        else:
            assert mine.read_bytes() == SOUND + JUNK
        outcomes.append(was_cut)
        for name in ("meta.properties", ".lock"):  # faster than a scan of all processes
            (directory.parent / name).touch()
        assert offsetmgr("log", "recover", directory, "--in-place", "--execute", "--yes").code == 0
        assert (mine.read_bytes(), copy.read_bytes()) == (SOUND, JUNK)
        assert not (directory / f"{NEWEST}.index").exists()
    assert steps >= 8
    assert outcomes == sorted(outcomes)
    assert outcomes.count(True) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "torn", "after"])
def test_a_cut_in_an_older_segment_killed_at_any_step_loses_nothing_and_leaves_no_hole(
    older, log, tmp_path, offsetmgr, moment
) -> None:
    old, new = older.read_bytes(), log.read_bytes()
    at = len(old) // 4
    steps = run_killed_at_each_step("cut", older, tmp_path / "dead", moment)

    for step in range(steps + 1):
        directory = tmp_path / "dead" / str(step) / "orders-0"
        for name in ("meta.properties", ".lock"):
            (directory.parent / name).touch()
        found = tree(directory)
        newer_exists = f"{NEWEST}.log" in found
        assert found[f"{NEWEST}.log" if newer_exists else f"{NEWEST}.log.cut-from-0"] == new
        if found[older.name] == old[:at]:
            assert (found[f"{older.name}.cut-from-{at}"], newer_exists) == (old[at:], False)
        else:
            assert found[older.name] == old
        assert offsetmgr("log", "recover", directory, "--in-place", "--execute", "--yes").code == 0
        after = tree(directory)
        logs = {name: data for name, data in after.items() if ".log" in name}
        assert logs == {
            older.name: old[:at],
            f"{older.name}.cut-from-{at}": old[at:],
            f"{NEWEST}.log.cut-from-0": new,
        }
    assert steps >= 10


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "torn", "after"])
def test_a_copy_killed_at_any_step_is_complete_or_absent(log, tmp_path, offsetmgr, moment) -> None:
    before = tree(log.parent)
    steps = run_killed_at_each_step("copy", log, tmp_path / "dead", moment)

    for step in range(steps + 1):
        directory = tmp_path / "dead" / str(step)
        assert tree(directory / "orders-0") == before
        repaired = directory / "repaired"
        if not repaired.exists():
            assert (
                offsetmgr("log", "recover", directory / "orders-0", "--to", directory / "again", "--execute").code == 0
            )
            repaired = directory / "again" / "orders-0"
        assert tree(repaired)[log.name] == SOUND
        assert set(tree(repaired)) == set(before) - {f"{NEWEST}.index", f"{NEWEST}.timeindex"}
    assert steps >= 12


def test_a_log_that_has_changed_since_it_was_examined_is_not_cut(log) -> None:
    from offsetmgr.core.errors import Conflict
    from offsetmgr.segments.repair import truncate_in_place

    cut = truncation_point(examine_segment(Segment.of(log)))
    with log.open("ab") as more:
        more.write(b"more")

    with pytest.raises(Conflict, match="has changed since it was examined"):
        truncate_in_place(cut)
    assert log.read_bytes() == SOUND + JUNK + b"more"
