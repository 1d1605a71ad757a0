"""`runbook check` derives the topics of a member from its subscription as the Java consumers do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import MakeTopic
from everyday import Cli
from kazoo.client import KazooClient
from kazoo_client import connected

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.migration.group_observer import ZookeeperRegistry
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer
from offsetmgr.zookeeper.client.session import ZookeeperSession

pytestmark = pytest.mark.servers

TOPICS = ["a", "ab", "b", "cab", "x1", "A", "__ours", "__consumer_offsets"]


@pytest.fixture
def client(zookeeper: ZooKeeperServer) -> Iterator[KazooClient]:
    """A ZooKeeper client that registers members as consumers do."""
    with connected(zookeeper.connect) as client:
        yield client


def register(client: KazooClient, path: str, kind: str, subscription: dict[str, int]) -> None:
    node = {"version": 1, "subscription": subscription, "pattern": kind, "timestamp": "1700000000123"}
    client.create(path, json.dumps(node).encode(), ephemeral=True, makepath=True)


def test_a_runbook_reads_subscriptions_as_consumers_do(
    zookeeper: ZooKeeperServer, client: KazooClient, unique: str
) -> None:
    expected = {
        ("white_list", "[a-z&&[^b]]+"): ("a",),
        ("black_list", "[a-z&&[^b]]+"): ("A", "__ours", "ab", "b", "cab", "x1"),
        ("white_list", r"\p{Lower}+"): ("a", "ab", "b", "cab"),
        ("white_list", r"\p{javaLowerCase}*\d"): ("x1",),
        ("white_list", "__.*"): ("__ours",),
        ("white_list", "a , x1"): ("a", "x1"),
        ("white_list", r"\Qab\E"): ("ab",),
        ("static", "__consumer_offsets"): ("__consumer_offsets",),
        ("unknown kind", "a.*"): ("a.*",),
    }
    for number, (kind, pattern) in enumerate(expected):
        register(client, f"/consumers/{unique}/ids/m{number}", kind, {pattern: 1})
    register(client, f"/consumers/{unique}/ids/several", "white_list", {"a": 1, "b": 1})
    register(client, f"/consumers/{unique}/ids/wrong", "white_list", {"*a": 1})
    with ZookeeperSession(zookeeper.connect, ConnectionConfig(timeout_ms=20_000)) as session:
        seen = ZookeeperRegistry(session).members(unique, lambda: TOPICS)
    found = {subscription: seen.members[f"m{number}"].topics for number, subscription in enumerate(expected)}
    assert found == expected
    assert seen.members["several"].topics == ("a", "b")  # kafka-node registers topics as a white list
    assert seen.members["wrong"].topics == ()
    (unreadable,) = seen.unreadable  # an invalid pattern fails every gate
    assert unreadable.startswith(
        f"/consumers/{unique}/ids/wrong (topic pattern '*a': is not a regular expression of Java"
    )


def test_runbook_check_covers_every_topic_that_a_java_pattern_selects(
    kafka: KafkaBroker,
    zookeeper: ZooKeeperServer,
    client: KazooClient,
    make_topic: MakeTopic,
    tmp_path: Path,
    unique: str,
) -> None:
    stem = unique[-8:].translate(str.maketrans("0123456789", "ghijklmnop"))
    taken = {make_topic(f"__{stem}ac"), make_topic(f"__{stem}ca")}
    make_topic(f"__{stem}B")
    root = kafka.zookeeper.removeprefix(zookeeper.connect)
    register(client, f"{root}/consumers/{unique}/ids/m", "white_list", {f"__{stem}[a-z&&[^b]]\\p{{Lower}}+": 1})
    servers = ["--zookeeper", kafka.zookeeper, "--bootstrap-server", kafka.bootstrap]
    check = ["runbook", "check", "--group", unique, "--phase", "zookeeper", "--window", "0", "--format", "json"]
    done = Cli(tmp_path)(*check, *servers, code=1)
    assert {found["topic"] for found in json.loads(done.stdout)["partitions"]} == taken
