"""``offsetmgr zk check``: finds faults in the groups of old consumers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from offsetmgr.cli.connect_flags import ConnectFlags, connected
from offsetmgr.cli.errors import FAILED, exit_with
from offsetmgr.cli.many_clusters import many_clusters
from offsetmgr.cli.options import FormatOption, GroupFlags, opt
from offsetmgr.cli.read_error_report import empty_note
from offsetmgr.cli.render import Column, OutputFormat, note, progress, write_rows
from offsetmgr.cli.watch import Count, Watch, WatchCommand, watch_command
from offsetmgr.core.errors import CorruptData, UsageError
from offsetmgr.core.plurals import count_of

if TYPE_CHECKING:
    from offsetmgr.kafka.cluster.base import Cluster
    from offsetmgr.zookeeper.check.findings import Finding
    from offsetmgr.zookeeper.check.zookeeper_check import ZookeeperCheck
    from offsetmgr.zookeeper.client.session import ZookeeperSession

app = typer.Typer()

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
        write_rows(FINDINGS, _rows(checking, chosen, counts), output)
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
    from offsetmgr.cli.scenario import parse_datetime

    try:
        return parse_datetime(text if "T" in text.upper() else f"{text.strip()}T00:00:00")
    except UsageError:
        raise UsageError(
            "--unused-since", f"{text!r} is no date or time", "as in 2026-11-21, or 2026-11-21T09:00:00"
        ) from None


def _rows(checking: ZookeeperCheck, groups: list[str], counts: Counter[str]) -> Iterator[tuple[Any, ...]]:
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
