"""Commands about a group act in the store in which the group lives, if two stores are configured and no --store names
one."""

import json
from pathlib import Path

import pytest
from committed_offsets import commit
from conftest import MakeTopic
from processes import Commands, fill

from offsetmgr import OffsetAdmin
from offsetmgr.core.model import Committed, TopicPartition
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer
from offsetmgr.stores.uri import open_store

pytestmark = pytest.mark.servers

MOVED = "its consumers commit to Kafka, not to ZooKeeper: "


class World(Commands):
    """Commands with a context that names both stores: ZooKeeper, the default, and the brokers."""

    old = new = topic = ""

    def commit(self, uri: str, group: str, offset: int) -> None:
        commit(uri, group, self.topic, {0: offset})

    def offsets(self, group: str) -> tuple[int | None, ...]:
        """The offsets of the group in ZooKeeper and in Kafka."""
        found = []
        for uri in (self.old, self.new):
            with open_store(uri) as store:
                one = store.fetch(group).get(TopicPartition(self.topic, 0))
                found.append(one.offset if isinstance(one, Committed) else None)
        return tuple(found)

    def migrate(self, group: str, *options: str) -> None:
        """Moves a group to Kafka, and finalizes its migration."""
        sides = ("--from", self.old, "--to", self.new, "--group", group, *options)
        self.run("migrate", "plan", *sides, "-o", f"{group}.json")
        self.run("migrate", "apply", f"{group}.json", "--yes")
        self.run("migrate", "finalize", f"{group}.json", "--yes", "--window", "1", "--accept-idle")

    def operations(self) -> int:
        """The number of operations in the operation log."""
        return len(json.loads(self.run("edits", "list", "--format", "json").stdout))


@pytest.fixture
def world(zookeeper: ZooKeeperServer, kafka: KafkaBroker, make_topic: MakeTopic, unique: str, tmp_path: Path) -> World:
    """A topic with 500 records. The group ``unique`` was moved to Kafka, and has gone on there from 100 to 480."""
    make_topic(unique)
    fill(kafka.bootstrap, unique, 500)
    connect = f"{zookeeper.connect}/kafka"
    config = tmp_path / "offsetmgr" / "config.toml"
    config.parent.mkdir()
    config.write_text(f'[context.old]\nzookeeper = "{connect}"\nbootstrap-server = "{kafka.bootstrap}"\n')
    found = World(tmp_path, {"OFFSETMGR_CONTEXT": "old"})
    found.old, found.new, found.topic = f"zookeeper://{connect}", f"kafka://{kafka.bootstrap}", unique
    found.commit(found.old, unique, 100)
    found.migrate(unique)
    found.commit(found.new, unique, 480)
    return found


def test_a_read_is_of_the_store_in_which_the_group_lives_and_says_so(world: World, unique: str) -> None:
    for store, offset in ((), 480), (("--store", world.old), 100):
        got = world.run("offsets", "get", unique, *store, "--format", "json")
        assert [row["offset"] for row in json.loads(got.stdout)] == [offset]
        peeked = world.run("offsets", "peek", unique, *store, "--format", "json")
        assert [row["value"] for row in json.loads(peeked.stdout)] == [str(offset)]
        saved = world.run("offsets", "export", f"{offset}.csv", "--group", unique, *store)
        assert (world.directory / f"{offset}.csv").read_text().split() == [f"{unique},{unique},0,{offset}"]
        for done in (got, peeked, saved):
            assert (f"reading {world.new}: group {unique!r}: {MOVED}" in done.stderr) == (not store)
            assert ("hint: --store 'zookeeper://" in done.stderr) == (not store)
    watched = world.run("offsets", "get", unique, "--watch", "0.1", "--count", "2", "--format", "csv")
    assert watched.stderr.count("reading ") == 1


EDITS = [
    ("offsets set G --topic T:0 --to-offset 7", (7, 480)),
    ("offsets reset G --topic T --to-earliest", (0, 480)),
    ("offsets reset G --topic T:0 --skip 1", (101, 480)),
    ("offsets delete G --all-topics", (None, 480)),
    ("offsets import saved.csv --allow-rewind --group G", (5, 480)),
    ("groups delete G", (None, 480)),
    ("groups rename G G2", (None, 480)),
    ("groups copy G G2", (100, 480)),
]


@pytest.mark.parametrize(("edit", "after"), EDITS, ids=[edit.partition(" G")[0] for edit, _ in EDITS])
def test_an_edit_of_a_store_that_the_group_has_left_is_refused_and_store_accepts_it(world, unique, edit, after) -> None:
    (world.directory / "saved.csv").write_text(f"{unique},0,5\n")
    names = {"G": unique, "G2": f"{unique}-2", "T": unique, "T:0": f"{unique}:0"}
    words = [names.get(word, word) for word in edit.split()]
    operations = world.operations()
    for options in ((), ("--execute", "--yes")):
        refused = world.run(*words, *options, code=1)
        assert f"error: group {unique!r}: {MOVED}" in refused.stderr
        assert f"hint: add --store {world.new}; --store 'zookeeper://" in refused.stderr
        assert world.offsets(unique) == (100, 480)
    assert world.operations() == operations
    done = world.run(*words, "--store", world.old, "--execute", "--yes")
    assert MOVED not in done.stderr
    assert world.offsets(unique) == after


