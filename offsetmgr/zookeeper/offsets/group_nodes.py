"""The nodes of whole groups: finds the nodes with offsets and the data that offsetmgr does not understand, and saves,
restores and deletes whole trees.

A node without data is a directory. Data of any other node than an offset, a registration or an owner is named, never
ignored: a group without known offsets can still hold some. ``ids`` and ``owners`` are read by `zookeeper.groups`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from shlex import quote
from typing import Final, NamedTuple

from offsetmgr.core.advice import Advice
from offsetmgr.core.batches import batched_by_size
from offsetmgr.core.durations import utc_text
from offsetmgr.core.errors import (
    Conflict,
    CorruptData,
    GroupActive,
    GroupNotFound,
    NotAuthorized,
    OffsetMgrError,
    UnsupportedOperation,
    value_of,
)
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.offset_store import SavedNode, UnrecognisedData
from offsetmgr.zookeeper.client.connection import AclEntry, is_masked
from offsetmgr.zookeeper.client.jute import NodeData, ZookeeperError
from offsetmgr.zookeeper.client.session import RACES, ZookeeperSession
from offsetmgr.zookeeper.client.transactions import (
    MAX_BYTES_PER_TRANSACTION,
    Create,
    Delete,
    max_encoded_size,
)
from offsetmgr.zookeeper.nodes import paths
from offsetmgr.zookeeper.nodes.tree import TreeNode, TreeReader
from offsetmgr.zookeeper.offsets.layouts import OTHER_LAYOUT_HINTS, TRIDENT, TRIDENT_HINT, TRIDENT_NODES, Layout

SINGULAR: Final = "offset"
"""The directory in which brokers of Kafka 1.1.0 store the commits of simple consumers."""
KNOWN: Final = frozenset({"ids", "owners", "offsets"})
"""The children of a regular group's node."""


class OffsetNode(NamedTuple):
    """A node with an offset. In layouts with loose nodes, the topic of ``partition`` can be empty (see `Layout`)."""

    partition: TopicPartition
    path: str
    node: NodeData | OffsetMgrError


@dataclass(slots=True)
class GroupNodes:
    """The nodes of one group. ``errors`` maps the path of a node to the reason why offsets of the group may be missing;
    ``created_ms`` is the creation time of the group's node."""

    group: str
    offsets: list[OffsetNode] = field(default_factory=list)
    unrecognised: list[UnrecognisedData] = field(default_factory=list)
    errors: dict[str, OffsetMgrError] = field(default_factory=dict)
    created_ms: int | None = None


def read_groups(
    session: ZookeeperSession, layout: Layout, groups: Sequence[str], *, offsets: bool = True
) -> list[GroupNodes]:
    """Reads groups. Without ``offsets``, the nodes with offsets are not read. Raises if the session fails."""
    results = {group: GroupNodes(group) for group in groups}
    by_root: dict[str, GroupNodes] = {}
    for group, found in results.items():
        try:
            by_root[layout.group_root(group)] = found
        except OffsetMgrError as error:
            found.errors[""] = error
    rules = _Rules(session.chroot, layout)
    reader = TreeReader(session, rules.is_leaf, lambda path: not offsets and rules.partition(path) is not None)
    current = GroupNodes("")
    for one in reader.read(list(by_root)):
        current = by_root.get(one.path, current)
        rules.sort(one, current)
    if layout.has_registry and offsets:
        for found in results.values():
            _choose_directory(found, layout, session)
    return [results[group] for group in groups]


