"""The findings of ``zk check`` on a real ZooKeeper, alongside a clean group without findings."""

import json
import os
import random
from collections.abc import Callable, Collection

import pytest
from checked_cluster import CLEAN, PARTITIONS, Cluster, found, ranges
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl
from kazoo_client import connected

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import OffsetMgrError, TimedOut
from offsetmgr.core.model import LogRange, TopicPartition
from offsetmgr.sandbox import ZooKeeperServer
from offsetmgr.zookeeper.check.zookeeper_check import ZookeeperCheck
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.transactions import Create, OperationState

pytestmark = pytest.mark.servers


def test_a_clean_group_has_no_findings(cluster: Cluster, session: ZookeeperSession) -> None:
    since = SystemClock().now_ms() + 60_000  # its offsets are older than that, but it has a member
    assert found(session, unused_since_ms=since) == []


def plant_owners(cluster: Cluster, other: KazooClient) -> None:
    """Groups with a fault of their owners each. ``other`` is the client of another process."""
    cluster.group("lazy", owned=1)
    cluster.topic("invoices", 2)
    cluster.group("filtering", topics="ord.*,inv.*", pattern="white_list")
    cluster.group("others", topics="inv.*,clicks", pattern="black_list")
    cluster.create("/consumers/stopped/offsets/orders/0", "50")
    cluster.create("/consumers/stopped/ids")
    cluster.own("stuck", 2, f"{cluster.group('stuck', owned=2)}-0", ephemeral=False)
    twice = f"{cluster.group('twice', owned=2)}-0"
    other.create(f"{cluster.chroot}/consumers/twice/owners/orders/2", twice.encode(), ephemeral=True)
    cluster.group("ghost", owned=2)
    cluster.own("ghost", 2, "ghost_db-9-1700000000999-ffffffff-0")
    cluster.group("mixed", owned=1)
    cluster.own("mixed", 1, f"{CLEAN}_db-1-1700000000123-1a2b3c4d-0")
    cluster.own("mixed", 2, f"{CLEAN}_db-7-1700000000777-77777777-0")
    # Group names may contain the separator of member ids: a_b_c is a member of a_b or of a.
    inner = cluster.group("a_b")
    cluster.group("a", owned=2)
    cluster.own("a", 2, f"{inner}-0")
    cluster.create("/brokers/topics/clicks/1", "2")
    member = "old_db-1-1700000000123-1a2b3c4d"  # of Kafka 0.7
    cluster.create(f"/consumers/old/ids/{member}", '{"clicks": 1}', ephemeral=True)
    cluster.create("/consumers/old/owners/clicks/1-0", f"{member}-0", ephemeral=True)
    cluster.create("/consumers/old/offsets/clicks/1-0", "123456")
    cluster.create("/consumers/old/offsets/clicks/2-0", "99")


def test_each_fault_of_owners_is_found_in_its_group_alone(cluster, session, clients) -> None:
    plant_owners(cluster, clients[1])
    sessions = [client.client_id[0] for client in clients]
    findings = found(session)
    assert [(one.group, one.code, one.topic, tuple(map(str, one.partitions))) for one in findings] == [
        ("a", "owner-of-other-group", "orders", ("2",)),
        ("filtering", "no-owner", "invoices", ("0", "1")),
        ("ghost", "owner-not-member", "orders", ("2",)),
        ("lazy", "no-owner", "orders", ("1", "2")),
        ("mixed", "owner-of-other-group", "orders", ("1",)),
        ("mixed", "owner-of-other-group", "orders", ("2",)),
        ("old", "no-owner", "clicks", ("1-1",)),
        ("old", "offsets-partition-gone", "clicks", ("2-0",)),
        ("stuck", "owner-persistent", "orders", ("2",)),
        ("twice", "owner-session", "orders", ("2",)),
    ]
    sentences = [
        "which is a live member of group a_b",
        "partitions 0-1 of topic invoices have no owner",
        "names ghost_db-9-1700000000999-ffffffff, which is not a live member, as the owner of orders-2",
        "/consumers/lazy/owners/orders: partitions 1-2 of topic orders have no owner, "
        "though 1 live member subscribes to it: they are not consumed",
        "which is a live member of group clean",
        "which is named like a member of group clean",
        "partition 1-1 of topic clicks has no owner",
        "holds offsets of partition 2-0 of topic clicks",
        "/consumers/stuck/owners/orders/2 is persistent: it outlives its consumer, and no other consumer can own "
        "partition orders-2",
        f"belongs to session {sessions[1]:#x}, but twice_db-1-1700000000123-1a2b3c4d is registered by {sessions[0]:#x}",
    ]
    assert [text for text, one in zip(sentences, findings, strict=True) if text not in one.sentence] == []
    assert {one.severity for one in findings if one.code != "offsets-partition-gone"} == {"error"}
    assert findings[2].todo == "stop the process whose session created the node; that session still exists"


