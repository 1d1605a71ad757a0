"""Reads groups from all configured stores in bulk, and locates them (`group_location`).

The number of requests depends on the number of stores and of batches, not on the number of groups. Writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from offsetmgr.core.errors import OffsetMgrError, UsageError
from offsetmgr.core.model import GroupDescription, GroupMember, LogRange, TopicPartition
from offsetmgr.core.offset_store import GroupOffsets, OffsetStore
from offsetmgr.groups.describe import DescribeGroups
from offsetmgr.migration.group_location import GroupLocation, GroupSample, StoreSample, locate

if TYPE_CHECKING:
    from offsetmgr.kafka.cluster.base import Cluster

BATCH_GROUPS: Final = 500


@dataclass(frozen=True, slots=True)
class ConfiguredStore:
    """One store that the settings name. ``name`` is zookeeper, kafka or manager; ``describe`` returns the members of
    groups in this store."""

    name: str
    store: OffsetStore
    describe: DescribeGroups


class GroupLocator:
    """Locates groups in ``stores``, which are in the order ZooKeeper, Kafka, manager. Without a ``cluster`` the lag is
    unknown."""

    def __init__(self, stores: Sequence[ConfiguredStore], cluster: Cluster | None) -> None:
        self.stores = tuple(stores)
        self._cluster = cluster

    def groups(self) -> tuple[set[str], list[OffsetMgrError]]:
        """Returns the groups of all stores, and the errors of the stores whose groups could not be listed."""
        found: set[str] = set()
        errors: list[OffsetMgrError] = []
        for one in self.stores:
            try:
                found.update(one.store.groups())
            except OffsetMgrError as error:
                errors.append(error)
        return found, errors

    def locate(self, groups: Iterable[str]) -> Iterator[GroupLocation]:
        """Yields the location of each group, in the order of ``groups``."""
        remaining = iter(groups)
        while names := list(islice(remaining, BATCH_GROUPS)):
            samples = [self._read(one, names) for one in self.stores]  # in this order: ZooKeeper before Kafka
            logs = self._logs({tp for store in samples for found in store.values() for tp in found.offsets})
            for name in names:
                yield locate(GroupSample(name, tuple(store[name] for store in samples), logs))

    def _read(self, one: ConfiguredStore, names: list[str]) -> Mapping[str, StoreSample]:
        offsets = scan_tolerantly(one.store, names)
        members = _describe(one.describe, names)
        samples = {}
        for name in names:
            found, described = offsets[name], members[name]
            samples[name] = StoreSample(
                one.name,
                one.store.uri,
                {**found.offsets, **found.errors},
                () if isinstance(described, OffsetMgrError) else _live(described),
                found.error,
                described if isinstance(described, OffsetMgrError) else None,
            )
        return samples

    def _logs(self, partitions: set[TopicPartition]) -> Mapping[TopicPartition, LogRange | OffsetMgrError]:
        numbered = sorted(tp for tp in partitions if type(tp.partition) is int)
        if self._cluster is None or not numbered:
            return {}
        try:
            return self._cluster.log_ranges(numbered)
        except OffsetMgrError as error:
            return dict.fromkeys(numbered, error)


def scan_tolerantly(store: OffsetStore, names: list[str]) -> Mapping[str, GroupOffsets]:
    """Scans groups. An error of the whole store is the error of each group. A group whose name the store cannot contain
    has no offsets in the store."""
    try:
        found = {one.group: one for one in store.scan(names)}
    except OffsetMgrError as error:
        return {name: GroupOffsets(name, {}, error=error) for name in names}
    return {
        name: GroupOffsets(name, {}) if isinstance(one.error, UsageError) else one
        for name, one in ((name, found[name]) for name in names)
    }


def _describe(describe: DescribeGroups, names: list[str]) -> Mapping[str, GroupDescription | OffsetMgrError]:
    try:
        return describe(names)
    except OffsetMgrError as error:
        return dict.fromkeys(names, error)


def _live(described: GroupDescription) -> tuple[GroupMember, ...]:
    """Returns the members, without processes of offsetmgr that hold the group lock."""
    return () if described.lock_ends_s else described.members
