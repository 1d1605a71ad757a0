"""Reads a cluster's nodes in bulk: brokers, controller and controller requests.

Each result is a value or an error, so a corrupt node does not prevent the results for other nodes. Other modules read
other nodes. In `offsetmgr.zookeeper.groups`, `topics` reads topics, and `registry` reads the members and owners of
groups. `tree` reads any node. The results are not snapshots: they may or may not include nodes that are
created or deleted during the read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, NamedTuple, TypeVar

from offsetmgr.core.errors import CorruptData, OffsetMgrError
from offsetmgr.zookeeper.client.jute import NodeData
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.nodes import paths
from offsetmgr.zookeeper.nodes.cluster import (
    Controller,
    RegisteredBroker,
    parse_broker,
    parse_cluster_id,
    parse_controller,
    parse_controller_epoch,
)
from offsetmgr.zookeeper.nodes.fields import Notes, errors_of

T = TypeVar("T")
_PERSISTENT: Final = "persistent: brokers create only ephemeral nodes"


@dataclass(frozen=True, slots=True)
class NodeEntry(Generic[T]):
    """The result of reading and parsing one node: its value or its error, with notes about unknown versions and fields.

    ``node`` is the node as it was read, with its raw bytes; it is None if the node could not be read. If ``value`` and
    ``error`` are both None, the node either does not exist, or has no data and its format allows a node without data.
    """

    path: str
    value: T | None = None
    error: OffsetMgrError | None = None
    notes: tuple[str, ...] = ()
    node: NodeData | None = None


class Broker(NamedTuple):
    """A node below ``/brokers/ids``. ``broker_id`` is None if the node's name is not an id. ``role`` is "controller" or
    None."""

    broker_id: int | None
    role: str | None
    entry: NodeEntry[RegisteredBroker]
    errors: tuple[OffsetMgrError, ...]


class ClusterBrokers(NamedTuple):
    """The live brokers, and the nodes that exist once per cluster; the entry of a missing node has neither value nor
    error. ``zookeeper`` is the connect string."""

    zookeeper: str
    cluster_id: NodeEntry[str]
    controller: NodeEntry[Controller]
    controller_epoch: NodeEntry[int]
    live: Sequence[Broker]


Parse = Callable[[str, bytes, Notes | None], T]
"""A parser of this package. It takes the path and the data of a node, and the notes."""


def read_entries(
    session: ZookeeperSession, places: Sequence[str], parse: Parse[T], *, strict: bool = False
) -> list[NodeEntry[T]]:
    """Reads and parses the nodes at these paths. Raises as `ZookeeperSession.get_many`."""
    found = session.get_many(places)
    return [parse_entry(path, node, parse, strict=strict) for path, node in zip(places, found, strict=True)]


def parse_entry(
    path: str, node: NodeData | OffsetMgrError | None, parse: Parse[T], *, strict: bool = False
) -> NodeEntry[T]:
    """Parses the result of reading ``path``. With ``strict``, an unknown version is an error."""
    if isinstance(node, OffsetMgrError):
        return NodeEntry(path, error=node)
    if node is None:
        return NodeEntry(path)
    notes: Notes = []
    try:
        value = parse(path, node.data, None if strict else notes)
    except OffsetMgrError as error:
        return NodeEntry(path, None, error, tuple(notes), node)
    return NodeEntry(path, value, None, tuple(notes), node)


def brokers(session: ZookeeperSession) -> list[NodeEntry[RegisteredBroker]]:
    """Reads the live brokers of all Kafka releases, sorted by id.

    If the name of a node is not a broker id, the end of the list contains an error for this node. Raises as
    `ZookeeperSession.get_many`.
    """
    names = session.children(paths.BROKER_IDS) or []
    numbered = sorted((name for name in names if name.isascii() and name.isdigit() and len(name) <= 10), key=int)
    found = read_entries(session, [f"{paths.BROKER_IDS}/{name}" for name in numbered], parse_broker)
    listed = [
        one if one.node is None or one.node.ephemeral_owner else replace(one, notes=(*one.notes, _PERSISTENT))
        for one in found
        if one.node is not None or one.error is not None  # both None if it was deleted after the names were listed
    ]
    for name in sorted(set(names) - set(numbered)):
        path = f"{paths.BROKER_IDS}/{name}"
        listed.append(NodeEntry(path, error=CorruptData(f"ZooKeeper node {path}", "its name is not a broker's id")))
    return listed


def cluster_brokers(session: ZookeeperSession) -> ClusterBrokers:
    """Returns the live brokers, and which of them is the controller. Raises as `ZookeeperSession.get_many`."""
    read = session.get_many([paths.CLUSTER_ID, paths.CONTROLLER, paths.CONTROLLER_EPOCH])
    elected = parse_entry(paths.CONTROLLER, read[1], parse_controller)
    controller, found = elected.value, []
    for entry in brokers(session):
        leads = entry.value is not None and controller is not None and controller.broker_id == entry.value.broker_id
        name = entry.path.rpartition("/")[2]
        number = int(name) if name.isascii() and name.isdigit() else None
        found.append(Broker(number, "controller" if leads else None, entry, errors_of(entry.error)))
    cluster_id = parse_entry(paths.CLUSTER_ID, read[0], parse_cluster_id)
    epoch = parse_entry(paths.CONTROLLER_EPOCH, read[2], parse_controller_epoch)
    return ClusterBrokers(session.connect, cluster_id, elected, epoch, found)


def registration_delay_ms(session: ZookeeperSession) -> int | None:
    """Returns the largest difference between the time in a live broker's registration, by the broker's clock, and the
    creation of the node, by ZooKeeper's clock. The two clocks differed by at most this time then. Returns None if no
    broker is registered. Raises as `ZookeeperSession.get_many`."""
    found = [(one.value.timestamp_ms, one.node) for one in brokers(session) if one.value is not None]
    return max((abs(at - node.ctime_ms) for at, node in found if at is not None and node is not None), default=None)
