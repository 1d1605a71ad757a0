"""The sandbox runs real servers, which keep their data after a kill and leave nothing behind."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from conftest import MakeTopic
from kazoo_client import connected
from processes import create_topic, wait_for

from offsetmgr.core.errors import SandboxError
from offsetmgr.sandbox import KafkaBroker, Sandbox, ZooKeeperServer, java_tool, ports
from offsetmgr.sandbox.paths import cache_directory
from offsetmgr.sandbox.process_ref import ProcessRef
from offsetmgr.sandbox.sandbox import SampleGroup

pytestmark = pytest.mark.servers

PLACE = "Büro 東"
"""A directory: a space, a letter of ISO-8859-1, and a letter that only UTF-8 can encode."""


def partitions_of(bootstrap: str, topic: str) -> int:
    return len(AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=60).topics[topic].partitions)


def test_a_server_that_cannot_start_reports_the_reason_and_stops(zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    taken = ZooKeeperServer(tmp_path / "taken", port=zookeeper.port)
    with pytest.raises(SandboxError, match=f"cannot start ZooKeeper 3.8: port {zookeeper.port} is taken"):
        taken.start()
    broken = KafkaBroker(tmp_path / "broken", zookeeper=zookeeper.connect, config={"log.dirs": ""})
    with pytest.raises(SandboxError, match=r"Kafka 3\.9 broker 0 ended while starting: .*log\.dirs"):
        broken.start()
    assert (taken.running(), broken.running()) == (False, False)


def test_a_server_that_loses_the_race_for_a_port_starts_on_another(zookeeper, tmp_path, monkeypatch) -> None:
    # another process takes the port after the sandbox has chosen it
    offered = iter([zookeeper.port, ports.free_port()])
    monkeypatch.setattr(ports, "free_port", lambda: next(offered))
    with ZooKeeperServer(tmp_path) as server:
        assert server.port != zookeeper.port
        assert str(tmp_path) in ports.four_letter_word(server.connect, "conf")


def test_servers_do_not_outlive_a_program_that_is_killed(tmp_path: Path) -> None:
    # Given also a directory whose name Java cannot encode in the program's locale. Python 3.11 does not start in this
    # locale if its own environment is in such a directory.
    program = (
        "import signal; from offsetmgr.sandbox import ZooKeeperServer;"
        f"server = ZooKeeperServer({str(tmp_path / PLACE)!a}).start(); print(server.pid, flush=True); signal.pause()"
    )
    environ = {**os.environ, **({"LC_ALL": "C"} if sys.prefix.isascii() else {})}
    parent = subprocess.Popen([sys.executable, "-c", program], env=environ, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    server = ProcessRef.of(int(parent.stdout.readline()))
    assert server.alive() is True
    parent.kill()
    parent.wait()
    wait_for(lambda: not server.alive(), "the process has ended")


def test_two_concurrent_resolvers_download_a_set_of_jars_once(tmp_path: Path) -> None:
    # Given a cache with artifacts but without the set. Links to earlier downloads spare the network.
    shutil.copytree(cache_directory() / "ivy", tmp_path / "ivy", copy_function=os.link)
    program = "from offsetmgr.sandbox import jars; print(jars.resolve('kafka-0.10.2', print))"
    environ = {**os.environ, "OFFSETMGR_CACHE": str(tmp_path)}
    command = [sys.executable, "-c", program]
    both = [subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=120)[0].splitlines() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert outputs[0][-1] == outputs[1][-1]
    assert sum("fetched 13 jars of kafka-0.10.2" in lines for lines in outputs) == 1
    assert len(list(Path(outputs[0][-1]).glob("*.jar"))) == 13
    assert [path.name for path in (tmp_path / "jars").iterdir()] == [Path(outputs[0][-1]).name]


def test_kafkas_own_tools_run(kafka: KafkaBroker, make_topic: MakeTopic, unique: str) -> None:
    make_topic(unique, 2)
    arguments = ["--bootstrap-server", kafka.bootstrap, "--topic", unique]
    done = java_tool("kafka-3.9", "org.apache.kafka.tools.GetOffsetShell", arguments)
    assert (done.returncode, done.stdout.split()) == (0, [f"{unique}:0:0", f"{unique}:1:0"])


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    box = Sandbox(tmp_path / PLACE)
    yield box
    box.down()


def processes(box: Sandbox) -> list[ProcessRef]:
    found = box.status()
    assert found is not None
    return [server.ref for server in found.servers]


def kill(process: ProcessRef) -> None:
    process.signal_group(signal.SIGKILL)
    wait_for(lambda: not process.alive(), "the process has ended")


def test_up_and_down_again_leaves_no_process_and_no_data(sandbox: Sandbox) -> None:
    assert sandbox.up() is True
    assert sandbox.up() is False
    started = processes(sandbox)
    exported = sandbox.env()
    assert len(started) == 2
    assert exported["OFFSETMGR_ZOOKEEPER"] is not None
    assert exported["OFFSETMGR_ZOOKEEPER"].endswith("/kafka")
    bootstrap = str(exported["OFFSETMGR_BOOTSTRAP_SERVER"])
    assert AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=60).brokers
    assert sandbox.down() == ["broker-0", "zookeeper"]
    assert [process.alive() for process in started] == [False, False]
    assert [path.name for path in sandbox.directory.iterdir()] == ["lock"]
    assert sandbox.down() == []
    with pytest.raises(SandboxError, match="no sandbox is up"):
        sandbox.env()


@pytest.mark.parametrize("victim", [0, 1], ids=["zookeeper", "broker"])
def test_up_after_a_crash_cleans_up_and_starts_on_the_same_ports(sandbox: Sandbox, victim: int) -> None:
    sandbox.up()
    for _ in range(5):
        before, exported = processes(sandbox), sandbox.env()
        kill(before[victim])
        assert sandbox.up() is True
        assert [process.alive() for process in before] == [False, False]
        assert [process.alive() for process in processes(sandbox)] == [True, True]
        if sandbox.env() == exported:
            return
        # While no server listened on a port, another program may have taken it.
    pytest.fail("the ports changed each time")


@pytest.mark.matrix
def test_two_brokers_replicate_and_a_request_for_one_broker_is_rejected(sandbox: Sandbox) -> None:
    sandbox.up(brokers=2)
    bootstrap = sandbox.env()["OFFSETMGR_BOOTSTRAP_SERVER"]
    assert bootstrap is not None
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wait_for(lambda: len(admin.list_topics(timeout=60).brokers) == 2, "both brokers are known")
    create_topic(bootstrap, "t", partitions=2, replicas=2)

    def in_sync() -> list[int]:
        return [len(p.isrs) for p in admin.list_topics("t", timeout=60).topics["t"].partitions.values()]

    wait_for(lambda: in_sync() == [2, 2], "the replicas are in sync")
    with pytest.raises(SandboxError, match=r"it has 2 Kafka 3\.9"):
        sandbox.up(brokers=1)


def test_kraft_is_a_broker_without_zookeeper(sandbox: Sandbox) -> None:
    sandbox.up(kraft=True)
    exported = sandbox.env()
    assert exported["OFFSETMGR_ZOOKEEPER"] is None
    bootstrap = str(exported["OFFSETMGR_BOOTSTRAP_SERVER"])
    assert AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=60).brokers
    with pytest.raises(SandboxError, match="they need ZooKeeper"):
        sandbox.start_old_consumers(SampleGroup(1, "g", "t"))


@pytest.mark.matrix
def test_old_consumers_run_in_the_sandbox(sandbox: Sandbox) -> None:
    sandbox.up()
    assert sandbox.start_old_consumers(SampleGroup(2, "g", "t", "kafka", True, partitions=4)) == ["g-0", "g-1"]
    assert sandbox.start_old_consumers(SampleGroup(1, "g", "t", "kafka", True)) == ["g-2"]
    exported = sandbox.env()
    with connected(exported["OFFSETMGR_ZOOKEEPER"] or "") as client:
        members = client.get_children("/consumers/g/ids")
    assert len(members) == 3
    assert partitions_of(exported["OFFSETMGR_BOOTSTRAP_SERVER"] or "", "t") == 4
    # When one of them restarts with the settings that a bounce passes to its command
    status = sandbox.status()
    assert status is not None
    member = status.servers[-1].details["member_id"]
    program = [str(Path(sys.executable).with_name("offsetmgr")), "sandbox", "restart"]

    def restart(*words: str) -> tuple[int, str]:
        command = [*program, *words, "--state", str(sandbox.directory)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr

    settings = "offsets.storage=zookeeper dual.commit.enabled=false"
    restarted = restart(member, settings)
    status = sandbox.status()
    assert status is not None
    details = status.servers[-1].details
    assert (details["offsets_storage"], details["dual_commit"]) == ("zookeeper", False)
    assert restarted[0] == 0 and restarted[1].endswith(f"g-2 is now {details['member_id']}\n")
    with connected(exported["OFFSETMGR_ZOOKEEPER"] or "") as client:
        assert set(client.get_children("/consumers/g/ids")) == {*members, details["member_id"]} - {member}
    unknown, wrong = restart(member, settings), restart("g-2", "offsets.storage=disk")
    assert (unknown[0], "running are: " in unknown[1]) == (1, True)
    expected = "error: offsets.storage=disk: the value is one of zookeeper, kafka\n"
    assert (wrong[0], wrong[1].startswith(expected)) == (2, True)
    assert sandbox.down() == ["g-2", "g-1", "g-0", "broker-0", "zookeeper"]


def test_ctrl_c_during_startup_stops_all_started_servers(sandbox: Sandbox) -> None:
    program = str(Path(sys.executable).with_name("offsetmgr"))
    command = [program, "sandbox", "up", "--state", str(sandbox.directory)]
    up = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while (found := sandbox.status()) is None or not found.servers:
        assert time.monotonic() < deadline
        assert up.poll() is None
    started = processes(sandbox)
    up.send_signal(signal.SIGINT)
    out, err = up.communicate(timeout=120)
    assert (up.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "interrupted: all started servers have been stopped"
    assert [process.alive() for process in started] == [False] * len(started)
    assert sandbox.status() is None
