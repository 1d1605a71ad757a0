"""Parts of the sandbox that need no server: directories, identities of processes, and the output of consumers."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from in_process import Output, command

from offsetmgr.core.errors import SandboxError
from offsetmgr.sandbox import ConsumedMessage, MirrorMaker, OldConsumer, Sandbox, jars, ports, state
from offsetmgr.sandbox.java import java_program
from offsetmgr.sandbox.paths import cache_directory, state_directory
from offsetmgr.sandbox.process import log_tail
from offsetmgr.sandbox.process_ref import ProcessRef
from offsetmgr.sandbox.state import SandboxState, ServerRecord


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that belongs to no sandbox."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    yield process
    process.kill()
    process.wait()


def fake_java(directory: Path, version: str, commands: str = "") -> str:
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-01' >&2\n{commands}")
    program.chmod(0o755)
    return str(directory)


def test_a_directory_is_the_named_one_then_xdgs_then_the_homes(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path / "home")}
    cache, state = {**home, "XDG_CACHE_HOME": str(tmp_path / "xdg")}, {**home, "XDG_STATE_HOME": str(tmp_path / "xdg")}
    assert cache_directory(home) == tmp_path / "home/.cache/offsetmgr"
    assert cache_directory({**home, "XDG_CACHE_HOME": "relative"}) == tmp_path / "home/.cache/offsetmgr"
    assert cache_directory(cache) == tmp_path / "xdg/offsetmgr"
    assert cache_directory({**cache, "OFFSETMGR_CACHE": str(tmp_path / "own")}) == tmp_path / "own"
    assert (tmp_path / "own").is_dir()
    assert state_directory(home) == tmp_path / "home/.local/state/offsetmgr/sandbox"
    assert state_directory(state) == tmp_path / "xdg/offsetmgr/sandbox"
    assert state_directory({**state, "OFFSETMGR_SANDBOX": str(tmp_path / "state")}) == tmp_path / "state"
    assert not (tmp_path / "state").exists()


def test_a_cache_directory_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SandboxError, match="cannot create") as caught:
        cache_directory({"OFFSETMGR_CACHE": str(tmp_path / "file" / "below")})
    assert caught.value.hint == "set OFFSETMGR_CACHE to a writable directory"


@pytest.mark.parametrize(
    ("version", "old"), [("17.0.15", None), ("21", None), ("25.0.1", None), ("11.0.2", 11), ("1.8.0_402", 8)]
)
def test_java_home_names_the_java_and_an_old_one_is_refused(tmp_path: Path, version: str, old: int | None) -> None:
    home = {"JAVA_HOME": fake_java(tmp_path, version)}
    if old is None:
        assert java_program(home) == str(tmp_path / "bin/java")
        return
    with pytest.raises(SandboxError, match=f"is version {old}$") as caught:
        java_program(home)
    assert caught.value.hint == "install Java 17 or later, or set JAVA_HOME to one"


def test_no_java_at_all_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="no java program found in JAVA_HOME or on PATH"):
        java_program({"PATH": str(tmp_path)})


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


def test_a_set_of_jars_is_fetched_with_its_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OFFSETMGR_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "ivy-2.5.3.jar").touch()
    commands = (
        '[ "$1" = -version ] && exit\nwhile [ "$1" != -retrieve ]; do [ "$1" = -ivy ] && ivy="$2"; shift; done\n'
        f'cp "$ivy" "{tmp_path}/ivy.xml"; target="$(dirname "$2")"; mkdir "$target"; touch "$target/a.jar"\n'
        'for n in $(seq 25); do echo "downloading $n"; done\n'
    )
    monkeypatch.setenv("JAVA_HOME", fake_java(tmp_path, "21", commands))
    lines: list[str] = []
    directory = jars.resolve("kafka-4.4", lines.append)
    assert [jar.name for jar in directory.glob("*.jar")] == ["a.jar"]
    fetching = "fetching the jars of kafka-4.4"
    assert lines == [fetching, f"{fetching}: 10 so far", f"{fetching}: 20 so far", "fetched 1 jars of kafka-4.4"]
    alone = 'name="kafka-tools" rev="4.4.0" transitive="false" conf="default"/>'
    assert alone in (tmp_path / "ivy.xml").read_text()
    assert jars.resolve("kafka-4.4", lines.append) == directory
    assert len(lines) == 4


@pytest.mark.slow
def test_a_failed_resolution_reports_the_reason_and_leaves_no_files(tmp_path, monkeypatch) -> None:
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


def test_down_does_not_stop_another_process_with_a_recycled_pid(bystander: subprocess.Popen[bytes], tmp_path) -> None:
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


def test_a_free_port_is_below_the_ephemeral_ports() -> None:
    assert 20_000 <= ports.free_port() < 32_000


def test_a_port_in_use_is_not_free_and_a_silent_listener_is_no_server() -> None:
    with socket.create_server((ports.HOST, 0)) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        assert ports.is_free(port) is False
    assert ports.broker_responds(port) is False
    assert ports.zookeeper_responds(port) is False


def test_the_command_line_of_a_directory_without_a_sandbox(tmp_path: Path) -> None:
    def run(words: str, code: int = 2, state: Path = tmp_path) -> Output:
        return command("sandbox", *words.split(), "--state", state, code=code)

    nothing_up = f"error: no sandbox is up in {tmp_path}\nhint: start one: offsetmgr sandbox up --state {tmp_path}\n"
    assert run("status --format json", 1) == ("[]\n", f"no sandbox is up in {tmp_path}\n")
    assert run("env", 1) == ("", nothing_up)
    assert run("down", 0) == ("", "nothing was running\n")
    assert run("up --brokers 0") == ("", "error: cannot start 0 brokers: --brokers is 1 to 9\n")
    for count, kraft in ((10, ""), (3, "--kraft")):
        assert f"error: cannot start {count} brokers" in run(f"up --brokers {count} {kraft}").stderr
    run("up --old-consumers 2")
    run("up --old-consumers 2 --group g --topic t --kraft")
    assert run("up --mirror") == ("", "error: --mirror: needs two clusters\nhint: add --clusters 2\n")
    assert run("up --mirror-config a=b").stderr.startswith("error: --mirror-config: needs a MirrorMaker\n")
    assert run("up --clusters 3") == ("", "error: cannot start 3 clusters: --clusters is 1 or 2\n")
    old = run("up --clusters 2 --mirror --broker-version 0.10.2.2").stderr
    assert old.startswith("error: --mirror: needs brokers from 2.1 on\n")
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]
    file = tmp_path / "state.json"
    for text in ("", "[]", "{}", '{"version": 1}', '{"version": 1, "servers": [{}]}', '{"version": 7}'):
        file.write_text(text)
        for words in ("status", "env", "down"):
            assert ("version 7" if "7" in text else "not a sandbox's state") in run(words, 1).stderr
    assert "Not a directory" in run("status", 1, file).stderr


def test_the_command_line_of_a_running_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = ProcessRef.of(os.getpid())
    broker, mirror = (
        ServerRecord(kind, name, "4.4.0", str(tmp_path), own.pid, started, f"127.0.0.1:{number}")
        for number, (kind, name, started) in enumerate(
            [("broker", "broker-1", own.started), ("mirror-maker", "mirror-maker", "another start")]
        )
    )
    state.save(tmp_path, SandboxState(1, True, True, (broker, mirror)))
    named = command("sandbox", "up", "--state", tmp_path, code=1).stderr
    assert f"hint: stop it first: offsetmgr sandbox down --state {tmp_path}; or name" in named
    ended = "mirror-maker is not running; the same offsetmgr sandbox up starts it again\n"
    assert command("sandbox", "status", "--state", tmp_path, code=1).stderr == ended
    monkeypatch.setenv("OFFSETMGR_SANDBOX", str(tmp_path))
    assert "hint: stop it first: offsetmgr sandbox down; or name" in command("sandbox", "up", code=1).stderr


def test_a_data_directory_that_no_sandbox_created_is_never_removed(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "thesis.txt").write_text("years of work")
    with pytest.raises(SandboxError, match="was not created by a sandbox"):
        Sandbox(tmp_path).up()
    Sandbox(tmp_path).down()
    assert (tmp_path / "data" / "thesis.txt").read_text() == "years of work"


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


def test_a_mirror_maker_has_chosen_settings(tmp_path: Path) -> None:
    plain = MirrorMaker(tmp_path, source="a:1", target="b:2").settings()
    assert (plain["A->B.enabled"], plain["A->B.topics"], plain["B->A.enabled"]) == ("true", ".*", "false")
    assert (plain["A.bootstrap.servers"], plain["B.bootstrap.servers"]) == ("a:1", "b:2")
    assert (plain["offset-syncs.topic.replication.factor"], plain["emit.checkpoints.interval.seconds"]) == (1, 5)
    assert str(plain["replication.policy.class"]).endswith(".IdentityReplicationPolicy")
    chosen = MirrorMaker(
        tmp_path,
        source="b:2",
        target="a:1",
        aliases=("B", "A"),
        topics="orders",
        groups="shop.*,bank",
        policy="default",
        interval_s=1,
        config={"A.offset.flush.interval.ms": 60_000, "tasks.max": 2},
    ).settings()
    assert (chosen["B->A.enabled"], chosen["B->A.topics"], chosen["B->A.groups"]) == ("true", "orders", "shop.*,bank")
    assert (chosen["A->B.enabled"], chosen["sync.group.offsets.interval.seconds"]) == ("false", 1)
    assert (chosen["A.offset.flush.interval.ms"], chosen["tasks.max"]) == (60_000, 2)
    assert str(chosen["replication.policy.class"]).endswith(".DefaultReplicationPolicy")
