"""One partition of a group that cannot be read or written: the group stays whole, and other groups are edited."""

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import pytest
from confluent_kafka.admin import AclOperation, ResourceType
from conftest import MakeTopic
from kazoo.client import KazooClient
from kazoo.security import make_acl, make_digest_acl
from kazoo_client import connected
from processes import Commands, fill
from same_cluster import join_cluster
from secured_broker import Secured, allowed

from offsetmgr.core.model import Committed, OffsetAndMetadata, TopicPartition
from offsetmgr.sandbox import KafkaBroker
from offsetmgr.stores.uri import open_store

pytestmark = pytest.mark.servers

EVERYTHING = make_digest_acl("owner", "secret", all=True)
READ_ONLY = make_acl("world", "anyone", read=True)
BROKEN = b"57\n"


@dataclass
class World:
    """A chroot with the groups ``bad`` and ``good``, each with offsets 5 in the partitions 0 and 1 of a topic with 10
    records in each partition."""

    connect: str
    bootstrap: str
    topic: str
    nodes: KazooClient
    commands: Commands

    def path(self, group: str, partition: object) -> str:
        return f"/consumers/{group}/offsets/{self.topic}/{partition}"

    def break_partition(self, how: str) -> None:
        """Makes partition 1 of group ``bad`` unreadable, adds a node that is no partition, or forbids writes."""
        path = self.path("bad", 1)
        match how:
            case "junk":
                self.nodes.set(path, BROKEN)
            case "hidden":
                self.nodes.set_acls(path, [EVERYTHING])
            case "read-only":
                self.nodes.set_acls(path, [EVERYTHING, READ_ONLY])
            case "foreign":
                self.nodes.create(self.path("bad", "0-1"), b"7")

    def tree(self, group: str) -> dict[int, bytes]:
        found = {n: self.nodes.get(self.path(group, n))[0] for n in range(2) if self.nodes.exists(self.path(group, n))}
        return {n: data for n, data in found.items() if data}

    def run(self, *arguments: str, code: int = 1) -> str:
        servers = ("--zookeeper", self.connect, "--bootstrap-server", self.bootstrap)
        return self.commands.run(*arguments, *servers, code=code).stderr


@pytest.fixture
def world(zookeeper, kafka: KafkaBroker, make_topic: MakeTopic, unique: str, tmp_path: Path) -> Iterator[World]:
    connect, topic = f"{zookeeper.connect}/{unique}", make_topic(unique, 2)
    fill(kafka.bootstrap, topic, 10, 10)
    join_cluster(connect, kafka.bootstrap)
    with open_store(f"zookeeper://{connect}") as store:
        for group in ("bad", "good"):
            store.commit(group, {TopicPartition(topic, n): OffsetAndMetadata(5) for n in range(2)})
    with connected(connect, auth_data=[("digest", "owner:secret")]) as nodes:
        yield World(connect, kafka.bootstrap, topic, nodes, Commands(tmp_path))


DO = ("--execute", "--yes")
BOTH = ("--group", "bad", "--group", "good")
EDITS = {
    "groups delete": ("groups", "delete", *BOTH, *DO),
    "offsets delete": ("offsets", "delete", *BOTH, "--all-topics", *DO),
    "offsets reset": ("offsets", "reset", *BOTH, "--all-topics", "--to-latest", *DO),
    "offsets import": ("offsets", "import", "saved.csv", *DO),
    "groups rename": ("groups", "rename", "bad", "new", *DO),
    "groups copy": ("groups", "copy", "bad", "new", *DO),
}

WHOLE = [(edit, how) for edit in EDITS for how in ("junk", "hidden")]
WHOLE.remove(("groups delete", "junk"))  # the before-image holds the whole tree, so the group is deleted as a whole


@pytest.mark.parametrize(("edit", "how"), WHOLE)
def test_a_group_with_an_unreadable_partition_stays_whole_and_the_others_are_edited(world, edit: str, how: str) -> None:
    rows = [f"{group},{world.topic},{n},8" for group in ("bad", "good") for n in range(2)]
    (world.commands.directory / "saved.csv").write_text("\n".join(rows) + "\n")
    world.break_partition(how)
    before, good = world.tree("bad"), world.tree("good")
    said = world.run(*EDITS[edit])
    assert world.tree("bad") == before
    unsaved = how == "hidden" and edit in ("groups delete", "groups rename")
    why = "stays unchanged, because 1 of its 2 partitions cannot be changed ({0}-1)"
    assert ("/{0}/1 cannot be saved" if unsaved else why).format(world.topic) in said
    assert (world.tree("good") != good) is ("rename" not in edit and "copy" not in edit)
    assert world.nodes.exists("/consumers/new") is None


