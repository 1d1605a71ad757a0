"""Nodes of a cluster, written as brokers and consumers do, the findings of a check, and the fixtures of such tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo_client import connected

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.clock import SystemClock
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import LogRange, TopicPartition
from offsetmgr.sandbox import ZooKeeperServer
from offsetmgr.zookeeper.check.zookeeper_check import ZookeeperCheck
from offsetmgr.zookeeper.client.session import ZookeeperSession

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


def ranges(partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogRange | OffsetMgrError]:
    """The log ranges of a cluster in which every log has the offsets 10 to 100."""
    return {tp: LogRange(10, 100) for tp in partitions}


def found(
    session: ZookeeperSession,
    *,
    fetch_log_ranges: Callable[[Collection[TopicPartition]], Any] | None = ranges,
    unused_since_ms: int | None = None,
    recheck_after_s: float = 0.0,
) -> list[Any]:
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
