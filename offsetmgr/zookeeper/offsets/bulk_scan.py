"""Scans of many groups, optimized for the common case: a group whose nodes below its offsets' root are topics with
partitions that hold decimals.

A scan sends three rounds of requests, each for the names in the last response: topics, partitions, offsets. Several
batches of groups are in progress at once, each in a different round, so that the server reads for the younger ones
while the responses of the oldest are decoded. Groups are alike: most have topics and partitions that another group has
too, so their requests and decoded results are cached. Everything else (a missing group, an unreadable node, a name that
is not a partition, data that is not decimal) is left to the store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice, repeat
from typing import Final, TypeAlias

from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import Committed, TopicPartition
from offsetmgr.zookeeper.client import jute
from offsetmgr.zookeeper.client.bulk_requests import BulkGet, BulkList
from offsetmgr.zookeeper.client.jute import NodeData, Op, ZookeeperError
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.nodes.offset_data import SURE_DIGITS
from offsetmgr.zookeeper.offsets.layouts import Layout

GROUPS_AT_ONCE: Final = 50
"""Number of groups in one batch."""

_NODES_A_REQUEST: Final = 500
_LONGEST_PATH: Final = 1000
"""Bytes; that many such paths fit a request."""

_NODES_KEPT: Final = 100_000

Offsets: TypeAlias = dict[TopicPartition, Committed]
Found: TypeAlias = tuple[str, Offsets | None]
"""A group and all its offsets; None if the group is not a common one."""


class BulkScan:
    """One scan. ``layout`` must be one that stores decimals."""

    def __init__(self, session: ZookeeperSession, layout: Layout) -> None:
        self.as_of = session.zxid
        """A zxid that is not newer than anything the scan reads."""
        self._session = session
        self._layout = layout
        self._names: dict[bytes, list[bytes]] = {}
        self._directories: dict[tuple[bytes, bytes], _Directory | None] = {}
        self._kept = 0

    def scan(self, groups: Iterable[str]) -> Iterator[list[Found]]:
        """Yields a batch of groups at a time, in their order.

        Raises if the session fails; it does not check that the chroot exists.
        """
        remaining = iter(groups)
        running: deque[Iterator[list[Found] | None]] = deque()
        while True:
            if batch := list(islice(remaining, GROUPS_AT_ONCE)):
                running.append(self._batch(batch))
            if not running:
                return
            found = None
            # The newest batch first: the server is then busy while the oldest one's responses are decoded.
            for one in reversed(running):
                found = next(one)
            if found is not None:
                running.popleft()
                yield found

    def _batch(self, names: list[str]) -> Iterator[list[Found] | None]:
        """Yields None after each round of requests, and finally the result."""
        groups = [self._group(name) for name in names]
        asked = [group for group in groups if group.offsets is not None]
        answers = self._begin_lists([group.root for group in asked])
        yield None
        topics: list[tuple[_Group, bytes, bytes]] = []
        for group, vector in zip(asked, answers(), strict=True):
            if isinstance(vector, bytes):
                topics += [(group, topic, group.root + b"/" + topic) for topic in self._names_in(vector)]
            else:
                group.offsets = None
        answers = self._begin_lists([path for _, _, path in topics])
        yield None
        parts: list[_Part] = []
        for (group, topic, path), vector in zip(topics, answers(), strict=True):
            directory = (
                self._directory(topic, vector) if isinstance(vector, bytes) and len(path) <= _LONGEST_PATH else None
            )
            if directory is None:
                group.offsets = None
            else:
                parts += self._parts(group, directory, path)
        nodes = self._begin_gets(parts)
        yield None
        _take_in(parts, nodes())
        yield [(group.name, group.offsets) for group in groups]

    def _group(self, name: str) -> _Group:
        try:
            root = (self._session.chroot + self._layout.offsets_root(name)).encode()
        except OffsetMgrError:  # the store reports the reason
            return _Group(name, b"", None)
        return _Group(name, root, {} if len(root) <= _LONGEST_PATH else None)

    # --- shared between groups -----------------------------------------------------------------------

    def _names_in(self, vector: bytes) -> list[bytes]:
        found = self._names.get(vector)
        if found is None:
            found = [name.encode() for name in jute.names_in(vector)]
            self._keep(len(found))
            self._names[vector] = found
        return found

    def _directory(self, topic: bytes, vector: bytes) -> _Directory | None:
        """The partitions of a topic; None if a name is not a partition."""
        key = topic, vector
        if key in self._directories:
            return self._directories[key]
        names = jute.names_in(vector)
        name = topic.decode()
        partitions = [found for one in names if (found := self._layout.partition(name, one)) is not None]
        directory = _Directory(names, partitions) if len(partitions) == len(names) else None
        self._keep(len(names))
        self._directories[key] = directory
        return directory

    def _parts(self, group: _Group, directory: _Directory, path: bytes) -> list[_Part]:
        """The reads of a directory's nodes, in parts that fit a request."""
        if len(path) not in directory.pieces:
            self._keep(len(directory.partitions))
        return [_Part(group, partitions, path.join(pieces)) for partitions, pieces in directory.reads(len(path))]

    def _keep(self, nodes: int) -> None:
        self._kept += nodes
        if self._kept > _NODES_KEPT:
            self._names, self._directories, self._kept = {}, {}, nodes

    # --- requests ------------------------------------------------------------------------------------

    def _begin_lists(self, paths: list[bytes]) -> Callable[[], list[bytes | int]]:
        requests: list[BulkList] = []
        for at in range(0, len(paths), _NODES_A_REQUEST):
            some = [jute.ustring(path) for path in paths[at : at + _NODES_A_REQUEST]]
            requests.append(BulkList([jute.read_operations(Op.CHILDREN, some)], len(some)))
        answers = self._session.begin_reads(requests)
        return lambda: list(chain.from_iterable(answers()))

    def _begin_gets(self, parts: list[_Part]) -> Callable[[], list[list[NodeData | int]]]:
        requests: list[BulkGet] = []
        operations: list[bytes] = []
        count = 0
        for part in parts:
            if count + len(part.partitions) > _NODES_A_REQUEST:
                requests.append(BulkGet(operations, count))
                operations, count = [], 0
            operations.append(part.operations)
            count += len(part.partitions)
        if operations:
            requests.append(BulkGet(operations, count))
        return self._session.begin_reads(requests)


