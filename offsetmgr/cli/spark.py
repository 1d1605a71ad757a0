"""``offsetmgr spark``: audits, compares and copies offsets with Spark. The package `offsetmgr.spark` implements these
operations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from offsetmgr.cli.connect_flags import ConnectFlags, connected
from offsetmgr.cli.errors import FAILED, fail_if
from offsetmgr.cli.many_clusters import one_cluster
from offsetmgr.cli.options import (
    Execute,
    FormatOption,
    FromConfig,
    GroupFlags,
    Reason,
    ToConfig,
    TopicsOption,
    TranslateOption,
    Yes,
    opt,
)
from offsetmgr.cli.render import Column, OutputFormat, note, write_rows
from offsetmgr.cli.terminal import confirm
from offsetmgr.core.errors import UnknownTopicOrPartition, UnsupportedOperation, UsageError
from offsetmgr.core.extras import install_hint
from offsetmgr.core.model import TopicPartition
from offsetmgr.core.plurals import count_of
from offsetmgr.core.selection import GroupSelection

if TYPE_CHECKING:
    from offsetmgr.core.selection import TopicSelection
    from offsetmgr.spark.sql_types import DataFrame, SparkSession

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Master = Annotated[
    str | None,
    opt("--master", "URL", "Spark's master (default: the cores of this machine)."),
]
Conf = Annotated[
    list[str] | None,
    opt("--conf", "KEY=VALUE", "A Spark setting; repeatable."),
]
OneStore = Annotated[str, opt("--from", "URI", "One store.")]
OtherStore = Annotated[str, opt("--to", "URI", "The other store.")]

_TABLES: Final = (Column("table"), Column("rows", right=True), Column("path"), Column("what"))
_DIFFERENCES: Final = (
    Column("group"),
    Column("topic"),
    Column("partition", right=True),
    Column("difference"),
    Column("from_offset", right=True),
    Column("to_offset", right=True),
    Column("from_metadata", optional=True),
    Column("to_metadata", optional=True),
    Column("error", optional=True),
)
_OUTCOMES: Final = (
    Column("group"),
    Column("topic"),
    Column("partition", right=True),
    Column("offset", right=True),
    Column("outcome"),
    Column("before", right=True),
    Column("error", optional=True),
)
_PLANNED: Final = (
    Column("group"),
    Column("topic"),
    Column("partition", right=True),
    Column("offset", right=True),
    Column("before", right=True),
    Column("outcome"),
    Column("error", optional=True),
)
_MINUTE_MS: Final = 60_000


def _require_spark(command: str) -> None:
    """Raises `UnsupportedOperation` if PySpark is not installed, and `SparkError` if its version is not supported."""
    from offsetmgr.spark.versions import require_supported

    require_supported(command)


@contextmanager
def _spark(master: str | None, conf: list[str] | None) -> Iterator[SparkSession]:
    """Yields a Spark session, and stops it when the command ends. Raises `UnsupportedOperation`, `SparkError`,
    `UsageError`."""
    settings: dict[str, str] = {}
    for one in conf or []:
        name, equals, value = one.partition("=")
        if not equals:
            raise UsageError(f"--conf {one}", "is not KEY=VALUE", "as in --conf spark.executor.memory=4g")
        settings[name] = value
    try:
        from offsetmgr.spark.table_registration import table_job
    except ModuleNotFoundError as missing:
        hint = install_hint("spark")
        raise UnsupportedOperation("Spark", f"{missing.name} is not installed", hint) from missing
    with table_job("offsetmgr", master, settings) as spark:
        yield spark


def _sorted(table: DataFrame, columns: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
    """Yields the rows of the table in sorted order. Spark returns one partition of the table at a time, so that memory
    does not grow with the number of rows."""
    for row in table.orderBy("group", "topic", "partition").select(*columns).toLocalIterator():
        yield tuple(row)


def _require_topics(topics: TopicSelection, rows: DataFrame, source: str) -> None:
    """Raises `UnknownTopicOrPartition` if a --topic option matches no topic in ``rows``."""
    from offsetmgr.groups.topic_matches import TopicMatches

    topic_matches = TopicMatches(topics)
    if topics.patterns:
        topic_matches.record(
            TopicPartition(*row) for row in rows.select("topic", "partition").distinct().toLocalIterator()
        )
    topic_matches.require_all(source)


@app.command("audit")
@connected
@one_cluster("Spark runs one job for one pair of stores")
def audit(
    connect: ConnectFlags,
    directory: Annotated[Path, opt("--output -o", "DIR", "A new directory for the results.")],
    offsets_topic: Annotated[
        str, opt("--offsets-topic", "NAME", "Kafka's own, or an offset manager's.")
    ] = "__consumer_offsets",
    silent_days: Annotated[float, opt("--silent-days", None, "Days without a commit.", min=0)] = 7.0,
    gap_minutes: Annotated[int, opt("--gap", "MINUTES", "Minimum length of a gap.", min=1)] = 60,
    compare: Annotated[
        str | None,
        opt("--compare", "URI", "A store to compare the topic with."),
    ] = None,
    compare_config: Annotated[
        str | None,
        opt("--compare-command-config", "FILE", "Like --command-config, but only for the compared store."),
    ] = None,
    master: Master = None,
    conf: Conf = None,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Read the offsets topic itself: latest offsets, commit history, silent groups, tombstones, expiry and lag as
    Parquet tables, and a page (index.html) that can be read without Spark.

    The exit code is 1 if records of the topic could not be read (they are in the table "unreadable"), or if the store
    of --compare differs (the table "differences").
    """
    _require_spark("spark audit")
    bootstrap = connect.bootstrap()
    if bootstrap is None:
        raise UsageError("spark audit", "no brokers are known", "add --bootstrap-server")
    cluster = connect.cluster_at(bootstrap, connect.resolved.connection)
    other = None
    if compare is not None:
        from offsetmgr.spark.store_rows import select_groups

        config = connect.connection(compare_config)
        other = connect.store(compare, config).capabilities
        select_groups(compare, config, GroupSelection())  # fails before the audit if the store cannot be read
    if offsets_topic not in cluster.topics([offsets_topic]):  # Spark would print a long error
        raise UnknownTopicOrPartition(f"topic {offsets_topic}", "does not exist in this Kafka cluster")
    with _spark(master, conf) as spark:
        from offsetmgr.core.clock import SystemClock
        from offsetmgr.spark.audit import run
        from offsetmgr.spark.audit.page import PAGE, page
        from offsetmgr.spark.audit.page_data import page_data
        from offsetmgr.spark.store_tables import store_table

        log = spark.read.format("offsetmgr-log").option("kafka.bootstrap.servers", bootstrap)
        log = log.option("topic", offsets_topic).option("timeout", connect.resolved.connection.timeout_ms)
        if connect.resolved.connection.kafka:
            if connect.flags.command_config is None:
                why = "the credentials of a context do not reach the executors"
                raise UsageError(
                    "spark audit", why, "add --command-config FILE, with a file that exists on every machine"
                )
            log = log.option("commandConfig", str(Path(connect.flags.command_config).absolute()))
        options = run.AuditOptions(SystemClock().now_ms(), silent_days, gap_minutes * _MINUTE_MS)
        tables, table_texts = run.run_audit(spark, log.load(), cluster, directory, options), run.TABLES
        if compare is not None and other is not None:
            store = store_table(spark, compare, errors=True, config=connect.connection(compare_config))
            tables, table_texts = run.add_comparison(tables, store, other, directory), run.COMPARED
        counts = {name: tables[name].count() for name in table_texts}
        data = page_data(tables, cluster, options.now_ms, title=offsets_topic, source=bootstrap, compared_with=compare)
        (directory / PAGE).write_text(page(data), encoding="utf-8")
        write_rows(
            _TABLES, ((name, counts[name], str(directory / name), what) for name, what in table_texts.items()), output
        )
    note(f"report: {directory / PAGE}")
    if counts[run.UNREADABLE]:
        note(f"{count_of(counts[run.UNREADABLE], 'record')} could not be read")
    differing = counts.get(run.DIFFERENCES, 0)
    if compare is not None:
        note(f"{count_of(differing, 'difference') if differing else 'no difference'} from {compare}")
    fail_if(counts[run.UNREADABLE] or differing)


