"""Parts of the sandbox that need no server: directories, identities of processes, and the output of consumers."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from offsetmgr.core.errors import MalformedData, SandboxError, UnknownVersion, UsageError
from offsetmgr.sandbox import ConsumedMessage, OldConsumer, Sandbox, jars, ports, state
from offsetmgr.sandbox.java import java_program
from offsetmgr.sandbox.paths import cache_directory, state_directory
from offsetmgr.sandbox.process import log_tail
from offsetmgr.sandbox.process_ref import ProcessRef, wait_until
from offsetmgr.sandbox.state import SandboxState, ServerRecord


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that belongs to no sandbox."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    yield process
    process.kill()
    process.wait()


def fake_java(directory: Path, version: str) -> str:
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-01' >&2\n")
    program.chmod(0o755)
    return str(directory)


# --- processes -----------------------------------------------------------------------------------


def test_a_process_counts_as_stopped_only_after_the_signal_has_reached_it(
    bystander: subprocess.Popen[bytes],
) -> None:
    ref = ProcessRef.of(bystander.pid)
    assert not ref.stopped()

    ref.signal_group(signal.SIGSTOP)
    assert wait_until(ref.stopped, 30)

    ref.signal_group(signal.SIGCONT)
    assert wait_until(lambda: not ref.stopped(), 30)
    assert ref.alive()


# --- directories -------------------------------------------------------------------------------------


def test_the_cache_directory_is_the_named_one_then_xdgs_then_the_homes(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path / "home")}
    xdg = {**home, "XDG_CACHE_HOME": str(tmp_path / "xdg")}
    own = {**xdg, "OFFSETMGR_CACHE": str(tmp_path / "own")}

    assert cache_directory(home) == tmp_path / "home/.cache/offsetmgr"
    assert cache_directory(xdg) == tmp_path / "xdg/offsetmgr"
    assert cache_directory(own) == tmp_path / "own"
    assert (tmp_path / "own").is_dir()


def test_the_state_directory_is_the_named_one_then_xdgs_then_the_homes(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path / "home")}
    xdg = {**home, "XDG_STATE_HOME": str(tmp_path / "xdg")}

    assert state_directory(home) == tmp_path / "home/.local/state/offsetmgr/sandbox"
    assert state_directory(xdg) == tmp_path / "xdg/offsetmgr/sandbox"
    assert state_directory({**xdg, "OFFSETMGR_SANDBOX": str(tmp_path / "own")}) == tmp_path / "own"
    assert not (tmp_path / "own").exists()


def test_a_relative_xdg_directory_is_ignored_as_its_specification_says(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "XDG_CACHE_HOME": "relative"}

    assert cache_directory(environ) == tmp_path / ".cache/offsetmgr"


def test_a_cache_directory_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(SandboxError, match="cannot create") as caught:
        cache_directory({"OFFSETMGR_CACHE": str(tmp_path / "file" / "below")})

    assert caught.value.hint == "set OFFSETMGR_CACHE to a writable directory"


# --- java ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["17.0.15", "21", "25.0.1"])
def test_java_home_names_the_java(tmp_path: Path, version: str) -> None:
    assert java_program({"JAVA_HOME": fake_java(tmp_path, version)}) == str(tmp_path / "bin/java")


@pytest.mark.parametrize(("version", "major"), [("11.0.2", 11), ("1.8.0_402", 8)])
def test_an_old_java_is_refused_with_its_version(tmp_path: Path, version: str, major: int) -> None:
    with pytest.raises(SandboxError, match=f"is version {major}$") as caught:
        java_program({"JAVA_HOME": fake_java(tmp_path, version)})

    assert caught.value.hint == "install Java 17 or later, or set JAVA_HOME to one"


def test_no_java_at_all_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="no java program found in JAVA_HOME or on PATH"):
        java_program({"PATH": str(tmp_path)})


# --- jars ----------------------------------------------------------------------------------------


def test_an_unknown_set_of_jars_names_the_known_ones() -> None:
    with pytest.raises(SandboxError, match=r"known are kafka-3\.9, kafka-4\.4, "):
        jars.resolve("kafka-5.0")


def test_the_sandbox_does_not_need_pyspark() -> None:
    program = (
        "import sys; sys.modules['pyspark'] = None; from offsetmgr import sandbox; "
        "print('offsetmgr.spark.connector' in sys.modules)"
    )

    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert output == "False\n"


def test_an_unreachable_repository_of_ivy_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OFFSETMGR_CACHE", str(tmp_path))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")

    with pytest.raises(SandboxError, match=r"cannot fetch Apache Ivy: .*[Pp]roxy") as caught:
        jars.resolve("kafka-0.10.2")

    assert caught.value.hint == "check the network connection and the proxy settings, then try again"
    assert [path.name for path in tmp_path.iterdir()] == ["resolve.lock"]


@pytest.mark.slow
def test_a_failed_resolution_reports_the_reason_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OFFSETMGR_CACHE", str(tmp_path))
    # Given a repository that cannot be reached: the JVM uses a proxy that does not exist.
    monkeypatch.setenv(
        "JAVA_TOOL_OPTIONS",
        "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=1 -Dhttp.proxyHost=127.0.0.1 -Dhttp.proxyPort=1",
    )

    with pytest.raises(SandboxError, match=r"cannot fetch the jars of kafka-0\.10\.2: .*kafka_2\.11") as caught:
        jars.resolve("kafka-0.10.2")

    assert "check the network" in caught.value.hint
    assert list((tmp_path / "jars").iterdir()) == []


# --- processes -----------------------------------------------------------------------------------


def test_a_process_is_distinguished_from_a_later_one_with_its_pid(bystander: subprocess.Popen[bytes]) -> None:
    real = ProcessRef.of(bystander.pid)
    stale = ProcessRef(bystander.pid, real.started + "1")

    stale.signal_group(signal.SIGKILL)

    assert (real.alive(), stale.alive()) == (True, False)
    assert bystander.poll() is None


def test_a_process_that_ended_is_not_alive_even_before_it_is_reaped(bystander: subprocess.Popen[bytes]) -> None:
    process = ProcessRef.of(bystander.pid)

    assert process.stop(5) is True

    assert process.alive() is False


def test_down_does_not_stop_another_process_with_a_recycled_pid(
    bystander: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    recycled = ServerRecord("broker", "broker-0", "3.9.1", str(tmp_path), bystander.pid, "another start", "127.0.0.1:1")
    state.save(tmp_path, SandboxState(1, False, True, (recycled,)))

    assert Sandbox(tmp_path).down() == []

    assert bystander.poll() is None
    assert Sandbox(tmp_path).status() is None


def test_the_tail_of_a_log_is_its_errors_if_it_has_any(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("INFO fine\nERROR broken\n\tat some.Class\nINFO more\n")

    assert log_tail(log) == "ERROR broken"
    assert log_tail(tmp_path / "none") == "it wrote no log"


# --- ports ---------------------------------------------------------------------------------------


def test_a_free_port_is_below_the_ephemeral_ports() -> None:
    assert 20_000 <= ports.free_port() < 32_000


def test_a_port_in_use_is_not_free_and_a_silent_listener_is_no_server() -> None:
    with socket.create_server((ports.HOST, 0)) as taken:
        taken.listen()
        port = taken.getsockname()[1]

        assert ports.is_free(port) is False
    assert ports.broker_responds(port) is False
    assert ports.zookeeper_responds(port) is False


# --- state ---------------------------------------------------------------------------------------


def test_a_state_of_an_unknown_version_is_named(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(json.dumps({"version": 7}))

    with pytest.raises(UnknownVersion, match="version 7"):
        state.load(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1}', '{"version": 1, "servers": [{}]}'])
def test_a_damaged_state_file_is_an_error_and_not_an_empty_sandbox(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)

    with pytest.raises(MalformedData, match=r"state\.json"):
        state.load(tmp_path)


def test_a_state_that_cannot_be_read_is_an_error_and_not_an_empty_sandbox(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(SandboxError, match=r"cannot read .*Not a directory"):
        Sandbox(tmp_path / "file").status()


def test_the_command_line_of_an_empty_directory(tmp_path: Path) -> None:
    def run(command: str) -> tuple[int, str, str]:
        program = [str(Path(sys.executable).with_name("offsetmgr")), "sandbox", *command.split()]
        done = subprocess.run([*program, "--state", str(tmp_path)], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    nothing_up = f"error: no sandbox is up in {tmp_path}\nhint: start one: offsetmgr sandbox up\n"
    assert run("status --format json") == (1, "[]\n", f"no sandbox is up in {tmp_path}\n")
    assert run("env") == (1, "", nothing_up)
    assert run("down") == (0, "", "nothing was running\n")
    assert run("up --brokers 0") == (2, "", "error: cannot start 0 brokers: it is 1 to 9\n")
    assert run("up --old-consumers 2")[0] == 2
    assert run("up --old-consumers 2 --group g --topic t --kraft")[0] == 2


def test_a_data_directory_that_no_sandbox_created_is_never_removed(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "thesis.txt").write_text("years of work")

    with pytest.raises(SandboxError, match="was not created by a sandbox"):
        Sandbox(tmp_path).up()
    Sandbox(tmp_path).down()

    assert (tmp_path / "data" / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize(("brokers", "kraft"), [(0, False), (10, False), (3, True)])
def test_an_impossible_number_of_brokers_is_rejected(tmp_path: Path, brokers: int, kraft: bool) -> None:
    with pytest.raises(UsageError, match=f"cannot start {brokers} brokers"):
        Sandbox(tmp_path).up(brokers=brokers, kraft=kraft)

    assert list(tmp_path.iterdir()) == []


# --- the old consumer's output -------------------------------------------------------------------


def test_messages_are_read_back_byte_for_byte_without_a_torn_last_line(tmp_path: Path) -> None:
    consumer = OldConsumer(tmp_path, zookeeper="127.0.0.1:1", group="g", topic="t")
    assert consumer.messages() == []

    consumer.output_file.write_bytes(
        b"0\t41\t\\N\t\tt\t1700000000000\n3\t7\tk\\x09\ta\\x5cn\\xff\tu\t1700000000001\n0\t42\t\\N\thalf"
    )

    assert consumer.messages() == [
        ConsumedMessage(0, 41, None, b"", "t", 1_700_000_000_000),
        ConsumedMessage(3, 7, b"k\t", b"a\\n\xff", "u", 1_700_000_000_001),
    ]
