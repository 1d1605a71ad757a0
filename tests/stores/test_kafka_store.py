"""The store contract on real brokers of the current releases."""

from collections.abc import Iterator

import pytest
from conftest import MakeTopic

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.sandbox import KafkaBroker, KraftBroker
from offsetmgr.stores.kafka import KafkaStore
from offsetmgr.testing.store_contract import StoreContract

pytestmark = pytest.mark.servers


class TestKafka(StoreContract):
    """The contract with real topics, because Kafka accepts commits only for topics that exist."""

    @pytest.fixture
    def bootstrap(self, current_broker: KafkaBroker | KraftBroker) -> str:
        return current_broker.bootstrap

    @pytest.fixture(autouse=True)
    def _topics(self, bootstrap: str, make_topic: MakeTopic) -> None:
        self.bootstrap_servers, self.make_topic = bootstrap, make_topic

    @pytest.fixture
    def store(self, bootstrap: str) -> Iterator[KafkaStore]:
        with KafkaStore(bootstrap, ConnectionConfig(timeout_ms=20_000)) as store:
            yield store

    def ensure_topic(self, topic: str, partitions: int) -> None:
        self.make_topic(topic, partitions, bootstrap=self.bootstrap_servers)
