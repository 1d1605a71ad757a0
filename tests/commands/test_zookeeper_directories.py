"""``zk brokers|topics|members|owners|tree`` on Kafka's directories of 0.7, of 0.8 and later, of a real 3.9.1 broker,
and on damaged ones."""

import csv
import io
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeTopic
from in_process import rows
from kazoo.client import KazooClient
from kazoo.exceptions import BadArgumentsError
from kazoo.security import make_digest_acl
from kazoo_client import connected
from planted_tree import Planted, only
from processes import set_topic, wait_for

from offsetmgr.core.errors import UsageError
from offsetmgr.sandbox import KafkaBroker, OldConsumer, ZooKeeperServer
from offsetmgr.zookeeper.offsets.layouts import layout_named

pytestmark = pytest.mark.servers

CREATOR = "10.0.0.1-1330000000000"


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
    planted.node("/brokers/topics/wide/0", "40000")  # more partitions than a number can hold
    found = planted.rows("topics", code=1)
    assert only(found[:-1], "topic", "partition") == [("clicks", "0-0"), ("clicks", "0-1"), ("clicks", "1-0")]
    assert (found[-1]["topic"], found[-1]["partition"]) == ("wide", None)
    assert "40000 partitions of broker 0" in found[-1]["error"]


def test_brokers_of_all_later_versions_with_all_their_fields(planted: Planted) -> None:
    common = {"host": "h", "port": 9092, "jmx_port": -1, "timestamp": "17", "endpoints": ["A://h:1"]}
    features = {"f": {"min_version": 1, "max_version": 3}}
    for version in range(1, 6):
        extra: dict[str, Any] = {"rack": "r1"} if version == 3 else {}
        if version >= 4:
            extra["listener_security_protocol_map"] = {"A": "SSL", "B": "PLAINTEXT"}
        extra |= {"features": features} if version == 5 else {"jmx_port": 9999} if version == 1 else {}
        planted.node(f"/brokers/ids/{version}", json.dumps({"version": version, **common, **extra}), live=True)
    rows = planted.rows("brokers")
    names = ("format_version", "endpoints", "rack", "timestamp", "jmx_port", "security", "features", "notes")
    security = "A=SSL B=PLAINTEXT"
    assert only(rows, *names) == [
        (1, "PLAINTEXT://h:9092", None, 17, 9999, None, None, None),
        (2, "A://h:1", None, 17, None, None, None, None),
        (3, "A://h:1", "r1", 17, None, None, None, None),
        (4, "A://h:1", None, 17, None, security, None, None),
        (5, "A://h:1", None, 17, None, security, "f(min_version=1 max_version=3)", None),
    ]


def test_topics_with_a_reassignment_and_without_leaders(planted: Planted) -> None:
    topic_id, moving = "Rk1fOTTzQdmDyhIlKQcoow", {"adding_replicas": {"0": [3]}, "removing_replicas": {"0": [1]}}
    node = {"version": 3, "partitions": {"0": [1, 2, 3], "1": [1], "10": [1]}, "topic_id": topic_id, **moving}
    planted.node("/brokers/topics/t", json.dumps(node))
    state = {"version": 1, "leader_epoch": 5, "controller_epoch": 9, "leader_recovery_state": 1}
    for partition, leader, isr in ((0, 1, [1, 2]), (1, -1, [1]), (10, -2, [1])):
        planted.node(
            f"/brokers/topics/t/partitions/{partition}/state", json.dumps({**state, "leader": leader, "isr": isr})
        )
    rows = planted.rows("topics")
    assert only(rows, "partition", "leader", "replicas", "adding", "removing", "notes") == [
        (0, 1, "1,2,3", "3", "1", "recovering from an unclean election; not in sync: 3"),
        (1, None, "1", None, None, "no leader; recovering from an unclean election"),
        (10, None, "1", None, None, "being deleted; recovering from an unclean election"),
    ]
    assert set(only(rows, "leader_epoch", "controller_epoch", "topic_id")) == {(5, 9, topic_id)}


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


