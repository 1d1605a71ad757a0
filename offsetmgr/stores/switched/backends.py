"""The stores behind a `SwitchedStore`: ZooKeeper, Kafka, and the two together."""

from __future__ import annotations

from offsetmgr.core.commit_mode import Phase
from offsetmgr.core.log_origin import Translate
from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.stores.dual import DualStore


class SwitchedPlaces:
    """`offsetmgr.stores.switched.store.Places` of one ZooKeeper and one Kafka store, both closed with it."""

    def __init__(self, zookeeper: OffsetStore, kafka: OffsetStore, translate: Translate | None = None) -> None:
        """``translate``: see `DualStore`."""
        self._dual = DualStore(kafka, zookeeper, translate=translate)
        self._by_mode: dict[Phase, OffsetStore] = {
            Phase.ZOOKEEPER: zookeeper,
            Phase.DUAL: self._dual,
            Phase.KAFKA: kafka,
        }

    def store(self, mode: Phase) -> OffsetStore:
        return self._by_mode[mode]

    def flush(self, group: str) -> bool:
        self._dual.flush()
        return group not in self._dual.pending

    def close(self) -> None:
        self._dual.close()