def test_a_group_that_was_moved_and_finalized_is_neither_edited_nor_offered_to_be_moved_again(world, unique) -> None:
    renamed = f"{unique}-b"
    world.commit(world.old, renamed, 100)
    world.migrate(renamed, "--rename", f"{renamed}={renamed}-new")
    for name, there in ((unique, "Kafka"), (renamed, f"Kafka as '{renamed}-new'")):
        refused = world.run("offsets", "reset", name, "--all-topics", "--to-latest", "--execute", "--yes", code=1)
        assert f"group {name!r}: its consumers commit to {there}, not to ZooKeeper: " in refused.stderr
        assert f"/{name}.json moved it from " in refused.stderr
    assert (world.offsets(unique), world.offsets(renamed)) == ((100, 480), (100, None))
    warned = world.run("offsets", "get", renamed)
    assert f"warning: reading {world.old}" in warned.stderr
    world.run("offsets", "reset", unique, "--all-topics", "--to-latest", "--store", world.old, "--execute", "--yes")
    (row,) = json.loads(world.run("groups", "where", unique, "--format", "json").stdout)
    assert row["phase"] != "zookeeper"
    assert row["next"]["command"].startswith("offsetmgr groups where ")
    unclear = world.run("offsets", "reset", unique, "--all-topics", "--to-earliest", "--execute", "--yes", code=1)
    assert "the store to which its consumers commit is not known: " in unclear.stderr
    assert world.offsets(unique) == (500, 480)


def test_a_plan_that_was_removed_is_named_and_is_no_evidence(world: World, unique: str) -> None:
    (world.directory / f"{unique}.json").unlink()
    done = world.run("groups", "where", unique)
    assert f"warning: not used as evidence: plan {world.directory}/{unique}.json" in done.stderr


@pytest.mark.parametrize("brokers", ["live", "dead"])
def test_an_edit_is_refused_if_the_home_of_the_group_is_not_known(world: World, unique: str, brokers: str) -> None:
    group = f"{unique}-both"
    for uri in (world.old, world.new):
        world.commit(uri, group, 100)
    dead = [] if brokers == "live" else ["--bootstrap-server", "127.0.0.1:1", "--zookeeper", world.old[12:]]
    options = [*dead, "--timeout", "3000"]
    edit = ["offsets", "set", group, "--topic", f"{unique}:0", "--to-offset", "7", "--execute", "--yes"]
    refused = world.run(*edit, *options, code=1)
    why = "hold equal offsets on 1 partition" if brokers == "live" else "offsets in Kafka cannot be read: "
    assert "the store to which its consumers commit is not known: " in refused.stderr
    assert why in refused.stderr
    assert "hint: name the store: add --store 'zookeeper://" in refused.stderr
    got = world.run("offsets", "get", group, *options, "--format", "json")
    assert [row["offset"] for row in json.loads(got.stdout)] == [100]
    assert ("warning: reading zookeeper://" in got.stderr) == (brokers == "dead")
    assert world.offsets(group) == (100, 100)
    world.run(*edit, *options, "--store", world.old)
    assert world.offsets(group) == (7, 100)
    missing = world.run("offsets", "get", f"{unique}-none", *options, code=1)  # although the other store may be dead
    assert f"error: group '{unique}-none': does not exist" in missing.stderr


def test_of_many_groups_those_that_live_in_the_store_are_edited(world: World, unique: str) -> None:
    here = f"{unique}-here"
    world.commit(world.old, here, 100)
    words = ("offsets", "reset", f"{unique}*", "--all-topics", "--to-earliest", "--execute", "--yes")
    done = world.run(*words, "--wait-empty", "5", code=1)
    assert f"error: group {unique!r}: {MOVED}" in done.stderr
    assert "done: 1 changed" in done.stderr
    assert (world.offsets(here), world.offsets(unique)) == ((0, None), (100, 480))
    saved = world.run("offsets", "export", "all.csv", "--group", f"{unique}*")
    assert f"warning: reading {world.old}" in saved.stderr
    assert f"group {unique!r}: {MOVED}" in saved.stderr


def test_the_default_may_be_kafka_and_a_new_group_lives_nowhere(world: World, unique: str) -> None:
    old = f"{unique}-old"
    world.commit(world.old, old, 100)
    kafka = ("--bootstrap-server", world.new[8:])
    edit = ("offsets", "set", "--topic", f"{unique}:0", "--to-offset", "7", "--new-group", "--execute", "--yes")
    refused = world.run(*edit, "--group", old, *kafka, code=1)
    assert "its consumers commit to ZooKeeper, not to Kafka: " in refused.stderr
    world.run(*edit, "--group", f"{unique}-new", *kafka)
    assert (world.offsets(old), world.offsets(f"{unique}-new")) == ((100, None), (None, 7))


def test_the_library_refuses_an_edit_with_the_settings_of_a_context(world: World, unique: str, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(world.directory))
    monkeypatch.setenv("XDG_STATE_HOME", str(world.directory / "state"))
    with OffsetAdmin.from_settings("old") as admin:
        (problem,) = admin.plan_set(unique, {TopicPartition(unique, 0): 7}).problems.values()
        assert MOVED in str(problem)
        admin.write_snapshot(world.directory / "backup.csv", unique)
    assert f"{unique},{unique},0,480" in (world.directory / "backup.csv").read_text("utf-8")
    with OffsetAdmin(world.old, bootstrap_server=world.new[8:]) as admin:
        assert not admin.plan_set(unique, {TopicPartition(unique, 0): 7}).problems
