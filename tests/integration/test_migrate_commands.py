"""``offsetmgr migrate`` as processes, on real ZooKeeper and real Kafka."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AdminClient
from kazoo_client import connected
from processes import finish, own_environment, start_command, wait_for

from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
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

    def plan(
        self, *arguments: str, code: int = 0, name: str = "plan.json", to: str | None = None
    ) -> list[dict[str, Any]]:
        done = self.run(
            "migrate", "plan", "--from", self.zk_uri, "--to", to or self.kafka_uri, *arguments,
            "-o", name, "--format", "json",
        )  # fmt: skip
        rows = json.loads(done.stdout)
        assert isinstance(rows, list)
        return rows

    def commit(self, store: OffsetStore, group: str, *offsets: int | None) -> None:
        values = {TopicPartition(self.topic, p): OffsetAndMetadata(o) for p, o in enumerate(offsets) if o is not None}
        store.commit(group, values, allow_rewind=True)

    def offsets(self, store: OffsetStore, group: str) -> dict[int, int]:
        return {tp.partition: c.offset for tp, c in store.fetch(group).items() if isinstance(c, Committed)}


def fill(bootstrap: str, topic: str, partitions: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for partition in range(partitions):
        for _ in range(LOG_END):
            producer.produce(topic, b"x", partition=partition)
    assert producer.flush(30) == 0


@pytest.fixture
def world(
    zookeeper: ZooKeeperServer, kafka: KafkaBroker, make_topic: Callable[..., str], unique: str, tmp_path: Path
) -> Iterator[World]:
    topic = make_topic(unique, 4)
    fill(kafka.bootstrap, topic, 4)
    uris = f"zookeeper://{zookeeper.connect}/kafka", f"kafka://{kafka.bootstrap}"
    with open_store(uris[0]) as zk, open_store(uris[1]) as store:
        yield World(*uris, zk, store, topic, tmp_path)


def actions(rows: list[dict[str, Any]]) -> dict[int, str]:
    return {row["partition"]: row["action"] for row in rows}


def test_a_migration_is_applied_verified_and_rolled_back(world: World, unique: str) -> None:
    world.commit(world.zk, unique, 10, 20, 30, 40)
    world.commit(world.kafka, unique, 5)
    assert actions(world.plan("--group", unique)) == {0: "copy", 1: "copy", 2: "copy", 3: "copy"}
    assert world.offsets(world.kafka, unique) == {0: 5}
    status = json.loads(world.run("migrate", "status", "plan.json", "--format", "json").stdout)[0]
    assert (status["group"], status["state"]) == (unique, "planned")
    assert status["next"] == f"offsetmgr migrate apply plan.json --group {unique}"

    refused = world.run("migrate", "apply", "plan.json", code=2)
    assert "add --yes" in refused.stderr
    assert world.offsets(world.kafka, unique) == {0: 5}

    world.run("migrate", "apply", "plan.json", "--yes")
    assert world.offsets(world.kafka, unique) == {0: 10, 1: 20, 2: 30, 3: 40}
    verified = json.loads(world.run("migrate", "verify", "plan.json", "--format", "json").stdout)
    assert [(row["status"], row["evidence"]) for row in verified] == [("equal", "seen")] * 4

    world.run("migrate", "rollback", "plan.json", "--yes")
    assert world.offsets(world.kafka, unique) == {0: 5}
    assert world.offsets(world.zk, unique) == {0: 10, 1: 20, 2: 30, 3: 40}
    assert "was rolled back" in world.run("migrate", "apply", "plan.json", "--yes", code=1).stderr
    after = world.run("migrate", "verify", "plan.json", code=1)
    assert "this plan was rolled back" in after.stderr
    assert "missing" not in after.stdout


def test_a_plan_shows_when_the_copied_offsets_would_expire(world: World, unique: str) -> None:
    world.commit(world.zk, unique, 10)
    done = world.run(
        "migrate", "plan", "--from", world.zk_uri, "--to", world.kafka_uri, "--group", unique, "-o", "p.json"
    )
    header = json.loads((world.directory / "p.json").read_text())["header"]
    assert header["expires_at"] - header["created_at"] == 7 * 24 * 3600 * 1000
    assert "expire about" in done.stderr


def test_offsets_ahead_are_kept_and_a_rewind_needs_its_flag(world: World, unique: str) -> None:
    world.commit(world.zk, unique, 10, 20)
    world.commit(world.kafka, unique, 50, 20)
    assert actions(world.plan("--group", unique, "--if-ahead", "keep")) == {0: "keep-newer", 1: "skip-equal"}
    world.run("migrate", "apply", "plan.json", "--yes")
    assert world.offsets(world.kafka, unique) == {0: 50, 1: 20}
    refused = world.plan("--group", unique, "--if-ahead", "refuse", name="refuse.json")
    assert actions(refused) == {0: "refuse-rewind", 1: "skip-equal"}
    rewind = world.plan("--group", unique, "--allow-rewind", name="rewind.json")
    assert actions(rewind) == {0: "rewind", 1: "skip-equal"}
    world.run("migrate", "apply", "rewind.json", "--yes")
    assert world.offsets(world.kafka, unique) == {0: 10, 1: 20}
    world.run("migrate", "rollback", "rewind.json", "--yes")
    assert world.offsets(world.kafka, unique) == {0: 50, 1: 20}


def test_topics_and_log_ranges_are_checked_for_each_partition(world: World, unique: str) -> None:
    world.commit(world.zk, unique, 10, 101)
    world.zk.commit(
        unique,
        {
            TopicPartition(world.topic, 9): OffsetAndMetadata(1),
            TopicPartition(f"{unique}-gone", 0): OffsetAndMetadata(1),
        },
    )
    rows = {(row["topic"], row["partition"]): row for row in world.plan("--group", unique)}
    assert rows[world.topic, 0]["action"] == "copy"
    assert rows[world.topic, 1]["action"] == "refuse-out-of-range"
    assert rows[world.topic, 1]["note"] == "log holds 0 to 100; clamping would give 100 (the log end)"
    assert rows[world.topic, 9]["action"] == "refuse-partition-missing"
    assert rows[f"{unique}-gone", 0]["action"] == "refuse-topic-missing"
    done = world.run("migrate", "apply", "plan.json", "--yes", code=1)
    assert "the plan itself refused 3 partitions" in done.stderr
    assert world.offsets(world.kafka, unique) == {0: 10}
    found = json.loads(world.run("migrate", "verify", "plan.json", "--format", "json", code=1).stdout)
    assert sorted(row["status"] for row in found) == ["equal", "refused", "refused", "refused"]
    clamped = world.plan("--group", unique, "--clamp", "--topic", f"{world.topic}:1", name="clamped.json")
    assert [(row["partition"], row["action"], row["after"]) for row in clamped] == [(1, "copy", 100)]


def test_an_unreadable_offset_never_becomes_a_write(world: World, zookeeper: ZooKeeperServer, unique: str) -> None:
    world.commit(world.zk, unique, 10, 20)
    with connected(zookeeper.connect) as client:
        client.set(f"/kafka/consumers/{unique}/offsets/{world.topic}/1", b"junk")
    assert actions(world.plan("--group", unique)) == {0: "copy", 1: "refuse-unreadable"}
    world.run("migrate", "apply", "plan.json", "--yes", code=1)
    assert world.offsets(world.kafka, unique) == {0: 10}
    found = json.loads(world.run("migrate", "verify", "plan.json", "--format", "json", code=1).stdout)
    assert {row["partition"]: row["status"] for row in found} == {0: "equal", 1: "unreadable"}


def test_groups_are_renamed_and_chosen_by_pattern(world: World, unique: str) -> None:
    for n in range(3):
        world.commit(world.zk, f"{unique}-{n}", n + 1)
    world.plan("--group", f"{unique}-[01]", "--rename", f"{unique}-0={unique}-new")
    world.run("migrate", "apply", "plan.json", "--yes")
    assert world.offsets(world.kafka, f"{unique}-new") == {0: 1}
    assert world.offsets(world.kafka, f"{unique}-1") == {0: 2}
    assert world.offsets(world.kafka, f"{unique}-0") == world.offsets(world.kafka, f"{unique}-2") == {}
    world.run("migrate", "verify", "plan.json")


def test_a_plan_for_another_cluster_is_refused(world: World, kraft: KraftBroker, unique: str) -> None:
    world.commit(world.zk, unique, 10)
    world.plan("--group", unique)
    text = (world.directory / "plan.json").read_text()
    port = kraft.bootstrap.rpartition(":")[2]
    ours = world.kafka_uri.rpartition(":")[2]
    edited = text.replace(f"127.0.0.1:{ours}", f"127.0.0.1:{port}")
    (world.directory / "edited.json").write_text(edited)
    assert "hash does not match" in world.run("migrate", "apply", "edited.json", "--yes", code=1).stderr
    # The same plan with a valid hash, but its address now belongs to another cluster.
    (world.directory / "moved.json").write_text(_with_valid_hash(edited))
    stderr = world.run("migrate", "apply", "moved.json", "--yes", code=1).stderr
    assert "the plan was made for kafka" in stderr


def _with_valid_hash(text: str) -> str:
    import hashlib

    body, mark, _ = text.rpartition(', "sha256": "')
    return body + mark + hashlib.sha256(body.encode()).hexdigest() + '"}\n'


def test_a_migration_to_a_kraft_cluster_without_any_offsets(
    world: World, tmp_path: Path, make_topic: Callable[..., str], unique: str
) -> None:
    """The first commit on a cluster without ``__consumer_offsets`` and without ZooKeeper."""
    with KraftBroker(tmp_path / "fresh") as fresh:
        make_topic(world.topic, 4, bootstrap=fresh.bootstrap)
        fill(fresh.bootstrap, world.topic, 4)
        target = f"kafka://{fresh.bootstrap}"
        world.commit(world.zk, unique, 10, 20, 30)
        plan = world.plan("--group", unique, "--translate", "none", to=target)
        assert actions(plan) == {0: "copy", 1: "copy", 2: "copy"}
        world.run("migrate", "apply", "plan.json", "--yes")
        world.run("migrate", "verify", "plan.json")
        with open_store(target) as store:
            assert world.offsets(store, unique) == {0: 10, 1: 20, 2: 30}


@pytest.fixture
def consumer(world: World, kafka: KafkaBroker, unique: str) -> Iterator[Consumer]:
    """A member that has joined the group."""
    member = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": unique,
            "client.id": "night-shift",
            "enable.auto.commit": False,
        }
    )
    member.subscribe([world.topic])
    wait_for(lambda: member.poll(0.1) is not None or bool(member.assignment()), "the consumer has joined")
    yield member
    member.close()


def test_an_active_group_is_refused_with_its_members_and_the_others_are_migrated(
    world: World, consumer: Consumer, unique: str
) -> None:
    world.commit(world.zk, unique, 10)
    world.commit(world.zk, f"{unique}-idle", 11)
    world.plan("--group", f"{unique}*")
    done = world.run("migrate", "apply", "plan.json", "--yes", code=1)
    assert f"{unique} is active: night-shift at" in done.stderr
    assert world.offsets(world.kafka, unique) == {}
    assert world.offsets(world.kafka, f"{unique}-idle") == {0: 11}


def test_wait_empty_fails_after_its_timeout(world: World, consumer: Consumer, unique: str) -> None:
    world.commit(world.zk, unique, 10)
    world.plan("--group", unique)
    began = time.monotonic()
    world.run("migrate", "apply", "plan.json", "--yes", "--wait-empty", "2", code=1)
    assert time.monotonic() - began >= 2  # and the command has ended, although the consumer has not left
    assert world.offsets(world.kafka, unique) == {}


def test_wait_empty_acts_when_the_group_becomes_empty(world: World, consumer: Consumer, unique: str) -> None:
    world.commit(world.zk, unique, 10)
    world.plan("--group", unique)
    waiting = world.start("migrate", "apply", "plan.json", "--yes", "--wait-empty", "60")
    journal = world.directory / "plan.journal"
    wait_for(lambda: journal.exists() and b"GroupActive" in journal.read_bytes(), "apply was refused once")
    consumer.close()
    out, err = waiting.communicate(timeout=120)
    assert waiting.returncode == 0, out + err
    assert world.offsets(world.kafka, unique) == {0: 10}


def test_ctrl_c_stops_cleanly_and_the_same_command_resumes(world: World, unique: str) -> None:
    groups = 400
    for n in range(groups):
        world.commit(world.zk, f"{unique}-{n:03}", 1, 2, 3, 4)
        world.commit(world.kafka, f"{unique}-{n:03}", 0)
    world.plan("--group", f"{unique}-*")
    journal = world.directory / "plan.journal"
    running = world.start("migrate", "apply", "plan.json", "--yes")
    wait_for(lambda: journal.exists() and b"apply-intent" in journal.read_bytes(), "apply has begun")
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=120)
    assert "Traceback" not in err
    done = [n for n in range(groups) if world.offsets(world.kafka, f"{unique}-{n:03}") != {0: 0}]
    assert all(world.offsets(world.kafka, f"{unique}-{n:03}") == {0: 1, 1: 2, 2: 3, 3: 4} for n in done)
    assert running.returncode == (0 if len(done) == groups else 130), err
    assert ("interrupted: started writes are finished" in err) is (len(done) < groups)
    world.run("migrate", "apply", "plan.json", "--yes")
    world.run("migrate", "verify", "plan.json")


def test_a_consumer_that_starts_during_edits_reads_one_whole_edit(
    world: World, kafka: KafkaBroker, unique: str
) -> None:
    """Consumers start one after the other during edits of their group. Each reads the offsets of one edit."""
    versions = [(10, 10, 10, 10), (20, 20, 20, 20)]
    world.commit(world.kafka, unique, *versions[0])
    seen: list[tuple[int, ...]] = []
    ended = threading.Event()

    def edit() -> None:
        turn = 1
        with open_store(world.kafka_uri) as store:
            while not ended.is_set():
                values = {
                    TopicPartition(world.topic, p): OffsetAndMetadata(o) for p, o in enumerate(versions[turn % 2])
                }
                try:
                    store.commit(unique, values, allow_rewind=True)
                except Exception as error:  # the consumer is a member: the whole edit is rejected
                    assert "member" in str(error), error
                turn += 1

    editor = threading.Thread(target=edit)
    editor.start()
    try:
        for _ in range(5):
            member = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": unique, "enable.auto.commit": False})
            member.subscribe([world.topic])
            wait_for(lambda m=member: m.poll(0.05) is not None, "the consumer consumes")  # type: ignore[misc]
            seen.append(
                tuple(p.offset for p in sorted(member.committed(member.assignment(), 10), key=lambda p: p.partition))
            )
            member.close()
    finally:
        ended.set()
        editor.join(60)
    assert len(seen) == 5
    assert set(seen) <= set(versions)


def test_finalize_requires_evidence_and_keeps_before_images_of_the_removed_source(
    world: World, zookeeper: ZooKeeperServer, unique: str, tmp_path: Path
) -> None:
    world.commit(world.zk, unique, 10, 20)
    world.plan("--group", unique)
    assert "not applied completely" in world.run("migrate", "finalize", "plan.json", "--yes", code=1).stderr
    world.run("migrate", "apply", "plan.json", "--yes")
    with OldConsumer(
        tmp_path / "old", zookeeper=f"{zookeeper.connect}/kafka", group=unique, topic=world.topic,
        auto_commit_interval_ms=200,
    ) as old:  # fmt: skip
        wait_for(lambda: len(old.messages()) > 350, "the old consumer has read its partitions")
        wait_for(lambda: world.offsets(world.zk, unique).get(0) == LOG_END, "and committed to ZooKeeper")
        refused = world.run("migrate", "finalize", "plan.json", "--yes", "--window", "3", code=1)
        assert "do not verify" in refused.stderr
        assert "source-ahead" in refused.stderr
    (world.directory / "plan.json").rename(world.directory / "old.json")
    (world.directory / "plan.journal").unlink()
    world.plan("--group", unique)
    world.run("migrate", "apply", "plan.json", "--yes")
    source = world.offsets(world.zk, unique)
    done = world.run("migrate", "finalize", "plan.json", "--delete-source", "--yes")
    assert "no old consumer is registered" in done.stderr
    assert world.offsets(world.zk, unique) == {}
    journal = [json.loads(line) for line in (world.directory / "plan.journal").read_text().splitlines()]
    removed = next(record for record in journal if record["kind"] == "delete-intent")
    kept = {s["p"]: s["target"] if isinstance(s["target"], int) else s["target"]["offset"]
            for s in removed["topics"][world.topic]}  # fmt: skip
    assert kept == source

    assert "would rewind" in world.run("migrate", "rollback", "plan.json", "--yes", code=1).stderr
    world.run("migrate", "rollback", "plan.json", "--reverse-plan", "back.json")
    world.run("migrate", "apply", "back.json", "--yes")
    assert world.offsets(world.zk, unique) == source


def test_a_removal_after_finalize_checks_again_and_keeps_newer_source_offsets(
    world: World, zookeeper: ZooKeeperServer, unique: str, tmp_path: Path
) -> None:
    world.commit(world.zk, unique, 10, 20)
    world.plan("--group", unique)
    world.run("migrate", "apply", "plan.json", "--yes")
    world.run("migrate", "finalize", "plan.json", "--yes")
    with OldConsumer(
        tmp_path / "old", zookeeper=f"{zookeeper.connect}/kafka", group=unique, topic=world.topic,
        auto_commit_interval_ms=200,
    ):  # fmt: skip
        wait_for(lambda: world.offsets(world.zk, unique).get(0) == LOG_END, "the old consumer commits to ZooKeeper")
        done = world.run("migrate", "finalize", "plan.json", "--delete-source", "--yes", "--window", "2", code=1)
        assert "kept in the source" in done.stderr
        assert world.offsets(world.zk, unique)[0] == LOG_END
    done = world.run("migrate", "finalize", "plan.json", "--delete-source", "--yes", code=1)
    assert "the source is ahead of the target (100)" in done.stderr
    assert world.offsets(world.zk, unique)[0] == LOG_END


def test_a_rollback_prints_the_command_that_removes_the_groups_that_are_empty_after_it(
    world: World, unique: str
) -> None:
    new, other, existing = f"{unique}-new*", f"{unique}-new 2", f"{unique}-existing"
    for group in (new, other, existing):
        world.commit(world.zk, group, 10)
    world.commit(world.kafka, existing, 5)
    world.plan("--group", f"{unique}-*")
    world.run("migrate", "apply", "plan.json", "--yes")

    done = world.run("migrate", "rollback", "plan.json", "--yes")

    *_, count, line = done.stderr.splitlines()
    assert count == "2 groups that had no offset before are empty now"
    command = shlex.split(line.removeprefix("to remove: offsetmgr "))
    world.run(*command, "--yes")
    assert {name for name in world.kafka.groups() if name.startswith(unique)} == {existing}


def test_a_rollback_by_another_process_during_the_prompt_is_detected(world: World, unique: str) -> None:
    world.commit(world.zk, unique, 10)
    world.commit(world.kafka, unique, 5)
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
    assert world.offsets(world.kafka, unique) == {0: 5}


def _read_stderr(process: subprocess.Popen[str]) -> str:
    """Reads stderr from the pipe itself, so that the process's text buffer stays empty for `communicate`."""
    assert process.stderr is not None
    return os.read(process.stderr.fileno(), 1 << 16).decode()


