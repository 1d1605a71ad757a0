"""The store contract of `DualStore`, over three pairs of stores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from conftest import MakeTopic

from offsetmgr import ConnectionConfig, OffsetAndMetadata, TopicPartition, open_store
from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer
from offsetmgr.testing.store_contract import StoreContract


def pair(primary: str, secondary: str) -> OffsetStore:
    uri = f"dual:?primary={quote(primary, safe='')}&secondary={quote(secondary, safe='')}"
    return open_store(uri, ConnectionConfig(timeout_ms=20_000))


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
