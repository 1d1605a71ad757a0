"""``log verify`` and ``log recover`` in the log directories of running brokers."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from damaged_log import JUNK, SOUND, tree

from offsetmgr.core.errors import Conflict
from offsetmgr.segments import broker_lock
from offsetmgr.segments.broker_lock import Use, detect_broker
from offsetmgr.segments.log_appender import LogAppender

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

    for more in ((), ("--execute",)):
        done = offsetmgr("log", "recover", log, "--to", log_dir / inside, "--format", "json", *more)

        assert (done.code, [row["action"] for row in done.rows], tree(log_dir)) == (1, ["refused"], before)
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


def test_a_new_partition_is_not_created_in_a_running_brokers_log_directory(log_dir, broker) -> None:
    with pytest.raises(Conflict, match="a running broker uses it"), LogAppender(log_dir / "new-0"):
        raise AssertionError("the appender has opened a log")

    assert not (log_dir / "new-0").exists(), "a broker would find a partition"


def test_without_a_lock_file_a_process_that_has_a_log_open_for_writing_is_a_running_broker(log_dir, log) -> None:
    (log_dir / ".lock").unlink()
    for process in process_holding(log, "open"):
        found = detect_broker(log)
        assert found.use is Use.RUNNING and not found.inferred
        assert found.how == f"no .lock in {log_dir}, but process {process.pid} has {log} open for writing"


def test_a_process_that_only_reads_a_log_is_no_broker(log_dir, log) -> None:
    (log_dir / ".lock").unlink()
    for process in process_holding(log, "read"):
        assert f"process {process.pid} " not in detect_broker(log).how


def test_nothing_is_cut_if_the_existence_of_a_running_broker_is_unknown(log_dir, log, tmp_path, offsetmgr, monkeypatch):
    (log_dir / ".lock").unlink()
    monkeypatch.setattr(broker_lock, "_PROC", tmp_path / "no-proc")

    done = offsetmgr("log", "recover", log, "--in-place", "--execute", "--yes")

    assert (done.code, log.read_bytes()) == (1, SOUND + JUNK)
    assert "it is unknown whether a running broker uses it (unknown: no .lock in" in done.err
    assert offsetmgr("log", "recover", log, "--to", tmp_path / "out", "--execute").code == 0


@pytest.mark.parametrize(
    ("command", "use"),
    [
        (b"/usr/bin/java\0-cp\0libs/*\0kafka.Kafka\0server.properties\0", Use.UNKNOWN),
        (b"/opt/kafka/kafka.Kafka\0start\0", Use.UNKNOWN),
        (b"/usr/sbin/sshd\0-D\0", Use.IDLE),
        (b"", Use.IDLE),
    ],
    ids=["java", "native image", "another program", "kernel thread"],
)
def test_only_a_process_of_another_user_that_may_be_a_broker_makes_the_result_unknown(
    log_dir, log, tmp_path, monkeypatch, command: bytes, use: Use
) -> None:
    (log_dir / ".lock").unlink()
    for name in ("self", "77"):
        (tmp_path / "proc" / name / "fd").mkdir(parents=True)
    (tmp_path / "proc" / "77" / "cmdline").write_bytes(command)
    listed = Path.iterdir

    def as_another_user(path: Path) -> Iterator[Path]:
        if path.name == "fd":
            raise PermissionError
        return listed(path)

    monkeypatch.setattr(broker_lock, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(Path, "iterdir", as_another_user)
    assert detect_broker(log).use is use


def test_no_broker_can_start_during_a_repair_although_another_check_has_ended(log_dir) -> None:
    program = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    command = [sys.executable, "-c", program, str(log_dir / ".lock")]
    with broker_lock.require_unused(log_dir / "orders-0"):
        with broker_lock.require_unused(log_dir):
            assert detect_broker(log_dir).how == f"this process itself holds the lock of {log_dir}/.lock"
        refused = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "BlockingIOError" in refused.stderr
    subprocess.run(command, timeout=120, check=True)
