"""Collects the content of the report page from an audit's tables. The content is a few hundred numbers, which the
driver holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sql

from offsetmgr.core.document import COLOURS
from offsetmgr.kafka.cluster import KafkaCluster
from offsetmgr.spark.audit import run
from offsetmgr.spark.audit.history_series import commit_rate, lag_over_time, moments
from offsetmgr.spark.audit.page import PAGE, SHOWN, Comparison, PageData, page
from offsetmgr.spark.log_rows import OFFSET


class AuditTable(NamedTuple):
    """A table of an audit: its name, its number of rows, its Parquet files, and its meaning."""

    table: str
    rows: int
    path: Path
    what: str


class AuditReport(NamedTuple):
    """The page of an audit and its tables. ``unreadable`` counts the records that could not be read, and
    ``differences`` the partitions that differ in the other store; None if no store was compared."""

    page: Path
    tables: list[AuditTable]
    unreadable: int
    differences: int | None


def write_report(data: PageData, tables: Mapping[str, DataFrame], directory: Path) -> AuditReport:
    """Writes the page with this content to the directory of the audit's tables."""
    texts = run.TABLES if data.comparison is None else run.COMPARED
    counts = {name: tables[name].count() for name in texts}
    (directory / PAGE).write_text(page(data), encoding="utf-8")
    shown = [AuditTable(name, counts[name], directory / name, what) for name, what in texts.items()]
    return AuditReport(directory / PAGE, shown, counts[run.UNREADABLE], counts.get(run.DIFFERENCES))


def page_data(
    tables: Mapping[str, DataFrame],
    cluster: KafkaCluster,
    now_ms: int,
    *,
    title: str,
    source: str,
    compared_with: str | None = None,
) -> PageData:
    """Returns the page's content from an audit's tables (`run.TABLES`). To compute the lag at earlier times, the
    function asks ``cluster`` for the log ends at these times.

    ``compared_with`` is the name of the store in the table `run.DIFFERENCES`; None if there is no such table.
    """
    lags, silent, expiry = tables[run.LAG], tables[run.SILENT], tables[run.EXPIRY]
    by_group = (
        lags.groupBy("group")
        .agg(sql.count("*").alias("n"), sql.sum("lag").alias("lag"), sql.count_if(sql.col("lag").isNull()).alias("bad"))
        .orderBy(sql.desc_nulls_last("lag"), "group")
        .limit(SHOWN)
        .collect()
    )
    most = [row for row in by_group if row["lag"] is not None][:COLOURS]
    total = lags.agg(sql.sum("lag"), sql.count_distinct("group"), sql.count("*")).first()
    assert total is not None  # an aggregate always has a row
    expiring = (
        expiry.where("expires_at is not null")
        .groupBy("group")
        .agg(sql.count("*"), sql.min("expires_at").alias("first"), sql.min_by("how", "expires_at"))
        .orderBy("first", "group")
        .limit(SHOWN)
    )
    quiet = silent.select("group", "last_commit", "silent_days").orderBy("last_commit", "group").limit(SHOWN)
    commits = tables[run.RECORDS].where(f"kind = '{OFFSET}' and error is null")
    times = moments(commits, now_ms)
    return PageData(
        title=title,
        source=source,
        made_at=now_ms,
        facts=[
            ("groups", total[1]),
            ("committed offsets", total[2]),
            ("lag", total[0]),
            ("offsets of unknown lag", lags.where("lag is null").count()),
            ("records in the log", tables[run.RECORDS].count()),
            ("tombstones", commits.where("tombstone").count()),
            ("silent groups", silent.count()),
            ("overdue offsets", expiry.where("overdue").count()),
            ("unreadable records", tables[run.UNREADABLE].count()),
        ],
        lag_over_time=lag_over_time(commits, cluster, [row["group"] for row in most], times),
        commit_rate=commit_rate(commits, times),
        top=[(row["group"], float(row["lag"])) for row in most if row["lag"]],
        lag=[(row["group"], row["n"], row["lag"], row["bad"]) for row in by_group],
        unsteady=_unsteady(tables[run.HISTORY]),
        silent=[tuple(row) for row in quiet.collect()],
        expiring=[tuple(row) for row in expiring.collect()],
        comparison=None if compared_with is None else _comparison(tables[run.DIFFERENCES], compared_with),
    )


def _unsteady(history: DataFrame) -> list[tuple[Any, ...]]:
    found = (
        history.groupBy("group")
        .agg(
            sql.sum("rewinds").alias("rewinds"),
            sql.max("largest_rewind"),
            sql.sum("gaps").alias("gaps"),
            sql.max("longest_silence_ms"),
        )
        .where("rewinds > 0 or gaps > 0")
        .orderBy(sql.desc("rewinds"), sql.desc("gaps"), "group")
        .limit(SHOWN)
    )
    return [tuple(row) for row in found.collect()]


def _comparison(differences: DataFrame, store: str) -> Comparison:
    kinds = differences.groupBy("kind").count().orderBy(sql.desc("count"), "kind")
    ahead = sql.col("left_offset") - sql.col("right_offset")

    def total(condition: str, value: Column) -> Column:
        return sql.coalesce(sql.sum(sql.when(sql.expr(condition), value)), sql.lit(0))

    groups = (
        differences.groupBy("group")
        .agg(
            sql.count("*").alias("partitions"),
            total("left_offset > right_offset", ahead),
            total("left_offset < right_offset", -ahead),
        )
        .orderBy(sql.desc("partitions"), "group")
        .limit(SHOWN)
    )
    return Comparison(
        store,
        [(row["kind"], row["count"]) for row in kinds.collect()],
        [tuple(row) for row in groups.collect()],
    )
