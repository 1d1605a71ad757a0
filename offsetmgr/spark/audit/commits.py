"""Computes tables from the records of an offsets topic (`offsetmgr.spark.log_rows.SCHEMA`): the newest offsets, and
each group's history of commits.

Compaction removes older records, so only the newest record of each group and partition is certain to exist. All records
of a group are in one partition of the log, so ``log_offset`` is the order of the group's commits.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sql

from offsetmgr.spark.log_rows import GROUP, OFFSET, STATE

KEY: Final = ("group", "topic", "partition")
DAY_MS: Final = 86_400_000
GAP_MS: Final = 3_600_000
"""By default, more than an hour without a commit is a gap."""
_COMMIT: Final = ("offset", "leader_epoch", "metadata", "commit_timestamp", "expire_timestamp", "log_timestamp")


def latest(log: DataFrame) -> DataFrame:
    """Returns the newest record of each group, topic and partition: a commit or a ``tombstone``. If the newest record
    is unreadable, the row has an ``error``, and no older record takes its place."""
    newest = sql.max_by(sql.struct("tombstone", *_COMMIT, "error"), sql.col("log_offset")).alias("newest")
    return log.where(sql.col("kind") == OFFSET).groupBy(*KEY).agg(newest).select(*KEY, "newest.*")


def committed(newest: DataFrame) -> DataFrame:
    """Returns the rows of `latest` that are committed offsets: neither deleted nor unreadable."""
    return newest.where(~sql.col("tombstone") & sql.col("error").isNull())


def history(log: DataFrame, *, gap_ms: int = GAP_MS) -> DataFrame:
    """Returns statistics of the commits of each group, topic and partition, from the records that the log still has.

    ``commits`` and ``tombstones`` count records. ``commits_per_hour`` is the rate from the first to the last commit,
    null if both have the same time. ``consumed_per_s`` is the rate at which the offset grew between these two commits.
    ``rewinds`` counts the commits whose offset is below the offset of the previous commit; ``largest_rewind`` is the
    largest difference between these two offsets. ``gaps`` counts the pauses of more than ``gap_ms`` between two
    commits; ``longest_silence_ms`` is the longest pause.
    """
    rows = log.where((sql.col("kind") == OFFSET) & sql.col("error").isNull())
    commits = rows.where(~sql.col("tombstone"))
    order = Window.partitionBy(*KEY).orderBy("log_offset")
    silence = sql.col("commit_timestamp") - sql.lag("commit_timestamp").over(order)
    back = sql.lag("offset").over(order) - sql.col("offset")
    spent = sql.max("commit_timestamp") - sql.min("commit_timestamp")
    grown = sql.max_by("offset", "log_offset") - sql.min_by("offset", "log_offset")
    statistics = (
        commits.withColumns({"silence": silence, "back": back})
        .groupBy(*KEY)
        .agg(
            sql.count("*").alias("commits"),
            sql.min("commit_timestamp").alias("first_commit"),
            sql.max("commit_timestamp").alias("last_commit"),
            _per(sql.count("*") - 1, spent, 3_600_000).alias("commits_per_hour"),
            _per(grown, spent, 1_000).alias("consumed_per_s"),
            sql.count_if(sql.col("back") > 0).alias("rewinds"),
            sql.max(sql.when(sql.col("back") > 0, sql.col("back"))).alias("largest_rewind"),
            sql.count_if(sql.col("silence") > gap_ms).alias("gaps"),
            sql.max("silence").alias("longest_silence_ms"),
        )
    )
    deleted = rows.groupBy(*KEY).agg(sql.count_if("tombstone").alias("tombstones"))
    counted = deleted.join(statistics, list(KEY), "left")
    return counted.withColumns(
        {name: sql.coalesce(sql.col(name), sql.lit(0)) for name in ("commits", "rewinds", "gaps")}
    )


def tombstones(log: DataFrame) -> DataFrame:
    """Returns, for each group, the number of tombstones that the log still has, the number of partitions with such a
    tombstone, and the append time of the last tombstone."""
    return (
        log.where((sql.col("kind") == OFFSET) & sql.col("tombstone"))
        .groupBy("group")
        .agg(
            sql.count("*").alias("tombstones"),
            sql.count_distinct("topic", "partition").alias("partitions"),
            sql.max("log_timestamp").alias("last_tombstone"),
        )
    )


def silent_groups(newest: DataFrame, *, days: float, now_ms: int) -> DataFrame:
    """Returns the groups that have offsets and whose newest commit is more than ``days`` old. ``newest`` is the result
    of `latest`."""
    return (
        committed(newest)
        .groupBy("group")
        .agg(sql.max("commit_timestamp").alias("last_commit"), sql.count("*").alias("partitions"))
        .where(sql.col("last_commit") < now_ms - int(days * DAY_MS))
        .withColumn("silent_days", sql.round((sql.lit(now_ms) - sql.col("last_commit")) / DAY_MS, 3))
    )


def groups(log: DataFrame) -> DataFrame:
    """Returns each group's newest metadata: ``members`` and ``group_timestamp`` as in the log's table. ``new_protocol``
    marks groups of the KIP-848 protocol, whose members this table does not contain. Deleted groups are omitted."""
    rows = log.where(sql.col("kind").isin(GROUP, STATE) & sql.col("error").isNull())
    newest = sql.max_by(sql.struct("kind", "tombstone", "members", "group_timestamp"), sql.col("log_offset"))
    # A KIP-848 group has keys of several versions. The record of key version 3 shows whether the group exists.
    return (
        rows.where((sql.col("kind") == GROUP) | (sql.col("key_version") == 3))
        .groupBy("group")
        .agg(newest.alias("newest"))
        .where(~sql.col("newest.tombstone"))
        .select(
            "group",
            (sql.col("newest.kind") == STATE).alias("new_protocol"),
            sql.col("newest.members").alias("members"),
            sql.col("newest.group_timestamp").alias("group_timestamp"),
        )
    )


def _per(count: Column, spent_ms: Column, unit_ms: int) -> Column:
    """Returns a rate per unit of time; null if no time has passed."""
    return sql.round(sql.when(spent_ms > 0, count * float(unit_ms) / spent_ms), 3)
