"""A fixture: a snapshot file with the offsets of two groups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from offsetmgr.core.model import OffsetAndMetadata, TopicPartition
from offsetmgr.stores.snapshot import SnapshotStore

T0, T1 = (TopicPartition("t", n) for n in range(2))


@pytest.fixture
def saved(tmp_path: Path) -> Iterator[SnapshotStore]:
    """A snapshot file with group a (t-0 at 10, t-1 at 20 with metadata) and group b (t-0 at 5)."""
    with SnapshotStore(tmp_path / "store.avro") as opened:
        opened.commit("a", {T0: OffsetAndMetadata(10), T1: OffsetAndMetadata(20, "m", 3, 99)})
        opened.commit("b", {T0: OffsetAndMetadata(5)})
        yield opened
