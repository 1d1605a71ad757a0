"""The store contract of snapshot files, in every format that contains the group names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.snapshots.base import SnapshotHeader
from offsetmgr.stores.snapshot import SnapshotStore, write_snapshot
from offsetmgr.testing.store_contract import StoreContract


@pytest.mark.parametrize("suffix", ["avro", "csv", "zk", "json"])
class TestSnapshot(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path, suffix: str) -> Iterator[OffsetStore]:
        path = tmp_path / f"offsets.{suffix}"
        write_snapshot(path, SnapshotHeader.new(), [])
        with SnapshotStore(path) as store:
            yield store
