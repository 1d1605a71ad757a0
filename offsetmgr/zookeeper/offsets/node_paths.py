"""Encoded paths of the nodes that bulk edits change."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import Absent, TopicPartition
from offsetmgr.core.offset_store import Change, GroupEdit
from offsetmgr.zookeeper.client import jute
from offsetmgr.zookeeper.nodes.offset_data import MAX_OFFSET
from offsetmgr.zookeeper.offsets.layouts import Layout

_Row: TypeAlias = tuple[int, TopicPartition, Any, bytes]
"""A change that may be a common one: its edit's index, partition, `Change` (typed Any, because a type cannot express
that it writes and expects a value), and the node's path as `jute.ustring`."""
_NODES_KEPT: Final = 100_000


class _Nodes:
    """Encoded paths of the changes' nodes; cached by partition, because groups share topics."""

    def __init__(self, chroot: str, layout: Layout) -> None:
        self._chroot = chroot
        self._layout = layout
        self._below: dict[TopicPartition, bytes] = {}

    def sort_in(
        self, index: int, edit: GroupEdit, rows: list[_Row], odd: list[tuple[int, TopicPartition, Change]]
    ) -> None:
        """Adds each change of an edit to ``rows`` if it may be a common one, else to ``odd``."""
        try:
            root = self._layout.offsets_root(edit.group)
        except OffsetMgrError:  # each partition gets it as its outcome
            odd += [(index, partition, change) for partition, change in edit.changes.items()]
            return
        below, ustring, raw = self._below, jute.ustring, self._raw(root)
        for partition, change in edit.changes.items():
            after, expected, _ = change
            tail = None
            if after is not None and expected.__class__ is not Absent and 0 <= after[0] <= MAX_OFFSET:
                tail = below.get(partition) or self._learn(edit.group, root, partition)
            if tail is None:
                odd.append((index, partition, change))
            else:
                rows.append((index, partition, change, ustring(raw + tail)))

    def directories(self, edit: GroupEdit) -> list[bytes]:
        """The parents of an edit's nodes, as `jute.ustring`; invalid ones are left out."""
        try:
            root = self._layout.offsets_root(edit.group)
        except OffsetMgrError:
            return []
        one_of_each = {partition[0]: partition for partition in edit.changes}.values()
        tails = [self._below.get(partition) or self._learn(edit.group, root, partition) for partition in one_of_each]
        raw = self._raw(root)
        return [jute.ustring(raw + tail.rpartition(b"/")[0]) for tail in tails if tail is not None]

    def _raw(self, root: str) -> bytes:
        return (self._chroot + root).encode()

    def _learn(self, group: str, root: str, partition: TopicPartition) -> bytes | None:
        """The path below the offsets' root; None if such a node cannot exist."""
        try:
            path = self._layout.path(group, partition)
        except OffsetMgrError:
            return None
        if len(self._below) >= _NODES_KEPT:
            self._below.clear()
        tail = self._below[partition] = path.removeprefix(root).encode()
        return tail
