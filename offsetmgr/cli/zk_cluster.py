"""``offsetmgr zk brokers|topics``: the brokers and topics registered in ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import typer

from offsetmgr.cli.columns import PARTITION
from offsetmgr.cli.connect_flags import ConnectFlags, connected
from offsetmgr.cli.errors import exit_with, report_and_exit_code
from offsetmgr.cli.many_clusters import many_clusters
from offsetmgr.cli.options import FormatOption, TopicsOption
from offsetmgr.cli.render import Column, OutputFormat, note, progress, write_rows
from offsetmgr.cli.watch import Count, Watch, WatchCommand, watch_command
from offsetmgr.cli.zk_tree import session_of
from offsetmgr.core.errors import OffsetMgrError, UnknownTopicOrPartition

if TYPE_CHECKING:
    from offsetmgr.core.selection import TopicSelection
    from offsetmgr.zookeeper.groups.topics import Topic
    from offsetmgr.zookeeper.nodes.brokers import RegisteredBroker
    from offsetmgr.zookeeper.nodes.cluster_nodes import ClusterNodes, NodeEntry
    from offsetmgr.zookeeper.nodes.topics import PartitionState, TopicAssignment

app = typer.Typer()

BROKERS: Final = (
    Column("broker", right=True),
    Column("role", optional=True),
    Column("endpoints"),
    Column("rack", optional=True),
    Column("format_version", right=True, title="FORMAT"),
    Column("registered_at", time=True, rank=11),
    Column("ephemeral_owner", rank=12),
    Column("timestamp", detail=True),
    Column("jmx_port", right=True, optional=True),
    Column("security", detail=True),
    Column("features", detail=True),
    Column("notes", optional=True),
    Column("error", optional=True),
)
TOPICS: Final = (
    *PARTITION,
    Column("leader", right=True),
    Column("replicas"),
    Column("isr"),
    Column("leader_epoch", right=True, title="EPOCH"),
    Column("adding", optional=True),
    Column("removing", optional=True),
    Column("controller_epoch", detail=True),
    Column("topic_id", detail=True),
    Column("notes", optional=True),
    Column("error", optional=True),
)


@app.command("brokers", cls=WatchCommand)
@connected
@many_clusters
def brokers(
    connect: ConnectFlags, watch: Watch = None, count: Count = None, output: FormatOption = OutputFormat.TABLE
) -> None:
    """List the live brokers with their addresses, and which of them is the controller."""
    from offsetmgr.zookeeper.nodes import cluster_nodes

    session = connect.zookeeper("zk brokers")

    def once() -> int:
        errors: list[OffsetMgrError] = []
        cluster = cluster_nodes.cluster_nodes(session)
        live = cluster_nodes.brokers(session)
        shown = write_rows(BROKERS, _broker_rows(live, cluster, errors), output)
        if not shown:
            note(f"no live brokers at {session.connect}{'' if cluster.cluster_id.value else '; is the chroot right?'}")
        if output is OutputFormat.TABLE:
            note(_cluster_line(cluster, live))
        singles = (cluster.cluster_id, cluster.controller, cluster.controller_epoch)
        for entry in singles:
            for text in entry.notes:
                note(f"note: {entry.path}: {text}")
        return report_and_exit_code([*(entry.error for entry in singles if entry.error is not None), *errors])

    exit_with(watch_command(once, watch, count))


@app.command("topics", cls=WatchCommand)
@connected
@many_clusters
def topics(
    connect: ConnectFlags,
    topic: TopicsOption = None,
    watch: Watch = None,
    count: Count = None,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """List topics with their partitions: leader, assigned and in-sync replicas, reassignments, deletions.

    Partitions of Kafka 0.7 are shown as BROKER-PARTITION.
    """
    from offsetmgr.core.selection import TopicSelection
    from offsetmgr.zookeeper.groups.topics import topic_names
    from offsetmgr.zookeeper.groups.topics import topics as read
    from offsetmgr.zookeeper.nodes.paths import DELETE_TOPICS

    session = connect.zookeeper("zk topics")
    selection = TopicSelection.parse(topic or [])

    def once() -> int:
        errors: list[OffsetMgrError] = []
        known = topic_names(session)
        names = [name for name in known if selection.matches_topic(name)]
        if missing := sorted(set(selection.named()) - set(known)):
            raise UnknownTopicOrPartition(f"topic {missing[0]}", f"does not exist in ZooKeeper at {session.connect}")
        deletions = frozenset(session.children(DELETE_TOPICS) or ())
        found = progress(read(session, names), "topics", len(names))
        if not write_rows(TOPICS, _topic_rows(found, selection, deletions, errors), output):
            note(f"no topics in ZooKeeper at {session.connect}{'' if known else '; is the chroot right?'}")
        return report_and_exit_code(errors)

    exit_with(watch_command(once, watch, count))


def _broker_rows(
    live: Iterable[NodeEntry[RegisteredBroker]], cluster: ClusterNodes, errors: list[OffsetMgrError]
) -> Iterator[tuple[Any, ...]]:
    controller = cluster.controller.value
    for entry in live:
        broker, stat = entry.value, entry.node
        if entry.error is not None:
            errors.append(entry.error)
        session = session_of(stat.ephemeral_owner) if stat else None
        notes = (
            *entry.notes,
            *(["persistent: brokers create only ephemeral nodes"] if stat and session is None else ()),
        )
        error = entry.error.why if entry.error is not None else None
        name = entry.path.rpartition("/")[2]
        number = int(name) if name.isascii() and name.isdigit() else None
        tail = ("; ".join(notes) or None, error)
        if broker is None:
            yield (number, None, None, None, None, stat.ctime_ms if stat else None, session, *[None] * 4, *tail)
            continue
        yield (
            broker.broker_id,
            "controller" if controller is not None and controller.broker_id == broker.broker_id else None,
            " ".join(map(str, broker.endpoints)),
            broker.rack,
            broker.version,
            stat.ctime_ms if stat else None,
            session,
            broker.timestamp_ms,
            broker.jmx_port,
            _pairs(broker.security),
            " ".join(f"{name}({_pairs(labels)})" for name, labels in broker.features.items()) or None,
            *tail,
        )


def _cluster_line(cluster: ClusterNodes, live: Iterable[NodeEntry[RegisteredBroker]]) -> str:
    """Cluster id, controller and controller epoch in one line."""
    controller, epoch = cluster.controller.value, cluster.controller_epoch.value
    parts = [f"cluster id {cluster.cluster_id.value or 'not known'}"]
    if controller is None:
        parts.append("no controller known")
    else:
        alive = any(entry.value is not None and entry.value.broker_id == controller.broker_id for entry in live)
        parts.append(f"controller {controller}{'' if alive else ', which is not among them'}")
    return ", ".join([*parts, f"controller epoch {'not known' if epoch is None else epoch}"])


def _topic_rows(
    found: Iterable[Topic], selection: TopicSelection, deleted: frozenset[str], errors: list[OffsetMgrError]
) -> Iterator[tuple[Any, ...]]:
    from offsetmgr.core.model import BrokerPartition, TopicPartition

    for topic in found:
        whole = ["being deleted"] if topic.name in deleted else []
        whole += topic.assignment.notes
        broken = [error for error in (topic.assignment.error, topic.error) if error is not None]
        broken += [count.error for count in topic.counts.values() if count.error is not None]
        errors += broken
        partitions = [p for p in topic.partitions if selection.matches(TopicPartition(topic.name, p))]
        for partition in partitions:
            if isinstance(partition, BrokerPartition):
                held = (partition.broker, str(partition.broker), None, None, None, None, None, None)
                yield (topic.name, str(partition), *held, "; ".join(whole) or None, None)
            elif topic.assignment.value is not None:
                yield _partition_row(topic, topic.assignment.value, partition, whole, errors)
        if broken or not topic.partitions:
            text = "; ".join([*whole, *([] if broken else ["no partitions"])])
            yield (topic.name, *[None] * 9, text or None, "; ".join(error.why for error in broken) or None)


def _partition_row(
    topic: Topic, assignment: TopicAssignment, partition: int, whole: list[str], errors: list[OffsetMgrError]
) -> tuple[Any, ...]:
    entry = topic.states.get(partition)
    state = entry.value if entry is not None else None
    error = entry.error if entry is not None else None
    if error is not None:
        errors.append(error)
    replicas = assignment.replicas[partition]
    notes = [*whole, *(entry.notes if entry is not None else ["no state yet"]), *_health(replicas, state)]
    return (
        topic.name,
        partition,
        state.leader if state else None,
        _ids(replicas),
        _ids(state.isr) if state else None,
        state.leader_epoch if state else None,
        _ids(assignment.adding.get(partition, ())) or None,
        _ids(assignment.removing.get(partition, ())) or None,
        state.controller_epoch if state else None,
        assignment.topic_id,
        "; ".join(notes) or None,
        error.why if error is not None else None,
    )


def _health(replicas: tuple[int, ...], state: PartitionState | None) -> list[str]:
    """Conditions that need an administrator's attention."""
    if state is None:
        return []
    found = []
    if state.being_deleted:
        found.append("being deleted")
    elif state.leader is None:
        found.append("no leader")
    elif replicas and state.leader != replicas[0]:
        found.append(f"preferred leader is {replicas[0]}")
    if state.recovering:
        found.append("recovering from an unclean election")
    if behind := [str(broker) for broker in replicas if broker not in state.isr]:
        found.append(f"not in sync: {','.join(behind)}")
    return found


def _ids(brokers: tuple[int, ...]) -> str:
    return ",".join(map(str, brokers))


def _pairs(values: Any) -> str | None:
    return " ".join(f"{key}={value}" for key, value in values.items()) or None
