"""``zk check`` of nodes that it cannot read or decode: each is a finding, and hides no other finding."""

from __future__ import annotations

import os
import random

import pytest
from checked_cluster import PARTITIONS, Cluster, found, ranges
from kazoo.security import make_digest_acl

from offsetmgr.core.clock import SystemClock
from offsetmgr.zookeeper.check.zookeeper_check import ZookeeperCheck
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.transactions import Create, OperationState

pytest_plugins = ["zk_check_fixtures"]


pytestmark = pytest.mark.servers


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
