"""The store contract, held by two stores that stand behind one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("offsetmgr.testing.store_contract")

from offsetmgr.formats.base import SnapshotHeader  # noqa: E402
from offsetmgr.stores.base import OffsetStore  # noqa: E402
from offsetmgr.stores.dual import DualStore  # noqa: E402
from offsetmgr.stores.snapshot import SnapshotStore, write_snapshot  # noqa: E402
from offsetmgr.testing.store_contract import StoreContract  # noqa: E402


def _empty(path: Path) -> SnapshotStore:
    write_snapshot(path, SnapshotHeader.new(), [])
    return SnapshotStore(path)


class TestDualOfTwoLosslessStores(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[OffsetStore]:
        with DualStore(_empty(tmp_path / "first.avro"), _empty(tmp_path / "second.avro")) as store:
            yield store


class TestDualWhoseSecondaryKeepsOffsetsOnly(StoreContract):
    """As Kafka and ZooKeeper are: the secondary has neither metadata nor leader epochs."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[OffsetStore]:
        with DualStore(_empty(tmp_path / "first.avro"), _empty(tmp_path / "second.zk")) as store:
            yield store
