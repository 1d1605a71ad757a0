"""Topics' directories in a layout that leaves a choice: whether partitions lie in one, or beside each other without
any."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from offsetmgr.core.errors import OffsetMgrError, UsageError
from offsetmgr.core.model import TopicPartition
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.offsets.layouts import Layout


def topic_folders(session: ZookeeperSession, layout: Layout, topics: Iterable[tuple[str, str]]) -> set[str]:
    """Those directories of topics (given with their groups) that exist, in a layout that leaves a choice. Impossible
    names are left out; raises where a directory cannot be read."""
    wanted: dict[str, None] = {}
    for group, topic in topics:
        with contextlib.suppress(UsageError):  # said for the partition itself, by `Layout.path`
            if (folder := layout.topic_folder(group, topic)) is not None:
                wanted[folder] = None
    found: set[str] = set()
    for folder, node in zip(wanted, session.get_many(list(wanted)), strict=True):
        if isinstance(node, OffsetMgrError):
            raise node
        if node is not None:
            found.add(folder)
    return found


def in_folder(path: str, partition: TopicPartition) -> str:
    """A partition's node under its topic's directory instead of beside it."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/{partition.topic}/{name}"