BROKEN_OWNERS = (b"", b"worker-", b"-3", b"worker-x")


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
    for number, content in enumerate(BROKEN_OWNERS, 5):
        planted.node(f"{group}/owners/t/{number}", content, live=True)
    planted.node("/consumers/odd/owners/t/0-x", "g_a-0", live=True)
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
    assert json.loads(out)[0]["host"] is None  # its id has no host

    out, err = planted.zk("owners", "--group", "*", "--format", "json", code=1)
    assert only(json.loads(out), "partition", "member_id", "notes", "error") == [
        (0, "g_a", None, None),
        (1, "g_gone", "no live member", None),
        (2, "g_a", "persistent: does not show whether its consumer runs", None),
        (3, None, None, "contains b'unknown' instead of CONSUMER-THREAD"),
        (4, "g_b", "its member has another session, none", None),
        *((n, None, None, f"contains {data!r} instead of CONSUMER-THREAD") for n, data in enumerate(BROKEN_OWNERS, 5)),
    ]
    assert "/consumers/odd/owners/t/0-x" in err
    assert planted.rows("members", "--group", "idle") == []


@pytest.mark.parametrize("version", ["zookeeper", "zookeeper34"])
def test_many_groups_get_one_result_each(version: str, request: pytest.FixtureRequest, unique: str) -> None:
    server: ZooKeeperServer = request.getfixturevalue(version)
    registered = [f"g{number}" for number in range(0, 30, 3)]
    registration = b'{"version":1,"subscription":{"t":1},"pattern":"static"}'
    with connected(server.connect) as client:
        for number in range(30):
            client.create(f"/{unique}/consumers/g{number}/offsets", makepath=True)
        for name in registered:
            path = f"/{unique}/consumers/{name}"
            client.create(f"{path}/ids/{name}_w", registration, ephemeral=True, makepath=True)
            client.create(f"{path}/owners/t/0", f"{name}_w-0".encode(), ephemeral=True, makepath=True)
        for command in ("members", "owners"):
            found = rows("zk", command, "--all-groups", "--zookeeper", f"{server.connect}/{unique}")
            assert only(found, "group", "member_id") == sorted((name, f"{name}_w") for name in registered)
        client.delete(f"/{unique}", recursive=True)


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
    rows = {row["path"]: (row["kind"], row["value"], row["error"]) for row in planted.rows("tree", "/admin", code=1)}
    assert rows["/admin/reassign_partitions"] == ("reassignment", "t-0=2", None)
    assert rows["/admin/preferred_replica_election"][:2] == ("preferred election", None)
    assert rows["/admin/delete_topics"] == ("topic deletions", None, None)
    assert rows["/admin/delete_topics/old"] == ("topic deletion", None, None)


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
    assert planted.zk("members", "--group", "h", code=1)[1].startswith(
        "error: group 'h': does not exist in ZooKeeper at "
    )
    assert planted.zk("topics", "--topic", "t", code=1)[1].startswith("error: topic t: does not exist in ZooKeeper at ")
    assert planted.zk("tree", "/nowhere", code=1)[1].startswith("error: ZooKeeper node /nowhere: does not exist")
    assert planted.zk("tree", "brokers", code=2)[1].startswith("error: path 'brokers': is not a valid ZooKeeper path")
    assert planted.zk("members", code=2)[1].startswith("error: --group")


@pytest.mark.parametrize("version", ["zookeeper", "zookeeper34"])
def test_a_walk_returns_nodes_before_their_children_and_sorts_numbers_by_value(version: str, request, unique) -> None:
    server: ZooKeeperServer = request.getfixturevalue(version)
    created = ["/"]
    for group in ("g1", "g10", "g2", "g-a", "g3", "g4", "g5", "g6"):  # sorted as text, not by creation
        created.append(f"/{group}")
        for topic in range(11):
            created.append(f"/{group}/{topic}")
            created += [f"/{group}/{topic}/{partition}" for partition in range(topic + 1)]
    created.sort(key=lambda path: [(not n.isdigit(), int(n) if n.isdigit() else 0, n) for n in path.split("/")[1:]])
    paths = [f"/{unique}{path}".rstrip("/") for path in created]

    def tree(*arguments: str, code: int = 0) -> list[str]:
        where = ("--zookeeper", f"{server.connect}/{unique}")
        return [row["path"] for row in rows("zk", "tree", *arguments, *where, code=code)]

    with connected(server.connect) as client:
        in_transactions(client, "create", paths)
        try:
            assert tree() == created  # more nodes on one level than are read at once
            assert tree("--depth", "1") == [
                "/",
                *(f"/{name}" for name in sorted({p.split("/")[1] for p in created[1:]})),
            ]
            assert tree("/g1") == [path for path in created if f"{path}/".startswith("/g1/")]
            assert tree("/nothing", code=1) == []
        finally:
            in_transactions(client, "delete", paths[::-1])