def test_members_that_subscribe_to_missing_topics(cluster: Cluster, session: ZookeeperSession) -> None:
    cluster.group("waiting", topics="ordres", owned=0)
    cluster.group("matching", topics="nothing-.*", pattern="white_list", owned=0)
    cluster.register("odd", "odd_worker", topic="or/ders")
    cluster.register("odd", "odd_other", topic="")
    findings = found(session)
    assert {(one.code, one.severity) for one in findings} == {("subscription-unserved", "warning")}
    assert [(one.group, one.topic) for one in findings] == [
        ("matching", None),
        ("odd", ""),
        ("odd", "or/ders"),
        ("waiting", "ordres"),
    ]
    assert findings[0].sentence.endswith("subscribes by white_list 'nothing-.*', which no topic matches")
    assert findings[3].sentence.endswith("subscribes to topic ordres, which does not exist")
    assert findings[3].path == "/consumers/waiting/ids/waiting_db-1-1700000000123-1a2b3c4d"


def test_a_persistent_member_is_not_known_to_live(cluster: Cluster, session: ZookeeperSession) -> None:
    cluster.register("ghost", "ghost_db-9", ephemeral=False)
    cluster.group("haunted", owned=2)
    cluster.register("haunted", "haunted_x y", ephemeral=False)
    findings = found(session)
    assert [(finding.group, finding.code, finding.severity, finding.path) for finding in findings] == [
        ("ghost", "member-persistent", "unknown", "/consumers/ghost/ids/ghost_db-9"),
        ("haunted", "member-persistent", "unknown", "/consumers/haunted/ids/haunted_x y"),
        ("haunted", "no-owner", "error", "/consumers/haunted/owners/orders"),
    ]
    assert findings[0].text == "is persistent, which does not show whether its consumer runs, and no commit was seen"
    assert findings[1].todo.endswith(
        f"delete the node: zookeeper-shell.sh {session.connect} delete '/consumers/haunted/ids/haunted_x y'"
    )
    assert "though 1 live member subscribes to it" in findings[2].text
    assert findings[2].todo == "delete the persistent member nodes first: the live members assign partitions to them"


def test_a_subscription_to_partitions_without_a_live_leader(cluster: Cluster, session: ZookeeperSession) -> None:
    """Partition 0 has a live leader, partition 1 has none, and the leader of partition 2 is gone."""
    cluster.create("/brokers/ids/0", "{}", ephemeral=True)
    for partition, leader in enumerate((0, -1, 5)):
        state = {"version": 1, "leader": leader, "leader_epoch": 1, "isr": [0], "controller_epoch": 1}
        cluster.create(f"/brokers/topics/orders/partitions/{partition}/state", json.dumps(state))
    (finding,) = found(session)
    assert (finding.code, finding.topic, finding.partitions) == ("subscription-unserved", "orders", (1, 2))
    assert finding.sentence == (
        "/consumers/clean/ids/clean_db-1-1700000000123-1a2b3c4d subscribes to topic orders, "
        "of which partitions 1-2 have no live leader"
    )


def test_offsets_of_topics_and_partitions_that_are_gone(cluster: Cluster, session: ZookeeperSession) -> None:
    for path in ("gone/0", "gone/1", "orders/3", "orders/7"):
        cluster.create(f"/consumers/{CLEAN}/offsets/{path}", "7")
    topic, partitions = found(session)
    assert (topic.code, topic.topic, topic.partitions) == ("offsets-topic-gone", "gone", (0, 1))
    assert (partitions.code, partitions.topic, partitions.partitions) == ("offsets-partition-gone", "orders", (3, 7))
    assert partitions.sentence == (
        "/consumers/clean/offsets/orders holds offsets of partitions 3,7 of topic orders, which has 3 partitions"
    )


