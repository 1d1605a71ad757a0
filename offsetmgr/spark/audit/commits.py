"""From the raw log (`offsetmgr.spark.log_rows.SCHEMA`): the newest offset of each key, and each group's history of
commits.

The log contains the records that compaction has kept: only the newest record of a partition is certain to exist. A
group's records are in one partition of the log, so within it ``log_offset`` is the order of commits.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sql

from offsetmgr.spark.log_rows import GROUP, OFFSET, STATE

KEY: Final = ("group", "topic", "partition")
DAY_MS: Final = 86_400_000
GAP_MS: Final = 3_600_000
"""Default length of a gap: an hour without a commit."""
_COMMIT: Final = ("offset", "leader_epoch", "metadata", "commit_timestamp", "expire_timestamp", "log_timestamp")


def latest(log: DataFrame) -> DataFrame:
    """The newest record of each group, topic and partition: the commit, or a ``tombstone``. If the newest record could
    not be read, its row has an ``error``, and an older record does not replace it."""
    newest = sql.max_by(sql.struct("tombstone", *_COMMIT, "error"), sql.col("log_offset")).alias("newest")
    return log.where(sql.col("kind") == OFFSET).groupBy(*KEY).agg(newest).select(*KEY, "newest.*")


def committed(newest: DataFrame) -> DataFrame:
    """The rows of `latest` that a fetch would find: neither deleted nor unreadable."""
    return newest.where(~sql.col("tombstone") & sql.col("error").isNull())


def history(log: DataFrame, *, gap_ms: int = GAP_MS) -> DataFrame:
    """The history of commits of each group's partition, from the records that the log still contains.

    ``commits`` and ``tombstones`` count records. ``commits_per_hour`` covers the time from the first to the last commit
    and is null if that is one moment; ``consumed_per_s`` is the growth of the offset in that time. ``rewinds`` counts
    commits below the one before, ``largest_rewind`` is in offsets. ``gaps`` counts times of more than ``gap_ms``
    between two commits, ``longest_silence_ms`` is the longest.
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
    """Deletions that the log still contains, one row per group: their number, their number of partitions, and the time
    of the last one (by the broker, when it was appended)."""
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
    """Groups that have offsets and whose newest commit is more than ``days`` old, from `latest`."""
    return (
        committed(newest)
        .groupBy("group")
        .agg(sql.max("commit_timestamp").alias("last_commit"), sql.count("*").alias("partitions"))
        .where(sql.col("last_commit") < now_ms - int(days * DAY_MS))
        .withColumn("silent_days", _rounded((sql.lit(now_ms) - sql.col("last_commit")) / DAY_MS))
    )


def groups(log: DataFrame) -> DataFrame:
    """Each group's newest group metadata: ``members`` and ``group_timestamp`` as in the log's table. ``new_protocol``
    marks groups of KIP-848, whose members this table does not contain. Deleted groups are left out."""
    rows = log.where(sql.col("kind").isin(GROUP, STATE) & sql.col("error").isNull())
    newest = sql.max_by(sql.struct("kind", "tombstone", "members", "group_timestamp"), sql.col("log_offset"))
    # A group of KIP-848 has several keys; that of the group itself (3) shows whether it exists.
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
    """A rate per unit of time; null if no time has passed."""
    return _rounded(sql.when(spent_ms > 0, count * float(unit_ms) / spent_ms))


def _rounded(number: Column) -> Column:
    return sql.round(number, 3)
