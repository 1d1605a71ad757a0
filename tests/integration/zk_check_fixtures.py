"""The fixtures of tests that check a cluster: each has its own chroot on a real ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from checked_cluster import Cluster
from kazoo.client import KazooClient
from kazoo_client import connected

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.sandbox import ZooKeeperServer
from offsetmgr.zookeeper.client.session import ZookeeperSession


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
