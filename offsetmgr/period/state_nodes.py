"""`BarrierStateStore`: reads and writes the nodes under a coordinator's root in ZooKeeper. No thread, no decision.

::

    ROOT/coordinator        the open period: the only authoritative node
    ROOT/topic-partitions   who must finish it
    ROOT/progress/MEMBER    what a member has finished: one node a member, for all of its partitions
    ROOT/members/MEMBER     the live ones (ephemeral); the oldest of them leads
    ROOT/history/NUMBER     closed periods

Every write is conditional. A member's *epoch* is the transaction that created its node under ``members``: ZooKeeper
gives each a larger number, so a later process has the larger epoch, of members of one name and of leaders alike.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from offsetmgr.core.errors import Conflict, LegacyMembersPresent, OffsetMgrError, ServerError, UsageError
from offsetmgr.period import legacy_nodes
from offsetmgr.period.leader_decision import Advance, LeaderView
from offsetmgr.period.records import (
    ClosedPeriod,
    MemberNode,
    OpenNode,
    PartitionsNode,
    ProgressNode,
    decode_closed,
    decode_member,
    decode_open,
    decode_partitions,
    decode_progress,
    encode_closed,
    encode_member,
    encode_open,
    encode_partitions,
    encode_progress,
)
from offsetmgr.zookeeper.client.jute import NodeData, ZookeeperError
from offsetmgr.zookeeper.client.session import WatchCallback, ZookeeperSession
from offsetmgr.zookeeper.client.session_reads import Node
from offsetmgr.zookeeper.client.transactions import (
    Create,
    Delete,
    Operation,
    OperationState,
    SetData,
    TransactionResult,
)
from offsetmgr.zookeeper.groups.membership import ensure_nodes

_HISTORY: Final = 2
"""The index of the operation that writes the history in an advance's transaction."""
_RACES: Final = (ZookeeperError.BAD_VERSION, ZookeeperError.NO_NODE, ZookeeperError.NODE_EXISTS)
_MARK: Final = json.dumps({"version": 1, "by": "offsetmgr"}, separators=(",", ":")).encode()
"""Content of the directories: the original coordinator stores text in a node of the same name."""


@dataclass(frozen=True, slots=True)
class LiveMember:
    """A member's registration. ``epoch``: see the module's docstring."""

    epoch: int
    session_id: int
    node: MemberNode


@dataclass(frozen=True, slots=True)
class BarrierView:
    """The nodes as read, which are not a snapshot; the conditions of writes compensate for that."""

    seen: LeaderView
    open_version: int | None
    partitions_version: int | None
    progress_versions: Mapping[str, int] = field(default_factory=dict)
    members: Mapping[str, LiveMember] = field(default_factory=dict)

    @property
    def leader(self) -> str | None:
        """The oldest live member."""
        return min(self.members, key=lambda name: self.members[name].epoch, default=None)


