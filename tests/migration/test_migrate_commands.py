"""``offsetmgr migrate`` as processes, on real ZooKeeper and real Kafka."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from committed_offsets import offsets_of
from confluent_kafka import Consumer
from old_consumers import old_member
from processes import fill, finish, own_environment, start_command, wait_for

from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.sandbox import KafkaBroker, KraftBroker, OldConsumer, ZooKeeperServer
from offsetmgr.stores.uri import open_store

pytestmark = pytest.mark.servers

OFFSETMGR = [sys.executable, "-m", "offsetmgr"]
LOG_END = 100


@dataclass
class World:
    """ZooKeeper and Kafka with one topic of four partitions, each with offsets 0 to 100; commands run in
    ``directory``."""

    zk_uri: str
    kafka_uri: str
    zk: OffsetStore
    kafka: OffsetStore
    topic: str
    directory: Path

    def start(self, *arguments: str, terminal: int | None = None) -> subprocess.Popen[str]:
        stdin = subprocess.DEVNULL if terminal is None else terminal
        return start_command(*arguments, environ=own_environment(self.directory), cwd=self.directory, stdin=stdin)

    def run(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        return finish(self.start(*arguments), code)

    def plan(self, *arguments: str, name: str = "plan.json", to: str | None = None) -> list[dict[str, Any]]:
        sides = ("--from", self.zk_uri, "--to", to or self.kafka_uri)
        done = self.run("migrate", "plan", *sides, *arguments, "-o", name, "--format", "json")
        rows = json.loads(done.stdout)
        assert isinstance(rows, list)
        return rows

    def commit(self, store: OffsetStore, group: str, *offsets: int | None) -> None:
        values = {TopicPartition(self.topic, p): OffsetAndMetadata(o) for p, o in enumerate(offsets) if o is not None}
        store.commit(group, values, allow_rewind=True)


@pytest.fixture
def world(zookeeper, kafka, make_topic, unique, tmp_path):
    topic = make_topic(unique, 4)
    fill(kafka.bootstrap, topic, *[LOG_END] * 4)
    uris = f"zookeeper://{zookeeper.connect}/kafka", f"kafka://{kafka.bootstrap}"
    with open_store(uris[0]) as zk, open_store(uris[1]) as store:
        yield World(*uris, zk, store, topic, tmp_path)


def old_consumer(world: World, zookeeper: ZooKeeperServer, group: str) -> OldConsumer:
    return old_member(world.directory / "old", f"{zookeeper.connect}/kafka", group, world.topic)


def actions(rows: list[dict[str, Any]]) -> dict[int, str]:
    return {row["partition"]: row["action"] for row in rows}


def test_a_migration_is_applied_verified_and_rolled_back(world: World, unique: str) -> None:
    world.commit(world.kafka, unique, 5)
    world.commit(world.zk, unique, 10, 20, 30, 40)
    assert actions(world.plan("--group", unique)) == {0: "copy", 1: "copy", 2: "copy", 3: "copy"}
    assert offsets_of(world.kafka, unique) == {0: 5}
    status = json.loads(world.run("migrate", "status", "plan.json", "--format", "json").stdout)[0]
    assert (status["group"], status["state"]) == (unique, "planned")
    assert status["next"] == f"offsetmgr migrate apply plan.json --group {unique}"
    refused = world.run("migrate", "apply", "plan.json", code=2)
    assert "add --yes" in refused.stderr
    assert offsets_of(world.kafka, unique) == {0: 5}
    world.run("migrate", "apply", "plan.json", "--yes")
    assert offsets_of(world.kafka, unique) == {0: 10, 1: 20, 2: 30, 3: 40}
    verified = json.loads(world.run("migrate", "verify", "plan.json", "--format", "json").stdout)
    assert [(row["status"], row["evidence"]) for row in verified] == [("equal", "seen")] * 4
    world.run("migrate", "rollback", "plan.json", "--yes")
    assert offsets_of(world.kafka, unique) == {0: 5}
    assert offsets_of(world.zk, unique) == {0: 10, 1: 20, 2: 30, 3: 40}
    assert "was rolled back" in world.run("migrate", "apply", "plan.json", "--yes", code=1).stderr
    after = world.run("migrate", "verify", "plan.json", code=1)
    assert "this plan was rolled back" in after.stderr
    assert "missing" not in after.stdout


def test_topics_and_log_ranges_are_checked_for_each_partition(world: World, unique: str) -> None:
    world.commit(world.zk, unique, 10, 101)
    missing = (TopicPartition(world.topic, 9), TopicPartition(f"{unique}-gone", 0))
    world.zk.commit(unique, dict.fromkeys(missing, OffsetAndMetadata(1)))
    rows = {(row["topic"], row["partition"]): row for row in world.plan("--group", unique)}
    assert rows[world.topic, 0]["action"] == "copy"
    assert rows[world.topic, 1]["action"] == "refuse-out-of-range"
    assert rows[world.topic, 1]["note"] == "log holds 0 to 100; clamping would give 100 (the log end)"
    assert rows[world.topic, 9]["action"] == "refuse-partition-missing"
    assert rows[f"{unique}-gone", 0]["action"] == "refuse-topic-missing"
    done = world.run("migrate", "apply", "plan.json", "--yes", code=1)
    assert "the plan itself refused 3 partitions" in done.stderr
    assert offsets_of(world.kafka, unique) == {0: 10}
    found = json.loads(world.run("migrate", "verify", "plan.json", "--format", "json", code=1).stdout)
    assert sorted(row["status"] for row in found) == ["equal", "refused", "refused", "refused"]
    clamped = world.plan("--group", unique, "--clamp", "--topic", f"{world.topic}:1", name="clamped.json")
    assert [(row["partition"], row["action"], row["after"]) for row in clamped] == [(1, "copy", 100)]


def test_a_migration_to_a_kraft_cluster_without_any_offsets(world, tmp_path, make_topic, unique):
    """The first commit on a cluster without ``__consumer_offsets`` and without ZooKeeper."""
    with KraftBroker(tmp_path / "fresh") as fresh:
        make_topic(world.topic, 4, bootstrap=fresh.bootstrap)
        fill(fresh.bootstrap, world.topic, *[LOG_END] * 4)
        target = f"kafka://{fresh.bootstrap}"
        world.commit(world.zk, unique, 10, 20, 30)
        plan = world.plan("--group", unique, "--translate", "none", to=target)
        assert actions(plan) == {0: "copy", 1: "copy", 2: "copy"}
        world.run("migrate", "apply", "plan.json", "--yes")
        world.run("migrate", "verify", "plan.json")
        with open_store(target) as store:
            assert offsets_of(store, unique) == {0: 10, 1: 20, 2: 30}


@pytest.fixture
def consumer(world: World, kafka: KafkaBroker, unique: str) -> Iterator[Consumer]:
    """A member that has joined the group."""
    own = {"group.id": unique, "client.id": "night-shift", "enable.auto.commit": False}
    member = Consumer({"bootstrap.servers": kafka.bootstrap, **own})
    member.subscribe([world.topic])
    wait_for(lambda: member.poll(0.1) is not None or bool(member.assignment()), "the consumer has joined")
    yield member
    member.close()


def test_an_active_group_is_refused_with_its_members_and_the_others_are_migrated(world, consumer, unique):
    world.commit(world.zk, unique, 10)
    world.commit(world.zk, f"{unique}-idle", 11)
    world.plan("--group", f"{unique}*")
    began = time.monotonic()
    done = world.run("migrate", "apply", "plan.json", "--yes", "--wait-empty", "2", code=1)
    assert time.monotonic() - began >= 2  # and the command has ended, although the consumer has not left
    assert f"{unique} is active: night-shift at" in done.stderr
    assert offsets_of(world.kafka, unique) == {}
    assert offsets_of(world.kafka, f"{unique}-idle") == {0: 11}


def test_wait_empty_acts_when_the_group_becomes_empty(world: World, consumer: Consumer, unique: str) -> None:
    world.commit(world.zk, unique, 10)
    world.plan("--group", unique)
    waiting = world.start("migrate", "apply", "plan.json", "--yes", "--wait-empty", "60")
    journal = world.directory / "plan.journal"
    wait_for(lambda: journal.exists() and b"GroupActive" in journal.read_bytes(), "apply was refused once")
    consumer.close()
    out, err = waiting.communicate(timeout=120)
    assert waiting.returncode == 0, out + err
    assert offsets_of(world.kafka, unique) == {0: 10}


def test_finalize_requires_evidence_and_keeps_before_images_of_the_removed_source(world, zookeeper, unique, tmp_path):
    world.commit(world.zk, unique, 10, 20)
    world.plan("--group", unique)
    assert "not applied completely" in world.run("migrate", "finalize", "plan.json", "--yes", code=1).stderr
    world.run("migrate", "apply", "plan.json", "--yes")
    with old_consumer(world, zookeeper, unique) as old:
        wait_for(lambda: len(old.messages()) > 350, "the old consumer has read its partitions")
        wait_for(lambda: offsets_of(world.zk, unique).get(0) == LOG_END, "and committed to ZooKeeper")
        refused = world.run("migrate", "finalize", "plan.json", "--yes", "--window", "3", code=1)
        assert "do not verify" in refused.stderr
        assert "source-ahead" in refused.stderr
    (world.directory / "plan.json").rename(world.directory / "old.json")
    (world.directory / "plan.journal").unlink()
    world.plan("--group", unique)
    world.run("migrate", "apply", "plan.json", "--yes")
    source = offsets_of(world.zk, unique)
    done = world.run("migrate", "finalize", "plan.json", "--delete-source", "--yes")
    assert "no old consumer is registered" in done.stderr
    assert offsets_of(world.zk, unique) == {}
    journal = [json.loads(line) for line in (world.directory / "plan.journal").read_text().splitlines()]
    removed = next(record for record in journal if record["kind"] == "delete-intent")
    kept = {s["p"]: s["target"] if isinstance(s["target"], int) else s["target"]["offset"]
            for s in removed["topics"][world.topic]}  # fmt: skip
    assert kept == source
    assert "would rewind" in world.run("migrate", "rollback", "plan.json", "--yes", code=1).stderr
    world.run("migrate", "rollback", "plan.json", "--reverse-plan", "back.json")
    world.run("migrate", "apply", "back.json", "--yes")
    assert offsets_of(world.zk, unique) == source


def test_a_removal_after_finalize_checks_again_and_keeps_newer_source_offsets(world, zookeeper, unique, tmp_path):
    world.commit(world.zk, unique, 10, 20)
    world.plan("--group", unique)
    world.run("migrate", "apply", "plan.json", "--yes")
    world.run("migrate", "finalize", "plan.json", "--yes")
    with old_consumer(world, zookeeper, unique):
        wait_for(lambda: offsets_of(world.zk, unique).get(0) == LOG_END, "the old consumer commits to ZooKeeper")
        done = world.run("migrate", "finalize", "plan.json", "--delete-source", "--yes", "--window", "2", code=1)
        assert "kept in the source" in done.stderr
        assert offsets_of(world.zk, unique)[0] == LOG_END
    done = world.run("migrate", "finalize", "plan.json", "--delete-source", "--yes", code=1)
    assert "the source is ahead of the target (100)" in done.stderr
    assert offsets_of(world.zk, unique)[0] == LOG_END


def test_a_rollback_by_another_process_during_the_prompt_is_detected(world: World, unique: str) -> None:
    world.commit(world.kafka, unique, 5)
    world.commit(world.zk, unique, 10)
    world.plan("--group", unique)
    primary, replica = os.openpty()
    prompting = world.start("migrate", "apply", "plan.json", terminal=replica)
    try:
        wait_for(lambda: "[y/N]" in _read_stderr(prompting), "apply prompts")
        world.run("migrate", "apply", "plan.json", "--yes")
        world.run("migrate", "rollback", "plan.json", "--yes")
        os.write(primary, b"y\n")
        _, err = prompting.communicate(timeout=120)
    finally:
        os.close(primary)
        os.close(replica)
    assert prompting.returncode == 1
    assert "was rolled back" in err
    assert offsets_of(world.kafka, unique) == {0: 5}


def _read_stderr(process: subprocess.Popen[str]) -> str:
    """Reads stderr from the pipe itself, so that the process's text buffer stays empty for `communicate`."""
    assert process.stderr is not None
    return os.read(process.stderr.fileno(), 1 << 16).decode()


