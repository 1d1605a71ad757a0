"""The store contract of the store in memory, which the tests of other modules use."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("offsetmgr.testing")

from offsetmgr.testing.memory import MemoryStore  # noqa: E402
from offsetmgr.testing.store_contract import StoreContract  # noqa: E402


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore()
