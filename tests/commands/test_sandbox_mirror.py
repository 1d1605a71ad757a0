"""Two clusters in the sandbox, and a real MirrorMaker 2 between them."""

import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from committed_offsets import commit, committed
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from processes import OFFSETMGR, create_topic, fill, run_command, until

from offsetmgr.sandbox import Sandbox

pytestmark = [pytest.mark.servers, pytest.mark.matrix]


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """The directory of a sandbox, which the fixture stops if it is up."""
    yield tmp_path
    Sandbox(tmp_path).down()


def ends(bootstrap: str, topic: str, partitions: int) -> list[int]:
    """The log ends of a topic's partitions, or an empty list if there is no such topic."""
    if topic not in AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=60).topics:
        return []
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "ends"})
    try:
        return [consumer.get_watermark_offsets(TopicPartition(topic, p), 60)[1] for p in range(partitions)]
    finally:
        consumer.close()


def test_the_command_starts_two_clusters_and_a_mirror_and_stops_them(directory: Path) -> None:
    def run(words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = ("sandbox", *words.split(), "--state", str(directory))
        return run_command(*command, program=OFFSETMGR, code=code)

    # Given a sandbox with two clusters
    lines: list[str] = []
    Sandbox(directory).up(clusters=2, progress=lines.append)
    assert lines[-1] == "starting Kafka 4.4 broker of cluster B"
    # When the command adds a mirror
    exported = run("up --clusters 2 --mirror").stdout
    variables = dict(re.findall(r"export (\w+)=(\S+)", exported))
    assert variables.keys() == {"OFFSETMGR_BOOTSTRAP_SERVER", "OFFSETMGR_ZOOKEEPER", "OFFSETMGR_BOOTSTRAP_SERVER_B"}
    a, b = variables["OFFSETMGR_BOOTSTRAP_SERVER"], variables["OFFSETMGR_BOOTSTRAP_SERVER_B"]
    # Then topics and groups arrive with their own names
    create_topic(a, "orders", 2)
    fill(a, "orders", 30, 20)
    commit(f"kafka://{a}", "orders-reader", "orders", {0: 30, 1: 20})
    until(lambda: ends(b, "orders", 2) == [30, 20])
    until(lambda: committed(f"kafka://{b}", "orders-reader") == {0: 30, 1: 20})
    # And after MirrorMaker was killed, the same command starts it again and keeps the clusters
    state = Sandbox(directory).status()
    assert state is not None and state.mirror is not None
    state.mirror.ref.signal_group(signal.SIGKILL)
    until(lambda: "mirror-maker" in run("status --format csv", code=1).stdout)
    fill(a, "orders", 5, 5)
    again = run("up --clusters 2 --mirror --mirror-config sync.group.offsets.enabled=false")
    assert again.stdout == exported
    assert "the sandbox was up already\nstarting MirrorMaker from cluster A to cluster B\n" in again.stderr
    until(lambda: ends(b, "orders", 2) >= [35, 25])
    assert "sync.group.offsets.enabled=false\n" in next(directory.rglob("mm2.properties")).read_text()
    assert run("status").returncode == 0
    assert "it has 1 Kafka 3.9.1 broker and cluster B, not 1 Kafka" in run("up", code=1).stderr
    # Then `down` stops all processes
    state = Sandbox(directory).status()
    assert state is not None
    assert run("down").stderr.endswith("stopped mirror-maker, broker-b, broker-0, zookeeper\n")
    assert [server.name for server in state.servers if server.running()] == []
