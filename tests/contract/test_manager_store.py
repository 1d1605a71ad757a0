"""The store contract over the wire: an offset manager on a real broker, and listeners in front of other stores."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

pytest.register_assert_rewrite("offsetmgr.testing")

from backend_listeners import ManagerListener, StoreListener  # noqa: E402

from offsetmgr.config.connection import ConnectionConfig  # noqa: E402
from offsetmgr.stores.manager import ManagerStore  # noqa: E402
from offsetmgr.testing.memory import MemoryStore  # noqa: E402
from offsetmgr.testing.store_contract import StoreContract  # noqa: E402

if TYPE_CHECKING:
    from offsetmgr.sandbox import KafkaBroker

CONFIG = ConnectionConfig(timeout_ms=20_000)


@pytest.fixture(scope="module")
def manager(kafka: KafkaBroker) -> Iterator[ManagerListener]:
    with ManagerListener(kafka.bootstrap, f"offsets-{uuid.uuid4().hex[:8]}") as listener:
        yield listener


class TestListenerBeforeAStoreThatCompares(StoreContract):
    @pytest.fixture
    def store(self) -> Iterator[ManagerStore]:
        with StoreListener(MemoryStore()) as listener, ManagerStore(listener.bootstrap, CONFIG) as store:
            assert store.capabilities.conditional == "version"
            yield store


class TestListenerBeforeAStoreThatDoesNotCompare(StoreContract):
    """Like Kafka behind the listener: the client compares offsets just before the write."""

    @pytest.fixture
    def store(self) -> Iterator[ManagerStore]:
        with (
            StoreListener(MemoryStore(conditional="group-lock")) as listener,
            ManagerStore(listener.bootstrap, CONFIG) as store,
        ):
            assert store.capabilities.conditional == "none"
            yield store


@pytest.mark.servers
class TestOffsetManager(StoreContract):
    """A whole offset manager on the shared broker. Topics need not exist, because the manager does not check them."""

    @pytest.fixture
    def store(self, manager: ManagerListener) -> Iterator[ManagerStore]:
        with ManagerStore(manager.bootstrap, CONFIG) as store:
            assert store.capabilities.conditional == "version"
            yield store