class _Rules:
    """Sorts the nodes of groups into offsets, directories and data that offsetmgr does not understand."""

    def __init__(self, chroot: str, layout: Layout) -> None:
        self._chroot = chroot
        self._layout = layout
        self._depth = layout.groups_root.count("/") + 2

    def _parts(self, path: str) -> list[str]:
        """Returns the names below the group's node."""
        return path.split("/")[self._depth :]

    def _below_offsets(self, parts: list[str]) -> list[str] | None:
        """Returns the names below the directory of offsets; None for a node outside of it."""
        if not self._layout.has_registry:
            return parts
        return parts[1:] if parts[:1] in (["offsets"], [SINGULAR]) else None

    def partition(self, path: str) -> TopicPartition | None:
        """Returns the partition of a node at a place where the layout has offsets."""
        below = self._below_offsets(self._parts(path)) or []
        if len(below) == 1 and self._layout.topic_in_data:
            return self._layout.partition("", below[0])
        return self._layout.partition(below[0], below[1]) if len(below) == 2 else None

    def _is_registry(self, path: str) -> bool:
        return self._layout.has_registry and self._parts(path) in (["ids"], ["owners"])

    def is_leaf(self, path: str, node: NodeData | OffsetMgrError | None) -> bool:
        """Whether the children of a node are not read: `zookeeper.groups` reads those of ``ids`` and ``owners``, and
        Storm Trident has its own state below a partition."""
        has_children = isinstance(node, NodeData) and node.children > 0 and not self._layout.topic_in_data
        return self._is_registry(path) or (self.partition(path) is not None and not has_children)

    def sort(self, one: TreeNode, found: GroupNodes) -> None:
        """Adds a node to the nodes of its group."""
        node = one.node or one.read_error
        if (partition := self.partition(one.path)) is not None and node is not None:
            found.offsets.append(OffsetNode(partition, one.path, node))
            return
        parts = self._parts(one.path)
        below = self._below_offsets(parts)
        if not parts and one.node is not None:
            found.created_ms = one.node.ctime_ms
        what = f"ZooKeeper node {self._chroot}{one.path}"
        if (error := one.children_error or one.read_error) is not None:
            if below is None and parts and not self._is_registry(one.path):
                found.unrecognised.append(UnrecognisedData(self._chroot + one.path, f"cannot be read: {error.why}"))
            elif not self._is_registry(one.path):
                found.errors[one.path] = error
        elif self._layout.topic_in_data and TRIDENT_NODES.intersection(parts):
            found.errors[one.path] = UnsupportedOperation(what, TRIDENT, TRIDENT_HINT)
        elif below is not None and len(below) == 2:
            name = self._layout.name
            why = f"its name is not a partition in layout {name}, so some offsets of the group may be missing"
            found.errors[one.path] = CorruptData(what, why, OTHER_LAYOUT_HINTS[name])
        elif one.node and one.node.data and (not paths.is_directory(one.node.data) or (below is None and parts)):
            found.unrecognised.append(foreign_data(self._chroot + one.path, one.node.data, bool(below)))


def foreign_data(path: str, data: bytes, may_hold_offsets: bool) -> UnrecognisedData:
    """Returns the data of a node at a place where clients of Kafka store no data."""
    text = f"holds {_shown(data)}, which offsetmgr does not understand"
    return UnrecognisedData(path, text, may_hold_offsets)


def _shown(data: bytes) -> str:
    text = ascii(data[:60].decode("utf-8", "backslashreplace"))
    return text if len(data) <= 60 else f"{text}..."


# --- the two directories of offsets ------------------------------------------------------------------


def locate_directories(session: ZookeeperSession, layout: Layout, groups: Iterable[str]) -> None:
    """Finds out in which directory each group has its offsets, for `Layout.path`."""
    if not layout.has_registry:
        return
    possible, _ = paths.possible_groups(dict.fromkeys(groups))  # `Layout.path` reports the errors of the others
    listed = zip(possible, session.children_many([layout.group_root(group) for group in possible]), strict=True)
    if both := [group for group, names in listed if isinstance(names, list) and SINGULAR in names]:
        read_groups(session, layout, both)
    for group in set(possible).difference(both):
        layout.directories.pop(group, None)


def _choose_directory(found: GroupNodes, layout: Layout, session: ZookeeperSession) -> None:
    """Chooses the directory that holds offsets. If both do, the newer one may be stale, so the group gets an error."""
    layout.directories.pop(found.group, None)
    if "" in found.errors:
        return
    root, chroot = layout.group_root(found.group), session.chroot
    written: dict[str, int] = {}
    for one in found.offsets:
        directory = one.path.removeprefix(f"{root}/").partition("/")[0]
        at = one.node.mtime_ms if isinstance(one.node, NodeData) else 0
        written[directory] = max(at, written.get(directory, 0))
    if SINGULAR not in written:
        return
    if len(written) == 1:
        layout.directories[found.group] = SINGULAR
        return
    unread = [one.node for one in found.offsets if isinstance(one.node, OffsetMgrError)]
    if unread:  # which directory is newer is unknown
        layout.directories[found.group] = found.errors[root] = unread[0]
        return
    (older, first), (newer, last) = sorted(written.items(), key=lambda item: item[1])
    why = (
        f"its offsets are in two directories: {chroot}{root}/{newer}, last written {utc_text(last)}, is newer than"
        f" {chroot}{root}/{older}, last written {utc_text(first)}"
    )
    hint = (
        f"only brokers of Kafka 1.1.0 use {SINGULAR}: find out which directory the consumers use, and delete the other"
        f" one, as in zookeeper-shell.sh {session.connect} deleteall {quote(f'{root}/{older}')}"
        " (rmr in ZooKeeper 3.4)"
    )
    error = CorruptData(f"group {found.group}", why, hint)
    layout.directories[found.group] = found.errors[root] = error


