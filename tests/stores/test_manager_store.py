"""The store contract over the wire: an offset manager on a real broker, and listeners in front of other stores."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

pytest.register_assert_rewrite("offsetmgr.testing")

from backend_listeners import ManagerListener, StoreListener  # noqa: E402

from offsetmgr.app.offset_admin import OffsetAdmin  # noqa: E402
from offsetmgr.config.connection import ConnectionConfig  # noqa: E402
from offsetmgr.core.offset_store import OffsetStore  # noqa: E402
from offsetmgr.testing.memory import MemoryStore  # noqa: E402
from offsetmgr.testing.store_contract import StoreContract  # noqa: E402

if TYPE_CHECKING:
    from offsetmgr.sandbox import KafkaBroker

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