def test_finalize_names_a_member_that_still_commits_to_zookeeper_alone(
    world: World, kafka: KafkaBroker, zookeeper: ZooKeeperServer, unique: str, tmp_path: Path
) -> None:
    world.commit(world.zk, unique, *[LOG_END] * 4)
    world.plan("--group", unique)
    world.run("migrate", "apply", "plan.json", "--yes")
    with OldConsumer(
        tmp_path / "old", zookeeper=f"{zookeeper.connect}/kafka", group=unique, topic=world.topic,
        auto_commit_interval_ms=200,
    ) as old:  # fmt: skip
        refused = world.run("migrate", "finalize", "plan.json", "--yes", "--window", "2", code=1)
        assert old.member_id in refused.stderr


def test_a_snapshot_is_restored_like_any_other_source(world: World, unique: str) -> None:
    world.commit(world.kafka, unique, 10, 20)
    world.run("offsets", "export", "--store", world.kafka_uri, "--group", unique, "saved.avro")
    world.commit(world.kafka, unique, 60, 15)
    common = ["--from", "file:saved.avro", "--to", world.kafka_uri, "--group", unique, "--format", "json"]
    rows = json.loads(world.run("migrate", "plan", *common, "-o", "p.json").stdout)
    assert actions(rows) == {0: "refuse-rewind", 1: "copy"}
    rows = json.loads(world.run("migrate", "plan", *common, "--allow-rewind", "-o", "q.json").stdout)
    assert actions(rows) == {0: "rewind", 1: "copy"}
    world.run("migrate", "apply", "q.json", "--yes")
    assert world.offsets(world.kafka, unique) == {0: 10, 1: 20}
    world.run("migrate", "verify", "q.json")


