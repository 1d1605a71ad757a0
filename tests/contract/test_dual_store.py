"""The store contract of `DualStore`, over three pairs of stores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.register_assert_rewrite("offsetmgr.testing")

from offsetmgr.config.connection import ConnectionConfig  # noqa: E402
from offsetmgr.core.offset_store import OffsetStore  # noqa: E402
from offsetmgr.snapshots.base import SnapshotHeader  # noqa: E402
from offsetmgr.stores.dual import DualStore  # noqa: E402
from offsetmgr.stores.snapshot import SnapshotStore, write_snapshot  # noqa: E402
from offsetmgr.testing.store_contract import StoreContract  # noqa: E402

if TYPE_CHECKING:
    from conftest import MakeTopic

    from offsetmgr.sandbox import KafkaBroker, ZooKeeperServer


def _empty(path: Path) -> SnapshotStore:
    write_snapshot(path, SnapshotHeader.new(), [])
    return SnapshotStore(path)


class TestDualOfTwoLosslessStores(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[OffsetStore]:
        with DualStore(_empty(tmp_path / "first.avro"), _empty(tmp_path / "second.avro")) as store:
            yield store


class TestDualWhoseSecondaryKeepsOffsetsOnly(StoreContract):
    """Like ZooKeeper behind Kafka, the secondary stores neither metadata nor leader epochs."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[OffsetStore]:
        with DualStore(_empty(tmp_path / "first.avro"), _empty(tmp_path / "second.zk")) as store:
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
        from offsetmgr.stores.kafka import KafkaStore
        from offsetmgr.stores.zookeeper import ZookeeperStore

        config = ConnectionConfig(timeout_ms=20_000)
        primary = KafkaStore(kafka.bootstrap, config)
        with DualStore(primary, ZookeeperStore(f"{zookeeper.connect}/kafka", config=config)) as store:
            yield store
