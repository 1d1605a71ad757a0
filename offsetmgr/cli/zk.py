"""``offsetmgr zk``: Kafka's directories in ZooKeeper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from offsetmgr.cli import zk_admin
from offsetmgr.cli.connect_flags import ConnectFlags, connected
from offsetmgr.cli.errors import FAILED, exit_with, report_and_exit_code
from offsetmgr.cli.many_clusters import many_clusters
from offsetmgr.cli.options import FormatOption, GroupFlags, TopicsOption, opt
from offsetmgr.cli.read_error_report import empty_note
from offsetmgr.cli.render import GROUP_PARTITION, PARTITION, Column, OutputFormat, note, progress, write_rows
from offsetmgr.cli.table_fit import NAME_RANK
from offsetmgr.cli.watch import Count, Watch, WatchCommand, watch_command
from offsetmgr.core.errors import CorruptData, OffsetMgrError, ServerError, UnknownTopicOrPartition, UsageError
from offsetmgr.core.model import BrokerPartition
from offsetmgr.core.plurals import count_of
from offsetmgr.core.selection import GroupSelection

if TYPE_CHECKING:
    from offsetmgr.core.selection import TopicSelection
    from offsetmgr.kafka.cluster.base import Cluster
    from offsetmgr.zookeeper.check.findings import Finding
    from offsetmgr.zookeeper.check.zookeeper_check import ZookeeperCheck
    from offsetmgr.zookeeper.client.session import ZookeeperSession
    from offsetmgr.zookeeper.groups.ownership import GroupOwners, Owner
    from offsetmgr.zookeeper.groups.registry import GroupMembers, RegistryMember
    from offsetmgr.zookeeper.groups.topics import Topic
    from offsetmgr.zookeeper.nodes.brokers import RegisteredBroker
    from offsetmgr.zookeeper.nodes.cluster_nodes import ClusterNodes, NodeEntry
    from offsetmgr.zookeeper.nodes.topics import PartitionState, TopicAssignment
    from offsetmgr.zookeeper.nodes.tree import TreeNode


app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Kafka in ZooKeeper: its znodes, and requests to its controller.",
)


TREE: Final = (
    Column("path"),
    Column("kind"),
    Column("value"),
    Column("children", right=True, detail=True),
    Column("ephemeral_owner", optional=True),
    Column("version", right=True),
    Column("mtime", time=True),
    Column("ctime", detail=True),
    Column("notes", optional=True),
    Column("error", optional=True),
    Column("data", detail=True),
)


@app.command("tree", cls=WatchCommand)
@connected
@many_clusters
def tree(
    connect: ConnectFlags,
    path: Annotated[str, typer.Argument(metavar="[PATH]", help="The first node, below the chroot.")] = "/",
    depth: Annotated[int | None, opt("--depth", None, "Maximum number of levels below it.", min=0)] = None,
    watch: Watch = None,
    count: Count = None,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Print a znode and its descendants, decoded.

    NOTES lists irregularities of a node. If a node cannot be read, the other nodes are still shown. Credentials are
    hidden. --format json and csv include each node's raw data.
    """
    from offsetmgr.zookeeper.nodes.tree import walk

    if not path.startswith("/") or "//" in path or (path != "/" and path.endswith("/")):
        raise UsageError(f"path {path!r}", "is not a valid ZooKeeper path", "as in /brokers/ids")
    session = connect.zookeeper("zk tree")

    def once() -> int:
        errors: list[OffsetMgrError] = []
        found = progress(walk(session, path, depth), "nodes")
        if not write_rows(TREE, _rows(found, errors), output):
            errors.append(ServerError(f"ZooKeeper node {path}", f"does not exist in ZooKeeper at {session.connect}"))
        return report_and_exit_code(errors)

    exit_with(watch_command(once, watch, count))