def test_the_reverse_plan_omits_groups_never_copied_and_names_lost_offsets(world: World, unique: str) -> None:
    live, dead, lost = f"{unique}-live", f"{unique}-dead", f"{unique}-lost"
    for group in (live, lost):
        world.commit(world.zk, group, 10)
    world.zk.commit(dead, {TopicPartition(f"{unique}-gone", 0): OffsetAndMetadata(7)})
    world.plan("--group", f"{unique}-*")
    world.run("migrate", "apply", "plan.json", "--yes", code=1)
    done = world.run("migrate", "finalize", "plan.json", "--yes", "--accept-refused")
    assert "finalized: 2 partitions verified, 1 left out because the plan refused them" in done.stderr
    world.commit(world.kafka, live, 30)

    done = world.run("migrate", "rollback", "plan.json", "--reverse-plan", "back.json")
    assert f"{dead}: left out: it was never copied ({unique}-gone-0 refuse-topic-missing)" in done.stderr
    world.run("migrate", "apply", "back.json", "--yes")
    assert world.offsets(world.zk, live) == {0: 30}

    world.kafka.delete(lost)
    done = world.run("migrate", "rollback", "plan.json", "--reverse-plan", "again.json", code=1)
    assert f"{lost} {world.topic}-0: refuse-lost: it was copied" in done.stderr
    assert world.offsets(world.zk, lost) == {0: 10}


