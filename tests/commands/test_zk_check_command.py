"""The command ``zk check``: its output, and its results for nodes of real brokers and of the real old consumer."""

import json
from pathlib import Path

import pytest
from checked_cluster import CLEAN
from kazoo.client import KazooClient
from old_consumers import old_member
from processes import Commands, fill, wait_for

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.sandbox import ZooKeeperServer
from offsetmgr.zookeeper.client.session import ZookeeperSession

pytestmark = pytest.mark.servers


def test_the_command_reports_its_findings_and_the_skipped_checks(zookeeper, cluster, tmp_path) -> None:
    cluster.group("lazy", owned=1)
    commands = Commands(tmp_path)
    command = ("zk", "check", "--zookeeper", zookeeper.connect + cluster.chroot, "--settle", "0")
    clean = commands.run(*command, "--group", "cl*")
    table = commands.run(*command, "--all-groups", code=1)
    as_json = json.loads(commands.run(*command, "--all-groups", "--format", "json", code=1).stdout)
    twice = commands.run(*command, "--group", CLEAN, "--watch", "0.1", "--count", "2")
    missing = commands.run(*command, "--group", "missing", code=1)
    date = commands.run(*command, "--all-groups", "--unused-since", "soon", code=2)
    assert clean.stdout == ""
    assert clean.stderr.splitlines() == [
        "not checked: offsets outside of the logs' ranges (no --bootstrap-server)",
        "not checked: unused groups (no --unused-since)",
        "not checked: whether findings are transient: no second check (--settle 0)",
        "checked 1 group: nothing found",
    ]
    assert twice.stderr.count("checked 1 group: nothing found") == 2
    assert table.stderr.splitlines()[-1] == "checked 2 groups: 1 error"
    assert table.stdout.splitlines()[0].split() == ["SEVERITY", "CODE", "GROUP", "FINDING", "TODO"]
    (row,) = as_json
    assert [row[name] for name in ("severity", "code", "group", "topic", "partitions", "path")] == [
        *("error", "no-owner", "lazy", "orders", "1,2", "/consumers/lazy/owners/orders")
    ]
    assert "group 'missing': does not exist in ZooKeeper at" in missing.stderr
    assert "--unused-since: 'soon' is no date or time" in date.stderr


def test_a_chroot_without_broker_nodes_is_reported_and_one_with_nothing_to_check_is_an_error(
    zookeeper: ZooKeeperServer, clients: list[KazooClient], unique: str, tmp_path: Path
) -> None:
    """The chroot may be missing or misspelt, so a gate must not pass."""
    clients[0].create(f"/{unique}/kafka/consumers", makepath=True)
    clients[0].create(f"/{unique}/old/consumers/g/offsets/orders/0", b"1", makepath=True)
    commands, check = Commands(tmp_path), ("zk", "check", "--all-groups", "--zookeeper")
    wrong = commands.run(*check, f"{zookeeper.connect}/{unique}", code=1)
    assert "has neither /consumers nor /brokers, so there is nothing to check" in wrong.stderr
    assert "hint: is the chroot right?" in wrong.stderr
    empty = commands.run(*check, f"{zookeeper.connect}/{unique}/kafka")
    assert "checked 0 groups: nothing found" in empty.stderr
    done = commands.run(*check, f"{zookeeper.connect}/{unique}/old")
    skipped = "owners of all partitions, and whether topics exist (there is no /brokers/topics here)"
    assert f"not checked: {skipped}" in done.stderr


def test_brokers_that_are_or_may_be_of_another_cluster_give_no_clean_result(kafka, zookeeper, cluster, tmp_path):
    check = ("zk", "check", "--zookeeper", zookeeper.connect + cluster.chroot, "--bootstrap-server", kafka.bootstrap)
    commands = Commands(tmp_path)
    done = commands.run(*check, "--group", CLEAN, "--settle", "0", code=1)
    assert "not checked: whether brokers and ZooKeeper belong to one cluster (ZooKeeper at" in done.stderr
    assert "has no cluster id)" in done.stderr
    cluster.create("/cluster/id", '{"version":"1","id":"another-cluster"}')
    assert "ZooKeeper to another-cluster" in commands.run(*check, "--all-groups", code=2).stderr


def test_the_real_old_consumer_and_broker_are_clean_until_the_topic_is_deleted(kafka, make_topic, unique, tmp_path):
    topic, commands = make_topic(unique, 4), Commands(tmp_path)
    fill(kafka.bootstrap, topic, 10, 10, 10, 10)
    command = ("zk", "check", "--zookeeper", kafka.zookeeper, "--group", unique, "--bootstrap-server", kafka.bootstrap)
    with old_member(tmp_path / "consumer", kafka.zookeeper, unique, topic):
        with ZookeeperSession(kafka.zookeeper, ConnectionConfig(timeout_ms=20_000)) as session:
            root = f"/consumers/{unique}/offsets/{topic}"
            wait_for(lambda: len(session.children(root) or ()) == 4, "all partitions are committed")
        clean = commands.run(*command, "--unused-since", "2100-01-01", "--settle", "1")
    assert clean.stderr.splitlines() == ["checked 1 group: nothing found"]
    commands.run("zk", "delete-topic", "--zookeeper", kafka.zookeeper, "--topic", topic, "--execute", "--yes")
    gone = json.loads(commands.run(*command, "--settle", "0", "--format", "json", code=1).stdout)
    assert [(row["code"], row["topic"], row["partitions"]) for row in gone] == [
        ("offsets-topic-gone", topic, "0,1,2,3")
    ]