@dataclass(slots=True)
class _Group:
    name: str
    root: bytes
    offsets: Offsets | None


class _Directory:
    """The partitions of a topic, shared by all groups with the same ones."""

    def __init__(self, names: list[str], partitions: list[TopicPartition]) -> None:
        self._names = names
        self.partitions = partitions
        self.pieces: dict[int, list[tuple[list[TopicPartition], list[bytes]]]] = {}
        """By the length of the directory's path: for each part its partitions, and the byte strings that the path joins
        to operations."""

    def reads(self, length: int) -> list[tuple[list[TopicPartition], list[bytes]]]:
        found = self.pieces.get(length)
        if found is None:
            raw = [name.encode() for name in self._names]
            size = _NODES_A_REQUEST
            found = self.pieces[length] = [
                (self.partitions[at : at + size], jute.read_operations_below(Op.GET, length, raw[at : at + size]))
                for at in range(0, len(raw), size)
            ]
        return found


@dataclass(slots=True)
class _Part:
    """Some nodes of one directory, and the operations that read them."""

    group: _Group
    partitions: list[TopicPartition]
    operations: bytes


def _take_in(parts: list[_Part], answers: list[list[NodeData | int]]) -> None:
    """Adds each part's nodes to its group's offsets."""
    new, nodes = tuple.__new__, chain.from_iterable(answers)
    for part in parts:
        found = list(islice(nodes, len(part.partitions)))
        offsets = part.group.offsets
        if offsets is None:  # another part of the group was not a common one
            continue
        try:
            data, _, _, times, versions, _ = zip(*found, strict=True)  # all at once, if all nodes exist
        except TypeError:
            _take_in_singly(part, found, offsets)
            continue
        if not all(map(bytes.isdigit, data)) or max(map(len, data)) > SURE_DIGITS:
            part.group.offsets = None
            continue
        values = zip(map(int, data), repeat(""), repeat(None), times, versions, strict=False)
        offsets.update(zip(part.partitions, map(new, repeat(Committed), values), strict=True))


def _take_in_singly(part: _Part, found: list[NodeData | int], offsets: Offsets) -> None:
    for partition, node in zip(part.partitions, found, strict=True):
        if isinstance(node, NodeData) and node.data.isdigit() and len(node.data) <= SURE_DIGITS:
            offsets[partition] = Committed(int(node.data), "", None, node.mtime_ms, node.version)
        elif node != ZookeeperError.NO_NODE:  # deleted since its parent was listed
            part.group.offsets = None
