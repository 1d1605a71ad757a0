"""The store contract: stores in memory, snapshot files in every format that contains the group names, three pairs of
stores, and ZooKeeper with and without MultiRead and in each layout."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from conftest import MakeTopic
from kazoo_client import connected

from offsetmgr import ConnectionConfig, OffsetAndMetadata, TopicPartition, open_store
from offsetmgr.core.model import BrokerPartition
from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer
from offsetmgr.snapshots.base import SnapshotHeader
from offsetmgr.stores.snapshot import SnapshotStore, write_snapshot
from offsetmgr.stores.zookeeper import ZookeeperStore
from offsetmgr.testing.memory import MemoryStore
from offsetmgr.testing.store_contract import StoreContract

CONFIG = ConnectionConfig(timeout_ms=20_000)


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore()


@pytest.mark.parametrize("suffix", ["avro", "csv", "zk", "json"])
class TestSnapshot(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path, suffix: str) -> Iterator[OffsetStore]:
        path = tmp_path / f"offsets.{suffix}"
        write_snapshot(path, SnapshotHeader.new(), [])
        with SnapshotStore(path) as store:
            yield store


def pair(primary: str, secondary: str) -> OffsetStore:
    uri = f"dual:?primary={quote(primary, safe='')}&secondary={quote(secondary, safe='')}"
    return open_store(uri, CONFIG)


def empty(path: Path) -> str:
    with open_store(f"file:{path}") as store:
        store.commit("g", {TopicPartition("t", 0): OffsetAndMetadata(1)})
        store.delete("g")
    return store.uri


@pytest.mark.parametrize("secondary", ["avro", "zk"])
class TestDualOfFiles(StoreContract):
    """Like ZooKeeper behind Kafka, a secondary in the format zk stores neither metadata nor leader epochs."""

    @pytest.fixture
    def store(self, tmp_path: Path, secondary: str) -> Iterator[OffsetStore]:
        with pair(empty(tmp_path / "first.avro"), empty(tmp_path / f"second.{secondary}")) as store:
            yield store


@pytest.mark.servers
class TestDualOfKafkaAndZookeeper(StoreContract):
    """The pair of stores that old consumers with dual.commit.enabled use."""

    @pytest.fixture(autouse=True)
    def _topics(self, make_topic: MakeTopic) -> None:
        self.make_topic = make_topic

    def ensure_topic(self, topic: str, partitions: int) -> None:
        self.make_topic(topic, partitions)

    @pytest.fixture
    def store(self, kafka: KafkaBroker, zookeeper: ZooKeeperServer) -> Iterator[OffsetStore]:
        with pair(f"kafka://{kafka.bootstrap}", f"zookeeper://{zookeeper.connect}/kafka") as store:
            yield store


@pytest.mark.servers
class TestZookeeperStore(StoreContract):
    @pytest.fixture(params=["zookeeper", "zookeeper34"], ids=["3.8", "3.4 without MultiRead"])
    def store(self, request: pytest.FixtureRequest) -> Iterator[ZookeeperStore]:
        with ZookeeperStore(request.getfixturevalue(request.param).connect, config=CONFIG) as store:
            yield store


@pytest.mark.servers
class TestZookeeperStoreInTheLayoutOfKafka07(StoreContract):
    @pytest.fixture
    def store(self, zookeeper: ZooKeeperServer) -> Iterator[ZookeeperStore]:
        # Under its own root, because other tests scan all groups of the server and cannot read this layout.
        with connected(zookeeper.connect) as client:
            client.ensure_path("/contract-07")
        with ZookeeperStore(f"{zookeeper.connect}/contract-07", layout="0.7", config=CONFIG) as store:
            yield store

    def tp(self, topic: str, number: int) -> TopicPartition:
        return TopicPartition(topic, BrokerPartition(number % 3, number // 3))


@pytest.mark.servers
class TestZookeeperStoreInTheLayoutOfStorm(StoreContract):
    @pytest.fixture
    def store(self, zookeeper: ZooKeeperServer) -> Iterator[ZookeeperStore]:
        with ZookeeperStore(zookeeper.connect, layout="storm", config=CONFIG, root="/contract/spouts") as store:
            yield store