def test_finalize_names_a_member_that_still_commits_to_zookeeper_alone(world, kafka, zookeeper, unique, tmp_path):
    world.commit(world.zk, unique, *[LOG_END] * 4)
    world.plan("--group", unique)
    world.run("migrate", "apply", "plan.json", "--yes")
    with old_consumer(world, zookeeper, unique) as old:
        refused = world.run("migrate", "finalize", "plan.json", "--yes", "--window", "2", code=1)
        assert old.member_id in refused.stderr


def test_a_group_name_invalid_in_zookeeper_is_refused_alone_and_valid_in_kafka(world: World, unique: str) -> None:
    slashed = f"{unique}/ash"
    world.commit(world.kafka, slashed, 10)
    world.commit(world.kafka, f"{unique}-good", 20)
    back = ["migrate", "plan", "--from", world.kafka_uri, "--to", world.zk_uri, "--group", f"{unique}*"]
    done = world.run(*back, "-o", "back.json", code=1)
    assert f"{slashed}: target: group '{slashed}': cannot exist in ZooKeeper" in done.stderr
    world.run("migrate", "apply", "back.json", "--yes", code=1)
    assert offsets_of(world.zk, f"{unique}-good") == {0: 20}
    world.run("migrate", "finalize", "back.json", "--yes", "--accept-refused", "--window", "0")
    world.run(*back, "--rename", f"{slashed}={unique}-ash", "-o", "renamed.json")
    world.plan("--group", f"{unique}-good", "--rename", f"{unique}-good={unique}/good", name="forth.json")
    world.run("migrate", "apply", "forth.json", "--yes")
    assert offsets_of(world.kafka, f"{unique}/good") == {0: 20}
    world.run("migrate", "verify", "forth.json")
    world.run("migrate", "rollback", "forth.json", "--reverse-plan", "forth-back.json")