def _rows(nodes: Iterable[TreeNode], errors: list[OffsetMgrError]) -> Iterator[tuple[Any, ...]]:
    for one in nodes:
        stat, what = one.node, one.description
        found = [error for error in (one.read_error or what.error, one.children_error) if error is not None]
        errors += found
        broken = "; ".join(error.why for error in found)
        yield (
            one.path,
            None if what.kind == "other" else what.kind,
            what.value,
            one.children,
            session_of(stat.ephemeral_owner) if stat else None,
            stat.version if stat else None,
            stat.mtime_ms if stat else None,
            stat.ctime_ms if stat else None,
            "; ".join(what.notes) or None,
            broken or None,
            None if stat is None or what.secret else stat.data.decode("utf-8", "backslashreplace"),
        )


def session_of(ephemeral_owner: int) -> str | None:
    """Formats a session id like ZooKeeper's own tools. Returns None for a persistent node, which has no session."""
    return f"{ephemeral_owner & 0xFFFFFFFFFFFFFFFF:#x}" if ephemeral_owner else None


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


MEMBERS: Final = (
    Column("group"),
    Column("member_id", rank=1),
    Column("host", optional=True, rank=2),
    Column("pattern"),
    Column("subscription", rank=NAME_RANK),
    Column("partitions", right=True),
    Column("registered_at", time=True, rank=11),
    Column("started_at", detail=True),
    Column("ephemeral_owner", rank=12),
    Column("format_version", detail=True),
    Column("notes", optional=True),
    Column("error", optional=True),
)
OWNERS: Final = (
    *GROUP_PARTITION,
    Column("member_id", rank=1),
    Column("thread", right=True),
    Column("claimed_at", time=True, rank=11),
    Column("ephemeral_owner", rank=12),
    Column("notes", optional=True),
    Column("error", optional=True),
)