def test_offsets_outside_of_the_log(cluster: Cluster, session: ZookeeperSession) -> None:
    for partition, offset in enumerate((9, 101, 100)):
        cluster.client.set(f"{cluster.chroot}/consumers/{CLEAN}/offsets/orders/{partition}", str(offset).encode())
    below, beyond = found(session)
    assert (below.code, below.partitions, beyond.code, beyond.partitions) == (
        *("offset-out-of-range", (0,)),
        *("offset-out-of-range", (1,)),
    )
    assert "holds offset 9 of orders-0, below the log's start, 10" in below.sentence
    assert "holds offset 101 of orders-1, beyond the log's end, 100" in beyond.sentence
    assert found(session, fetch_log_ranges=None) == []


def test_an_offset_beyond_a_cached_log_range_refreshes_the_range(cluster: Cluster, session: ZookeeperSession) -> None:
    ends = iter((60, 60, 60, 120))

    def growing(partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogRange | OffsetMgrError]:
        return {tp: LogRange(10, next(ends)) for tp in partitions}

    cluster.group("later")
    check = ZookeeperCheck(session, [CLEAN, "later"], SystemClock(), fetch_log_ranges=growing)
    assert [checked.findings for checked in check.run([CLEAN])] == [[]]
    cluster.client.set(f"{cluster.chroot}/consumers/later/offsets/orders/1", b"110")
    assert [checked.findings for checked in check.run(["later"])] == [[]]


def test_an_unknown_log_range_is_a_finding_of_severity_unknown(cluster: Cluster, session: ZookeeperSession) -> None:
    def dead(partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogRange | OffsetMgrError]:
        raise TimedOut("orders", "no answer within the timeout")

    (finding,) = found(session, fetch_log_ranges=dead)
    assert (finding.code, finding.severity, finding.partitions) == ("log-range-unknown", "unknown", (0, 1, 2))
    assert "whose log ranges are unknown: orders: no answer within the timeout" in finding.sentence


def test_groups_unused_since_a_date(cluster: Cluster, session: ZookeeperSession) -> None:
    cluster.create("/consumers/old/offsets/orders/0", "50")
    cluster.create("/consumers/empty")
    later, earlier = (SystemClock().now_ms() + shift for shift in (60_000, -60_000))
    empty, old = found(session, unused_since_ms=later)
    assert [(finding.code, finding.group) for finding in (empty, old)] == [("unused", "empty"), ("unused", "old")]
    assert "/consumers/old has no live member, and its offsets were last written on 2" in old.sentence
    assert "/consumers/empty has no live member, and it has no offsets here, and was created on 2" in empty.sentence
    assert found(session, unused_since_ms=earlier) == []


def test_a_rebalance_that_ends_before_the_second_check_is_no_finding(cluster, session) -> None:
    member = cluster.group("busy", owned=0)
    cluster.group("lazy", owned=1)
    clock = SleepingClock(lambda: [cluster.own("busy", n, f"{member}-0") for n in range(PARTITIONS)])
    checking = ZookeeperCheck(session, ["busy", "lazy"], clock, fetch_log_ranges=None, recheck_after_s=5.0)
    results = {checked.group: checked.findings for checked in checking.run(["busy", CLEAN, "lazy"])}
    assert clock.slept == [5.0]
    assert results["busy"] == results[CLEAN] == []
    assert [(finding.code, finding.partitions) for finding in results["lazy"]] == [("no-owner", (1, 2))]


def test_a_finding_keeps_only_the_partitions_that_both_checks_report(cluster, session) -> None:
    """A finding that no rebalance causes is reported by the second check alone, and a transient one is not."""
    member = cluster.group("busy", owned=1)

    def move() -> None:
        cluster.client.delete(f"{cluster.chroot}/consumers/busy/owners/orders/0")
        cluster.own("busy", 1, f"{member}-0", ephemeral=False)
        cluster.create("/consumers/busy/offsets/gone/0", "7")

    checking = ZookeeperCheck(session, ["busy"], SleepingClock(move), fetch_log_ranges=None, recheck_after_s=1.0)
    (checked,) = checking.run(["busy"])
    assert {(finding.code, finding.partitions) for finding in checked.findings} == {
        ("no-owner", (2,)),
        ("owner-persistent", (1,)),
    }


