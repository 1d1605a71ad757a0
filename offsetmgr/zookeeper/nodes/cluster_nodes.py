"""Reads whole directories of Kafka's in ZooKeeper: brokers, controller, configurations, requests of administrators.

Each node is a value or an error, and a corrupt node never hides the others. Topics are in `topics`, a group's members
and owners in `registry` and `ownership`, raw trees in `tree`. Reads only, in bulk. The result is not a snapshot: nodes
that are created or deleted during the read may be included or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Generic, TypeVar

from offsetmgr.core.errors import CorruptData, OffsetMgrError
from offsetmgr.zookeeper.client.jute import NodeData
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.nodes import paths
from offsetmgr.zookeeper.nodes.admin import (
    PartitionList,
    Reassignments,
    TopicNames,
    parse_preferred_election,
    parse_reassignments,
    parse_topic_deletions,
)
from offsetmgr.zookeeper.nodes.brokers import RegisteredBroker, parse_broker
from offsetmgr.zookeeper.nodes.cluster import Controller, parse_cluster_id, parse_controller, parse_controller_epoch
from offsetmgr.zookeeper.nodes.configs import EntityConfig, parse_config
from offsetmgr.zookeeper.nodes.fields import Notes

T = TypeVar("T")

CONFIG_KINDS: Final = ("topics", "clients", "users", "brokers", "ips")


@dataclass(frozen=True, slots=True)
class NodeEntry(Generic[T]):
    """One node: its value, or the error that replaces it, with notes about oddities.

    ``node`` has its bytes and its stat; None if it could not be read at all. Without ``value`` and ``error`` the node
    does not exist, or it is empty where that is allowed.
    """

    path: str
    value: T | None = None
    error: OffsetMgrError | None = None
    notes: tuple[str, ...] = ()
    node: NodeData | None = None


@dataclass(frozen=True, slots=True)
class ClusterNodes:
    """The nodes that exist once in a cluster. If a node does not exist, its entry has neither value nor error."""

    cluster_id: NodeEntry[str]
    controller: NodeEntry[Controller]
    controller_epoch: NodeEntry[int]


@dataclass(frozen=True, slots=True)
class ControllerRequests:
    """Requests that the controller has not finished (``/admin``)."""

    reassignments: NodeEntry[Reassignments]
    preferred_election: NodeEntry[PartitionList]
    deletions: tuple[str, ...] = field(default=())
    """Topics with a node below ``/admin/delete_topics``."""
    deletion_list: NodeEntry[TopicNames] = field(default=NodeEntry(paths.DELETE_TOPICS))
    """Content of the node itself: empty since 0.8.1."""


Parse = Callable[[bytes, Notes], T]
"""A parser of `nodes` that is bound to its path."""


def read_entries(session: ZookeeperSession, wanted: Sequence[tuple[str, Parse[T]]]) -> list[NodeEntry[T]]:
    """Reads the nodes at these paths, each with its parser. Raises what `ZookeeperSession.get_many` raises."""
    found = session.get_many([path for path, _ in wanted])
    return [entry(path, node, parse) for (path, parse), node in zip(wanted, found, strict=True)]


def entry(path: str, node: NodeData | OffsetMgrError | None, parse: Parse[T]) -> NodeEntry[T]:
    """Parses the result of reading ``path``."""
    if isinstance(node, OffsetMgrError):
        return NodeEntry(path, error=node)
    if node is None:
        return NodeEntry(path)
    notes: Notes = []
    try:
        value = parse(node.data, notes)
    except OffsetMgrError as error:
        return NodeEntry(path, None, error, tuple(notes), node)
    return NodeEntry(path, value, None, tuple(notes), node)


def cluster_nodes(session: ZookeeperSession) -> ClusterNodes:
    """Cluster id, controller and its epoch. Raises what reading raises as a whole."""
    found = session.get_many([paths.CLUSTER_ID, paths.CONTROLLER, paths.CONTROLLER_EPOCH])

    def epoch(data: bytes, notes: Notes) -> int:  # noqa: ARG001 - nothing can be odd about it
        return parse_controller_epoch(paths.CONTROLLER_EPOCH, data)

    return ClusterNodes(
        entry(paths.CLUSTER_ID, found[0], partial(parse_cluster_id, paths.CLUSTER_ID)),
        entry(paths.CONTROLLER, found[1], partial(parse_controller, paths.CONTROLLER)),
        entry(paths.CONTROLLER_EPOCH, found[2], epoch),
    )


def brokers(session: ZookeeperSession) -> list[NodeEntry[RegisteredBroker]]:
    """The live brokers by id, of all releases; nodes whose name is not an id come last, as errors."""
    names = session.children(paths.BROKER_IDS) or []
    numbered = sorted((name for name in names if _is_id(name)), key=int)
    found = read_entries(
        session,
        [
            (f"{paths.BROKER_IDS}/{name}", partial(_parse_broker, f"{paths.BROKER_IDS}/{name}", name))
            for name in numbered
        ],
    )
    listed = [one for one in found if one.node is not None or one.error is not None]  # else it has gone meanwhile
    for name in sorted(set(names) - set(numbered)):
        path = f"{paths.BROKER_IDS}/{name}"
        listed.append(NodeEntry(path, error=CorruptData(f"ZooKeeper node {path}", "its name is not a broker's id")))
    return listed


def configs(session: ZookeeperSession, kind: str) -> Iterator[tuple[str, NodeEntry[EntityConfig]]]:
    """The overrides of one of `CONFIG_KINDS`, by entity: ``NAME``, and for users ``NAME/clients/ID`` too.

    Names are as in Kafka's paths (URL-encoded; ``<default>``). Raises what reading raises as a whole, and
    `NotAuthorized` if the entities may not be listed.
    """
    root = f"/config/{kind}"
    names = sorted(session.children(root) or [])
    if kind == "users":
        directories = [f"{name}/clients" for name in names]
        for directory, below in zip(
            directories, session.children_many([f"{root}/{f}" for f in directories]), strict=True
        ):
            if isinstance(below, OffsetMgrError):
                yield directory, NodeEntry(f"{root}/{directory}", error=below)
            else:
                names += [f"{directory}/{client}" for client in below or ()]
    names.sort()
    wanted = [(f"{root}/{name}", partial(parse_config, f"{root}/{name}")) for name in names]
    for name, one in zip(names, read_entries(session, wanted), strict=True):
        if one.node is not None and not one.node.data:  # created before any override was set
            yield name, NodeEntry(one.path, node=one.node)
        elif one.node is not None or one.error is not None:
            yield name, one


def requests(session: ZookeeperSession) -> ControllerRequests:
    """The open requests of administrators. Raises what reading raises as a whole."""
    deletions = session.children(paths.DELETE_TOPICS)
    found = session.get_many([paths.REASSIGN_PARTITIONS, paths.PREFERRED_REPLICA_ELECTION, paths.DELETE_TOPICS])
    held = found[2]
    if isinstance(held, NodeData) and not held.data:
        listed: NodeEntry[TopicNames] = NodeEntry(paths.DELETE_TOPICS, node=held)
    else:
        listed = entry(paths.DELETE_TOPICS, held, partial(parse_topic_deletions, paths.DELETE_TOPICS))
    return ControllerRequests(
        entry(paths.REASSIGN_PARTITIONS, found[0], partial(parse_reassignments, paths.REASSIGN_PARTITIONS)),
        entry(
            paths.PREFERRED_REPLICA_ELECTION,
            found[1],
            partial(parse_preferred_election, paths.PREFERRED_REPLICA_ELECTION),
        ),
        tuple(sorted(deletions or ())),
        listed,
    )


def _is_id(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) <= 10


def _parse_broker(path: str, name: str, data: bytes, notes: Notes) -> RegisteredBroker:
    return parse_broker(path, int(name), data, notes)
