"""`ZookeeperStore`: committed offsets in ZooKeeper, as the old high-level consumers store them.

`offsetmgr.zookeeper` reads and writes the nodes. This module implements `OffsetStore` with that package.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice
from typing import Any, Final

from offsetmgr.config.connection import ConnectionConfig
from offsetmgr.core.errors import Conflict, CorruptData, GroupActive, GroupNotFound, OffsetMgrError, PartialFailure
from offsetmgr.core.log_origin import UNNAMED, LogOrigin
from offsetmgr.core.model import ABSENT, Committed, Offset, TopicPartition, is_valid_topic_name
from offsetmgr.core.offset_store import (
    Capabilities,
    Change,
    ChangeOutcome,
    EditStatus,
    GroupEdit,
    GroupEditResult,
    GroupOffsets,
    StoreBase,
    StoreIdentity,
)
from offsetmgr.zookeeper.client.conditional_writes import RACES
from offsetmgr.zookeeper.client.jute import NodeData, ZookeeperError
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.client.transactions import MAX_BYTES_PER_TRANSACTION, Delete, max_encoded_size
from offsetmgr.zookeeper.groups.registry import members
from offsetmgr.zookeeper.nodes import paths
from offsetmgr.zookeeper.nodes.cluster import parse_cluster_id
from offsetmgr.zookeeper.nodes.offset_data import decimal_commit
from offsetmgr.zookeeper.nodes.topics import parse_topic
from offsetmgr.zookeeper.offsets.bulk_edits import execute
from offsetmgr.zookeeper.offsets.bulk_scan import BulkScan
from offsetmgr.zookeeper.offsets.layouts import OTHER_LAYOUT_HINTS, ConsumersLayout, layout_named
from offsetmgr.zookeeper.offsets.topic_directories import existing_topic_directories, in_directory

MAX_GROUPS_IN_FLIGHT: Final = 200
"""The maximum number of groups that a scan has in flight, which limits the memory of the scan."""

_MAX_CACHED_PARTITIONS: Final = 100_000


class ZookeeperStore(StoreBase):
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
        """``connect`` is ``h1:2181,h2:2181/chroot``; ``root`` is the ``zkRoot`` of Storm's spouts (layout ``storm``).

        Raises `InvalidUri`, and `UsageError` for an unknown layout or an invalid root.
        """
        self._layout = layout_named(layout, root)
        self.capabilities = Capabilities(
            metadata=False,
            leader_epoch=False,
            commit_timestamp=True,
            conditional="version",
            partitions=self._layout.partitions,
        )
        self.session = ZookeeperSession(connect, config)
        """The session of the store, which callers may use for other nodes (members, owners). `close` closes it."""
        self._partition_cache: dict[str, dict[str, TopicPartition | None]] = {}

    @property
    def uri(self) -> str:
        return f"zookeeper://{self.session.connect}?{self._layout.query}"

    @property
    def layout(self) -> str:
        """The layout's name, as in the URI."""
        return self._layout.name

    @property
    def registered(self) -> bool:
        """Whether the consumers of these offsets register in this ZooKeeper (Storm's spouts do not)."""
        return self._layout.has_registry

    def identity(self) -> StoreIdentity:
        """Returns the id of the Kafka cluster under this chroot. If there is no such id, returns an id that is derived
        from the connect string and the creation of ``/brokers`` (data rule "migration is a state machine on disk").

        Stores with different layouts under the same chroot have different ids. Raises `CorruptData` if the node with
        the cluster id cannot be decoded.
        """
        found = self._cluster_identity()
        if self._layout.name == ConsumersLayout.name:
            return found
        kind = "zookeeper" if self._layout.has_registry else self._layout.name
        query = self._layout.query
        former = tuple(f"{one}#{query}" for one in found.former)
        return StoreIdentity(kind, f"{found.id}#{query}", f"{query}; {found.how}", former)

    def _cluster_identity(self) -> StoreIdentity:
        cluster, brokers = self.session.get_many([paths.CLUSTER_ID, paths.BROKERS])
        if isinstance(cluster, OffsetMgrError):
            raise cluster
        # The hosts are sorted, so that their order in the connect string does not change the id.
        where = ",".join(sorted(self.session.hosts.split(","))) + self.session.chroot
        created = f"{where}#brokers:{brokers.czxid}:{brokers.ctime_ms}" if isinstance(brokers, NodeData) else ""
        if cluster is not None:
            cluster_id = parse_cluster_id(paths.CLUSTER_ID, cluster.data)
            how = f"cluster id in {self.session.chroot}{paths.CLUSTER_ID}"
            return StoreIdentity("zookeeper", cluster_id, how, (created,) if created else ())
        if isinstance(brokers, OffsetMgrError):
            raise brokers
        if brokers is None:
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
        (node,) = self.session.get_many([paths.CLUSTER_ID])
        if isinstance(node, OffsetMgrError):
            raise node
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
        """See `offsetmgr.core.offset_store.GroupNameValidator`."""
        paths.check_group(group)

    def groups(self) -> Iterator[str]:
        """Returns all children of ``/consumers`` (or of the spouts' root), with or without offsets."""
        return iter(self.session.children(self._layout.groups_root) or ())

    def fetch(self, group: str, partitions: Iterable[TopicPartition] | None = None) -> Mapping[TopicPartition, Offset]:
        """Works as `OffsetStore.fetch`. Raises `UsageError` for a group or topic that cannot exist in ZooKeeper."""
        if partitions is None:
            (found,) = self._scan_batch([group])
            if found.error is not None:
                raise found.error
            return self._all_or_partial_failure(group, found.offsets, found.errors)
        path_of = self._paths_of(group, list(partitions))
        offsets: dict[TopicPartition, Offset] = {}
        errors: dict[TopicPartition, OffsetMgrError] = {}
        for (partition, path), node in zip(path_of.items(), self.session.get_many(list(path_of.values())), strict=True):
            if node is not None:
                self._decode_into(partition, path, node, offsets, errors)
        # A partition has no commit if its node is missing or contains the offset of another topic.
        offsets = {tp: offsets.get(tp, ABSENT) for tp in path_of if tp not in errors}
        return self._all_or_partial_failure(group, offsets, errors)

    def _paths_of(self, group: str, partitions: list[TopicPartition]) -> dict[TopicPartition, str]:
        """Returns the path of each partition's node."""
        paths_of = {partition: self._layout.path(group, partition) for partition in partitions}
        if not self._layout.topic_in_data:
            return paths_of
        directories = existing_topic_directories(self.session, self._layout, ((group, tp.topic) for tp in paths_of))
        return {
            tp: in_directory(path, tp) if self._layout.topic_directory(group, tp.topic) in directories else path
            for tp, path in paths_of.items()
        }

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
                    yield next(others) if offsets is None else GroupOffsets(group, offsets, as_of=scan.as_of)

    def _scan_batch(self, groups: list[str]) -> list[GroupOffsets]:
        failed: dict[str, OffsetMgrError] = {}
        found = self._list_nodes(groups, failed)
        offsets: dict[str, dict[TopicPartition, Committed]] = {group: {} for group in groups}
        errors: dict[str, dict[TopicPartition, OffsetMgrError]] = {group: {} for group in groups}
        data = self.session.get_many([path for _, _, path in found])
        decimal = not self._layout.topic_in_data
        for (group, partition, path), node in zip(found, data, strict=True):
            if node is None:  # deleted since its parent was listed
                continue
            if decimal and (commit := decimal_commit(node)) is not None:
                offsets[group][partition] = commit
                continue
            self._decode_into(partition, path, node, offsets[group], errors[group])
            if errors[group] and (unknown := errors[group].get(TopicPartition("", partition.partition))):
                failed[group] = unknown  # the node's topic is unknown
        return [
            GroupOffsets(group, {}, {}, failed[group])
            if group in failed
            else GroupOffsets(group, offsets[group], errors[group])
            for group in groups
        ]

    def _list_nodes(
        self, groups: list[str], failed: dict[str, OffsetMgrError]
    ) -> list[tuple[str, TopicPartition, str]]:
        """Returns group, partition and path of each node with an offset; adds the errors of groups to ``failed``."""
        roots: dict[str, str] = {}
        for group in groups:
            try:
                roots[group] = self._layout.offsets_root(group)
            except OffsetMgrError as error:
                failed[group] = error
        found: list[tuple[str, TopicPartition, str]] = []
        topics: list[tuple[str, str, str]] = []
        listed = self.session.children_many(list(roots.values()))
        for (group, root), names in zip(roots.items(), listed, strict=True):
            if isinstance(names, OffsetMgrError):
                failed[group] = names
                continue
            for name in names or ():  # None if the group has no offsets or does not exist
                if self._layout.topic_in_data and (partition := self._layout.partition("", name)) is not None:
                    found.append((group, partition, f"{root}/{name}"))
                else:
                    topics.append((group, name, f"{root}/{name}"))
        for (group, topic, path), children in zip(
            topics, self.session.children_many([path for _, _, path in topics]), strict=True
        ):
            if isinstance(children, OffsetMgrError):
                failed[group] = children
                continue
            known = self._cached_partitions(topic)
            for name in children or ():
                partition = known[name] if name in known else self._parse_partition(known, topic, name)
                if partition is None:
                    failed[group] = self._not_a_partition(f"{path}/{name}")
                else:
                    found.append((group, partition, f"{path}/{name}"))
        return found

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
            topic = partition.topic or self._layout.topic(node.data)
            errors[TopicPartition(topic, partition.partition)] = error
            return
        if self._layout.topic_in_data and (tp in offsets or tp in errors):
            offsets.pop(tp, None)
            why = f"ZooKeeper node {self.session.chroot}{path} is one of two nodes for it; either may be valid"
            errors[tp] = CorruptData(f"offset of {tp}", why, "delete the node that no topology uses")
            return
        offsets[tp] = Committed(offset, "", None, node.mtime_ms, node.version)

    def _cached_partitions(self, topic: str) -> dict[str, TopicPartition | None]:
        """Returns a topic's cached partitions by node name. All groups that consume the topic share these objects."""
        if len(self._partition_cache) > _MAX_CACHED_PARTITIONS // 10:
            self._partition_cache = {}
        return self._partition_cache.setdefault(topic, {})

    def _parse_partition(self, known: dict[str, TopicPartition | None], topic: str, name: str) -> TopicPartition | None:
        partition = self._layout.partition(topic, name)
        if len(known) < _MAX_CACHED_PARTITIONS:
            known[name] = partition
        return partition

    def _not_a_partition(self, path: str) -> CorruptData:
        return CorruptData(
            f"ZooKeeper node {self.session.chroot}{path}",
            f"its name is not a partition in layout {self._layout.name}, so some offsets of the group may be missing",
            OTHER_LAYOUT_HINTS[self._layout.name],
        )

    def _all_or_partial_failure(
        self, group: str, offsets: Mapping[TopicPartition, Offset], errors: Mapping[TopicPartition, OffsetMgrError]
    ) -> Mapping[TopicPartition, Offset]:
        if errors:
            raise PartialFailure(f"fetch of group {group}", successes=offsets, failures=errors)
        return offsets

    # --- writing ----------------------------------------------------------------------------------

    def edit(self, edits: Iterable[GroupEdit]) -> Iterator[GroupEditResult]:
        """Works as `OffsetStore.edit`, by compare-and-set on each node's version, with many groups in one transaction.

        An ``expected`` commit without a version is compared by its offset. `Guard` is ignored. A node that cannot be
        decoded is not overwritten. Results are returned in the order of the edits.
        """
        return execute(self.session, self._layout, edits)

    def delete_group(self, group: str) -> GroupEditResult:
        """Deletes all nodes of a group and returns its offsets as before-images.

        Raises `GroupNotFound`, `GroupActive` while consumers are registered, `Conflict` if another client changed the
        group meanwhile, and the errors of `fetch` if a before-image cannot be read.
        """
        if self.registered and (alive := members(self.session, group)):
            names = tuple(member.member_id for member in alive)
            why = f"{len(names)} consumers are registered: {', '.join(names[:3])}"
            raise GroupActive(f"delete of group {group}", why, "stop them first", members=names)
        root = self._layout.group_root(group)
        tree = self.session.tree(root)
        if not tree:
            raise GroupNotFound(f"delete of group {group}", f"there is no {self.session.chroot}{root}")
        before = self._offsets_in(tree, group)
        # Children before their parents. A consumer that registers meanwhile adds a child, so the transaction fails.
        deletions = [Delete(path, tree[path].version) for path in sorted(tree, key=lambda p: -p.count("/"))]
        if sum(map(max_encoded_size, deletions)) > MAX_BYTES_PER_TRANSACTION:
            # Too large for one transaction: first delete each offset conditionally, then all other nodes at once.
            self._edit_one("delete", GroupEdit(group, {tp: Change(None, found) for tp, found in before.items()}))
            gone = set(self._paths_of(group, list(before)).values())
            deletions = [deletion for deletion in deletions if deletion.path not in gone]
        outcome = self.session.transaction(deletions)
        if outcome.code in RACES | {ZookeeperError.NOT_EMPTY}:
            raise Conflict(f"delete of group {group}", "another client changed it meanwhile", "try again later")
        if outcome.error is not None:
            raise outcome.error
        return GroupEditResult(group, {tp: ChangeOutcome(EditStatus.WRITTEN, found) for tp, found in before.items()})

    def _offsets_in(self, tree: Mapping[str, NodeData], group: str) -> dict[TopicPartition, Committed]:
        """Returns the commits in the nodes of a group. Raises `CorruptData`, `PartialFailure`."""
        root = f"{self._layout.offsets_root(group)}/"
        offsets: dict[TopicPartition, Committed] = {}
        errors: dict[TopicPartition, OffsetMgrError] = {}
        for path, node in sorted(tree.items()):
            if not path.startswith(root):
                continue
            topic, slash, name = path.removeprefix(root).partition("/")
            if not slash:
                if not self._layout.topic_in_data or self._layout.partition("", topic) is None:
                    continue
                topic, name = "", topic
            partition = self._layout.partition(topic, name)
            if partition is None:
                raise self._not_a_partition(path)
            self._decode_into(partition, path, node, offsets, errors)
        self._all_or_partial_failure(group, offsets, errors)
        return offsets

    def close(self) -> None:
        self.session.close()
