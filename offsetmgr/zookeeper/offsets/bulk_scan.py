"""`BulkScan`: reads the offsets of many groups, optimized for groups whose nodes are all regular.

A group is regular if its node has no other children than `group_nodes.KNOWN`, the children of its offsets' root are
topics, the children of the topics are partitions, which have no children, the data of each partition's node is a
decimal offset, and no other node has data. A group is not regular if a node is missing or unreadable, if a node's name
is not a partition number, or if a node's data is not a decimal number. For groups that are not regular, the scan
returns no offsets, and the store that started the scan reads these groups.

A scan sends three rounds of requests for each batch of groups: for topics, partitions and offsets. To build the
requests of a round, the scan needs the names in the previous round's responses. Several batches are in progress at
once, each in a different round, so the server reads nodes for newer batches while the client decodes the responses for
the oldest batch. Because most groups share topics and partitions with other groups, the scan caches encoded requests
and decoded names.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice, repeat
from typing import Final, TypeAlias, TypeVar

from offsetmgr.core.batches import batched_by_size
from offsetmgr.core.errors import OffsetMgrError
from offsetmgr.core.model import Committed, TopicPartition
from offsetmgr.zookeeper.client import jute
from offsetmgr.zookeeper.client.jute import NodeData, Op, ZookeeperError
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.transactions import BULK_DATA, BULK_VECTORS, BulkKind, BulkRead, split_into_requests
from offsetmgr.zookeeper.nodes.offset_data import SAFE_DIGITS, decimal_commit
from offsetmgr.zookeeper.offsets import group_nodes
from offsetmgr.zookeeper.offsets.layouts import Layout

T = TypeVar("T")
KNOWN: Final = frozenset(name.encode() for name in group_nodes.KNOWN)
GROUPS_AT_ONCE: Final = 50
"""The number of groups in one batch."""

_NODES_PER_REQUEST: Final = 500
_MAX_PATH_BYTES: Final = 1000
"""A request can hold ``_NODES_PER_REQUEST`` paths of this length."""

_MAX_CACHED_NODES: Final = 100_000

CommittedOffsets: TypeAlias = dict[TopicPartition, Committed]
NamedCommits: TypeAlias = tuple[str, CommittedOffsets | None]
"""The name of a group, and all offsets of the group. The offsets are None if the group is not regular."""


class BulkScan:
    """One scan. ``layout`` must store decimal offsets."""

    def __init__(self, session: ZookeeperSession, layout: Layout) -> None:
        self._session = session
        self._layout = layout
        self._names: dict[bytes, list[bytes]] = {}
        self._directories: dict[tuple[bytes, bytes], _TopicDirectory | None] = {}
        self._cached_nodes = 0

    def scan(self, groups: Iterable[str]) -> Iterator[list[NamedCommits]]:
        """Yields the results of each batch of groups, in the order of ``groups``.

        Raises if the session fails. Does not check whether the chroot exists.
        """
        remaining = iter(groups)
        running: deque[Iterator[list[NamedCommits] | None]] = deque()
        while True:
            if batch := list(islice(remaining, GROUPS_AT_ONCE)):
                running.append(self._batch(batch))
            if not running:
                return
            found = None
            # Continues the newest batch first, so that the server reads nodes while the client decodes the responses
            # for the oldest batch.
            for one in reversed(running):
                found = next(one)
            if found is not None:
                running.popleft()
                yield found

    def _batch(self, names: list[str]) -> Iterator[list[NamedCommits] | None]:
        """Yields None after sending each round of requests. Yields the result at the end."""
        groups = [self._group(name) for name in names]
        readable = [group for group in groups if group.offsets is not None]
        above = [path for group in readable for path in (group.parent, group.root)]
        responses = self._send(BULK_VECTORS, above)
        yield None
        topics: list[tuple[_GroupScan, bytes, bytes]] = []
        directories: list[tuple[_GroupScan, bytes]] = []
        vectors = iter(responses())
        for group, around, vector in zip(readable, vectors, vectors, strict=True):
            if isinstance(vector, bytes) and isinstance(around, bytes) and KNOWN.issuperset(self._names_in(around)):
                topics += [(group, topic, group.root + b"/" + topic) for topic in self._names_in(vector)]
                directories += [(group, group.parent + b"/" + name) for name in self._names_in(around)]
                directories.append((group, group.parent))
            else:
                group.offsets = None
        responses = self._send(BULK_VECTORS, [path for _, _, path in topics])
        directories += [(group, path) for group, _, path in topics]
        data = self._send(BULK_DATA, [path for _, path in directories])
        yield None
        for (group, _), node in zip(directories, data(), strict=True):
            if not isinstance(node, NodeData) or node.data:
                group.offsets = None
        chunks: list[_ReadChunk] = []
        for (group, topic, path), vector in zip(topics, responses(), strict=True):
            directory = (
                self._directory(topic, vector) if isinstance(vector, bytes) and len(path) <= _MAX_PATH_BYTES else None
            )
            if directory is None:
                group.offsets = None
            else:
                chunks += self._chunks(group, directory, path)
        nodes = self._send_gets(chunks)
        yield None
        _add_offsets(chunks, nodes())
        yield [(group.name, group.offsets) for group in groups]

    def _group(self, name: str) -> _GroupScan:
        try:
            parent = (self._session.chroot + self._layout.group_root(name)).encode()
        except OffsetMgrError:  # the group is not regular; the store reports the error
            return _GroupScan(name, b"", b"", None)
        return _GroupScan(name, parent, parent + b"/offsets", {} if len(parent) < _MAX_PATH_BYTES - 8 else None)

    # --- caches, shared by all groups ----------------------------------------------------------------

    def _names_in(self, vector: bytes) -> list[bytes]:
        found = self._names.get(vector)
        if found is None:
            found = [name.encode() for name in jute.names_in(vector)]
            self._count_cached(len(found))
            self._names[vector] = found
        return found

    def _directory(self, topic: bytes, vector: bytes) -> _TopicDirectory | None:
        """Returns the partitions of a topic, or None if a child's name is not a partition number."""
        key = topic, vector
        if key in self._directories:
            return self._directories[key]
        names = jute.names_in(vector)
        name = topic.decode()
        partitions = [found for one in names if (found := self._layout.partition(name, one)) is not None]
        directory = _TopicDirectory(names, partitions) if len(partitions) == len(names) else None
        self._count_cached(len(names))
        self._directories[key] = directory
        return directory

    def _chunks(self, group: _GroupScan, directory: _TopicDirectory, path: bytes) -> list[_ReadChunk]:
        """Returns the reads of a topic directory's nodes, divided into chunks that each fit in one request."""
        if len(path) not in directory.templates:
            self._count_cached(len(directory.partitions))
        return [
            _ReadChunk(group, partitions, path.join(templates)) for partitions, templates in directory.reads(len(path))
        ]

    def _count_cached(self, nodes: int) -> None:
        self._cached_nodes += nodes
        if self._cached_nodes > _MAX_CACHED_NODES:
            self._names, self._directories, self._cached_nodes = {}, {}, nodes

    # --- requests ------------------------------------------------------------------------------------

    def _send(self, kind: BulkKind[T], paths: list[bytes]) -> Callable[[], list[T]]:
        responses = self._session.begin_reads([BulkRead.of(kind, some) for some in split_into_requests(paths)])
        return lambda: list(chain.from_iterable(responses()))

    def _send_gets(self, chunks: list[_ReadChunk]) -> Callable[[], list[list[NodeData | int]]]:
        return self._session.begin_reads(
            [
                BulkRead(BULK_DATA, [chunk.operations for chunk in some], sum(len(chunk.partitions) for chunk in some))
                for some in batched_by_size(chunks, lambda chunk: len(chunk.partitions), _NODES_PER_REQUEST)
            ]
        )


