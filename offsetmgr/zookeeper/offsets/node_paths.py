"""Encodes and caches the paths of the nodes that bulk edits change."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import MAX_OFFSET, Absent, TopicPartition
from offsetmgr.core.offset_store import Change, GroupEdit
from offsetmgr.zookeeper.client import jute
from offsetmgr.zookeeper.offsets.layouts import Layout

ChangeRow: TypeAlias = tuple[int, TopicPartition, Any, bytes]
"""A change that may be a simple update (see `bulk_edits`): the edit's index, the partition, the `Change`, and the
node's path as `jute.ustring`. The `Change` is declared as Any, because its type does not express that the new offset is
present and that the node is not expected to be absent."""
_MAX_CACHED_PATHS: Final = 100_000


class NodePaths:
    """The encoded paths of nodes. The part of a path below the offsets' root is cached for each partition, because
    groups share topics."""

    def __init__(self, chroot: str, layout: Layout) -> None:
        self._chroot = chroot
        self._layout = layout
        self._tails: dict[TopicPartition, bytes] = {}

    def classify(
        self, index: int, edit: GroupEdit, rows: list[ChangeRow], others: list[tuple[int, TopicPartition, Change]]
    ) -> None:
        """Adds each change of an edit to ``rows`` if the change may be a simple update, and to ``others`` if not."""
        try:
            root = self._layout.offsets_root(edit.group)
        except OffsetMgrError:  # `EditBatch` reports the error for each partition
            others += [(index, partition, change) for partition, change in edit.changes.items()]
            return
        tails_by_partition, ustring, raw = self._tails, jute.ustring, self._encoded_root(root)
        for partition, change in edit.changes.items():
            after, expected = change[:2]
            tail = None
            if after is not None and expected.__class__ is not Absent and 0 <= after[0] <= MAX_OFFSET:
                tail = tails_by_partition.get(partition) or self._add_tail(edit.group, root, partition)
            if tail is None:
                others.append((index, partition, change))
            else:
                rows.append((index, partition, change, ustring(raw + tail)))

    def directories(self, edit: GroupEdit) -> list[bytes]:
        """Returns the parents of an edit's nodes, each encoded by `jute.ustring`. If a node cannot exist in ZooKeeper,
        the result omits its parent."""
        try:
            root = self._layout.offsets_root(edit.group)
        except OffsetMgrError:
            return []
        one_of_each = {partition[0]: partition for partition in edit.changes}.values()
        tails = [self._tails.get(partition) or self._add_tail(edit.group, root, partition) for partition in one_of_each]
        raw = self._encoded_root(root)
        return [jute.ustring(raw + tail.rpartition(b"/")[0]) for tail in tails if tail is not None]

    def _encoded_root(self, root: str) -> bytes:
        return (self._chroot + root).encode()

    def _add_tail(self, group: str, root: str, partition: TopicPartition) -> bytes | None:
        """Computes and caches a partition's path below the offsets' root. Returns None if the node cannot exist in
        ZooKeeper."""
        try:
            path = self._layout.path(group, partition)
        except OffsetMgrError:
            return None
        if len(self._tails) >= _MAX_CACHED_PATHS:
            self._tails.clear()
        tail = self._tails[partition] = path.removeprefix(root).encode()
        return tail