class BarrierStateStore:
    """One root, accessed through one session. All methods raise what the session raises."""

    def __init__(self, session: ZookeeperSession, root: str) -> None:
        """``root`` is a path under the session's chroot. Raises `UsageError`."""
        if not root.startswith("/") or root == "/" or root.endswith("/") or "//" in root:
            raise UsageError(f"root {root!r}", "is no path of a node", "as in /offsetmgr/periods/daily")
        self._session = session
        self.root = root
        self.open_path, self.partitions_path = f"{root}/coordinator", f"{root}/topic-partitions"
        self.progress_path, self.members_path = f"{root}/progress", f"{root}/members"
        self.history_path = f"{root}/history"

    def prepare(self) -> None:
        """Creates the directories. Raises `LegacyMembersPresent` if the original coordinator has written here."""
        self.check_form()
        parts = self.root.split("/")[1:]
        ensure_nodes(self._session, ["/" + "/".join(parts[: at + 1]) for at in range(len(parts))])
        for path in (self.progress_path, self.members_path, self.history_path):
            outcome = self._session.transaction([Create(path, _MARK)])
            if outcome.code != ZookeeperError.NODE_EXISTS:
                self._done(outcome)

    def check_form(self) -> None:
        """Raises `LegacyMembersPresent` if one of the nodes contains the original's text."""
        paths = [self.open_path, self.partitions_path, self.progress_path]
        for path, node in zip(paths, self._session.get_many(paths), strict=True):
            _ours(self, path, node)

    def full(self, path: str) -> str:
        """A path with the chroot, as other clients of the server see it."""
        return self._session.chroot + path

    # --- reading ------------------------------------------------------------------------------------

    def read(self) -> BarrierView:
        """Everything except the history, in two requests. Also raises `CorruptData`, `UnknownVersion`."""
        listed = self._session.children_many([self.progress_path, self.members_path])
        reporting, living = (_names(names) for names in listed)
        paths = [
            self.open_path,
            self.partitions_path,
            *(f"{self.progress_path}/{name}" for name in reporting),
            *(f"{self.members_path}/{name}" for name in living),
        ]
        found: dict[str, NodeData] = {}
        for path, node in zip(paths, self._session.get_many(paths), strict=True):
            if isinstance(node, OffsetMgrError):
                raise node
            if node is not None:
                found[path] = node
        open_, partitions = found.get(self.open_path), found.get(self.partitions_path)
        opened, named = _ours(self, self.open_path, open_), _ours(self, self.partitions_path, partitions)
        progress = {name: found[path] for name, path in zip(reporting, paths[2:], strict=False) if path in found}
        members = {name: found[path] for name in living if (path := f"{self.members_path}/{name}") in found}
        return BarrierView(
            LeaderView(
                decode_open(self.open_path, opened) if opened else None,
                decode_partitions(self.partitions_path, named) if named else None,
                {n: decode_progress(f"{self.progress_path}/{n}", node.data) for n, node in progress.items()},
            ),
            open_.version if open_ else None,
            partitions.version if partitions else None,
            {name: node.version for name, node in progress.items()},
            {
                name: LiveMember(
                    node.czxid, node.ephemeral_owner, decode_member(f"{self.members_path}/{name}", node.data)
                )
                for name, node in members.items()
            },
        )

    def read_open(self) -> tuple[OpenNode | None, PartitionsNode | None]:
        """Only the open period, in one request. Also raises `CorruptData`, `UnknownVersion`."""
        open_, partitions = self._session.get_many([self.open_path, self.partitions_path])
        opened = _ours(self, self.open_path, open_)
        named = _ours(self, self.partitions_path, partitions)
        return (
            decode_open(self.open_path, opened) if opened else None,
            decode_partitions(self.partitions_path, named) if named else None,
        )

    def history(self, numbers: Sequence[int] | None = None) -> dict[int, ClosedPeriod]:
        """Closed periods by number, the requested ones or all; missing ones are omitted.

        Also raises `CorruptData`, `UnknownVersion`.
        """
        if numbers is None:
            names = _names(self._session.children(self.history_path))
            numbers = sorted(int(name) for name in names if name.isdigit())
        paths = [f"{self.history_path}/{number}" for number in numbers]
        return {
            number: decode_closed(path, _data(node))
            for number, path, node in zip(numbers, paths, self._session.get_many(paths), strict=True)
            if node is not None
        }

    def watch(self, nodes: Sequence[str], parents: Sequence[str], changed: WatchCallback) -> list[str]:
        """See `ZookeeperSession.watch_many`."""
        return self._session.watch_many(nodes, parents, changed)

    # --- writing ------------------------------------------------------------------------------------

    def register(self, member: str, node: MemberNode) -> int:
        """Registers the member in this session and returns its epoch. Raises `Conflict` if another session has it."""
        path = f"{self.members_path}/{member}"
        outcome = self._session.transaction([Create(path, encode_member(node), ephemeral=True)])
        if outcome.state is OperationState.UNKNOWN:
            self._session.sync()
        elif outcome.code != ZookeeperError.NODE_EXISTS:
            self._done(outcome)
        found = self._session.get(path)
        if found is None or found.ephemeral_owner != self._session.session_id:
            raise Conflict(
                f"member {member}",
                "is registered by another session",
                "give each a name of its own; that of one which died is free once its session has ended",
            )
        return found.czxid

    def describe(self, member: str, node: MemberNode) -> bool:
        """Replaces the node of the member, which is registered in this session. False: try again.

        Raises `Conflict` if it is no longer registered.
        """
        path = f"{self.members_path}/{member}"
        found = self._session.get(path)
        if found is None or found.ephemeral_owner != self._session.session_id:
            raise Conflict(
                f"member {member}", "its registration is gone", "another client has deleted it; the member joins again"
            )
        return self._won(self._session.transaction([SetData(path, encode_member(node), found.version)]))

    def report(self, node: ProgressNode, version: int | None) -> bool:
        """Writes a member's progress over the one at ``version`` (None: there is none). False: another client was
        first, or the outcome is unknown: read again."""
        path, data = f"{self.progress_path}/{node.member}", encode_progress(node)
        return self._won(
            self._session.transaction([Create(path, data) if version is None else SetData(path, data, version)])
        )

    def turn(self, turn: Advance, view: BarrierView) -> bool:
        """Carries out an advance that was decided from ``view``, as a whole. False: it was not carried out, or the
        outcome is unknown.

        Raises `ServerError` if the history already contains the period to be closed.
        """
        operations: list[Operation] = [
            _put(self.open_path, encode_open(turn.open_), view.open_version),
            _put(self.partitions_path, encode_partitions(turn.partitions), view.partitions_version),
        ]
        if turn.closed is not None:
            operations.append(Create(f"{self.history_path}/{turn.closed.period.number}", encode_closed(turn.closed)))
        outcome = self._session.transaction(operations)
        if turn.closed is not None and outcome.state is OperationState.REJECTED and outcome.failed_index == _HISTORY:
            # The operations in front of it in the transaction would have succeeded, so no other leader has won a race.
            if outcome.code == ZookeeperError.NODE_EXISTS:
                raise self._not_new(turn.closed.period.number)
            self.prepare()  # the directory has been deleted
        return self._won(outcome)

    def require_new(self) -> None:
        """Called before the first period opens. Raises `ServerError` if the history already contains periods."""
        numbers = [int(name) for name in _names(self._session.children(self.history_path)) if name.isdigit()]
        if numbers:
            raise self._not_new(max(numbers))

    def _not_new(self, number: int) -> ServerError:
        return ServerError(
            f"ZooKeeper node {self.full(self.open_path)}",
            f"was deleted or set back, though period {number} is closed in the history",
            "begin again under another root: a run never goes through its periods again by itself",
        )

    def begin(self, open_: OpenNode, partitions: PartitionsNode) -> bool:
        """Opens a run's first period for its creator. False: it has already begun."""
        nodes = [_put(self.open_path, encode_open(open_), None)]
        nodes.append(_put(self.partitions_path, encode_partitions(partitions), None))
        return self._won(self._session.transaction(nodes))

    def end(self, view: BarrierView, why: str) -> bool:
        """Ends the run after the open period. False: it changed meanwhile, or nothing had begun."""
        if view.seen.open_ is None or view.open_version is None:
            return False
        data = encode_open(replace(view.seen.open_, stopped=why))
        return self._won(self._session.transaction([SetData(self.open_path, data, view.open_version)]))

    def forget(self, members: Iterable[str], view: BarrierView) -> None:
        """Deletes the progress of these members; progress that has changed since it was read stays."""
        for member in members:
            path = f"{self.progress_path}/{member}"
            self._won(self._session.transaction([Delete(path, view.progress_versions[member])]))

    def forget_history(self, number: int) -> None:
        """Deletes the entry of one old period, if it exists; entries are never changed."""
        self._won(self._session.transaction([Delete(f"{self.history_path}/{number}", 0)]))

    def _won(self, outcome: TransactionResult) -> bool:
        if outcome.state is OperationState.REJECTED and outcome.code in _RACES:
            return False
        if outcome.state is OperationState.UNKNOWN:
            self._session.sync()
            return False
        self._done(outcome)
        return True

    def _done(self, outcome: TransactionResult) -> None:
        if outcome.state is not OperationState.COMMITTED:
            raise outcome.error or ServerError(f"ZooKeeper under {self.root}", f"refused with code {outcome.code}")


def _put(path: str, data: bytes, version: int | None) -> Operation:
    return Create(path, data) if version is None else SetData(path, data, version)


def _ours(nodes: BarrierStateStore, path: str, node: Node) -> bytes:
    """A node's data; empty if it does not exist. Raises `LegacyMembersPresent`, because an old member may start at any
    time."""
    data = _data(node)
    if legacy_nodes.is_old(data):
        limit = legacy_nodes.parse_limit(nodes.full(path), data) if path == nodes.open_path else None
        where = "" if limit is None else f"; their open period ends at {limit}"
        raise LegacyMembersPresent(
            f"ZooKeeper node {nodes.full(path)}",
            f"is in the form of the original coordinator, whose members know nothing of this one's{where}",
            "stop them, and give this run a root of its own",
        )
    return data


def _data(node: Node) -> bytes:
    if isinstance(node, OffsetMgrError):
        raise node
    return b"" if node is None else node.data


def _names(names: object) -> list[str]:
    if isinstance(names, OffsetMgrError):
        raise names
    return sorted(names) if isinstance(names, list) else []
