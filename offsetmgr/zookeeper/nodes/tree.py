"""Raw trees of ZooKeeper's nodes, each with its kind and decoded content. Reads only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.zookeeper.client.jute import NodeData
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.nodes.kinds import NodeDescription, shown

NODES_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True)
class TreeNode:
    """One node. ``node`` is None if it is unreadable; ``error`` is then the reason. ``children`` is None if they cannot
    be listed; ``children_error`` is then the reason."""

    path: str
    node: NodeData | None
    children: int | None
    shown: NodeDescription
    error: OffsetMgrError | None = None
    children_error: OffsetMgrError | None = None


def walk(session: ZookeeperSession, path: str, depth: int | None = None) -> Iterator[TreeNode]:
    """Yields the node at ``path`` and all below it (at most ``depth`` levels), each before its children, these by name.

    Reads hundreds of nodes per request and holds little more than these in memory. Yields nothing if the node does not
    exist; nodes deleted meanwhile are left out. Raises if the session fails as a whole.
    """
    return _Walk(session).below([path], depth)


class _Walk:
    def __init__(self, session: ZookeeperSession) -> None:
        self._session = session

    def below(self, paths: list[str], depth: int | None) -> Iterator[TreeNode]:
        """These nodes, each followed by its own tree, in the order of ``paths``."""
        for start in range(0, len(paths), NODES_AT_ONCE):
            chunk = paths[start : start + NODES_AT_ONCE]
            found = self._session.get_many(chunk)
            listed = self._session.children_many(chunk)
            deeper: list[str] = []
            if depth is None or depth > 0:
                for path, names in zip(chunk, listed, strict=True):
                    if isinstance(names, list):
                        deeper += [_child(path, name) for name in sorted(names, key=_order)]
            # One stream for the children of the whole chunk, so that small directories are read together.
            rest = self.below(deeper, None if depth is None else depth - 1) if deeper else iter(())
            waiting = next(rest, None)
            for path, node, names in zip(chunk, found, listed, strict=True):
                if node is not None:
                    yield _tree_node(path, node, names)
                inside = path.rstrip("/") + "/"
                while waiting is not None and waiting.path.startswith(inside):
                    yield waiting
                    waiting = next(rest, None)


def _tree_node(path: str, node: NodeData | OffsetMgrError, names: list[str] | OffsetMgrError | None) -> TreeNode:
    children = len(names) if isinstance(names, list) else None
    children_error = names if isinstance(names, OffsetMgrError) else None
    if isinstance(node, OffsetMgrError):
        return TreeNode(path, None, children, NodeDescription("other"), node, children_error)
    what = shown(path, node.data)
    return TreeNode(path, node, children, what, what.error, children_error)


def _child(path: str, name: str) -> str:
    return f"/{name}" if path == "/" else f"{path}/{name}"


def _order(name: str) -> tuple[bool, int, str]:
    """Numbers by value, before names."""
    number = name.isascii() and name.isdigit() and len(name) <= 18
    return (not number, int(name) if number else 0, name)
