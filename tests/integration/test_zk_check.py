"""The findings of ``zk check``, each alone on a real ZooKeeper, alongside a clean group without findings."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection

import pytest
from checked_cluster import CLEAN, PARTITIONS, Cluster, found
from kazoo.client import KazooClient
from kazoo_client import connected

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import OffsetMgrError, TimedOut
from offsetmgr.core.model import LogRange, TopicPartition
from offsetmgr.sandbox import ZooKeeperServer
from offsetmgr.zookeeper.check.zookeeper_check import ZookeeperCheck
from offsetmgr.zookeeper.client.session import ZookeeperSession

pytest_plugins = ["zk_check_fixtures"]


pytestmark = pytest.mark.servers


def test_a_clean_group_has_no_findings(cluster: Cluster, session: ZookeeperSession) -> None:
    since = SystemClock().now_ms() + 60_000  # its offsets are older than that, but it has a member

    assert found(session, unused_since_ms=since) == []


def test_partitions_without_an_owner(cluster: Cluster, session: ZookeeperSession) -> None:
    cluster.group("lazy", owned=1)

    (finding,) = found(session)

    assert (finding.code, finding.severity, finding.group) == ("no-owner", "error", "lazy")
    assert (finding.topic, finding.partitions) == ("orders", (1, 2))
    assert finding.sentence == (
        "/consumers/lazy/owners/orders: partitions 1-2 of topic orders have no owner, "
        "though 1 live member subscribes to it: they are not consumed"
    )


def test_partitions_without_an_owner_of_a_topic_that_a_pattern_selects(
    cluster: Cluster, session: ZookeeperSession
) -> None:
    cluster.topic("invoices", 2)
    cluster.group("filtering", topics="ord.*,inv.*", pattern="white_list")
    cluster.group("others", topics="inv.*", pattern="black_list")

    (finding,) = found(session)

    assert (finding.code, finding.group, finding.topic) == ("no-owner", "filtering", "invoices")
    assert finding.partitions == (0, 1)


def test_partitions_of_a_group_that_is_stopped_need_no_owner(cluster: Cluster, session: ZookeeperSession) -> None:
    cluster.create("/consumers/stopped/offsets/orders/0", "50")
    cluster.create("/consumers/stopped/ids")

    assert found(session) == []


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


def test_a_persistent_owner(cluster: Cluster, session: ZookeeperSession) -> None:
    member = cluster.group("stuck", owned=2)
    path = cluster.own("stuck", 2, f"{member}-0", ephemeral=False)

    (finding,) = found(session)

    assert (finding.code, finding.path, finding.partitions) == ("owner-persistent", path, (2,))
    assert (
        "is persistent: it outlives its consumer, and no other consumer can own partition orders-2" in finding.sentence
    )


def test_an_owner_of_another_session_than_its_members(
    cluster: Cluster, session: ZookeeperSession, clients: list[KazooClient]
) -> None:
    member = cluster.group("twice", owned=2)
    path = f"{cluster.chroot}/consumers/twice/owners/orders/2"
    clients[1].create(path, f"{member}-0".encode(), ephemeral=True)

    (finding,) = found(session)

    assert (finding.code, finding.path) == ("owner-session", "/consumers/twice/owners/orders/2")
    old, new = clients[1].client_id[0], clients[0].client_id[0]
    assert f"belongs to session {old:#x}, but {member} is registered by {new:#x}" in finding.sentence


def test_an_owner_that_is_no_member(cluster: Cluster, session: ZookeeperSession) -> None:
    cluster.group("ghost", owned=2)
    path = cluster.own("ghost", 2, "ghost_db-9-1700000000999-ffffffff-0")

    (finding,) = found(session)

    assert (finding.code, finding.path) == ("owner-not-member", path)
    assert (
        "names ghost_db-9-1700000000999-ffffffff, which is not a live member, as the owner of orders-2"
        in finding.sentence
    )
    assert finding.todo == "stop the process whose session created the node; that session still exists"


def test_an_owner_that_is_a_member_of_another_group(cluster: Cluster, session: ZookeeperSession) -> None:
    cluster.group("mixed", owned=1)
    # one is registered there; the other is only named like a member of that group
    cluster.own("mixed", 1, f"{CLEAN}_db-1-1700000000123-1a2b3c4d-0")
    cluster.own("mixed", 2, f"{CLEAN}_db-7-1700000000777-77777777-0")

    live, by_name = found(session)

    assert (live.code, live.partitions, by_name.code, by_name.partitions) == (
        *("owner-of-other-group", (1,)),
        *("owner-of-other-group", (2,)),
    )
    assert "which is a live member of group clean" in live.sentence
    assert "which is named like a member of group clean" in by_name.sentence


def test_an_ambiguous_member_id_belongs_to_the_group_where_it_is_registered(
    cluster: Cluster, session: ZookeeperSession
) -> None:
    """Group names may contain the separator of member ids: a_b_c is a member of a_b or of a."""
    inner = cluster.group("a_b")
    cluster.group("a", owned=2)
    cluster.own("a", 2, f"{inner}-0")

    (finding,) = found(session)

    assert (finding.code, finding.group) == ("owner-of-other-group", "a")
    assert "which is a live member of group a_b" in finding.sentence


def test_members_that_subscribe_to_missing_topics(cluster: Cluster, session: ZookeeperSession) -> None:
    cluster.group("waiting", topics="ordres", owned=0)
    cluster.group("matching", topics="nothing-.*", pattern="white_list", owned=0)

    matching, waiting = found(session)

    assert {finding.code for finding in (matching, waiting)} == {"subscription-unserved"}
    assert waiting.path == "/consumers/waiting/ids/waiting_db-1-1700000000123-1a2b3c4d"
    assert waiting.sentence.endswith("subscribes to topic ordres, which does not exist")
    assert matching.sentence.endswith("subscribes by white_list 'nothing-.*', which no topic matches")


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


def test_a_subscription_to_an_invalid_topic_name_is_unserved(cluster: Cluster, session: ZookeeperSession) -> None:
    cluster.register("odd", "odd_worker", topic="or/ders")
    cluster.register("odd", "odd_other", topic="")

    findings = found(session)

    assert [(finding.code, finding.topic) for finding in findings] == [
        ("subscription-unserved", ""),
        ("subscription-unserved", "or/ders"),
    ]


def test_a_rebalance_that_ends_before_the_second_check_is_no_finding(
    cluster: Cluster, session: ZookeeperSession
) -> None:
    member = cluster.group("busy", owned=0)
    cluster.group("lazy", owned=1)
    clock = SleepingClock(lambda: [cluster.own("busy", n, f"{member}-0") for n in range(PARTITIONS)])
    checking = ZookeeperCheck(session, ["busy", "lazy"], clock, fetch_log_ranges=None, recheck_after_s=5.0)

    results = {checked.group: checked.findings for checked in checking.run(["busy", CLEAN, "lazy"])}

    assert clock.slept == [5.0]
    assert results["busy"] == results[CLEAN] == []
    assert [(finding.code, finding.partitions) for finding in results["lazy"]] == [("no-owner", (1, 2))]


def test_a_finding_keeps_only_the_partitions_that_both_checks_report(
    cluster: Cluster, session: ZookeeperSession
) -> None:
    member = cluster.group("busy", owned=1)

    def move() -> None:
        cluster.client.delete(f"{cluster.chroot}/consumers/busy/owners/orders/0")
        cluster.own("busy", 1, f"{member}-0")

    checking = ZookeeperCheck(session, ["busy"], SleepingClock(move), fetch_log_ranges=None, recheck_after_s=1.0)

    (checked,) = checking.run(["busy"])

    assert [finding.partitions for finding in checked.findings] == [(2,)]


class SleepingClock(SystemClock):
    """A clock whose sleep takes no time and calls ``meanwhile``."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self.slept: list[float] = []
        self._meanwhile = meanwhile

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._meanwhile()


