"""Commands that are killed or whose terminal hangs up midway, and the next run after them, on a real broker."""

import itertools
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeTopic
from event_loop_thread import EventLoopThread
from everyday import Cli
from processes import OFFSETMGR, fill, start_command, until
from terminal import start_on_terminal

from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import Change, GroupEdit
from offsetmgr.kafka.client.client import Client
from offsetmgr.kafka.client.connection import Security
from offsetmgr.kafka.cluster import KafkaCluster
from offsetmgr.kafka.groups.group_lock import StaticMemberLock
from offsetmgr.sandbox import KafkaBroker
from offsetmgr.stores.kafka import KafkaStore

pytestmark = pytest.mark.servers

GROUPS = 700  # more than twice the groups that are in flight together, so that a signal finds some not begun
BEFORE, AFTER = 0, 1
WAITS = "for the lock of another or a killed run of offsetmgr on"


def start(cli: Cli, directory: Path, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    return start_command(*arguments, environ=cli.environ, cwd=directory, text=False, **options)


def on_a_terminal(
    cli: Cli, directory: Path, *arguments: str, nohup: bool = False
) -> tuple[subprocess.Popen[bytes], int]:
    """Starts the command with its own controlling terminal, whose other end is returned."""
    command = [*OFFSETMGR, *arguments]
    return start_on_terminal(command, before="trap '' HUP" if nohup else "", env=cli.environ, cwd=directory)


@dataclass
class Scene:
    """Groups with offset 0 in Kafka, and a plan that sets them to offset 1. ``cli`` runs in ``directory``."""

    cli: Cli
    directory: Path
    bootstrap: str
    topic: str
    names: list[str]
    store: KafkaStore
    cluster: KafkaCluster

    @property
    def plan(self) -> Path:
        return self.directory / "plan.json"

    def migrate(self, step: str, *more: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        return self.cli("migrate", step, str(self.plan), "--yes", *more, code=code)

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        return start(self.cli, self.directory, *arguments, **options)

    def offsets(self) -> list[int]:
        tp = TopicPartition(self.topic, 0)
        found = {one.name: one.offsets[tp] for one in self.store.scan(self.names)}
        return [found[name].offset for name in self.names]

    def locked(self) -> list[str]:
        """The groups that have members."""
        described = self.cluster.describe_groups(self.names)
        return [name for name, one in described.items() if not isinstance(one, Exception) and one.members]

    def wait_until_writing(
        self, process: subprocess.Popen[bytes], kind: bytes, act: Callable[[], object] = lambda: None
    ) -> None:
        """Waits until the process is writing: its journal has an intent. Freezes it, calls ``act``, and lets it go on.
        Before, it runs only for moments, so that it does not end too early if this test hardly gets a processor."""
        journal = self.plan.with_suffix(".journal")
        for _ in range(10_000):
            time.sleep(0.02 if not journal.exists() else 0.001)  # the process runs
            process.send_signal(signal.SIGSTOP)
            assert process.poll() is None, "the process ended before it wrote an intent"
            if journal.exists() and kind + b"-intent" in journal.read_bytes():
                break
            process.send_signal(signal.SIGCONT)
        else:
            raise AssertionError("the process has not written an intent")
        act()
        process.send_signal(signal.SIGCONT)


@pytest.fixture
def scene(kafka: KafkaBroker, make_topic: MakeTopic, unique: str, tmp_path: Path) -> Iterator[Scene]:
    topic = make_topic(unique)
    names = [f"{unique[-20:]}-{n:03}" for n in range(GROUPS)]
    tp = TopicPartition(topic, 0)
    (tmp_path / "from.csv").write_text("".join(f"{name},{topic},0,{AFTER}\n" for name in names))
    with KafkaStore(kafka.bootstrap) as store, KafkaCluster(kafka.bootstrap) as cluster:
        list(store.edit(GroupEdit(name, {tp: Change(OffsetAndMetadata(BEFORE))}) for name in names))
        found = Scene(Cli(tmp_path), tmp_path, kafka.bootstrap, topic, names, store, cluster)
        yield found


@pytest.fixture
def planned(scene: Scene, kafka: KafkaBroker) -> Scene:
    fill(kafka.bootstrap, scene.topic, 2)
    uris = ["--from", f"file:{scene.directory}/from.csv", "--to", f"kafka://{scene.bootstrap}"]
    scene.cli("migrate", "plan", *uris, "--all-groups", "-o", str(scene.plan))
    return scene


def stopped_under_lock(scene: Scene, process: subprocess.Popen[bytes]) -> list[str]:
    """Freezes the process while it holds locks, and returns the locked groups."""
    for pause in itertools.cycle((0.0, 0.02, 0.05, 0.1, 0.01, 0.03)):
        assert process.poll() is None, "the process ended before it held a lock"
        process.send_signal(signal.SIGSTOP)
        if found := scene.locked():
            return found
        process.send_signal(signal.SIGCONT)
        time.sleep(pause)  # lets the process continue to its next lock
    raise AssertionError("a cycle has no end")


def killed_under_lock(scene: Scene) -> list[str]:
    with scene.start("migrate", "apply", str(scene.plan), "--yes") as killed:
        scene.wait_until_writing(killed, b"apply")
        locked = stopped_under_lock(scene, killed)
        killed.kill()
    return locked


def test_the_run_after_a_killed_one_waits_for_its_locks(planned: Scene) -> None:
    locked = killed_under_lock(planned)
    again = planned.migrate("apply")
    assert WAITS in again.stderr
    assert planned.offsets() == [AFTER] * GROUPS, locked
    planned.cli("migrate", "verify", str(planned.plan))


def test_edits_and_plans_wait_for_the_lock_of_a_killed_run(planned: Scene) -> None:
    locked = killed_under_lock(planned)
    one = ["--group", locked[0], "--bootstrap-server", planned.bootstrap]
    uris = ["--from", f"file:{planned.directory}/from.csv", "--to", f"kafka://{planned.bootstrap}"]
    keep = ["--if-ahead", "keep"]
    commands = [
        ["offsets", "set", *one, "--topic", f"{planned.topic}:0", "--to-offset", "2", "--execute", "--yes"],
        ["migrate", "plan", *uris, "--group", locked[0], "-o", str(planned.directory / "again.json"), *keep],
        ["groups", "copy", locked[0], f"{locked[0]}-copy", *one[2:], "--execute", "--yes"],
    ]
    with ThreadPoolExecutor(len(commands)) as pool:
        # The plan refuses the group if it finds the lock of the other edit.
        codes = [None if command[1] == "plan" else 0 for command in commands]
        done = list(pool.map(lambda command, code: planned.cli(*command, code=code), commands, codes))
    assert sum(WAITS in one.stderr for one in done) >= 2  # the copy only reads, so it does not wait
    assert not any("is active" in one.stderr for one in done)


class AnotherRun(EventLoopThread):
    def __init__(self, bootstrap: str, group: str) -> None:
        super().__init__()
        self.client = Client(bootstrap, Security())
        self.group = group

    async def _start(self) -> None:
        self.lock = await StaticMemberLock.acquire(self.client, self.group, "another-run", time.monotonic() + 120)

    async def _stop(self) -> None:
        assert self.lock.lost is None  # no other process disturbed it
        await self.lock.release(time.monotonic() + 120)
        await self.client.close()


def test_the_lock_of_a_live_run_is_respected(planned: Scene) -> None:
    with AnotherRun(planned.bootstrap, planned.names[7]):
        one = ["--group", planned.names[7], "--bootstrap-server", planned.bootstrap]
        edit = ["offsets", "set", *one, "--topic", f"{planned.topic}:0", "--to-offset", "2", "--execute", "--yes"]
        with planned.start(*edit) as editing:
            refused = planned.migrate("apply", code=1)
            assert editing.stderr is not None
            output = editing.stderr.read().decode()
            assert editing.wait(60) == 1
        assert f"  ! {planned.names[7]} is locked by another run of offsetmgr: offsetmgr at 127.0.0.1" in refused.stderr
        assert "another run of offsetmgr holds its lock: offsetmgr at 127.0.0.1" in output
        assert planned.offsets() == [AFTER] * 7 + [BEFORE] + [AFTER] * (GROUPS - 8)
    assert WAITS not in planned.migrate("apply").stderr
    assert planned.offsets() == [AFTER] * GROUPS


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
@pytest.mark.parametrize("step", ["apply", "rollback"])
def test_a_hangup_ends_a_migration_as_ctrl_c_does(planned: Scene, step: str, number: signal.Signals) -> None:
    if step == "rollback":
        planned.migrate("apply")
    with planned.start("migrate", step, str(planned.plan), "--yes") as running:

        def hang_up() -> None:
            running.send_signal(number)
            if number == signal.SIGHUP:
                running.send_signal(number)  # the kernel sends one, and the shell another

        planned.wait_until_writing(running, b"apply" if step == "apply" else b"undo", hang_up)
        assert running.stderr is not None
        output = running.stderr.read().decode()
        assert running.wait(60) == 130, output
    assert "stopping: groups under way are finished" in output
    assert "interrupted: started writes are finished and recorded" in output
    assert planned.locked() == []
    assert WAITS not in planned.migrate(step).stderr
    assert planned.offsets() == [AFTER if step == "apply" else BEFORE] * GROUPS


@pytest.mark.parametrize("nohup", [False, True])
def test_a_lost_terminal_ends_a_migration_cleanly_unless_hangups_are_ignored(planned: Scene, nohup: bool) -> None:
    running, terminal = on_a_terminal(
        planned.cli, planned.directory, "migrate", "apply", str(planned.plan), "--yes", nohup=nohup
    )
    with running:
        planned.wait_until_writing(running, b"apply", partial(os.close, terminal))
        assert running.wait(60) == (0 if nohup else 130)
    assert planned.locked() == []
    if not nohup:
        assert WAITS not in planned.migrate("apply").stderr
    assert planned.offsets() == [AFTER] * GROUPS


def test_a_terminal_lost_at_the_confirmation_prompt_counts_as_no(planned: Scene) -> None:
    running, terminal = on_a_terminal(planned.cli, planned.directory, "migrate", "apply", str(planned.plan))
    with running:
        output = b""
        while not output.endswith(b"[y/N] "):
            output += os.read(terminal, 4096)
        os.close(terminal)
        assert running.wait(60) == 2
    assert not planned.plan.with_suffix(".journal").exists()
    assert planned.offsets() == [BEFORE] * GROUPS


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_closed_output_pipe_leaves_no_lock(planned: Scene, stream: str) -> None:
    options: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: subprocess.PIPE}
    with planned.start("migrate", "apply", str(planned.plan), "--yes", **options) as running:
        planned.wait_until_writing(running, b"apply")
        getattr(running, stream).close()
        assert running.wait(60) in (0, 141)
    assert planned.locked() == []
    assert planned.offsets() == [AFTER] * GROUPS


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_hangup_ends_an_edit_with_its_undo_command(scene: Scene, number: signal.Signals) -> None:
    file = str(scene.directory / "from.csv")
    command = ["offsets", "import", file, "--bootstrap-server", scene.bootstrap, "--unchecked", "--execute", "--yes"]
    with scene.start(*command, stdout=subprocess.DEVNULL) as running:
        assert running.stderr is not None
        output = b""
        while b"before-images: " not in output:
            got = os.read(running.stderr.fileno(), 4096)
            assert got, output.decode()
            output += got
        until(lambda: AFTER in scene.offsets())
        running.send_signal(number)
        output += running.stderr.read()
        code = running.wait(60)
    done = scene.offsets().count(AFTER) == GROUPS and b"done: " in output
    # Python restores the default handlers when it exits, so a late signal ends the process after its work.
    assert code in ((0, -number) if done else (130,)), output
    assert b"undo: offsetmgr offsets import" in output
    assert scene.locked() == []


@pytest.mark.parametrize("nohup", [False, True])
def test_a_manager_only_logs_a_hangup_and_outlives_its_terminal(kafka, unique, tmp_path, nohup: bool) -> None:
    serve = ["manager", "serve", "--bootstrap-server", kafka.bootstrap, "--listen", "127.0.0.1:0"]
    serve += ["--offsets-topic", unique, "--partitions", "1", "--replication-factor", "1"]
    manager, terminal = on_a_terminal(Cli(tmp_path), tmp_path, *serve, nohup=nohup)
    try:
        output = b""

        def read_until(expected: bytes) -> None:
            nonlocal output
            while expected not in output:
                assert select.select([terminal], [], [], 60)[0], output.decode()
                output += os.read(terminal, 4096)

        read_until(b"serving listen=")
        address = output.split(b"serving listen=")[1].split()[0].decode()
        manager.send_signal(signal.SIGHUP)
        read_until(b"SIGHUP does nothing: settings are read at the start only")
        os.close(terminal)
        status = ["manager", "status", "--bootstrap-server", address]
        silent = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
        until(lambda: start(Cli(tmp_path), tmp_path, *status, **silent).wait(30) == 0)
        manager.send_signal(signal.SIGTERM)
        assert manager.wait(90) == 0
    finally:
        manager.kill()
        manager.wait(90)
