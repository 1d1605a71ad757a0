"""Fixtures: a store on the ZooKeeper of all tests, another client of it, a server of one test, and a `CuttingProxy`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cutting_proxy import CuttingProxy
from kazoo.client import KazooClient
from kazoo_client import connected

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.sandbox import ZooKeeperServer
from offsetmgr.stores.zookeeper import ZookeeperStore


@pytest.fixture
def zk_store(zookeeper: ZooKeeperServer) -> Iterator[ZookeeperStore]:
    with ZookeeperStore(zookeeper.connect, config=ConnectionConfig(timeout_ms=20_000)) as store:
        yield store


@pytest.fixture
def kazoo(zookeeper: ZooKeeperServer) -> Iterator[KazooClient]:
    """Another client, which writes arbitrary data."""
    with connected(zookeeper.connect) as client:
        yield client


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path / "own") as server:
        yield server


@pytest.fixture
def proxy(zookeeper: ZooKeeperServer) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(zookeeper.connect)
    yield proxy
    proxy.close()


@pytest.fixture
def through_proxy(proxy: CuttingProxy) -> Iterator[ZookeeperStore]:
    with ZookeeperStore(proxy.connect, config=ConnectionConfig(timeout_ms=20_000)) as store:
        yield store