def in_transactions(client: KazooClient, operation: str, paths: list[str]) -> None:
    for at in range(0, len(paths), 300):
        transaction = client.transaction()
        for path in paths[at : at + 300]:
            getattr(transaction, operation)(path)
        transaction.commit()


def test_the_tree_of_a_real_broker(kafka: KafkaBroker, make_topic: MakeTopic, unique: str, tmp_path: Path) -> None:
    topic = make_topic(unique, 2, config={"retention.ms": "3600000"})

    def zk(*arguments: str) -> list[dict[str, Any]]:
        return list(rows("zk", *arguments, "--zookeeper", kafka.zookeeper))

    with OldConsumer(tmp_path / "consumer", zookeeper=kafka.zookeeper, group=unique, topic=topic) as consumer:
        wait_for(lambda: len(zk("owners", "--group", unique)) == 2, "both partitions are owned")
        tree = {row["path"]: row for row in [*zk("tree", "--depth", "1"), *zk("tree", "/brokers/ids")]}
        tree |= {row["path"]: row for row in [*zk("tree", f"/brokers/topics/{topic}"), *zk("tree", "/cluster")]}
        tree |= {
            row["path"]: row for row in [*zk("tree", f"/consumers/{unique}"), *zk("tree", f"/config/topics/{topic}")]
        }
        (member,) = zk("members", "--group", unique)
        owners = zk("owners", "--group", unique)

    (broker,) = zk("brokers")
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

    topic_rows = zk("topics", "--topic", topic)
    assert only(topic_rows, "partition", "leader", "replicas", "isr", "notes") == [
        (0, 0, "0", "0", None),
        (1, 0, "0", "0", None),
    ]
    assert {len(row["topic_id"]) for row in topic_rows} == {22}
    assert member["member_id"] == consumer.member_id
    assert (member["pattern"], member["subscription"], member["partitions"]) == ("static", f"{topic}=1", 2)
    assert member["host"] is not None
    assert abs(member["registered_at"] - member["started_at"]) < 60_000
    assert only(owners, "partition", "member_id", "thread", "ephemeral_owner") == [
        (0, member["member_id"], 0, member["ephemeral_owner"]),
        (1, member["member_id"], 0, member["ephemeral_owner"]),
    ]


def test_a_real_brokers_notice_of_a_changed_config(kafka: KafkaBroker, make_topic: MakeTopic, unique: str) -> None:
    from confluent_kafka.admin import AdminClient

    topic = make_topic(unique)
    set_topic(AdminClient({"bootstrap.servers": kafka.bootstrap}), topic, {"retention.ms": "60000"})
    tree = rows("zk", "tree", "/config", "--zookeeper", kafka.zookeeper)
    notices = [row for row in tree if row["kind"] == "config change"]
    assert f"topics/{topic}" in {row["value"] for row in notices}
    assert {row["notes"] for row in notices} == {None}
    assert [row["value"] for row in tree if row["path"] == f"/config/topics/{topic}"] == ["retention.ms=60000"]


def test_a_group_can_be_in_zookeeper_exactly_if_the_server_accepts_the_name(zookeeper, unique) -> None:
    names = [".", "..", "...", "ü", "a b", "a:b"]
    names += [f"g{chr(code)}" for code in (1, 0x1F, 0x20, 0x7E, 0x7F, 0x9F, 0xA0, 0xD7FF, 0xE000, 0xF8FF, 0xF900)]
    names += [f"g{chr(code)}" for code in (0xFFEF, 0xFFF0, 0xFFFF, 0x10000, 0x1F600, 0x10FFFF)]
    accepted = set()
    for name in names:
        with connected(f"{zookeeper.connect}/{unique}") as client, suppress(BadArgumentsError, ValueError):
            client.create(f"/consumers/{name}", b"", makepath=True)
            accepted.add(name)
    possible = set()
    for name in names:
        with suppress(UsageError):
            layout_named("0.8").group_root(name)
            possible.add(name)
    assert accepted == possible
