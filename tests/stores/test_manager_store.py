"""The store contract over the wire: an offset manager on a real broker, and listeners in front of other stores."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from backend_listeners import ManagerListener, StoreListener

from offsetmgr.app.offset_admin import OffsetAdmin
from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.sandbox import KafkaBroker
from offsetmgr.testing.memory import MemoryStore
from offsetmgr.testing.store_contract import StoreContract

CONFIG = ConnectionConfig(timeout_ms=20_000)


@pytest.fixture(scope="module")
def manager(kafka: KafkaBroker) -> Iterator[ManagerListener]:
    with ManagerListener(kafka.bootstrap, f"offsets-{uuid.uuid4().hex[:8]}") as listener:
        yield listener


@contextmanager
def opened(listener: ManagerListener | StoreListener, conditional: str) -> Iterator[OffsetStore]:
    """The store at a listener, which makes its commits conditional in this way."""
    with OffsetAdmin(f"manager://{listener.bootstrap}", config=CONFIG) as admin:
        assert admin.store.capabilities.conditional == conditional
        yield admin.store


class TestListenerBeforeAStoreThatCompares(StoreContract):
    @pytest.fixture
    def store(self) -> Iterator[OffsetStore]:
        with StoreListener(MemoryStore()) as listener, opened(listener, "version") as store:
            yield store


class TestListenerBeforeAStoreThatDoesNotCompare(StoreContract):
    """Like Kafka behind the listener: the client compares offsets just before the write."""

    @pytest.fixture
    def store(self) -> Iterator[OffsetStore]:
        with StoreListener(MemoryStore(conditional="group-lock")) as listener, opened(listener, "none") as store:
            yield store


@pytest.mark.servers
class TestOffsetManager(StoreContract):
    """A whole offset manager on the shared broker. Topics need not exist, because the manager does not check them."""

    @pytest.fixture
    def store(self, manager: ManagerListener) -> Iterator[OffsetStore]:
        with opened(manager, "version") as store:
            yield store