class SleepingClock(SystemClock):
    """A clock whose sleep takes no time and calls ``meanwhile``."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self.slept: list[float] = []
        self._meanwhile = meanwhile

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._meanwhile()


def test_a_server_without_multi_reads_gives_the_same_findings(zookeeper34: ZooKeeperServer, unique: str) -> None:
    with connected(zookeeper34.connect) as client:
        cluster = Cluster(client, f"/{unique}")
        cluster.group("lazy", owned=1)
        with ZookeeperSession(zookeeper34.connect + cluster.chroot, ConnectionConfig(timeout_ms=20_000)) as session:
            (finding,) = found(session)
    assert (finding.code, finding.group, finding.partitions) == ("no-owner", "lazy", (1, 2))


def test_every_kind_of_unreadable_node_is_a_finding_and_the_rest_is_checked(cluster, session) -> None:
    cluster.group("broken", owned=1)
    cluster.create("/consumers/broken/ids/odd", "{", ephemeral=True)
    cluster.create("/consumers/broken/owners/orders/1", "", ephemeral=True)
    cluster.create("/consumers/broken/offsets/orders/x", "1")
    cluster.client.set(f"{cluster.chroot}/consumers/broken/offsets/orders/2", b"many")
    cluster.create("/brokers/topics/torn", "{")
    cluster.create("/consumers/broken/offsets/torn/0", "1")
    findings = found(session)
    unreadable = {finding.path for finding in findings if finding.code == "unreadable"}
    assert unreadable == {
        "/brokers/topics/torn",
        "/consumers/broken/ids/odd",
        "/consumers/broken/owners/orders/1",
        "/consumers/broken/offsets/orders/x",
        "/consumers/broken/offsets/orders/2",
    }
    (other,) = (finding for finding in findings if finding.code != "unreadable")
    assert (other.code, other.partitions) == ("no-owner", (2,))


def test_every_group_is_checked_even_if_nodes_contain_random_data(cluster: Cluster, session: ZookeeperSession) -> None:
    """200 groups (2,000 in scripts/soak) whose nodes have random names and contain random pieces of valid data."""
    seed = int(os.environ.get("OFFSETMGR_SEED", "20261122"))
    chance = random.Random(seed)
    groups = [f"random-{n}" for n in range(2000 if os.environ.get("OFFSETMGR_SOAK") else 200)]
    kinds = ("ids", "owners", "offsets")
    names = ("orders", "0", "1", "7", "1-0", "x", "ö", "a b", "..x", "random-1_h-1700000000000-00000000")
    good = (
        b'{"version":1,"subscription":{"orders":1},"pattern":"static","timestamp":"17"}',
        b'{"version":1,"subscription":{"ord(ers":1},"pattern":"white_list","timestamp":"17"}',
        b"random-1_h-1700000000000-00000000-0",
        b"17",
        b"*1*orders",
        b"\xff\x00",
    )

    def payload() -> bytes:
        data = chance.choice(good)
        return data[: chance.randrange(len(data) + 1)] if chance.random() < 0.5 else data

    created: dict[str, Create] = {}
    for group in groups:
        for _ in range(12):
            depth = chance.randrange(4)
            parts = [group, chance.choice(kinds), chance.choice(names), chance.choice(names)][: depth + 1]
            members = parts[1:2] == ["ids"]
            path = "/consumers"
            for at, part in enumerate(parts[:3] if members else parts):
                path = f"{path}/{part}"
                registered = members and at == 2 and chance.random() < 0.8  # else it is persistent
                created.setdefault(path, Create(path, payload(), ephemeral=registered))
    nodes = list(created.values())
    for at in range(0, len(nodes), 400):
        assert session.transaction(nodes[at : at + 400]).state is OperationState.COMMITTED
    known = session.children("/consumers") or []
    checked = list(
        ZookeeperCheck(session, known, SystemClock(), fetch_log_ranges=ranges, unused_since_ms=1).run(groups)
    )
    assert [one.group for one in checked] == groups, f"seed {seed}"
    codes = {finding.code for one in checked for finding in one.findings}
    assert codes >= {"unreadable", "member-persistent", "owner-persistent", "owner-of-other-group", "no-owner"}
    assert "offsets-topic-gone" in codes
    assert all(finding.sentence.startswith(f"/consumers/{one.group}") for one in checked for finding in one.findings)


@pytest.mark.parametrize("hidden", ["", "/ids", "/owners", "/owners/orders", "/offsets", "/offsets/orders"])
def test_nodes_without_read_permission_are_findings_and_cause_no_others(cluster, session, hidden: str) -> None:
    cluster.group("secret", owned=1 if hidden.startswith("/owners") else PARTITIONS)
    path = f"/consumers/secret{hidden}"
    cluster.client.set_acls(cluster.chroot + path, [make_digest_acl("u", "p", all=True)])
    findings = found(session, unused_since_ms=SystemClock().now_ms() + 60_000)
    assert {(finding.code, finding.path) for finding in findings} == {("unreadable", path)}
