"""Reads an `AdminState`: the controller, the brokers, the topics, and the requests that the controller has not
completed.

Ordering contract: this module reads the requests before the topics. A controller writes the topics first and removes
the request afterwards. Therefore, if this module finds that a request's node no longer exists, the topics that it reads
afterwards contain the result of the request.
"""

from __future__ import annotations

from collections.abc import Iterable

from offsetmgr.core.errors import CorruptData, OffsetMgrError, value_of
from offsetmgr.core.model import TopicPartition
from offsetmgr.zookeeper.admin.state import AdminState, AdminTopicState, AssignedPartition
from offsetmgr.zookeeper.client.jute import NodeData
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.groups.topics import Topic
from offsetmgr.zookeeper.groups.topics import topics as read_topics
from offsetmgr.zookeeper.nodes import cluster_nodes, paths
from offsetmgr.zookeeper.nodes.admin import parse_reassignments
from offsetmgr.zookeeper.nodes.cluster import parse_controller


def read_state(session: ZookeeperSession, topics: Iterable[str]) -> AdminState:
    """Reads the state of the cluster and of those ``topics`` that exist. If a topic cannot be read, the result contains
    the error for this topic.

    Raises any error of the session, and any error from reading the controller, the brokers or the requests.
    """
    controller, reassignment, election = session.get_many(
        [paths.CONTROLLER, paths.REASSIGN_PARTITIONS, paths.PREFERRED_REPLICA_ELECTION]
    )
    deletions = session.children(paths.DELETE_TOPICS)
    leader = None if (node := value_of(controller)) is None else parse_controller(paths.CONTROLLER, node.data)
    unfinished = value_of(reassignment)
    # A node that is persistent or cannot be decoded belongs to no live broker. If a replica were assigned to the broker
    # that the node names, the controller would wait for this broker forever.
    alive: dict[int, int] = {}
    for entry in cluster_nodes.brokers(session):
        if entry.error is not None and not isinstance(entry.error, CorruptData):
            raise entry.error
        if entry.value is not None and entry.node is not None and entry.node.ephemeral_owner:
            alive[entry.value.broker_id] = entry.node.version
    return AdminState(
        controller=None if leader is None else leader.broker_id,
        kraft=leader is not None and leader.kraft_epoch is not None,
        brokers=alive,
        topics={found.name: _topic(found) for found in read_topics(session, sorted(set(topics)), strict=True)},
        deletions=frozenset(deletions or ()),
        reassignment=None if unfinished is None else _pending(unfinished),
        election=value_of(election) is not None,
    )


def _pending(node: NodeData) -> frozenset[TopicPartition]:
    """The partitions of the running reassignment; empty if the request's node cannot be decoded."""
    try:
        return frozenset(parse_reassignments(paths.REASSIGN_PARTITIONS, node.data, []).replicas)
    except OffsetMgrError:
        return frozenset()


def _topic(topic: Topic) -> AdminTopicState | OffsetMgrError:
    """Returns the state of a topic, or the first error of its nodes. A partition without a state node has no leader and
    no in-sync replicas."""
    assignment, node = topic.assignment.value, topic.assignment.node
    if assignment is None or node is None:
        return topic.assignment.error or CorruptData(f"ZooKeeper node {topic.assignment.path}", "is empty")
    partitions: dict[int, AssignedPartition] = {}
    for number, replicas in assignment.replicas.items():
        found = topic.states.get(number)
        if found is not None and found.error is not None:
            return found.error
        state = None if found is None else found.value
        leader, isr = (None, ()) if state is None else (state.leader, state.isr)
        adding, removing = assignment.adding.get(number, ()), assignment.removing.get(number, ())
        partitions[number] = AssignedPartition(replicas, leader, isr, adding, removing)
    return AdminTopicState(partitions, node.version, node.czxid)
