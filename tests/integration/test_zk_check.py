"""``zk check``: every finding alone on a real ZooKeeper, alongside a clean group without findings.

Each test writes nodes as brokers and consumers do, under its own chroot. The last tests check the nodes of real brokers
and of the real old consumer.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from conftest import MakeTopic
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl
from kazoo_client import connected
from processes import Commands, wait_for

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import OffsetMgrError, TimedOut
from offsetmgr.core.log_range_cache import FetchLogRanges
from offsetmgr.core.model import LogRange, TopicPartition
from offsetmgr.sandbox import KafkaBroker, OldConsumer, ZooKeeperServer
from offsetmgr.zookeeper.check.findings import Finding
from offsetmgr.zookeeper.check.zookeeper_check import ZookeeperCheck
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.transactions import Create, OperationState

pytestmark = pytest.mark.servers

PARTITIONS = 3
CLEAN = "clean"


class Cluster:
    """A chroot with the topic "orders" of three partitions, and the group "clean", whose only member owns them all."""

    def __init__(self, client: KazooClient, chroot: str) -> None:
        self.client = client
        self.chroot = chroot
        self.topic("orders", PARTITIONS)
        self.group(CLEAN)

    def topic(self, name: str, partitions: int) -> None:
        assignment = {str(n): [0] for n in range(partitions)}
        self.create(f"/brokers/topics/{name}", json.dumps({"version": 1, "partitions": assignment}))

    def group(self, group: str, topics: str = "orders", owned: int = PARTITIONS, pattern: str = "static") -> str:
        """A member of the group with one stream, offsets for all of "orders", and the first ``owned`` partitions."""
        member = f"{group}_db-1-1700000000123-1a2b3c4d"
        self.register(group, member, topics, pattern)
        for partition in range(owned):
            self.own(group, partition, f"{member}-0")
        for partition in range(PARTITIONS):
            self.create(f"/consumers/{group}/offsets/orders/{partition}", "50")
        return member

    def register(self, group: str, member: str, topic: str = "orders", pattern: str = "static", **options: Any) -> None:
        node = {"version": 1, "subscription": {topic: 1}, "pattern": pattern, "timestamp": "1700000000123"}
        self.create(f"/consumers/{group}/ids/{member}", json.dumps(node), **{"ephemeral": True, **options})

    def own(self, group: str, partition: int, data: str, **options: Any) -> str:
        path = f"/consumers/{group}/owners/orders/{partition}"
        self.create(path, data, **{"ephemeral": True, **options})
        return path

    def create(self, path: str, data: str = "", **options: Any) -> None:
        self.client.create(self.chroot + path, data.encode(), makepath=True, **options)


@pytest.fixture
def clients(zookeeper: ZooKeeperServer) -> Iterator[list[KazooClient]]:
    """Two sessions, which act as two processes."""
    with connected(zookeeper.connect) as first, connected(zookeeper.connect) as second:
        yield [first, second]


@pytest.fixture
def cluster(clients: list[KazooClient], unique: str) -> Cluster:
    return Cluster(clients[0], f"/{unique}")


@pytest.fixture
def session(zookeeper: ZooKeeperServer, cluster: Cluster) -> Iterator[ZookeeperSession]:
    with ZookeeperSession(zookeeper.connect + cluster.chroot, ConnectionConfig(timeout_ms=20_000)) as session:
        yield session


def ranges(partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogRange | OffsetMgrError]:
    """The log ranges of a cluster in which every log has the offsets 10 to 100."""
    return {tp: LogRange(10, 100) for tp in partitions}


def found(
    session: ZookeeperSession,
    *,
    fetch_log_ranges: FetchLogRanges | None = ranges,
    unused_since_ms: int | None = None,
    recheck_after_s: float = 0.0,
) -> list[Finding]:
    """All findings of all groups. Each group is checked once by default."""
    groups = sorted(session.children("/consumers") or [])
    checking = ZookeeperCheck(
        session,
        groups,
        SystemClock(),
        fetch_log_ranges=fetch_log_ranges,
        unused_since_ms=unused_since_ms,
        recheck_after_s=recheck_after_s,
    )
    return [*checking.cluster_findings, *(finding for checked in checking.run(groups) for finding in checked.findings)]


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


def test_a_persistent_member_is_not_live(cluster: Cluster, session: ZookeeperSession) -> None:
    cluster.register("ghost", "ghost_db-9", ephemeral=False)
    cluster.group("haunted", owned=2)
    cluster.register("haunted", "haunted_x y", ephemeral=False)

    findings = found(session)

    assert [(finding.group, finding.code, finding.severity, finding.path) for finding in findings] == [
        ("ghost", "member-persistent", "error", "/consumers/ghost/ids/ghost_db-9"),
        ("haunted", "member-persistent", "error", "/consumers/haunted/ids/haunted_x y"),
        ("haunted", "no-owner", "error", "/consumers/haunted/owners/orders"),
    ]
    assert findings[0].text == (
        "is persistent: it belongs to no live consumer, and the partitions assigned to it are not consumed"
    )
    assert (
        findings[1].todo == "delete the node: zookeeper-shell.sh ZOOKEEPER delete '/consumers/haunted/ids/haunted_x y'"
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


def test_every_kind_of_unreadable_node_is_a_finding_and_the_rest_is_checked(
    cluster: Cluster, session: ZookeeperSession
) -> None:
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


def test_a_subscription_to_an_invalid_topic_name_is_unserved(cluster: Cluster, session: ZookeeperSession) -> None:
    cluster.register("odd", "odd_worker", topic="or/ders")
    cluster.register("odd", "odd_other", topic="")

    findings = found(session)

    assert [(finding.code, finding.topic) for finding in findings] == [
        ("subscription-unserved", ""),
        ("subscription-unserved", "or/ders"),
    ]


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
def test_nodes_without_read_permission_are_findings_and_cause_no_others(
    cluster: Cluster, session: ZookeeperSession, hidden: str
) -> None:
    cluster.group("secret", owned=1 if hidden.startswith("/owners") else PARTITIONS)
    path = f"/consumers/secret{hidden}"
    cluster.client.set_acls(cluster.chroot + path, [make_digest_acl("u", "p", all=True)])

    findings = found(session, unused_since_ms=SystemClock().now_ms() + 60_000)

    assert {(finding.code, finding.path) for finding in findings} == {("unreadable", path)}


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


def test_the_command_reports_its_findings_and_the_skipped_checks(
    zookeeper: ZooKeeperServer, cluster: Cluster, tmp_path: Path
) -> None:
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
    assert {name: row[name] for name in ("severity", "code", "group", "topic", "partitions", "path")} == {
        "severity": "error",
        "code": "no-owner",
        "group": "lazy",
        "topic": "orders",
        "partitions": "1,2",
        "path": "/consumers/lazy/owners/orders",
    }
    assert "group 'missing': no group in ZooKeeper at" in missing.stderr
    assert "--unused-since: 'soon' is no date or time" in date.stderr


def test_without_broker_nodes_the_command_reports_that_topics_were_not_checked(
    zookeeper: ZooKeeperServer, clients: list[KazooClient], unique: str, tmp_path: Path
) -> None:
    clients[0].create(f"/{unique}/consumers/g/offsets/orders/0", b"1", makepath=True)

    done = Commands(tmp_path).run("zk", "check", "--zookeeper", f"{zookeeper.connect}/{unique}", "--all-groups")

    assert (
        "not checked: owners of all partitions, and whether topics exist (there is no /brokers/topics here)"
        in done.stderr
    )


def test_a_chroot_with_nothing_to_check_is_an_error(
    zookeeper: ZooKeeperServer, clients: list[KazooClient], unique: str, tmp_path: Path
) -> None:
    """The chroot may be missing or misspelt, so a gate must not pass."""
    clients[0].create(f"/{unique}/kafka/consumers", makepath=True)
    commands = Commands(tmp_path)

    wrong = commands.run("zk", "check", "--zookeeper", f"{zookeeper.connect}/{unique}", "--all-groups", code=1)
    empty = commands.run("zk", "check", "--zookeeper", f"{zookeeper.connect}/{unique}/kafka", "--all-groups")

    assert "has neither /consumers nor /brokers, so there is nothing to check" in wrong.stderr
    assert "hint: is the chroot right?" in wrong.stderr
    assert "checked 0 groups: nothing found" in empty.stderr


def test_brokers_that_may_be_of_another_cluster_give_no_clean_result(
    kafka: KafkaBroker, zookeeper: ZooKeeperServer, cluster: Cluster, tmp_path: Path
) -> None:
    done = Commands(tmp_path).run(
        *("zk", "check", "--zookeeper", zookeeper.connect + cluster.chroot, "--group", CLEAN),
        *("--bootstrap-server", kafka.bootstrap, "--settle", "0"),
        code=1,
    )

    assert "not checked: whether brokers and ZooKeeper belong to one cluster (ZooKeeper at" in done.stderr
    assert "has no cluster id)" in done.stderr


def test_the_real_old_consumer_and_broker_are_clean_until_the_topic_is_deleted(
    kafka: KafkaBroker, make_topic: MakeTopic, unique: str, tmp_path: Path
) -> None:
    topic, commands = make_topic(unique, 4), Commands(tmp_path)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(40):
        producer.produce(topic, b"x", partition=number % 4)
    assert producer.flush(30) == 0
    command = ("zk", "check", "--zookeeper", kafka.zookeeper, "--group", unique, "--bootstrap-server", kafka.bootstrap)
    with OldConsumer(
        tmp_path / "consumer", zookeeper=kafka.zookeeper, group=unique, topic=topic, auto_commit_interval_ms=100
    ):
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


def test_brokers_of_another_cluster_are_rejected(
    kafka: KafkaBroker, zookeeper: ZooKeeperServer, cluster: Cluster, tmp_path: Path
) -> None:
    cluster.create("/cluster/id", '{"version":"1","id":"another-cluster"}')

    done = Commands(tmp_path).run(
        *("zk", "check", "--zookeeper", zookeeper.connect + cluster.chroot, "--all-groups"),
        *("--bootstrap-server", kafka.bootstrap),
        code=2,
    )

    assert "ZooKeeper to another-cluster" in done.stderr