def _delete_records_before(world: World, kafka: KafkaBroker, offset: int) -> None:
    """Moves the start of partition 0's log, as retention does."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    futures = admin.delete_records([Position(world.topic, 0, offset)])
    assert [done.result(90).low_watermark for done in futures.values()] == [offset]


def test_an_offset_below_the_log_start_fails_apply_verify_and_finalize(
    world: World, kafka: KafkaBroker, unique: str
) -> None:
    world.commit(world.zk, unique, 30, 40)
    world.plan("--group", unique)
    world.plan("--group", unique, name="later.json")
    world.run("migrate", "apply", "plan.json", "--yes")
    _delete_records_before(world, kafka, 50)
    found = json.loads(world.run("migrate", "verify", "plan.json", "--format", "json", code=1).stdout)
    assert {row["partition"]: row["status"] for row in found} == {0: "below-log-start", 1: "equal"}
    assert "clamping would give 50 (the log start)" in found[0]["detail"]
    refused = world.run("migrate", "finalize", "plan.json", "--yes", code=1).stderr
    assert f"{world.topic}-0 below-log-start" in refused
    world.run("migrate", "rollback", "plan.json", "--yes")

    done = world.run("migrate", "apply", "later.json", "--yes", code=1)
    assert f"{unique} {world.topic}-0: 30 is outside its log now; log holds 50 to 100" in done.stderr
    assert world.offsets(world.kafka, unique) == {1: 40}
    world.plan("--group", unique, "--clamp", name="clamped.json")
    world.run("migrate", "apply", "clamped.json", "--yes")
    world.run("migrate", "verify", "clamped.json")
    assert world.offsets(world.kafka, unique) == {0: 50, 1: 40}


def test_a_group_name_invalid_in_zookeeper_is_refused_alone_and_valid_in_kafka(world: World, unique: str) -> None:
    slashed = f"{unique}/ash"
    world.commit(world.kafka, slashed, 10)
    world.commit(world.kafka, f"{unique}-good", 20)
    back = ["migrate", "plan", "--from", world.kafka_uri, "--to", world.zk_uri, "--group", f"{unique}*"]
    done = world.run(*back, "-o", "back.json", code=1)
    assert f"{slashed}: target: group '{slashed}': cannot exist in ZooKeeper" in done.stderr
    world.run("migrate", "apply", "back.json", "--yes", code=1)
    assert world.offsets(world.zk, f"{unique}-good") == {0: 20}
    world.run("migrate", "finalize", "back.json", "--yes", "--accept-refused", "--window", "0")
    world.run(*back, "--rename", f"{slashed}={unique}-ash", "-o", "renamed.json")

    world.plan("--group", f"{unique}-good", "--rename", f"{unique}-good={unique}/good", name="forth.json")
    world.run("migrate", "apply", "forth.json", "--yes")
    assert world.offsets(world.kafka, f"{unique}/good") == {0: 20}
    world.run("migrate", "verify", "forth.json")
    world.run("migrate", "rollback", "forth.json", "--reverse-plan", "forth-back.json")


def test_a_rewind_made_in_kafka_is_migrated_back_only_with_its_flag(world: World, unique: str) -> None:
    world.commit(world.zk, unique, 50, 50)
    world.plan("--group", unique)
    world.run("migrate", "apply", "plan.json", "--yes")
    world.run("migrate", "finalize", "plan.json", "--yes")
    world.commit(world.kafka, unique, 10)

    back = ("migrate", "rollback", "plan.json", "--reverse-plan")
    done = world.run(*back, "back.json")
    assert "refuse-rewind: keeps 50; a start there skips 40 messages if the consumers are at 10 (ZooK" in done.stderr
    found = json.loads(world.run("migrate", "verify", "back.json", "--format", "json", code=1).stdout)
    assert [row["status"] for row in found] == ["refused", "equal"]
    assert "--force: has no effect with --reverse-plan" in world.run(*back, "forced.json", "--force", code=2).stderr

    assert "not found in plan" in world.run(*back, "other.json", "--group", "other", code=1).stderr
    world.run(*back, "allowed.json", "--allow-rewind", "--group", unique)
    world.run("migrate", "apply", "allowed.json", "--yes")
    world.run("migrate", "verify", "allowed.json")
    assert world.offsets(world.zk, unique) == {0: 10, 1: 50}
