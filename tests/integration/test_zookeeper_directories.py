"""Kafka's directories on real ZooKeeper: of 0.7, of 0.8 and later, of a real 3.9.1 broker, and damaged ones."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeTopic
from kazoo.client import KazooClient
from kazoo.exceptions import BadArgumentsError
from kazoo.security import make_digest_acl
from kazoo_client import connected

from offsetmgr.cli.app import run
from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.model import BrokerPartition
from offsetmgr.sandbox import KafkaBroker, OldConsumer, ZooKeeperServer
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.groups.topics import topic_names, topics
from offsetmgr.zookeeper.nodes import cluster_nodes
from offsetmgr.zookeeper.nodes.cluster import parse_cluster_id
from offsetmgr.zookeeper.nodes.configs import parse_config_change
from offsetmgr.zookeeper.nodes.fields import Notes
from offsetmgr.zookeeper.nodes.paths import can_be_group
from offsetmgr.zookeeper.nodes.topics import parse_topic
from offsetmgr.zookeeper.nodes.tree import walk

pytestmark = pytest.mark.servers

CREATOR = "10.0.0.1-1330000000000"


class Planted:
    """A test's own tree on the shared ZooKeeper, and ``offsetmgr zk`` on it."""

    def __init__(
        self, server: ZooKeeperServer, client: KazooClient, chroot: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.connect = f"{server.connect}/{chroot}"
        self._capsys = capsys
        self._chroot = chroot
        self.client = client
        self.client.create(f"/{chroot}")

    def node(self, path: str, data: str | bytes = b"", *, live: bool = False, **options: Any) -> None:
        raw = data.encode() if isinstance(data, str) else data
        self.client.create(f"/{self._chroot}{path}", raw, ephemeral=live, makepath=True, **options)

    @property
    def session_id(self) -> str:
        return f"{self.client.client_id[0]:#x}"

    def zk(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        """stdout and stderr."""
        self._capsys.readouterr()
        assert run(["zk", *arguments, "--zookeeper", self.connect]) == code
        shown = self._capsys.readouterr()
        return shown.out, shown.err

    def rows(self, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
        found = json.loads(self.zk(*arguments, "--format", "json", code=code)[0])
        assert isinstance(found, list)
        return found

    def delete(self) -> None:
        self.client.delete(f"/{self._chroot}", recursive=True)


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.fixture
def planted(zookeeper: ZooKeeperServer, unique: str, capsys: pytest.CaptureFixture[str]) -> Iterator[Planted]:
    with connected(zookeeper.connect) as client:
        tree = Planted(zookeeper, client, unique, capsys)
        yield tree
        tree.delete()


def only(rows: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in rows]


def of_0_7(tree: Planted) -> None:
    """Two brokers, one topic, one group of two consumers, as Kafka 0.7 writes them."""
    tree.node("/brokers/ids/0", f"{CREATOR}:10.0.0.1:9092", live=True)
    tree.node("/brokers/ids/1", "10.0.0.2:9092", live=True)
    tree.node("/brokers/topics/clicks/0", "2", live=True)
    tree.node("/brokers/topics/clicks/1", "1", live=True)
    first, second = "g_h1-1330000000000-1a2b3c4d", "g_h2-1330000000001-2b3c4d5e"
    tree.node(f"/consumers/g/ids/{first}", '{ "clicks": 2 }', live=True)
    tree.node(f"/consumers/g/ids/{second}", "*1*cli.*", live=True)
    tree.node("/consumers/g/owners/clicks/0-0", f"{first}-0", live=True)
    tree.node("/consumers/g/owners/clicks/0-1", f"{first}-1", live=True)
    tree.node("/consumers/g/owners/clicks/1-0", f"{second}-0", live=True)
    tree.node("/consumers/g/offsets/clicks/0-0", "1048576")


def test_a_cluster_and_a_group_of_0_7(planted: Planted) -> None:
    of_0_7(planted)
    own = planted.session_id

    assert only(planted.rows("brokers"), "broker", "endpoints", "format_version", "ephemeral_owner") == [
        (0, "PLAINTEXT://10.0.0.1:9092", None, own),
        (1, "PLAINTEXT://10.0.0.2:9092", None, own),
    ]
    assert only(planted.rows("topics"), "topic", "partition", "leader", "replicas", "isr") == [
        ("clicks", "0-0", 0, "0", None),
        ("clicks", "0-1", 0, "0", None),
        ("clicks", "1-0", 1, "1", None),
    ]
    members = planted.rows("members", "--all-groups")
    assert only(members, "member_id", "host", "pattern", "subscription", "partitions", "error") == [
        ("g_h1-1330000000000-1a2b3c4d", "h1", "static", "clicks=2", 2, None),
        ("g_h2-1330000000001-2b3c4d5e", "h2", "white_list", "cli.*=1", 1, None),
    ]
    assert only(planted.rows("owners", "--group", "g"), "topic", "partition", "member_id", "thread", "notes") == [
        ("clicks", "0-0", "g_h1-1330000000000-1a2b3c4d", 0, None),
        ("clicks", "0-1", "g_h1-1330000000000-1a2b3c4d", 1, None),
        ("clicks", "1-0", "g_h2-1330000000001-2b3c4d5e", 0, None),
    ]
    assert only(planted.rows("owners", "--group", "g", "--topic", "clicks:0-1"), "partition") == [("0-1",)]
    kinds = {row["path"]: (row["kind"], row["value"]) for row in planted.rows("tree")}
    assert kinds["/brokers/topics/clicks"] == ("topic", None)
    assert kinds["/brokers/topics/clicks/0"] == ("partition count", "2")
    assert kinds["/consumers/g/offsets/clicks/0-0"] == ("offset", "1048576")
    assert kinds["/consumers/g/owners/clicks/1-0"] == ("owner", "g_h2-1330000000001-2b3c4d5e-0")


def test_partitions_of_0_7_as_values(planted: Planted) -> None:
    of_0_7(planted)
    planted.node("/brokers/topics/wide/0", "40000")

    with ZookeeperSession(planted.connect, ConnectionConfig(timeout_ms=20_000)) as session:
        clicks, wide = topics(session, topic_names(session))

    assert clicks.partitions == [BrokerPartition(0, 0), BrokerPartition(0, 1), BrokerPartition(1, 0)]
    assert wide.partitions == []
    assert "40000 partitions of broker 0" in str(wide.counts[0].error)


def test_damaged_nodes_are_reported_and_the_rest_is_shown(planted: Planted) -> None:
    endpoints = '"endpoints":["PLAINTEXT://h1:9092"]'
    planted.node("/brokers/ids/1", '{"version":1,"host":"h1"', live=True)
    planted.node("/brokers/ids/2", f'{{"version":6,{endpoints},"zone":"z"}}', live=True)
    planted.node("/brokers/ids/3", '{"version":1,"host":"h3","port":9092}')
    planted.node("/brokers/ids/x", "h:1")
    planted.node("/controller", '{"version":1,"brokerid":9,"timestamp":"1"}')
    planted.node("/controller_epoch", "many")
    planted.node("/brokers/topics/a", '{"version":1,"partitions":{"0":[1,2],"1":[2,1],"2":[1]}}')
    planted.node(
        "/brokers/topics/a/partitions/0/state",
        '{"version":1,"leader":2,"leader_epoch":4,"isr":[2],"controller_epoch":1}',
    )
    planted.node("/brokers/topics/a/partitions/1/state", '{"version":1,"leader":')
    planted.node("/brokers/topics/b", '{"version":1,"partitions":{"0":[1],}}')
    planted.node("/brokers/topics/c", "")
    planted.node("/admin/delete_topics/c")

    out, err = planted.zk("brokers", "--format", "json", code=1)
    assert only(json.loads(out), "broker", "endpoints", "notes", "error") == [
        (1, None, None, "is not JSON: Expecting ',' delimiter (line 1, column 25)"),
        (2, "PLAINTEXT://h1:9092", "unknown version 6 (known: 1 to 5); unknown field 'zone'", None),
        (3, "PLAINTEXT://h3:9092", "persistent: brokers create only ephemeral nodes", None),
        (None, None, None, "its name is not a broker's id"),
    ]
    assert "error: ZooKeeper node /brokers/ids/1: is not JSON" in err
    assert "error: ZooKeeper node /brokers/ids/x: its name is not a broker's id" in err
    assert "error: ZooKeeper node /controller_epoch: " in err

    assert only(planted.rows("topics", code=1), "topic", "partition", "leader", "isr", "notes", "error") == [
        ("a", 0, 2, "2", "preferred leader is 1; not in sync: 1", None),
        ("a", 1, None, None, None, "is not JSON: Expecting value (line 1, column 23)"),
        ("a", 2, None, None, "no state yet", None),
        ("b", None, None, None, None, rows_error(planted, "/brokers/topics/b")),
        ("c", None, None, None, "being deleted; no partitions", None),
    ]

    out, err = planted.zk("brokers", code=1)
    assert err.splitlines()[0] == (
        "cluster id not known, controller broker 9, which is not among them, controller epoch not known"
    )


def rows_error(tree: Planted, path: str) -> str:
    """The error that `zk tree` prints for a node. Other commands must print the same error."""
    ((error,),) = only(tree.rows("tree", path, code=1), "error")
    assert isinstance(error, str) and error.startswith("is not JSON: ")
    return error


def test_members_and_owners_that_do_not_fit_together(planted: Planted) -> None:
    group = "/consumers/g"
    planted.node(f"{group}/ids/g_a", '{"version":1,"subscription":{"t":1},"pattern":"static"}', live=True)
    planted.node(f"{group}/ids/g_b", '{"version":3,"subscription":{"t":1},"pattern":"static","x":1}')
    planted.node(f"{group}/ids/g_c", "{", live=True)
    planted.node(f"{group}/owners/t/0", "g_a-0", live=True)
    planted.node(f"{group}/owners/t/1", "g_gone-0", live=True)
    planted.node(f"{group}/owners/t/2", "g_a-0")
    planted.node(f"{group}/owners/t/3", "unknown", live=True)
    planted.node(f"{group}/owners/t/4", "g_b-0", live=True)
    planted.node("/consumers/idle/offsets/t/0", "7")

    out, err = planted.zk("members", "--all-groups", "--format", "json", code=1)
    assert only(json.loads(out), "group", "member_id", "subscription", "partitions", "notes", "error") == [
        ("g", "g_a", "t=1", 2, None, None),
        (
            "g",
            "g_b",
            "t=1",
            1,
            "unknown version 3 (known: 1); unknown field 'x'; persistent: does not show whether its consumer runs",
            "is of version 3; known: 1",
        ),
        (
            "g",
            "g_c",
            None,
            0,
            None,
            "is not JSON: Expecting property name enclosed in double quotes (line 1, column 2)",
        ),
    ]
    assert f"error: ZooKeeper node {group}/ids/g_c: is not JSON" in err

    found = planted.rows("owners", "--group", "*", code=1)
    assert only(found, "partition", "member_id", "notes", "error") == [
        (0, "g_a", None, None),
        (1, "g_gone", "no live member", None),
        (2, "g_a", "persistent: does not show whether its consumer runs", None),
        (3, None, None, "contains b'unknown' instead of CONSUMER-THREAD"),
        (4, "g_b", "its member has another session, none", None),
    ]
    assert planted.rows("members", "--group", "idle") == []


def test_secrets_are_hidden_in_every_output_format(planted: Planted) -> None:
    planted.node("/config/users/alice", '{"version":1,"config":{"SCRAM-SHA-256":"salt=sesame"}}')
    planted.node("/config/users/bob", '{"version":1,"config":{"SCRAM-SHA-256":"sesame"')
    planted.node("/config/users/alice/clients/c1", '{"version":1,"config":{"producer_byte_rate":"1024"}}')
    planted.node("/config/brokers/0", '{"version":1,"config":{"ssl.keystore.password":"sesame","x":"y"}}')
    planted.node("/delegation_token/tokens/t1", "sesame")

    for output in ("table", "json", "csv"):
        out, err = planted.zk("tree", "--format", output, code=1)
        assert "sesame" not in out + err

    rows = {row["path"]: row for row in planted.rows("tree", code=1)}
    assert rows["/config/users/alice"]["value"] == "SCRAM-SHA-256=(hidden)"
    assert rows["/config/users/alice/clients/c1"]["value"] == "producer_byte_rate=1024"
    assert rows["/config/brokers/0"]["value"] == "ssl.keystore.password=(hidden) x=y"
    assert rows["/delegation_token/tokens/t1"]["value"] == "(hidden)"
    assert rows["/config/users/bob"]["error"].startswith("is not JSON")
    with ZookeeperSession(planted.connect, ConnectionConfig(timeout_ms=20_000)) as session:
        users = dict(cluster_nodes.configs(session, "users"))
    assert list(users) == ["alice", "alice/clients/c1", "bob"]
    assert users["bob"].error is not None and users["alice"].value is not None


def test_an_unreadable_node_hides_no_other(planted: Planted) -> None:
    planted.client.add_auth("digest", "owner:secret")
    planted.node("/brokers/ids/2", "h2:9092")
    planted.node("/brokers/ids/1", "h1:9092", acl=[make_digest_acl("owner", "secret", all=True)])

    out, err = planted.zk("brokers", "--format", "json", code=1)
    assert only(json.loads(out), "broker", "endpoints") == [(1, None), (2, "PLAINTEXT://h2:9092")]
    assert "/brokers/ids/1: its ACL does not allow this (NO_AUTH)" in err
    assert "hint: " in err
    assert [row["path"] for row in planted.rows("tree", code=1)] == [
        "/",
        "/brokers",
        "/brokers/ids",
        "/brokers/ids/1",
        "/brokers/ids/2",
    ]


def test_requests_of_administrators(planted: Planted) -> None:
    planted.node(
        "/admin/reassign_partitions", '{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[2]}]}'
    )
    planted.node("/admin/preferred_replica_election", '{"version":1,"partitions":[]')
    planted.node("/admin/delete_topics/old")

    with ZookeeperSession(planted.connect, ConnectionConfig(timeout_ms=20_000)) as session:
        requests = cluster_nodes.controller_requests(session)

    assert str(requests.reassignments.value) == "t-0=2"
    assert requests.preferred_election.error is not None
    assert requests.deletions == ("old",)
    assert (requests.deletion_list.value, requests.deletion_list.error) == (None, None)


def test_tables_csv_and_watch(planted: Planted) -> None:
    planted.node("/brokers/ids/1", '{"version":1,"host":"h1","port":9092,"jmx_port":-1,"timestamp":"17"}', live=True)
    planted.node("/controller", "1", live=True)
    planted.node("/cluster/id", '{"version":"1","id":"abc"}')

    out, err = planted.zk("brokers", "--watch", "0.1", "--count", "2")
    time, first, second = out.splitlines()[:3]
    assert time.endswith("Z")
    assert first.split() == ["BROKER", "ROLE", "ENDPOINTS", "FORMAT", "REGISTERED-AT", "EPHEMERAL-OWNER"]
    assert second.split()[:4] == ["1", "controller", "PLAINTEXT://h1:9092", "1"]
    assert out.splitlines()[4:] == [first, second]
    assert err.splitlines() == ["cluster id abc, controller broker 1, controller epoch not known"] * 2

    rows = list(csv.DictReader(io.StringIO(planted.zk("tree", "/cluster", "--format", "csv")[0])))
    assert [(row["path"], row["value"]) for row in rows] == [("/cluster", ""), ("/cluster/id", "abc")]
    assert [row["path"] for row in planted.rows("tree", "--depth", "1")] == ["/", "/brokers", "/cluster", "/controller"]


def test_usage_errors_and_missing_nodes(planted: Planted) -> None:
    planted.node("/consumers/g/offsets")

    assert planted.zk("members", "--group", "h", code=1)[1].startswith("error: group 'h': no group in ZooKeeper at ")
    assert planted.zk("topics", "--topic", "t", code=1)[1].startswith("error: topic t: does not exist in ZooKeeper at ")
    assert planted.zk("tree", "/nowhere", code=1)[1].startswith("error: ZooKeeper node /nowhere: does not exist")
    assert planted.zk("tree", "brokers", code=2)[1].startswith("error: path 'brokers': is not a valid ZooKeeper path")
    assert planted.zk("members", code=2)[1].startswith("error: --group")


@pytest.mark.parametrize("version", ["zookeeper", "zookeeper34"])
def test_a_walk_returns_nodes_before_their_children_and_sorts_numbers_by_value(
    version: str, request: pytest.FixtureRequest, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server: ZooKeeperServer = request.getfixturevalue(version)
    created = ["/"]
    for group in ("g1", "g10", "g2", "g-a"):  # sorted as text, not by creation
        created.append(f"/{group}")
        for topic in range(11):
            created.append(f"/{group}/{topic}")
            created += [f"/{group}/{topic}/{partition}" for partition in range(topic + 1)]
    created.sort(key=lambda path: [(not n.isdigit(), int(n) if n.isdigit() else 0, n) for n in path.split("/")[1:]])

    with connected(server.connect) as client:
        try:
            transaction = client.transaction()
            for path in created:
                transaction.create(f"/{unique}{path}".rstrip("/"))
            transaction.commit()
            with ZookeeperSession(f"{server.connect}/{unique}", ConnectionConfig(timeout_ms=20_000)) as session:
                assert [one.path for one in walk(session, "/")] == created
                assert [one.path for one in walk(session, "/", 1)] == ["/", "/g-a", "/g1", "/g10", "/g2"]
                assert [one.path for one in walk(session, "/g1")] == [p for p in created if f"{p}/".startswith("/g1/")]
                assert list(walk(session, "/nothing")) == []
                monkeypatch.setattr("offsetmgr.zookeeper.nodes.tree.NODES_AT_ONCE", 7)
                assert [one.path for one in walk(session, "/")] == created
        finally:
            transaction = client.transaction()
            for path in reversed(created):
                transaction.delete(f"/{unique}{path}".rstrip("/"))
            transaction.commit()


def eventually(check: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 120
    while not check():
        assert time.monotonic() < deadline, what


def test_the_tree_of_a_real_broker(
    kafka: KafkaBroker, make_topic: MakeTopic, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = make_topic(unique, 2, config={"retention.ms": "3600000"})

    def rows(*arguments: str) -> list[dict[str, Any]]:
        capsys.readouterr()
        assert run(["zk", *arguments, "--zookeeper", kafka.zookeeper, "--format", "json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert isinstance(found, list)
        return found

    with OldConsumer(tmp_path / "consumer", zookeeper=kafka.zookeeper, group=unique, topic=topic) as consumer:
        eventually(lambda: len(rows("owners", "--group", unique)) == 2, "both partitions are owned")
        tree = {row["path"]: row for row in [*rows("tree", "--depth", "1"), *rows("tree", "/brokers/ids")]}
        tree |= {row["path"]: row for row in [*rows("tree", f"/brokers/topics/{topic}"), *rows("tree", "/cluster")]}
        tree |= {
            row["path"]: row
            for row in [*rows("tree", f"/consumers/{unique}"), *rows("tree", f"/config/topics/{topic}")]
        }
        (member,) = rows("members", "--group", unique)
        owners = rows("owners", "--group", unique)

    (broker,) = rows("brokers")
    persistent = {path for path, row in tree.items() if row["ephemeral_owner"] is None}
    state = f"/brokers/topics/{topic}/partitions/0/state"
    assert {
        "/admin", "/brokers", "/cluster", "/config", "/consumers", "/controller", "/controller_epoch", "/feature",
        "/isr_change_notification", "/latest_producer_id_block", "/log_dir_event_notification",
    } <= set(tree)  # fmt: skip
    assert [row for row in tree.values() if row["error"] or row["notes"]] == []
    # Contrary to some documents, the state of a partition outlives the brokers.
    assert {state, f"/brokers/topics/{topic}", "/cluster/id", "/controller_epoch"} <= persistent
    assert "/controller" not in persistent and f"/brokers/ids/{broker['broker']}" not in persistent
    assert tree["/controller"]["kind"] == "controller"
    assert (tree[state]["kind"], tree[state]["value"]) == (
        "partition state",
        f"leader {broker['broker']} (epoch 0), in sync {broker['broker']}",
    )
    assert tree[f"/config/topics/{topic}"]["value"] == "retention.ms=3600000"
    assert (broker["role"], broker["format_version"]) == ("controller", 5)
    assert broker["endpoints"] == f"PLAINTEXT://{kafka.bootstrap}"
    assert len(tree["/cluster/id"]["value"]) == 22

    notes: Notes = []
    assignment = parse_topic(state, tree[f"/brokers/topics/{topic}"]["data"].encode(), notes)
    assert (dict(assignment.replicas), notes) == ({0: (broker["broker"],), 1: (broker["broker"],)}, [])
    assert assignment.topic_id is not None and len(assignment.topic_id) == 22
    assert parse_cluster_id("/cluster/id", tree["/cluster/id"]["data"].encode()) == tree["/cluster/id"]["value"]

    assert only(rows("topics", "--topic", topic), "partition", "leader", "replicas", "isr", "notes") == [
        (0, 0, "0", "0", None),
        (1, 0, "0", "0", None),
    ]
    assert member["member_id"] == consumer.member_id
    assert (member["pattern"], member["subscription"], member["partitions"]) == ("static", f"{topic}=1", 2)
    assert [(row["partition"], row["member_id"], row["ephemeral_owner"]) for row in owners] == [
        (0, member["member_id"], member["ephemeral_owner"]),
        (1, member["member_id"], member["ephemeral_owner"]),
    ]


def test_a_real_brokers_notice_of_a_changed_config(kafka: KafkaBroker, make_topic: MakeTopic, unique: str) -> None:
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    topic = make_topic(unique)
    change = ConfigEntry("retention.ms", "60000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(90)

    with ZookeeperSession(kafka.zookeeper, ConnectionConfig(timeout_ms=20_000)) as session:
        notices = [one for one in walk(session, "/config/changes") if one.description.kind == "config change"]
        changes = [parse_config_change(one.path, one.node.data).entity for one in notices if one.node is not None]
        configs = dict(cluster_nodes.configs(session, "topics"))

    assert f"topics/{topic}" in changes
    assert [one.description.notes for one in notices if one.description.notes] == []
    entry = configs[topic].value
    assert entry is not None and dict(entry.values) == {"retention.ms": "60000"}


def test_a_group_can_be_in_zookeeper_exactly_if_the_server_accepts_the_name(
    zookeeper: ZooKeeperServer, unique: str
) -> None:
    names = [".", "..", "...", "ü", "a b", "a:b"]
    names += [f"g{chr(code)}" for code in (1, 0x1F, 0x20, 0x7E, 0x7F, 0x9F, 0xA0, 0xD7FF, 0xE000, 0xF8FF, 0xF900)]
    names += [f"g{chr(code)}" for code in (0xFFEF, 0xFFF0, 0xFFFF, 0x10000, 0x1F600, 0x10FFFF)]
    accepted = set()
    for name in names:
        with connected(f"{zookeeper.connect}/{unique}") as client, suppress(BadArgumentsError, ValueError):
            client.create(f"/consumers/{name}", b"", makepath=True)
            accepted.add(name)
    assert accepted == {name for name in names if can_be_group(name)}
