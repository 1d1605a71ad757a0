"""Finds existing topic directories in a layout in which topic directories are optional (see `Layout.topic_directory`).
If a topic's directory exists, it contains the nodes of the topic's partitions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from offsetmgr.core.errors import UsageError, value_of
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.offsets.layouts import Layout


def existing_topic_directories(
    session: ZookeeperSession, layout: Layout, topics: Iterable[tuple[str, str]]
) -> set[str]:
    """Returns the topic directories that exist; ``topics`` are pairs of a group and a topic.

    Sends no request if the layout has no optional directories. Omits topics whose directory cannot exist in ZooKeeper.
    If a directory cannot be read, raises the error.
    """
    if not layout.topic_in_data:
        return set()
    directories: dict[str, None] = {}
    for group, topic in topics:
        with contextlib.suppress(UsageError):  # `Layout.path` reports the error for the partition
            if (directory := layout.topic_directory(group, topic)) is not None:
                directories[directory] = None
    nodes = session.get_many(list(directories))
    return {directory for directory, node in zip(directories, nodes, strict=True) if value_of(node) is not None}