def test_a_group_of_kafka_0_7_is_checked_by_broker_and_partition(cluster: Cluster, session: ZookeeperSession) -> None:
    cluster.create("/brokers/topics/clicks/1", "2")
    member = "old_db-1-1700000000123-1a2b3c4d"
    cluster.create(f"/consumers/old/ids/{member}", '{"clicks": 1}', ephemeral=True)
    cluster.create("/consumers/old/owners/clicks/1-0", f"{member}-0", ephemeral=True)
    cluster.create("/consumers/old/offsets/clicks/1-0", "123456")
    cluster.create("/consumers/old/offsets/clicks/2-0", "99")

    findings = found(session)

    assert [(finding.code, finding.group) for finding in findings] == [
        ("no-owner", "old"),
        ("offsets-partition-gone", "old"),
    ]
    assert "partition 1-1 of topic clicks has no owner" in findings[0].sentence
    assert "holds offsets of partition 2-0 of topic clicks" in findings[1].sentence


def test_a_server_without_multi_reads_gives_the_same_findings(zookeeper34: ZooKeeperServer, unique: str) -> None:
    with connected(zookeeper34.connect) as client:
        cluster = Cluster(client, f"/{unique}")
        cluster.group("lazy", owned=1)
        with ZookeeperSession(zookeeper34.connect + cluster.chroot, ConnectionConfig(timeout_ms=20_000)) as session:
            (finding,) = found(session)

    assert (finding.code, finding.group, finding.partitions) == ("no-owner", "lazy", (1, 2))
