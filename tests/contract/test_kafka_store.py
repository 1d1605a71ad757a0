"""The store contract on real brokers: 3.9 with ZooKeeper, 4.1 with KRaft."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.stores.kafka import KafkaStore

pytest.register_assert_rewrite("offsetmgr.testing")

from offsetmgr.testing.store_contract import StoreContract  # noqa: E402

if TYPE_CHECKING:
    from conftest import MakeTopic

    from offsetmgr.sandbox import KafkaBroker, KraftBroker

pytestmark = pytest.mark.servers


class KafkaContract(StoreContract):
    """The contract with real topics, because Kafka accepts commits only for topics that exist."""

    @pytest.fixture
    def bootstrap(self) -> str:
        raise NotImplementedError("subclasses choose a broker")

    @pytest.fixture(autouse=True)
    def _topics(self, bootstrap: str, make_topic: MakeTopic) -> None:
        self.bootstrap_servers, self.make_topic = bootstrap, make_topic

    @pytest.fixture
    def store(self, bootstrap: str) -> Iterator[KafkaStore]:
        with KafkaStore(bootstrap, ConnectionConfig(timeout_ms=20_000)) as store:
            yield store

    def ensure_topic(self, topic: str, partitions: int) -> None:
        self.make_topic(topic, partitions, bootstrap=self.bootstrap_servers)


class TestKafka39(KafkaContract):
    @pytest.fixture
    def bootstrap(self, kafka: KafkaBroker) -> str:
        return kafka.bootstrap


class TestKafka41(KafkaContract):
    @pytest.fixture
    def bootstrap(self, kraft: KraftBroker) -> str:
        return kraft.bootstrap
