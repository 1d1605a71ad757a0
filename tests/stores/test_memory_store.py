"""The store contract of the store in memory, which the tests of other modules use."""

from __future__ import annotations

import pytest

from offsetmgr.testing.memory import MemoryStore
from offsetmgr.testing.store_contract import StoreContract


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore()