@pytest.mark.parametrize("how", ["junk", "hidden", "foreign"])
@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (("set", "--to-offset", "7"), b"7"),
        (("reset", "--to-latest"), b"10"),
        (("delete",), None),
        (("import", "saved.csv"), b"8"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_a_bad_node_blocks_no_edit_of_a_good_partition(world: World, edit, expected: bytes | None, how: str) -> None:
    (world.commands.directory / "saved.csv").write_text(f"bad,{world.topic},0,8\n")
    world.break_partition(how)
    before = world.tree("bad")
    said = world.run("offsets", *edit, "--group", "bad", "--topic", f"{world.topic}:0", *DO, code=0)
    assert "done: 1 changed" in said
    assert world.tree("bad").get(0) == expected
    assert world.tree("bad").get(1) == before[1]


@pytest.mark.parametrize("data", [BROKEN, b"\xff\x00'\n", b""])
@pytest.mark.parametrize(("edit", "expected"), [(("set", "--to-offset", "7"), b"7"), (("delete",), None)])
def test_a_broken_node_is_replaced_or_deleted_by_its_name_and_restored_by_the_undo(world, edit, expected, data) -> None:
    path = world.path("bad", 1)
    world.nodes.set(path, data)
    refused = world.run("offsets", *edit, "--group", "bad", "--topic", world.topic, *DO)
    assert "hint: to replace or delete it, name its partition" in refused
    assert world.nodes.get(path)[0] == data
    said = world.run("offsets", *edit, "--group", "bad", "--topic", f"{world.topic}:1", *DO, code=0)
    assert "done: 1 changed" in said
    assert (world.nodes.get(path)[0] if world.nodes.exists(path) else None) == expected
    undo = shlex.split(said.partition("undo: ")[2])
    assert "done: 1 changed" in world.commands.run(*undo[1:], "--yes").stderr
    assert world.nodes.get(path)[0] == data
    assert world.tree("bad")[0] == b"5"


def test_a_broken_node_of_one_of_two_stores_is_repaired_in_its_store_and_deleted_with_both(world: World) -> None:
    kafka, path = f"kafka://{world.bootstrap}", world.path("bad", 1)
    uris = {"primary": kafka, "secondary": f"zookeeper://{world.connect}"}
    both = ("--store", f"dual:?{urlencode(uris)}")
    offsets = {TopicPartition(world.topic, n): OffsetAndMetadata(offset) for n, offset in ((0, 5), (1, 40))}
    with open_store(kafka) as store:
        store.commit("bad", offsets)
        world.break_partition("junk")
        try:
            for edit in (("set", "--to-offset", "7"), ("delete",)):
                which = ("--group", "bad", "--topic", f"{world.topic}:1")
                refused = world.commands.run("offsets", *edit, *which, *DO, *both, code=1).stderr
                assert "hint: repair it in its ZooKeeper alone: add --store zookeeper://" in refused
            assert (world.tree("bad")[1], store.fetch("bad").keys()) == (BROKEN, offsets.keys())
            done = world.commands.run("groups", "delete", "--group", "bad", *DO, *both).stderr
            assert (world.nodes.exists("/consumers/bad"), "bad" in set(store.groups())) == (None, False)
            for line in done.splitlines():
                if line.startswith("undo: "):
                    world.commands.run(*shlex.split(line)[2:], "--yes")
            assert world.nodes.get(path)[0] == BROKEN
            assert {tp: one.value() for tp, one in store.fetch("bad").items() if isinstance(one, Committed)} == offsets
        finally:
            store.delete("bad")


def test_a_partition_that_cannot_be_written_stops_the_edit_of_its_group(world: World) -> None:
    world.break_partition("read-only")
    said = world.run("offsets", "reset", *BOTH, "--all-topics", "--to-latest", *DO)
    assert (world.tree("bad"), world.tree("good")) == ({0: b"5", 1: b"5"}, {0: b"10", 1: b"10"})
    assert f"{world.topic}-0: stays unchanged, because {world.topic}-1 cannot be changed" in said
    assert "done: 2 changed, 2 failed" in said


@pytest.mark.parametrize("how", ["junk", "hidden"])
def test_an_export_goes_on_and_the_file_records_what_it_lacks(world: World, how: str) -> None:
    world.break_partition(how)
    uri = f"zookeeper://{world.connect}"
    said = world.run("offsets", "export", "all.avro", "--all-groups")
    assert "exported 3 offsets of 2 groups to all.avro" in said
    assert "warning: all.avro is incomplete, and records what could not be read" in said
    assert f"error: group bad {world.topic}-1: " in said
    rows = json.loads(
        world.commands.run("offsets", "diff", "--from", "file:all.avro", "--to", uri, "--format", "json", code=1).stdout
    )
    assert [(row["group"], row["partition"], row["difference"]) for row in rows] == [("bad", 1, "unreadable")]
    world.nodes.set(world.path("bad", 0), b"2")
    world.nodes.set(world.path("good", 0), b"2")
    for command in (("offsets", "import"), ("offsets", "reset", "--all-groups", "--from-file")):
        refused = world.run(*command, "all.avro", "--execute", "--yes")
        assert "is not in the file, because it could not be read then" in refused or "cannot be changed" in refused
        assert world.tree("bad")[0] == b"2"
        assert world.tree("good") == {0: b"5", 1: b"5"}


@pytest.mark.parametrize("suffix", ["csv", "zk", "json"])
def test_a_format_without_errors_leaves_out_the_whole_group_and_says_so(world: World, suffix: str) -> None:
    world.break_partition("junk")
    said = world.run("offsets", "export", f"all.{suffix}", "--all-groups")
    assert "exported 2 offsets of 1 group to" in said
    assert "is incomplete, and does not record which groups it lacks" in said
    assert "error: group 'bad' is not in the file: 1 partition of group bad could not be read" in said
    assert "bad" not in (world.commands.directory / f"all.{suffix}").read_text()
    alone = world.run("offsets", "export", f"bad.{suffix}", "--group", "bad")
    assert "error: group 'bad' is not in the file: 1 partition of group bad could not be read" in alone
    assert not (world.commands.directory / f"bad.{suffix}").exists()


def test_a_plan_of_all_groups_goes_on_after_a_group_whose_consumers_cannot_be_read(world: World) -> None:
    world.nodes.create("/consumers/bad/ids", acl=[EVERYTHING])
    sides = ("--from", f"zookeeper://{world.connect}", "--to", f"kafka://{world.bootstrap}", "--all-groups")
    done = world.commands.run("migrate", "plan", *sides, "-o", "p.json", "--format", "json", code=1)
    found = {(row["group"], row["partition"]): (row["action"], row["note"]) for row in json.loads(done.stdout)}
    action, why = found.pop(("bad", None))
    assert (action, why[:46]) == ("error", "its old consumers are unknown: ZooKeeper node ")
    assert found == {("good", n): ("copy", "") for n in range(2)}
    assert "next: offsetmgr migrate apply p.json" in done.stderr


def test_a_plan_that_refuses_everything_fails_and_names_no_next_step(world: World) -> None:
    world.nodes.set(world.path("bad", 0), b"99")
    world.nodes.set(world.path("bad", 1), BROKEN)
    sides = ("--from", f"zookeeper://{world.connect}", "--to", f"kafka://{world.bootstrap}", "--group", "bad")
    done = world.commands.run("migrate", "plan", *sides, "-o", "p.json", code=1)
    assert "nothing can be applied: the plan refuses everything" in done.stderr
    assert "next:" not in done.stderr


@pytest.mark.parametrize("edit", ["groups delete", "offsets delete", "offsets reset", "offsets import"])
def test_a_topic_whose_offsets_may_not_be_written_stops_the_edit_of_its_group_in_kafka(
    secured: Secured, edit: str, make_topic: MakeTopic, unique: str, tmp_path: Path
) -> None:
    topic, secret = (make_topic(f"{unique}{n}", 1, bootstrap=secured.open) for n in ("a", "b"))
    may, must_not = (TopicPartition(name, 0) for name in (topic, secret))
    acls = [
        allowed(ResourceType.GROUP, "*", AclOperation.READ),
        allowed(ResourceType.GROUP, "*", AclOperation.DELETE),
        allowed(ResourceType.TOPIC, topic, AclOperation.READ),
        allowed(ResourceType.TOPIC, secret, AclOperation.DESCRIBE),
    ]
    secured.grant(acls)
    login = "".join(f"{key}={value}\n" for key, value in secured.properties.items())
    (tmp_path / "client.properties").write_text(login)
    (tmp_path / "saved.csv").write_text(f"bad,{topic},0,0\nbad,{secret},0,0\ngood,{topic},0,0\n")
    arguments = [*EDITS[edit], "--bootstrap-server", secured.bootstrap, "--command-config", "client.properties"]
    arguments += ["--allow-rewind", "--unchecked"] if edit == "offsets import" else []
    with open_store(f"kafka://{secured.open}") as store:
        store.commit("bad", {may: OffsetAndMetadata(1), must_not: OffsetAndMetadata(1)})
        store.commit("good", {may: OffsetAndMetadata(1)})
        before = store.fetch("bad")
        try:
            said = Commands(tmp_path).run(*arguments, code=1).stderr
            assert store.fetch("bad") == before
            assert f"{topic}-0: stays unchanged, because {secret}-0 cannot be changed" in said
            assert "hint: grant Read on the topic" in said
            good = store.fetch("good", [may])[may]
            assert not isinstance(good, Committed) or good.offset == 0
        finally:
            secured.revoke(acls)
            for group in ("bad", "good"):
                store.delete(group)
