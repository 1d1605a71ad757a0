"""Data in the znodes of groups that offsetmgr does not understand: it is named, and only deleted after it was saved."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from everyday import Cli
from kazoo.client import KazooClient
from kazoo.security import ACL, make_acl, make_digest_acl
from kazoo_client import connected
from same_cluster import join_cluster

from offsetmgr import TopicPartition, open_store
from offsetmgr.core.errors import OffsetMgrError, PartialFailure
from offsetmgr.core.model import ABSENT
from offsetmgr.groups.before_images import load_images
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer

pytestmark = pytest.mark.servers

Tree = dict[str, tuple[bytes, frozenset[tuple[int, str, str]]]]


@dataclass
class Old:
    """A chroot of the old consumers of the shared broker, and a command line for it."""

    client: KazooClient
    cli: Cli
    flags: list[str]
    kafka: str

    def create(self, path: str, data: bytes = b"", acl: list[ACL] | None = None, **options: Any) -> None:
        self.client.create(f"/consumers/{path}", data, acl=acl, makepath=True, **options)

    def plant(self, name: str) -> None:
        for path, data in GROUPS[name].items():
            self.create(f"job/{path}", data)

    def tree(self, path: str = "/consumers") -> Tree:
        """All nodes, with their data and ACLs."""
        data, _ = self.client.get(path)
        entries = frozenset((acl.perms, acl.id.scheme, acl.id.id) for acl in self.client.get_acls(path)[0])
        found = {path: (data, entries)}
        for name in self.client.get_children(path):
            found |= self.tree(f"{path}/{name}")
        return found

    def errors(self, *arguments: str, code: int) -> str:
        return self.cli(*arguments, *self.flags, code=code).stderr

    def undo(self) -> str:
        (edit, *_) = reversed(self.cli.rows("edits", "list"))
        return self.cli("edits", "undo", edit["id"], "--execute", "--yes").stderr


@pytest.fixture
def old(zookeeper: ZooKeeperServer, kafka: KafkaBroker, unique: str, tmp_path: Path) -> Any:
    where = f"{zookeeper.connect}/{unique}"
    join_cluster(where, kafka.bootstrap)
    with connected(where) as client:
        client.add_auth("digest", "owner:secret")
        client.ensure_path("/consumers")
        yield Old(client, Cli(tmp_path), ["--zookeeper", where], f"kafka://{kafka.bootstrap}")


GROUPS = {
    "spark_recipe": {"offsets/t": b"0:23,1:45"},  # recipes for DStreams keep one node a topic
    "rate": {"newrate": b"500"},  # kafka-spark-consumer keeps its rate in the group
    "recipe_beside_offsets": {"offsets/t": b"0:23,1:45", "offsets/u/0": b"4"},
    "beside_offsets": {"newrate": b"500", "offsets/t/0": b"40"},
    "deep": {"offsets/t/0": b"7", "offsets/t/0/old/x": b"1"},
    "unreadable": {"offsets/t/0": b"40", "offsets/t/1": b"57\n"},
}
"""Nodes of the group "job"."""
PLACES = {
    "spark_recipe": "/consumers/job/offsets/t holds '0:23,1:45'",
    "rate": "/consumers/job/newrate holds '500'",
    "recipe_beside_offsets": "/consumers/job/offsets/t holds '0:23,1:45'",
    "beside_offsets": "/consumers/job/newrate holds '500'",
    "deep": "/consumers/job/offsets/t/0/old/x holds '1'",
}


@pytest.mark.parametrize("prepare", PLACES)
def test_data_that_is_not_understood_is_named_wherever_the_group_is_shown(old: Old, prepare: str, tmp_path) -> None:
    old.plant(prepare)
    known = prepare == "beside_offsets"  # the group is not empty, and the other data is no offset
    code = 0 if known else 1
    plan = ["migrate", "plan", "--from", f"zookeeper://{old.flags[1]}", "--to", old.kafka, "-o", str(tmp_path / "p")]
    for arguments, expected in (
        (("offsets", "get", "-g", "job"), code),
        (("offsets", "get", "--all-groups"), code),
        (("groups", "describe", "-g", "job"), code),
        (("groups", "where", "job", "--format", "json"), 0),
        (("offsets", "set", "-g", "job", "--topic", "t:0", "--to-offset", "1"), 0),
        (("groups", "list"), 0),
        (("groups", "delete", "-g", "job"), 0),
        (("groups", "rename", "job", "new"), 1),
        (("groups", "copy", "job", "new"), int(prepare in ("spark_recipe", "rate"))),
        (("zk", "check", "--all-groups", "--settle", "0"), 1),
        (("offsets", "export", str(tmp_path / "x.avro"), "--all-groups"), code),
    ):
        done = old.cli(*arguments, *old.flags, code=expected)
        if not (prepare == "deep" and arguments[1] == "list"):  # the list of groups reads no offsets
            assert PLACES[prepare] in " ".join((done.stdout + done.stderr).split()), arguments
    planned = old.cli(*plan, "--all-groups", code=1)  # the cluster does not have the topics
    assert PLACES[prepare] in planned.stderr
    assert "no committed offsets" not in planned.stderr


def test_a_partition_is_not_absent_if_the_node_of_its_topic_holds_data(old: Old) -> None:
    old.plant("spark_recipe")
    here, other = TopicPartition("t", 0), TopicPartition("u", 0)
    with open_store(f"zookeeper://{old.flags[1]}") as store:
        for partitions in ([here, other], None):
            with pytest.raises(OffsetMgrError, match="holds '0:23,1:45'") as failed:
                store.fetch("job", partitions)
            assert not isinstance(failed.value, PartialFailure) or failed.value.successes == {other: ABSENT}
        assert store.fetch("job", [other]) == {other: ABSENT}


@pytest.mark.parametrize("prepare", ["spark_recipe", "rate", "deep", "beside_offsets", "unreadable"])
def test_a_deleted_group_is_restored_with_all_its_data_and_acls(old: Old, prepare: str) -> None:
    old.plant(prepare)
    old.create(
        "job/secret", b"\xff\x00", [make_digest_acl("owner", "secret", all=True), make_acl("world", "anyone", 1)]
    )
    old.create("job/owners/t")
    old.client.set_acls("/consumers/job/offsets" if prepare != "rate" else "/consumers/job/newrate",
                        [make_acl("world", "anyone", all=True), make_acl("ip", "10.0.0.1", read=True)])  # fmt: skip
    before = old.tree()
    config = Path(old.cli.environ["XDG_CONFIG_HOME"]) / "own.properties"
    config.parent.mkdir(parents=True)
    config.write_text("zookeeper.auth=digest:owner:secret\n")
    old.flags += ["--command-config", str(config)]
    dry = old.errors("groups", "delete", "-g", "job", code=0)
    assert "and delete the znodes of 1 group" in dry and old.tree() == before
    done = old.errors("groups", "delete", "-g", "job", "--execute", "--yes", code=0)
    assert old.tree().keys() == {"/consumers"}
    assert old.undo()
    assert old.tree() == before
    line = next(line for line in done.splitlines() if line.startswith("undo: "))
    old.errors("groups", "delete", "-g", "job", "--execute", "--yes", code=0)
    old.cli(*shlex.split(line.removeprefix("undo: "))[1:], "--yes")
    assert old.tree() == before


def test_only_images_with_trees_have_the_new_version(old: Old, tmp_path: Path) -> None:
    old.plant("rate")
    old.create("job/offsets/t/0", b"40")
    small, large = tmp_path / "small.avro", tmp_path / "large.avro"
    old.errors("offsets", "set", "-g", "job", "--topic", "t:0", "--to-offset", "41", "--execute", "--yes",
               "--before-image", str(small), code=0)  # fmt: skip
    old.errors("groups", "delete", "-g", "job", "--execute", "--yes", "--before-image", str(large), code=0)
    assert [b"before_images_version\x022" in path.read_bytes() for path in (small, large)] == [True, False]
    (found,) = load_images(large)
    assert {one.path: one.data for one in found.nodes}["/newrate"] == b"500"
    assert next(iter(load_images(small))).nodes == ()


def test_a_tree_that_lives_or_cannot_be_saved_is_not_deleted(old: Old) -> None:
    old.create("job/offsets/t/0", b"40")
    old.create("job/lock", b"host-1", ephemeral=True)
    alive = old.errors("groups", "delete", "-g", "job", "--execute", "--yes", code=1)
    assert "/consumers/job/lock belongs to a running client" in alive
    old.client.delete("/consumers/job/lock")
    old.create("job/hidden", b"x", [make_digest_acl("owner", "secret", all=True)])
    before = old.tree()
    path = f"{old.client.chroot}/consumers/job/hidden"
    refused = old.errors("groups", "delete", "-g", "job", "--execute", "--yes", code=1)
    assert f"{path} cannot be saved" in refused and f"add --lose {path}" in refused
    old.errors("groups", "rename", "job", "new", "--execute", "--yes", code=1)
    assert old.tree() == before
    old.errors("groups", "delete", "-g", "job", "--execute", "--yes", "--lose", path, code=0)
    assert old.tree().keys() == {"/consumers"}


def test_a_rename_loses_only_data_that_the_user_names(old: Old) -> None:
    old.plant("beside_offsets")
    path = f"{old.client.chroot}/consumers/job/newrate"
    refused = old.errors("groups", "rename", "job", "new", "--execute", "--yes", code=1)
    assert f"the data in {path} would not be copied" in refused
    assert "/consumers/new" not in old.tree()
    old.errors("groups", "rename", "job", "new", "--execute", "--yes", "--lose", path, code=0)
    assert [p for p in old.tree() if p.startswith("/consumers/job")] == []
    assert old.tree()["/consumers/new/offsets/t/0"][0] == b"40"


@pytest.mark.parametrize("broken", ["", "junk", "hidden"])
def test_a_group_of_a_dual_store_is_deleted_and_restored_in_both_stores(old, make_topic, unique, broken: str) -> None:
    """``broken``: the offset in ZooKeeper cannot be read, and the one in Kafka can."""
    old.create(f"{unique}/newrate", b"500")
    config = Path(old.cli.environ["XDG_CONFIG_HOME"]) / "offsetmgr" / "config.toml"
    config.parent.mkdir(parents=True)
    stores = f'primary = "{old.kafka}"\nsecondary = "zookeeper://{old.flags[1]}"'
    config.write_text(f"[store.both]\n{stores}\n")
    old.flags = ["--store", "dual:both"]
    where = ["-g", unique, "--topic", f"{make_topic(unique)}:0", "--to-offset", "40", "--new-group"]
    old.errors("offsets", "set", *where, "--execute", "--yes", code=0)
    path, lose = f"/consumers/{unique}/offsets/{unique}/0", []
    if broken == "junk":
        old.client.set(path, b"57\n")
    if broken == "hidden":
        old.client.set_acls(path, [make_digest_acl("owner", "secret", all=True)])
        lose = ["--lose", f"{old.client.chroot}{path}"]
    before = old.tree()
    assert "/newrate holds '500'" in old.errors("groups", "list", "-g", unique, code=0)
    assert "/newrate holds '500'" in old.errors("offsets", "get", "-g", unique, code=1 if broken else 0)
    if lose:
        refused = old.errors("groups", "delete", "-g", unique, "--execute", "--yes", code=1)
        assert " ".join(lose) in refused and "--accept-unseen" not in refused
        assert old.tree() == before
    old.errors("groups", "delete", "-g", unique, "--execute", "--yes", *lose, code=0)
    assert old.tree().keys() == {"/consumers"}
    assert old.errors("offsets", "get", "-g", unique, code=1)
    old.undo()
    assert old.tree() == {place: found for place, found in before.items() if not lose or place != path}
    (row,) = old.cli.rows("offsets", "get", "-g", unique, "--store", old.kafka)
    assert row["offset"] == 40


def test_an_address_in_a_directory_is_the_default_of_curator(old: Old) -> None:
    old.create("job/offsets/t/0", b"40")
    old.client.set("/consumers/job/offsets/t", b"10.1.2.3")
    old.client.set("/consumers/job", b"fe80::1")
    assert "does not understand" not in old.errors("offsets", "get", "-g", "job", code=0)


def test_the_directory_of_kafka_1_1_0_is_read_and_written(old: Old) -> None:
    old.create("job/offset/t/0", b"57")
    assert [row["offset"] for row in old.cli.rows("offsets", "get", "-g", "job", *old.flags)] == [57]
    (row,) = old.cli.rows("offsets", "get", "-g", "job", "--topic", "t:0", *old.flags)
    assert row["offset"] == 57
    old.errors("offsets", "set", "-g", "job", "--topic", "t:0,1", "--to-offset", "60", "--execute", "--yes", code=0)
    written = {path: data for path, (data, _) in old.tree().items() if data}
    assert written == {"/consumers/job/offset/t/0": b"60", "/consumers/job/offset/t/1": b"60"}
    old.undo()
    assert {path: data for path, (data, _) in old.tree().items() if data} == {"/consumers/job/offset/t/0": b"57"}


@pytest.mark.parametrize("newer", ["offset", "offsets"])
def test_offsets_in_both_directories_are_refused_with_the_newer_one(old: Old, newer: str, tmp_path: Path) -> None:
    older = ({"offset", "offsets"} - {newer}).pop()
    old.create(f"job/{older}/t/0", b"57")
    old.create(f"job/{newer}/t/0", b"40")
    old.client.set(f"/consumers/job/{newer}/t/0", b"41")
    before = old.tree()
    text = f"/consumers/job/{newer}, last written 2"
    plan = ["--from", f"zookeeper://{old.flags[1]}", "--to", old.kafka, "-g", "job", "-o", str(tmp_path / "p")]
    for arguments in (
        ("offsets", "get", "-g", "job"),
        ("offsets", "get", "-g", "job", "--topic", "t:0"),
        ("offsets", "set", "-g", "job", "--topic", "t:0", "--to-offset", "60", "--execute", "--yes"),
        ("groups", "rename", "job", "new", "--execute", "--yes"),
        ("zk", "check", "-g", "job", "--settle", "0"),
    ):
        done = old.cli(*arguments, *old.flags, code=1)
        assert text in " ".join((done.stdout + done.stderr).split()), arguments
        assert f"is newer than {old.client.chroot}/consumers/job/{older}" in " ".join(
            (done.stdout + done.stderr).split()
        )
    assert text in old.cli("migrate", "plan", *plan, code=1).stderr
    remedy = f"zookeeper-shell.sh {old.flags[1]} deleteall /consumers/job/{older}"
    assert remedy in old.errors("offsets", "get", "-g", "job", code=1)
    assert old.tree() == before
    old.client.set_acls(f"/consumers/job/{newer}/t/0", [make_digest_acl("owner", "secret", all=True)])
    unknown = old.errors("offsets", "get", "-g", "job", code=1)
    assert "is newer than" not in unknown and f"/consumers/job/{newer}/t/0" in unknown
    old.client.set_acls(f"/consumers/job/{newer}/t/0", [make_acl("world", "anyone", all=True)])
    old.client.delete(f"/consumers/job/{older}", recursive=True)
    assert [row["offset"] for row in old.cli.rows("offsets", "get", "-g", "job", *old.flags)] == [41]


def test_many_groups_of_both_directories_are_scanned_and_imported(old: Old, tmp_path: Path) -> None:
    for n in range(60):
        old.create(f"g{n}/{'offset' if n % 7 == 0 else 'offsets'}/t/0", b"%d" % n)
    file = str(tmp_path / "x.csv")
    old.errors("offsets", "export", file, "--all-groups", code=0)
    text = Path(file).read_text()
    assert sorted(text.split()) == sorted(f"g{n},t,0,{n}" for n in range(60))
    Path(file).write_text("".join(f"g{n},t,{p},{n + 1}\n" for n in range(60) for p in range(10)))
    old.errors("offsets", "import", file, "--execute", "--yes", code=0)
    directories = {path.split("/")[3] for path in old.tree() if path.startswith("/consumers/g7/")}
    assert directories == {"offset"}
    assert old.tree()["/consumers/g7/offset/t/9"][0] == b"8"


SPOUT = b'{"topology":{"id":"x","name":"x"},"offset":5,"partition":0,"broker":{"host":"h","port":9092},"topic":"%s"}'


@pytest.mark.parametrize(
    ("nodes", "code", "expected"),
    [
        ({"job/t/partition_0": SPOUT % b"t"}, 0, ""),
        ({"job/t/partition_0": SPOUT % b"u"}, 1, "its 'topic' is 'u', but its directory is 't'"),
        ({"job/partition_0": SPOUT % b"t", "job": b"10.0.0.7"}, 0, ""),
        ({"job/partition_0": SPOUT % b"t", "job/state": b"on"}, 1, "/spouts/job/state holds 'on'"),
        ({"job/coordinator/currtx": b"12", "job/user/partition_0/12": b'{"nextOffset":5}'}, 1, "Storm Trident"),
        ({"job/partition_0": b'{"nextOffset":5,"offset":1,"topic":"t"}'}, 1, "Storm Trident"),
    ],
    ids=["topic", "other-topic", "address", "foreign", "trident", "trident-batch"],
)
def test_storms_nodes_are_checked_against_their_place(old, nodes: dict[str, bytes], code: int, expected: str) -> None:
    for path, data in nodes.items():
        old.client.ensure_path(f"/spouts/{path}")
        old.client.set(f"/spouts/{path}", data)
    done = old.cli("offsets", "get", "-g", "job", "--store", f"zookeeper://{old.flags[1]}?layout=storm&root=/spouts",
                   code=code)  # fmt: skip
    assert expected in done.stderr
    assert "does not understand" not in done.stderr or "holds" in expected