@dataclass(slots=True)
class _GroupScan:
    """A group whose scan is in progress. ``offsets`` is None if the group is not regular."""

    name: str
    parent: bytes
    root: bytes
    offsets: CommittedOffsets | None


class _TopicDirectory:
    """The partitions of a topic. All groups that have offsets in the same partitions of the topic share one object."""

    def __init__(self, names: list[str], partitions: list[TopicPartition]) -> None:
        self._names = names
        self.partitions = partitions
        self.templates: dict[int, list[tuple[list[TopicPartition], list[bytes]]]] = {}
        """Length of the topic directory's path -> chunks. A chunk consists of partitions and the template of the
        operations that read them (see `jute.read_operations_below`)."""

    def reads(self, length: int) -> list[tuple[list[TopicPartition], list[bytes]]]:
        found = self.templates.get(length)
        if found is None:
            raw = [name.encode() for name in self._names]
            size = _NODES_PER_REQUEST
            found = self.templates[length] = [
                (self.partitions[at : at + size], jute.read_operations_below(Op.GET, length, raw[at : at + size]))
                for at in range(0, len(raw), size)
            ]
        return found


@dataclass(slots=True)
class _ReadChunk:
    """Some nodes of one topic directory, and the encoded operations that read them."""

    group: _GroupScan
    partitions: list[TopicPartition]
    operations: bytes


def _add_offsets(chunks: list[_ReadChunk], responses: list[list[NodeData | int]]) -> None:
    """Adds the offsets in each chunk's nodes to the chunk's group."""
    new, nodes = tuple.__new__, chain.from_iterable(responses)
    for chunk in chunks:
        found = list(islice(nodes, len(chunk.partitions)))
        offsets = chunk.group.offsets
        if offsets is None:  # another chunk showed that the group is not regular
            continue
        try:  # raises TypeError if a node is an error code
            data, _, _, times, versions, _, children = zip(*found, strict=True)
        except TypeError:
            for partition, node in zip(chunk.partitions, found, strict=True):
                if (found_commit := decimal_commit(node)) is not None:
                    offsets[partition] = found_commit
                elif node != ZookeeperError.NO_NODE:  # NO_NODE: the node was deleted after its parent was listed
                    chunk.group.offsets = None
            continue
        if not all(map(bytes.isdigit, data)) or max(map(len, data)) > SAFE_DIGITS or any(children):
            chunk.group.offsets = None
            continue
        values = zip(map(int, data), repeat(""), repeat(None), times, versions, strict=False)
        offsets.update(zip(chunk.partitions, map(new, repeat(Committed), values), strict=True))
