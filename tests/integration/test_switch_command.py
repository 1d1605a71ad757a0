"""``offsetmgr migrate switch`` as a process, on real servers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from processes import own_environment, run_command

from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.groups.before_images import load_images
from offsetmgr.sandbox import KafkaBroker
from offsetmgr.snapshots.group_images import GroupImages
from offsetmgr.stores.kafka import KafkaStore
from offsetmgr.stores.switched.nodes import SwitchStateStore
from offsetmgr.stores.switched.records import FollowerNode
from offsetmgr.stores.uri import open_store
from offsetmgr.zookeeper.client.session import ZookeeperSession

pytestmark = pytest.mark.servers

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(kafka: KafkaBroker, unique: str, tmp_path: Path) -> Run:
    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        stores = ("--zookeeper", kafka.zookeeper, "--bootstrap-server", kafka.bootstrap)
        environ = own_environment(tmp_path)
        return run_command("migrate", "switch", "--group", unique, *stores, *arguments, code=None, environ=environ)

    return command


@pytest.fixture
def member(kafka: KafkaBroker) -> Iterator[OffsetStore]:
    first, second = quote(f"zookeeper://{kafka.zookeeper}", safe=""), quote(f"kafka://{kafka.bootstrap}", safe="")
    with open_store(f"switched:?zookeeper={first}&kafka={second}") as store:
        yield store


def test_a_group_is_declared_and_switched_and_the_copy_has_before_images(
    run: Run, member: OffsetStore, kafka: KafkaBroker, make_topic: Callable[..., str], unique: str, tmp_path: Path
) -> None:
    topic = make_topic(unique)
    partition = TopicPartition(topic, 0)

    undeclared = run("--to", "dual", "--execute", "--yes")
    assert undeclared.returncode == 1
    assert f"error: switch of group {unique}: its storage mode is not declared" in undeclared.stderr
    assert run("--to", "dual", "--declare", "--execute", "--yes").returncode == 0
    member.commit(unique, {partition: OffsetAndMetadata(5)})
    with KafkaStore(kafka.bootstrap) as store:
        store.commit(unique, {partition: OffsetAndMetadata(3)}, allow_rewind=True)  # behind, as an idle partition is

    dry = run("--to", "kafka", "--format", "json")
    assert (dry.returncode, [row["epoch"] for row in json.loads(dry.stdout)]) == (0, [1])
    assert f"would copy {topic}-0: 3 -> 5" in dry.stderr
    assert f"dry run: would switch group {unique} dual -> kafka; nothing was changed" in dry.stderr

    image = tmp_path / "before.avro"
    done = run("--to", "kafka", "--execute", "--yes", "--before-image", str(image), "--format", "json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert (row["group"], row["epoch"], row["process"]) == (unique, 3, os.getpid())
    assert row["stopped_at"] <= row["followed_at"]
    assert "1 member had stopped, 1 offset copied, 1 partition compared" in done.stderr
    (images,) = load_images(image)
    assert images == GroupImages(unique, {partition: Committed(3)}, {partition: 5})
    assert dict(member.fetch(unique)) == {partition: Committed(5)}

    direct = run("--to", "zookeeper", "--execute", "--yes")
    assert direct.returncode == 1
    assert f"error: switch of group {unique} kafka -> zookeeper: must go through mode dual" in direct.stderr
    assert "hint: switch with --to dual first" in direct.stderr


def test_a_switch_that_waits_for_a_member_is_abandoned_at_ctrl_c(run: Run, kafka: KafkaBroker, unique: str) -> None:
    assert run("--to", "zookeeper", "--declare", "--execute", "--yes").returncode == 0
    again = run("--to", "kafka", "--declare")
    assert (again.returncode, "has already declared mode zookeeper" in again.stderr) == (1, True), (
        "a dry run reports the error, too"
    )
    # Given a member that follows and never acknowledges
    with ZookeeperSession(kafka.zookeeper, session_timeout_ms=60_000) as session:
        nodes = SwitchStateStore(session, unique)
        seen = nodes.read()
        assert seen is not None
        assert nodes.join("silent", FollowerNode(seen.storage.epoch, "host", 7), seen.version)
        stores = ("--zookeeper", kafka.zookeeper, "--bootstrap-server", kafka.bootstrap)
        arguments = ("--group", unique, *stores, "--to", "dual", "--execute", "--yes", "--stay", "--ack-timeout", "50")
        with subprocess.Popen(
            [sys.executable, "-m", "offsetmgr", "migrate", "switch", *arguments], stderr=subprocess.PIPE, text=True
        ) as switch:
            assert switch.stderr is not None
            lines = []
            for line in switch.stderr:
                lines.append(line)
                if line == "waiting for silent (process 7 on host)\n":
                    switch.send_signal(signal.SIGINT)
        assert switch.returncode == 130
        assert "stopping: the switch returns to the old mode" in "".join(lines)
        assert lines[-1] == f"interrupted: switch of group {unique} was abandoned; the old mode applies\n"
        after = nodes.read()
        assert after is not None
        assert (after.storage.mode.value, after.storage.switching_to, nodes.switcher()) == ("zookeeper", None, None)


def test_one_store_alone_is_a_usage_error(kafka: KafkaBroker, unique: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "offsetmgr", "migrate", "switch", "--group", unique, "--to", "dual"],
        env={**os.environ, "OFFSETMGR_ZOOKEEPER": kafka.zookeeper},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 2
    assert done.stderr.startswith("error: migrate switch: needs both stores\n")