@app.command("diff")
@connected
@one_cluster("Spark runs one job for one pair of stores")
def diff(
    connect: ConnectFlags,
    source: OneStore,
    target: OtherStore,
    groups: GroupFlags,
    topic: TopicsOption = None,
    from_config: FromConfig = None,
    to_config: ToConfig = None,
    master: Master = None,
    conf: Conf = None,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Show the differences between two stores, computed by Spark's executors; the exit code is 1 on any difference."""
    from offsetmgr.spark.store_rows import select_groups_of_stores

    _require_spark("spark diff")
    stores = [(source, connect.connection(from_config)), (target, connect.connection(to_config))]
    chosen = select_groups_of_stores(stores, groups.selection())
    with _spark(master, conf) as spark:
        from offsetmgr.core.selection import TopicSelection
        from offsetmgr.spark.audit.compare import differences
        from offsetmgr.spark.store_tables import table_of

        topics, sides, held = TopicSelection.parse(topic or []), [], []
        for uri, config in stores:
            held.append(connect.store(uri, config).capabilities)
            sides.append(table_of(spark, uri, chosen, topics=topics, errors=True, config=config))
        found = differences(sides[0], sides[1], (held[0], held[1])).persist()
        columns = ("left_offset", "right_offset", "left_metadata", "right_metadata", "error")
        count = write_rows(_DIFFERENCES, _sorted(found, ("group", "topic", "partition", "kind", *columns)), output)
    if count:
        note(count_of(count, "difference"))
        raise typer.Exit(FAILED)
    note("no difference")


@app.command("copy")
@connected
def copy(
    connect: ConnectFlags,
    source: OneStore,
    target: OtherStore,
    groups: GroupFlags,
    topic: TopicsOption = None,
    translate: TranslateOption = None,
    execute: Execute = False,
    yes: Yes = False,
    reason: Reason = None,
    from_config: FromConfig = None,
    to_config: ToConfig = None,
    master: Master = None,
    conf: Conf = None,
    output: FormatOption = OutputFormat.TABLE,
) -> None:
    """Copy committed offsets from one store to another with Spark's executors: forward only, each write conditional.

    The command shows the outcome for each offset: write, unchanged, refuse-rewind (the target's offset is larger), or
    refuse-recreated (the topic was recreated after the commit). With --execute it lists the offsets that were not
    copied, and the exit code is 1 if there are any. For a migration that can be undone, use migrate.
    """
    from offsetmgr.cli.edit_command import cross_cluster_check
    from offsetmgr.groups.operation_log import OperationLog, OperationStart, first_groups
    from offsetmgr.spark.store_rows import select_groups

    _require_spark("spark copy")
    selection = groups.selection()
    config, target_config = connect.connection(from_config), connect.connection(to_config)
    cross_cluster_check("spark copy", connect.store(source, config), connect.store(target, target_config), translate)
    chosen = select_groups(source, config, selection)
    if execute:
        confirm(f"copy the offsets of {count_of(len(chosen), 'group')} from {source} to {target}?", yes=yes)
    with _spark(master, conf) as spark:
        from offsetmgr.core.selection import TopicSelection
        from offsetmgr.spark.store_rows import RECREATED, RowOrigin
        from offsetmgr.spark.store_tables import copy as copied
        from offsetmgr.spark.store_tables import dry_run, recreated, table_of

        topics = TopicSelection.parse(topic or [])
        origin = RowOrigin(source, config, translate)
        rows = table_of(spark, source, chosen, topics=topics, config=config)
        keeps = connect.store(target, target_config).capabilities.metadata
        if not keeps:
            _warn_of_dropped_metadata(rows)
        if not execute:
            held = table_of(spark, target, chosen, topics=topics, config=target_config)
            deleted = recreated(rows, target, origin, config=target_config)
            found = dry_run(rows, held, metadata=keeps, recreated=deleted).persist()
            planned = ("group", "topic", "partition", "offset", "before", "outcome", "error")
            write_rows(_PLANNED, _sorted(found, planned), output)
            counts = {row["outcome"]: row["count"] for row in found.groupBy("outcome").count().collect()}
            note(f"{_planned_counts(counts)}; nothing was written, --execute does it")
            _require_topics(topics, found, source)
            fail_if(counts.get(RECREATED))
            return
        start = OperationStart("spark copy", (target,), first_groups(chosen), len(chosen), 0, reason=reason or "")
        with OperationLog().recorded(start) as recorded:
            outcomes = copied(rows, target, config=target_config, origin=origin).persist()
            counts = {row["status"]: row["count"] for row in outcomes.groupBy("status").count().collect()}
            recorded.written, recorded.failed = counts.get("written", 0), counts.get("failed", 0)
        failed = outcomes.where(f"status in ('failed', '{RECREATED}')")
        columns = ("group", "topic", "partition", "offset", "status", "before", "error")
        write_rows(_OUTCOMES, _sorted(failed, columns), output)
        guarded = outcomes.where("not atomic").count()
        summary = ", ".join(f"{counts.get(name, 0):,} {name}" for name in ("written", "unchanged", "failed"))
        summary += f", {counts[RECREATED]:,} {RECREATED}" if RECREATED in counts else ""
        note(f"{summary}{f'; not atomic: {guarded:,}' if guarded else ''}")
        _require_topics(topics, outcomes, source)
    fail_if(counts.get("failed") or counts.get(RECREATED))


def _warn_of_dropped_metadata(rows: DataFrame) -> None:
    """Prints a warning if a store that cannot hold metadata gets these rows, and some of them have metadata."""
    from offsetmgr.core.commit_metadata import dropped_text, form_of

    if forms := Counter(form_of(row[0]) for row in rows.where("metadata != ''").select("metadata").toLocalIterator()):
        note(f"warning: the target cannot hold {dropped_text(forms)}")


def _planned_counts(counts: dict[str, int]) -> str:
    """Returns the summary of a dry run. ``counts`` has the number of offsets of each outcome."""
    from offsetmgr.spark.store_rows import RECREATED

    summary = f"{counts.get('write', 0):,} would be written, {counts.get('unchanged', 0):,} are equal already"
    if rejected := counts.get("refuse-rewind"):
        summary += f", {rejected:,} would be refused (the target's offset is larger)"
    if gone := counts.get(RECREATED):
        summary += f", {gone:,} are refused (the topic was recreated after the commit)"
    return summary
