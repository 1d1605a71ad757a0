"""The store contract of snapshot files, in every format that contains the group names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("offsetmgr.testing")

from offsetmgr.core.offset_store import OffsetStore  # noqa: E402
from offsetmgr.snapshots.base import SnapshotHeader  # noqa: E402
from offsetmgr.stores.snapshot import SnapshotStore, write_snapshot  # noqa: E402
from offsetmgr.testing.store_contract import StoreContract  # noqa: E402


def _empty(path: Path) -> SnapshotStore:
    write_snapshot(path, SnapshotHeader.new(), [])
    return SnapshotStore(path)


class TestAvroSnapshot(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[OffsetStore]:
        with _empty(tmp_path / "offsets.avro") as store:
            yield store


class TestCsvSnapshot(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[OffsetStore]:
        with _empty(tmp_path / "offsets.csv") as store:
            yield store


class TestZkExportSnapshot(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[OffsetStore]:
        with _empty(tmp_path / "offsets.zk") as store:
            yield store


class TestJsonSnapshot(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[OffsetStore]:
        with _empty(tmp_path / "offsets.json") as store:
            yield store
