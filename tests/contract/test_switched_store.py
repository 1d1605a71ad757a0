"""The store contract of a store whose groups are switched, in storage modes zookeeper and dual."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

pytest.register_assert_rewrite("offsetmgr.testing")

from offsetmgr.config.connection import ConnectionConfig  # noqa: E402
from offsetmgr.core.offset_store import OffsetStore  # noqa: E402
from offsetmgr.stores.uri import open_store  # noqa: E402
from offsetmgr.testing.store_contract import StoreContract  # noqa: E402

if TYPE_CHECKING:
    from conftest import MakeTopic

    from offsetmgr.sandbox import KafkaBroker

pytestmark = pytest.mark.servers


def opened(kafka: KafkaBroker, start: str) -> OffsetStore:
    first, second = quote(f"zookeeper://{kafka.zookeeper}", safe=""), quote(f"kafka://{kafka.bootstrap}", safe="")
    config = ConnectionConfig(timeout_ms=20_000)
    return open_store(f"switched:?zookeeper={first}&kafka={second}&start={start}", config)


@pytest.fixture(scope="module")
def in_zookeeper(kafka: KafkaBroker) -> Iterator[OffsetStore]:
    with opened(kafka, "zookeeper") as store:
        yield store


@pytest.fixture(scope="module")
def in_both(kafka: KafkaBroker) -> Iterator[OffsetStore]:
    with opened(kafka, "dual") as store:
        yield store


class TestSwitchedInModeZookeeper(StoreContract):
    many_groups = 30  # few, because SwitchedStore.edit edits one group after the other

    @pytest.fixture
    def store(self, in_zookeeper: OffsetStore) -> OffsetStore:
        return in_zookeeper


class TestSwitchedInModeDual(StoreContract):
    many_groups = 30

    @pytest.fixture(autouse=True)
    def _topics(self, make_topic: MakeTopic) -> None:
        self.make_topic = make_topic

    def ensure_topic(self, topic: str, partitions: int) -> None:
        self.make_topic(topic, partitions)

    @pytest.fixture
    def store(self, in_both: OffsetStore) -> OffsetStore:
        return in_both
