"""Audits, compares and copies offsets with Spark's executors, for clusters with very many groups.

If a job fails, the functions raise `SparkError` with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from offsetmgr.app.connections import Connections
from offsetmgr.core.advice import Advice
from offsetmgr.core.errors import UnknownTopicOrPartition, UsageError
from offsetmgr.core.plurals import count_of
from offsetmgr.core.selection import ALL_TOPICS, GroupSelection, TopicSelection, accept_names
from offsetmgr.spark.settings import AuditOptions as AuditOptions
from offsetmgr.spark.settings import Sides as Sides
from offsetmgr.spark.settings import SparkSettings as SparkSettings

if TYPE_CHECKING:
    from offsetmgr.core.log_origin import OffsetTranslation
    from offsetmgr.spark.audit.page_data import AuditReport
    from offsetmgr.spark.store_rows import RowDifference
    from offsetmgr.spark.store_tables import CopyOutcome

_MINUTE_MS = 60_000
_HERE = SparkSettings()


def audit(
    connections: Connections, directory: Path, options: AuditOptions | None = None, *, spark: SparkSettings = _HERE
) -> AuditReport:
    """Reads an offsets topic: writes its records, the newest offsets, the history of commits, silent groups,
    tombstones, expiry and lag as Parquet tables to the new directory, and a page that can be read without Spark.
    Raises `UsageError`, `UnknownTopicOrPartition`."""
    from offsetmgr.spark.store_rows import select_groups
    from offsetmgr.spark.versions import require_supported

    require_supported("spark audit")
    connection, chosen, other = connections.resolved.connection, options or AuditOptions(), None
    topic, bootstrap, compare = chosen.offsets_topic, connections.bootstrap(), chosen.compare
    if bootstrap is None:
        raise UsageError("spark audit", "no brokers are known", Advice("add {bootstrap_server}"))
    cluster, config = connections.cluster_at(bootstrap, connection), chosen.compare_config or connection
    if compare is not None:
        other = connections.store(compare, config).capabilities
        select_groups(compare, config, GroupSelection())  # fails before the audit if the store cannot be read
    if topic not in cluster.topics([topic]):  # Spark would print a long error
        hint = "Kafka creates the offsets topic with the first commit; some managed services hide it from every login"
        raise UnknownTopicOrPartition(f"topic {topic}", "the brokers do not list it", hint)
    properties = connections.resolved.command_config if connection.kafka else ""
    if properties is None:
        hint = Advice("add {command_config}, a file that exists on every machine")
        raise UsageError("spark audit", "the credentials do not reach the executors", hint)

    from offsetmgr.core.clock import SystemClock
    from offsetmgr.spark.audit.page_data import page_data, write_report
    from offsetmgr.spark.audit.run import add_comparison, run_audit
    from offsetmgr.spark.store_tables import store_table
    from offsetmgr.spark.table_registration import table_job

    with table_job("offsetmgr", *spark) as session:
        log = session.read.format("offsetmgr-log").option("kafka.bootstrap.servers", bootstrap)
        log = log.option("topic", topic).option("timeout", connection.timeout_ms)
        if properties:
            log = log.option("commandConfig", str(Path(properties).absolute()))
        now_ms = SystemClock().now_ms()
        silent_days, gap_ms = chosen.silent_days, chosen.gap_minutes * _MINUTE_MS
        tables = run_audit(session, log.load(), cluster, directory, now_ms, silent_days=silent_days, gap_ms=gap_ms)
        if compare is not None and other is not None:
            groups = select_groups(compare, config, GroupSelection())  # again, to have every group of the log
            store = store_table(session, compare, groups, config, errors=True)
            tables = add_comparison(tables, store, other, directory)
        data = page_data(tables, cluster, now_ms, title=topic, source=bootstrap, compared_with=compare)
        return write_report(data, tables, directory)


def diff(
    connections: Connections,
    sides: Sides,
    groups: GroupSelection,
    topics: TopicSelection = ALL_TOPICS,
    *,
    spark: SparkSettings = _HERE,
) -> Iterator[RowDifference]:
    """Yields the differences between two stores, sorted. Raises `GroupNotFound` for a group that no store has."""
    from offsetmgr.spark.store_rows import RowDifference, select_groups_of_stores
    from offsetmgr.spark.versions import require_supported

    require_supported("spark diff")
    stores = sides.stores(connections.resolved.connection)
    chosen = select_groups_of_stores(stores, groups)

    from offsetmgr.spark.audit.compare import differences
    from offsetmgr.spark.store_tables import sorted_rows, store_table
    from offsetmgr.spark.table_registration import table_job

    with table_job("offsetmgr", *spark) as session:
        left, right = (store_table(session, uri, chosen, config, topics, errors=True) for uri, config in stores)
        held, other = (connections.store(uri, config).capabilities for uri, config in stores)
        yield from map(RowDifference._make, sorted_rows(differences(left, right, (held, other)).persist()))


@contextmanager
def copy(
    connections: Connections,
    sides: Sides,
    groups: GroupSelection,
    topics: TopicSelection = ALL_TOPICS,
    *,
    translate: OffsetTranslation | None = None,
    execute: bool = False,
    reason: str = "",
    spark: SparkSettings = _HERE,
) -> Iterator[CopyOutcome]:
    """Copies committed offsets from one store to another: forward only, each write conditional. Yields the outcome; its
    rows can be read inside the block. Without ``execute`` nothing is written.

    ``translate`` allows a target in another Kafka cluster, and ``reason`` is for the operation log. Raises
    `GroupNotFound`, `OtherCluster`, and at the end of the block `UnknownTopicOrPartition` for a topic without offsets.
    """
    from offsetmgr.groups.operation_log import OperationLog, OperationStart, first_groups
    from offsetmgr.spark.store_rows import RowOrigin, select_groups
    from offsetmgr.spark.versions import require_supported

    require_supported("spark copy")
    (source, config), (target, target_config) = sides.stores(connections.resolved.connection)
    written_to = connections.store(target, target_config)
    connections.check_crossing("spark copy", connections.store(source, config), written_to, translate)
    chosen = select_groups(source, config, groups)
    if execute:
        connections.ui.confirm(f"copy the offsets of {count_of(len(chosen), 'group')} from {source} to {target}?")

    from offsetmgr.spark.store_tables import copied, dry_run, metadata_text, require_topics, store_table
    from offsetmgr.spark.table_registration import table_job

    with table_job("offsetmgr", *spark) as session:
        rows, origin = store_table(session, source, chosen, config, topics), RowOrigin(source, config, translate)
        keeps = written_to.capabilities.metadata
        if not keeps and (dropped := metadata_text(rows)):
            connections.warn(f"the target cannot hold {dropped}")
        if execute:
            start = OperationStart("spark copy", (target,), first_groups(chosen), len(chosen), 0, reason=reason)
            with OperationLog().recorded(start) as recorded:
                found = copied(rows, target, target_config, origin)
                recorded.written, recorded.failed = found.counts.get("written", 0), found.counts.get("failed", 0)
        else:
            held = store_table(session, target, chosen, target_config, topics)
            found = dry_run(rows, held, target, target_config, origin, metadata=keeps)
        yield found
        require_topics(topics, found, source)


accept_names(globals())
