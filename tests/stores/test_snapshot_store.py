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


@pytest.mark.parametrize("suffix", ["avro", "csv", "zk", "json"])
class TestSnapshot(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path, suffix: str) -> Iterator[OffsetStore]:
        path = tmp_path / f"offsets.{suffix}"
        write_snapshot(path, SnapshotHeader.new(), [])
        with SnapshotStore(path) as store:
            yield store