@app.command("members", cls=WatchCommand)
@connected
@many_clusters
def members(
    connect: ConnectFlags,
    groups: GroupFlags,
    watch: Watch = None,
    count: Count = None,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """List the members of groups registered in ZooKeeper, with their subscriptions.

    SUBSCRIPTION is topic=streams; with a pattern (white_list, black_list) it is expression=streams.
    """
    from offsetmgr.zookeeper.groups.ownership import owners_many
    from offsetmgr.zookeeper.groups.registry import members_many

    selected = groups.selection()
    session = connect.zookeeper("zk members")

    def once() -> int:
        errors: list[OffsetMgrError] = []
        chosen = _chosen(connect, session, selected)
        found = zip(members_many(session, chosen), owners_many(session, chosen), strict=True)
        listed = progress(found, "groups", len(chosen))
        if not write_rows(MEMBERS, _member_rows(listed, errors), output) and not errors:
            note("no live members")
        return report_and_exit_code(errors)

    exit_with(watch_command(once, watch, count))


@app.command("owners", cls=WatchCommand)
@connected
@many_clusters
def owners(
    connect: ConnectFlags,
    groups: GroupFlags,
    topic: TopicsOption = None,
    watch: Watch = None,
    count: Count = None,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """List the owned partitions, each with the consumer thread that owns it."""
    from offsetmgr.core.selection import TopicSelection
    from offsetmgr.zookeeper.groups.ownership import owners_many
    from offsetmgr.zookeeper.groups.registry import members_many

    selected = groups.selection()
    selection = TopicSelection.parse(topic or [])
    session = connect.zookeeper("zk owners")

    def once() -> int:
        errors: list[OffsetMgrError] = []
        chosen = _chosen(connect, session, selected)
        # The owners are read before the members. If the members were read first, the partitions of a member that joins
        # between the two reads would appear to have an owner that is not a member.
        found = zip(owners_many(session, chosen), members_many(session, chosen), strict=True)
        listed = progress(found, "groups", len(chosen))
        if not write_rows(OWNERS, _owner_rows(listed, selection, errors), output) and not errors:
            note("no partition has an owner")
        return report_and_exit_code(errors)

    exit_with(watch_command(once, watch, count))


def _chosen(connect: ConnectFlags, session: ZookeeperSession, selected: GroupSelection) -> list[str]:
    """Returns the selected groups of the registry."""
    from offsetmgr.zookeeper.nodes.paths import CONSUMERS

    known = session.children(CONSUMERS) or []
    if not known and selected.patterns is None:
        note(empty_note(connect.store(f"zookeeper://{session.connect}"), "groups"))
    return selected.within(known, f"ZooKeeper at {session.connect}")


def _member_rows(
    found: Iterable[tuple[GroupMembers, GroupOwners]], errors: list[OffsetMgrError]
) -> Iterator[tuple[Any, ...]]:
    for listed, owned in found:
        if listed.error is not None:
            errors.append(listed.error)
            continue
        held: dict[str | None, int] | None = None  # unknown
        if owned.error is None and not owned.errors:
            held = {}
            for owner in owned.owners.values():
                held[owner.member_id] = held.get(owner.member_id, 0) + 1
        errors += [*([owned.error] if owned.error is not None else ()), *owned.errors.values()]
        for member in listed.members:
            if member.error is not None:
                errors.append(member.error)
            yield (
                listed.group,
                member.member_id,
                member.host,
                member.pattern or None,
                " ".join(f"{topic}={n}" for topic, n in member.subscription.items()) or None,
                None if held is None else held.get(member.member_id, 0),
                member.registered_at_ms,
                member.started_at_ms,
                session_of(member.session_id),
                member.version,
                "; ".join([*member.notes, *_persistent(member.session_id)]) or None,
                member.error.why if member.error is not None else None,
            )


def _owner_rows(
    found: Iterable[tuple[GroupOwners, GroupMembers]], selection: TopicSelection, errors: list[OffsetMgrError]
) -> Iterator[tuple[Any, ...]]:
    for owned, listed in found:
        if owned.error is not None:
            errors.append(owned.error)
            continue
        live = None if listed.error is not None else {member.member_id: member for member in listed.members}
        errors += [*([listed.error] if listed.error is not None else ()), *owned.errors.values()]
        for tp, owner in owned.owners.items():
            if not selection.matches(tp):
                continue
            if owner.error is not None:
                errors.append(owner.error)
            yield (
                owned.group,
                tp.topic,
                str(tp.partition) if isinstance(tp.partition, BrokerPartition) else tp.partition,
                owner.member_id,
                owner.thread,
                owner.claimed_at_ms,
                session_of(owner.session_id),
                "; ".join([*_persistent(owner.session_id), *_inconsistencies(owner, live)]) or None,
                owner.error.why if owner.error is not None else None,
            )


def _persistent(session_id: int) -> list[str]:
    return [] if session_id else ["persistent: does not show whether its consumer runs"]


def _inconsistencies(owner: Owner, live: Mapping[str, RegistryMember] | None) -> list[str]:
    """Returns the inconsistencies between an owner and the live members. Returns an empty list if the live members are
    unknown."""
    if owner.member_id is None or live is None:
        return []
    member = live.get(owner.member_id)
    if member is None:
        return ["no live member"]
    if owner.session_id and member.session_id != owner.session_id:
        return [f"its member has another session, {session_of(member.session_id) or 'none'}"]
    return []


FINDINGS: Final = (
    Column("severity"),
    Column("code"),
    Column("group", optional=True),
    Column("topic", detail=True),
    Column("partitions", detail=True),
    Column("path", detail=True),
    Column("finding"),
    Column("todo"),
)


@app.command("check", cls=WatchCommand)
@connected
@many_clusters
def check(
    connect: ConnectFlags,
    groups: GroupFlags,
    unused_since: Annotated[
        str | None,
        opt(
            "--unused-since",
            "YYYY-MM-DD[THH:MM:SS]",
            "Also report groups that have no members and in which nothing was written since this time (UTC).",
        ),
    ] = None,
    settle_s: Annotated[
        float,
        opt(
            "--settle",
            "SECONDS",
            "A rebalance can cause faults for a short time: report such a fault only if a second check after this "
            "time finds it again. 0: report at once.",
            min=0,
        ),
    ] = 5,
    watch: Watch = None,
    count: Count = None,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Find faults in the groups of old consumers: owners, subscriptions, offsets, unreadable nodes.

    The exit code is 1 if there are any faults. With --bootstrap-server, the command also compares offsets with the
    logs. At the end, it lists the items that it could not check.
    """
    from offsetmgr.core.clock import SystemClock
    from offsetmgr.zookeeper.check.zookeeper_check import ZookeeperCheck
    from offsetmgr.zookeeper.nodes import paths

    selected = groups.selection()
    since = None if unused_since is None else _date(unused_since)
    session = connect.zookeeper("zk check")
    cluster = connect.cluster_or_none()
    cluster_unknown = cluster is not None and not _is_same_cluster(session, cluster)

    def once() -> int:
        consumers = session.children(paths.CONSUMERS)
        if consumers is None and session.children(paths.BROKERS) is None:
            raise CorruptData(
                f"ZooKeeper at {session.connect}",
                f"has neither {paths.CONSUMERS} nor {paths.BROKERS}, so there is nothing to check",
                "is the chroot right?",
            )
        known = sorted(consumers or [])
        chosen = selected.within(known, f"ZooKeeper at {session.connect}")
        checking = ZookeeperCheck(
            session,
            known,
            SystemClock(),
            fetch_log_ranges=None if cluster is None else cluster.log_ranges,
            unused_since_ms=since,
            recheck_after_s=settle_s,
            on_recheck=lambda number: note(f"checking {count_of(number, 'group')} again in {settle_s:g} s"),
        )
        counts: Counter[str] = Counter()
        write_rows(FINDINGS, _finding_rows(checking, chosen, counts), output)
        for text in checking.skipped_rules():
            note(f"not checked: {text}")
        if not known:
            note(empty_note(connect.store(f"zookeeper://{session.connect}"), "groups"))
        note(_summary(len(chosen), counts))
        return FAILED if counts or cluster_unknown else 0

    exit_with(watch_command(once, watch, count))


def _is_same_cluster(session: ZookeeperSession, cluster: Cluster) -> bool:
    """Returns whether brokers and ZooKeeper are known to belong to the same cluster. Prints a note if this is unknown.

    Raises `UsageError` if the brokers and ZooKeeper belong to different clusters, because the command would compare
    offsets with the logs of the wrong cluster.
    """
    from offsetmgr.zookeeper.nodes import paths
    from offsetmgr.zookeeper.nodes.cluster import parse_cluster_id

    node, kafka_id = session.get(paths.CLUSTER_ID), cluster.cluster_id()
    if node is None or kafka_id is None:
        who = "the brokers have" if node is not None else f"ZooKeeper at {session.connect} has"
        note(f"not checked: whether brokers and ZooKeeper belong to one cluster ({who} no cluster id)")
        return False
    if (zookeeper_id := parse_cluster_id(paths.CLUSTER_ID, node.data)) != kafka_id:
        why = f"the brokers belong to cluster {kafka_id}, ZooKeeper to {zookeeper_id}"
        raise UsageError("--bootstrap-server", why, "name the brokers that use this ZooKeeper, and its chroot")
    return True


def _date(text: str) -> int:
    """Converts a date or a time (UTC) to milliseconds since 1970. Raises `UsageError` for any other text."""
    from offsetmgr.core.durations import parse_datetime

    try:
        return parse_datetime(text if "T" in text.upper() else f"{text.strip()}T00:00:00")
    except UsageError:
        raise UsageError(
            "--unused-since", f"{text!r} is no date or time", "as in 2026-11-21, or 2026-11-21T09:00:00"
        ) from None


def _finding_rows(checking: ZookeeperCheck, groups: list[str], counts: Counter[str]) -> Iterator[tuple[Any, ...]]:
    yield from _findings(checking.cluster_findings, counts)
    for checked in progress(checking.run(groups), "checking", len(groups)):
        yield from _findings(checked.findings, counts)


def _findings(findings: Iterable[Finding], counts: Counter[str]) -> Iterator[tuple[Any, ...]]:
    for found in findings:
        counts[found.severity] += 1
        numbers = ",".join(map(str, found.partitions)) or None
        yield (
            found.severity.value,
            found.code.value,
            found.group,
            found.topic,
            numbers,
            found.path,
            found.sentence,
            found.todo,
        )


def _summary(groups: int, counts: Counter[str]) -> str:
    from offsetmgr.zookeeper.check.findings import Severity

    found = ", ".join(f"{counts[severity]} {severity}" for severity in Severity if counts[severity])
    return f"checked {count_of(groups, 'group')}: {found or 'nothing found'}"


app.registered_commands += zk_admin.app.registered_commands
