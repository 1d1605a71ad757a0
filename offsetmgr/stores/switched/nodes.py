"""`SwitchStateStore`: reads and writes the znodes of one group's storage mode. It has no thread and makes no decisions.

::

    /offsetmgr/groups/GROUP/storage         the group's storage mode; changed only by compare-and-set
    /offsetmgr/groups/GROUP/storage/NAME    a member that follows the mode (ephemeral), with its acknowledged epoch
    /offsetmgr/groups/GROUP/switcher        the process that is switching the group (ephemeral)

Ordering contract: a member joins and acknowledges only while ``storage`` still has the version that the member has
read; the transaction checks the version. So a process that changes ``storage`` and then lists the members finds every
member that may still use the earlier version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.stores.switched.records import (
    FollowerNode,
    StorageModeNode,
    SwitcherNode,
    decode_follower,
    decode_storage,
    decode_switcher,
    encode_follower,
    encode_storage,
    encode_switcher,
)
from offsetmgr.zookeeper.client.conditional_writes import commit, ensure_nodes
from offsetmgr.zookeeper.client.session import WatchCallback, ZookeeperSession
from offsetmgr.zookeeper.client.transactions import (
    CheckVersion,
    Create,
    Delete,
    SetData,
    TransactionOperation,
)
from offsetmgr.zookeeper.nodes.paths import check_group, with_ancestors

GROUPS: Final = "/offsetmgr/groups"


@dataclass(frozen=True, slots=True)
class NodeState:
    """The content of ``storage`` and the version of the node."""

    storage: StorageModeNode
    version: int


@dataclass(frozen=True, slots=True)
class FollowerState:
    """A live member. ``session_id`` is the session that owns its ephemeral node."""

    name: str
    node: FollowerNode
    session_id: int

    def __str__(self) -> str:
        return f"{self.name} (process {self.node.process} on {self.node.host})"


class SwitchStateStore:
    """The nodes of one group, accessed through one session. All methods raise the errors of the session.

    Methods that write return False if another process wrote first, or if the outcome is unknown; the caller must then
    read the nodes again.
    """

    def __init__(self, session: ZookeeperSession, group: str) -> None:
        """Raises `UsageError` if the group id cannot be the name of a node."""
        self._session = session
        self.group = group
        self.root = f"{GROUPS}/{check_group(group)}"
        self.storage_path, self.switcher_path = f"{self.root}/storage", f"{self.root}/switcher"

    # --- reads ---------------------------------------------------------------------------------------

    def read(self, changed: WatchCallback | None = None) -> NodeState | None:
        """Returns the storage mode of the group; None if none was declared. ``changed`` is the callback of a watch on
        the node.

        Also raises `CorruptData`, `UnknownVersion`.
        """
        node = (
            self._session.get(self.storage_path)
            if changed is None
            else self._session.watch_data(self.storage_path, changed)
        )
        return (
            None if node is None else NodeState(decode_storage(self._full(self.storage_path), node.data), node.version)
        )

    def switcher(self, changed: WatchCallback | None = None) -> SwitcherNode | None:
        """Returns the process that is switching the group; None if there is none. ``changed`` is the callback of a
        watch on the node. Also raises `CorruptData`, `UnknownVersion`."""
        node = (
            self._session.get(self.switcher_path)
            if changed is None
            else self._session.watch_data(self.switcher_path, changed)
        )
        return None if node is None else decode_switcher(self._full(self.switcher_path), node.data)

    def followers(self) -> list[FollowerState]:
        """Returns the live members, sorted by name. Also raises `CorruptData` or `UnknownVersion` if a member's node
        cannot be decoded, because the result must contain all members."""
        names = sorted(self._session.children(self.storage_path) or ())
        paths = [self.member_path(name) for name in names]
        found: list[FollowerState] = []
        for name, path, node in zip(names, paths, self._session.get_many(paths), strict=True):
            if isinstance(node, OffsetMgrError):
                raise node
            if node is not None:
                found.append(FollowerState(name, decode_follower(self._full(path), node.data), node.ephemeral_owner))
        return found

    def watch_followers(self, names: list[str], changed: WatchCallback) -> None:
        """Sets watches on the nodes of these members. Also watches the parent node, to detect members that join or
        leave."""
        self._session.watch_many([self.member_path(name) for name in names], [self.storage_path], changed)

    def member_path(self, name: str) -> str:
        return f"{self.storage_path}/{name}"

    # --- writes of a member --------------------------------------------------------------------------

    def declare(self, storage: StorageModeNode) -> bool:
        """Declares the storage mode if none was declared."""
        ensure_nodes(self._session, with_ancestors(self.root))
        return commit(self._session, [Create(self.storage_path, encode_storage(storage))])

    def join(self, name: str, node: FollowerNode, version: int) -> bool:
        """Joins as a member, by creating the member's node, if ``storage`` still has this version."""
        path = self.member_path(name)
        return commit(
            self._session,
            [CheckVersion(self.storage_path, version), Create(path, encode_follower(node), ephemeral=True)],
        )

    def acknowledge(self, name: str, node: FollowerNode, version: int) -> bool:
        """Acknowledges the storage mode if ``storage`` still has this version; joins again if the member's node has
        disappeared."""
        path = self.member_path(name)
        own_node = self._session.get(path)
        if own_node is None:
            return self.join(name, node, version)
        return commit(
            self._session,
            [CheckVersion(self.storage_path, version), SetData(path, encode_follower(node), own_node.version)],
        )

    # --- writes of the switching process -------------------------------------------------------------

    def begin_switch(self, seen: NodeState, storage: StorageModeNode, who: str) -> bool:
        """Begins a switch: creates the node of this process and writes the new ``storage``, in one transaction."""
        operations: list[TransactionOperation] = [
            Create(self.switcher_path, encode_switcher(SwitcherNode(who)), ephemeral=True)
        ]
        return commit(self._session, [*operations, SetData(self.storage_path, encode_storage(storage), seen.version)])

    def end_switch(self, seen: NodeState, storage: StorageModeNode) -> bool:
        """Ends this session's switch: writes ``storage`` and deletes the node of this process, in one transaction."""
        operations: list[TransactionOperation] = [SetData(self.storage_path, encode_storage(storage), seen.version)]
        return commit(self._session, [*operations, Delete(self.switcher_path, 0)])

    def abandon_switch(self, seen: NodeState, storage: StorageModeNode) -> bool:
        """Ends the switch of a process that has died, by writing ``storage``."""
        return commit(self._session, [SetData(self.storage_path, encode_storage(storage), seen.version)])

    def _full(self, path: str) -> str:
        return self._session.chroot + path


def modes(session: ZookeeperSession, groups: list[str]) -> Mapping[str, StorageModeNode | OffsetMgrError | None]:
    """Returns the storage modes of many groups, read in one request. The value is None if the group has no declared
    mode, and an error if its mode cannot be read."""
    found: dict[str, StorageModeNode | OffsetMgrError | None] = {}
    paths: dict[str, str] = {}
    for group in groups:
        try:
            paths[group] = SwitchStateStore(session, group).storage_path
        except OffsetMgrError as error:
            found[group] = error
    for (group, path), node in zip(paths.items(), session.get_many(list(paths.values())), strict=True):
        if node is None or isinstance(node, OffsetMgrError):
            found[group] = node
            continue
        try:
            found[group] = decode_storage(session.chroot + path, node.data)
        except OffsetMgrError as error:
            found[group] = error
    return found
