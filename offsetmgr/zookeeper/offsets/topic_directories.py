"""Topics' directories in a layout that leaves a choice: whether partitions lie in a directory of their topic or not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from offsetmgr.core.errors import OffsetMgrError, UsageError
from offsetmgr.core.model import TopicPartition
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.offsets.layouts import Layout


def existing_topic_directories(
    session: ZookeeperSession, layout: Layout, topics: Iterable[tuple[str, str]]
) -> set[str]:
    """The existing ones of these topics' directories (given with their groups), in a layout that leaves a choice.
    Impossible names are left out; raises if a directory cannot be read."""
    wanted: dict[str, None] = {}
    for group, topic in topics:
        with contextlib.suppress(UsageError):  # `Layout.path` reports it for the partition
            if (directory := layout.topic_directory(group, topic)) is not None:
                wanted[directory] = None
    found: set[str] = set()
    for directory, node in zip(wanted, session.get_many(list(wanted)), strict=True):
        if isinstance(node, OffsetMgrError):
            raise node
        if node is not None:
            found.add(directory)
    return found


def in_directory(path: str, partition: TopicPartition) -> str:
    """The path of a partition's node under its topic's directory."""
    directory, _, name = path.rpartition("/")
    return f"{directory}/{partition.topic}/{name}"
