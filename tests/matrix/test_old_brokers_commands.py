"""The commands of offsetmgr on brokers of older releases, and on clusters of two releases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from matrix_worlds import RECORDS, NewConsumer, World, has_leaders, produce
from processes import Commands, wait_for

from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer, create_topic

if TYPE_CHECKING:
    from matrix.conftest import Era

pytestmark = [pytest.mark.servers, pytest.mark.matrix]
PARTITIONS = 2

LACKS = {
    "0.8.2.2": 16,
    "0.9.0.1": 13,
    "0.10.2.2": 9,
    "1.1.1": 6,
    "2.8.2": 0,
}
"""How many of the capabilities each release lacks."""


@pytest.fixture
def world(era: Era, unique: str, tmp_path: Path) -> World:
    era.make_topic(unique, PARTITIONS)
    produce(era.bootstrap, unique, era.release)
    return World(f"zookeeper://{era.zookeeper}", f"kafka://{era.bootstrap}", era.bootstrap, unique, Commands(tmp_path))


def test_the_release_and_the_capabilities_are_reported(world: World, era: Era) -> None:
    rows = world.rows("cluster", "describe", *world.servers)
    assert {row["release"] for row in rows} == {era.release.rpartition(".")[0].replace("0.9.0", "0.9")}
    assert sum(not row["on"] for row in rows) == LACKS[era.release]
    assert "CAPABILITY" in world.run("cluster", "describe", *world.servers)


def test_groups_and_offsets_are_listed_set_exported_compared_and_brought_back(world: World, unique: str) -> None:
    at = ("--group", unique, *world.servers)
    both = f"{world.topic}:0,1"
    world.run("offsets", "set", *at, "--topic", both, "--to-offset", "0", "--new-group", "--execute", "--yes")
    assert unique in [row["group"] for row in world.rows("groups", "list", *world.servers)]
    assert {row["offset"] for row in world.rows("groups", "describe", *at)} == {0}
    assert sum(row["lag"] for row in world.rows("offsets", "lag", *at)) == RECORDS
    world.run("offsets", "export", "s.avro", *at)
    said = world.run("offsets", "reset", *at, "--to-latest", "--all-topics", "--execute", "--yes")
    assert "done: " in said
    assert sum(world.held(world.kafka, unique).values()) == RECORDS
    world.run("offsets", "diff", "--from", "file:s.avro", "--to", world.kafka, "--group", unique, code=1)
    world.run("offsets", "import", "s.avro", *world.servers, "--allow-rewind", "--execute", "--yes")
    assert set(world.held(world.kafka, unique).values()) == {0}
    world.run("groups", "copy", unique, f"{unique}-2", *world.servers, "--execute", "--yes")
    assert world.held(world.kafka, f"{unique}-2") == world.held(world.kafka, unique)
    world.run("groups", "delete", "--group", f"{unique}-2", *world.servers, "--execute", "--yes")


def test_a_reset_by_time_is_refused_by_the_capability_where_brokers_cannot_find_times(
    world: World, era: Era, unique: str
) -> None:
    world.commit(world.kafka, unique, {0: 3, 1: 4})
    reset = ("offsets", "reset", "--group", unique, *world.servers, "--to-datetime", "2020-01-01T00:00:00.000")
    old = era.release in ("0.8.2.2", "0.9.0.1")
    said = world.run(*reset, "--all-topics", "--execute", "--yes", code=1 if old else 0)
    if old:
        assert 'lacks the capability "finds offsets by time", which came with Kafka 0.10.1' in said
    assert world.held(world.kafka, unique) == ({0: 3, 1: 4} if old else {0: 0, 1: 0})


def test_a_migration_goes_there_and_back(world: World, unique: str) -> None:
    world.commit(world.zookeeper, unique, {0: 5, 1: 6})
    there = ("migrate", "plan", "--from", world.zookeeper, "--to", world.kafka, "--group", unique)
    assert "logs    checked against Kafka cluster" in world.run(*there, "-o", "p.json")
    world.run("migrate", "apply", "p.json", "--yes")
    assert world.held(world.kafka, unique) == {0: 5, 1: 6}
    assert "verified: 2 partitions" in world.run("migrate", "verify", "p.json")
    world.run("migrate", "finalize", "p.json", "--window", "1", "--accept-idle")
    world.commit(world.kafka, unique, {0: 7, 1: 8})
    world.run("migrate", "rollback", "p.json", "--reverse-plan", "back.json")
    world.run("migrate", "apply", "back.json", "--yes")
    assert world.held(world.zookeeper, unique) == {0: 7, 1: 8}


def test_the_life_of_what_is_written_is_reported(world: World, era: Era, unique: str) -> None:
    """Before 2.1 each offset has a life of its own, and a write starts it again. From 2.1 on the group lock starts the
    life of the whole group again."""
    world.commit(world.kafka, unique, {0: 5})
    world.commit(world.zookeeper, unique, {0: 5, 1: 6})
    apart = 'lacks "keeps the offsets of groups with members" (from 2.1 on): each offset expires by itself'
    locked = "expiry  the group lock of a write restarts the retention of all offsets of the group"
    planned = ("migrate", "plan", "--from", world.zookeeper, "--to", world.kafka, "--group", unique, "-o", "p.json")
    for said in (world.run(*planned), world.run("migrate", "apply", "p.json", "--yes")):
        assert (apart in said) == (era.release != "2.8.2")
        assert (locked in said) == (era.release == "2.8.2")
        assert "expiry  offsets copied now" in said
    assert (apart in world.run("migrate", "rollback", "p.json", "--yes")) == (era.release != "2.8.2")
    set_one = ("offsets", "set", "--group", unique, *world.servers, "--topic", f"{world.topic}:0", "--to-offset", "3")
    assert (apart in world.run(*set_one, "--execute", "--yes")) == (era.release != "2.8.2")


def test_a_group_that_does_not_exist_is_an_error(world: World, unique: str) -> None:
    said = world.run("groups", "describe", "--group", unique, *world.servers, code=1)
    assert f"error: group '{unique}': does not exist" in said


def test_the_fallback_setting_does_not_hide_that_a_broker_is_newer(world: World, era: Era, unique: str) -> None:
    """The setting only tells 0.8.2 and 0.9 apart."""
    world.commit(world.kafka, unique, {0: 2, 1: 3})
    (world.commands.directory / "old.properties").write_text(
        f"broker.version.fallback={'0.8.2' if era.release == '0.8.2.2' else '0.9.0'}\n"
    )
    rows = world.rows("offsets", "get", "--group", unique, *world.servers, "--command-config", "old.properties")
    assert {row["partition"]: row["offset"] for row in rows} == {0: 2, 1: 3}


def test_a_rollback_restores_what_was_there_and_says_what_stays(world: World, era: Era, unique: str) -> None:
    world.commit(world.kafka, unique, {0: 2})
    world.commit(world.zookeeper, unique, {0: 5, 1: 6})
    world.run("migrate", "plan", "--from", world.zookeeper, "--to", world.kafka, "--group", unique, "-o", "p.json")
    world.run("migrate", "apply", "p.json", "--yes")
    said = world.run("migrate", "rollback", "p.json", "--yes")
    assert world.held(world.kafka, unique) == {0: 2}
    assert "rolled back: every offset is as it was before" in said
    stays = "apply created 1 offset there, and rollback deleted them"
    assert (stays in said) == (era.release != "2.8.2")


def test_a_mirror_tells_what_is_weaker_and_how_long_offsets_live(world: World, era: Era, unique: str) -> None:
    world.commit(world.zookeeper, unique, {0: 5, 1: 6})
    follow = ("migrate", "mirror", "--from", world.zookeeper, "--to", world.kafka, "--group", unique)
    said = world.run(*follow, "--once", "--settle", "0", "--yes")
    assert ('warning Kafka 0.8.2 lacks "holds the group lock"' in said) == (era.release == "0.8.2.2")
    assert ('lacks "keeps the offsets of groups with members"' in said) == (era.release != "2.8.2")
    days = 7 if era.release == "2.8.2" else 1
    again = f"expiry  the mirror commits its offsets again every {days * 360:,} min; after it ends, offsets"
    assert f"{again} that no consumer commits expire within {days * 1440:,} min" in said


def test_a_mirror_follows_and_a_dual_store_reads_the_larger(world: World, unique: str) -> None:
    world.commit(world.zookeeper, unique, {0: 5, 1: 6})
    follow = ("migrate", "mirror", "--from", world.zookeeper, "--to", world.kafka, "--group", unique)
    process = world.commands.start(*follow, "--interval", "200", "--yes")

    def arrived(offsets: dict[int, int]) -> bool:
        assert process.poll() is None, process.communicate()
        return world.held(world.kafka, unique) == offsets

    try:
        wait_for(lambda: arrived({0: 5, 1: 6}), "the mirror has copied")
        world.commit(world.zookeeper, unique, {0: 9})
        wait_for(lambda: arrived({0: 9, 1: 6}), "the mirror has followed")
    finally:
        process.terminate()
        _, said = process.communicate(timeout=30)
    assert "Traceback" not in said
    world.commit(world.kafka, unique, {1: 20})
    dual = f"dual:?primary={world.zookeeper}&secondary={world.kafka}"
    rows = world.rows("offsets", "get", "--group", unique, "--store", dual)
    assert {row["partition"]: row["offset"] for row in rows} == {0: 9, 1: 20}


def test_a_manager_is_refused_at_its_start_where_writers_cannot_be_fenced(world: World, era: Era, unique: str) -> None:
    topic = ("--offsets-topic", unique[-60:] + "-offsets", "--partitions", "2", "--replication-factor", "1")
    serve = ("manager", "serve", *world.servers, "--listen", "127.0.0.1:0", *topic)
    if era.release in ("0.8.2.2", "0.9.0.1", "0.10.2.2"):
        said = world.run(*serve, code=1)
        assert 'lacks the capability "fences writers", which came with Kafka 0.11' in said
        return
    process = world.commands.start(*serve)
    assert process.stderr is not None
    try:
        line = next(line for line in process.stderr if "serving" in line)
        listen = line.partition("listen=")[2].split()[0]
        world.commit(f"manager://{listen}", unique, {0: 3})
        assert world.held(f"manager://{listen}", unique) == {0: 3}
    finally:
        process.terminate()
        process.communicate(timeout=30)


@pytest.mark.parametrize("release", ["0.9.0.1", "1.1.1"])
def test_a_group_with_members_of_the_new_consumer_is_refused_with_their_names(
    start_era: Any, release: str, unique: str, tmp_path: Path
) -> None:
    era = start_era(release)
    era.make_topic(unique, PARTITIONS)
    world = World("", f"kafka://{era.bootstrap}", era.bootstrap, unique, Commands(tmp_path))
    member = NewConsumer(tmp_path / "member", release=release, bootstrap=era.bootstrap, group=unique, topic=unique)
    with member:
        wait_for(lambda: world.is_stable(unique), "the consumer is a member")
        edit = ("offsets", "set", "--group", unique, "--topic", f"{unique}:0", "--to-offset", "1", "--new-group")
        said = world.run(*edit, *world.servers, "--execute", "--yes", code=1)
        assert "STABLE with 1 member: consumer-1 at" in said


@contextmanager
def two_brokers(zookeeper: ZooKeeperServer, directory: Path, releases: tuple[str, str], name: str) -> Iterator[World]:
    """One cluster of two brokers of different releases."""
    where = f"{zookeeper.connect}/{name}"
    old, new = releases
    protocol = {"2.8.2": "2.8", "0.10.2.2": "0.10.2"}[old]
    formats = {"inter.broker.protocol.version": protocol, "log.message.format.version": protocol}
    common = {"offsets.topic.num.partitions": 4, "offsets.retention.check.interval.ms": 1000}
    with ExitStack() as stack:
        brokers = [
            stack.enter_context(
                KafkaBroker(
                    directory / f"broker-{number}",
                    zookeeper=where,
                    broker_id=number,
                    version=release,
                    config={**common, **formats},
                )
            )
            for number, release in enumerate(releases)
        ]
        bootstrap = ",".join(broker.bootstrap for broker in brokers)
        create_topic(name, PARTITIONS, zookeeper=where, bootstrap=bootstrap, version=old)
        wait_for(lambda: has_leaders(bootstrap, name, PARTITIONS), f"{name} has leaders")
        produce(bootstrap, name, old)
        assert new
        yield World(f"zookeeper://{where}", f"kafka://{bootstrap}", bootstrap, name, Commands(directory))


@pytest.mark.parametrize("releases", [("2.8.2", "3.9.1"), ("0.10.2.2", "1.1.1")])
def test_a_cluster_of_two_releases_is_served_as_one(
    zookeeper: ZooKeeperServer, releases: tuple[str, str], unique: str, tmp_path: Path
) -> None:
    with two_brokers(zookeeper, tmp_path, releases, unique) as world:
        assert "the brokers run different releases" in world.run("cluster", "describe", *world.servers)
        test_groups_and_offsets_are_listed_set_exported_compared_and_brought_back(world, unique)
        test_a_migration_goes_there_and_back(world, f"{unique}-m")
        test_a_mirror_follows_and_a_dual_store_reads_the_larger(world, f"{unique}-d")
