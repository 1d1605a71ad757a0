"""`ZookeeperStore`: committed offsets in ZooKeeper, as the old high-level consumers store them.

`offsetmgr.zookeeper` reads and writes the nodes. This module implements `OffsetStore` with that package.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice
from typing import Any, Final

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.advice import Advice, Invocation
from offsetmgr.core.batches import batched
from offsetmgr.core.errors import Conflict, CorruptData, OffsetMgrError, value_of
from offsetmgr.core.log_origin import UNNAMED, LogOrigin
from offsetmgr.core.model import Committed, Offset, TopicPartition, is_valid_topic_name
from offsetmgr.core.offset_store import (
    Capabilities,
    ChangeOutcome,
    EditStatus,
    GroupEdit,
    GroupEditResult,
    GroupOffsets,
    OffsetStore,
    SavedNode,
    StoreIdentity,
    UnrecognisedData,
    fetched,
    hidden_offsets,
)
from offsetmgr.zookeeper.client.jute import NodeData
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.groups.registry import forget_commits, members_many
from offsetmgr.zookeeper.nodes import paths
from offsetmgr.zookeeper.nodes.cluster import parse_cluster_id
from offsetmgr.zookeeper.nodes.offset_data import decimal_commit
from offsetmgr.zookeeper.nodes.topics import parse_topic
from offsetmgr.zookeeper.offsets.bulk_scan import BulkScan
from offsetmgr.zookeeper.offsets.edits import execute
from offsetmgr.zookeeper.offsets.group_nodes import (
    GroupNodes,
    delete_tree,
    foreign_data,
    locate_directories,
    read_groups,
    restore_tree,
    save_tree,
)
from offsetmgr.zookeeper.offsets.layouts import Layout, existing_topic_directories, layout_named

MAX_GROUPS_IN_FLIGHT: Final = 200
"""The maximum number of groups that a scan has in flight, which limits the memory of the scan."""


class ZookeeperStore(OffsetStore):
    """Offsets under ``/consumers`` of a ZooKeeper ensemble. The constructor performs no I/O; the first call connects.

    The timestamp of a commit is the time at which ZooKeeper wrote the node; its version is the data version of the
    node. The nodes contain neither metadata nor leader epochs. The deletion of an offset does not delete the nodes of
    its topic and group; `delete_group` deletes these nodes too.

    `groups`, `fetch`, `scan` and `identity` raise `Unreachable`, `TimedOut` and `AuthenticationFailed`, and also
    `ServerError` if the chroot does not exist. `scan` and `edit` raise these only if the whole ensemble cannot be used.
    """

    parallel_calls = 2

    def __init__(
        self, connect: str, layout: str = "0.8", config: ConnectionConfig | None = None, root: str = ""
    ) -> None:
        """``connect`` is ``h1:2181,h2:2181/chroot``; for ``layout`` and ``root`` see `layout_named`. Raises
        `InvalidUri`."""
        self._layout = layout_named(layout, root)
        self.layout = self._layout.name
        """The layout's name, as in the URI."""
        self.registered = self._layout.has_registry
        """Whether the consumers of these offsets register in this ZooKeeper (Storm's spouts do not)."""
        self.session = ZookeeperSession(connect, config)
        """The session of the store, which callers may use for other nodes (members, owners). `close` closes it."""

    @property
    def uri(self) -> str:
        return f"zookeeper://{self.session.connect}?{self._layout.query}"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            metadata=False,
            leader_epoch=False,
            commit_timestamp=True,
            conditional="version",
            partitions=self._layout.partitions,
        )

    def address_doubt(self) -> str:
        with suppress(OffsetMgrError):
            if (origin := self.log_origin()).cluster_id or origin.brokers:
                return ""
        return "is the chroot right?"

    def identity(self) -> StoreIdentity:
        """Returns the id of the Kafka cluster under this chroot. If there is no such id, returns an id that is derived
        from the connect string and the creation of ``/brokers`` (data rule "migration is a state machine on disk").

        Stores with different layouts under the same chroot have different ids. Raises `CorruptData` if the node with
        the cluster id cannot be decoded.
        """
        found = self._cluster_identity()
        if self._layout.name == Layout.name:
            return found
        kind = "zookeeper" if self._layout.has_registry else self._layout.name
        query = self._layout.query
        former = tuple(f"{one}#{query}" for one in found.former)
        return StoreIdentity(kind, f"{found.id}#{query}", f"{query}; {found.how}", former)

    def _cluster_identity(self) -> StoreIdentity:
        found, brokers = self.session.get_many([paths.CLUSTER_ID, paths.BROKERS])
        cluster = value_of(found)
        # The hosts are sorted, so that their order in the connect string does not change the id.
        where = ",".join(sorted(self.session.hosts.split(","))) + self.session.chroot
        created = f"{where}#brokers:{brokers.czxid}:{brokers.ctime_ms}" if isinstance(brokers, NodeData) else ""
        if cluster is not None:
            cluster_id = parse_cluster_id(paths.CLUSTER_ID, cluster.data)
            how = f"cluster id in {self.session.chroot}{paths.CLUSTER_ID}"
            return StoreIdentity("zookeeper", cluster_id, how, (created,) if created else ())
        if value_of(brokers) is None:
            return StoreIdentity("zookeeper", where, "connect string; no cluster id and no /brokers there")
        how = "connect string, and creation (zxid, time in ms) of /brokers; no cluster id there"
        return StoreIdentity("zookeeper", created, how)

    has_topic_creation_times = True

    def log_origin(self) -> LogOrigin:
        """Returns the cluster id under this chroot (brokers before 0.10.1 write none) and the live brokers' addresses.
        For Storm's layout the origin is unknown."""
        from offsetmgr.zookeeper.nodes.cluster_nodes import brokers

        if not self._layout.has_registry:
            return replace(UNNAMED, how="Storm's ZooKeeper names no Kafka cluster")
        node = self.session.get(paths.CLUSTER_ID)
        found = [entry.value for entry in brokers(self.session) if entry.value is not None]
        addresses = frozenset(f"{at.host.lower()}:{at.port}" for broker in found for at in broker.endpoints)
        if node is not None:
            where = f"cluster id in {self.session.chroot}{paths.CLUSTER_ID}"
            return LogOrigin(parse_cluster_id(paths.CLUSTER_ID, node.data), where, addresses)
        at = f"{self.session.chroot}{paths.BROKER_IDS}"
        listed = f"{at} lists {', '.join(sorted(addresses)[:3])}" if addresses else f"{at} lists no broker"
        return LogOrigin(None, f"no {self.session.chroot}{paths.CLUSTER_ID}, and {listed}", addresses)

    def topic_ids(self, topics: Iterable[str] | None = None) -> Mapping[str, str]:
        """Returns the topic ids in ``/brokers/topics``; brokers write them from release 2.8 on."""
        if not self._layout.has_registry:
            return {}
        names = self.session.children(paths.BROKER_TOPICS) or () if topics is None else topics
        found = {}
        for topic, node in self._topic_nodes(names):
            with suppress(OffsetMgrError):  # the id of a node that cannot be decoded is unknown
                if (topic_id := parse_topic(f"{paths.BROKER_TOPICS}/{topic}", node.data, []).topic_id) is not None:
                    found[topic] = topic_id
        return found

    def topic_creation_times(self, topics: Iterable[str]) -> Mapping[str, int]:
        """Returns the creation times of the nodes in ``/brokers/topics``; ZooKeeper's clock also dates the commits."""
        if not self._layout.has_registry:
            return {}
        return {topic: node.ctime_ms for topic, node in self._topic_nodes(topics)}

    def _topic_nodes(self, topics: Iterable[str]) -> Iterator[tuple[str, NodeData]]:
        names = [topic for topic in topics if is_valid_topic_name(topic)]
        found = self.session.get_many([f"{paths.BROKER_TOPICS}/{topic}" for topic in names])
        for topic, node in zip(names, found, strict=True):
            if isinstance(node, NodeData):
                yield topic, node

    # --- reading ----------------------------------------------------------------------------------

    def check_group(self, group: str) -> None:
        paths.check_group(group)

    def groups(self) -> Iterator[str]:
        """Returns all children of ``/consumers`` (or of the spouts' root), with or without offsets."""
        return iter(self.session.children(self._layout.groups_root) or ())

    def fetch(self, group: str, partitions: Iterable[TopicPartition] | None = None) -> Mapping[TopicPartition, Offset]:
        """Works as `OffsetStore.fetch`. Raises `UsageError` for a group or topic that cannot exist in ZooKeeper."""
        if partitions is None:
            (found,) = self._scan_batch([group])
            if (error := found.error or (None if found.offsets else found.hidden)) is not None:
                raise error
            return fetched(f"fetch of group {group}", found.offsets, found.errors, None)
        locate_directories(self.session, self._layout, [group])
        requested = list(partitions)
        topics = ((group, tp.topic) for tp in requested)
        directories = existing_topic_directories(self.session, self._layout, topics)
        path_of = {tp: self._layout.path(group, tp, directories) for tp in requested}
        offsets: dict[TopicPartition, Offset] = {}
        errors: dict[TopicPartition, OffsetMgrError] = {}
        above = {tp.topic: path.rpartition("/")[0] for tp, path in path_of.items()} if self.registered else {}
        nodes = iter(self.session.get_many([*path_of.values(), *above.values()]))
        missing = []
        for (partition, path), node in zip(path_of.items(), nodes, strict=False):
            if node is not None:
                self._decode_into(partition, path, node, offsets, errors)
            else:
                missing.append(partition)
        hidden = {
            topic: hidden_offsets(group, [foreign_data(self.session.chroot + path, node.data, True)], known=True)
            for (topic, path), node in zip(above.items(), nodes, strict=True)
            if isinstance(node, NodeData) and not paths.is_directory(node.data)
        }
        errors |= {tp: error for tp in missing if (error := hidden.get(tp.topic)) is not None}
        # A partition has no commit if its node is missing or contains the offset of another topic.
        return fetched(f"fetch of group {group}", offsets, errors, path_of)

    def scan(self, groups: Iterable[str]) -> Iterator[GroupOffsets]:
        """Works as `OffsetStore.scan`, with up to `MAX_GROUPS_IN_FLIGHT` groups in flight. Keeps their order."""
        remaining = iter(groups)
        while batch := list(islice(remaining, 1)):
            if self._layout.topic_in_data or not self.session.supports_bulk_reads():
                yield from self._scan_batch([*batch, *islice(remaining, MAX_GROUPS_IN_FLIGHT - 1)])
                continue
            scan = BulkScan(self.session, self._layout)
            for found in scan.scan(chain(batch, remaining)):
                incomplete = [group for group, offsets in found if offsets is None]
                others = iter(self._scan_batch(incomplete)) if incomplete else iter(())
                for group, offsets in found:
                    yield next(others) if offsets is None else GroupOffsets(group, offsets)

    def _scan_batch(self, groups: list[str]) -> list[GroupOffsets]:
        return [self._decoded(found) for found in read_groups(self.session, self._layout, groups)]

    def _decoded(self, found: GroupNodes) -> GroupOffsets:
        offsets: dict[TopicPartition, Committed] = {}
        errors: dict[TopicPartition, OffsetMgrError] = {}
        error = next(iter(found.errors.values()), None)
        for partition, path, node in found.offsets if error is None else ():
            if not self._layout.topic_in_data and (commit := decimal_commit(node)) is not None:
                offsets[partition] = commit
                continue
            self._decode_into(partition, path, node, offsets, errors)
            error = errors.get(TopicPartition("", partition.partition))  # the node's topic is unknown
            if error is not None:
                break
        unrecognised = tuple(found.unrecognised)
        if error is not None:
            return GroupOffsets(found.group, {}, {}, error, unrecognised=unrecognised)
        hidden = hidden_offsets(found.group, unrecognised, known=bool(found.offsets))
        return GroupOffsets(found.group, offsets, errors, unrecognised=unrecognised, hidden=hidden)

    def _decode_into(
        self,
        partition: TopicPartition,
        path: str,
        node: NodeData | OffsetMgrError,
        offsets: MutableMapping[TopicPartition, Any],
        errors: dict[TopicPartition, OffsetMgrError],
    ) -> None:
        if isinstance(node, OffsetMgrError):
            errors[partition] = node
            return
        try:
            tp, offset = self._layout.decode(self.session.chroot + path, node.data, partition)
        except OffsetMgrError as error:
            written_for = self._layout.topic(node.data)
            topic = partition.topic or written_for
            if isinstance(error, CorruptData) and written_for in ("", topic):  # an edit must not replace other topics
                error.data = node.data
            errors[TopicPartition(topic, partition.partition)] = error
            return
        in_its_directory = path.count("/") == self._layout.groups_root.count("/") + 3
        if self._layout.topic_in_data and in_its_directory and tp != partition:
            what, why = f"ZooKeeper node {self.session.chroot}{path}", f"its 'topic' is {tp.topic!r}"
            hint = "find out which topology writes the node, and delete the other's directory"
            errors[partition] = CorruptData(what, f"{why}, but its directory is {partition.topic!r}", hint)
            return
        if self._layout.topic_in_data and (tp in offsets or tp in errors):
            offsets.pop(tp, None)
            why = f"ZooKeeper node {self.session.chroot}{path} is one of two nodes for it; either may be valid"
            errors[tp] = CorruptData(f"offset of {tp}", why, "delete the node that no topology uses")
            return
        offsets[tp] = Committed(offset, "", None, node.mtime_ms, node.version)

    # --- writing ----------------------------------------------------------------------------------

    def edit(self, edits: Iterable[GroupEdit]) -> Iterator[GroupEditResult]:
        """Works as `OffsetStore.edit`, by compare-and-set on each node's version, with many groups in one transaction.

        An ``expected`` commit without a version is compared by its offset. `Guard` is ignored. A node that cannot be
        decoded is not overwritten. Results are returned in the order of the edits.
        """
        for result in execute(self.session, self._layout, edits):
            forget_commits(self.session, result.group)
            yield result

    def delete_group(self, group: str, saved: Sequence[SavedNode] | None = None) -> GroupEditResult:
        """Deletes all nodes of a group and returns its offsets as before-images. See `GroupTreeStore`.

        Raises `GroupNotFound`, `GroupActive` while consumers may run, `Conflict` if another client changed the group
        meanwhile. Without ``saved`` also raises the errors of `fetch`, and `Conflict` for data of other clients.
        """
        if self.registered:
            (found,) = members_many(self.session, [group])
            found.require_none(f"delete of group {group}")
        before: Mapping[TopicPartition, Offset] = {}
        if saved is None:
            (read,) = self._scan_batch([group])
            if read.error is not None:
                raise read.error
            before = fetched(f"fetch of group {group}", read.offsets, read.errors, None)
            if read.unrecognised:
                hint = Advice("{} keeps it in its before-image", Invocation("groups delete"))
                raise Conflict(f"delete of group {group}", str(read.unrecognised[0]), hint)
            saved = self.saved_tree(group)
        delete_tree(self.session, group, self._layout.group_root(group), saved)
        return GroupEditResult(group, {tp: ChangeOutcome(EditStatus.WRITTEN, found) for tp, found in before.items()})

    def saved_tree(self, group: str, unsaved: Container[str] = ()) -> tuple[SavedNode, ...]:
        """See `GroupTreeStore`."""
        return save_tree(self.session, group, self._layout.group_root(group), unsaved)

    def restore_tree(self, group: str, nodes: Sequence[SavedNode]) -> int:
        """See `GroupTreeStore`."""
        forget_commits(self.session, group)
        return restore_tree(self.session, group, self._layout.group_root(group), nodes)

    def unrecognised(self, groups: Iterable[str]) -> Iterator[UnrecognisedData]:
        """See `GroupTreeStore`."""
        for batch in batched(groups, MAX_GROUPS_IN_FLIGHT):
            for found in read_groups(self.session, self._layout, batch, offsets=False):
                yield from found.unrecognised

    def close(self) -> None:
        self.session.close()
