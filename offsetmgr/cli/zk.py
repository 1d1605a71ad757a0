"""``offsetmgr zk``: Kafka's directories in ZooKeeper, and requests to the controller through ZooKeeper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

from offsetmgr.app import zk
from offsetmgr.cli.connect_flags import ConnectFlags, RunFlags, command
from offsetmgr.cli.options import (
    FormatOption,
    GroupFlags,
    TopicFlags,
    arg,
    command_group,
    file_to_write,
    flag,
    opt,
    require_choice,
)
from offsetmgr.cli.render import (
    FAILED,
    NAME_RANK,
    PARTITION,
    Column,
    OutputFormat,
    note,
    report_and_exit_code,
    rows_of,
    write_rows,
)
from offsetmgr.core.advice import for_command_line
from offsetmgr.core.durations import parse_datetime
from offsetmgr.core.errors import OffsetMgrError, UsageError
from offsetmgr.core.plurals import count_of

app = command_group("Kafka in ZooKeeper: its znodes, and requests to its controller.")

NOTES: Final = (Column("notes", optional=True), Column("error", optional=True, get="errors"))
TREE: Final = (
    Column("path", get="tree.path"),
    Column("kind", get="found.kind"),
    Column("value", get="found.value"),
    Column("children", right=True, detail=True, get="tree.children"),
    Column("ephemeral_owner", optional=True, get="tree.node.session"),
    Column("version", right=True, get="tree.node.version"),
    Column("mtime", time=True, get="tree.node.mtime_ms"),
    Column("ctime", detail=True, get="tree.node.ctime_ms"),
    Column("notes", optional=True, get="found.notes"),
    Column("error", optional=True, get="errors"),
    Column("data", detail=True, get="found.data"),
)
BROKERS: Final = (
    Column("broker", right=True, get="broker_id"),
    Column("role", optional=True),
    Column("endpoints", get="entry.value.addresses"),
    Column("rack", optional=True, get="entry.value.rack"),
    Column("format_version", right=True, title="FORMAT", get="entry.value.version"),
    Column("registered_at", time=True, rank=11, get="entry.node.ctime_ms"),
    Column("ephemeral_owner", rank=12, get="entry.node.session"),
    Column("timestamp", detail=True, get="entry.value.timestamp_ms"),
    Column("jmx_port", right=True, optional=True, get="entry.value.jmx_port"),
    Column("security", detail=True, get="entry.value.security"),
    Column("features", detail=True, get="entry.value.features"),
    Column("notes", optional=True, get="entry.notes"),
    Column("error", optional=True, get="errors"),
)
TOPICS: Final = (
    *PARTITION,
    Column("leader", right=True),
    Column("replicas"),
    Column("isr", get="state.isr"),
    Column("leader_epoch", right=True, title="EPOCH", get="state.leader_epoch"),
    Column("adding", optional=True),
    Column("removing", optional=True),
    Column("controller_epoch", detail=True, get="state.controller_epoch"),
    Column("topic_id", detail=True),
    *NOTES,
)
MEMBERS: Final = (
    Column("group"),
    Column("member_id", rank=1, get="member.member_id"),
    Column("host", optional=True, rank=2, get="member.host"),
    Column("pattern", get="member.registration.pattern"),
    Column("subscription", rank=NAME_RANK, get="member.registration.subscription"),
    Column("partitions", right=True),
    Column("registered_at", time=True, rank=11, get="member.node.ctime_ms"),
    Column("started_at", detail=True, get="member.started_at_ms"),
    Column("ephemeral_owner", rank=12, get="member.node.session"),
    Column("format_version", detail=True, get="member.registration.version"),
    *NOTES,
)
OWNERS: Final = (
    Column("group"),
    Column("topic", get="partition.topic"),
    Column("partition", right=True, title="PART", get="partition.partition"),
    Column("member_id", rank=1, get="owner.member_id"),
    Column("thread", right=True, get="owner.thread"),
    Column("claimed_at", time=True, rank=11, get="owner.node.ctime_ms"),
    Column("ephemeral_owner", rank=12, get="owner.node.session"),
    *NOTES,
)
FINDINGS: Final = (
    Column("severity"),
    Column("code"),
    Column("group", optional=True),
    Column("topic", detail=True),
    Column("partitions", detail=True),
    Column("path", detail=True),
    Column("finding", get="sentence"),
    Column("todo"),
)
ELECTION: Final = (*PARTITION, Column("leader", right=True), Column("preferred", right=True))
REASSIGNMENT: Final = (*PARTITION, Column("before"), Column("after"), Column("adding"), Column("removing"))
DELETION: Final = (Column("topic"), Column("partitions", right=True), Column("replicas", right=True))


def _rows(columns: Sequence[Column], items: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """Like `rows_of`, with one text in place of a list or a map."""
    return (tuple(map(_text, row)) for row in rows_of(columns, items))


def _text(value: Any) -> Any:
    if isinstance(value, dict):
        return " ".join(f"{k}({_text(v)})" if isinstance(v, dict) else f"{k}={v}" for k, v in value.items()) or None
    if not isinstance(value, tuple):
        return for_command_line(value) if isinstance(value, str) else value
    separator = "," if all(isinstance(one, int) for one in value) else "; "
    return separator.join(one.why if isinstance(one, OffsetMgrError) else str(one) for one in value) or None


def _show(columns: Sequence[Column], items: Iterable[Any], output: OutputFormat, empty: str = "") -> int:
    """Prints results, then their errors, and returns the exit code. ``empty`` is a note for an empty listing."""
    errors: list[OffsetMgrError] = []

    def shown() -> Iterator[Any]:
        for item in items:
            errors.extend(item.errors)
            if not isinstance(item, zk.ReadErrors):
                yield item

    if not write_rows(columns, _rows(columns, shown()), output) and not errors and empty:
        note(empty)
    return report_and_exit_code(errors)


@command(app, "tree", many=True, watch=True)
def tree(
    connect: ConnectFlags,
    path: Annotated[str, arg("[PATH]", "The first node, below the chroot.")] = "/",
    depth: Annotated[int | None, opt("--depth", None, "Maximum number of levels below it.", min=0)] = None,
    output: FormatOption = OutputFormat.TABLE,
) -> int:
    """Print a znode and its descendants, decoded.

    NOTES lists irregularities of a node. If a node cannot be read, the other nodes are still shown. Credentials are
    hidden. --format json and csv include each node's raw data.
    """
    return _show(TREE, zk.tree(connect, path, depth), output)


@command(app, "brokers", many=True, watch=True)
def brokers(connect: ConnectFlags, output: FormatOption = OutputFormat.TABLE) -> int:
    """List the live brokers with their addresses, and which of them is the controller."""
    found = zk.brokers(connect)
    write_rows(BROKERS, _rows(BROKERS, found.live), output)
    if not found.live:
        note(f"no live brokers at {found.zookeeper}{'' if found.cluster_id.value else '; is the chroot right?'}")
    if output.for_people:
        controller, epoch = found.controller.value, found.controller_epoch.value
        leader = "no controller known"
        if controller is not None:
            alive = any(broker.role for broker in found.live)
            leader = f"controller {controller}{'' if alive else ', which is not among them'}"
        cluster_id = found.cluster_id.value or "not known"
        note(f"cluster id {cluster_id}, {leader}, controller epoch {'not known' if epoch is None else epoch}")
    singles = (found.cluster_id, found.controller, found.controller_epoch)
    for entry in singles:
        for text in entry.notes:
            note(f"note: {entry.path}: {text}")
    errors = [entry.error for entry in singles if entry.error is not None]
    return report_and_exit_code([*errors, *(error for broker in found.live for error in broker.errors)])


@command(app, "topics", many=True, watch=True)
def topics(
    connect: ConnectFlags,
    topic: TopicFlags,
    output: FormatOption = OutputFormat.TABLE,
) -> int:
    """List topics with their partitions: leader, assigned and in-sync replicas, reassignments, deletions.

    Partitions of Kafka 0.7 are shown as BROKER-PARTITION.
    """
    return _show(TOPICS, zk.topics(connect, topic.selection()), output)


@command(app, "members", many=True, watch=True)
def members(
    connect: ConnectFlags,
    groups: GroupFlags,
    output: FormatOption = OutputFormat.TABLE,
) -> int:
    """List the members of groups registered in ZooKeeper, with their subscriptions.

    SUBSCRIPTION is topic=streams; with a pattern (white_list, black_list) it is expression=streams.
    """
    return _show(MEMBERS, zk.members(connect, groups.selection()), output, "no live members")


@command(app, "owners", many=True, watch=True)
def owners(
    connect: ConnectFlags,
    groups: GroupFlags,
    topic: TopicFlags,
    output: FormatOption = OutputFormat.TABLE,
) -> int:
    """List the owned partitions, each with the consumer thread that owns it."""
    found = zk.owners(connect, groups.selection(), topic.selection())
    return _show(OWNERS, found, output, "no partition has an owner")


@command(app, "check", many=True, watch=True)
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
    output: FormatOption = OutputFormat.TABLE,
) -> int:
    """Find faults in the groups of old consumers: owners, subscriptions, offsets, unreadable nodes.

    The exit code is 1 if there are any faults. With --bootstrap-server, the command also compares offsets with the
    logs. At the end, it lists the items that it could not check.
    """
    since = None if unused_since is None else _date(unused_since)
    found = zk.check(connect, groups.selection(), unused_since_ms=since, settle_s=settle_s)
    counts: Counter[str] = Counter()
    write_rows(FINDINGS, _rows(FINDINGS, (counts.update([one.severity]) or one for one in found.findings)), output)
    for text in found.not_checked:
        note(f"not checked: {for_command_line(text)}")
    faults = ", ".join(f"{counts[name]} {name}" for name in ("error", "warning", "unknown") if counts[name])
    note(f"checked {count_of(len(found.groups), 'group')}: {faults or 'nothing found'}")
    return 0 if not faults and found.is_same_cluster else FAILED


def _date(text: str) -> int:
    """Converts a date or a time (UTC) to milliseconds since 1970. Raises `UsageError` for any other text."""
    try:
        return parse_datetime(text if "T" in text.upper() else f"{text.strip()}T00:00:00")
    except UsageError:
        raise UsageError(
            "--unused-since", f"{text!r} is no date or time", "as in 2026-11-21, or 2026-11-21T09:00:00"
        ) from None


Wait = Annotated[
    float,
    opt(
        "--wait",
        "SECONDS",
        "How long to wait for the controller. Then the command lists unfinished items and ends; the controller "
        "continues.",
        min=0,
    ),
]


def _run(request: zk.ControllerRequest, columns: Sequence[Column], flags: RunFlags, wait_s: float) -> int:
    """Shows a request, executes it with --execute, and returns the exit code."""
    plan, output, in_table = request.plan, flags.output, flags.output.for_people
    rejected = report_and_exit_code(plan.rejections)
    execute = flags.execute and bool(plan.todo)
    if in_table or not flags.execute:
        rows = ((*row, _plan_note(step)) for row, step in _steps(columns, plan))
        write_rows([*columns, Column("note", optional=True)], rows, output)
    outcomes = request.execute(wait_s=wait_s, reason=flags.reason or "") if execute else {}
    if not in_table and flags.execute:
        found = ((row, outcomes.get(step.name) or plan.untouched(step)) for row, step in _steps(columns, plan))
        rows = ((*row, state, text or None) for row, (state, text) in found)
        write_rows([*columns, Column("outcome"), Column("note", optional=True)], rows, output)
    left = _report(request, outcomes, wait_s) if execute else 0
    if not execute and plan.all_or_nothing and plan.rejections:
        note("nothing was changed: one refused part refuses the whole request")
    elif not plan.todo:
        note("nothing to change")
    elif not execute:
        note(f"dry run: would {plan.summary}; nothing was changed")
        note("hint: add --execute to do it")
    return FAILED if left else rejected


def _steps(columns: Sequence[Column], plan: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    return zip(_rows(columns, plan.steps), plan.steps, strict=True)


def _plan_note(step: Any) -> str | None:
    if step.rejected is not None:
        return f"refused: {step.rejected.why or step.rejected.what}"
    return step.note or None


def _report(request: zk.ControllerRequest, outcomes: Mapping[str, Any], wait_s: float) -> int:
    """Prints the steps that are not done, and returns their number."""
    total = len(request.plan.todo)
    left = {step.name: outcomes[step.name] for step in request.plan.todo if outcomes[step.name].state != "done"}
    for name, (state, why) in left.items():
        note(f"{state}: {name}: {why}")
    if not left or any(state == "failed" for state, _ in left.values()):
        note(f"done: {total - len(left)}" + (f", failed: {len(left)}" if left else ""))
    else:
        note(f"error: {request.name}: {len(left)} of {total} still open after {wait_s:g} s; the controller continues")
        if request.cancel:
            note(f"hint: if it does not finish, cancel it: {request.cancel}")
    return len(left)


@command(app, "elect")
def elect(
    connect: ConnectFlags,
    topic: TopicFlags,
    all_topics: Annotated[bool, flag("--all-topics", "All topics of the cluster.")] = False,
    wait_s: Wait = zk.WAIT_S,
    *,
    flags: RunFlags,
) -> int:
    """Make the preferred replica of each partition its leader again (preferred replica election).

    A partition whose preferred replica is dead or not in sync is rejected; the others get their election.
    """
    require_choice("--topic", topic.topic, "--all-topics", all_topics)
    return _run(zk.elect(connect, topic.selection()), ELECTION, flags, wait_s)


@command(app, "reassign")
def reassign(
    connect: ConnectFlags,
    reassignment_json_file: Annotated[
        Path,
        opt(
            "--reassignment-json-file",
            "FILE",
            "The brokers for each partition, in the format of kafka-reassign-partitions.",
        ),
    ],
    allow_replication_change: Annotated[
        bool, flag("--allow-replication-change", "Allow the number of replicas to change.")
    ] = False,
    before_image: Annotated[
        Path | None,
        opt(
            "--before-image",
            "FILE",
            "File for the present replicas, which undoes the request (default: a new file in the state directory).",
            callback=file_to_write,
        ),
    ] = None,
    wait_s: Wait = zk.WAIT_S,
    *,
    flags: RunFlags,
) -> int:
    """Move partitions to other brokers (partition reassignment).

    The command first checks that brokers are alive, partitions exist, no broker occurs twice, the number of replicas
    stays the same, and no reassignment is under way. One failed check rejects the whole request.
    """
    request = zk.reassign(
        connect, reassignment_json_file, allow_replication_change=allow_replication_change, before_image=before_image
    )
    return _run(request, REASSIGNMENT, flags, wait_s)


@command(app, "delete-topic")
def delete_topic(
    connect: ConnectFlags,
    topic: Annotated[list[str], opt("--topic", "NAME", "A topic, by its whole name; repeatable.")],
    wait_s: Wait = zk.WAIT_S,
    *,
    flags: RunFlags,
) -> int:
    """Delete topics with all their messages. This cannot be undone.

    With --bootstrap-server the command first asks the controller whether it deletes topics at all
    (delete.topic.enable). One rejected topic rejects the whole request.
    """
    return _run(zk.delete_topic(connect, topic), DELETION, flags, wait_s)
