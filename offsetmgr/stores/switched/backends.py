"""The stores behind a `SwitchedStore`: ZooKeeper, Kafka, and both with dual commit."""

from __future__ import annotations

from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.core.log_origin import OffsetTranslation
from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.stores.dual import DualStore


class SwitchedBackends:
    """The `offsetmgr.stores.switched.store.StorageBackends` of one ZooKeeper and one Kafka store. `close` closes both
    stores."""

    def __init__(self, zookeeper: OffsetStore, kafka: OffsetStore, translate: OffsetTranslation | None = None) -> None:
        """``translate``: see `DualStore`."""
        self._dual = DualStore(kafka, zookeeper, translate=translate)
        self._by_mode: dict[CommitMode, OffsetStore] = {
            CommitMode.ZOOKEEPER: zookeeper,
            CommitMode.DUAL: self._dual,
            CommitMode.KAFKA: kafka,
        }

    def store(self, mode: CommitMode) -> OffsetStore:
        return self._by_mode[mode]

    def flush(self, group: str) -> bool:
        self._dual.flush()
        return group not in self._dual.pending

    def close(self) -> None:
        self._dual.close()
