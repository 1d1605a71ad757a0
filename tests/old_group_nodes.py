"""The members and the owners of partitions of a group of old consumers, as the group's nodes name them."""

from __future__ import annotations

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import TopicPartition
from offsetmgr.zookeeper.client.session import ZookeeperSession


def members(session: ZookeeperSession, group: str) -> list[str]:
    """The ids of the registered members, sorted."""
    return sorted(session.children(f"/consumers/{group}/ids") or [])


def owners(session: ZookeeperSession, group: str) -> dict[TopicPartition, str]:
    """The owner of each owned partition: ``MEMBER-THREAD``. Raises if a node cannot be read."""
    root = f"/consumers/{group}/owners"
    topics = session.children(root) or []
    owned = [TopicPartition(topic, int(n)) for topic in topics for n in session.children(f"{root}/{topic}") or []]
    found: dict[TopicPartition, str] = {}
    for tp, node in zip(owned, session.get_many([f"{root}/{tp.topic}/{tp.partition}" for tp in owned]), strict=True):
        if isinstance(node, OffsetMgrError):
            raise node
        if node is not None:
            found[tp] = node.data.decode()
    return found


def member_of(owner: str) -> str:
    return owner.rpartition("-")[0]
