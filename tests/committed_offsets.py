"""Committed offsets without versions and times."""

from __future__ import annotations

from collections.abc import Mapping

from offsetmgr.core.model import Committed, Offset, TopicPartition
from offsetmgr.core.offset_store import OffsetStore
from offsetmgr.stores.uri import open_store


def offsets(found: Mapping[TopicPartition, Offset]) -> dict[TopicPartition, int]:
    return {tp: one.offset for tp, one in found.items() if isinstance(one, Committed)}


def offsets_of(store: OffsetStore, group: str) -> dict[int, int]:
    """The offsets of a group by the numbers of the partitions."""
    return {tp.partition: offset for tp, offset in offsets(store.fetch(group)).items()}


def committed(uri: str, group: str) -> dict[int, int]:
    with open_store(uri) as store:
        return offsets_of(store, group)
