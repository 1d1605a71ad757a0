"""Reads a node and all its descendants, each with its kind and decoded content. Writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from offsetmgr.core.batches import batched
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.zookeeper.client.jute import NodeData
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.nodes.fields import errors_of

if TYPE_CHECKING:
    from offsetmgr.zookeeper.nodes.kinds import NodeDescription

NODES_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True)
class TreeNode:
    """One node, with the number of its children.

    If the node's data cannot be read, ``node`` is None and ``read_error`` is the reason. If the node's children were
    not listed, ``children`` is None; if they cannot be listed, ``children_error`` is the reason.
    """

    path: str
    node: NodeData | None
    children: int | None
    read_error: OffsetMgrError | None = None
    children_error: OffsetMgrError | None = None


class Znode(NamedTuple):
    """A node of the tree with its decoded content."""

    tree: TreeNode
    found: NodeDescription

    @property
    def errors(self) -> tuple[OffsetMgrError, ...]:
        return errors_of(self.tree.read_error or self.found.error, self.tree.children_error)


def walk(session: ZookeeperSession, path: str, depth: int | None = None) -> Iterator[Znode]:
    """Yields the node at ``path`` and its descendants down to ``depth`` levels, decoded. A node precedes its children.

    The children of a node are sorted by name; names that are numbers are sorted by value. The walk reads hundreds of
    nodes per request, and does not keep the whole tree in memory. It yields nothing if the node does not exist, and
    omits nodes that are deleted during the walk. Raises if the session fails.
    """
    from offsetmgr.zookeeper.nodes.kinds import NodeDescription, describe  # most readers of trees do not need it

    for one in TreeReader(session).read([path], depth):
        yield Znode(one, NodeDescription() if one.node is None else describe(one.path, one.node.data))


@dataclass(frozen=True, slots=True)
class TreeReader:
    """Reads trees as `walk` does. The children of a node for which ``leaf`` returns True, by its path and its data or
    error, are not listed, and a node for which ``skip`` returns True is not read."""

    session: ZookeeperSession
    leaf: Callable[[str, NodeData | OffsetMgrError | None], bool] = lambda _path, _node: False
    skip: Callable[[str], bool] = lambda _path: False

    def read(self, paths: list[str], depth: int | None = None) -> Iterator[TreeNode]:
        """Yields these nodes in the order of ``paths``, each followed by its descendants."""
        for chunk in batched(paths, NODES_AT_ONCE):
            found = self.session.get_many(chunk)
            inner = [path for path, node in zip(chunk, found, strict=True) if not self.leaf(path, node)]
            listed = dict(zip(inner, self.session.children_many(inner), strict=True))
            deeper: list[str] = []
            if depth is None or depth > 0:
                for path, names in listed.items():
                    if isinstance(names, list):
                        below = [f"{path.rstrip('/')}/{name}" for name in sorted(names, key=_sort_key)]
                        deeper += [child for child in below if not self.skip(child)]
            # Reads the children of all nodes of the chunk together, so that one request can read the children of
            # several small directories.
            rest = self.read(deeper, None if depth is None else depth - 1) if deeper else iter(())
            waiting = next(rest, None)
            for path, node in zip(chunk, found, strict=True):
                if node is not None:
                    yield _tree_node(path, node, listed.get(path))
                inside = path.rstrip("/") + "/"
                while waiting is not None and waiting.path.startswith(inside):
                    yield waiting
                    waiting = next(rest, None)


def _tree_node(path: str, node: NodeData | OffsetMgrError, names: list[str] | OffsetMgrError | None) -> TreeNode:
    children = len(names) if isinstance(names, list) else None
    children_error = names if isinstance(names, OffsetMgrError) else None
    if isinstance(node, OffsetMgrError):
        return TreeNode(path, None, children, node, children_error)
    return TreeNode(path, node, children, None, children_error)


def _sort_key(name: str) -> tuple[bool, int, str]:
    """Returns a sort key. Names that are numbers come first, in the order of their value. All other names follow."""
    number = name.isascii() and name.isdigit() and len(name) <= 18
    return (not number, int(name) if number else 0, name)