# --- whole trees -------------------------------------------------------------------------------------


def save_tree(session: ZookeeperSession, group: str, root: str, unsaved: Container[str]) -> tuple[SavedNode, ...]:
    """See `GroupTreeStore.saved_tree`."""
    found = list(TreeReader(session).read([root]))
    what = f"before-image of group {group}"
    if not found:
        raise GroupNotFound(f"delete of group {group}", f"there is no {session.chroot}{root}")
    if alive := [one.path for one in found if one.node is not None and one.node.ephemeral_owner]:
        raise GroupActive(
            what, f"{session.chroot}{alive[0]} belongs to a running client", "stop it first", members=tuple(alive)
        )
    saved: list[SavedNode] = []
    for one, acl in zip(found, session.acls([one.path for one in found]), strict=True):
        path, place = one.path.removeprefix(root), session.chroot + one.path
        if place in unsaved:
            saved.append(SavedNode(path, None))
        elif one.node is None or one.children is None or not isinstance(acl, tuple) or is_masked(acl):
            errors = [e for e in (one.read_error, one.children_error, acl) if isinstance(e, OffsetMgrError)]
            cause = errors[0].why if errors else "the hashes in its ACL are hidden from this user"
            hint = Advice("log in as a user that may read {}, or add {lose} {} to lose its data", place, place)
            raise NotAuthorized(what, f"{place} cannot be saved: {cause}", hint)
        else:
            saved.append(SavedNode(path, one.node.data, tuple((*entry,) for entry in acl), one.node.version))
    return tuple(saved)


def delete_tree(session: ZookeeperSession, group: str, root: str, saved: Sequence[SavedNode]) -> None:
    """Deletes the nodes of a tree, children first, unless another client has changed one since it was saved. Nodes that
    are gone already do not count."""
    changed = Conflict(f"delete of group {group}", "another client changed it meanwhile", "try again later")
    deletions: list[Delete] = []
    for one, node in zip(saved, session.get_many([root + one.path for one in saved]), strict=True):
        if isinstance(node, NodeData) and one.data is not None and (node.data, node.version) != (one.data, one.version):
            raise changed
        if node is not None:
            deletions.append(Delete(root + one.path, one.version))
    # A consumer that registers or commits meanwhile adds a child, so the transaction fails.
    deletions.sort(key=lambda deletion: -deletion.path.count("/"))
    for batch in batched_by_size(deletions, max_encoded_size, MAX_BYTES_PER_TRANSACTION):
        outcome = session.transaction(batch)
        if outcome.code in RACES | {ZookeeperError.NOT_EMPTY}:
            raise changed
        if outcome.error is not None:
            raise outcome.error


def restore_tree(session: ZookeeperSession, group: str, root: str, nodes: Sequence[SavedNode]) -> int:
    """See `GroupTreeStore.restore_tree`."""
    present = map(value_of, session.get_many([root + one.path for one in nodes]))
    missing: list[Create] = []
    for one, node in zip(nodes, present, strict=True):
        if node is None:
            acl = tuple(AclEntry(*entry) for entry in one.acl)
            missing.append(Create(root + one.path, one.data or b"", acl=acl or None))
        elif one.data and node.data != one.data and not one.path.startswith(("/offsets/", f"/{SINGULAR}/")):
            why = f"{session.chroot}{root}{one.path} exists and holds {_shown(node.data)}, not {_shown(one.data)}"
            raise Conflict(
                f"undo for group {group}", why, Advice("delete this node, or restore the offsets with {topic}")
            )
    for batch in batched_by_size(missing, max_encoded_size, MAX_BYTES_PER_TRANSACTION):
        outcome = session.transaction(batch)
        if outcome.error is not None:
            raise outcome.error
    return len(missing)
