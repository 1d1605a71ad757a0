"""Copy, rename, deletion and export of groups, and groups with live members, on real ZooKeeper and real Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer
from everyday import Cli, committed, until
from kazoo_client import connected

from offsetmgr import OffsetAndMetadata, TopicPartition, open_store
from offsetmgr.sandbox import KafkaBroker, OldConsumer, ZooKeeperServer

pytest_plugins = ["everyday_fixtures"]

pytestmark = pytest.mark.servers


def create_node(zookeeper: ZooKeeperServer, path: str, data: bytes) -> None:
    with connected(zookeeper.connect) as client:
        client.create(path, data, makepath=True)


def test_a_group_named_like_a_glob_is_selected_alone(
    cli: Cli, zookeeper: ZooKeeperServer, unique: str, tmp_path: Path
) -> None:
    flags = ["--zookeeper", zookeeper.connect]
    star, other = f"{unique}-*", f"{unique}-other"
    with open_store(f"zookeeper://{zookeeper.connect}") as store:
        for name in (star, other):
            store.commit(name, {TopicPartition("t", 0): OffsetAndMetadata(5)})
    both = [{"group": star}, {"group": other}]
    assert cli.rows("groups", "list", "--group", star, *flags) == both[:1]
    assert cli.rows("groups", "list", "--group", f"{unique}-[*]", *flags) == both[:1]
    assert cli.rows("groups", "list", "--group", f"{unique}-?*", *flags) == both
    file = str(tmp_path / "x.csv")
    cli("offsets", "export", file, "--group", f"{unique}-?*", *flags)
    here = ["--from", f"file:{file}", "--to", f"zookeeper://{zookeeper.connect}"]
    assert "no difference in 1 group" in cli("offsets", "diff", *here, "--group", star).stderr
    cli("groups", "delete", "--group", star, "--execute", "--yes", *flags)
    assert cli.rows("groups", "list", "--group", f"{unique}-?*", *flags) == both[1:]
    cli("offsets", "import", file, "--group", star, "--execute", "--yes", *flags)
    assert cli.rows("offsets", "get", "--group", star, *flags)[0]["offset"] == 5


def test_groups_are_copied_renamed_and_deleted(cli: Cli, flags: list[str], topic: str) -> None:
    copy, renamed = f"{topic}-copy", f"{topic}-renamed"
    cli("offsets", "set", "--group", topic, "--new-group", "--topic", f"{topic}:0,1", "--to-offset", "8", "--execute",
        "--yes", *flags)  # fmt: skip
    cli("groups", "copy", topic, copy, "--execute", "--yes", *flags)
    assert committed(cli, flags, copy) == {0: 8, 1: 8}
    cli("groups", "rename", copy, renamed, *flags)
    assert committed(cli, flags, copy) == {0: 8, 1: 8}
    done = cli("groups", "rename", copy, renamed, "--execute", "--yes", *flags)
    assert f"verified: group '{renamed}' has the 2 offsets that were read from '{copy}'" in done.stderr
    undos = [line for line in done.stderr.splitlines() if line.startswith("undo ")]
    assert [line[:7] for line in undos] == [f"undo {n}:" for n in range(1, 1 + (4 if "--store" in flags else 2))]
    assert done.stderr.splitlines()[-len(undos) :] == undos
    assert "rename-delete" in undos[0]
    assert committed(cli, flags, renamed) == {0: 8, 1: 8}
    assert "does not exist" in cli("offsets", "get", "--group", copy, *flags, code=1).stderr
    refused = cli("groups", "rename", topic, renamed, "--execute", "--yes", *flags, code=1)
    assert "exists already" in refused.stderr
    cli("groups", "delete", "--group", f"{topic}*", "--execute", "--yes", *flags)
    assert "matches" in cli("groups", "list", "--group", f"{topic}*", *flags, code=1).stderr


def test_exported_offsets_are_equal_and_a_change_is_a_difference(
    cli: Cli, kafka: KafkaBroker, zookeeper: ZooKeeperServer, topic: str, tmp_path: Path
) -> None:
    there, here = ["--zookeeper", zookeeper.connect], ["--bootstrap-server", kafka.bootstrap]
    cli("offsets", "set", "--group", topic, "--new-group", "--topic", f"{topic}:0,1", "--to-offset", "8", "--execute",
        "--yes", *there)  # fmt: skip
    for name in ("x.avro", "x.csv", "x.zk", "x.json"):
        file = str(tmp_path / name)
        cli("offsets", "export", file, "--group", topic, *there)
        same = cli("offsets", "diff", "--from", f"file:{file}", "--to", f"zookeeper://{zookeeper.connect}",
                   "--group", topic)  # fmt: skip
        assert "no difference in 1 group" in same.stderr
    cli("offsets", "import", str(tmp_path / "x.avro"), "--execute", "--yes", *here)
    both = ["--from", f"zookeeper://{zookeeper.connect}", "--to", f"kafka://{kafka.bootstrap}", "--group", topic]
    cli("offsets", "diff", *both)
    cli("offsets", "set", "--group", topic, "--topic", f"{topic}:1", "--to-offset", "9", "--execute", "--yes", *here)
    rows = cli.rows("offsets", "diff", *both, code=1)
    assert [(r["partition"], r["difference"], r["from_offset"], r["to_offset"]) for r in rows] == [(1, "offset", 8, 9)]
    back = cli("offsets", "import", str(tmp_path / "x.avro"), "--execute", "--yes", *here, code=1)
    assert "would go back from 9 to 8" in back.stderr
    assert "hint: add --allow-rewind" in back.stderr
    assert committed(cli, here, topic) == {0: 8, 1: 9}
    assert (
        "exists already" in cli("offsets", "export", str(tmp_path / "x.avro"), "--group", topic, *there, code=1).stderr
    )


def test_a_group_with_live_members_is_described_and_never_edited(
    cli: Cli, kafka: KafkaBroker, topic: str, member: Consumer
) -> None:
    here = ["--bootstrap-server", kafka.bootstrap]
    with open_store(f"kafka://{kafka.bootstrap}") as store:
        before = dict(store.fetch(topic))
    rows = cli.rows("groups", "describe", "--group", topic, *here)
    assert [(r["state"], r["partition"], r["offset"], r["client_id"]) for r in rows] == [
        ("STABLE", 0, None, "living"),
        ("STABLE", 1, None, "living"),
        ("STABLE", 2, None, "living"),
    ]
    members = cli.rows("groups", "describe", "--group", topic, "--members", *here)
    assert [(r["client_id"], r["partitions"]) for r in members] == [("living", 3)]
    for arguments in (
        ["offsets", "reset", "--group", topic, "--new-group", "--topic", topic, "--to-earliest"],
        ["offsets", "set", "--group", topic, "--new-group", "--topic", f"{topic}:0", "--to-offset", "1"],
        ["groups", "delete", "--group", topic],
        ["groups", "rename", topic, f"{topic}-new"],
    ):
        refused = cli(*arguments, "--execute", "--yes", *here, code=1)
        assert "living at 127.0.0.1" in refused.stderr
        assert "hint: stop its consumers first" in refused.stderr
        waits = "hint: --wait-empty SECONDS waits until the group has no members; --running moves it without a stop"
        assert (waits in refused.stderr) == (arguments[0] == "offsets")
    refused = cli("groups", "delete", "--group", topic, "--execute", *here, code=1)  # nothing is left to ask for
    assert "stdin is not a terminal" not in refused.stderr
    assert [row["operation"] for row in cli.rows("edits", "list")] == []
    with open_store(f"kafka://{kafka.bootstrap}") as store:
        assert dict(store.fetch(topic)) == before


def test_old_consumers_in_zookeeper_are_members_too(
    cli: Cli, kafka: KafkaBroker, zookeeper: ZooKeeperServer, topic: str, tmp_path: Path
) -> None:
    there = ["--zookeeper", f"{zookeeper.connect}/kafka", "--bootstrap-server", kafka.bootstrap]
    consumer = OldConsumer(
        tmp_path / "old", zookeeper=f"{zookeeper.connect}/kafka", group=topic, topic=topic, offsets_storage="zookeeper",
        dual_commit=False, auto_commit_interval_ms=200, extra={"auto.offset.reset": "smallest"},
    )  # fmt: skip
    consumer.start()
    try:

        def caught_up() -> bool:
            rows = cli.rows("offsets", "get", "--all-groups", "--topic", topic, *there)
            return {(r["partition"], r["offset"]) for r in rows} >= {(0, 10), (1, 20)}

        until(caught_up, 90)
        rows = cli.rows("groups", "describe", "--group", topic, *there)
        assert [(r["state"], r["partition"], r["lag"]) for r in rows if r["partition"] < 2] == [
            ("STABLE", 0, 0),
            ("STABLE", 1, 0),
        ]
        assert all(str(r["member_id"]).startswith(f"{topic}_") for r in rows)
        refused = cli("offsets", "reset", "--group", topic, "--topic", topic, "--to-earliest", "--execute", "--yes",
                      *there, code=1)  # fmt: skip
        assert "STABLE with 1 member: " in refused.stderr
        # Edits in Kafka are refused too if the ZooKeeper is known: a member with dual commit commits there as well.
        cli.environ["OFFSETMGR_ZOOKEEPER"] = there[1]
        in_kafka = ["--store", f"kafka://{kafka.bootstrap}", "--execute", "--yes"]
        for edit in (
            ["offsets", "set", "--group", topic, "--new-group", "--topic", f"{topic}:0", "--to-offset", "3"],
            ["offsets", "reset", "--group", topic, "--new-group", "--topic", topic, "--to-earliest"],
            ["groups", "rename", topic, f"{topic}-new"],
        ):
            refused = cli(*edit, *in_kafka, code=1)
            assert "STABLE with 1 member: " in refused.stderr
            assert f"({topic}_" in refused.stderr
        del cli.environ["OFFSETMGR_ZOOKEEPER"]
        with open_store(f"kafka://{kafka.bootstrap}") as store:
            assert topic not in set(store.groups())
    finally:
        consumer.stop()

    def has_no_members() -> bool:
        return cli.rows("groups", "list", "--group", topic, "--state", *there) == [{"group": topic, "state": "EMPTY"}]

    until(has_no_members)
    cli.environ["OFFSETMGR_ZOOKEEPER"] = there[1]
    cli("offsets", "set", "--group", topic, "--new-group", "--topic", f"{topic}:0", "--to-offset", "3", *in_kafka)
    del cli.environ["OFFSETMGR_ZOOKEEPER"]
    reset = [
        "offsets",
        "reset",
        "--group",
        topic,
        "--topic",
        f"{topic}:0",
        "--to-earliest",
        "--execute",
        "--yes",
        *there,
    ]
    assert "the store to which its consumers commit is not known" in cli(*reset, code=1).stderr
    cli(*reset, "--store", f"zookeeper://{there[1]}")
    assert committed(cli, ["--store", f"zookeeper://{there[1]}"], topic)[0] == 0


def test_members_in_the_zookeeper_of_another_cluster_are_ignored(
    cli: Cli, kafka: KafkaBroker, zookeeper: ZooKeeperServer, topic: str
) -> None:
    # Given a group of the same name with a registered consumer, below another chroot
    registration = b'{"version":1,"subscription":{"orders":1},"pattern":"static","timestamp":"1"}'
    create_node(zookeeper, f"/{topic}/consumers/{topic}/ids/consumer-1", registration)
    cli.environ["OFFSETMGR_ZOOKEEPER"] = f"{zookeeper.connect}/{topic}"
    edit = ["offsets", "set", "--group", topic, "--new-group", "--topic", f"{topic}:0", "--to-offset", "3"]
    edit += ["--store", f"kafka://{kafka.bootstrap}", "--execute", "--yes"]

    # When the ZooKeeper has no cluster id, then the group may be the same
    assert "1 persistent registration in ZooKeeper" in cli(*edit, code=1).stderr

    # When the ZooKeeper has another cluster id, then it is another group
    create_node(zookeeper, f"/{topic}/cluster/id", b'{"version":"1","id":"another"}')
    assert "done: 1 changed" in cli(*edit).stderr
