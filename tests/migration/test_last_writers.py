"""The larger offset does not count as the newer one: the phase of a group, its lag, plans, mirrors and finalized groups
depend on which store was written last. Real ZooKeeper, Kafka 3.9.1 and 4.4.0; every log ends at 100."""

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AclOperation, ResourceType
from everyday import Cli
from processes import fill, pass_margin, wait_for
from repeated import repeated
from same_cluster import join_cluster
from secured_broker import allowed

from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.sandbox import KafkaBroker, KraftBroker
from offsetmgr.stores.uri import open_store

pytestmark = pytest.mark.servers

TITLES = {"zookeeper": "ZooKeeper", "kafka": "Kafka"}
OTHER = {"zookeeper": "kafka", "kafka": "zookeeper"}
LOG_END = 100


@dataclass
class World:
    """A group in ZooKeeper and in Kafka, which commits partition 0 unless a test names the other one."""

    uris: dict[str, str]
    group: str
    cli: Cli
    directory: Path

    @property
    def options(self) -> tuple[str, ...]:
        zookeeper, kafka = (self.uris[kind].partition("://")[2] for kind in TITLES)
        return "--zookeeper", zookeeper, "--bootstrap-server", kafka

    def commit(self, kind: str, offset: int, group: str | None = None) -> None:
        with open_store(self.uris[kind]) as store:
            value = {TopicPartition(self.group, 0): OffsetAndMetadata(offset)}
            store.commit(group or self.group, value, allow_rewind=True)

    def commit_together(self, zookeeper: int, kafka: int, partition: int = 0) -> None:
        """Commits to both stores within some milliseconds."""
        tp = TopicPartition(self.group, partition)
        with open_store(self.uris["zookeeper"]) as old, open_store(self.uris["kafka"]) as new:
            old.fetch(self.group, [tp])  # opens the session
            new.commit(self.group, {tp: OffsetAndMetadata(kafka)})
            old.commit(self.group, {tp: OffsetAndMetadata(zookeeper)})

    def held(self, kind: str) -> int | None:
        with open_store(self.uris[kind]) as store:
            found = store.fetch(self.group, [TopicPartition(self.group, 0)])[TopicPartition(self.group, 0)]
        return found.offset if isinstance(found, Committed) else None

    def commit_in_order(self, first: tuple[str, int], last: tuple[str, int]) -> None:
        """Commits to both stores, further apart than the margin of their clocks."""
        self.commit(*first)
        pass_margin()
        self.commit(*last)

    def where(self, *arguments: str) -> dict[str, Any]:
        (row,) = self.cli.rows("groups", "where", self.group, *self.options, *arguments)
        return row

    def plan(self, source: str, *arguments: str, name: str = "plan.json") -> tuple[str, int | None, str]:
        """Plans the move from ``source`` to the other store. Returns the action, the offset after apply, and the
        note."""
        sides = ("--from", self.uris[source], "--to", self.uris[OTHER[source]], "--group", self.group)
        row = self.cli.planned(*sides, "-o", str(self.directory / name), *arguments)
        return row["action"], row["after"], row["note"]

    def run(self, command: str, *arguments: str, name: str = "plan.json", code: int = 0) -> str:
        done = self.cli("migrate", command, str(self.directory / name), *arguments, code=code)
        return done.stdout + done.stderr

    @contextmanager
    def commits(self, kind: str, first: int, group: str | None = None) -> Iterator[None]:
        """Commits the offsets from ``first`` on to a store, five in a second, up to the middle of the log."""
        offsets = itertools.chain(range(first, LOG_END // 2), itertools.repeat(LOG_END // 2))

        def commit() -> None:
            self.commit(kind, next(offsets), group)
            time.sleep(0.2)

        with repeated(commit):
            yield


@pytest.fixture(params=["kafka", "kraft"])
def world(request, zookeeper, make_topic, unique, tmp_path):
    broker: KafkaBroker | KraftBroker = request.getfixturevalue(request.param)
    chroot = "kafka" if request.param == "kafka" else unique
    if request.param == "kraft":
        join_cluster(f"{zookeeper.connect}/{chroot}", broker.bootstrap)
    make_topic(unique, 2, bootstrap=broker.bootstrap)
    fill(broker.bootstrap, unique, LOG_END, LOG_END)
    uris = {"zookeeper": f"zookeeper://{zookeeper.connect}/{chroot}", "kafka": f"kafka://{broker.bootstrap}"}
    return World(uris, unique, Cli(tmp_path), tmp_path)


only_kafka = pytest.mark.parametrize("world", ["kafka"], indirect=True)
directions = pytest.mark.parametrize("newer", ["zookeeper", "kafka"])


@directions
def test_commits_that_are_seen_show_the_store_although_the_other_one_holds_a_larger_offset(world, newer):
    world.commit(OTHER[newer], 90)
    with world.commits(newer, 20):
        row = world.where("--window", "60")
    assert (row["phase"], row["confidence"]) == (newer, "seen")
    assert f"{TITLES[newer]} changed while it was watched (" in row["evidence"]
    assert f"and {TITLES[OTHER[newer]]} stayed at 90" in row["evidence"]
    assert LOG_END // 2 <= row["lag"] == LOG_END - row["partitions"][0]["offsets"][newer] <= LOG_END - 20
    command = row["next"]["command"]
    assert command is None if newer == "kafka" else command.startswith("offsetmgr migrate plan ")


@directions
def test_the_times_of_the_commits_show_the_store_in_every_view(world: World, newer: str) -> None:
    older = OTHER[newer]
    world.commit_in_order((older, 90), (newer, 40))
    row = world.where()
    assert (row["phase"], row["confidence"], row["lag"]) == (newer, "inferred", 60)
    assert f"{TITLES[older]} wrote 90 at " in row["evidence"]
    assert f", {TITLES[newer]} wrote 40 at " in row["evidence"]
    lag = ("offsets", "lag", "--group", world.group, *world.options)
    (stale,) = world.cli.rows(*lag, "--store", world.uris[older])
    assert (stale["offset"], stale["lag"], stale["note"]) == (90, 60, f"older than {TITLES[newer]}'s 40")
    (current,) = world.cli.rows(*lag, "--store", world.uris[newer])
    assert (current["offset"], current["lag"], current["note"]) == (40, 60, None)


@directions
def test_a_plan_keeps_a_target_that_was_written_last_and_refuses_a_stale_one(world: World, newer: str) -> None:
    older = OTHER[newer]
    world.commit_in_order((older, 90), (newer, 40))
    action, after, note = world.plan(newer)
    assert (action, after) == ("refuse-rewind", None)
    assert note.startswith("keeps 90; a start there skips 50 messages if the consumers are at 40 (")
    assert f"{TITLES[older]} wrote 90 at " in note
    action, after, note = world.plan(older, name="back.json")
    assert (action, after) == ("refuse-newer", None)
    assert note.startswith("would write 90; a start there skips 50 messages if the consumers are at 40 (")
    assert world.plan(older, "--if-ahead", "rewind", name="write.json")[:2] == ("copy", 90)
    world.commit_in_order((newer, 40), (older, 95))
    action, after, note = world.plan(newer, name="kept.json")
    assert (action, after) == ("keep-newer", 95)
    assert note.startswith(f"target is ahead by 55: {TITLES[newer]} wrote 40 at ")
    world.run("apply", "--yes", name="kept.json")
    assert "kept-ahead" in world.run("verify", name="kept.json")
    finalized = world.run("finalize", "--yes", "--window", "1", "--accept-idle", name="kept.json")
    assert "finalized: 1 partition verified" in finalized


@only_kafka
def test_a_target_ahead_without_evidence_is_refused_and_a_word_accepts_it(world: World) -> None:
    world.commit_together(zookeeper=40, kafka=90)
    action, after, note = world.plan("zookeeper")
    assert (action, after) == ("refuse-rewind", None)
    assert "which is too close to decide: their clocks differ by at most " in note
    assert note.endswith("--if-ahead keep accepts it, --if-ahead rewind writes 40")
    assert (world.where()["phase"], world.where()["lag"]) == ("unknown", None)
    lag = ("offsets", "lag", "--group", world.group, *world.options)
    for store, offset, note in (("zookeeper", 40, "Kafka's 90"), ("kafka", 90, "ZooKeeper's 40")):
        (row,) = world.cli.rows(*lag, "--store", world.uris[store])
        assert (row["offset"], row["lag"], row["note"]) == (offset, None, f"maybe older than {note}")
    shown = world.cli(*lag).stderr
    assert "warning: 1 offset in ZooKeeper differs from the group's in Kafka" in shown
    assert world.plan("zookeeper", "--if-ahead", "keep", name="word.json")[:2] == ("keep-newer", 90)
    world.run("renew", "-o", str(world.directory / "again.json"), name="word.json")
    for command in (("apply", "--yes"), ("verify",), ("finalize", "--yes", "--window", "1", "--accept-idle")):
        world.run(*command, name="again.json")


def test_without_read_on_the_offsets_topic_the_times_are_no_evidence(secured, make_topic, unique, tmp_path):
    make_topic(unique, bootstrap=secured.open)
    uris = {"zookeeper": f"zookeeper://{secured.zookeeper}", "kafka": f"kafka://{secured.open}"}
    world = World(uris, unique, Cli(tmp_path), tmp_path)
    world.commit_in_order(("zookeeper", 0), ("kafka", 1))
    world.uris["kafka"] = f"kafka://{secured.bootstrap}"
    login = tmp_path / "client.properties"
    login.write_text("".join(f"{key}={value}\n" for key, value in secured.properties.items()))

    def grant(kind: ResourceType, name: str, operation: AclOperation) -> None:
        secured.grant([allowed(kind, name, operation)])

    def plan(name: str) -> tuple[str, int | None, str]:
        return world.plan("zookeeper", "--to-command-config", str(login), name=name)

    grant(ResourceType.GROUP, unique, AclOperation.READ)
    grant(ResourceType.TOPIC, unique, AclOperation.READ)
    action, _, note = plan("hidden.json")
    assert action == "refuse-rewind"
    assert "(the times of the commits in Kafka need READ on __consumer_offsets)" in note
    grant(ResourceType.TOPIC, "__consumer_offsets", AclOperation.DESCRIBE)
    wait_for(lambda: "are unknown: " in plan(f"{time.time_ns()}.json")[2], "the topic is visible")
    grant(ResourceType.TOPIC, "__consumer_offsets", AclOperation.READ)
    wait_for(lambda: plan(f"{time.time_ns()}.json")[0] == "keep-newer", "the times are readable")


@only_kafka
def test_a_copy_that_was_refreshed_is_not_newer_than_a_rewind_of_the_source(world: World) -> None:
    world.commit("zookeeper", 90)
    world.plan("zookeeper")
    world.run("apply", "--yes")
    world.commit("zookeeper", 40)
    pass_margin()
    world.run("apply", "--refresh", "--yes")
    evidence = "Kafka still holds the 90 of offsetmgr's last copy, and ZooKeeper has changed since"
    row = world.where()
    assert (row["phase"], row["lag"]) == ("zookeeper", 60)
    assert evidence in row["evidence"]
    for command in (("offsets", "lag"), ("groups", "describe")):
        selected = ("--group", world.group, *world.options, "--store", world.uris["kafka"])
        (stale,) = world.cli.rows(*command, *selected)
        assert (stale["offset"], stale["lag"], stale["note"]) == (90, 60, "older than ZooKeeper's 40")
    action, _, note = world.plan("zookeeper", name="again.json")
    assert action == "refuse-rewind"
    assert evidence in note


@only_kafka
def test_an_offset_that_a_rollback_restored_is_not_newer(world: World) -> None:
    world.commit_in_order(("kafka", 90), ("zookeeper", 40))
    world.plan("zookeeper", "--if-ahead", "rewind")
    world.run("apply", "--yes")
    pass_margin()
    world.run("rollback", "--yes")
    assert world.held("kafka") == 90
    world.uris["kafka"] = world.uris["kafka"].replace("127.0.0.1", "localhost")  # another address of the same store
    lag = ("offsets", "lag", "--group", world.group, *world.options)
    (row,) = world.cli.rows(*lag, "--store", world.uris["zookeeper"])
    assert (row["offset"], row["lag"], row["note"]) == (40, None, "maybe older than Kafka's 90")
    assert "differs from the group's in Kafka, and nothing shows which is newer" in world.cli(*lag).stderr
    action, _, note = world.plan("zookeeper", name="again.json")
    assert action == "refuse-rewind"
    assert "offsetmgr restored an older offset then" in note


@only_kafka
def test_a_refresh_leaves_out_an_offset_that_may_be_stale(world: World) -> None:
    world.commit("zookeeper", 10)
    world.commit_together(zookeeper=40, kafka=90, partition=1)
    sides = ("--from", world.uris["zookeeper"], "--to", world.uris["kafka"], "--group", world.group)
    rows = world.cli.rows("migrate", "plan", *sides, "-o", str(world.directory / "plan.json"))
    assert [row["action"] for row in rows] == ["copy", "refuse-rewind"]
    assert "1 offset written in 1 group" in world.run("apply", "--yes", code=1)
    pass_margin()
    assert "1 group renewed" in world.run("apply", "--refresh", "--yes")
    action, _, note = world.plan("zookeeper", "--topic", f"{world.group}:1", name="again.json")
    assert action == "refuse-rewind"
    assert "which is too close to decide" in note


@only_kafka
def test_a_plan_watches_commits_where_times_cannot_decide(world: World) -> None:
    """Both groups are in the same Kafka cluster, where the clocks of the coordinators are not compared."""
    other = f"{world.group}-other"
    world.commit("kafka", 10)
    world.commit("kafka", 20, other)
    sides = ("--from", world.uris["kafka"], "--to", world.uris["kafka"], "--group", world.group)
    options = ("--rename", f"{world.group}={other}", "--onto-existing")

    def plan(name: str, *arguments: str) -> dict[str, Any]:
        return world.cli.planned(*sides, *options, "-o", str(world.directory / name), *arguments)

    assert plan("once.json")["action"] == "refuse-rewind"
    with world.commits("kafka", 21, other):
        watched = plan("watched.json", "--window", "60")
    assert watched["action"] == "keep-newer"
    assert "the target changed while it was watched (" in watched["note"]


@only_kafka
@directions
def test_a_mirror_reports_a_target_that_may_be_stale_and_does_not_overwrite_a_newer_one(world, newer):
    def mirror(source: str, *arguments: str, code: int) -> dict[str, Any]:
        sides = ("--from", world.uris[source], "--to", world.uris[OTHER[source]], "--group", world.group)
        options = ("--once", "--yes", "--settle", "100")
        (row,) = world.cli.rows("migrate", "mirror", *sides, *options, *arguments, code=code)
        return row

    older = OTHER[newer]
    world.commit_in_order((older, 90), (newer, 40))
    row = mirror(newer, code=1)
    assert row["state"] == "target-ahead"
    assert f"{world.group}-0 keeps 90; a start there skips 50 messages if the consumers are at 40 (" in row["detail"]
    assert row["detail"].endswith("--if-ahead keep accepts it")
    row = mirror(older, code=1)
    assert f"{world.group}-0 would write 90; a start there skips 50 messages" in row["detail"]
    assert world.held(newer) == 40
    assert mirror(newer, "--if-ahead", "keep", code=0)["detail"] == ""
    world.commit_in_order((newer, 40), (older, 91))
    assert mirror(newer, code=0)["state"] == "target-ahead"  # the target was written last
    assert mirror(older, code=0)["state"] == "following"
    assert world.held(newer) == 91


@only_kafka
@pytest.mark.parametrize(("offset", "noted"), [(LOG_END - 1, True), (LOG_END, False), (LOG_END - 2, False)])
def test_offsets_that_are_all_one_behind_their_logs_end_cause_a_note_and_a_shift_copies_the_next_one(
    world: World, offset: int, noted: bool
) -> None:
    world.commit("zookeeper", offset)
    sides = ("--from", world.uris["zookeeper"], "--to", world.uris["kafka"], "--group", world.group)
    done = world.cli("migrate", "plan", *sides, "-o", str(world.directory / "unshifted.json"))
    assert ("plan with --shift 1" in done.stderr) is noted
    if not noted:
        return
    assert world.plan("zookeeper", "--shift", "1")[:2] == ("copy", LOG_END)
    world.run("apply", "--yes")
    assert world.held("kafka") == LOG_END
    row = world.where()  # the later commit in Kafka is the copy
    assert row["phase"] == "unknown"
    assert "both still hold the offsets of offsetmgr's last copy" in row["evidence"]
    assert "verified: 1 partition" in world.run("verify")
    again = world.cli("migrate", "plan", *sides, "--shift", "1", "-o", str(world.directory / "again.json"))
    assert "1 is added to each copied offset" in again.stderr
    world.run("rollback", "--reverse-plan", str(world.directory / "back.json"))
    (row,) = world.cli.rows("migrate", "verify", str(world.directory / "plan.json"))
    assert (row["status"], row["source"], row["target"]) == ("equal", offset, LOG_END)
    world.run("rollback", "--yes")
    assert (world.held("kafka"), world.held("zookeeper")) == (None, offset)
