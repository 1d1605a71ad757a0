"""`BarrierStateStore`: reads and writes the znodes of a coordinator. The class has no thread and decides nothing about
periods.

::

    ROOT/coordinator        the open period
    ROOT/topic-partitions   the partitions that must finish it
    ROOT/progress/MEMBER    the periods that a member's partitions have finished
    ROOT/members/MEMBER     a live member (ephemeral); the oldest live member is the leader
    ROOT/history/NUMBER     a closed period

Every write is conditional. A member's *epoch* is the id of the transaction that created its node under ``members``.
ZooKeeper's transaction ids increase, so a later process with the same name has a larger epoch. A later leader also has
a larger epoch than an earlier leader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import Conflict, LegacyMembersPresent, OffsetMgrError, ServerError, UsageError, value_of
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
    is_legacy,
    node_bytes,
    parse_limit,
)
from offsetmgr.zookeeper.client.jute import NodeData, ZookeeperError
from offsetmgr.zookeeper.client.session import Node, ZookeeperSession, commit, committed, ensure_nodes
from offsetmgr.zookeeper.client.transactions import Create, Delete, SetData, TransactionOperation
from offsetmgr.zookeeper.nodes.paths import with_ancestors

_HISTORY: Final = 2
"""In the transaction of an advance: the index of the operation that adds a period to the history."""
_MAX_READS: Final = 20
"""Maximum number of attempts to read a run that advances while its nodes are read, or to end it."""
DIRECTORY_DATA: Final = node_bytes({"by": "offsetmgr"})
"""The content of the parent nodes. It shows that the nodes belong to offsetmgr, because the original coordinator also
has a node named ``progress``, whose content is plain text."""


@dataclass(frozen=True, slots=True)
class BarrierView:
    """The nodes of a run and their versions. The nodes were read at different moments, so every write of a node
    requires that the node still has the version that was read."""

    seen: LeaderView
    open_version: int | None
    partitions_version: int | None
    progress_versions: Mapping[str, int] = field(default_factory=dict)
    members: Mapping[str, MemberNode] = field(default_factory=dict)

    @property
    def leader(self) -> str | None:
        """The leader: the oldest live member; None if there is none."""
        return min(self.members, key=lambda name: self.members[name].epoch, default=None)


NO_NODES: Final = BarrierView(LeaderView(None, None, {}), None, None)
"""The view of a run that has not begun."""


class BarrierStateStore:
    """The nodes under one root, accessed through one session. All methods raise the errors of the session.

    A method that writes and returns a bool returns False if another client wrote first, or if the outcome is unknown.
    In both cases the caller must read the nodes again.
    """

    def __init__(self, session: ZookeeperSession, root: str) -> None:
        """``root`` is a path under the session's chroot. Raises `UsageError`."""
        if not root.startswith("/") or root == "/" or root.endswith("/") or "//" in root:
            raise UsageError(f"root {root!r}", "is not a valid path of a node", "as in /offsetmgr/periods/daily")
        self._session = session
        self.root = root
        self.open_path, self.partitions_path = f"{root}/coordinator", f"{root}/topic-partitions"
        self.progress_path, self.members_path = f"{root}/progress", f"{root}/members"
        self.history_path = f"{root}/history"

    def prepare(self) -> None:
        """Creates the parent nodes. Raises `LegacyMembersPresent` if the original coordinator has written under this
        root."""
        paths = [self.open_path, self.partitions_path, self.progress_path]
        for path, node in zip(paths, self._session.get_many(paths), strict=True):
            _own_data(self, path, node)
        ensure_nodes(self._session, with_ancestors(self.root))
        ensure_nodes(self._session, [self.progress_path, self.members_path, self.history_path], DIRECTORY_DATA)

    def full(self, path: str) -> str:
        """Returns a path with the chroot, as other clients of the server see it."""
        return self._session.chroot + path

    # --- reading ------------------------------------------------------------------------------------

    def read(self) -> BarrierView:
        """Reads all nodes except the history, in two requests. Also raises `CorruptData`, `UnknownVersion`."""
        listed = self._session.children_many([self.progress_path, self.members_path])
        reporting, living = (_names(names) for names in listed)
        paths = [
            self.open_path,
            self.partitions_path,
            *(f"{self.progress_path}/{name}" for name in reporting),
            *(f"{self.members_path}/{name}" for name in living),
        ]
        nodes = zip(paths, map(value_of, self._session.get_many(paths)), strict=True)
        found = {path: node for path, node in nodes if node is not None}
        open_, partitions = found.get(self.open_path), found.get(self.partitions_path)
        progress = {name: found[path] for name in reporting if (path := f"{self.progress_path}/{name}") in found}
        members = {name: found[path] for name in living if (path := f"{self.members_path}/{name}") in found}
        return BarrierView(
            LeaderView(
                *self._decoded(open_, partitions),
                {n: decode_progress(f"{self.progress_path}/{n}", node.data) for n, node in progress.items()},
            ),
            open_.version if open_ else None,
            partitions.version if partitions else None,
            {name: node.version for name, node in progress.items()},
            {
                name: replace(decode_member(f"{self.members_path}/{name}", node.data), epoch=node.czxid)
                for name, node in members.items()
            },
        )

    def read_started(self) -> tuple[BarrierView, OpenNode]:
        """Reads all nodes except the history. Returns them and the open period. Raises `Conflict` if the run has not
        opened a period yet."""
        view = self.read()
        if view.seen.open_ is None:
            hint = Advice("check {root}, and the path after the hosts of {zookeeper}")
            raise Conflict(f"run {self.root}", "has opened no period", hint)
        return view, view.seen.open_

    def read_consistent(self) -> tuple[BarrierView, OpenNode]:
        """Does the same as `read_started`; again if the run advances meanwhile. Raises `Conflict` if it advances during
        each of several attempts."""
        for _ in range(_MAX_READS):
            view, open_ = self.read_started()
            if view.seen.barrier() is not None:
                return view, open_
        raise self._advances()

    def read_running(self) -> tuple[BarrierView, OpenNode]:
        """Does the same as `read_started`. Raises `Conflict` if the run has ended."""
        view, open_ = self.read_started()
        if open_.stopped:
            raise Conflict(f"run {self.root}", f"has ended already: {open_.stopped}")
        return view, open_

    def _advances(self) -> Conflict:
        return Conflict(f"run {self.root}", "opened another period during each attempt", "run the command again")

    def read_open(self) -> tuple[OpenNode | None, PartitionsNode | None]:
        """Reads the open period and its partitions, in one request. Also raises `CorruptData`, `UnknownVersion`."""
        return self._decoded(*self._session.get_many([self.open_path, self.partitions_path]))

    def _decoded(self, open_: Node, partitions: Node) -> tuple[OpenNode | None, PartitionsNode | None]:
        open_data = _own_data(self, self.open_path, open_)
        partitions_data = _own_data(self, self.partitions_path, partitions)
        return (
            decode_open(self.open_path, open_data) if open_data else None,
            decode_partitions(self.partitions_path, partitions_data) if partitions_data else None,
        )

    def history(self, numbers: Sequence[int] | None = None) -> dict[int, ClosedPeriod]:
        """Returns the closed periods with these numbers, or all if ``numbers`` is `None`, keyed by number. Missing
        periods are omitted.

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

    # --- writing ------------------------------------------------------------------------------------

    def register(self, member: str, node: MemberNode) -> int:
        """Registers the member in this session and returns its epoch. Raises `Conflict` if another session has
        registered the name."""
        create = Create(f"{self.members_path}/{member}", encode_member(node), ephemeral=True)
        commit(self._session, [create], races=(ZookeeperError.NODE_EXISTS,))
        hint = "give each member its own name; the name of a dead member is free after its session has expired"
        return self._own_member(member, "is registered by another session", hint).czxid

    def update_member(self, member: str, node: MemberNode) -> bool:
        """Replaces the content of a member's node, which this session must have created.

        Raises `Conflict` if the member is no longer registered.
        """
        hint = "another client has deleted it; the member joins again"
        found = self._own_member(member, "its registration is gone", hint)
        change = SetData(f"{self.members_path}/{member}", encode_member(node), found.version)
        return commit(self._session, [change])

    def _own_member(self, member: str, why: str, hint: str) -> NodeData:
        """Returns the node of a member. Raises `Conflict` unless this session has created the node."""
        found = self._session.get(f"{self.members_path}/{member}")
        if found is None or found.ephemeral_owner != self._session.session_id:
            raise Conflict(f"member {member}", why, hint)
        return found

    def report(self, node: ProgressNode, version: int | None) -> bool:
        """Writes a member's progress. ``version`` is the version of the present node, or `None` if the node does not
        exist yet."""
        path, data = f"{self.progress_path}/{node.member}", encode_progress(node)
        return commit(self._session, [_put(path, data, version)])

    def write_advance(self, advance: Advance, view: BarrierView) -> bool:
        """Writes all nodes of an advance that was decided from ``view``, in one transaction.

        Raises `ServerError` if the history already contains the period to be closed.
        """
        operations: list[TransactionOperation] = [
            _put(self.open_path, encode_open(advance.open_), view.open_version),
            _put(self.partitions_path, encode_partitions(advance.partitions), view.partitions_version),
        ]
        if advance.closed is not None:
            operations.append(
                Create(f"{self.history_path}/{advance.closed.period.number}", encode_closed(advance.closed))
            )
        outcome = self._session.transaction(operations)
        if advance.closed is not None and outcome.failed_index == _HISTORY:
            # The operations on the open period and its partitions did not fail, so no other leader has advanced the
            # period.
            if outcome.code == ZookeeperError.NODE_EXISTS:
                raise self._already_closed_error(advance.closed.period.number)
            self.prepare()  # the directory has been deleted
        return committed(self._session, outcome)

    def require_new(self) -> None:
        """Raises `ServerError` if the history already contains periods, because the first period must not be opened a
        second time."""
        numbers = [int(name) for name in _names(self._session.children(self.history_path)) if name.isdigit()]
        if numbers:
            raise self._already_closed_error(max(numbers))

    def _already_closed_error(self, number: int) -> ServerError:
        return ServerError(
            f"ZooKeeper node {self.full(self.open_path)}",
            f"was deleted or reset, although the history contains period {number} as closed",
            "start a new run under another root: a run never repeats closed periods by itself",
        )

    def end_run(self, why: str) -> None:
        """Makes the open period the last period of the run, even if the run advances meanwhile. Members that wait get
        the reason ``why``. Raises the errors of `read_running`, and `Conflict` if the run advances during each of
        several attempts."""
        for _ in range(_MAX_READS):
            view, open_ = self.read_running()
            operation = _put(self.open_path, encode_open(replace(open_, stopped=why)), view.open_version)
            if commit(self._session, [operation]):
                return
        raise self._advances()

    def delete_progress(self, members: Iterable[str], view: BarrierView) -> None:
        """Deletes the progress node of each of these members, unless the node has changed since ``view`` was read."""
        for member in members:
            path = f"{self.progress_path}/{member}"
            commit(self._session, [Delete(path, view.progress_versions[member])])

    def delete_history(self, number: int) -> None:
        """Deletes one closed period from the history, if it exists."""
        commit(self._session, [Delete(f"{self.history_path}/{number}", 0)])


def _put(path: str, data: bytes, version: int | None) -> TransactionOperation:
    return Create(path, data) if version is None else SetData(path, data, version)


def _own_data(nodes: BarrierStateStore, path: str, node: Node) -> bytes:
    """Returns a node's data; empty if the node does not exist. Raises `LegacyMembersPresent` if the original
    coordinator wrote the node, because members of that coordinator may still run."""
    data = _data(node)
    if is_legacy(data):
        limit = parse_limit(data) if path == nodes.open_path else None
        where = "" if limit is None else f"; their open period ends at {limit}"
        raise LegacyMembersPresent(
            f"ZooKeeper node {nodes.full(path)}",
            f"was written by the original coordinator, whose members ignore offsetmgr's conditional writes{where}",
            "stop those members, and use another root for this run",
        )
    return data


def _data(node: Node) -> bytes:
    found = value_of(node)
    return b"" if found is None else found.data


def _names(names: list[str] | OffsetMgrError | None) -> list[str]:
    return sorted(value_of(names) or ())
