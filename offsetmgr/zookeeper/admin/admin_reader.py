"""Reads an `AdminState`: the controller, the brokers, the topics, and the requests that the controller has not
completed.

Ordering contract: this module reads the requests before the topics. A controller writes the topics first and removes
the request afterwards. Therefore, if this module finds that a request's node no longer exists, the topics that it reads
afterwards contain the result of the request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from offsetmgr.core.errors import CorruptData, OffsetMgrError
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.outcome import value_of
from offsetmgr.zookeeper.admin.state import AdminState, AdminTopicState, AssignedPartition
from offsetmgr.zookeeper.client.jute import NodeData
from offsetmgr.zookeeper.client.session import ZookeeperSession
from offsetmgr.zookeeper.nodes import paths
from offsetmgr.zookeeper.nodes.admin import parse_reassignments
from offsetmgr.zookeeper.nodes.brokers import parse_broker
from offsetmgr.zookeeper.nodes.cluster import parse_controller
from offsetmgr.zookeeper.nodes.topics import parse_partition_state, parse_topic


def topic_names(session: ZookeeperSession) -> list[str]:
    """Lists all topics, sorted. Raises any error of the session, and `CorruptData` if ``/brokers/topics`` is
    missing."""
    names = session.children(paths.BROKER_TOPICS)
    if names is None:
        why = f"{paths.BROKER_TOPICS} does not exist; is the chroot right?"
        raise CorruptData(f"ZooKeeper at {session.connect}", why)
    return sorted(names)


def read_state(session: ZookeeperSession, topics: Iterable[str]) -> AdminState:
    """Reads the state of the cluster and of those ``topics`` that exist. If a topic cannot be read, the result contains
    the error for this topic.

    Raises any error of the session, and any error from reading the controller, the brokers or the requests.
    """
    controller, reassignment, election = session.get_many(
        [paths.CONTROLLER, paths.REASSIGN_PARTITIONS, paths.PREFERRED_REPLICA_ELECTION]
    )
    deletions = session.children(paths.DELETE_TOPICS)
    brokers = session.children(paths.BROKER_IDS) or []
    registrations = session.get_many([f"{paths.BROKER_IDS}/{name}" for name in brokers])
    leader = None if (node := value_of(controller)) is None else parse_controller(paths.CONTROLLER, node.data)
    unfinished = value_of(reassignment)
    return AdminState(
        controller=None if leader is None else leader.broker_id,
        kraft=leader is not None and leader.kraft_epoch is not None,
        brokers=live_brokers(brokers, registrations),
        topics=_topics(session, sorted(set(topics))),
        deletions=frozenset(deletions or ()),
        reassignment=None if unfinished is None else _pending(unfinished),
        election=value_of(election) is not None,
    )


def live_brokers(names: Sequence[str], nodes: Sequence[NodeData | OffsetMgrError | None]) -> dict[int, int]:
    """Returns the ids of the live brokers below ``/brokers/ids``, each with the version of its node.

    Ignores a node that is persistent or cannot be decoded, because such a node belongs to no live broker. If a replica
    were assigned to the broker that the node names, the controller would wait for this broker forever. Raises the error
    of a node that cannot be read.
    """
    alive: dict[int, int] = {}
    for name, found in zip(names, nodes, strict=True):
        node = value_of(found)
        if node is None or not node.ephemeral_owner or not (name.isascii() and name.isdecimal()):
            continue
        try:
            parse_broker(f"{paths.BROKER_IDS}/{name}", int(name), node.data, [])
        except CorruptData:
            continue
        alive[int(name)] = node.version
    return alive


def _pending(node: NodeData) -> frozenset[TopicPartition]:
    """The partitions of the running reassignment; empty if the request's node cannot be decoded."""
    try:
        return frozenset(parse_reassignments(paths.REASSIGN_PARTITIONS, node.data, []).replicas)
    except OffsetMgrError:
        return frozenset()


def _topics(session: ZookeeperSession, names: Sequence[str]) -> dict[str, AdminTopicState | OffsetMgrError]:
    topics: dict[str, AdminTopicState | OffsetMgrError] = {}
    for name, node in zip(names, session.get_many([paths.topic(name) for name in names]), strict=True):
        try:
            if (found := value_of(node)) is not None:
                topics[name] = _topic(name, found)
        except OffsetMgrError as error:
            topics[name] = error
    partitions = [
        TopicPartition(name, number)
        for name, topic in topics.items()
        if isinstance(topic, AdminTopicState)
        for number in topic.partitions
    ]
    states = session.get_many([paths.partition_state(tp.topic, tp.partition) for tp in partitions])
    return _with_states(topics, dict(zip(partitions, states, strict=True)))


def _topic(name: str, node: NodeData) -> AdminTopicState:
    assignment = parse_topic(paths.topic(name), node.data)
    partitions = {
        number: AssignedPartition(
            replicas, adding=assignment.adding.get(number, ()), removing=assignment.removing.get(number, ())
        )
        for number, replicas in assignment.replicas.items()
    }
    return AdminTopicState(partitions, node.version, node.czxid)


def _with_states(
    topics: Mapping[str, AdminTopicState | OffsetMgrError],
    states: Mapping[TopicPartition, NodeData | OffsetMgrError | None],
) -> dict[str, AdminTopicState | OffsetMgrError]:
    """Adds leaders and in-sync replicas to the topics. A partition without a state node has no leader and no in-sync
    replicas."""
    complete: dict[str, AdminTopicState | OffsetMgrError] = {}
    for name, topic in topics.items():
        if isinstance(topic, OffsetMgrError):
            complete[name] = topic
            continue
        try:
            partitions = {
                number: _with_state(TopicPartition(name, number), partition, states)
                for number, partition in topic.partitions.items()
            }
            complete[name] = AdminTopicState(partitions, topic.version, topic.czxid)
        except OffsetMgrError as error:
            complete[name] = error
    return complete


def _with_state(
    tp: TopicPartition, partition: AssignedPartition, states: Mapping[TopicPartition, NodeData | OffsetMgrError | None]
) -> AssignedPartition:
    node = value_of(states[tp])
    if node is None:
        return partition
    state = parse_partition_state(paths.partition_state(tp.topic, tp.partition), node.data)
    return partition._replace(leader=state.leader, isr=state.isr)
